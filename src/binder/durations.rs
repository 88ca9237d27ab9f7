//! How long claims and volumes take from the first step to the last (pv-binder §11).
//!
//! In: decisions and outcomes as the planner meets them. Out: [`Sample`]s, and a trace of each bind that is sampled: from
//! when it was possible to the answer to the last write, a phase for each write. The stamps live in memory alone, as
//! upstream's do: what began before this process is not measured.

use std::{collections::HashMap, time::Duration};

use apiserver::{
    ids::{ClaimKey, VolumeName},
    kinds::{ClaimPhase, Meta, Narrow, PersistentVolume, PersistentVolumeClaim},
};
use strum::{IntoStaticStr, VariantArray};
use telemetry::traces::{End, TraceId};
use tokio::time::Instant;

use super::reasons::{ClaimReason, VolumeReason};
use crate::{
    binder::{
        annotations::{self, BOUND_BY_CONTROLLER, HOST_PATH_PLUGIN, PROVISIONED_BY},
        calls::{Target, Write, WriteKind},
    },
    controller::timers::{Ended, Timers},
};

/// Name of a bind's span.
const BIND: &str = "bind claim";

/// Its phase before the first write.
pub const QUEUE: &str = "queue";

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub enum Sample {
    /// An operation from end to end.
    Took(MeasuredOperation, String, Duration),
    /// An attempt of it failed.
    Failed(MeasuredOperation, String),
    /// From when claim and volume were both there to the answer to the last write of the bind.
    Bound(BindMode, Duration, Option<TraceId>),
}

/// How a claim comes by its volume: value of the label `mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum BindMode {
    /// The binder found a volume that was made beforehand.
    Static,
    /// A provisioner made it one.
    Dynamic,
    /// A user named one to the other.
    Prebound,
}

impl BindMode {
    /// How the two come together, as long as not all of the bind is written.
    pub fn of(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Self {
        let by_us = |metadata: &Meta| annotations::has(metadata, BOUND_BY_CONTROLLER);
        let claim_names = !claim.spec.volume_name.is_empty() && !by_us(&claim.metadata);
        let volume_names = volume.spec.claim_ref.is_some() && !by_us(&volume.metadata);
        if annotations::has(&volume.metadata, PROVISIONED_BY) {
            Self::Dynamic
        } else if claim_names || volume_names {
            Self::Prebound
        } else {
            Self::Static
        }
    }
}

/// `operation_name` of KCM's volume operation metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum MeasuredOperation {
    /// From asking the provisioner to the bind of its volume.
    Provision,
    /// From the first attempt to reclaim a volume to its end.
    Delete,
}

impl MeasuredOperation {
    fn of(target: &Target) -> Self {
        match target {
            Target::Claim(_) => Self::Provision,
            Target::Volume(_) => Self::Delete,
        }
    }
}

/// An operation that has begun.
#[derive(Debug)]
struct Begun {
    at: Instant,
    plugin: String,
    /// The binder found the volume; a claim that names one itself was not provisioned for.
    found: bool,
}

/// What has begun and not ended.
#[derive(Debug, Default)]
pub struct Durations {
    /// Of claims, provisioning; of volumes, deletion.
    operations: HashMap<Target, Begun>,
    pub(super) binds: Timers<ClaimKey, Option<BindMode>>,
    /// What has been measured.
    pub(crate) samples: Vec<Sample>,
}

// KCM: pkg/controller/volume/persistentvolume/metrics/metrics.go, OperationStartTimeCache.
impl Durations {
    /// A claim was looked at, at this attempt, which had waited for its turn since then: for this reason, which may be
    /// another than before. If it is bound to a volume, that is this one.
    pub fn claim_looked(
        &mut self,
        (claim, attempt): (&PersistentVolumeClaim, u32),
        (reason, is_news): (&ClaimReason, bool),
        volume: Option<&PersistentVolume>,
        (since, now): (Instant, Instant),
    ) {
        let key = &claim.key();
        match reason {
            ClaimReason::WaitsForProvisioner(provisioner) => self.asks(key, provisioner, now),
            ClaimReason::Provisioning(plugin) => self.asks(key, plugin, now),
            ClaimReason::NotProvisioned(why) => {
                self.asks(key, HOST_PATH_PLUGIN, now);
                if why.is_of_plugin() && is_news {
                    self.failed(&Target::Claim(key.clone()));
                }
            }
            ClaimReason::Binding(_, step) => {
                if claim.status.phase != ClaimPhase::Bound
                    && let Some(volume) = volume
                {
                    self.binds(key, Some(BindMode::of(claim, volume)), <&str>::from(step), (since, now));
                }
            }
            // If a volume is found then, all this time was ours.
            ClaimReason::ProvingClass(_) => self.binds(key, None, QUEUE, (since, now)),
            ClaimReason::VolumeBusy(_) => {}
            // The bind is not to be any more.
            _ => {
                let attributes = |_: &_| attributes(key, Some(claim), attempt);
                self.binds.end(key, End::Superseded, now, attributes);
            }
        }
    }

