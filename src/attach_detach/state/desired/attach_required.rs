//! Whether the volumes of a driver are to be attached, also while its CSIDriver is away for a moment.
//!
//! In: CSIDrivers as last seen, their absence, and the time. Out: yes or no. Where there is none, volumes are attached (S16).

use apiserver::{ids::DriverName, kinds::CsiDriver};
use tokio::time::Instant;

use crate::controller::last_said::LastSaid;

/// The drivers that need no attaching.
#[derive(Clone, Debug, Default)]
pub struct AttachRequired(pub(in crate::attach_detach) LastSaid<DriverName>);

impl AttachRequired {
    /// Whether volumes of the driver, whose CSIDriver this is, are to be attached.
    pub fn of(&self, driver: &DriverName, object: Option<&CsiDriver>) -> bool {
        !self.0.says(driver, object.map(needs_none))
    }

    /// Takes a CSIDriver as last seen, or its absence. Returns when to look at it again, if ever.
    pub(in crate::attach_detach) fn observe(
        &mut self,
        driver: &DriverName,
        object: Option<&CsiDriver>,
        now: Instant,
    ) -> Option<Instant> {
        self.0.observe(driver, object.map(needs_none), now)
    }
}

fn needs_none(object: &CsiDriver) -> bool {
    object.spec.attach_required == Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s16_what_is_remembered_is_that_of_drivers_that_said_no() {
        let (driver, now) = (DriverName::from("d"), Instant::now());
        for (said, is_needed) in [(None, true), (Some(true), true), (Some(false), false)] {
            let mut drivers = AttachRequired::default();
            assert!(drivers.of(&driver, None), "nothing is known");
            let mut object = CsiDriver::default();
            object.spec.attach_required = said;
            drivers.observe(&driver, Some(&object), now);
            assert_eq!(drivers.of(&driver, Some(&object)), is_needed, "{said:?}");
            drivers.observe(&driver, None, now);
            assert_eq!(drivers.of(&driver, None), is_needed, "{said:?}");
        }
    }
}
