//! Attach: from a scheduled pod to a volume that its kubelet may mount.

use http::{Method, StatusCode};
use k8s_openapi::api::{
    core::v1::{Node, Pod},
    storage::v1::CSIDriver,
};
use kube::api::DeleteParams;
use serde_json::json;
use test_support::{
    actors::Reaction,
    cluster::{DRIVER, VolumeShape, attached, create, unique_name, until},
};

use crate::stage::{Stage, Story, story};

pub fn stories() -> Vec<Story> {
    vec![
        story("attach_publishes_what_the_driver_attached", publishes)
            .also_real("kube-apiserver validates each write of an attach, and its event."),
        story("attach_publishes_two_volumes_of_a_node_in_one_patch", one_patch_for_two),
        story("attach_error_is_told_and_healed", error_is_told_and_healed)
            .also_real("kube-apiserver validates an event that repeats."),
        story("attach_needs_no_volume_attachment_twice_after_a_lost_answer", lost_answer),
        story("attach_is_asked_for_again_after_a_lost_request", lost_request),
        story("attach_waits_out_a_refused_status_patch", conflict_on_publish),
        story("attach_is_asked_for_where_the_driver_needs_it", attach_required),
        story("attach_shares_a_volume_between_nodes_if_its_access_mode_allows", shared_volume),
    ]
}

async fn publishes(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;

    cluster.pod("p1", "n1", &["c1"]).await;

    cluster.published("n1", &["v1"]).await;
    // The kubelet agrees: it finds the VolumeAttachment by the name it computes itself.
    cluster.running("p1").await;
    let event = cluster.event("p1", "SuccessfulAttachVolume").await;
    assert_eq!(event.message.unwrap(), "AttachVolume.Attach succeeded for volume \"v1\" ");
    assert_eq!(event.source.unwrap().component.unwrap(), "attachdetach-controller");
    assert_eq!(event.type_.unwrap(), "Normal");
    // A VolumeAttachment and a list, no more.
    assert_eq!(stage.proxy.attach_detach_writes().len(), 2);
}

/// S16: what the CSIDriver says counts, also while a volume is attached; where there is none, it is needed.
async fn attach_required(stage: Stage) {
    let _attacher = stage.attacher();
    let cluster = &stage.cluster;
    let drivers = cluster.all::<CSIDriver>();
    let needs_none = || json!({ "metadata": { "name": DRIVER }, "spec": { "attachRequired": false } });
    create(&drivers, needs_none()).await;
    let _daemon = stage.daemon().await;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;
    let pod = json!({
        "metadata": { "name": "p1" },
        "spec": {
            "nodeName": "n1",
            "containers": [{ "name": "main", "image": "example.com/none" }],
            "volumes": [
                { "name": "none", "persistentVolumeClaim": { "claimName": "c1" } },
                { "name": "some", "iscsi": { "targetPortal": "10.0.0.1:3260", "iqn": "iqn.2026-11.example:disk", "lun": 0 } },
            ],
        },
    });
    create::<Pod>(&cluster.namespaced(), pod).await;
    let (csi, iscsi) =
        (unique_name("v1"), "kubernetes.io/iscsi/10.0.0.1:3260:iqn.2026-11.example:disk:0".to_owned());
    let lists = async |names: &[&String]| {
        let is_so = |node: &Node| attached(node).iter().eq(names.iter().copied());
        until(cluster.all(), "n1", &format!("lists {names:?}"), |node| node.is_some_and(is_so)).await;
    };
    lists(&[&iscsi]).await;

    // One that is away says for a minute what it said last, so it is made anew.
    drivers.delete(DRIVER, &DeleteParams::default()).await.unwrap();
    let needs_it = json!({ "metadata": { "name": DRIVER }, "spec": { "attachRequired": true } });
    create(&drivers, needs_it).await;
    lists(&[&csi, &iscsi]).await;
    drivers.delete(DRIVER, &DeleteParams::default()).await.unwrap();
    create(&drivers, needs_none()).await;
    lists(&[&iscsi]).await;
    cluster.detached("v1", "n1").await;

    let history = stage.history().await;
    let first = |resource: &str, is_there: bool| {
        let change =
            history.iter().find(|change| change.resource == resource && change.after.is_some() == is_there);
        change.map(|change| change.revision).unwrap()
    };
    assert!(first("csidrivers", false) < first("volumeattachments", true), "attached before it was needed");
}

