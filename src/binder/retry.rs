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
    /// The pause, from when and until when.
    pause: Option<(Instant, Instant)>,
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
        self.pause(key, now, until, false);
        until
    }

    /// Notes that a read was not answered, which says nothing about the key (L16).
    pub fn unanswered(&mut self, key: &K, now: Instant, jitter: f64) {
        let entry = self.entries.entry(key.clone()).or_default();
        entry.silences += 1;
        let until = now + silence_pause(entry.silences, jitter);
        self.pause(key, now, until, false);
    }

    /// Notes a conflict. Returns until when to wait, if at all.
    pub fn conflicted(&mut self, key: &K, now: Instant, jitter: f64) -> Option<Instant> {
        let entry = self.entries.entry(key.clone()).or_default();
        entry.conflicts += 1;
        (entry.conflicts > FREE_CONFLICTS).then(|| self.failed(key, now, jitter))
    }

    /// The key waits until then, as the server asked, whatever it waited for before.
    pub fn wait_until(&mut self, key: &K, until: Instant) {
        self.pause(key, until, until, true);
    }

    fn pause(&mut self, key: &K, from: Instant, until: Instant, asked: bool) {
        let entry = self.entries.entry(key.clone()).or_default();
        entry.asked = asked;
        if let Some((_, before)) = entry.pause.replace((from, until)) {
            self.due.remove(&(before, key.clone()));
        }
        self.due.insert((until, key.clone()));
    }

    /// The key does not look any more as it did when its request failed: it waits no longer than after a
    /// first failure, unless the server asked for more. (Who changes it without end gets no more tries than
    /// that.) Its failures stay counted, so that it waits longer if it fails again.
    pub fn changed(&mut self, key: &K, now: Instant) {
        let Some(entry) = self.entries.get_mut(key).filter(|entry| !entry.asked) else { return };
        let Some((from, until)) = entry.pause else { return };
        let first = from + retry_pause(1, 0.0);
        if first <= now {
            entry.pause = None;
            self.due.remove(&(until, key.clone()));
        } else if first < until {
            self.pause(key, from, first, false);
        }
    }

    /// Forgets a key: it succeeded, or is gone.
    pub fn clear(&mut self, key: &K) {
        if let Some(Entry { pause: Some((_, until)), .. }) = self.entries.remove(key) {
            self.due.remove(&(until, key.clone()));
        }
    }

    /// Failures in a row.
    #[must_use]
    pub fn failures(&self, key: &K) -> u32 {
        self.entries.get(key).map_or(0, |entry| entry.failures.saturating_add(entry.silences))
    }

    /// Until when the key has to wait, if it has to.
    #[must_use]
    pub fn until(&self, key: &K) -> Option<Instant> {
        self.entries.get(key)?.pause.map(|(_, until)| until)
    }

    /// Whether the key has to wait.
    #[must_use]
    pub fn waits(&self, key: &K) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.pause.is_some())
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
                entry.pause = None;
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
    use std::time::Duration;

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
    fn a_changed_key_waits_no_longer_than_after_a_first_failure_unless_the_server_asked_for_the_pause() {
        let mut retries = Retries::default();
        let now = Instant::now();
        let first = now + retry_pause(1, 0.0);
        for _ in 0..3 {
            retries.failed(&"a", now, 0.0);
        }
        retries.wait_until(&"b", now + Duration::from_secs(9));
        for key in ["a", "b", "c"] {
            retries.changed(&key, now);
        }
        assert!(retries.waits(&"a"));
        assert_eq!(retries.take_due(first), vec!["a"]);
        assert_eq!(
            retries.failed(&"a", first, 0.0),
            first + retry_pause(4, 0.0),
            "its failures stay counted"
        );
        retries.changed(&"a", first + retry_pause(1, 0.0));
        assert!(!retries.waits(&"a"), "it has waited long enough");
        assert_eq!(retries.next_due(), Some(now + Duration::from_secs(9)));
        // What the server asked for once does not make the next pause its wish.
        retries.failed(&"b", now, 0.0);
        retries.changed(&"b", first);
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
