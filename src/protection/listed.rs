//! Pods as a live list shows them, and which of them use a claim.
//!
//! In: a listed pod and a claim. Out: whether the pod keeps the claim.

use apiserver::{
    ids::Uid,
    kinds::{Narrow, PersistentVolumeClaim, Pod},
};
use serde::Deserialize;

/// A pod as a live list shows it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ListedPod {
    metadata: ListedMeta,
    spec: ListedSpec,
}

/// Of its metadata.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListedMeta {
    name: String,
    uid: Uid,
    /// Set of one that is being deleted.
    deletion_timestamp: Option<String>,
    /// 0 of one whose containers are gone for good.
    deletion_grace_period_seconds: Option<i64>,
}

/// Of its spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListedSpec {
    /// Empty until it is scheduled.
    node_name: String,
    volumes: Vec<ListedVolume>,
}

/// Of a volume of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListedVolume {
    /// Name within the pod.
    name: String,
    /// A claim by name.
    persistent_volume_claim: Option<ListedClaim>,
    /// A claim of the pod's own.
    ephemeral: Option<serde::de::IgnoredAny>,
}

/// The claim of a volume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListedClaim {
    claim_name: String,
}

/// Whether a listed pod uses the claim: it is on a node and names it, in any phase; or the claim is its own, and
/// its containers are not gone for good.
// KCM: pkg/controller/volume/pvcprotection/pvc_protection_controller.go, podUsesPVC.
#[must_use]
pub(super) fn uses(pod: &ListedPod, claim: &PersistentVolumeClaim) -> bool {
    let meta = &pod.metadata;
    let is_shut_down = meta.deletion_timestamp.is_some() && meta.deletion_grace_period_seconds == Some(0);
    let is_on_node = !pod.spec.node_name.is_empty();
    is_on_node
        && pod.spec.volumes.iter().any(|volume| {
            let named = volume.persistent_volume_claim.as_ref();
            let own = || format!("{}-{}", meta.name, volume.name);
            named.is_some_and(|named| *named.claim_name == *claim.metadata.name)
                || (volume.ephemeral.is_some()
                    && !is_shut_down
                    && *own() == *claim.metadata.name
                    && is_owned(claim, &meta.uid))
        })
}

/// Whether the pod of that UID made the claim.
pub(super) fn is_owned(claim: &PersistentVolumeClaim, pod: &Uid) -> bool {
    claim.metadata.controller().is_some_and(|owner| owner.kind.as_str() == Pod::KIND && owner.uid == *pod)
}