/// While a patch of the node is under way two more volumes become attached: one patch carries both.
async fn one_patch_for_two(stage: Stage) {
    let _attacher = stage.attacher();
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    for number in 1..=3 {
        cluster.bound_pair(&format!("v{number}"), &format!("c{number}")).await;
    }

    let first = stage.proxy.hold(|write| write.is(&Method::PATCH, "/nodes/n1/status"));
    cluster.pod("p1", "n1", &["c1"]).await;
    first.reached().await;
    cluster.pod("p2", "n1", &["c2", "c3"]).await;
    for volume in ["v2", "v3"] {
        cluster.attached(volume, "n1").await;
    }
    // The daemon has seen both attached when it announces them; publishing is what comes next.
    cluster.event_with("p2", "SuccessfulAttachVolume", "\"v2\"").await;
    cluster.event_with("p2", "SuccessfulAttachVolume", "\"v3\"").await;
    first.release();

    cluster.published("n1", &["v1", "v2", "v3"]).await;
    let lists: Vec<usize> = stage
        .proxy
        .fresh_writes()
        .iter()
        .filter(|write| write.is(&Method::PATCH, "/nodes/n1/status"))
        .map(|write| write.body["status"]["volumesAttached"].as_array().unwrap().len())
        .collect();
    assert_eq!(lists, [1, 3]);
}

/// With what a format string would stumble over.
const FIRE: &str = "rpc error: the array is on fire (100%)";

async fn error_is_told_and_healed(stage: Stage) {
    let (attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    attacher.change(|behaviour| behaviour.attach = Reaction::Fail(FIRE.to_owned()));
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;

    cluster.pod("p1", "n1", &["c1"]).await;
    let event = cluster.event("p1", "FailedAttachVolume").await;
    assert_eq!(
        event.message.unwrap(),
        "AttachVolume.Attach failed for volume \"v1\" : rpc error: the array is on fire (100%)"
    );
    assert_eq!(event.type_.unwrap(), "Warning");
    // The VolumeAttachment stays: the driver tries again, and the kubelet reads the error from it.
    let attachment = cluster.attachment("v1", "n1").await;
    assert!(attachment.metadata.deletion_timestamp.is_none());

    // Another error is another event; the first one again is counted on its event.
    attacher.change(|behaviour| behaviour.attach = Reaction::Fail("the array is wet".to_owned()));
    cluster.event_with("p1", "FailedAttachVolume", "wet").await;
    attacher.change(|behaviour| behaviour.attach = Reaction::Fail(FIRE.to_owned()));
    cluster.repeated_event("p1", "FailedAttachVolume", "fire").await;

    attacher.change(|behaviour| behaviour.attach = Reaction::default());
    cluster.published("n1", &["v1"]).await;
    cluster.event("p1", "SuccessfulAttachVolume").await;
    cluster.running("p1").await;
}

async fn lost_answer(stage: Stage) {
    let _attacher = stage.attacher();
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;

    let lost = stage.proxy.drop_answer(|write| write.is(&Method::POST, "/volumeattachments"));
    cluster.pod("p1", "n1", &["c1"]).await;
    lost.reached().await;
    cluster.published("n1", &["v1"]).await;
    let created = stage
        .history()
        .await
        .iter()
        .filter(|change| change.resource == "volumeattachments" && change.before.is_none())
        .count();
    assert_eq!(created, 1);
}

/// Sent and never arrived: only a live read tells, and then it is sent again.
async fn lost_request(stage: Stage) {
    let _attacher = stage.attacher();
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;

    let lost = stage.proxy.drop_unsent(|write| write.is(&Method::POST, "/volumeattachments"));
    cluster.pod("p1", "n1", &["c1"]).await;
    lost.reached().await;
    cluster.published("n1", &["v1"]).await;
}

async fn conflict_on_publish(stage: Stage) {
    let _attacher = stage.attacher();
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;

    let conflict = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 409, "reason": "Conflict",
        "message": "Operation cannot be fulfilled on nodes \"n1\": the object has been modified",
    });
    let is_publish = |write: &testbed::faults::Write| write.is(&Method::PATCH, "/nodes/n1/status");
    let refused = stage.proxy.answer(is_publish, StatusCode::CONFLICT, conflict);
    cluster.pod("p1", "n1", &["c1"]).await;
    refused.reached().await;
    cluster.published("n1", &["v1"]).await;
}

async fn shared_volume(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.node("n2").await;
    let shape = VolumeShape { access_modes: vec!["ReadWriteMany"], ..VolumeShape::default() };
    cluster.shaped_pair("v1", "c1", &shape).await;

    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.pod("p2", "n2", &["c1"]).await;
    for node in ["n1", "n2"] {
        let node = cluster.published(node, &["v1"]).await;
        let listed = node.status.unwrap().volumes_attached.unwrap();
        assert_eq!(
            (listed[0].name.as_str(), listed[0].device_path.as_str()),
            (unique_name("v1").as_str(), "")
        );
    }
    cluster.running("p1").await;
    cluster.running("p2").await;
}
