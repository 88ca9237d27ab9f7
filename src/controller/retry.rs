//! When to try again after a failure: a value for one key, and a map of them with their due times.
//!
//! In: failures and the current time. Out: when the next try is due. Nothing here reads a clock or draws a random
//! number. Failures that the server answered and reads without an answer count apart (L16), and each object or
//! kind of request has a pause of its own (S40).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use apiserver::{
    backoff::{retry_pause, silence_pause, undone_pause},
    call::CallError,
};
use educe::Educe;
use tokio::time::Instant;

/// So many conflicts in a row are retried at once: each is answered with a live read, after which
/// the write usually succeeds. More of them mean that another writer fights us.
const FREE_CONFLICTS: u32 = 3;

/// Failures in a row, when to try again, and what was said of the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retry {
    failures: u32,
    silences: u32,
    at: Option<Instant>,
    message: Option<Arc<str>>,
}

impl Retry {
    /// When the next try is due, if that is in the future.
    pub fn pending(&self, now: Instant) -> Option<Instant> {
        self.at.filter(|at| *at > now)
    }

    /// When the next try is or was due, if the last one failed.
    pub fn at(&self) -> Option<Instant> {
        self.at
    }

    /// The same, to be tried at once: what it failed for is over.
    pub fn due(self) -> Self {
        Self { at: None, ..self }
    }

    /// The same, to be tried then: nothing has failed.
    pub fn until(self, at: Instant) -> Self {
        Self { at: Some(at), ..self }
    }

    /// Failures in a row.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Tries in a row that failed or were not answered.
    pub fn tries(&self) -> u32 {
        self.failures.saturating_add(self.silences)
    }

    /// What was said of the last failure, of requests that no other controller makes and users wait for.
    pub fn message(&self) -> Option<&Arc<str>> {
        self.message.as_ref()
    }

    /// The same after a failure of which this is to be told (L18).
    pub(crate) fn because(self, message: &str) -> Self {
        Self { message: Some(message.into()), ..self }
    }

    /// Notes why a request failed, a read or a write. It says nothing about the object that the server began with no request,
    /// put this one off, or did not answer a read (L16).
    pub fn after_error(self, error: &CallError, is_read: bool, now: Instant, jitter: f64) -> Self {
        match error {
            // Nothing was tried: it is decided anew when this process may write.
            CallError::NotLeader => self,
            // Nor here: when the pause of all requests is over (S15).
            CallError::Throttled { after, .. } if error.is_of_all() => self.until(now + *after),
            CallError::Throttled { after, .. } => {
                let retry = self.after_silence(now, jitter);
                Self { at: retry.at.max(Some(now + *after)), ..retry }
            }
            CallError::NotSent(_) => self.after_silence(now, jitter),
            CallError::Unknown(_) if is_read => self.after_silence(now, jitter),
            _ => self.after_failure(now, jitter, Duration::ZERO),
        }
    }

    /// Notes a failure, after which the next try is not due before `at_least`.
    pub fn after_failure(self, now: Instant, jitter: f64, at_least: Duration) -> Self {
        let failures = self.failures.saturating_add(1);
        let at = Some(now + retry_pause(failures, jitter).max(at_least));
        Self { failures, silences: 0, at, message: None }
    }

    /// Notes a conflict: the first few in a row are tried again at once.
    pub(crate) fn after_conflict(self, now: Instant, jitter: f64) -> Self {
        let retry = self.after_fight(now, jitter);
        if retry.failures > FREE_CONFLICTS { retry } else { retry.due() }
    }

    /// Notes a conflict after which there is a pause, no longer than that of a write that is undone (S46): when the other writer
    /// stops, nothing tells of it.
    fn after_fight(self, now: Instant, jitter: f64) -> Self {
        let retry = self.after_failure(now, jitter, Duration::ZERO);
        Self { at: retry.at.min(Some(now + undone_pause(u32::MAX, jitter))), ..retry }
    }

    /// Notes that a read was not answered, which says nothing about the object (L16).
    pub(crate) fn after_silence(self, now: Instant, jitter: f64) -> Self {
        let silences = self.silences.saturating_add(1);
        Self { silences, at: Some(now + silence_pause(silences, jitter)), ..self }
    }
}

#[derive(Debug, Default)]
struct Entry {
    retry: Retry,
    conflicts: u32,
    /// The pause, from when and until when.
    pause: Option<(Instant, Instant)>,
    /// The server asked for the pause.
    asked: bool,
}

/// Keys that wait before they are looked at again. One entry per failing key, gone with its next success.
#[derive(Debug, Educe)]
#[educe(Default(bound(false)))]
pub struct RetryMap<K> {
    entries: BTreeMap<K, Entry>,
    due: BTreeSet<(Instant, K)>,
}

impl<K: Ord + Clone> RetryMap<K> {
    /// Notes a failure; the key waits, longer each time.
    pub fn failed(&mut self, key: &K, now: Instant, jitter: f64) -> Instant {
        self.note(key, now, false, |retry| retry.after_failure(now, jitter, Duration::ZERO))
    }

