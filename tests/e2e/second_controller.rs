//! Another attach/detach controller beside the daemon (S14): the test plays it.

use k8s_openapi::api::{core::v1::Node, storage::v1::VolumeAttachment};
use kube::api::DeleteParams;
use serde_json::json;

use crate::{
    stage::{Stage, Story, story},
    support::{
        actors::attachment_name,
        backend::Proxy,
        cluster::{DRIVER, patch_status, unique_name},
        daemon::Daemon,
    },
};

pub fn stories() -> Vec<Story> {
    vec![
        story("second_controller_stops_every_detach", stops_every_detach),
        story("second_controller_is_not_an_administrator", is_not_an_administrator),
    ]
}

/// A pod that runs on n1 with v1; a second one with v2.
async fn two_pods(stage: &Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    for number in 1..=2 {
        cluster.bound_pair(&format!("v{number}"), &format!("c{number}")).await;
        cluster.pod(&format!("p{number}"), "n1", &[&format!("c{number}")]).await;
    }
    cluster.published("n1", &["v1", "v2"]).await;
}

/// Writes the node's list as the other controller would have it; the daemon mends it.
async fn write_list(stage: &Stage, volumes: &[&str]) {
    let entry = |volume: &&str| json!({ "name": unique_name(volume), "devicePath": "" });
    let list: Vec<_> = volumes.iter().map(entry).collect();
    let nodes = stage.cluster.all::<Node>();
    patch_status(&nodes, "n1", json!({ "status": { "volumesAttached": list } })).await;
    stage.cluster.published("n1", &["v1", "v2"]).await;
}

async fn ready_page_says(daemon: &Daemon, text: &str) -> bool {
    daemon.page("/readyz?verbose").await.contains(text)
}

const ALARM: &str = "alarms ok: second_attach_detach_controller: another attach/detach controller";

async fn stops_every_detach(stage: Stage) {
    stage.expect_violations();
    let _attacher = stage.attacher();
    let daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    two_pods(&stage).await;
    assert!(!ready_page_says(&daemon, ALARM).await);

    for list in [&["v1"][..], &["v2"], &[]] {
        write_list(&stage, list).await;
    }
    daemon.page_says("/readyz?verbose", ALARM).await;
    daemon.shows("mooring_alarm{alarm=\"second_attach_detach_controller\"} 1").await;
    daemon.shows("mooring_foreign_writes_total{kind=\"node_list_changed\"} 3").await;

    // Attaching goes on, detaching does not.
    cluster.remove_pod("p1").await;
    cluster.bound_pair("v3", "c3").await;
    cluster.pod("p3", "n1", &["c3"]).await;
    cluster.published("n1", &["v1", "v2", "v3"]).await;
    assert!(!stage.proxy.writes().iter().any(Proxy::is_detach));
    daemon.page_says("/debug/attach-detach", "ForeignWriter").await;
}

/// Deletes attachments by hand, and writes a list once.
async fn is_not_an_administrator(stage: Stage) {
    stage.expect_violations();
    let _attacher = stage.attacher();
    let daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    two_pods(&stage).await;

    write_list(&stage, &[]).await;
    let name = attachment_name("v1", DRIVER, "n1");
    cluster.all::<VolumeAttachment>().delete(&name, &DeleteParams::default()).await.unwrap();
    cluster.repeated_event("p1", "SuccessfulAttachVolume", "").await;
    cluster.published("n1", &["v1", "v2"]).await;
    assert!(!ready_page_says(&daemon, ALARM).await);

    cluster.remove_pod("p2").await;
    cluster.detached("v2", "n1").await;
    cluster.published("n1", &["v1"]).await;
}
