//! Requests that fail, and what is told of them (L18).
//!
//! In: requests with what became of them. Out: for each claim or volume whose request fails, the server's words: as an
//! event on the object that waits, and for the debug page. What the server refuses is told at once; what the next
//! tries may mend (a conflict, silence, a busy server), when it has failed so many times in a row.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::{
    events,
    failure::{Failure, Outcome, Task},
};
use crate::{
    binder::{
        act::{
            op::{Answer, Call, Op},
            write::Target,
        },
        planner::Planner,
    },
    kube_api::{call::CallError, events::Event, kinds::ClaimPhase},
};

/// Failures in a row after which one is told that the next try may mend: within some five seconds.
const PATIENCE: u32 = 3;

/// The failures of one claim or volume in a row.
#[derive(Clone, Debug)]
struct Series {
    failure: Failure,
    /// How many since the last that was refused.
    count: u32,
    /// What is told of them. A failure that is not told of itself leaves it as it is.
    told: Option<Failure>,
}

/// What fails now.
#[derive(Debug, Default)]
pub struct Failures {
    series: BTreeMap<Target, Series>,
    counts: BTreeMap<(&'static str, &'static str), u64>,
}

impl Failures {
    fn note(&mut self, target: &Target, failure: Failure) {
        *self.counts.entry((failure.task.label(), failure.outcome.label())).or_default() += 1;
        let before = self.series.remove(target);
        let (count, told) = before.map_or((0, None), |series| (series.count, series.told));
        let is_refused = failure.outcome == Outcome::Refused;
        let count = if is_refused { 0 } else { count.saturating_add(1) };
        let told = if is_refused || count >= PATIENCE { Some(failure.clone()) } else { told };
        self.series.insert(target.clone(), Series { failure, count, told });
    }

    /// What is to be told of a claim or volume.
    #[must_use]
    pub fn told(&self, target: &Target) -> Option<&Failure> {
        self.series.get(target)?.told.as_ref()
    }

    /// Forgets what failed of a claim or volume; returns whether anything did.
    pub fn forget(&mut self, target: &Target) -> bool {
        self.series.remove(target).is_some()
    }

    /// How many failed since this was last asked, by what they were for and how they failed.
    pub fn take_counts(&mut self) -> BTreeMap<(&'static str, &'static str), u64> {
        std::mem::take(&mut self.counts)
    }
}

impl Planner {
    /// Takes in the outcome of a request.
    pub fn outcome(&mut self, op: Op, result: Result<Answer, CallError>, now: Instant, jitter: f64) {
        let failure = Failure::of(&op, &result);
        let subject = op.subject.clone();
        let works = match &op.call {
            Call::Write(_) => result.is_ok(),
            Call::Read { .. } => {
                let is_read = |series: &Series| series.failure.task == Task::Read;
                result.is_ok() && self.failures.series.get(&subject).is_some_and(is_read)
            }
            Call::ReadClass(_) | Call::ReadOwner(_) | Call::Directory(_) => false,
        };
        self.take_outcome(op, result, now, jitter);
        match failure {
            Some(failure) => self.fails(&subject, failure, now),
            None if works => self.works(&subject, now),
            None => {}
        }
    }

    /// A request about a claim or volume failed. It has its pause by now.
    pub(crate) fn fails(&mut self, subject: &Target, failure: Failure, now: Instant) {
        self.failures.note(subject, failure);
        let Some(event) = self.failure_event(subject) else { return };
        if let Some(failure) = self.failures.told(subject) {
            self.standing.set_failure(subject, Some((failure.clone(), self.retries.until(subject))), now);
        }
        self.note_failure(subject, now);
        let news = self.told.also(subject, event, now);
        self.pending_events.extend(news);
    }

    /// Nothing fails any more.
    pub(crate) fn works(&mut self, subject: &Target, now: Instant) {
        if self.failures.forget(subject) {
            self.standing.set_failure(subject, None, now);
        }
    }

    /// What is told to users: on the claim, if there is one that waits, else on the volume.
    pub(crate) fn failure_event(&self, subject: &Target) -> Option<Event> {
        let failure = self.failures.told(subject)?;
        if failure.is_told_elsewhere() {
            return None;
        }
        match subject {
            Target::Claim(key) => Some(events::failed_for_claim(&*self.objects.claims.get(key)?, failure)),
            Target::Volume(name) => {
                let volume = self.objects.volumes.get(name)?;
                let claim = volume.spec.claim_ref.as_ref().and_then(|reference| {
                    let claim = self.objects.claims.get(&reference.key())?;
                    let waits =
                        claim.metadata.uid == reference.uid && claim.status.phase != ClaimPhase::Bound;
                    waits.then_some(claim)
                });
                Some(match claim {
                    Some(claim) => events::failed_for_claim(&claim, failure),
                    None => events::failed_for_volume(&volume, failure),
                })
            }
        }
    }
}
