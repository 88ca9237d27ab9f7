//! What `doctor` needs on a large cluster: printed, not judged.

use std::fs;

use apiserver::{
    ids::{DriverName, NodeName},
    kinds::{CsiDriver, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass, VolumeAttachment},
    tables::Stored,
};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::doctor;
use crate::{
    attach_detach::state::desired::volume_name::VolumeId,
    explain::{
        sheet::text::{Style, text},
        snapshot::Snapshot,
    },
};

const NODES: usize = 5_000;
const PODS: usize = 150_000;
const PAIRS: usize = 100_000;
const ATTACHMENTS: usize = 60_000;

fn put<T: Stored>(snapshot: &Snapshot, object: Value) {
    let mut narrow: T = serde_json::from_value(object).unwrap();
    narrow.trim();
    snapshot.objects.apply(narrow);
}

fn meta(name: &str) -> Value {
    json!({
        "name": name, "uid": format!("uid-{name}"), "resourceVersion": "7",
        "creationTimestamp": "1970-01-02T00:00:00Z",
    })
}

fn in_shop(name: &str) -> Value {
    let mut meta = meta(name);
    meta["namespace"] = json!("shop");
    meta
}

fn large() -> Snapshot {
    let mut snapshot = Snapshot::new(Timestamp::from_second(1_000_000).unwrap());
    let driver = DriverName::from("d");
    put::<CsiDriver>(&snapshot, json!({ "metadata": meta("d"), "spec": { "attachRequired": true } }));
    put::<StorageClass>(&snapshot, json!({ "metadata": meta("fast"), "provisioner": "d" }));
    for index in 0..NODES {
        let handles =
            (index..ATTACHMENTS).step_by(NODES).map(|it| VolumeId::csi(&driver, &format!("pv-{it}")));
        let handles: Vec<VolumeId> = handles.collect();
        let listed: Vec<Value> = handles.iter().map(|it| json!({ "name": it, "devicePath": "" })).collect();
        let mut metadata = meta(&format!("node-{index}"));
        metadata["annotations"] = json!({ "volumes.kubernetes.io/controller-managed-attach-detach": "true" });
        // One node in a hundred is silent.
        let ready = if index % 100 == 0 { "Unknown" } else { "True" };
        put::<Node>(
            &snapshot,
            json!({
                "metadata": metadata,
                "status": {
                    "volumesAttached": listed, "volumesInUse": handles,
                    "conditions": [{ "type": "Ready", "status": ready }],
                },
            }),
        );
    }
    for index in 0..PAIRS {
        let name = format!("pv-{index}");
        // One claim in fifty waits.
        let is_bound = index % 50 != 0;
        let mut spec = json!({
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": { "requests": { "storage": "1Gi" } },
        });
        if is_bound {
            spec["volumeName"] = json!(name);
        }
        let mut metadata = in_shop(&name);
        metadata["annotations"] = json!({ "pv.kubernetes.io/bind-completed": "yes" });
        let phase = if is_bound { "Bound" } else { "Pending" };
        let claim = json!({ "metadata": metadata, "spec": spec, "status": {
            "phase": phase, "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" },
        } });
        put::<PersistentVolumeClaim>(&snapshot, claim);
        if !is_bound {
            continue;
        }
        put::<PersistentVolume>(
            &snapshot,
            json!({
                "metadata": meta(&name),
                "spec": {
                    "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "fast", "persistentVolumeReclaimPolicy": "Delete",
                    "csi": { "driver": "d", "volumeHandle": name },
                    "claimRef": { "namespace": "shop", "name": name, "uid": format!("uid-{name}") },
                },
                "status": { "phase": "Bound" },
            }),
        );
    }
    for index in 0..PODS {
        let name = format!("pv-{index}");
        let volumes = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": name } }]);
        let volumes = if index < PAIRS { volumes } else { json!([]) };
        put::<Pod>(
            &snapshot,
            json!({
                "metadata": in_shop(&format!("pod-{index}")),
                "spec": { "nodeName": format!("node-{}", index % NODES), "volumes": volumes },
                "status": { "phase": if index < ATTACHMENTS { "Running" } else { "Pending" } },
            }),
        );
    }
    for index in 0..ATTACHMENTS {
        let node = NodeName::from(format!("node-{}", index % NODES).as_str());
        let name = format!("pv-{index}");
        let attachment = VolumeId::csi(&driver, &name).attachment_name(&node);
        put::<VolumeAttachment>(
            &snapshot,
            json!({
                "metadata": meta(attachment.as_str()),
                "spec": { "attacher": "d", "nodeName": node, "source": { "persistentVolumeName": name } },
                "status": { "attached": true },
            }),
        );
    }
    snapshot.note_listed::<Node>();
    snapshot.note_listed::<Pod>();
    snapshot.note_listed::<PersistentVolume>();
    snapshot.note_listed::<PersistentVolumeClaim>();
    snapshot.note_listed::<VolumeAttachment>();
    snapshot.note_listed::<StorageClass>();
    snapshot.note_listed::<CsiDriver>();
    snapshot
}

fn memory() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let lines = status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM"));
    lines.collect::<Vec<_>>().join("  ")
}

#[test]
#[expect(clippy::print_stdout, reason = "its numbers are all that it is for")]
#[ignore = "takes half a minute and judges nothing: prints time and memory"]
fn a_large_cluster() {
    let began = Instant::now();
    let snapshot = large();
    println!("read in {:?}: {}", began.elapsed(), memory());
    let began = Instant::now();
    let outlooks = (snapshot.ask_attach_detach(), snapshot.ask_binder());
    println!("of that, both dry runs {:?}: {}", began.elapsed(), memory());
    drop(outlooks);
    let began = Instant::now();
    let findings = doctor(&snapshot, None);
    let found = text(&findings, Style::default());
    println!("doctor in {:?}: {}\n{found}", began.elapsed(), memory());
    assert!(!findings.findings.is_empty());
}
