//! Recorder: what users and operators get to know of decisions, writes and failures, and the one memory of each claim and
//! volume that this takes (client-go: `EventRecorder`).
//!
//! In: decisions with their reasons, and what became of requests. Out: events and reports for the next plan; and why each
//! key waits, on which the next decision may rest. Of a request that fails the server's words are shown (L18): what it
//! refuses at once; what the next tries may mend (a conflict, silence, a busy server), when it has failed so many times in
//! a row. What is settled costs nothing.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use apiserver::{
    events::Event,
    ids::{ClaimKey, VolumeName},
    kinds::ClaimPhase,
    tables::Objects,
};
use tokio::time::Instant;

use super::{
    durations::Durations,
    events,
    failure::{Failure, FailureOutcome, Task},
    reasons::{ClaimReason, VolumeReason},
    reports::{BinderReason, Report, Why},
};
use crate::{
    binder::calls::{Shown, Target},
    controller::report::{
        ReportKey as _,
        events::{EventUpdate, Topic},
    },
};

/// Topic of the events of a decision.
const DECISION: Topic = "decision";

/// Topic of the event of a request that fails.
const FAILURE: Topic = "failure";

/// Failures in a row after which one is told that the next try may mend: within some five seconds.
const PATIENCE: u32 = 3;

/// What is remembered of one claim or volume.
#[derive(Debug, Default)]
struct Remembered {
    /// Why it is where it is, if it is not settled or a request about it fails.
    why: Option<Why>,
    failures: Option<Failures>,
    /// Of a volume, its phase before a write of ours, until the look that follows.
    written: Option<&'static str>,
}

impl Remembered {
    fn failing(&self) -> Option<&Failure> {
        self.failures.as_ref()?.shown.as_ref()
    }
}

/// Requests about it that failed in a row.
#[derive(Debug)]
struct Failures {
    last: Failure,
    /// How many since the last that was refused.
    count: u32,
    /// The one that is shown. A failure that is not shown leaves it as it is.
    shown: Option<Failure>,
    /// When the next request is sent, if that has been settled.
    next: Option<Instant>,
}

/// What is told, and what was.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    memory: BTreeMap<Target, Remembered>,
    /// How long things take.
    pub(crate) durations: Durations,
    /// What there is for events.
    pub(crate) events: Vec<EventUpdate<Target>>,
    /// What is reported.
    pub(crate) reports: Vec<Report>,
    /// How many requests failed, by what they were for and how they failed.
    pub(crate) failed: BTreeMap<(&'static str, &'static str), u64>,
}

impl Recorder {
    /// Why a claim is where it is, if it is not settled or a request about it fails.
    pub(crate) fn claim(&self, key: &ClaimKey) -> Option<&Arc<ClaimReason>> {
        let why = self.memory.get(&Target::Claim(key.clone()))?.why.as_ref()?;
        if let Why::Claim(reason) = why { Some(reason) } else { None }
    }

    /// The same of a volume.
    pub(crate) fn volume(&self, name: &VolumeName) -> Option<&Arc<VolumeReason>> {
        let why = self.memory.get(&Target::Volume(name.clone()))?.why.as_ref()?;
        if let Why::Volume(reason) = why { Some(reason) } else { None }
    }

    /// Whether a claim waits for the proof that it has no class.
    pub(crate) fn is_proving_class(&self, key: &ClaimKey) -> bool {
        self.claim(key).is_some_and(|reason| matches!(**reason, ClaimReason::ProvingClass(_)))
    }

    /// Whether a claim waits for a pod.
    pub(crate) fn is_waiting_for_pods(&self, key: &ClaimKey) -> bool {
        self.claim(key).is_some_and(|reason| {
            matches!(**reason, ClaimReason::WaitsForFirstConsumer | ClaimReason::WaitsForPods(_))
        })
    }

    /// What is not settled, or fails: claims, then volumes, at most so many behind one.
    pub(crate) fn unsettled(&self, behind: Option<&Target>, most: usize) -> Vec<Target> {
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let known = self.memory.range((from, Bound::Unbounded));
        let unsettled = known.filter(|(_, known)| known.why.is_some());
        unsettled.map(|(target, _)| target.clone()).take(most).collect()
    }

    /// The request about a claim or volume that fails, as it is shown.
    #[cfg(test)]
    pub(crate) fn failing(&self, target: &Target) -> Option<&Failure> {
        self.memory.get(target)?.failing()
    }

    /// Takes a decision about an object as it is shown here, of which this was the given attempt: its events, and whether
    /// it takes a step. What failed is tried again, and holds until it works; or there is nothing left to try, or what
    /// failed was of another of that name. A decision without events while something is still to come leaves open what
    /// holds.
    pub(crate) fn decided(
        &mut self,
        shown: &Shown,
        why: Why,
        (events, steps): (Vec<Event>, bool),
        attempt: u32,
    ) {
        let failures = self.memory.get(&shown.target).and_then(|known| known.failures.as_ref());
        if !steps || failures.is_some_and(|failures| failures.last.uid.as_ref() != Some(&shown.uid)) {
            self.works(&shown.target);
        }
        let target = shown.target.clone();
        self.events.push(if why.is_settled() || !events.is_empty() {
            EventUpdate::Hold(target, DECISION, events)
        } else {
            EventUpdate::Pause(target, &[DECISION])
        });
        self.stands(shown, why, attempt, true);
    }

