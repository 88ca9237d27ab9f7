//! Which events are on the server, as far as this process knows, so that a repetition is counted instead of written
//! anew.
//!
//! Bounded by number and by time. An event counts as a repetition when object, type, reason and
//! message are the same; only a digest of them is kept.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::ids::ResourceVersion;

/// Some three megabytes.
const CAPACITY: usize = 65_536;

/// After this long the API server has dropped an event (`--event-ttl`).
const LIFETIME: Duration = Duration::from_hours(1);

/// So long an event stands, and need not be told again although it still holds: less than it lives by what the next
/// look may take.
const STANDS: Duration = Duration::from_mins(45);

/// An event that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) count: u32,
    pub(super) last: Instant,
    /// Of the event, which another process may count, too.
    pub(super) revision: ResourceVersion,
}

impl Written {
    /// Whether it would be there for long without being told again.
    pub(super) fn stands(self, now: Instant) -> bool {
        now < self.last + STANDS
    }
}

/// The events written of late.
#[derive(Debug, Default)]
pub(super) struct Memory(HashMap<u64, Written>);

impl Memory {
    /// The event of this digest, if it was written of late.
    pub(super) fn recall(&self, digest: u64, now: Instant) -> Option<Written> {
        self.0.get(&digest).filter(|written| now < written.last + LIFETIME).copied()
    }

    /// Remembers an event as written.
    pub(super) fn remember(&mut self, digest: u64, written: Written, now: Instant) {
        if self.0.len() >= CAPACITY && !self.0.contains_key(&digest) {
            self.make_room(now);
        }
        self.0.insert(digest, written);
    }

    pub(super) fn forget(&mut self, digest: u64) {
        self.0.remove(&digest);
    }

    /// Drops what is too old, and of the rest the older half if there is still no room: looking for
    /// the single oldest each time would make a burst of distinct events quadratic.
    fn make_room(&mut self, now: Instant) {
        self.0.retain(|_, written| now < written.last + LIFETIME);
        if self.0.len() < CAPACITY {
            return;
        }
        let mut times: Vec<Instant> = self.0.values().map(|written| written.last).collect();
        let middle = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable(middle);
        let median = *median;
        self.0.retain(|_, written| written.last > median);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_remembered_for_an_hour_after_its_last_repetition() {
        let mut memory = Memory::default();
        let start = Instant::now();
        let minutes = |minutes| start + Duration::from_mins(minutes);
        let revision = ResourceVersion::default();
        let written = |count, minute| Written { count, last: minutes(minute), revision };
        memory.remember(1, written(1, 0), start);
        memory.remember(1, written(2, 9), minutes(9));
        assert_eq!(memory.recall(1, minutes(68)).map(|written| written.count), Some(2));
        assert_eq!(memory.recall(1, minutes(69)), None);
        assert!(written(1, 0).stands(minutes(44)) && !written(1, 0).stands(minutes(45)));
        memory.forget(1);
        assert_eq!(memory.recall(1, minutes(9)), None);
    }

    #[test]
    fn memory_is_bounded_and_the_newest_stay() {
        let most = u64::try_from(CAPACITY * 2).unwrap();
        let start = Instant::now();
        for step in [1, 0] {
            let mut memory = Memory::default();
            for i in 0..most {
                let last = start + Duration::from_millis(i * step);
                let revision = ResourceVersion::default();
                memory.remember(i, Written { count: 1, last, revision }, last);
                assert!(memory.0.len() <= CAPACITY);
            }
            assert!(memory.recall(most - 1, start).is_some());
            assert!(memory.recall(0, start).is_none());
        }
    }
}
