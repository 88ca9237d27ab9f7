//! What a volume goes through from claim to deletion, and what happens when the chain breaks.

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::api::DeleteParams;
use serde_json::json;
use test_support::cluster::{DRIVER, VolumeShape, create, patch, until};

use crate::stage::{Play, Stage, called, driver_with_resizer};

/// All stories by name.
pub fn stories() -> Vec<(&'static str, Play)> {
    vec![
        ("a_volume_from_claim_to_deletion", |stage| Box::pin(from_claim_to_deletion(stage))),
        ("a_failing_attacher_is_told_of_and_heals", |stage| Box::pin(failing_attacher(stage))),
        ("a_delayed_claim_is_provisioned_where_the_scheduler_wants", |stage| Box::pin(delayed_claim(stage))),
        ("a_volume_bound_in_advance_by_the_scheduler", |stage| Box::pin(bound_in_advance(stage))),
        ("a_claim_is_enlarged_by_the_resizer", |stage| Box::pin(enlarged(stage))),
        ("a_migrated_claim_is_enlarged_once_its_driver_is_named_s51", |stage| Box::pin(migrated(stage))),
    ]
}

const DYNAMIC: VolumeShape =
    VolumeShape { capacity: "1Gi", access_modes: Vec::new(), class: "dynamic", reclaim_policy: "Delete" };

/// A claim of the class `dynamic`.
async fn dynamic_claim(stage: &Stage, name: &str) {
    let shape = VolumeShape { access_modes: vec!["ReadWriteOnce"], ..DYNAMIC };
    stage.cluster.shaped_claim(name, &shape).await;
}

/// Claim and volume go, the driver's volume too.
async fn deleted(stage: &Stage, claim: &str, volume: &str, handle: &str) {
    let claims = stage.cluster.namespaced::<PersistentVolumeClaim>();
    claims.delete(claim, &DeleteParams::default()).await.expect("delete the claim");
    stage.cluster.volume_gone(volume).await;
    stage.called("DeleteVolume", handle).await;
    assert!(claims.get_opt(claim).await.unwrap().is_none());
}

async fn from_claim_to_deletion(stage: &Stage) {
    let cluster = &stage.cluster;
    stage.node("n1").await;
    cluster.class("dynamic", "Immediate").await;
    dynamic_claim(stage, "c1").await;
    let (volume, handle) = stage.volume_of("c1").await;
    cluster.bound("c1", &volume).await;

    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.running("p1").await;
    cluster.published("n1", &[&handle]).await;
    stage.called("ControllerPublishVolume", &handle).await;

    cluster.delete_pod("p1").await;
    cluster.pod_gone("p1").await;
    cluster.detached(&handle, "n1").await;
    cluster.published("n1", &[]).await;
    stage.called("ControllerUnpublishVolume", &handle).await;

    deleted(stage, "c1", &volume, &handle).await;
}

async fn failing_attacher(stage: &Stage) {
    let cluster = &stage.cluster;
    stage.node_without_driver("n1").await;
    cluster.class("dynamic", "Immediate").await;
    dynamic_claim(stage, "c1").await;
    let (volume, handle) = stage.volume_of("c1").await;

    cluster.pod("p1", "n1", &["c1"]).await;
    let cause = format!("CSINode n1 does not contain driver {DRIVER}");
    let text = format!("AttachVolume.Attach failed for volume \"{volume}\" : {cause}");
    cluster.event_with("p1", "FailedAttachVolume", &text).await;
    let failed = cluster.attachment(&handle, "n1").await;
    cluster.published("n1", &[]).await;
    cluster.bound("c1", &volume).await;

    stage.register_driver("n1").await;
    cluster.running("p1").await;
    cluster.published("n1", &[&handle]).await;
    let healed = cluster.attachment(&handle, "n1").await;
    assert_eq!(healed.metadata.uid, failed.metadata.uid, "the attachment was not made anew");

    cluster.delete_pod("p1").await;
    cluster.detached(&handle, "n1").await;
    deleted(stage, "c1", &volume, &handle).await;
}

async fn delayed_claim(stage: &Stage) {
    let cluster = &stage.cluster;
    stage.node("n1").await;
    cluster.class("dynamic", "WaitForFirstConsumer").await;
    dynamic_claim(stage, "c1").await;
    cluster.event("c1", "WaitForFirstConsumer").await;

    stage.unscheduled_pod("p1", "c1").await;
    let (volume, handle) = stage.volume_of("c1").await;
    let claim = cluster.namespaced::<PersistentVolumeClaim>().get("c1").await.unwrap();
    let annotations = claim.metadata.annotations.unwrap();
    assert_eq!(annotations["volume.kubernetes.io/selected-node"], "n1");
    assert_eq!(annotations["volume.kubernetes.io/storage-provisioner"], DRIVER);

    cluster.running("p1").await;
    cluster.published("n1", &[&handle]).await;

    cluster.delete_pod("p1").await;
    cluster.detached(&handle, "n1").await;
    deleted(stage, "c1", &volume, &handle).await;
}

