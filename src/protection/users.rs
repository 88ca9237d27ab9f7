//! Which pods use a claim: the rule for a pod as a live list shows it.
//!
//! In: a listed pod and a claim. Out: whether the pod keeps the claim.

use apiserver::{
    ids::Uid,
    kinds::{Narrow, PersistentVolumeClaim, Pod},
};

use super::calls::ListedPod;
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
