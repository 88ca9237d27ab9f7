//! Recorder: what users and operators get to know of looks, writes and failures, and what was told before (client-go:
//! `EventRecorder`).
//!
//! In: decisions with their reasons, and what became of requests. Out: events, and what a plan carries out for log,
//! metrics and traces. Why each key waits ([`Reasons`]) is handed in: decisions rest on it, and on nothing in here.

use std::{collections::BTreeMap, mem, sync::Arc};

use tokio::time::Instant;

use super::{
    failure::Failure,
    latency::{BindMode, Latency, QUEUE, Sample},
    outbox::Outbox,
    reason::{ClaimReason, VolumeReason},
    state::{self, Failing, Report, Why},
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
        ids::VolumeName,
        kinds::{ClaimPhase, Narrow, PersistentVolume, PersistentVolumeClaim},
    },
    state::Objects,
    traces::Traces,
};

/// What is told, and what was.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// Events.
    pub(crate) outbox: Outbox,
    /// How long things take.
    pub(crate) latency: Latency,
    reports: Vec<Report>,
    /// Phases of volumes before writes of ours, until the look that follows them.
    written: BTreeMap<VolumeName, &'static str>,
}

impl Recorder {
    /// Traces binds from now on.
    pub(crate) fn trace(&mut self, traces: Traces) {
        self.latency.trace(traces);
    }

    /// What has been measured, and what is reported.
    pub(crate) fn take(&mut self) -> (Vec<Sample>, Vec<Report>) {
        (self.latency.take(), mem::take(&mut self.reports))
    }

    /// What failed is tried again, and holds until it works; or there is nothing left to try, or what failed was of
    /// another of that name.
    pub(crate) fn decided<Reason>(
        &mut self,
        target: &Target,
        decision: &mut Decision<Reason>,
        reasons: &mut Reasons,
        objects: &Objects,
    ) {
        if decision.step.is_none() || self.outbox.is_of_another(target, objects) {
            self.works(target, reasons);
        } else {
            decision.events.extend(self.outbox.failure_event(target, objects));
        }
    }

    /// A claim was looked at, at this attempt, which had waited for its turn since then. If it is bound to a volume,
    /// that is this one.
    pub(crate) fn claim_looked(
        &mut self,
        (claim, attempt): (&PersistentVolumeClaim, u32),
        reason: &Arc<ClaimReason>,
        volume: Option<&PersistentVolume>,
        reasons: &Reasons,
        (since, now): (Instant, Instant),
    ) {
        let key = &claim.key();
        match &**reason {
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
                if why.is_of_plugin() && reasons.claim(key).is_none_or(|before| before != reason) {
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
        let failing = reasons.failing(&Target::Claim(key.clone()));
        self.claim_stands((claim, attempt), reason, failing, true);
    }

    /// Reports where a claim stands.
    pub(crate) fn claim_stands(
        &mut self,
        (claim, attempt): (&PersistentVolumeClaim, u32),
        reason: &Arc<ClaimReason>,
        failing: Option<&Failing>,
        is_decision: bool,
    ) {
        let named = &claim.spec.volume_name;
        let other = match &**reason {
            ClaimReason::Binding(volume, _) => Some(volume.to_string()),
            _ if named.is_empty() => None,
            _ => Some(named.to_string()),
        };
        let (target, why) = (Target::Claim(claim.key()), Why::Claim(Arc::clone(reason)));
        let standing = (target, claim.status.phase.as_str(), why);
        let report = state::report(standing, failing, (attempt, is_decision));
        let revision = Some(claim.metadata.resource_version);
        self.reports.push(Report { revision, other, ..report });
    }

    /// A volume was looked at, at this attempt. If it is to be deleted, that is measured as done by this plugin.
    pub(crate) fn volume_looked(
        &mut self,
        (volume, attempt): (&PersistentVolume, u32),
        reason: &Arc<VolumeReason>,
        deleted_by: Option<&str>,
        reasons: &Reasons,
        now: Instant,
    ) {
        let name = &volume.key();
        if let Some(plugin) = deleted_by {
            self.latency.deletes(name, plugin, now);
        }
        // Between two attempts there is another reason.
        if let VolumeReason::DeleteFailed(_) = &**reason
            && reasons.volume(name).is_none_or(|before| before != reason)
        {
            self.latency.volume_failed(name);
        }
        let failing = reasons.failing(&Target::Volume(name.clone()));
        self.volume_stands((volume, attempt), reason, failing, true);
    }

    /// Reports where a volume stands.
    pub(crate) fn volume_stands(
        &mut self,
        (volume, attempt): (&PersistentVolume, u32),
        reason: &Arc<VolumeReason>,
        failing: Option<&Failing>,
        is_decision: bool,
    ) {
        let other = volume.spec.claim_ref.as_ref().map(|reference| reference.key().to_string());
        let (target, why) = (Target::Volume(volume.key()), Why::Volume(Arc::clone(reason)));
        let standing = (target, volume.status.phase.as_str(), why);
        let report = state::report(standing, failing, (attempt, is_decision));
        let (revision, from) = (Some(volume.metadata.resource_version), self.written.remove(&volume.key()));
        self.reports.push(Report { revision, from, other, ..report });
    }

    /// A request about a claim or volume failed; the next is due then. Returns whether that is to be shown.
    pub(crate) fn fails(
        &mut self,
        subject: &Target,
        failure: Failure,
        due: Option<Instant>,
        (objects, reasons): (&Objects, &mut Reasons),
        now: Instant,
    ) -> bool {
        let shown = self.outbox.fails(subject, failure, objects, now);
        shown.map(|shown| reasons.fails(subject, shown, due)).is_some()
    }

    /// Nothing about a claim or volume fails any more.
    pub(crate) fn works(&mut self, subject: &Target, reasons: &mut Reasons) {
        reasons.works(subject);
        self.outbox.works(subject);
    }

    /// A write to a volume is about to be sent.
    pub(crate) fn writes(&mut self, volume: &PersistentVolume) {
        self.written.entry(volume.key()).or_insert(volume.status.phase.as_str());
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

    /// The object is gone, which was waited for or not.
    pub(crate) fn gone(&mut self, target: &Target, was_waited_for: bool, now: Instant) {
        match target {
            Target::Claim(key) => self.latency.forget_claim(key),
            Target::Volume(name) => {
                self.written.remove(name);
                self.latency.volume_gone(name, now);
            }
        }
        if was_waited_for {
            self.reports.push(Report::gone(target.clone()));
        }
        self.outbox.gone(target);
    }
}
