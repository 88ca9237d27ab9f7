//! Tables of a small cluster, and of a large one.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    attach_detach::desired::volume_name::VolumeId,
    binder::tell::diagnostics::Diagnostics,
    explain::{assumptions::Assumptions, online::Knowledge},
    kube_api::{
        ids::DriverName,
        kinds::{
            CsiDriver, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass, VolumeAttachment,
        },
    },
    state::{Objects, Stored},
    telemetry::history::History,
};

/// The tables.
pub struct World {
    pub objects: Arc<Objects>,
}

pub fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

fn meta(namespace: &str, name: &str, revision: u64) -> Value {
    json!({
        "name": name, "namespace": namespace, "uid": format!("uid-of-{name}"),
        "resourceVersion": revision.to_string(), "creationTimestamp": "1970-01-02T00:00:00Z",
    })
}

pub fn made<T: Stored>(object: Value) -> T {
    let mut object: T = serde_json::from_value(object).unwrap();
    object.trim();
    object
}

pub fn node(name: &str, volumes: &[VolumeId]) -> Node {
    let mut metadata = meta("", name, 1);
    metadata["annotations"] = json!({ "volumes.kubernetes.io/controller-managed-attach-detach": "true" });
    let listed: Vec<Value> = volumes.iter().map(|it| json!({ "name": it, "devicePath": "" })).collect();
    made(json!({
        "metadata": metadata,
        "status": {
            "volumesAttached": listed, "volumesInUse": volumes,
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "1970-01-02T00:00:00Z" }],
        },
    }))
}

pub fn pod(name: &str, node: &str, claim: &str, revision: u64, phase: &str) -> Pod {
    made(json!({
        "metadata": meta("shop", name, revision),
        "spec": {
            "nodeName": node,
            "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }],
        },
        "status": { "phase": phase },
    }))
}

pub fn claim(name: &str, volume: &str) -> PersistentVolumeClaim {
    let phase = if volume.is_empty() { "Pending" } else { "Bound" };
    made(json!({
        "metadata": {
            "name": name, "namespace": "shop", "uid": format!("uid-of-{name}"), "resourceVersion": "1",
            "creationTimestamp": "1970-01-02T00:00:00Z",
            "annotations": { "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes" },
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeName": volume,
            "resources": { "requests": { "storage": "1Gi" } },
        },
        "status": { "phase": phase },
    }))
}

pub fn volume(name: &str, handle: &str, claim: &str) -> PersistentVolume {
    made(json!({
        "metadata": meta("", name, 1),
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "capacity": { "storage": "1Gi" },
            "csi": { "driver": "d", "volumeHandle": handle },
            "claimRef": { "namespace": "shop", "name": claim, "uid": format!("uid-of-{claim}") },
        },
        "status": { "phase": "Bound" },
    }))
}

pub fn attachment(volume: &str, handle: &str, node: &str) -> VolumeAttachment {
    let name = VolumeId::csi(&DriverName::from("d"), handle).attachment_name(&node.into());
    made(json!({
        "metadata": meta("", name.as_str(), 1),
        "spec": { "attacher": "d", "nodeName": node, "source": { "persistentVolumeName": volume } },
        "status": { "attached": true },
    }))
}

pub fn common(objects: &Objects) {
    objects.reset::<CsiDriver>(vec![made(
        json!({ "metadata": meta("", "d", 1), "spec": { "attachRequired": true } }),
    )]);
    objects.reset::<StorageClass>(vec![made(json!({ "metadata": meta("", "fast", 1), "provisioner": "d" }))]);
}

impl World {
    /// A volume for one node is used on n1, and a pod on n2 wants it, too.
    pub fn held() -> Self {
        let objects = Arc::new(Objects::default());
        common(&objects);
        let id = VolumeId::csi(&DriverName::from("d"), "vol-1");
        objects.reset(vec![node("n1", &[id]), node("n2", &[]), node("n3", &[])]);
        objects.reset(vec![
            pod("web-0", "n1", "data", 1, "Running"),
            pod("web-1", "n2", "data", 1, "Pending"),
            pod("other", "n3", "else", 1, "Running"),
        ]);
        objects.reset(vec![claim("data", "pv-1"), claim("else", "pv-2")]);
        objects.reset(vec![volume("pv-1", "vol-1", "data"), volume("pv-2", "vol-2", "else")]);
        objects.reset(vec![attachment("pv-1", "vol-1", "n1"), attachment("pv-2", "vol-2", "n3")]);
        Self { objects }
    }

    /// The pod that uses the volume has ended.
    pub fn end_the_first_pod(&self) {
        self.objects.apply(pod("web-0", "n1", "data", 9, "Succeeded"));
    }

    pub fn knowledge(&self) -> Knowledge {
        Knowledge {
            objects: Arc::clone(&self.objects),
            assumptions: Assumptions::default(),
            attach_detach: None,
            binder: Some(Arc::new(Diagnostics::new(Arc::clone(&self.objects)))),
            history: History::default(),
            identity: "me".to_owned(),
            election: None,
            stopping: CancellationToken::new(),
        }
    }
}
