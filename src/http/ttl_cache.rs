//! Answers that count for a while, and no more of them than there is room for.

use std::{hash::Hash, num::NonZeroUsize, time::Duration};

use lru::LruCache;
use tokio::time::Instant;

/// Answers by what they are about; the one that was not used for longest makes room.
pub(super) struct TtlCache<K: Hash + Eq, V> {
    entries: LruCache<K, (Instant, V)>,
    ttl: Duration,
}

impl<K: Hash + Eq, V: Clone> TtlCache<K, V> {
    /// Room for so many answers, which count so long.
    pub(super) fn new(room: NonZeroUsize, ttl: Duration) -> Self {
        Self { entries: LruCache::new(room), ttl }
    }

    /// An answer that still counts.
    pub(super) fn get(&mut self, key: &K, now: Instant) -> Option<V> {
        let (since, value) = self.entries.get(key)?;
        (now.saturating_duration_since(*since) < self.ttl).then(|| value.clone())
    }

    /// Whether there has been an answer, and it is not forgotten yet.
    pub(super) fn remembers(&self, key: &K) -> bool {
        self.entries.contains(key)
    }

    /// Keeps an answer.
    pub(super) fn put(&mut self, key: K, value: V, now: Instant) {
        self.entries.put(key, (now, value));
    }

    /// Forgets an answer.
    pub(super) fn remove(&mut self, key: &K) {
        self.entries.pop(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_count_for_a_while_and_there_are_only_so_many() {
        let now = Instant::now();
        let mut memory = TtlCache::new(NonZeroUsize::new(2).unwrap(), Duration::from_secs(10));
        memory.put("a", 1, now);
        memory.put("b", 2, now);
        assert_eq!(memory.get(&"a", now + Duration::from_secs(9)), Some(1));
        assert_eq!(memory.get(&"a", now + Duration::from_secs(10)), None);
        assert!(memory.remembers(&"a"));
        memory.put("c", 3, now);
        assert!(!memory.remembers(&"b") && memory.remembers(&"a"));
        memory.remove(&"a");
        assert!(!memory.remembers(&"a"));
    }
}
