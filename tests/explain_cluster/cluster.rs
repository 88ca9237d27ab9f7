//! A cluster in short forms, made into what a reader would have read of it.
//!
//! In: `tests/cases/explain/*/*.yaml`; what each form stands for is said at its function. Out: a snapshot. Objects have
//! the UID `uid-<name>`, the revision 7 and are an hour old unless the case says otherwise.

use std::{collections::BTreeMap, time::Duration};

use apiserver::{
    ids::{AttachmentName, ClaimKey, DriverName, NodeName},
    kinds::{
        CsiDriver, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass,
        VolumeAttachment, VolumeAttributesClass,
    },
};
use k8s_openapi::jiff::Timestamp;
use mooring::{
    attach_detach::state::desired::volume_name::VolumeId,
    explain::snapshot::{
        CLAIMS_THERE, EVENTS, EVENTS_THERE, FENCE_BINDINGS, LEASES, PODS_THERE, Snapshot, Unseen,
    },
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// All but pods and claims is without a namespace; those are in `shop`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cluster {
    at: Option<Timestamp>,
    /// What was not read; everything else was.
    unseen: Vec<Hidden>,
    /// Whether pods, claims and events of the namespace were read all the same.
    reads_namespace: bool,
    nodes: BTreeMap<String, Value>,
    classes: BTreeMap<String, Value>,
    drivers: BTreeMap<String, Value>,
    volumes: BTreeMap<String, Value>,
    claims: BTreeMap<String, Value>,
    pods: BTreeMap<String, Value>,
    attachments: BTreeMap<String, Value>,
    leases: BTreeMap<String, Value>,
    /// Whole objects.
    objects: Vec<Value>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hidden {
    what: String,
    why: String,
}

impl Cluster {
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot_after(&[])
    }

    /// After these patches were carried out, each by path and body. A patch that names another UID or revision than
    /// the object has is a broken promise.
    pub fn snapshot_after(&self, patches: &[(&str, &Value)]) -> Snapshot {
        let mut snapshot = Snapshot::new(self.now());
        for mut object in self.everything() {
            let path = path(&object);
            for (_, body) in patches.iter().filter(|(of, _)| **of == path) {
                for field in ["uid", "resourceVersion"] {
                    let (named, is) = (&body["metadata"][field], &object["metadata"][field]);
                    assert!(named == is && named.is_string(), "{path}: {field} {named}, and it is {is}");
                }
                json_patch::merge(&mut object, body);
                object["metadata"]["resourceVersion"] = json!("8");
            }
            snapshot.take(object).unwrap();
        }
        let is_seen = |what: &str| !self.unseen.iter().any(|hidden| hidden.what.starts_with(what));
        macro_rules! listed {
            ($($plural:literal $kind:ty),*) => {
                $(if is_seen($plural) { snapshot.note_listed::<$kind>(); })*
            };
        }
        listed!(
            "nodes" Node, "pods" Pod, "persistentvolumes" PersistentVolume,
            "persistentvolumeclaims" PersistentVolumeClaim, "volumeattachments" VolumeAttachment,
            "storageclasses" StorageClass, "csidrivers" CsiDriver, "volumeattributesclasses" VolumeAttributesClass
        );
        for what in [LEASES, EVENTS].into_iter().filter(|what| is_seen(what)) {
            snapshot.note_read(what);
        }
        if self.objects.iter().any(|object| object["kind"] == "ValidatingAdmissionPolicyBinding") {
            snapshot.note_read(FENCE_BINDINGS);
        }
        for what in [PODS_THERE, CLAIMS_THERE, EVENTS_THERE].into_iter().filter(|_| self.reads_namespace) {
            snapshot.note_read(what);
        }
        let used = self.pods.values().flat_map(|pod| pod["uses"].as_array().into_iter().flatten());
        for claim in used
            .filter_map(Value::as_str)
            .filter(|claim| self.reads_namespace && !self.claims.contains_key(*claim))
        {
            snapshot.note_absent(ObjectRef::Claim(ClaimKey::new("shop", claim)));
        }
        for Hidden { what, why } in &self.unseen {
            snapshot.unseen.push(Unseen { what: what.clone(), why: why.clone(), forbidden: true });
        }
        snapshot
    }

    /// When it is looked at.
    pub fn now(&self) -> Timestamp {
        self.at.unwrap_or_else(|| "2026-11-23T12:00:00Z".parse().unwrap())
    }

    /// Whether all of it is read.
    // Only the story on the real server asks.
    #[allow(dead_code)]
    pub fn is_read(&self) -> bool {
        self.unseen.is_empty()
    }

    /// All objects, whole.
    pub fn everything(&self) -> Vec<Value> {
        let made = self.now().checked_sub(Duration::from_hours(1)).unwrap();
        let whole = |mut object: Value| {
            let name = object["metadata"]["name"].as_str().unwrap();
            let mut metadata = json!({
                "uid": format!("uid-{name}"), "resourceVersion": "7", "creationTimestamp": made,
            });
            json_patch::merge(&mut metadata, &object["metadata"]);
            object["metadata"] = metadata;
            object
        };
        self.all().into_iter().map(whole).collect()
    }

    fn all(&self) -> Vec<Value> {
        let mut all = self.objects.clone();
        all.extend(self.nodes.iter().map(|(name, form)| node(name, form)));
        all.extend(self.classes.iter().map(|(name, form)| class(name, form)));
        all.extend(self.drivers.iter().map(|(name, form)| driver(name, form)));
        all.extend(self.volumes.iter().map(|(name, form)| volume(name, form)));
        all.extend(self.claims.iter().map(|(name, form)| claim(name, form)));
        all.extend(self.pods.iter().map(|(name, form)| pod(name, form)));
        all.extend(self.attachments.iter().map(|(text, form)| attachment(text, form)));
        all.extend(self.leases.iter().map(|(name, form)| lease(name, form)));
        all
    }
}

