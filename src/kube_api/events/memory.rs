//! Which events were written of late, so that a repetition is counted instead of written anew.
//!
//! Bounded by number and by time. An event counts as a repetition when object, type, reason and
//! message are the same; only a digest of them is kept.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use tokio::time::Instant;

use super::Report;

/// client-go: tools/record/events_cache.go, maxLruCacheEntries.
const CAPACITY: usize = 4_096;

/// After this long without repetition an event is written anew.
///
/// client-go: tools/record/events_cache.go, defaultAggregateIntervalInSeconds.
const LIFETIME: Duration = Duration::from_mins(10);

/// An event that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) name: String,
    pub(super) count: u32,
    last: Instant,
}

/// The events written of late.
#[derive(Debug, Default)]
pub(super) struct Memory {
    written: HashMap<u64, Written>,
    hasher: RandomState,
}

/// What makes an event the same as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digest(u64);

impl Memory {
    pub(super) fn digest(&self, report: &Report) -> Digest {
        let event = &report.event;
        let involved = &event.involved;
        Digest(self.hasher.hash_one((
            report.component,
            involved.kind,
            &*involved.namespace,
            &*involved.name,
            &involved.uid,
            event.r#type,
            event.reason,
            &event.message,
        )))
    }

    /// The event that this one repeats, if it was written of late.
    pub(super) fn recall(&self, digest: Digest, now: Instant) -> Option<Written> {
        self.written.get(&digest.0).filter(|written| now < written.last + LIFETIME).cloned()
    }

    /// Remembers an event as written, for the `count`th time.
    pub(super) fn remember(&mut self, digest: Digest, name: String, count: u32, now: Instant) {
        if self.written.len() >= CAPACITY && !self.written.contains_key(&digest.0) {
            self.make_room(now);
        }
        self.written.insert(digest.0, Written { name, count, last: now });
    }

    pub(super) fn forget(&mut self, digest: Digest) {
        self.written.remove(&digest.0);
    }

    /// Drops what is too old, and of the rest the older half if there is still no room: looking for
    /// the single oldest each time would make a burst of distinct events quadratic.
    fn make_room(&mut self, now: Instant) {
        self.written.retain(|_, written| now < written.last + LIFETIME);
        if self.written.len() < CAPACITY {
            return;
        }
        let mut times: Vec<Instant> = self.written.values().map(|written| written.last).collect();
        let middle = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable(middle);
        let median = *median;
        self.written.retain(|_, written| written.last > median);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_remembered_for_ten_minutes_after_its_last_repetition() {
        let mut memory = Memory::default();
        let start = Instant::now();
        let minutes = |minutes| start + Duration::from_mins(minutes);
        memory.remember(Digest(1), "a".to_owned(), 1, start);
        memory.remember(Digest(1), "a".to_owned(), 2, minutes(9));
        assert_eq!(memory.recall(Digest(1), minutes(18)).map(|written| written.count), Some(2));
        assert_eq!(memory.recall(Digest(1), minutes(19)), None);
        memory.forget(Digest(1));
        assert_eq!(memory.recall(Digest(1), minutes(9)), None);
    }

    #[test]
    fn memory_is_bounded_and_the_newest_stay() {
        let mut memory = Memory::default();
        let start = Instant::now();
        for i in 0..10_000 {
            memory.remember(Digest(i), String::new(), 1, start + Duration::from_millis(i));
            assert!(memory.written.len() <= CAPACITY);
        }
        assert!(memory.recall(Digest(9_999), start).is_some());
        assert!(memory.recall(Digest(0), start).is_none());
        // All at the same instant: room is made all the same.
        let mut memory = Memory::default();
        for i in 0..10_000 {
            memory.remember(Digest(i), String::new(), 1, start);
            assert!(memory.written.len() <= CAPACITY);
        }
    }
}
