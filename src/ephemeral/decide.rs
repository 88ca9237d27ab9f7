//! What a pod's generic ephemeral volumes need, and the claim that is made for one. Pure.
//!
//! In: a pod, and what is known of the claims that its volumes are named after. Out: the next step.

use apiserver::{
    call::{Request, Verb},
    ids::{ClaimKey, PodKey, Uid},
    kinds::{PersistentVolumeClaim, Pod, PodVolume, PodVolumeSource},
    tables::Objects,
    text::Text,
};
use serde_json::{Value, json};

/// What is known of the claim of a volume.
#[derive(Clone, Debug, PartialEq)]
pub enum KnownClaim {
    /// There is none.
    Missing,
    /// There is one that this controls.
    OwnedBy(Option<Uid>),
    /// There is one that cannot be read.
    Unreadable,
}

/// What the tables show of a claim.
pub fn known(objects: &Objects, claim: &ClaimKey) -> KnownClaim {
    if objects.unreadable::<PersistentVolumeClaim>(claim).is_some() {
        return KnownClaim::Unreadable;
    }
    match objects.claims.get(claim) {
        None => KnownClaim::Missing,
        Some(claim) => KnownClaim::OwnedBy(claim.metadata.controller().map(|owner| owner.uid.clone())),
    }
}

/// The next step for a pod, with the volume and the claim that it is about.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimStep {
    /// The claims of all volumes exist.
    Nothing,
    /// The claim is to be made.
    Create(Text, ClaimKey),
    /// The claim is not the pod's.
    NotOwned(Text, ClaimKey),
    /// The claim cannot be read (S42).
    Unreadable(ClaimKey),
}

/// The next step: what can be made comes before what is in the way of another volume.
pub fn next_step(pod: &Pod, known: impl Fn(&ClaimKey) -> KnownClaim) -> ClaimStep {
    let steps = pod.spec.volumes.iter().map(|volume| step_of(pod, volume, &known));
    let rank = |step: &ClaimStep| (*step == ClaimStep::Nothing, !matches!(step, ClaimStep::Create(..)));
    steps.min_by_key(rank).unwrap_or(ClaimStep::Nothing)
}

/// The step for one volume.
// KCM: pkg/controller/volume/ephemeral/controller.go, handleVolume, and component-helpers, VolumeIsForPod.
pub fn step_of(pod: &Pod, volume: &PodVolume, known: impl Fn(&ClaimKey) -> KnownClaim) -> ClaimStep {
    let is_made = volume.source == PodVolumeSource::Ephemeral;
    let Some(claim) = pod.claim_of(volume).filter(|_| is_made) else { return ClaimStep::Nothing };
    match known(&claim) {
        KnownClaim::Missing => ClaimStep::Create(volume.name.clone(), claim),
        KnownClaim::OwnedBy(Some(uid)) if uid == pod.metadata.uid => ClaimStep::Nothing,
        KnownClaim::OwnedBy(_) => ClaimStep::NotOwned(volume.name.clone(), claim),
        KnownClaim::Unreadable => ClaimStep::Unreadable(claim),
    }
}

/// The request that makes the claim of a volume: of the template labels, annotations and spec, and the pod of that UID as
/// the owner. If the pod is gone by then, the garbage collector deletes the claim.
pub fn claim(pod: &PodKey, uid: &Uid, name: &str, template: &Value) -> Request {
    let of =
        |pointer| template.pointer(pointer).filter(|part| part.is_object()).cloned().unwrap_or(json!({}));
    Request {
        verb: Verb::Create,
        path: format!("/api/v1/namespaces/{}/persistentvolumeclaims", pod.namespace()),
        body: Some(json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": name,
                "labels": of("/metadata/labels"),
                "annotations": of("/metadata/annotations"),
                "ownerReferences": [{
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": pod.name(),
                    "uid": uid,
                    "controller": true,
                    "blockOwnerDeletion": true,
                }],
            },
            "spec": of("/spec"),
        })),
    }
}
