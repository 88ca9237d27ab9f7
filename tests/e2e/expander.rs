//! The expander, ours in place of the stock one: who expands a volume is told, and to a migrated one named (S51).

use http::Method;
use k8s_openapi::api::{
    core::v1::{Event, PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::api::ListParams;
use serde_json::json;
use test_support::{
    cluster::{DRIVER, NAMESPACE, create, patch, patch_status, until},
    daemon::{Daemon, Launch},
};
use testbed::faults::{CrashPoint, Storm, Write};

use crate::{
    replicas::{new_holder, replica},
    stage::{Stage, Story, seed, story},
};

const CONTROLLERS: &str = "--controllers=*,persistentvolume-expander-controller";
const RESIZER: &str = "volume.kubernetes.io/storage-resizer";

pub fn stories() -> Vec<Story> {
    vec![
        story("expander_s51_names_the_driver_of_a_migrated_volume_and_writes_nothing_else", migrated)
            .also_real("kube-apiserver takes an annotation through the status of a claim."),
        story("expander_tells_of_a_volume_of_a_driver_and_writes_nothing", of_a_driver),
        story("expander_e6_a_storm_of_faults_leaves_each_claim_annotated", stormy),
        story("expander_e1_a_crash_at_its_write_leaves_the_annotation", crashed),
        story("expander_e9_the_next_leader_names_the_driver_once_and_tells_it_once", next_leader)
            .also_real("kube-apiserver refuses a patch that names an older revision."),
    ]
}

async fn start(stage: &Stage) -> Daemon {
    stage.start_daemon(&Launch::alone().with(CONTROLLERS), &stage.proxy).await
}

/// A bound claim of a class that allows expansion, and its volume with that source.
pub async fn pair(stage: &Stage, number: usize, source: (&str, serde_json::Value)) -> String {
    let cluster = &stage.cluster;
    if number == 0 {
        let class = json!({
            "metadata": { "name": "grows" }, "provisioner": DRIVER, "allowVolumeExpansion": true,
        });
        create(&cluster.all::<StorageClass>(), class).await;
    }
    let (volume, claim) = (format!("v{number}"), format!("c{number}"));
    let object = json!({
        "metadata": { "name": claim },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "grows", "volumeName": volume,
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    let made: PersistentVolumeClaim = create(&cluster.namespaced(), object).await;
    let reference = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": claim,
        "uid": made.metadata.uid,
    });
    let mut object = json!({
        "metadata": { "name": volume },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "grows",
            "claimRef": reference,
        },
    });
    object["spec"][source.0] = source.1;
    create(&cluster.all::<PersistentVolume>(), object).await;
    cluster.bound(&claim, &volume).await;
    claim
}

pub async fn grow(stage: &Stage, claim: &str, size: &str) {
    let request = json!({ "spec": { "resources": { "requests": { "storage": size } } } });
    patch(&stage.cluster.namespaced::<PersistentVolumeClaim>(), claim, request).await;
}

pub fn ebs() -> (&'static str, serde_json::Value) {
    ("awsElasticBlockStore", json!({ "volumeID": "vol-1", "fsType": "ext4" }))
}

/// Waits until the claim names its resizer.
pub async fn named(stage: &Stage, claim: &str) {
    let names = |claim: Option<&PersistentVolumeClaim>| {
        let annotations = claim.and_then(|claim| claim.metadata.annotations.as_ref());
        annotations.is_some_and(|all| all.get(RESIZER).map(String::as_str) == Some("ebs.csi.aws.com"))
    };
    until(stage.cluster.namespaced(), claim, "the claim names its resizer", names).await;
}

async fn migrated(stage: Stage) {
    let daemon = start(&stage).await;
    let claim = pair(&stage, 0, ebs()).await;
    grow(&stage, &claim, "2Gi").await;
    named(&stage, &claim).await;
    let words =
        "CSI migration enabled for kubernetes.io/aws-ebs; waiting for external resizer to expand the pvc";
    let event = stage.cluster.event_with(&claim, "ExternalExpanding", words).await;
    assert_eq!(event.source.unwrap().component.as_deref(), Some("volume_expand"));
    daemon.page_says("/debug/expander", "Resizing").await;
    daemon.shows("mooring_waiting{kind=\"expanding_claim\",reason=\"Resizing\"} 1").await;
    // The external-resizer is done.
    let size = json!({ "status": { "capacity": { "storage": "2Gi" } } });
    patch_status(&stage.cluster.namespaced::<PersistentVolumeClaim>(), &claim, size).await;
    daemon.shows("mooring_waiting{kind=\"expanding_claim\",reason=\"Resizing\"} 0").await;
}

async fn of_a_driver(stage: Stage) {
    let daemon = start(&stage).await;
    let claim = pair(&stage, 0, ("csi", json!({ "driver": DRIVER, "volumeHandle": "h" }))).await;
    let before = stage.proxy.counted();
    grow(&stage, &claim, "2Gi").await;
    let words = "waiting for an external controller to expand this PVC";
    stage.cluster.event_with(&claim, "ExternalExpanding", words).await;
    daemon.page_says("/debug/expander", "an external controller").await;
    assert_eq!(stage.proxy.counted(), before, "nothing is written but an event");
}

/// A third of all writes goes wrong, and other writers change the claims meanwhile.
async fn stormy(stage: Stage) {
    let _daemon = start(&stage).await;
    let mut claims = Vec::new();
    for number in 0..8 {
        claims.push(pair(&stage, number, ebs()).await);
    }
    stage.proxy.begin(&Storm::new(seed()));
    for size in ["2Gi", "3Gi", "4Gi"] {
        for claim in &claims {
            grow(&stage, claim, size).await;
            let touch = json!({ "metadata": { "labels": { "touched": size } } });
            patch(&stage.cluster.namespaced::<PersistentVolumeClaim>(), claim, touch).await;
        }
    }
    for claim in &claims {
        named(&stage, claim).await;
    }
    assert!(stage.proxy.calm() > 0, "this was no storm");
}

async fn crashed(stage: Stage) {
    for (number, point) in CrashPoint::ALL.into_iter().enumerate() {
        let daemon = start(&stage).await;
        let claim = pair(&stage, number, ebs()).await;
        let caught = stage.proxy.crash_at(stage.proxy.counted() + 1, point);
        grow(&stage, &claim, "2Gi").await;
        caught.reached().await;
        daemon.kill();
        stage.proxy.thaw();
        let daemon = start(&stage).await;
        named(&stage, &claim).await;
        daemon.kill();
    }
}

/// Whether it writes who is to expand the volume of the claim.
fn names_resizer(write: &Write, claim: &str) -> bool {
    write.is(&Method::PATCH, &format!("/persistentvolumeclaims/{claim}/status"))
        && write.body.to_string().contains(RESIZER)
}

/// The first leader dies while its write is late; the second one's has landed without an answer when it loses the lease. Whoever
/// comes next finishes it.
async fn next_leader(stage: Stage) {
    let cluster = &stage.cluster;
    let start = async || {
        let (proxy, launch) = replica(&stage).await;
        let daemon = stage.start_daemon(&launch.with(CONTROLLERS), &proxy).await;
        (proxy, daemon)
    };
    let (first_proxy, first) = start().await;
    let holder = new_holder(&stage, "").await;
    let (second_proxy, _second) = start().await;
    let claim = pair(&stage, 0, ebs()).await;
    let late = first_proxy.delay(|write| names_resizer(write, "c0"));
    grow(&stage, &claim, "2Gi").await;
    late.reached().await;
    first.kill();
    named(&stage, &claim).await;
    late.release();
    assert_eq!(late.answered().await.status.unwrap(), 409, "it comes too late");
    let holder = new_holder(&stage, &holder).await;

    let (third_proxy, _third) = start().await;
    let claim = pair(&stage, 1, ebs()).await;
    let landed = second_proxy.drop_answer(|write| names_resizer(write, "c1"));
    grow(&stage, &claim, "2Gi").await;
    landed.reached().await;
    second_proxy.take_away();
    named(&stage, &claim).await;
    new_holder(&stage, &holder).await;
    second_proxy.bring_back();
    // Something later, which the third one does.
    let last = pair(&stage, 2, ebs()).await;
    grow(&stage, &last, "2Gi").await;
    named(&stage, &last).await;
    cluster.event(&last, "ExternalExpanding").await;

    for (claim, writes) in [("c0", [1, 1, 0]), ("c1", [0, 1, 0]), ("c2", [0, 0, 1])] {
        let sent = [&first_proxy, &second_proxy, &third_proxy]
            .map(|proxy| proxy.writes().iter().filter(|write| names_resizer(write, claim)).count());
        assert_eq!(sent, writes, "{claim}");
        let about = format!("involvedObject.name={claim},reason=ExternalExpanding");
        let events = cluster.namespaced::<Event>().list(&ListParams::default().fields(&about)).await.unwrap();
        let told = events.items.iter().filter_map(|event| event.message.as_deref());
        let told = told.filter(|said| said.starts_with("CSI migration enabled")).count();
        assert_eq!(told, 1, "{claim} is told of once: {events:?}");
    }
}
