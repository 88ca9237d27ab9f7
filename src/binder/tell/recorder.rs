//! Recorder: what users and operators get to know of looks, writes and failures, and what was told before (client-go:
//! `EventRecorder`).
//!
//! In: decisions with their reasons, and what became of requests. Out: events, and what a plan carries out for log,
//! metrics and traces. Why each key waits ([`Reasons`]) is handed in: decisions rest on it, and on nothing in here.

use tokio::time::Instant;

use super::{
    failure::Failure,
    latency::Sample,
    outbox::Outbox,
    reason::{ClaimReason, VolumeReason},
    record::{Looked, Record},
};
use crate::{
    binder::{
        act::{
            op::{Answer, Op},
            write::{Target, Write},
        },
        decide::decision::Decision,
        reasons::Reasons,
    },
    kube_api::{
        call::CallError,
        kinds::{Narrow, PersistentVolume, PersistentVolumeClaim},
    },
    state::Objects,
    telemetry::transition::Transition,
    traces::Traces,
};

/// What is told, and what was.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// Events.
    pub(crate) outbox: Outbox,
    record: Record,
}

impl Recorder {
    /// Traces binds from now on.
    pub(crate) fn trace(&mut self, traces: Traces) {
        self.record.trace(traces);
    }

    /// What has been measured, and which changes are to be logged.
    pub(crate) fn take(&mut self) -> (Vec<Sample>, Vec<Transition>) {
        self.record.take()
    }

    /// What failed is tried again, and holds until it works; or there is nothing left to try, or what failed was of
    /// another of that name.
    pub(crate) fn decided<Reason>(
        &mut self,
        target: &Target,
        decision: &mut Decision<Reason>,
        reasons: &mut Reasons,
        objects: &Objects,
        now: Instant,
    ) {
        if decision.step.is_none() || self.outbox.is_of_another(target, objects) {
            self.works(target, reasons, now);
        } else {
            decision.events.extend(self.outbox.failure_event(target, objects));
        }
    }

    /// A claim was looked at, at this attempt, which had waited for its turn since then. If it is bound to a volume,
    /// that is this one.
    pub(crate) fn claim_looked(
        &mut self,
        (claim, attempt): (&PersistentVolumeClaim, u32),
        reason: &ClaimReason,
        volume: Option<&PersistentVolume>,
        reasons: &Reasons,
        (since, now): (Instant, Instant),
    ) {
        let key = claim.key();
        let before = reasons.claim(&key).map(|reason| &**reason);
        let is_failing = self.outbox.is_failing(&Target::Claim(key));
        let looked = Looked { object: claim, reason, before, attempt, is_failing };
        self.record.claim_looked(&looked, volume, since, now);
    }

    /// A volume was looked at, at this attempt. If it is to be deleted, that is measured as done by this plugin.
    pub(crate) fn volume_looked(
        &mut self,
        (volume, attempt): (&PersistentVolume, u32),
        reason: &VolumeReason,
        deleted_by: Option<&str>,
        reasons: &Reasons,
        now: Instant,
    ) {
        let name = volume.key();
        let before = reasons.volume(&name).map(|reason| &**reason);
        let is_failing = self.outbox.is_failing(&Target::Volume(name));
        let looked = Looked { object: volume, reason, before, attempt, is_failing };
        self.record.volume_looked(&looked, deleted_by, now);
    }

    /// A request about a claim or volume failed; the next is that attempt, and due then.
    pub(crate) fn fails(
        &mut self,
        subject: &Target,
        failure: Failure,
        (attempt, due): (u32, Option<Instant>),
        (objects, reasons): (&Objects, &mut Reasons),
        now: Instant,
    ) {
        let Some(shown) = self.outbox.fails(subject, failure, objects, now) else { return };
        reasons.fails(subject, shown, due, now);
        match subject {
            Target::Claim(key) => {
                if let (Some(claim), Some(reason)) = (objects.claims.get(key), reasons.claim(key)) {
                    let (object, reason) = (&*claim, &**reason);
                    let looked = Looked { object, reason, before: None, attempt, is_failing: true };
                    self.record.claim_stands(&looked, now);
                }
            }
            Target::Volume(name) => {
                if let (Some(volume), Some(reason)) = (objects.volumes.get(name), reasons.volume(name)) {
                    let (object, reason) = (&*volume, &**reason);
                    let looked = Looked { object, reason, before: None, attempt, is_failing: true };
                    self.record.volume_stands(&looked, now);
                }
            }
        }
    }

    /// Nothing about a claim or volume fails any more.
    pub(crate) fn works(&mut self, subject: &Target, reasons: &mut Reasons, now: Instant) {
        if self.outbox.works(subject) {
            reasons.works(subject, now);
        }
    }

    /// A write to a volume is about to be sent.
    pub(crate) fn writes(&mut self, volume: &PersistentVolume) {
        self.record.writes(volume);
    }

    /// A write was answered, of which this was the given attempt.
    pub(crate) fn written(
        &mut self,
        op: &Op,
        write: &Write,
        result: &Result<Answer, CallError>,
        of_claim: (Option<&PersistentVolumeClaim>, u32),
        now: Instant,
    ) {
        self.record.written(op, write, result, of_claim, now);
    }

    /// The object is gone.
    pub(crate) fn gone(&mut self, target: &Target, now: Instant) {
        self.record.gone(target, now);
        self.outbox.gone(target);
    }

    /// Durations, for tests.
    #[cfg(test)]
    pub(crate) fn latency(&mut self) -> &mut super::latency::Latency {
        &mut self.record.latency
    }
}
