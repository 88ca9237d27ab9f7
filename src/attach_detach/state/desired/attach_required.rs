//! Whether the volumes of a driver are to be attached, also while its CSIDriver is away for a moment.
//!
//! In: CSIDrivers as last seen, their absence, and the time. Out: yes or no, and when to ask again.
//! `attachRequired` cannot be changed, so an upgrade of a driver that needs no attaching deletes its CSIDriver and
//! makes it anew. Where there is none, volumes are attached (S16): for the time between, every running pod of that
//! driver would get VolumeAttachments, which count against what its node may have, and lose them again.

use std::{collections::BTreeMap, time::Duration};

use apiserver::{ids::DriverName, kinds::CsiDriver};
use tokio::time::Instant;

/// How long what a CSIDriver said last holds on: many times what its replacement takes, and less than the three
/// minutes after which KCM looks.
/// KCM: pkg/controller/volume/attachdetach, `DesiredStateOfWorldPopulatorListPodsRetryDuration`.
const REMEMBERED: Duration = Duration::from_mins(1);

/// The drivers that need no attaching, each with the moment until which that is remembered, if its CSIDriver is
/// away. Of what vanished before this process began nothing is known.
#[derive(Clone, Debug, Default)]
pub struct AttachRequired {
    needless: BTreeMap<DriverName, Option<Instant>>,
}

impl AttachRequired {
    /// Whether volumes of the driver, whose CSIDriver this is, are to be attached.
    pub fn of(&self, driver: &DriverName, object: Option<&CsiDriver>) -> bool {
        match object {
            Some(object) => object.spec.attach_required != Some(false),
            None => !self.needless.contains_key(driver),
        }
    }

    /// Takes a CSIDriver as last seen, or its absence. Returns when to look at it again, if ever.
    pub(in crate::attach_detach) fn observe(
        &mut self,
        driver: &DriverName,
        object: Option<&CsiDriver>,
        now: Instant,
    ) -> Option<Instant> {
        if object.is_none() {
            let until = self.needless.get_mut(driver)?;
            return Some(*until.get_or_insert(now + REMEMBERED));
        }
        if self.of(driver, object) {
            self.needless.remove(driver);
        } else {
            self.needless.insert(driver.clone(), None);
        }
        None
    }

    /// Forgets a driver whose CSIDriver stays away. Returns whether that was due.
    pub(in crate::attach_detach) fn forget(&mut self, driver: &DriverName, now: Instant) -> bool {
        let is_due = self.needless.get(driver).is_some_and(|until| until.is_some_and(|until| until <= now));
        if is_due {
            self.needless.remove(driver);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(attach_required: Option<bool>) -> CsiDriver {
        let mut object = CsiDriver::default();
        object.spec.attach_required = attach_required;
        object
    }

    #[test]
    fn s16_what_is_remembered_is_that_of_drivers_that_said_no_and_for_a_minute() {
        let (driver, now) = (DriverName::from("d"), Instant::now());
        for (said, is_needed) in [(None, true), (Some(true), true), (Some(false), false)] {
            let mut drivers = AttachRequired::default();
            assert!(drivers.of(&driver, None), "nothing is known");
            let object = object(said);
            assert_eq!(drivers.observe(&driver, Some(&object), now), None);
            assert_eq!(drivers.of(&driver, Some(&object)), is_needed, "{said:?}");
            let until = drivers.observe(&driver, None, now);
            assert_eq!(until, (!is_needed).then_some(now + REMEMBERED), "{said:?}");
            assert_eq!(drivers.observe(&driver, None, now + REMEMBERED / 2), until, "it is away as before");
            assert_eq!(drivers.of(&driver, None), is_needed, "{said:?}");
            assert!(!drivers.forget(&driver, now + REMEMBERED / 2), "not yet");
            assert_eq!(drivers.forget(&driver, now + REMEMBERED), !is_needed, "{said:?}");
            assert!(drivers.of(&driver, None) && drivers.needless.is_empty(), "{said:?}");
        }
    }

    #[test]
    fn s16_one_that_is_back_is_not_forgotten() {
        let (driver, now) = (DriverName::from("d"), Instant::now());
        let mut drivers = AttachRequired::default();
        drivers.observe(&driver, Some(&object(Some(false))), now);
        drivers.observe(&driver, None, now);
        drivers.observe(&driver, Some(&object(Some(false))), now);
        assert!(!drivers.forget(&driver, now + REMEMBERED));
        assert_eq!(drivers.observe(&driver, None, now + REMEMBERED), Some(now + 2 * REMEMBERED));
    }
}
