//! What operators are told of each look and each write: durations, changes of state and traces.
//!
//! In: what a look at a claim or volume has come to, and the answers to writes. Out: [`Sample`]s and
//! [`Transition`]s. Nothing is decided by it.

use tokio::time::Instant;

use super::{
    latency::{BindMode, Latency, QUEUE, Sample},
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
    },
    kube_api::{
        call::CallError,
        kinds::{ClaimPhase, Narrow, PersistentVolume, PersistentVolumeClaim},
    },
    telemetry::transition::Transition,
    traces::Traces,
};

/// What a look at a claim or volume has come to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Looked<'a, Object, Reason> {
    pub(crate) object: &'a Object,
    pub(crate) reason: &'a Reason,
    /// The reason before.
    pub(crate) before: Option<&'a Reason>,
    /// Which attempt at a request is the next one, from 1.
    pub(crate) attempt: u32,
    /// Whether a request about it fails.
    pub(crate) is_failing: bool,
}

/// Durations and changes of state that have begun.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) latency: Latency,
    transitions: Transitions,
}

impl Record {
    /// Traces binds from now on.
    pub(crate) fn trace(&mut self, traces: Traces) {
        self.latency.trace(traces);
    }

    /// What has been measured, and which changes are to be logged.
    pub(crate) fn take(&mut self) -> (Vec<Sample>, Vec<Transition>) {
        (self.latency.take(), self.transitions.take())
    }

    /// A claim was looked at, which had waited for its turn since then. If it is bound to a volume, that is this one.
    pub(crate) fn claim_looked(
        &mut self,
        looked: &Looked<'_, PersistentVolumeClaim, ClaimReason>,
        volume: Option<&PersistentVolume>,
        since: Instant,
        now: Instant,
    ) {
        let Looked { object: claim, reason, before, attempt, .. } = *looked;
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
                if why.is_of_plugin() && before != Some(reason) {
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
        self.claim_stands(looked, now);
    }

    /// Where a claim stands now, for the log.
    pub(crate) fn claim_stands(
        &mut self,
        looked: &Looked<'_, PersistentVolumeClaim, ClaimReason>,
        now: Instant,
    ) {
        let claim = looked.object;
        let named = &claim.spec.volume_name;
        let volume = match looked.reason {
            ClaimReason::Binding(volume, _) => Some(volume.to_string()),
            _ if named.is_empty() => None,
            _ => Some(named.to_string()),
        };
        let look = Look::new(
            claim.status.phase.as_str(),
            (looked.reason.code(), looked.reason.is_settled()),
            (looked.attempt, looked.is_failing),
            claim.metadata.resource_version,
            volume,
        );
        self.transitions.looked(&Target::Claim(claim.key()), &look, now);
    }

    /// A volume was looked at. If it is to be deleted, that is measured as done by this plugin.
    pub(crate) fn volume_looked(
        &mut self,
        looked: &Looked<'_, PersistentVolume, VolumeReason>,
        deleted_by: Option<&str>,
        now: Instant,
    ) {
        let name = &looked.object.key();
        if let Some(plugin) = deleted_by {
            self.latency.deletes(name, plugin, now);
        }
        // Between two attempts there is another reason.
        if let VolumeReason::DeleteFailed(_) = looked.reason
            && looked.before != Some(looked.reason)
        {
            self.latency.volume_failed(name);
        }
        self.volume_stands(looked, now);
    }

    /// Where a volume stands now, for the log.
    pub(crate) fn volume_stands(
        &mut self,
        looked: &Looked<'_, PersistentVolume, VolumeReason>,
        now: Instant,
    ) {
        let volume = looked.object;
        let look = Look::new(
            volume.status.phase.as_str(),
            (looked.reason.code(), looked.reason.is_settled()),
            (looked.attempt, looked.is_failing),
            volume.metadata.resource_version,
            volume.spec.claim_ref.as_ref().map(|reference| reference.key().to_string()),
        );
        self.transitions.looked(&Target::Volume(volume.key()), &look, now);
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
    }
}
