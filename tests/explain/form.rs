//! Short forms of objects, as the cases have them; `tests/cases/explain/README.md` explains the keys.

use std::collections::BTreeMap;

use apiserver::{
    ids::{DriverName, NodeName},
    kinds::{
        CsiDriver, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass, VolumeAttachment,
        VolumeAttributesClass,
    },
};
use k8s_openapi::jiff::Timestamp;
use mooring::{
    attach_detach::state::desired::volume_name::VolumeId,
    explain::{
        report::Verdict,
        snapshot::{Snapshot, Unseen},
    },
};
use serde::Deserialize;
use serde_json::{Value, json};

/// A cluster as it was read, and the questions about it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub title: String,
    pub now: Timestamp,
    pub ask: Vec<String>,
    #[serde(default)]
    pub reasons: Vec<String>,
    /// What is true, by question: by hand alone. The story on the real server does not read it.
    #[allow(dead_code)]
    #[serde(default)]
    pub truth: BTreeMap<String, Truth>,
    #[serde(default)]
    unread: Vec<String>,
    #[serde(default)]
    unseen: Vec<UnseenForm>,
    #[serde(default)]
    nodes: BTreeMap<String, NodeForm>,
    #[serde(default)]
    volumes: BTreeMap<String, VolumeForm>,
    #[serde(default)]
    claims: BTreeMap<String, ClaimForm>,
    #[serde(default)]
    pods: BTreeMap<String, PodForm>,
    #[serde(default)]
    attachments: Vec<AttachmentForm>,
    #[serde(default)]
    classes: BTreeMap<String, ClassForm>,
    #[serde(default)]
    drivers: Vec<String>,
    #[serde(default)]
    leases: BTreeMap<String, LeaseForm>,
    #[serde(default)]
    no_csi_node: Vec<String>,
    #[serde(default)]
    objects: Vec<Value>,
}

