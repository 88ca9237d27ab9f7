//! `persistentvolumeclaim-protection-controller`: a claim keeps its finalizer while a pod on a node names it.
//!
//! In: claims and pods as they change. Out: which pods use which claims; and before a finalizer goes, a live list of the
//! namespace's pods, shared by all claims of the namespace that wait for it (KCM #109282). A pod that the tables show
//! costs no request. The index of the claims of all pods is kept only by a process that runs this controller.

use std::collections::BTreeSet;

use apiserver::{
    call::{CallError, Caller},
    ids::{ClaimKey, PodKey},
    kinds::{InTreeSource, Narrow, ObjectRef, PersistentVolumeClaim, Pod, PodVolume, PodVolumeSource},
    tables::Objects,
};

use crate::controller::{
    Identity,
    claim_pods::ClaimPods,
    finalizer::{Protected, UserList, Users, pages, protection::Protection},
};

/// KCM: pkg/volume/util/finalizer.go, PVCProtectionFinalizer.
pub const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";

/// The controller.
pub type ClaimProtection = Protection<ClaimKey>;

impl Protected for ClaimKey {
    type Object = PersistentVolumeClaim;
    type Users = ClaimUsers;

    const FINALIZER: &str = CLAIM_FINALIZER;
    // KCM: cmd/kube-controller-manager/names/controller_names.go.
    const IDENTITY: Identity = Identity {
        name: "persistentvolumeclaim-protection-controller",
        component: "persistentvolumeclaim-protection-controller",
        queues: &["pvcprotection"],
        role: None,
    };
    const KIND: &str = "protected_claim";
    const FIELD: &str = "claim";

    fn of(object: &ObjectRef) -> Option<Self> {
        if let ObjectRef::Claim(key) = object { Some(key.clone()) } else { None }
    }
}

/// The pods on nodes, by the claims that they name.
#[derive(Debug, Default)]
pub struct ClaimUsers(ClaimPods);

impl ClaimUsers {
    /// Takes a pod as it is now. Returns the claims that it named before, or names now.
    fn pod_changed(&mut self, key: &PodKey, pod: Option<&Pod>) -> BTreeSet<ClaimKey> {
        let [before, now] = self.0.update(key, pod.filter(|pod| !pod.spec.node_name.is_empty()));
        before.into_iter().chain(now).collect()
    }
}

impl Users<ClaimKey> for ClaimUsers {
    type List = NamespacePods;

    fn load(&mut self, objects: &Objects) {
        for (key, pod) in objects.pods.snapshot() {
            self.pod_changed(&key, Some(&pod));
        }
    }

    fn changed(&mut self, object: &ObjectRef, objects: &Objects) -> BTreeSet<ClaimKey> {
        let ObjectRef::Pod(key) = object else { return BTreeSet::new() };
        self.pod_changed(key, objects.pods.get(key).as_deref())
    }

    fn user(&self, claim: &PersistentVolumeClaim, objects: &Objects) -> Option<&'static str> {
        let key = claim.key();
        let mut pods = self.0.of(&key).filter_map(|pod| objects.pods.get(pod));
        pods.any(|pod| uses(&pod, claim)).then_some("a pod uses it")
    }

    fn list_of(&self, key: &ClaimKey) -> Option<NamespacePods> {
        Some(NamespacePods(key.namespace().to_owned()))
    }
}

/// Whether a pod uses the claim: it is on a node and names it, in any phase; or the claim is its own, and its containers
/// are not gone for good. A name that cannot be read may be the claim's (S42).
// KCM: pkg/controller/volume/pvcprotection/pvc_protection_controller.go, podUsesPVC and podIsShutDown.
fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let meta = &pod.metadata;
    let is_shut_down = meta.is_terminating() && meta.deletion_grace_period_seconds.as_deref() == Some(&0);
    let made_claim =
        claim.metadata.controller().is_some_and(|owner| *owner.kind == *Pod::KIND && owner.uid == meta.uid);
    let names_it = |volume: &PodVolume| pod.claim_of(volume).is_some_and(|named| named == claim.key());
    let mut volumes = pod.spec.volumes.iter();
    !pod.spec.node_name.is_empty()
        && volumes.any(|volume| match &volume.source {
            PodVolumeSource::PersistentVolumeClaim(_) => names_it(volume),
            PodVolumeSource::Ephemeral => made_claim && !is_shut_down && names_it(volume),
            PodVolumeSource::InTree(source) => {
                matches!(&**source, InTreeSource::Malformed(what) if what.key == "persistentVolumeClaim")
            }
        })
}

/// The pods of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamespacePods(String);

impl UserList<ClaimKey> for NamespacePods {
    type Shown = Vec<Pod>;

    async fn send(&self, caller: &Caller) -> Result<Vec<Pod>, CallError> {
        let mut pods = Vec::new();
        let path = format!("/api/v1/namespaces/{}/pods", self.0);
        pages::list(caller, &path, "PodList", |pod| pods.push(pod)).await?;
        Ok(pods)
    }

    fn user(pods: &Vec<Pod>, claim: &PersistentVolumeClaim) -> Option<&'static str> {
        pods.iter().any(|pod| uses(pod, claim)).then_some("a pod uses it, as a live list shows")
    }

    fn key(&self) -> String {
        self.0.clone()
    }

    fn log(&self, error: &CallError, claims: usize) {
        let namespace = &self.0;
        tracing::warn!(namespace, reason = "RetryBackoff", %error, claims, "pods could not be listed, claims are kept");
    }
}

#[cfg(test)]
#[path = "claims_tests.rs"]
mod tests;
