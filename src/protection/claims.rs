//! `persistentvolumeclaim-protection-controller`: a claim keeps its finalizer while a pod on a node names it.
//!
//! In: claims and pods as they change. Out: which pods use which claims; and before a finalizer goes, a live list of the
//! namespace's pods, shared by all claims of the namespace that wait for it (KCM #109282). A pod that the tables show
//! costs no request. The index of the claims of all pods is kept only by a process that runs this controller.

use std::collections::BTreeSet;

use apiserver::{
    call::{CallError, Caller},
    ids::{ClaimKey, PodKey, Uid},
    kinds::{InTreeSource, Narrow, ObjectRef, PersistentVolumeClaim, Pod, PodVolumeSource},
    tables::Objects,
};
use derive_more::Display;

use crate::controller::{
    finalizer::{Protected, Users, pages, protection::Protection},
    uses::ClaimPods,
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
    const NAME: &str = "persistentvolumeclaim-protection-controller";
    const QUEUES: &[&str] = &["pvcprotection"];
    const KIND: &str = "protected_claim";
    const FIELD: &str = "claim";
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
    /// What the pods use: there may be as many claims that wait as there are pods.
    type Shown = BTreeSet<Use>;

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
        let (names, mut pods) =
            (Use::of_claim(claim), self.0.of(&key).filter_map(|pod| objects.pods.get(pod)));
        pods.any(|pod| uses(&pod).any(|used| names.contains(&used))).then_some("a pod uses it")
    }

    fn list_of(&self, key: &ClaimKey) -> Option<NamespacePods> {
        Some(NamespacePods(key.namespace().to_owned()))
    }

    async fn send(
        NamespacePods(namespace): &NamespacePods,
        caller: &Caller,
    ) -> Result<BTreeSet<Use>, CallError> {
        let mut used = BTreeSet::new();
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        pages::list(caller, &path, "PodList", |pod: Pod| used.extend(uses(&pod))).await?;
        Ok(used)
    }

    fn shown_user(used: &BTreeSet<Use>, claim: &PersistentVolumeClaim) -> Option<&'static str> {
        let is_used = Use::of_claim(claim).iter().any(|way| used.contains(way));
        is_used.then_some("a pod uses it, as a live list shows")
    }
}

/// What a pod uses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// A claim that it names.
    Named(ClaimKey),
    /// A claim of that name, if it was made for the pod of this UID.
    Own(ClaimKey, Uid),
    /// A claim whose name cannot be read: it may be any (S42).
    Unreadable,
}

impl Use {
    /// All ways of using a claim.
    fn of_claim(claim: &PersistentVolumeClaim) -> Vec<Self> {
        let key = claim.key();
        let pod = claim.metadata.controller().filter(|owner| *owner.kind == *Pod::KIND);
        let own = pod.map(|pod| Self::Own(key.clone(), pod.uid.clone()));
        [Self::Named(key), Self::Unreadable].into_iter().chain(own).collect()
    }
}

/// What a pod uses: the claims that it names, if it is on a node, in any phase; and its own, if its containers are not gone
/// for good.
// KCM: pkg/controller/volume/pvcprotection/pvc_protection_controller.go, podUsesPVC and podIsShutDown.
fn uses(pod: &Pod) -> impl Iterator<Item = Use> {
    let meta = &pod.metadata;
    let is_shut_down = meta.is_terminating() && meta.deletion_grace_period_seconds.as_deref() == Some(&0);
    let volumes = pod.spec.volumes.iter().filter(|_| !pod.spec.node_name.is_empty());
    volumes.filter_map(move |volume| match &volume.source {
        PodVolumeSource::PersistentVolumeClaim(_) => pod.claim_of(volume).map(Use::Named),
        PodVolumeSource::Ephemeral if is_shut_down => None,
        PodVolumeSource::Ephemeral => Some(Use::Own(pod.claim_of(volume)?, meta.uid.clone())),
        PodVolumeSource::InTree(source) => {
            let is_claim =
                matches!(&**source, InTreeSource::Malformed(what) if what.key == "persistentVolumeClaim");
            is_claim.then_some(Use::Unreadable)
        }
    })
}

/// The pods of a namespace.
#[derive(Clone, Debug, Display, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamespacePods(String);

#[cfg(test)]
#[path = "claims_tests.rs"]
mod tests;
