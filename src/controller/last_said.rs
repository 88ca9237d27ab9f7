//! What objects said last, also while they are away for a moment.
//!
//! In: what an object says as last seen, its absence, and the time. Out: yes or no, and when to ask again.
//! What cannot be changed (`attachRequired` of a CSIDriver, all that a StorageClass says) is changed by deleting the object and
//! making it anew. What is done without one is not meant for the time between: every running pod of a driver that needs no
//! attaching would get VolumeAttachments (S16), and claims that wait for their first consumer any volume (S28).

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// How long it holds on: many times what a replacement takes, and less than the three minutes after which KCM looks.
/// KCM: pkg/controller/volume/attachdetach, `DesiredStateOfWorldPopulatorListPodsRetryDuration`.
const REMEMBERED: Duration = Duration::from_mins(1);

/// The objects that said yes, each with the moment until which that is remembered, if it is away. Of what vanished before this
/// process began nothing is known.
#[derive(Clone, Debug, Default)]
pub struct LastSaid<K>(BTreeMap<K, Option<Instant>>);

impl<K: Ord + Clone> LastSaid<K> {
    /// Whether the object says yes, or did of late. It says this, if it is there.
    pub fn says(&self, key: &K, says: Option<bool>) -> bool {
        says.unwrap_or_else(|| self.0.contains_key(key))
    }

    /// Takes what an object says, or its absence. Returns when to look at it again, if ever.
    pub fn observe(&mut self, key: &K, says: Option<bool>, now: Instant) -> Option<Instant> {
        match says {
            None => return Some(*self.0.get_mut(key)?.get_or_insert(now + REMEMBERED)),
            Some(true) => self.0.insert(key.clone(), None),
            Some(false) => self.0.remove(key),
        };
        None
    }

    /// Forgets those that stay away. Returns which.
    pub fn take_due(&mut self, now: Instant) -> Vec<K> {
        self.0
            .extract_if(.., |_, until| until.is_some_and(|until| until <= now))
            .map(|(key, _)| key)
            .collect()
    }

    /// When the next of them is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.0.values().copied().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s16_s28_what_is_remembered_is_that_of_objects_that_said_yes_and_for_a_minute() {
        let now = Instant::now();
        for said in [true, false] {
            let mut objects = LastSaid::default();
            assert!(!objects.says(&"a", None), "nothing is known");
            assert_eq!(objects.observe(&"a", Some(said), now), None);
            assert_eq!(objects.says(&"a", Some(said)), said);
            let until = objects.observe(&"a", None, now);
            assert_eq!(until, said.then_some(now + REMEMBERED));
            assert_eq!(objects.observe(&"a", None, now + REMEMBERED / 2), until, "it is away as before");
            assert_eq!((objects.says(&"a", None), objects.next_due()), (said, until));
            assert_eq!(objects.take_due(now + REMEMBERED / 2), [""; 0], "not yet");
            assert_eq!(objects.take_due(now + REMEMBERED).len(), usize::from(said));
            assert!(!objects.says(&"a", None) && objects.0.is_empty());
        }
    }

    #[test]
    fn s16_s28_one_that_is_back_is_not_forgotten() {
        let now = Instant::now();
        let mut objects = LastSaid::default();
        objects.observe(&"a", Some(true), now);
        objects.observe(&"a", None, now);
        objects.observe(&"a", Some(true), now);
        assert_eq!((objects.take_due(now + REMEMBERED), objects.next_due()), (vec![], None));
        assert_eq!(objects.observe(&"a", None, now + REMEMBERED), Some(now + 2 * REMEMBERED));
    }
}