/// The driver has a volume `1` from the beginning.
async fn bound_in_advance(stage: &Stage) {
    let cluster = &stage.cluster;
    stage.node("n1").await;
    stage.node("n2").await;
    let class = json!({
        "metadata": { "name": "static" }, "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    create(&cluster.all::<StorageClass>(), class).await;
    let terms = json!([{ "matchExpressions": [
        { "key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"] },
    ]}]);
    let volume = json!({
        "metadata": { "name": "v1" },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "static",
            "persistentVolumeReclaimPolicy": "Retain", "csi": { "driver": DRIVER, "volumeHandle": "1" },
            "nodeAffinity": { "required": { "nodeSelectorTerms": terms } },
        },
    });
    create(&cluster.all::<PersistentVolume>(), volume).await;
    cluster.volume_phase("v1", "Available").await;
    cluster.shaped_claim("c1", &VolumeShape { class: "static", ..VolumeShape::default() }).await;
    cluster.event("c1", "WaitForFirstConsumer").await;

    stage.unscheduled_pod("p1", "c1").await;
    cluster.bound("c1", "v1").await;
    let what = "p1 is where its volume is";
    until(cluster.namespaced(), "p1", what, |pod: Option<&Pod>| {
        pod.and_then(|pod| pod.spec.as_ref()?.node_name.as_deref()) == Some("n2")
    })
    .await;
    cluster.running("p1").await;
    cluster.published("n2", &["1"]).await;

    cluster.delete_pod("p1").await;
    cluster.detached("1", "n2").await;
    cluster.published("n2", &[]).await;
}

/// Requests more of a claim, and waits until it has it.
async fn enlarge(stage: &Stage, claim: &str, size: &'static str) {
    let claims = stage.cluster.namespaced::<PersistentVolumeClaim>();
    patch(&claims, claim, json!({ "spec": { "resources": { "requests": { "storage": size } } } })).await;
    until(claims, claim, &format!("{claim} has {size}"), |claim: Option<&PersistentVolumeClaim>| {
        let capacity = claim.and_then(|claim| claim.status.as_ref()?.capacity.as_ref()?.get("storage"));
        capacity.is_some_and(|capacity| capacity.0 == size)
    })
    .await;
}

/// The resizer takes a CSI volume without the daemon, which writes nothing but an event if it is quicker.
async fn enlarged(stage: &Stage) {
    let cluster = &stage.cluster;
    cluster.class("dynamic", "Immediate").await;
    patch(&cluster.all::<StorageClass>(), "dynamic", json!({ "allowVolumeExpansion": true })).await;
    dynamic_claim(stage, "c1").await;
    let (volume, handle) = stage.volume_of("c1").await;
    cluster.bound("c1", &volume).await;

    let before = stage.recorded();
    enlarge(stage, "c1", "2Gi").await;
    stage.called("ControllerExpandVolume", &handle).await;
    enlarge(stage, "c1", "3Gi").await;
    assert_eq!(stage.written(before), [""; 0], "the expander writes nothing to a CSI claim");

    deleted(stage, "c1", &volume, &handle).await;
}

/// The resizer does not take an in-tree volume before the daemon has named the driver that took the plugin over.
/// That driver has a volume `1` of 100 GiB from the beginning.
async fn migrated(stage: &Stage) {
    let cluster = &stage.cluster;
    let [driver, _resizer] = driver_with_resizer("ebs.csi.aws.com");
    let class = json!({
        "metadata": { "name": "in-tree" }, "provisioner": "kubernetes.io/aws-ebs", "allowVolumeExpansion": true,
    });
    create(&cluster.all::<StorageClass>(), class).await;
    let volume = json!({
        "metadata": { "name": "v1" },
        "spec": {
            "capacity": { "storage": "100Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "in-tree",
            "persistentVolumeReclaimPolicy": "Retain", "awsElasticBlockStore": { "volumeID": "1" },
        },
    });
    create(&cluster.all::<PersistentVolume>(), volume).await;
    cluster.volume_phase("v1", "Available").await;
    let shape = VolumeShape { capacity: "100Gi", class: "in-tree", ..VolumeShape::default() };
    cluster.shaped_claim("c1", &shape).await;
    cluster.bound("c1", "v1").await;

    let before = stage.recorded();
    enlarge(stage, "c1", "101Gi").await;
    called(&driver, "ControllerExpandVolume", "1").await;
    let text =
        "CSI migration enabled for kubernetes.io/aws-ebs; waiting for external resizer to expand the pvc";
    cluster.event_with("c1", "ExternalExpanding", text).await;
    let claim = cluster.namespaced::<PersistentVolumeClaim>().get("c1").await.unwrap();
    assert_eq!(
        claim.metadata.annotations.unwrap()["volume.kubernetes.io/storage-resizer"],
        "ebs.csi.aws.com"
    );

    // It is named already.
    enlarge(stage, "c1", "102Gi").await;
    assert_eq!(stage.written(before), ["patch persistentvolumeclaims/status"]);
}
