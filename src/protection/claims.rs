//! `persistentvolumeclaim-protection-controller`: a claim keeps its finalizer while a pod on a node names it.
//!
//! In: claims and pods as they change. Out: which pods use which claims; and before a finalizer goes, a live list of the
//! namespace's pods, shared by all claims of the namespace that wait for it (KCM #109282). A pod that the tables show
//! costs no request. The index of the claims of all pods is kept only by a process that runs this controller.

use std::collections::BTreeSet;

use apiserver::{
    call::{CallError, Caller},
    ids::{ClaimKey, PodKey},
    kinds::{Narrow, ObjectRef, PersistentVolumeClaim, Pod, PodVolumeSource},
    tables::Objects,
};

use super::listed::{ListedPod, is_owned, uses};
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
        let is_used = pods.any(|pod| {
            pod.spec.volumes.iter().filter(|volume| pod.claim_of(volume).as_ref() == Some(&key)).any(
                |volume| {
                    match volume.source {
                        PodVolumeSource::PersistentVolumeClaim(_) => true,
                        // Of one that is being deleted, and of which no container runs, a list tells whether its
                        // containers are gone for good.
                        PodVolumeSource::Ephemeral => {
                            let may_be_over = pod.metadata.is_terminating() && !pod.status.is_running;
                            !may_be_over && is_owned(claim, &pod.metadata.uid)
                        }
                        PodVolumeSource::InTree(_) => false,
                    }
                },
            )
        });
        is_used.then_some("a pod uses it")
    }

    fn list_of(&self, key: &ClaimKey) -> Option<NamespacePods> {
        Some(NamespacePods(key.namespace().to_owned()))
    }
}

/// The pods of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamespacePods(String);

impl UserList<ClaimKey> for NamespacePods {
    type Shown = Vec<ListedPod>;

    async fn send(&self, caller: &Caller) -> Result<Vec<ListedPod>, CallError> {
        let mut pods = Vec::new();
        let path = format!("/api/v1/namespaces/{}/pods", self.0);
        pages::list(caller, &path, "PodList", |pod| pods.push(pod)).await?;
        Ok(pods)
    }

    fn user(pods: &Vec<ListedPod>, claim: &PersistentVolumeClaim) -> Option<&'static str> {
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
