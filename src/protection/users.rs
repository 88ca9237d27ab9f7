//! Which pods use a claim: the index over the tables, and the rule for a pod as a live list shows it.
//!
//! In: pods that changed; a listed pod and a claim. Out: the claims that a pod names, the pods that name a claim, and
//! whether a listed pod keeps its claim.

use std::collections::BTreeSet;

use super::calls::ListedPod;
use crate::{
    kube_api::{
        ids::{ClaimKey, PodKey, Uid},
        kinds::{Narrow, PersistentVolumeClaim, Pod},
    },
    state::Relation,
};

/// Which pods that are on a node name which claims.
#[derive(Debug, Default)]
pub(super) struct Users {
    pub(super) pods: Relation<ClaimKey, PodKey>,
    claims: Relation<PodKey, ClaimKey>,
}

impl Users {
    /// Takes a pod as it is now. Returns the claims that it named before, or names now.
    pub(super) fn update(&mut self, key: &PodKey, pod: Option<&Pod>) -> BTreeSet<ClaimKey> {
        let before: BTreeSet<ClaimKey> = self.claims.of(key.clone()).cloned().collect();
        let on_node = pod.filter(|pod| !pod.spec.node_name.as_str().is_empty());
        let volumes = on_node.into_iter().flat_map(|pod| pod.spec.volumes.iter().map(move |it| (pod, it)));
        let now: BTreeSet<ClaimKey> = volumes.filter_map(|(pod, volume)| pod.claim_of(volume)).collect();
        for gone in before.difference(&now) {
            self.claims.remove(key, gone);
            self.pods.remove(gone, key);
        }
        for new in now.difference(&before) {
            self.claims.insert(key.clone(), new.clone());
            self.pods.insert(new.clone(), key.clone());
        }
        before.into_iter().chain(now).collect()
    }
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
