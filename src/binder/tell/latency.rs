//! How long claims and volumes take from the first step to the last (pv-binder §11).
//!
//! In: decisions and outcomes as the planner meets them. Out: [`Sample`]s, and a trace of each bind that is sampled: from
//! when it was possible to the answer to the last write, a phase for each write. The stamps live in memory alone, as
//! upstream's do: what began before this process is not measured.

use std::{collections::HashMap, time::Duration};

use apiserver::{
    ids::{ClaimKey, VolumeName},
    kinds::{Meta, Narrow, PersistentVolume, PersistentVolumeClaim},
};
use telemetry::traces::{End, TraceId, Traces};
use tokio::time::Instant;

use crate::{
    binder::annotations::{self, BOUND_BY_CONTROLLER, PROVISIONED_BY},
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindMode {
    /// The binder found a volume that was made beforehand.
    Static,
    /// A provisioner made it one.
    Dynamic,
    /// A user named one to the other.
    Prebound,
}

impl BindMode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Static, Self::Dynamic, Self::Prebound];

    /// Value of the label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Dynamic => "dynamic",
            Self::Prebound => "prebound",
        }
    }

    /// How the two come together, as long as not all of the bind is written.
    #[must_use]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeasuredOperation {
    /// From asking the provisioner to the bind of its volume.
    Provision,
    /// From the first attempt to reclaim a volume to its end.
    Delete,
}

impl MeasuredOperation {
    /// Value of the label.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Provision => "provision",
            Self::Delete => "delete",
        }
    }
}

#[derive(Debug)]
struct AskedProvisioner {
    at: Instant,
    plugin: String,
    /// The binder found the volume; a claim that names one itself was not provisioned for.
    found: bool,
}

/// What has begun and not ended.
#[derive(Debug, Default)]
pub struct Latency {
    asked: HashMap<ClaimKey, AskedProvisioner>,
    binding: Timers<ClaimKey, Option<BindMode>>,
    deleting: HashMap<VolumeName, (Instant, String)>,
    done: Vec<Sample>,
}

// KCM: pkg/controller/volume/persistentvolume/metrics/metrics.go, OperationStartTimeCache.
impl Latency {
    /// Traces binds from now on.
    pub fn trace(&mut self, traces: Traces) {
        self.binding.trace(traces);
    }

    /// A provisioner is asked, or has been.
    pub fn asks(&mut self, claim: &ClaimKey, plugin: &str, now: Instant) {
        if !self.asked.contains_key(claim) {
            self.asked
                .insert(claim.clone(), AskedProvisioner { at: now, plugin: plugin.to_owned(), found: false });
        }
    }

    /// Asking the provisioner, the plugin here, or a write of the bind failed.
    pub fn claim_failed(&mut self, claim: &ClaimKey) {
        if let Some(asked) = self.asked.get(claim) {
            self.done.push(Sample::Failed(MeasuredOperation::Provision, asked.plugin.clone()));
        }
    }

    /// A claim and a volume can be bound since then, or it is being found out whether they can. This phase is next.
    pub fn binds(
        &mut self,
        claim: &ClaimKey,
        mode: Option<BindMode>,
        phase: &'static str,
        (since, now): (Instant, Instant),
    ) {
        match self.binding.get_mut(claim) {
            // What becomes of the volume meanwhile does not change who brought the two together.
            Some(begun) => *begun = begun.or(mode),
            None => self.binding.begin(claim.clone(), mode, (BIND, QUEUE), true, since),
        }
        self.binding.look(claim, phase, true, now);
    }

    /// The bind has come to a stop: how long that lasts is not how long a bind takes.
    pub fn stops(&mut self, claim: &ClaimKey) {
        self.binding.forget(claim);
    }

    /// The bind is not to be any more, after so many attempts.
    pub fn given_up(&mut self, claim: &PersistentVolumeClaim, attempts: u32, now: Instant) {
        let key = claim.key();
        self.binding.end(&key, End::Superseded, now, |_| attributes(&key, Some(claim), attempts));
    }

    /// The claim names the volume that was found for it.
    pub fn found(&mut self, claim: &ClaimKey) {
        if let Some(asked) = self.asked.get_mut(claim) {
            asked.found = true;
        }
    }