fn path(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap();
    match object["kind"].as_str().unwrap() {
        "PersistentVolume" => format!("/api/v1/persistentvolumes/{name}"),
        "PersistentVolumeClaim" => format!("/api/v1/namespaces/shop/persistentvolumeclaims/{name}"),
        "VolumeAttachment" => format!("/apis/storage.k8s.io/v1/volumeattachments/{name}"),
        _ => String::new(),
    }
}

/// A node that is Ready and whose kubelet leaves attaching to the controller. `lists`, `uses`: volumes of driver `d`.
/// `silent`: since when it is not Ready.
fn node(name: &str, form: &Value) -> Value {
    let (words, patch) = split(form, ["lists", "uses", "silent"]);
    let [lists, uses, silent] = words;
    let id = |name: &Value| VolumeId::csi(&DriverName::from("d"), name.as_str().unwrap());
    let mut conditions = json!([{ "type": "Ready", "status": "True" }]);
    if let Some(since) = silent {
        conditions = json!([{ "type": "Ready", "status": "Unknown", "lastTransitionTime": since }]);
    }
    let lists: Vec<_> = lists.iter().flat_map(|it| it.as_array().unwrap()).map(id).collect();
    let uses: Vec<_> = uses.iter().flat_map(|it| it.as_array().unwrap()).map(id).collect();
    merged(
        json!({
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": { "volumes.kubernetes.io/controller-managed-attach-detach": "true" },
            },
            "status": {
                "conditions": conditions, "volumesInUse": uses,
                "volumesAttached": lists.iter().map(|it| json!({ "name": it, "devicePath": "" })).collect::<Vec<_>>(),
            },
        }),
        &patch,
    )
}

/// A class that is provisioned by `d` at once.
fn class(name: &str, form: &Value) -> Value {
    let new = json!({
        "kind": "StorageClass", "metadata": { "name": name }, "provisioner": "d",
        "volumeBindingMode": "Immediate",
    });
    merged(new, form)
}

