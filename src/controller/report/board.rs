//! Board: where each key of a controller stands, since when, and when it is looked at again.
//!
//! In: reports, and what others were seen to write. Out: where a key stood before; and for readers the waits. A key that
//! waits for nothing is forgotten, unless its page shows it: a cluster at rest costs nothing.

use std::{collections::BTreeMap, ops::RangeBounds};

use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::time::Instant;

use super::{Reason, ReportKey};

/// Where a key stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Wait<R> {
    /// Why.
    pub reason: R,
    /// Since when for a reason of this code.
    pub since: Instant,
    /// When it is looked at again although nothing happens.
    pub next: Option<Instant>,
}

/// Where a key stood at the last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stood {
    /// Its state.
    pub state: &'static str,
    /// The code of the reason.
    pub code: &'static str,
    /// Since when.
    pub since: Instant,
}

/// All keys of a controller.
#[derive(Debug)]
pub struct Board<K, R>(Mutex<Standing<K, R>>);

#[derive(Clone, Debug)]
pub(super) struct Standing<K, R> {
    pub(super) waits: BTreeMap<K, Wait<R>>,
    /// Those that wait for nothing and are shown.
    pub(super) settled: BTreeMap<K, Wait<R>>,
    /// Whether this process decides: a standby shows nothing, as the leader does.
    pub(super) leads: bool,
    /// Whether another controller is at work (S14), and what others wrote of late.
    pub(super) second_writers: (Option<String>, Vec<Value>),
}

impl<K, R> Default for Board<K, R> {
    fn default() -> Self {
        let (waits, settled, second_writers) = (BTreeMap::new(), BTreeMap::new(), (None, Vec::new()));
        Self(Mutex::new(Standing { waits, settled, leads: false, second_writers }))
    }
}

/// A copy as of now, which goes its own way.
impl<K: ReportKey, R: Reason> Clone for Board<K, R> {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.standing().clone()))
    }
}

impl<K: ReportKey, R: Reason> Board<K, R> {
    /// Takes why a key is where it is, and when it is looked at again. Returns where it stood before, if anything is known
    /// of that.
    pub fn set(&self, key: &K, reason: R, next: Option<Instant>, now: Instant) -> Option<Stood> {
        let mut standing = self.standing();
        let before = standing.stood(key);
        let since = before.filter(|before| before.code == reason.code()).map_or(now, |before| before.since);
        let is_shown = reason.is_shown_settled();
        let Standing { waits, settled, .. } = &mut *standing;
        let (into, other) = if reason.is_settled() { (settled, waits) } else { (waits, settled) };
        other.remove(key);
        let wait = Wait { reason, since, next };
        if wait.reason.is_settled() && !is_shown {
            into.remove(key);
        } else if let Some(known) = into.get_mut(key) {
            *known = wait;
        } else {
            into.insert(key.clone(), wait);
        }
        before
    }

    /// Forgets one that is gone. Returns where it stood.
    pub fn remove(&self, key: &K) -> Option<Stood> {
        let mut standing = self.standing();
        let before = standing.stood(key);
        standing.waits.remove(key);
        standing.settled.remove(key);
        before
    }

    /// Looks at everything that waits. Nothing is set meanwhile.
    pub fn for_each(&self, mut look: impl FnMut(&K, &Wait<R>)) {
        self.standing().waits.iter().for_each(|(key, wait)| look(key, wait));
    }

    /// How many of these keys are shown although they wait for nothing. The keys of a board are in order.
    #[must_use]
    pub fn count_settled(&self, keys: impl RangeBounds<K>) -> usize {
        self.standing().settled.range(keys).count()
    }

    /// Whether the log has a line for each change of a key.
    #[must_use]
    pub fn is_logged(&self, key: &K) -> bool {
        let standing = self.standing();
        standing
            .waits
            .get(key)
            .or_else(|| standing.settled.get(key))
            .is_some_and(|wait| wait.reason.is_logged())
    }

    /// Looks at why a key is where it is, if that is known.
    pub fn look(&self, key: &K, look: impl FnOnce(Option<&R>)) {
        let standing = self.standing();
        let wait = standing.waits.get(key).or_else(|| standing.settled.get(key));
        look(wait.map(|wait| &wait.reason));
    }

    /// Since when a key waits, if it does.
    #[must_use]
    pub fn since(&self, key: &K) -> Option<Instant> {
        self.standing().waits.get(key).map(|wait| wait.since)
    }

    /// Everything that waits.
    #[must_use]
    pub fn waits(&self) -> BTreeMap<K, Wait<R>> {
        self.standing().waits.clone()
    }

    /// This process decides from now on: all waits begin anew.
    pub fn lead(&self, now: Instant) {
        let mut standing = self.standing();
        standing.leads = true;
        for wait in standing.waits.values_mut() {
            wait.since = now;
        }
    }

    /// Whether this process decides.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.standing().leads
    }

    /// Sets who else changes what this controller writes: the alarm, and what others wrote of late, each with object,
    /// field, manager, and until when it counts.
    pub fn set_second_writers(&self, shown: (Option<String>, Vec<Value>)) {
        self.standing().second_writers = shown;
    }

    pub(super) fn standing(&self) -> MutexGuard<'_, Standing<K, R>> {
        self.0.lock()
    }
}

impl<K: ReportKey, R: Reason> Standing<K, R> {
    fn stood(&self, key: &K) -> Option<Stood> {
        let Wait { reason, since, .. } = self.waits.get(key).or_else(|| self.settled.get(key))?;
        Some(Stood { state: reason.state(), code: reason.code(), since: *since })
    }
}
