//! What a pod's generic ephemeral volumes need, and the claim that is made for one. Pure.
//!
//! In: a pod, and what is known of the claims that its volumes are named after. Out: the next step.

use apiserver::{
    call::{Request, Verb},
    ids::{ClaimKey, PodKey, Uid},
    kinds::{Pod, PodVolumeSource},
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
// KCM: pkg/controller/volume/ephemeral/controller.go, handleVolume, and component-helpers, VolumeIsForPod.
pub fn next_step(pod: &Pod, known: impl Fn(&ClaimKey) -> KnownClaim) -> ClaimStep {
    let mut next = ClaimStep::Nothing;
    for volume in pod.spec.volumes.iter().filter(|volume| volume.source == PodVolumeSource::Ephemeral) {
        let Some(claim) = pod.claim_of(volume) else { continue };
        let step = match known(&claim) {
            KnownClaim::Missing => return ClaimStep::Create(volume.name.clone(), claim),
            KnownClaim::OwnedBy(Some(uid)) if uid == pod.metadata.uid => continue,
            KnownClaim::OwnedBy(_) => ClaimStep::NotOwned(volume.name.clone(), claim),
            KnownClaim::Unreadable => ClaimStep::Unreadable(claim),
        };
        if next == ClaimStep::Nothing {
            next = step;
        }
    }
    next
}

/// The request that makes the claim of a volume: of the template labels, annotations and spec, and the pod of that UID as
/// the owner. If the pod is gone by then, the garbage collector deletes the claim.
#[must_use]
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
