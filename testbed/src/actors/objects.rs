//! The fields of pods, nodes, claims and volumes that several stand-ins read, and the paths of their writes.

use k8s_openapi::{
    api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, Taint},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{Resource, ResourceExt};

use super::mirror::Key;

/// The node a pod is on.
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|node| !node.is_empty())
}

/// The claims a pod uses, those of its generic ephemeral volumes among them.
pub fn claims_of(pod: &Pod) -> Vec<Key> {
    let namespace = pod.namespace().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let names = volumes.filter_map(|volume| match &volume.persistent_volume_claim {
        Some(source) => Some(source.claim_name.clone()),
        None => volume.ephemeral.as_ref().map(|_| format!("{}-{}", pod.name_any(), volume.name)),
    });
    names.map(|name| (namespace.clone(), name)).collect()
}

/// Whether a pod may use a claim: that of a generic ephemeral volume has to be its own.
pub fn is_for(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let name = claim.name_any();
    let mut ephemeral = volumes.filter(|volume| volume.ephemeral.is_some());
    ephemeral.all(|volume| format!("{}-{}", pod.name_any(), volume.name) != name)
        || controller_of(claim).is_some_and(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref())
}

/// The owner that controls an object.
pub fn controller_of<K: Resource>(object: &K) -> Option<&OwnerReference> {
    object.owner_references().iter().find(|owner| owner.controller == Some(true))
}

/// The claim a volume names.
pub fn claim_of(volume: &PersistentVolume) -> Option<Key> {
    let reference = volume.spec.as_ref()?.claim_ref.as_ref()?;
    Some((reference.namespace.clone()?, reference.name.clone()?))
}

/// Whether an object's deletion was asked for.
pub fn is_terminating<K: Resource>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

/// Whether a node's kubelet says that it is well.
pub fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The taints of a node.
pub fn taints(node: &Node) -> impl Iterator<Item = &Taint> {
    node.spec.iter().flat_map(|spec| spec.taints.iter().flatten())
}

/// Whether a pod has ended for good.
pub fn is_finished(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Path of a pod.
pub fn pod_path((namespace, name): &Key) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

/// Path of a claim.
pub fn claim_path((namespace, name): &Key) -> String {
    format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}")
}

/// Path of a volume.
pub fn volume_path(name: &str) -> String {
    format!("/api/v1/persistentvolumes/{name}")
}
