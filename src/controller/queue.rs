//! Keys to look at: each is in once, however often it is added, and the oldest comes first.
//!
//! A [`Lane`] is the order alone; who has several of them says which goes first, so that a burst of one kind holds up
//! no other (L15). A [`Queue`] is one lane that counts what client-go's work queues count. They are taken with
//! each plan, and until then each wait is one of them.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

use educe::Educe;
use tokio::time::Instant;

use crate::metrics::QueueCounts;

/// Where a key is in the order, and since when, if that is known.
type QueuePlace = (u64, Option<Instant>);

/// Keys in the order in which they came.
#[derive(Clone, Debug, Educe)]
#[educe(Default(bound(false)))]
pub struct Lane<K> {
    order: BTreeMap<u64, K>,
    places: HashMap<K, QueuePlace>,
    /// How many keys have been added.
    count: u64,
}

impl<K: Clone + Eq + Hash> Lane<K> {
    /// Adds a key that has waited since then, unless it is in. Returns whether it was added.
    pub fn push(&mut self, key: K, since: Option<Instant>) -> bool {
        if self.contains(&key) {
            return false;
        }
        self.count += 1;
        self.order.insert(self.count, key.clone());
        self.places.insert(key, (self.count, since));
        true
    }

    /// Takes the oldest key, with since when it has waited.
    pub fn pop(&mut self) -> Option<(K, Option<Instant>)> {
        let (_, key) = self.order.pop_first()?;
        let since = self.places.remove(&key).and_then(|(_, since)| since);
        self.give_back_room();
        Some((key, since))
    }

    /// Takes a key out of turn, if it is in. Returns since when it has waited.
    pub fn remove(&mut self, key: &K) -> Option<Option<Instant>> {
        let (place, since) = self.places.remove(key)?;
        self.order.remove(&place);
        self.give_back_room();
        Some(since)
    }

    /// Whether the key is in.
    pub fn contains(&self, key: &K) -> bool {
        self.places.contains_key(key)
    }

    /// The oldest key.
    pub fn first(&self) -> Option<&K> {
        self.order.first_key_value().map(|(_, key)| key)
    }

    /// How many keys are in.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether no key is in.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// A burst may have made it large.
    fn give_back_room(&mut self) {
        if self.places.is_empty() {
            self.places = HashMap::new();
        }
    }
}

/// One lane, counted.
#[derive(Clone, Debug, Educe)]
#[educe(Default(bound(false)))]
pub struct Queue<K> {
    lane: Lane<K>,
    now: Option<Instant>,
    counts: QueueCounts,
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// It is that time, for what is added and taken from now on.
    pub fn at(&mut self, now: Instant) {
        self.now = Some(now);
    }

    /// What was counted since this was last asked.
    pub fn take_counts(&mut self) -> QueueCounts {
        QueueCounts { depth: self.lane.len(), ..std::mem::take(&mut self.counts) }
    }

    /// Adds a key unless it is in.
    pub fn push(&mut self, key: K) {
        self.counts.adds += u64::from(self.lane.push(key, self.now));
    }

    /// Adds a key that failed a while ago.
    pub fn retry(&mut self, key: K) {
        self.counts.retries += 1;
        self.push(key);
    }

    /// Takes the oldest key.
    pub fn pop(&mut self) -> Option<K> {
        let (key, since) = self.lane.pop()?;
        self.taken(since);
        Some(key)
    }

    /// Takes a key out of turn.
    pub fn forget(&mut self, key: &K) {
        if let Some(since) = self.lane.remove(key) {
            self.taken(since);
        }
    }

    fn taken(&mut self, since: Option<Instant>) {
        if let Some((now, since)) = self.now.zip(since) {
            self.counts.waits.push(now.saturating_duration_since(since));
        }
    }

    /// Whether there is no key.
    pub(crate) fn is_empty(&self) -> bool {
        self.lane.is_empty()
    }
}

impl<K: Clone + Eq + Hash> Extend<K> for Queue<K> {
    fn extend<I: IntoIterator<Item = K>>(&mut self, keys: I) {
        for key in keys {
            self.push(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_key_has_one_place_however_often_it_comes_and_goes() {
        let mut queue = Queue::default();
        for _ in 0..9 {
            queue.push(1);
            queue.push(2);
            queue.forget(&1);
        }
        assert_eq!((queue.lane.order.len(), queue.lane.places.len()), (1, 1));
        assert_eq!((queue.pop(), queue.pop(), queue.is_empty()), (Some(2), None, true));
        assert_eq!(queue.lane.places.capacity(), 0);
    }

    #[test]
    fn what_waits_is_counted_and_how_long_it_has() {
        let start = Instant::now();
        let second = |second| start + Duration::from_secs(second);
        let mut queue = Queue::default();
        queue.at(start);
        queue.extend([1, 2, 1]);
        queue.at(second(3));
        queue.retry(3);
        queue.retry(1);
        queue.at(second(5));
        queue.forget(&2);
        assert_eq!(queue.pop(), Some(1));
        let waits = vec![Duration::from_secs(5); 2];
        assert_eq!(queue.take_counts(), QueueCounts { adds: 3, retries: 2, waits, depth: 1 });
        for _ in 0..100_000 {
            queue.push(9);
            queue.forget(&9);
        }
        assert_eq!((queue.take_counts().adds, queue.take_counts().adds), (100_000, 0));
        assert_eq!(queue.counts.waits.capacity(), 0);
    }
}