    /// A volume was looked at, likewise. If it is to be deleted, that is measured as done by this plugin.
    pub fn volume_looked(
        &mut self,
        name: &VolumeName,
        (reason, is_news): (&VolumeReason, bool),
        deleted_by: Option<&str>,
        now: Instant,
    ) {
        let target = Target::Volume(name.clone());
        if let Some(plugin) = deleted_by {
            self.begins(&target, plugin, now);
        }
        // Between two attempts there is another reason.
        if matches!(reason, VolumeReason::DeleteFailed(_)) && is_news {
            self.failed(&target);
        }
    }

    /// A provisioner is asked, or has been. How long the bind stands still is not how long a bind takes.
    pub(crate) fn asks(&mut self, claim: &ClaimKey, plugin: &str, now: Instant) {
        self.binds.forget(claim);
        self.begins(&Target::Claim(claim.clone()), plugin, now);
    }

    fn begins(&mut self, target: &Target, plugin: &str, now: Instant) {
        if !self.operations.contains_key(target) {
            let begun = Begun { at: now, plugin: plugin.to_owned(), found: false };
            self.operations.insert(target.clone(), begun);
        }
    }

    /// An attempt of an operation failed.
    fn failed(&mut self, target: &Target) {
        if let Some(begun) = self.operations.get(target) {
            self.samples.push(Sample::Failed(MeasuredOperation::of(target), begun.plugin.clone()));
        }
    }

    fn ends(&mut self, target: &Target, now: Instant) {
        if let Some(Begun { at, plugin, .. }) = self.operations.remove(target) {
            let took = now.saturating_duration_since(at);
            self.samples.push(Sample::Took(MeasuredOperation::of(target), plugin, took));
        }
    }

    /// A claim and a volume can be bound since then, or it is being found out whether they can. This phase is next.
    fn binds(
        &mut self,
        claim: &ClaimKey,
        mode: Option<BindMode>,
        phase: &'static str,
        (since, now): (Instant, Instant),
    ) {
        match self.binds.get_mut(claim) {
            // What becomes of the volume meanwhile does not change who brought the two together.
            Some(begun) => *begun = begun.or(mode),
            None => self.binds.begin(claim.clone(), mode, (BIND, QUEUE), true, since),
        }
        self.binds.look(claim, phase, true, now);
    }

    /// A write about a claim, as it is now if it is there, was made at this attempt, or was not.
    pub fn written(
        &mut self,
        claim: &ClaimKey,
        write: &Write,
        is_made: bool,
        (object, attempt): (Option<&PersistentVolumeClaim>, u32),
        now: Instant,
    ) {
        let target = Target::Claim(claim.clone());
        match (write.kind, is_made) {
            (WriteKind::NameVolume, true) => {
                // A claim that named the volume itself is told apart by the patch that does not.
                let names = write.request.body.as_ref().is_some_and(|body| body.get("spec").is_some());
                if let Some(begun) = self.operations.get_mut(&target).filter(|_| names) {
                    begun.found = true;
                }
            }
            (WriteKind::ClaimBound, true) => {
                let attributes = |_: &_| attributes(claim, object, attempt);
                let ended = self.binds.end(claim, End::Done, now, attributes);
                if let Some(Ended { of: Some(mode), whole, last, .. }) = ended {
                    self.samples.push(Sample::Bound(mode, whole, last.trace));
                }
                if self.operations.get(&target).is_some_and(|begun| begun.found) {
                    self.ends(&target, now);
                }
            }
            (kind, false) if kind.is_bind() || kind == WriteKind::AskProvisioner => self.failed(&target),
            _ => {}
        }
    }

    /// The claim or volume is gone.
    pub fn gone(&mut self, target: &Target, now: Instant) {
        match target {
            Target::Claim(key) => {
                self.operations.remove(target);
                self.binds.forget(key);
            }
            Target::Volume(_) => self.ends(target, now),
        }
    }
}

