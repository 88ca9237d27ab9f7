//! Recorder: what users and operators get to know of looks, writes and failures, and what was told before (client-go:
//! `EventRecorder`).
//!
//! In: decisions with their reasons, and what became of requests. Out: events, and what a plan carries out for log,
//! metrics and traces. Why each key waits ([`Reasons`]) is handed in: decisions rest on it, and on nothing in here.

use tokio::time::Instant;

use super::{
    failure::Failure,
    latency::{BindMode, Latency, QUEUE, Sample},
    outbox::Outbox,
    reason::{ClaimReason, VolumeReason},
    transitions::{Look, Transitions},
};
use crate::{
    binder::{
        act::{
            op::{Answer, Op},
            write::{Target, Write, WriteKind},
        },
        annotations::HOST_PATH_PLUGIN,
        decide::decision::Decision,
        reasons::Reasons,
    },
    kube_api::{
        call::CallError,
        kinds::{ClaimPhase, Narrow, PersistentVolume, PersistentVolumeClaim},
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
    /// How long things take.
    pub(crate) latency: Latency,
    transitions: Transitions,
}

impl Recorder {
    /// Traces binds from now on.
    pub(crate) fn trace(&mut self, traces: Traces) {
        self.latency.trace(traces);
    }

    /// What has been measured, and which changes are to be logged.
    pub(crate) fn take(&mut self) -> (Vec<Sample>, Vec<Transition>) {
        (self.latency.take(), self.transitions.take())
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
        let key = &claim.key();
        match reason {
            ClaimReason::WaitsForProvisioner(provisioner) => {
                self.latency.stops(key);
                self.latency.asks(key, provisioner, now);
            }
            ClaimReason::Provisioning(plugin) => {
                self.latency.stops(key);
                self.latency.asks(key, plugin, now);
            }
            ClaimReason::NotProvisioned(why) => {
                self.latency.stops(key);
                self.latency.asks(key, HOST_PATH_PLUGIN, now);
                if why.is_of_plugin() && reasons.claim(key).is_none_or(|before| **before != *reason) {
                    self.latency.claim_failed(key);
                }
            }
            ClaimReason::Binding(_, step) => {
                if claim.status.phase != ClaimPhase::Bound
                    && let Some(volume) = volume
                {
                    self.latency.binds(key, Some(BindMode::of(claim, volume)), step.as_str(), (since, now));
                }
            }
            // If a volume is found then, all this time was ours.
            ClaimReason::ProvingClass(_) => self.latency.binds(key, None, QUEUE, (since, now)),
            ClaimReason::VolumeBusy(_) => {}
            _ => self.latency.given_up(claim, attempt, now),
        }
        self.claim_stands((claim, attempt), reason, now);
    }

    /// Where a claim stands now, for the log.
    fn claim_stands(
        &mut self,
        (claim, attempt): (&PersistentVolumeClaim, u32),
        reason: &ClaimReason,
        now: Instant,
    ) {
        let (target, named) = (Target::Claim(claim.key()), &claim.spec.volume_name);
        let volume = match reason {
            ClaimReason::Binding(volume, _) => Some(volume.to_string()),
            _ if named.is_empty() => None,
            _ => Some(named.to_string()),
        };
        let look = Look::new(
            claim.status.phase.as_str(),
            (reason.code(), reason.is_settled()),
            (attempt, self.outbox.is_failing(&target)),
            claim.metadata.resource_version,
            volume,
        );
        self.transitions.looked(&target, &look, now);
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
        let name = &volume.key();
        if let Some(plugin) = deleted_by {
            self.latency.deletes(name, plugin, now);
        }
        // Between two attempts there is another reason.
        if let VolumeReason::DeleteFailed(_) = reason
            && reasons.volume(name).is_none_or(|before| **before != *reason)
        {
            self.latency.volume_failed(name);
        }
        self.volume_stands((volume, attempt), reason, now);
    }

    /// Where a volume stands now, for the log.
    fn volume_stands(
        &mut self,
        (volume, attempt): (&PersistentVolume, u32),
        reason: &VolumeReason,
        now: Instant,
    ) {
        let target = Target::Volume(volume.key());
        let look = Look::new(
            volume.status.phase.as_str(),
            (reason.code(), reason.is_settled()),
            (attempt, self.outbox.is_failing(&target)),
            volume.metadata.resource_version,
            volume.spec.claim_ref.as_ref().map(|reference| reference.key().to_string()),
        );
        self.transitions.looked(&target, &look, now);
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
                    self.claim_stands((&claim, attempt), reason, now);
                }
            }
            Target::Volume(name) => {
                if let (Some(volume), Some(reason)) = (objects.volumes.get(name), reasons.volume(name)) {
                    self.volume_stands((&volume, attempt), reason, now);
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
        self.transitions.writes(&Target::Volume(volume.key()), volume.status.phase.as_str());
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
        match (&op.subject, write.kind, result) {
            (_, _, Err(CallError::NotLeader)) => {}
            (Target::Claim(key), WriteKind::NameVolume, Ok(Answer::Claim(_))) => {
                // A claim that named the volume itself is told apart by the patch that does not.
                let body = write.request.body.as_ref();
                if body.is_some_and(|body| body.get("spec").is_some()) {
                    self.latency.found(key);
                }
            }
            (Target::Claim(key), WriteKind::ClaimBound, Ok(_)) => self.latency.bound(key, of_claim, now),
            (Target::Claim(key), kind, Err(_)) if kind.is_bind() || kind == WriteKind::AskProvisioner => {
                self.latency.claim_failed(key);
            }
            _ => {}
        }
    }

    /// The object is gone.
    pub(crate) fn gone(&mut self, target: &Target, now: Instant) {
        match target {
            Target::Claim(key) => self.latency.forget_claim(key),
            Target::Volume(name) => self.latency.volume_gone(name, now),
        }
        self.transitions.gone(target, now);
        self.outbox.gone(target);
    }
}
