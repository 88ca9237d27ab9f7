//! The fields of pods, nodes, claims and volumes that several stand-ins read, and the paths of their writes.

use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod, Taint};
use kube::{Resource, ResourceExt};

use super::mirror::Key;

/// The node a pod is on.
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|node| !node.is_empty())
}

/// The claims a pod uses.
pub fn claims_of(pod: &Pod) -> Vec<Key> {
    let namespace = pod.namespace().unwrap_or_default();
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    volumes
        .into_iter()
        .flatten()
        .filter_map(|volume| volume.persistent_volume_claim.as_ref())
        .map(|source| (namespace.clone(), source.claim_name.clone()))
        .collect()
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
#[must_use]
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
