//! Events that are to be sent: those that are news, those that belong to a write that was made, and those
//! about requests that fail.
//!
//! In: events as they are decided, and failures. Out: the events to send, once each, and again as ones that stand. What
//! belongs to a write is new; of the rest it is not known whether a process before this one told it.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::{events, failure::Failure, failures::Failures};
use crate::{
    binder::act::write::Target,
    controller::event_dedup::EventDedup,
    kube_api::{
        events::{Event, Novelty},
        kinds::ClaimPhase,
    },
    state::Objects,
};

/// Events to send, and what was sent.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    recorded: EventDedup<Target>,
    failures: Failures,
    pending: Vec<Event>,
}

impl Outbox {
    /// Takes the events of a decision; returns those that are news. A decision without events while something is still
    /// to come leaves what was sent as it is: it may hold again afterwards.
    pub(crate) fn decided(
        &mut self,
        target: &Target,
        events: Vec<Event>,
        is_settled: bool,
        now: Instant,
    ) -> Vec<Event> {
        if is_settled || !events.is_empty() { self.recorded.news(target, events, now) } else { Vec::new() }
    }

    /// Sends what belongs to a write that was made.
    pub(crate) fn made(&mut self, subject: &Target, events: &[Event], now: Instant) {
        self.recorded.note(subject, events, now);
        self.pending.extend(events.iter().map(|event| Event { novelty: Novelty::New, ..event.clone() }));
    }

    /// Sends what belongs to an earlier write whose answer was lost.
    pub(crate) fn late(&mut self, event: Event) {
        self.pending.push(event);
    }

    /// What is to be sent at once.
    pub(crate) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.pending)
    }

    /// An event about the object was lost: what holds of it is news to the next look.
    pub(crate) fn lost(&mut self, target: &Target) {
        self.recorded.forget(target);
    }

    /// The keys some of whose events are to be sent again, if they still hold.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<Target> {
        self.recorded.take_due(now)
    }

    /// When the next key is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.recorded.next_due()
    }

    /// A request about a claim or volume failed. Returns what is shown of that, if anything is.
    pub(crate) fn fails(
        &mut self,
        subject: &Target,
        failure: Failure,
        objects: &Objects,
        now: Instant,
    ) -> Option<Failure> {
        self.failures.note(subject, failure, subject.uid(objects).as_ref());
        let event = self.failure_event(subject, objects)?;
        self.pending.extend(self.recorded.also(subject, event, now));
        self.failures.shown(subject).cloned()
    }

    /// Nothing fails any more.
    pub(crate) fn works(&mut self, subject: &Target) {
        self.failures.forget(subject);
    }

    /// Whether what failed was of another claim or volume of that name.
    pub(crate) fn is_of_another(&self, target: &Target, objects: &Objects) -> bool {
        self.failures.is_of_another(target, target.uid(objects).as_ref())
    }

    /// Whether what failed last about a claim or volume was a live read.
    pub(crate) fn is_failing_to_read(&self, target: &Target) -> bool {
        self.failures.is_read(target)
    }

    /// The event about what fails: on the claim, if there is one that waits, else on the volume.
    pub(crate) fn failure_event(&self, subject: &Target, objects: &Objects) -> Option<Event> {
        let failure = self.failures.shown(subject)?;
        if failure.is_recorded_elsewhere() {
            return None;
        }
        match subject {
            Target::Claim(key) => Some(events::failed_for_claim(&*objects.claims.get(key)?, failure)),
            Target::Volume(name) => {
                let volume = objects.volumes.get(name)?;
                let claim = volume.spec.claim_ref.as_ref().and_then(|reference| {
                    let claim = objects.claims.get(&reference.key())?;
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

    /// Failed requests since this was last asked, by what they were for and how they failed.
    pub(crate) fn take_failure_counts(&mut self) -> BTreeMap<(&'static str, &'static str), u64> {
        self.failures.take_counts()
    }

    /// The object is gone.
    pub(crate) fn gone(&mut self, target: &Target) {
        self.recorded.forget(target);
        self.failures.forget(target);
    }
}
