//! Board: where each key of a controller stands, since when, and when it is looked at again.
//!
//! In: reports, and what others were seen to write. Out: where a key stands; and for readers the waits. A key that
//! waits for nothing is forgotten, unless its page shows it: a cluster at rest costs nothing.

use std::{
    collections::BTreeMap,
    iter,
    ops::{Bound, RangeBounds},
};

use educe::Educe;
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;
use tokio::time::Instant;

use super::{Reason, ReportKey};

/// So many rows are copied in less than a millisecond.
const ROWS_AT_ONCE: usize = 1_000;

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

/// All keys of a controller.
#[derive(Debug, Educe)]
#[educe(Default(bound(false)))]
pub struct Board<K, R>(Mutex<Standing<K, R>>);

#[derive(Clone, Debug, Educe)]
#[educe(Default(bound(false)))]
pub(super) struct Standing<K, R> {
    pub(super) waits: BTreeMap<K, Wait<R>>,
    /// Those that wait for nothing and are shown.
    pub(super) settled: BTreeMap<K, Wait<R>>,
    /// Whether this process decides: a standby shows nothing, as the leader does.
    pub(super) leads: bool,
    /// Whether another controller is at work (S14), and what others wrote of late.
    pub(super) second_writers: (Option<String>, Vec<Value>),
}

/// A copy as of now, which goes its own way.
impl<K: ReportKey, R: Reason> Clone for Board<K, R> {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.standing().clone()))
    }
}

impl<K: ReportKey, R: Reason> Board<K, R> {
    /// Looks at everything that waits.
    pub fn for_each(&self, mut look: impl FnMut(&K, &Wait<R>)) {
        self.rows(|all| &all.waits).for_each(|(key, wait)| look(&key, &wait));
    }

    /// Copies of rows, in order. The controller does not wait for their reader: after each portion it may set others.
    pub(super) fn rows(
        &self,
        part: impl Fn(&Standing<K, R>) -> &BTreeMap<K, Wait<R>>,
    ) -> impl Iterator<Item = (K, Wait<R>)> {
        let mut start = Bound::Unbounded;
        let portions = iter::from_fn(move || {
            let standing = self.standing();
            let rows = part(&standing).range((start.as_ref(), Bound::Unbounded)).take(ROWS_AT_ONCE);
            let rows: Vec<(K, Wait<R>)> = rows.map(|(key, wait)| (key.clone(), wait.clone())).collect();
            start = Bound::Excluded(rows.last()?.0.clone());
            Some(rows)
        });
        portions.flatten()
    }

    /// How many of these keys are shown although they wait for nothing. The keys of a board are in order.
    pub(crate) fn count_settled(&self, keys: impl RangeBounds<K>) -> usize {
        self.standing().settled.range(keys).count()
    }

    /// Since when a key waits, if it does.
    pub(crate) fn since(&self, key: &K) -> Option<Instant> {
        self.standing().waits.get(key).map(|wait| wait.since)
    }

    /// Everything that waits.
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
    pub(crate) fn leads(&self) -> bool {
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
    /// Forgets where a key stands.
    pub(super) fn remove(&mut self, key: &K) -> Option<Wait<R>> {
        self.waits.remove(key).or_else(|| self.settled.remove(key))
    }

    /// Takes where a key stands of which nothing is known.
    pub(super) fn set(&mut self, key: &K, wait: Wait<R>) {
        let into = match wait.reason.is_settled() {
            true if wait.reason.is_shown_settled() => &mut self.settled,
            true => return,
            false => &mut self.waits,
        };
        into.insert(key.clone(), wait);
    }
}
