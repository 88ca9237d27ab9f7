//! Answers that count for a while, and no more of them than there is room for.

use std::{hash::Hash, num::NonZeroUsize, time::Duration};

use lru::LruCache;
use tokio::time::Instant;

/// An answer that is no.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct No;

/// Answers by what they are about: yes, with a value, or no, which is `None`. The one that was not used for longest
/// makes room.
pub(super) struct TtlCache<K: Hash + Eq, V> {
    entries: LruCache<K, (Instant, Option<V>)>,
    yes: Duration,
    no: Duration,
}

impl<K: Hash + Eq, V: Clone> TtlCache<K, V> {
    /// Room for so many answers, and how long each sort counts.
    pub(super) fn new(room: NonZeroUsize, yes: Duration, no: Duration) -> Self {
        Self { entries: LruCache::new(room), yes, no }
    }

    /// An answer that still counts.
    pub(super) fn get(&mut self, key: &K, now: Instant) -> Option<Result<V, No>> {
        let (since, answer) = self.entries.get(key)?;
        let ttl = if answer.is_some() { self.yes } else { self.no };
        (now.saturating_duration_since(*since) < ttl).then(|| answer.clone().ok_or(No))
    }

    /// Whether the last answer was yes, and is not forgotten yet.
    pub(super) fn was_yes(&self, key: &K) -> bool {
        self.entries.peek(key).is_some_and(|(_, answer)| answer.is_some())
    }

    /// Keeps an answer.
    pub(super) fn put(&mut self, key: K, answer: Option<V>, now: Instant) {
        self.entries.put(key, (now, answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_count_for_a_while_the_last_word_counts_and_there_are_only_so_many() {
        let now = Instant::now();
        let seconds = Duration::from_secs;
        let mut cache = TtlCache::new(NonZeroUsize::new(2).unwrap(), seconds(10), seconds(5));
        cache.put("a", Some(1), now);
        cache.put("b", None, now);
        assert_eq!(cache.get(&"b", now + seconds(4)), Some(Err(No)));
        assert_eq!(cache.get(&"b", now + seconds(5)), None);
        assert_eq!(cache.get(&"a", now + seconds(9)), Some(Ok(1)));
        assert_eq!(cache.get(&"a", now + seconds(10)), None);
        assert!(cache.was_yes(&"a") && !cache.was_yes(&"b"));
        cache.put("c", Some(3), now);
        assert_eq!(cache.get(&"b", now), None, "the one that was not used for longest makes room");
        assert!(cache.was_yes(&"a"));
        cache.put("a", None, now);
        assert!(!cache.was_yes(&"a"));
        cache.put("a", Some(2), now);
        assert_eq!(cache.get(&"a", now + seconds(5)), Some(Ok(2)));
    }
}