    /// Notes why a request about the key failed, a read or a write; the key waits.
    pub fn failed_by(&mut self, key: &K, error: &CallError, is_read: bool, now: Instant, jitter: f64) {
        if !matches!(error, CallError::NotLeader) {
            let asked = matches!(error, CallError::Throttled { .. });
            self.note(key, now, asked, |retry| retry.after_error(error, is_read, now, jitter));
        }
    }

    /// Notes a conflict: the first few cost no pause.
    pub fn conflicted(&mut self, key: &K, now: Instant, jitter: f64) {
        let entry = self.entries.entry(key.clone()).or_default();
        entry.conflicts += 1;
        if entry.conflicts > FREE_CONFLICTS {
            self.note(key, now, false, |retry| retry.after_fight(now, jitter));
        }
    }

    /// The key waits until then, as the server asked, in place of an earlier pause.
    pub fn wait_until(&mut self, key: &K, until: Instant) {
        self.pause(key, until, until, true);
    }

    fn note(&mut self, key: &K, now: Instant, asked: bool, after: impl FnOnce(Retry) -> Retry) -> Instant {
        let entry = self.entries.entry(key.clone()).or_default();
        entry.retry = after(std::mem::take(&mut entry.retry));
        let until = entry.retry.at().unwrap_or(now);
        self.pause(key, now, until, asked);
        until
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
    /// first failure, unless the server asked for more. (A writer that changes it without end causes no more tries than
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

    /// Whether the key has waited for so long since it failed, and not because the server asked for that.
    pub(crate) fn has_waited(&self, key: &K, least: Duration, now: Instant) -> bool {
        let entry = self.entries.get(key).filter(|entry| !entry.asked);
        entry.and_then(|entry| entry.pause).is_some_and(|(from, _)| from + least <= now)
    }

    /// Forgets a key: it succeeded, or is gone.
    pub fn clear(&mut self, key: &K) {
        if let Some(Entry { pause: Some((_, until)), .. }) = self.entries.remove(key) {
            self.due.remove(&(until, key.clone()));
        }
    }

    /// Tries in a row that failed or were not answered.
    pub(crate) fn failures(&self, key: &K) -> u32 {
        self.entries.get(key).map_or(0, |entry| entry.retry.tries())
    }

    /// Until when the key has to wait, if it has to.
    pub(crate) fn until(&self, key: &K) -> Option<Instant> {
        self.entries.get(key)?.pause.map(|(_, until)| until)
    }

    /// Whether the key has to wait.
    pub(crate) fn waits(&self, key: &K) -> bool {
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
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(until, _)| *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l16_silence_counts_apart_from_failures() {
        let now = Instant::now();
        let mut retry = Retry::default().after_failure(now, 0.0, Duration::ZERO);
        for _ in 0..20 {
            retry = retry.after_silence(now, 0.0);
        }
        assert_eq!(retry.at(), Some(now + silence_pause(20, 0.0)));
        assert_eq!(retry.after_failure(now, 0.0, Duration::ZERO).at(), Some(now + retry_pause(2, 0.0)));
    }

    #[test]
    fn s40_the_server_may_ask_for_more() {
        let now = Instant::now();
        let retry = Retry::default().after_failure(now, 0.0, Duration::from_secs(7));
        assert_eq!(retry.pending(now), Some(now + Duration::from_secs(7)));
        assert_eq!(retry.pending(now + Duration::from_secs(7)), None);
    }

    #[test]
    fn a_key_is_due_once_and_remembers_its_failures() {
        let mut retries = RetryMap::default();
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
        let mut retries = RetryMap::default();
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
    fn l16_silence_of_a_key_counts_apart_from_its_failures() {
        let mut retries = RetryMap::default();
        let now = Instant::now();
        for _ in 0..20 {
            retries.failed_by(&"a", &CallError::Unknown("cut".to_owned()), true, now, 0.0);
        }
        assert_eq!(retries.next_due(), Some(now + silence_pause(20, 0.0)));
        assert_eq!(retries.failed(&"a", now, 0.0), now + retry_pause(1, 0.0));
    }

    #[test]
    fn only_repeated_conflicts_wait() {
        let mut retries = RetryMap::default();
        let now = Instant::now();
        let first = retry_pause(1, 0.0);
        for _ in 0..FREE_CONFLICTS {
            retries.conflicted(&"a", now, 0.0);
            assert_eq!(retries.next_due(), None);
        }
        retries.conflicted(&"a", now, 0.0);
        assert_eq!(retries.next_due(), Some(now + first));
    }

    #[test]
    fn s46_conflicts_hold_a_key_no_longer_than_a_write_that_is_undone() {
        let mut retries = RetryMap::default();
        let now = Instant::now();
        for _ in 0..20 {
            retries.conflicted(&"a", now, 0.0);
        }
        assert_eq!(retries.next_due(), Some(now + undone_pause(20, 0.0)));
        let alone = (0..20).fold(Retry::default(), |retry, _| retry.after_conflict(now, 0.0));
        assert_eq!(alone.at(), retries.next_due());
        // A failure of another kind is none of these.
        for _ in 0..20 {
            retries.failed(&"b", now, 0.0);
        }
        retries.clear(&"a");
        assert_eq!(retries.next_due(), Some(now + retry_pause(20, 0.0)));
    }
}
