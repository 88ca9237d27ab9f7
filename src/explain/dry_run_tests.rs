//! What the controllers answer when they are asked over a snapshot.

use apiserver::{
    ids::{ClaimKey, DriverName, NodeName},
    kinds::{PersistentVolume, StorageClass},
};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::snapshot::Snapshot;
use crate::{
    attach_detach::{
        self, AttachDetachOptions,
        decide::verdict::Waiting,
        dry_run::NodeVolumeOutlook,
        reasons::AttachState,
        state::{actual::AttachmentCall, desired::volume_name::VolumeId},
    },
    binder::{self, BinderOptions, calls::WriteKind, reasons::ClaimReason},
};

fn snapshot(objects: impl IntoIterator<Item = Value>) -> Snapshot {
    let mut snapshot = Snapshot::new(Timestamp::from_second(1_000_000).unwrap());
    for mut object in objects {
        object["metadata"]["uid"] = json!(format!("uid-{}", object["metadata"]["name"].as_str().unwrap()));
        object["metadata"]["resourceVersion"] = json!("7");
        snapshot.take(object).unwrap();
    }
    snapshot
}

fn volume(name: &str) -> Value {
    json!({
        "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": { "driver": "d", "volumeHandle": name },
        },
        "status": { "phase": "Available" },
    })
}

fn claim() -> Value {
    json!({
        "kind": "PersistentVolumeClaim", "metadata": { "name": "data", "namespace": "shop" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": { "requests": { "storage": "1Gi" } },
        },
        "status": { "phase": "Pending" },
    })
}

fn of_claim(snapshot: &Snapshot) -> (Option<ClaimReason>, Option<WriteKind>) {
    let is_absent = |object: &_| snapshot.is_absent(object);
    let outlook = binder::dry_run::dry_run(&snapshot.objects, &BinderOptions::default(), None, &is_absent);
    let place = outlook.claims.get(&ClaimKey::new("shop", "data")).cloned().unwrap_or_default();
    (place.reason.as_deref().cloned(), place.write)
}

#[test]
fn the_binder_says_what_it_would_write_next() {
    let mut snapshot = snapshot([claim(), volume("pv1")]);
    snapshot.note_listed::<StorageClass>();
    let (reason, write) = of_claim(&snapshot);
    assert_eq!(reason, Some(ClaimReason::Binding("pv1".into(), WriteKind::ReserveVolume)));
    assert_eq!(write, Some(WriteKind::ReserveVolume));
}

#[test]
fn s42_a_class_that_was_not_looked_for_is_not_said_to_be_missing() {
    let mut snapshot = snapshot([claim()]);
    snapshot.note_listed::<PersistentVolume>();
    assert_eq!(of_claim(&snapshot), (Some(ClaimReason::ProvingClass("fast".into())), None));
    snapshot.note_listed::<StorageClass>();
    assert_eq!(of_claim(&snapshot), (Some(ClaimReason::NoClass("fast".into())), None));
}

/// A volume that pod `old` uses on node `a` and pod `new` wants on node `b`.
fn moved() -> Vec<Value> {
    let mut volume = volume("pv1");
    volume["status"]["phase"] = json!("Bound");
    volume["spec"]["claimRef"] = json!({ "namespace": "shop", "name": "data", "uid": "uid-data" });
    let mut claim = claim();
    claim["spec"]["volumeName"] = json!("pv1");
    claim["status"]["phase"] = json!("Bound");
    let node = |name: &str| {
        json!({
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": { "volumes.kubernetes.io/controller-managed-attach-detach": "true" },
            },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        })
    };
    let pod = |name: &str, created: &str, node: &str| {
        json!({
            "kind": "Pod",
            "metadata": { "name": name, "namespace": "shop", "creationTimestamp": created },
            "spec": {
                "nodeName": node,
                "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }],
            },
        })
    };
    let driver =
        json!({ "kind": "CSIDriver", "metadata": { "name": "d" }, "spec": { "attachRequired": true } });
    vec![
        volume,
        claim,
        node("a"),
        node("b"),
        pod("old", "1970-01-02T00:00:00Z", "a"),
        pod("new", "1970-01-03T00:00:00Z", "b"),
        driver,
    ]
}

fn attachment() -> Value {
    let volume = VolumeId::csi(&DriverName::from("d"), "pv1");
    json!({
        "kind": "VolumeAttachment",
        "metadata": { "name": volume.attachment_name(&NodeName::from("a")) },
        "spec": { "attacher": "d", "nodeName": "a", "source": { "persistentVolumeName": "pv1" } },
        "status": { "attached": true },
    })
}

fn of_pairs(snapshot: &Snapshot) -> Vec<(String, NodeVolumeOutlook)> {
    let is_absent = |object: &_| snapshot.is_absent(object);
    let options = AttachDetachOptions::default();
    let outlook = attach_detach::dry_run::dry_run(&snapshot.objects, options, &is_absent, snapshot.taken_at);
    outlook.node_volumes.into_iter().map(|((_, node), node_volume)| (node.to_string(), node_volume)).collect()
}

#[test]
fn the_attach_detach_controller_says_what_it_would_write_next() {
    let node_volumes = of_pairs(&snapshot(moved()));
    let [(a, on_a), (b, on_b)] = node_volumes.as_slice() else { panic!("{node_volumes:?}") };
    assert_eq!(
        (a.as_str(), on_a.state, on_a.write),
        ("a", AttachState::Attaching, Some(AttachmentCall::Create))
    );
    assert_eq!((b.as_str(), on_b.write), ("b", None));
    assert!(matches!(&on_b.waiting, Some(Waiting::HeldByNode { .. })), "{on_b:?}");
}

#[test]
fn s1_it_says_which_node_holds_an_exclusive_volume() {
    let node_volumes = of_pairs(&snapshot(moved().into_iter().chain([attachment()])));
    let on_b =
        node_volumes.iter().find(|(node, _)| node == "b").map(|(_, node_volume)| node_volume.waiting.clone());
    let Some(Some(Waiting::HeldByNode { conflict })) = on_b else { panic!("{node_volumes:?}") };
    assert_eq!((conflict.node.as_str(), conflict.is_attached), ("a", true));
}
