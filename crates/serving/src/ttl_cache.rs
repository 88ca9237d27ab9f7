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

/// An answer that is no.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct No;

/// Answers yes, with a value, and answers no. Each has a time and room of its own, so that many noes make no yes forgotten.
pub(super) struct Verdicts<K: Hash + Eq, V> {
    yes: TtlCache<K, V>,
    no: TtlCache<K, ()>,
}

impl<K: Hash + Eq, V: Clone> Verdicts<K, V> {
    /// Room for so many answers of each sort, and how long each counts.
    pub(super) fn new(room: NonZeroUsize, yes: Duration, no: Duration) -> Self {
        Self { yes: TtlCache::new(room, yes), no: TtlCache::new(room, no) }
    }

    /// An answer that still counts.
    pub(super) fn get(&mut self, key: &K, now: Instant) -> Option<Result<V, No>> {
        match self.yes.get(key, now) {
            Some(value) => Some(Ok(value)),
            None => self.no.get(key, now).map(|()| Err(No)),
        }
    }

    /// Whether the last answer was yes, and is not forgotten yet.
    pub(super) fn remembers(&self, key: &K) -> bool {
        self.yes.remembers(key)
    }

    /// Keeps an answer.
    pub(super) fn put(&mut self, key: K, answer: Option<V>, now: Instant) {
        if let Some(value) = answer {
            self.no.remove(&key);
            self.yes.put(key, value, now);
        } else {
            self.yes.remove(&key);
            self.no.put(key, (), now);
        }
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

    #[test]
    fn many_noes_make_no_yes_forgotten_and_the_last_word_counts() {
        let now = Instant::now();
        let seconds = Duration::from_secs;
        let mut verdicts = Verdicts::new(NonZeroUsize::new(1).unwrap(), seconds(10), seconds(5));
        verdicts.put("a", Some(1), now);
        verdicts.put("b", None, now);
        verdicts.put("c", None, now);
        assert_eq!(verdicts.get(&"a", now + seconds(9)), Some(Ok(1)));
        assert_eq!(verdicts.get(&"b", now), None);
        assert_eq!(verdicts.get(&"c", now + seconds(4)), Some(Err(No)));
        assert_eq!(verdicts.get(&"c", now + seconds(5)), None);
        assert_eq!(verdicts.get(&"a", now + seconds(10)), None);
        assert!(verdicts.remembers(&"a"));
        verdicts.put("a", None, now);
        assert!(!verdicts.remembers(&"a"));
        verdicts.put("a", Some(2), now);
        assert_eq!(verdicts.get(&"a", now + seconds(5)), Some(Ok(2)));
    }
}
