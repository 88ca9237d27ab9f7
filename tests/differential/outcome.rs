//! What a script has led to: the objects of its part of the cluster, without what is different each
//! time (UIDs, revisions, times, managed fields, the order of lists that are sets).

use std::collections::BTreeMap;

use k8s_openapi::api::{
    core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{Api, Resource, ResourceExt, api::ListParams};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use test_support::{attributes_class::VolumeAttributesClass, cluster::Cluster};

use crate::activity::{Activity, prefix_of};

/// Objects by kind and name, of one script.
pub type Outcome = BTreeMap<String, Value>;

/// A step in words, and what it has led to.
pub type Noted = (String, Outcome);

/// Whose events are compared, each once.
const TELLING: [&str; 2] = ["volume_expand", "ephemeral_volume"];

/// What a controller may write in a claim, or takes from a template.
const OF_CLAIMS: [&str; 6] =
    ["volumeName", "storageClassName", "accessModes", "resources", "volumeMode", "volumeAttributesClassName"];

/// What there is now in a script's part of the cluster.
pub async fn outcome(cluster: &Cluster, activity: &Activity, prefix: &str) -> Outcome {
    let mut all = Outcome::new();
    let mut add = |belongs_to: String, name: String, object: Value| {
        if prefix_of(&belongs_to) != prefix {
            return;
        }
        let text = activity.without_uids(&object.to_string());
        let object = serde_json::from_str(&text).expect("a token needs no escape in JSON");
        all.insert(activity.without_uids(&name), object);
    };
    for volume in list(&cluster.all::<PersistentVolume>()).await {
        let name = volume.name_any();
        let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.name.clone());
        let object = masked(&volume, &["persistentVolumeReclaimPolicy", "claimRef", "storageClassName"]);
        add(claim.unwrap_or_else(|| name.clone()), format!("volume {name}"), object);
    }
    for claim in list(&cluster.namespaced::<PersistentVolumeClaim>()).await {
        let name = claim.name_any();
        add(name.clone(), format!("claim {name}"), masked(&claim, &OF_CLAIMS));
    }
    for class in list(&cluster.all::<VolumeAttributesClass>()).await {
        let name = class.name_any();
        add(name.clone(), format!("attributes class {name}"), masked(&class, &[]));
    }
    for event in list(&cluster.namespaced::<Event>()).await {
        let component = event.source.and_then(|source| source.component).unwrap_or_default();
        if TELLING.contains(&component.as_str()) {
            let name = event.involved_object.name.unwrap_or_default();
            let words = [event.reason, event.message].map(Option::unwrap_or_default).join(": ");
            add(name.clone(), format!("event of {name}: {words}"), json!([event.type_, component]));
        }
    }
    for attachment in list(&cluster.all::<VolumeAttachment>()).await {
        let node = attachment.spec.node_name.clone();
        let volume = attachment.spec.source.persistent_volume_name.clone().unwrap_or_default();
        let object = masked(&attachment, &["attacher", "nodeName", "source"]);
        add(node.clone(), format!("attachment of {volume} to {node}"), object);
    }
    for node in list(&cluster.all::<Node>()).await {
        let name = node.name_any();
        let status = node.status.unwrap_or_default();
        let mut attached: Vec<_> =
            status.volumes_attached.iter().flatten().map(|volume| &volume.name).collect();
        let mut in_use: Vec<_> = status.volumes_in_use.iter().flatten().collect();
        attached.sort();
        in_use.sort();
        add(name.clone(), format!("node {name}"), json!({ "attached": attached, "inUse": in_use }));
    }
    for pod in list(&cluster.namespaced::<Pod>()).await {
        let name = pod.name_any();
        let phase = pod.status.and_then(|status| status.phase);
        let is_deleted = pod.metadata.deletion_timestamp.is_some();
        add(name.clone(), format!("pod {name}"), json!({ "phase": phase, "isDeleted": is_deleted }));
    }
    all
}

/// How two outcomes differ, one line for each object.
pub fn differences(kcm: &Outcome, mooring: &Outcome) -> Vec<String> {
    let names: std::collections::BTreeSet<_> = kcm.keys().chain(mooring.keys()).collect();
    let text = |outcome: &Outcome, name: &str| outcome.get(name).map_or("none".to_owned(), Value::to_string);
    let different = names.into_iter().filter(|name| kcm.get(*name) != mooring.get(*name));
    different
        .map(|name| format!("{name}\n    KCM      {}\n    mooring  {}", text(kcm, name), text(mooring, name)))
        .collect()
}

async fn list<K>(api: &Api<K>) -> Vec<K>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    api.list(&ListParams::default()).await.expect("list the outcome").items
}

/// An object's metadata and status, and some fields of its spec.
fn masked<K: Resource<DynamicType = ()> + Serialize>(object: &K, spec: &[&str]) -> Value {
    let whole = serde_json::to_value(object).expect("write an object");
    let mut finalizers = object.finalizers().to_vec();
    finalizers.sort();
    let mut kept: BTreeMap<&str, Value> =
        spec.iter().map(|field| (*field, whole["spec"][*field].clone())).collect();
    if let Some(reference) = kept.get_mut("claimRef").and_then(Value::as_object_mut) {
        reference.remove("resourceVersion");
    }
    let mut status = whole["status"].clone();
    if let Some(status) = status.as_object_mut() {
        status.remove("lastPhaseTransitionTime");
        for error in ["attachError", "detachError"] {
            status.get_mut(error).and_then(Value::as_object_mut).map(|error| error.remove("time"));
        }
    }
    json!({
        "annotations": object.annotations(), "labels": object.labels(), "finalizers": finalizers,
        "owners": object.owner_references(),
        "isDeleted": object.meta().deletion_timestamp.is_some(), "spec": kept, "status": status,
    })
}
