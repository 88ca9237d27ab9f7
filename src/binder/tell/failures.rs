//! Requests that fail, and which of them are shown (L18).
//!
//! In: requests with what became of them. Out: for each claim or volume whose request fails, the server's words: as an
//! event on the object that waits, and for the debug page. What the server refuses is told at once; what the next
//! tries may mend (a conflict, silence, a busy server), when it has failed so many times in a row.

use std::collections::BTreeMap;

use apiserver::ids::Uid;

use super::failure::{Failure, FailureOutcome, Task};
use crate::binder::calls::Target;

/// Failures in a row after which one is told that the next try may mend: within some five seconds.
const PATIENCE: u32 = 3;

/// The failures of one claim or volume in a row.
#[derive(Clone, Debug)]
struct Series {
    failure: Failure,
    /// How many since the last that was refused.
    count: u32,
    /// The one that is shown. A failure that is not shown leaves it as it is.
    shown: Option<Failure>,
}

#[derive(Debug, Default)]
pub struct Failures {
    series: BTreeMap<Target, Series>,
    counts: BTreeMap<(&'static str, &'static str), u64>,
}

impl Failures {
    /// Takes what failed of the claim or volume that has this UID now, if it is there.
    pub fn note(&mut self, target: &Target, failure: Failure, uid: Option<&Uid>) {
        *self.counts.entry((failure.task.label(), failure.outcome.label())).or_default() += 1;
        let before = self.series.remove(target).filter(|series| series.failure.uid.as_ref() == uid);
        if uid.is_none() || failure.uid.as_ref() != uid {
            return;
        }
        let (count, shown) = before.map_or((0, None), |series| (series.count, series.shown));
        let is_refused = failure.outcome == FailureOutcome::Refused;
        let count = if is_refused { 0 } else { count.saturating_add(1) };
        let shown = if is_refused || count >= PATIENCE { Some(failure.clone()) } else { shown };
        self.series.insert(target.clone(), Series { failure, count, shown });
    }

    /// The failure that is shown of a claim or volume.
    #[must_use]
    pub fn shown(&self, target: &Target) -> Option<&Failure> {
        self.series.get(target)?.shown.as_ref()
    }

    /// Whether what failed was of another claim or volume of that name.
    #[must_use]
    pub fn is_of_another(&self, target: &Target, uid: Option<&Uid>) -> bool {
        self.series.get(target).is_some_and(|series| series.failure.uid.as_ref() != uid)
    }

    /// Whether what failed last about a claim or volume was a live read of that object.
    #[must_use]
    pub fn is_read_of(&self, target: &Target, object: &str) -> bool {
        let failure = self.series.get(target).map(|series| &series.failure);
        failure.is_some_and(|failure| failure.task == Task::Read && failure.object == object)
    }

    /// Forgets what failed of a claim or volume.
    pub fn forget(&mut self, target: &Target) {
        self.series.remove(target);
    }

    /// How many failed since this was last asked, by what they were for and how they failed.
    pub fn take_counts(&mut self) -> BTreeMap<(&'static str, &'static str), u64> {
        std::mem::take(&mut self.counts)
    }
}
