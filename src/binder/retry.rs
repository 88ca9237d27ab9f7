//! When to look again at a key whose request failed.
//!
//! In: failures and the current time. Out: which keys are due. One entry per failing key, gone with
//! its next success; nothing here reads a clock or draws a random number.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

/// First wait after a failure (KCM: nestedpendingoperations, exponentialbackoff).
const FIRST: Duration = Duration::from_millis(500);
/// Longest wait (same).
const LONGEST: Duration = Duration::from_secs(122);
/// So many conflicts in a row are retried at once: each is answered with a live read, after which
/// the write usually succeeds. More of them mean that somebody fights us.
const FREE_CONFLICTS: u32 = 3;

/// How long to wait after the given number of failures in a row. `jitter` in 0..1 spreads keys that
/// failed together over a quarter of the time.
#[must_use]
pub fn delay(failures: u32, jitter: f64) -> Duration {
    let doubled = FIRST.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1)));
    doubled.min(LONGEST).mul_f64(1.0 - 0.25 * jitter.clamp(0.0, 1.0))
}

#[derive(Debug, Default)]
struct Entry {
    failures: u32,
    conflicts: u32,
    until: Option<Instant>,
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
        let until = now + delay(entry.failures, jitter);
        self.wait_until(key, until);
        until
    }

    /// Notes a conflict. Returns until when to wait, if at all.
    pub fn conflicted(&mut self, key: &K, now: Instant, jitter: f64) -> Option<Instant> {
        let entry = self.entries.entry(key.clone()).or_default();
        entry.conflicts += 1;
        (entry.conflicts > FREE_CONFLICTS).then(|| self.failed(key, now, jitter))
    }

    /// The key waits until then, whatever it waited for before.
    pub fn wait_until(&mut self, key: &K, until: Instant) {
        let entry = self.entries.entry(key.clone()).or_default();
        if let Some(before) = entry.until.replace(until) {
            self.due.remove(&(before, key.clone()));
        }
        self.due.insert((until, key.clone()));
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
    fn s40_waits_double_up_to_a_cap() {
        assert_eq!(delay(1, 0.0), Duration::from_millis(500));
        assert_eq!(delay(2, 0.0), Duration::from_secs(1));
        assert_eq!(delay(9, 0.0), LONGEST);
        assert_eq!(delay(u32::MAX, 0.0), LONGEST);
        assert_eq!(delay(1, 1.0), Duration::from_millis(375));
    }

    #[test]
    fn a_key_is_due_once_and_remembers_its_failures() {
        let mut retries = Retries::default();
        let now = Instant::now();
        retries.failed(&"a", now, 0.0);
        assert!(retries.waits(&"a"));
        assert!(retries.take_due(now).is_empty());
        assert_eq!(retries.next_due(), Some(now + FIRST));
        assert_eq!(retries.take_due(now + FIRST), vec!["a"]);
        assert!(!retries.waits(&"a"));
        assert_eq!(retries.failed(&"a", now, 0.0), now + 2 * FIRST);
        retries.clear(&"a");
        assert_eq!(retries.next_due(), None);
    }

    #[test]
    fn only_repeated_conflicts_wait() {
        let mut retries = Retries::default();
        let now = Instant::now();
        for _ in 0..FREE_CONFLICTS {
            assert_eq!(retries.conflicted(&"a", now, 0.0), None);
        }
        assert_eq!(retries.conflicted(&"a", now, 0.0), Some(now + FIRST));
    }
}