/// A driver that attaches.
fn driver(name: &str, form: &Value) -> Value {
    let new =
        json!({ "kind": "CSIDriver", "metadata": { "name": name }, "spec": { "attachRequired": true } });
    merged(new, form)
}

/// 1Gi, for one node, kept, of class `fast` and driver `d`, with its name as handle. `for`: the claim it is bound to.
fn volume(name: &str, form: &Value) -> Value {
    let ([claim], patch) = split(form, ["for"]);
    let mut new = json!({
        "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "persistentVolumeReclaimPolicy": "Retain", "csi": { "driver": "d", "volumeHandle": name },
        },
        "status": { "phase": "Available" },
    });
    if let Some(claim) = claim {
        let uid = format!("uid-{}", claim.as_str().unwrap());
        new["spec"]["claimRef"] = json!({ "namespace": "shop", "name": claim, "uid": uid });
        new["status"]["phase"] = json!("Bound");
    }
    merged(new, &patch)
}

/// Wants 1Gi for one node of class `fast`, and is protected. `has`: the volume it is bound to.
fn claim(name: &str, form: &Value) -> Value {
    let ([volume], patch) = split(form, ["has"]);
    let mut new = json!({
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "namespace": "shop", "finalizers": ["kubernetes.io/pvc-protection"] },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": { "requests": { "storage": "1Gi" } },
        },
        "status": { "phase": "Pending" },
    });
    if let Some(volume) = volume {
        new["spec"]["volumeName"] = volume;
        new["metadata"]["annotations"] = json!({ "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes" });
        new["status"] = json!({
            "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" },
        });
    }
    merged(new, &patch)
}

/// Runs. `on`: the node it is bound to. `uses`: its claims.
fn pod(name: &str, form: &Value) -> Value {
    let ([node, uses], patch) = split(form, ["on", "uses"]);
    let (node, uses) = (node.unwrap_or_else(|| json!("")), uses.unwrap_or_else(|| json!([])));
    let source = |claim: &Value| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } });
    let volumes: Vec<Value> = uses.as_array().unwrap().iter().map(source).collect();
    merged(
        json!({
            "kind": "Pod", "metadata": { "name": name, "namespace": "shop" },
            "spec": { "nodeName": node, "volumes": volumes },
            "status": { "phase": "Running", "containerStatuses": [{ "state": { "running": {} } }] },
        }),
        &patch,
    )
}

/// The name that the kubelet computes, for driver `d`.
pub fn attachment_name(volume: &str, node: &str) -> AttachmentName {
    VolumeId::csi(&DriverName::from("d"), volume).attachment_name(&NodeName::from(node))
}

/// `<volume> on <node>`, of driver `d` and attached.
fn attachment(text: &str, form: &Value) -> Value {
    let (volume, node) = text.split_once(" on ").unwrap();
    let name = attachment_name(volume, node);
    let new = json!({
        "kind": "VolumeAttachment",
        "metadata": { "name": name, "finalizers": ["external-attacher/d"] },
        "spec": { "attacher": "d", "nodeName": node, "source": { "persistentVolumeName": volume } },
        "status": { "attached": true },
    });
    merged(new, form)
}

/// `holder` and `renewed`.
fn lease(name: &str, form: &Value) -> Value {
    let ([holder, renewed], patch) = split(form, ["holder", "renewed"]);
    let new = json!({
        "kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
        "metadata": { "name": name, "namespace": "kube-system" },
        "spec": { "holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15 },
    });
    merged(new, &patch)
}

/// The words of the short form, and the rest, which is merged into the object.
fn split<const N: usize>(form: &Value, words: [&str; N]) -> ([Option<Value>; N], Value) {
    let mut rest = form.as_object().cloned().unwrap_or_else(Map::new);
    let found = words.map(|word| rest.remove(word));
    (found, Value::Object(rest))
}

fn merged(mut object: Value, patch: &Value) -> Value {
    if !patch.is_null() {
        json_patch::merge(&mut object, patch);
    }
    object
}