/// What a bind's span tells.
fn attributes(
    claim: &ClaimKey,
    object: Option<&PersistentVolumeClaim>,
    attempts: u32,
) -> Vec<(&'static str, String)> {
    let volume = object.map(|claim| claim.spec.volume_name.to_string()).unwrap_or_default();
    vec![
        ("k8s.namespace.name", claim.namespace().to_owned()),
        ("k8s.persistentvolumeclaim.name", claim.name().to_owned()),
        ("k8s.persistentvolume.name", volume),
        ("mooring.attempts", attempts.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use std::mem::take;

    use super::*;
    use crate::binder::patches;

    /// The answer to a write about the claim, which names the volume or does not.
    fn written(durations: &mut Durations, kind: WriteKind, names: bool, now: Instant) {
        let claim = PersistentVolumeClaim::default();
        let mut write = patches::name_volume(&claim, names.then(|| "v".into()).as_ref());
        write.kind = kind;
        durations.written(&ClaimKey::new("ns", "c"), &write, true, (None, 1), now);
    }

    #[test]
    fn a_claim_is_measured_from_the_first_ask_to_the_bind_that_was_found() {
        let (start, claim) = (Instant::now(), ClaimKey::new("ns", "c"));
        let target = Target::Claim(claim.clone());
        let second = |second| start + Duration::from_secs(second);
        let mut durations = Durations::default();
        durations.failed(&target);
        durations.asks(&claim, "p", start);
        durations.asks(&claim, "other", second(1));
        durations.failed(&target);
        let mut binds = |mode, since| durations.binds(&claim, mode, QUEUE, (since, second(4)));
        binds(Some(BindMode::Dynamic), start);
        durations.asks(&claim, "p", second(3));
        let mut binds = |mode, since| durations.binds(&claim, mode, QUEUE, (since, second(4)));
        binds(None, second(3));
        binds(Some(BindMode::Static), second(4));
        binds(Some(BindMode::Dynamic), second(4));
        written(&mut durations, WriteKind::NameVolume, false, second(5));
        written(&mut durations, WriteKind::ClaimBound, false, second(5));
        assert_eq!(
            take(&mut durations.samples),
            [
                Sample::Failed(MeasuredOperation::Provision, "p".to_owned()),
                Sample::Bound(BindMode::Static, Duration::from_secs(2), None),
            ]
        );
        // The claim named the volume by itself so far; now the binder finds it one.
        written(&mut durations, WriteKind::NameVolume, true, second(6));
        written(&mut durations, WriteKind::ClaimBound, false, second(6));
        written(&mut durations, WriteKind::ClaimBound, false, second(7));
        assert_eq!(
            take(&mut durations.samples),
            [Sample::Took(MeasuredOperation::Provision, "p".to_owned(), Duration::from_secs(6))]
        );
    }

    #[test]
    fn the_mode_is_who_brought_the_two_together() {
        let by_us = r#""annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}"#;
        let provisioned = r#""annotations": {"pv.kubernetes.io/provisioned-by": "d"}"#;
        let cases = [
            ("", "", "", "", BindMode::Static),
            (r#""volumeName": "v""#, "", "", "", BindMode::Prebound),
            (r#""volumeName": "v""#, by_us, "", "", BindMode::Static),
            ("", "", r#""claimRef": {"namespace": "ns", "name": "c"}"#, "", BindMode::Prebound),
            ("", "", r#""claimRef": {"namespace": "ns", "name": "c"}"#, by_us, BindMode::Static),
            ("", "", r#""claimRef": {"namespace": "ns", "name": "c"}"#, provisioned, BindMode::Dynamic),
        ];
        for (claim, claim_marks, volume, volume_marks, expected) in cases {
            let text =
                |marks: &str, spec: &str| format!(r#"{{"metadata": {{{marks}}}, "spec": {{{spec}}}}}"#);
            let claim: PersistentVolumeClaim = serde_json::from_str(&text(claim_marks, claim)).unwrap();
            let volume: PersistentVolume = serde_json::from_str(&text(volume_marks, volume)).unwrap();
            assert_eq!(BindMode::of(&claim, &volume), expected, "{claim:?} {volume:?}");
        }
    }

    #[test]
    fn a_deleted_claim_leaves_no_stamp_and_a_deleted_volume_ends_its_own() {
        let (start, claim) = (Instant::now(), ClaimKey::new("ns", "c"));
        let volume = Target::Volume("v".into());
        let mut durations = Durations::default();
        durations.asks(&claim, "p", start);
        durations.binds(&claim, Some(BindMode::Static), QUEUE, (start, start));
        written(&mut durations, WriteKind::NameVolume, true, start);
        durations.gone(&Target::Claim(claim.clone()), start);
        written(&mut durations, WriteKind::ClaimBound, false, start);
        durations.gone(&volume, start);
        durations.failed(&volume);
        assert_eq!(take(&mut durations.samples), []);
        durations.begins(&volume, "p", start);
        durations.begins(&volume, "q", start + Duration::from_secs(1));
        durations.failed(&volume);
        durations.gone(&volume, start + Duration::from_secs(2));
        assert_eq!(
            take(&mut durations.samples),
            [
                Sample::Failed(MeasuredOperation::Delete, "p".to_owned()),
                Sample::Took(MeasuredOperation::Delete, "p".to_owned(), Duration::from_secs(2)),
            ]
        );
    }
}
