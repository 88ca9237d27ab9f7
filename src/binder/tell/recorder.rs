//! Recorder: what users and operators get to know of looks, writes and failures, and what was told before (client-go:
//! `EventRecorder`).
//!
//! In: decisions with their reasons, and what became of requests. Out: events, and what a plan carries out for log,
//! metrics and traces. Why each key waits ([`Reasons`]) is handed in: decisions rest on it, and on nothing in here.

use std::{collections::BTreeMap, mem, sync::Arc};

use apiserver::{
    call::CallError,
    events::Event,
    ids::VolumeName,
    kinds::{ClaimPhase, Narrow, PersistentVolume, PersistentVolumeClaim},
    tables::Objects,
};
use telemetry::traces::Traces;
use tokio::time::Instant;

use super::{
    events,
    failure::Failure,
    failures::Failures,
    latency::{BindMode, Latency, QUEUE, Sample},
    reason::{ClaimReason, VolumeReason},
    state::{self, Failing, Report, Why},
};
use crate::{
    binder::{
        annotations::HOST_PATH_PLUGIN,
        calls::{Answer, Op, Target, Write, WriteKind},
        decide::decision::Decision,
        reasons::Reasons,
    },
    controller::report::events::{EventUpdate, Topic},
};

/// Topic of the events of a decision.
const DECISION: Topic = "decision";

/// Topic of the event of a request that fails.
const FAILURE: Topic = "failure";

/// What is told, and what was.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// Requests that fail.
    pub(crate) failures: Failures,
    events: Vec<EventUpdate<Target>>,
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

    /// What there is for events.
    pub(crate) fn take_events(&mut self) -> Vec<EventUpdate<Target>> {
        mem::take(&mut self.events)
    }

    /// What has been measured, and what is reported.
    pub(crate) fn take(&mut self) -> (Vec<Sample>, Vec<Report>) {
        (self.latency.take(), mem::take(&mut self.reports))
    }

    /// Takes the events of a decision. What failed is tried again, and holds until it works; or there is nothing left to
    /// try, or what failed was of another of that name. A decision without events while something is still to come leaves
    /// open what holds.
    pub(crate) fn decided<Reason>(
        &mut self,
        target: &Target,
        (decision, is_settled): (&mut Decision<Reason>, bool),
        reasons: &mut Reasons,
        objects: &Objects,
    ) {
        if decision.step.is_none() || self.failures.is_of_another(target, target.uid(objects).as_ref()) {
            self.works(target, reasons);
        }
        let events = mem::take(&mut decision.events);
        self.events.push(if is_settled || !events.is_empty() {
            EventUpdate::Hold(target.clone(), DECISION, events)
        } else {
            EventUpdate::Pause(target.clone(), &[DECISION])
        });
    }

    /// A write about a claim or volume was made, which causes these events.
    pub(crate) fn caused(&mut self, subject: &Target, events: &[Event]) {
        if !events.is_empty() {
            self.events.push(EventUpdate::Caused(subject.clone(), DECISION, events.to_vec()));
        }
    }

    /// What belongs to an earlier write whose answer was lost has happened.
    pub(crate) fn happened(&mut self, event: Event) {
        self.events.push(EventUpdate::Happened(event));
    }

    /// Nothing holds any more of a claim or volume that is gone.
    pub(crate) fn forget(&mut self, target: Target) {
        self.events.push(EventUpdate::Forget(target));
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
    ) -> bool {
        self.failures.note(subject, failure, subject.uid(objects).as_ref());
        let shown = self.failures.shown(subject);
        let shown = shown.and_then(|shown| Some((shown, failure_event(subject, shown, objects)?)));
        let (shown, event) = shown.unzip();
        self.events.push(EventUpdate::Hold(subject.clone(), FAILURE, event.into_iter().collect()));
        if let Some(shown) = shown {
            reasons.fails(subject, shown.clone(), due);
        }
        shown.is_some()
    }

    /// Nothing about a claim or volume fails any more.
    pub(crate) fn works(&mut self, subject: &Target, reasons: &mut Reasons) {
        reasons.works(subject);
        self.failures.forget(subject);
        self.events.push(EventUpdate::Hold(subject.clone(), FAILURE, Vec::new()));
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
        self.failures.forget(target);
        self.forget(target.clone());
    }
}

/// The event about what fails: on the claim, if there is one that waits, else on the volume.
fn failure_event(subject: &Target, failure: &Failure, objects: &Objects) -> Option<Event> {
    if failure.is_recorded_elsewhere() {
        return None;
    }
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