/// What an answer has to say, whatever its words are otherwise.
#[allow(dead_code)]
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Truth {
    pub verdict: Verdict,
    #[serde(default)]
    pub says: Vec<String>,
    #[serde(default)]
    pub never: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UnseenForm {
    what: String,
    why: String,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct NodeForm {
    ready: bool,
    since: Option<Timestamp>,
    managed: bool,
    attached: Vec<String>,
    in_use: Vec<String>,
    taints: Vec<String>,
    patch: Value,
}

impl Default for NodeForm {
    fn default() -> Self {
        let (attached, in_use, taints) = Default::default();
        Self { ready: true, since: None, managed: true, attached, in_use, taints, patch: Value::Null }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct VolumeForm {
    size: Option<String>,
    modes: Option<Vec<String>>,
    class: Option<String>,
    claim: Option<String>,
    claim_uid: Option<String>,
    phase: Option<String>,
    labels: BTreeMap<String, String>,
    driver: Option<String>,
    handle: Option<String>,
    patch: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ClaimForm {
    size: Option<String>,
    modes: Option<Vec<String>>,
    class: Option<String>,
    volume: Option<String>,
    phase: Option<String>,
    patch: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PodForm {
    on: Option<String>,
    uses: Vec<String>,
    created: Option<Timestamp>,
    patch: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AttachmentForm {
    volume: String,
    node: String,
    #[serde(default)]
    attached: bool,
    created: Option<Timestamp>,
    deleted: Option<Timestamp>,
    #[serde(default)]
    patch: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassForm {
    provisioner: String,
    #[serde(default = "immediate")]
    binding: String,
    #[serde(default)]
    default: bool,
}

fn immediate() -> String {
    "Immediate".to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LeaseForm {
    holder: String,
    renewed: Timestamp,
}

/// The driver of all volumes that do not say otherwise.
const DRIVER: &str = "disk.example.com";

/// Adds what a patch says, as a JSON merge patch does.
fn merge(target: &mut Value, patch: &Value) {
    match (target, patch) {
        (_, Value::Null) => {}
        (Value::Object(target), Value::Object(patch)) => {
            for (key, value) in patch {
                if value.is_null() {
                    target.remove(key);
                } else {
                    merge(target.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (target, patch) => *target = patch.clone(),
    }
}

fn handle(volume: &str) -> VolumeId {
    VolumeId::csi(&DriverName::from(DRIVER), volume)
}

fn modes(modes: Option<&Vec<String>>) -> Vec<String> {
    let long = |mode: &String| match mode.as_str() {
        "RWO" => "ReadWriteOnce".to_owned(),
        "ROX" => "ReadOnlyMany".to_owned(),
        "RWX" => "ReadWriteMany".to_owned(),
        "RWOP" => "ReadWriteOncePod".to_owned(),
        other => other.to_owned(),
    };
    modes.map_or_else(|| vec!["ReadWriteOnce".to_owned()], |modes| modes.iter().map(long).collect())
}

impl Case {
    /// What a reader would have read.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::new(self.now);
        for object in self.everything() {
            snapshot.take(object).unwrap_or_else(|error| panic!("{}: {error}", self.title));
        }
        let is_read = |plural: &str| !self.unread.iter().any(|unread| unread == plural);
        macro_rules! listed {
            ($($kind:ty = $plural:literal),*) => {
                $(if is_read($plural) { snapshot.note_listed::<$kind>(); })*
            };
        }
        listed!(
            Node = "nodes",
            Pod = "pods",
            PersistentVolume = "persistentvolumes",
            PersistentVolumeClaim = "persistentvolumeclaims",
            VolumeAttachment = "volumeattachments",
            StorageClass = "storageclasses",
            CsiDriver = "csidrivers",
            VolumeAttributesClass = "volumeattributesclasses"
        );
        for node in &self.no_csi_node {
            snapshot.note_no_csi_node(&node.as_str().into());
        }
        if is_read("leases") {
            snapshot.note_read(mooring::explain::snapshot::LEASES);
        }
        for UnseenForm { what, why } in &self.unseen {
            let (what, why) = (what.clone(), why.clone());
            snapshot.unseen.push(Unseen { what, why, forbidden: true });
        }
        snapshot
    }

    /// All objects, in the order in which they can be created.
    pub fn everything(&self) -> Vec<Value> {
        let mut all = Vec::new();
        for (name, form) in &self.nodes {
            all.push(node(name, form));
        }
        for (name, form) in &self.volumes {
            all.push(volume(name, form));
        }
        for (name, form) in &self.claims {
            all.push(claim(name, form));
        }
        for (name, form) in &self.pods {
            all.push(pod(name, form));
        }
        all.extend(self.attachments.iter().map(attachment));
        for (name, form) in &self.classes {
            let default = form.default.to_string();
            all.push(json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
                "metadata": metadata(name, &json!({ "annotations": { "storageclass.kubernetes.io/is-default-class": default } })),
                "provisioner": form.provisioner, "volumeBindingMode": form.binding, "reclaimPolicy": "Delete",
            }));
        }
        for name in &self.drivers {
            all.push(json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": metadata(name, &Value::Null),
                "spec": { "attachRequired": true },
            }));
        }
        for (name, form) in &self.leases {
            all.push(json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata(name, &Value::Null),
                "spec": { "holderIdentity": form.holder, "renewTime": form.renewed, "leaseDurationSeconds": 15 },
            }));
        }
        all.extend(self.objects.iter().cloned());
        all
    }
}

fn metadata(name: &str, more: &Value) -> Value {
    let (namespace, name) = name.split_once('/').unwrap_or(("", name));
    let mut metadata = json!({ "name": name, "uid": format!("uid-{name}"), "resourceVersion": "7" });
    if !namespace.is_empty() {
        metadata["namespace"] = json!(namespace);
    }
    merge(&mut metadata, more);
    metadata
}

fn node(name: &str, form: &NodeForm) -> Value {
    let managed = if form.managed {
        json!({ "annotations": { "volumes.kubernetes.io/controller-managed-attach-detach": "true" } })
    } else {
        Value::Null
    };
    let attached = form.attached.iter().map(|volume| json!({ "name": handle(volume), "devicePath": "" }));
    let mut node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": metadata(name, &managed),
        "spec": { "taints": form.taints.iter().map(|key| json!({ "key": key })).collect::<Vec<_>>() },
        "status": {
            "conditions": [{
                "type": "Ready", "status": if form.ready { "True" } else { "Unknown" },
                "lastTransitionTime": form.since,
            }],
            "volumesAttached": attached.collect::<Vec<_>>(),
            "volumesInUse": form.in_use.iter().map(|volume| handle(volume)).collect::<Vec<_>>(),
        },
    });
    merge(&mut node, &form.patch);
    node
}

fn volume(name: &str, form: &VolumeForm) -> Value {
    let reference = form.claim.as_ref().map(|claim| {
        let (namespace, name) = claim.split_once('/').expect("namespace/name");
        let uid = form.claim_uid.clone().unwrap_or_else(|| format!("uid-{name}"));
        json!({ "namespace": namespace, "name": name, "uid": uid })
    });
    let phase = form
        .phase
        .clone()
        .unwrap_or_else(|| if reference.is_some() { "Bound".to_owned() } else { "Available".to_owned() });
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": metadata(name, &json!({ "labels": form.labels })),
        "spec": {
            "capacity": { "storage": form.size.as_deref().unwrap_or("20Gi") },
            "accessModes": modes(form.modes.as_ref()),
            "storageClassName": form.class.as_deref().unwrap_or("fast"),
            "persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem",
            "claimRef": reference,
            "csi": {
                "driver": form.driver.as_deref().unwrap_or(DRIVER),
                "volumeHandle": form.handle.as_deref().unwrap_or(name),
            },
        },
        "status": { "phase": phase },
    });
    merge(&mut volume, &form.patch);
    volume
}

fn claim(name: &str, form: &ClaimForm) -> Value {
    let phase = form
        .phase
        .clone()
        .unwrap_or_else(|| if form.volume.is_some() { "Bound".to_owned() } else { "Pending".to_owned() });
    let mut claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata(name, &Value::Null),
        "spec": {
            "accessModes": modes(form.modes.as_ref()),
            "storageClassName": form.class.as_deref().unwrap_or("fast"), "volumeMode": "Filesystem",
            "resources": { "requests": { "storage": form.size.as_deref().unwrap_or("20Gi") } },
            "volumeName": form.volume.as_deref().unwrap_or_default(),
        },
        "status": { "phase": phase },
    });
    // One that merely names a volume has nothing yet.
    if form.volume.is_some() && claim["status"]["phase"] != "Pending" {
        let bound = json!({
            "metadata": {
                "annotations": { "pv.kubernetes.io/bind-completed": "yes" },
                "finalizers": ["kubernetes.io/pvc-protection"],
            },
            "status": {
                "accessModes": modes(form.modes.as_ref()),
                "capacity": { "storage": form.size.as_deref().unwrap_or("20Gi") },
            },
        });
        merge(&mut claim, &bound);
    }
    merge(&mut claim, &form.patch);
    claim
}

fn pod(name: &str, form: &PodForm) -> Value {
    let volumes = form.uses.iter().map(
        |claim| json!({ "name": format!("vol-{claim}"), "persistentVolumeClaim": { "claimName": claim } }),
    );
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": metadata(name, &json!({ "creationTimestamp": form.created })),
        "spec": { "nodeName": form.on.as_deref().unwrap_or_default(), "volumes": volumes.collect::<Vec<_>>() },
        "status": { "phase": "Pending" },
    });
    merge(&mut pod, &form.patch);
    pod
}

fn attachment(form: &AttachmentForm) -> Value {
    let name = handle(&form.volume).attachment_name(&NodeName::from(form.node.as_str()));
    let more = json!({ "creationTimestamp": form.created, "deletionTimestamp": form.deleted });
    let mut attachment = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": metadata(name.as_str(), &more),
        "spec": {
            "attacher": DRIVER, "nodeName": form.node, "source": { "persistentVolumeName": form.volume },
        },
        "status": { "attached": form.attached },
    });
    merge(&mut attachment, &form.patch);
    attachment
}
