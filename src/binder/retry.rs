//! When to look again at a key whose request failed.
//!
//! In: failures and the current time. Out: which keys are due. One entry per failing key, gone with
//! its next success; nothing here reads a clock or draws a random number.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use crate::kube_api::backoff::{retry_pause, silence_pause};

/// So many conflicts in a row are retried at once: each is answered with a live read, after which
/// the write usually succeeds. More of them mean that somebody fights us.
const FREE_CONFLICTS: u32 = 3;

#[derive(Debug, Default)]
struct Entry {
    failures: u32,
    conflicts: u32,
    silences: u32,
    until: Option<Instant>,
    /// The server asked for the pause.
    asked: bool,
}

/// Keys that wait before they are looked at again.
#[derive(Debug)]
pub struct Retries<K> {
    entries: BTreeMap<K, Entry>,
    due: BTreeSet<(Instant, K)>,
}

impl<K> Default for Retries<K> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), due: BTreeSet::new() }
    }
}

impl<K: Ord + Clone> Retries<K> {
    /// Notes a failure; the key waits, longer each time.
    pub fn failed(&mut self, key: &K, now: Instant, jitter: f64) -> Instant {
        let entry = self.entries.entry(key.clone()).or_default();
        entry.failures += 1;
        let until = now + retry_pause(entry.failures, jitter);
        self.pause(key, until, false);
        until
    }

    /// Notes that a read was not answered, which says nothing about the key (L16).
    pub fn unanswered(&mut self, key: &K, now: Instant, jitter: f64) {
        let entry = self.entries.entry(key.clone()).or_default();
        entry.silences += 1;
        let until = now + silence_pause(entry.silences, jitter);
        self.pause(key, until, false);
    }

    /// Notes a conflict. Returns until when to wait, if at all.
    pub fn conflicted(&mut self, key: &K, now: Instant, jitter: f64) -> Option<Instant> {
        let entry = self.entries.entry(key.clone()).or_default();
        entry.conflicts += 1;
        (entry.conflicts > FREE_CONFLICTS).then(|| self.failed(key, now, jitter))
    }

    /// The key waits until then, as the server asked, whatever it waited for before.
    pub fn wait_until(&mut self, key: &K, until: Instant) {
        self.pause(key, until, true);
    }

    fn pause(&mut self, key: &K, until: Instant, asked: bool) {
        let entry = self.entries.entry(key.clone()).or_default();
        entry.asked = asked;
        if let Some(before) = entry.until.replace(until) {
            self.due.remove(&(before, key.clone()));
        }
        self.due.insert((until, key.clone()));
    }

    /// The key does not look any more as it did when its request failed: it waits no longer, unless the
    /// server asked for that. Its failures stay counted, so that it waits longer if it fails again.
    pub fn changed(&mut self, key: &K) {
        if let Some(entry) = self.entries.get_mut(key)
            && !entry.asked
            && let Some(until) = entry.until.take()
        {
            self.due.remove(&(until, key.clone()));
        }
    }

    /// Forgets a key: it succeeded, or is gone.
    pub fn clear(&mut self, key: &K) {
        if let Some(Entry { until: Some(until), .. }) = self.entries.remove(key) {
            self.due.remove(&(until, key.clone()));
        }
    }

    /// Whether the key has to wait.
    #[must_use]
    pub fn waits(&self, key: &K) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.until.is_some())
    }

    /// The keys whose wait is over. Their failures stay counted until a success.
    pub fn take_due(&mut self, now: Instant) -> Vec<K> {
        let mut keys = Vec::new();
        while let Some((until, key)) = self.due.pop_first() {
            if until > now {
                self.due.insert((until, key));
                break;
            }
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.until = None;
            }
            keys.push(key);
        }
        keys
    }

    /// When the next wait is over.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(until, _)| *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_due_once_and_remembers_its_failures() {
        let mut retries = Retries::default();
        let now = Instant::now();
        let first = retry_pause(1, 0.0);
        retries.failed(&"a", now, 0.0);
        assert!(retries.waits(&"a"));
        assert!(retries.take_due(now).is_empty());
        assert_eq!(retries.next_due(), Some(now + first));
        assert_eq!(retries.take_due(now + first), vec!["a"]);
        assert!(!retries.waits(&"a"));
        assert_eq!(retries.failed(&"a", now, 0.0), now + 2 * first);
        retries.clear(&"a");
        assert_eq!(retries.next_due(), None);
    }

    #[test]
    fn a_changed_key_is_tried_at_once_unless_the_server_asked_for_the_pause() {
        let mut retries = Retries::default();
        let now = Instant::now();
        retries.failed(&"a", now, 0.0);
        retries.wait_until(&"b", now);
        for key in ["a", "b", "c"] {
            retries.changed(&key);
        }
        assert!(!retries.waits(&"a"));
        assert!(retries.waits(&"b"));
        assert_eq!(retries.take_due(now), vec!["b"]);
        assert_eq!(retries.failed(&"a", now, 0.0), now + retry_pause(2, 0.0));
        // What the server asked for once does not make the next pause its wish.
        retries.failed(&"b", now, 0.0);
        retries.changed(&"b");
        assert!(!retries.waits(&"b"));
    }

    #[test]
    fn l16_silence_counts_apart_from_failures() {
        let mut retries = Retries::default();
        let now = Instant::now();
        for _ in 0..20 {
            retries.unanswered(&"a", now, 0.0);
        }
        assert_eq!(retries.next_due(), Some(now + silence_pause(20, 0.0)));
        assert_eq!(retries.failed(&"a", now, 0.0), now + retry_pause(1, 0.0));
    }

    #[test]
    fn only_repeated_conflicts_wait() {
        let mut retries = Retries::default();
        let now = Instant::now();
        let first = retry_pause(1, 0.0);
        for _ in 0..FREE_CONFLICTS {
            assert_eq!(retries.conflicted(&"a", now, 0.0), None);
        }
        assert_eq!(retries.conflicted(&"a", now, 0.0), Some(now + first));
    }
}