    /// The last write of a bind is made, after so many attempts.
    pub fn bound(
        &mut self,
        claim: &ClaimKey,
        (object, attempts): (Option<&PersistentVolumeClaim>, u32),
        now: Instant,
    ) {
        let attributes = |_: &_| attributes(claim, object, attempts);
        if let Some(Ended { of: Some(mode), whole, last, .. }) =
            self.binding.end(claim, End::Done, now, attributes)
        {
            self.done.push(Sample::Bound(mode, whole, last.trace));
        }
        if self.asked.get(claim).is_some_and(|asked| asked.found)
            && let Some(asked) = self.asked.remove(claim)
        {
            let took = now.saturating_duration_since(asked.at);
            self.done.push(Sample::Took(MeasuredOperation::Provision, asked.plugin, took));
        }
    }

    /// The claim is gone.
    pub fn forget_claim(&mut self, claim: &ClaimKey) {
        self.asked.remove(claim);
        self.binding.forget(claim);
    }

    /// A volume is to be deleted.
    pub fn deletes(&mut self, volume: &VolumeName, plugin: &str, now: Instant) {
        if !self.deleting.contains_key(volume) {
            self.deleting.insert(volume.clone(), (now, plugin.to_owned()));
        }
    }

    /// An attempt to delete it failed.
    pub fn volume_failed(&mut self, volume: &VolumeName) {
        if let Some((_, plugin)) = self.deleting.get(volume) {
            self.done.push(Sample::Failed(MeasuredOperation::Delete, plugin.clone()));
        }
    }

    /// The volume is gone.
    pub fn volume_gone(&mut self, volume: &VolumeName, now: Instant) {
        if let Some((since, plugin)) = self.deleting.remove(volume) {
            let took = now.saturating_duration_since(since);
            self.done.push(Sample::Took(MeasuredOperation::Delete, plugin, took));
        }
    }

    /// What has been measured since this was last asked.
    pub fn take(&mut self) -> Vec<Sample> {
        std::mem::take(&mut self.done)
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
    use super::*;

    #[test]
    fn a_claim_is_measured_from_the_first_ask_to_the_bind_that_was_found() {
        let (start, claim) = (Instant::now(), ClaimKey::new("ns", "c"));
        let second = |second| start + Duration::from_secs(second);
        let mut latency = Latency::default();
        latency.claim_failed(&claim);
        latency.asks(&claim, "p", start);
        latency.asks(&claim, "other", second(1));
        latency.claim_failed(&claim);
        let mut binds = |mode, since| latency.binds(&claim, mode, QUEUE, (since, second(4)));
        binds(Some(BindMode::Dynamic), start);
        latency.stops(&claim);
        let mut binds = |mode, since| latency.binds(&claim, mode, QUEUE, (since, second(4)));
        binds(None, second(3));
        binds(Some(BindMode::Static), second(4));
        binds(Some(BindMode::Dynamic), second(4));
        latency.bound(&claim, (None, 1), second(5));
        assert_eq!(
            latency.take(),
            [
                Sample::Failed(MeasuredOperation::Provision, "p".to_owned()),
                Sample::Bound(BindMode::Static, Duration::from_secs(2), None),
            ]
        );
        // The claim named the volume by itself so far; now the binder finds it one.
        latency.found(&claim);
        latency.bound(&claim, (None, 1), second(6));
        latency.bound(&claim, (None, 1), second(7));
        assert_eq!(
            latency.take(),
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
        let (start, claim, volume) = (Instant::now(), ClaimKey::new("ns", "c"), VolumeName::from("v"));
        let mut latency = Latency::default();
        latency.asks(&claim, "p", start);
        latency.binds(&claim, Some(BindMode::Static), QUEUE, (start, start));
        latency.found(&claim);
        latency.forget_claim(&claim);
        latency.bound(&claim, (None, 1), start);
        latency.volume_gone(&volume, start);
        latency.volume_failed(&volume);
        assert_eq!(latency.take(), []);
        latency.deletes(&volume, "p", start);
        latency.deletes(&volume, "q", start + Duration::from_secs(1));
        latency.volume_failed(&volume);
        latency.volume_gone(&volume, start + Duration::from_secs(2));
        assert_eq!(
            latency.take(),
            [
                Sample::Failed(MeasuredOperation::Delete, "p".to_owned()),
                Sample::Took(MeasuredOperation::Delete, "p".to_owned(), Duration::from_secs(2)),
            ]
        );
    }
}