    /// Reports where an object stands although nothing was decided: a request about it fails, or works again.
    pub(crate) fn stands_still(&mut self, shown: &Shown, attempt: u32) {
        if let Some(why) = self.memory.get(&shown.target).and_then(|known| known.why.clone()) {
            self.stands(shown, why, attempt, false);
        }
    }

    fn stands(&mut self, shown: &Shown, why: Why, attempt: u32, is_decision: bool) {
        let Shown { target, revision, phase, .. } = shown;
        let other = match &why {
            Why::Claim(reason) if let ClaimReason::Binding(volume, _) = &**reason => {
                Some(("volume", volume.to_string()))
            }
            _ => shown.other.as_ref().map(|other| (other.kind(), other.name())),
        };
        let known = self.memory.entry(target.clone()).or_default();
        let failure = known.failing().cloned();
        let next = known.failures.as_ref().and_then(|failures| failures.next).filter(|_| failure.is_some());
        let (revision, from) = (Some(*revision), known.written.take());
        known.why = (!why.is_settled() || failure.is_some()).then(|| why.clone());
        let report = Report::of(target.clone(), BinderReason { phase, why, failure });
        self.reports.push(Report { next, attempt, revision, from, other, is_decision, ..report });
        self.forget_settled(target);
    }

    /// A write about a claim or volume was made, which causes these events.
    pub(crate) fn caused(&mut self, subject: &Target, events: &[Event]) {
        if !events.is_empty() {
            self.events.push(EventUpdate::Caused(subject.clone(), DECISION, events.to_vec()));
        }
    }

    /// A request about a claim or volume failed; the next is due then. Returns whether that is to be shown.
    pub(crate) fn fails(
        &mut self,
        subject: &Target,
        failure: Failure,
        next: Option<Instant>,
        objects: &Objects,
    ) -> bool {
        *self.failed.entry((failure.task.label(), failure.outcome.into())).or_default() += 1;
        // It is not tried as things are, and nothing waits for it.
        if failure.is_stripped() {
            self.events.extend(failure_event(subject, &failure, objects).map(EventUpdate::Happened));
            return false;
        }
        let uid = subject.uid(objects);
        let known = self.memory.entry(subject.clone()).or_default();
        let before = known.failures.take().filter(|before| before.last.uid == uid);
        if uid.is_some() && failure.uid == uid {
            let (count, shown) = before.map_or((0, None), |before| (before.count, before.shown));
            let is_refused = failure.outcome == FailureOutcome::Refused;
            let count = if is_refused { 0 } else { count.saturating_add(1) };
            let is_shown = is_refused || count >= PATIENCE;
            let shown = if is_shown { Some(failure.clone()) } else { shown };
            let shown = shown.filter(|shown| !shown.is_recorded_elsewhere());
            known.failures = Some(Failures { last: failure, count, shown, next });
        }
        let event = known.failing().and_then(|shown| failure_event(subject, shown, objects));
        let is_shown = event.is_some();
        self.events.push(EventUpdate::Hold(subject.clone(), FAILURE, event.into_iter().collect()));
        self.forget_settled(subject);
        is_shown
    }

    /// Whether what failed last about a claim or volume was a live read of that object.
    pub(crate) fn is_read_of(&self, subject: &Target, object: &str) -> bool {
        let failures = self.memory.get(subject).and_then(|known| known.failures.as_ref());
        failures.is_some_and(|failures| failures.last.task == Task::Read && failures.last.object == object)
    }

    /// Nothing about a claim or volume fails any more.
    pub(crate) fn works(&mut self, subject: &Target) {
        if let Some(known) = self.memory.get_mut(subject) {
            known.failures = None;
        }
        self.events.push(EventUpdate::Hold(subject.clone(), FAILURE, Vec::new()));
        self.forget_settled(subject);
    }

    /// A write to a volume in this phase is about to be sent.
    pub(crate) fn writes(&mut self, volume: Target, phase: &'static str) {
        self.memory.entry(volume).or_default().written.get_or_insert(phase);
    }

    /// The object is gone, and nothing holds of it any more.
    pub(crate) fn gone(&mut self, target: &Target, now: Instant) {
        self.durations.gone(target, now);
        if self.memory.remove(target).is_some_and(|known| known.why.is_some()) {
            self.reports.push(Report::gone(target.clone()));
        }
        self.events.push(EventUpdate::Forget(target.clone()));
    }

    fn forget_settled(&mut self, target: &Target) {
        let is_settled =
            |known: &Remembered| known.why.is_none() && known.failures.is_none() && known.written.is_none();
        if self.memory.get(target).is_some_and(is_settled) {
            self.memory.remove(target);
        }
    }
}

/// The event about what fails: on the claim, if there is one that waits, else on the volume.
fn failure_event(subject: &Target, failure: &Failure, objects: &Objects) -> Option<Event> {
    match subject {
        Target::Claim(key) => Some(events::failed_for_claim(&*objects.claims.get(key)?, failure)),
        Target::Volume(name) => {
            let volume = objects.volumes.get(name)?;
            let claim = volume.spec.claim_ref.as_ref().and_then(|reference| {
                let claim = objects.claims.get(&reference.key())?;
                let waits = claim.metadata.uid == reference.uid && claim.status.phase != ClaimPhase::Bound;
                waits.then_some(claim)
            });
            Some(match claim {
                Some(claim) => events::failed_for_claim(&claim, failure),
                None => events::failed_for_volume(&volume, failure),
            })
        }
    }
}
