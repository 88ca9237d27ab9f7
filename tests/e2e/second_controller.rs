//! Another attach/detach controller beside the daemon (S14): the test plays it.

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node, storage::v1::VolumeAttachment};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use test_support::{
    actors::attachment_name,
    backend::Proxy,
    cluster::{DRIVER, patch_status_as, unique_name},
    daemon::{Daemon, Launch},
};

use crate::stage::{DAEMON_NAMESPACE, Stage, Story, story};

pub fn stories() -> Vec<Story> {
    vec![
        story("second_controller_stops_every_detach", stops_every_detach)
            .also_real("kube-apiserver keeps the field managers."),
        story("second_controller_is_not_an_agent", is_not_an_agent),
        story("second_controller_is_not_the_leader_to_one_that_stands_by", is_not_the_leader),
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

/// Writes the list of a node that has all these under the name of a manager; the daemon mends it.
async fn write_list(stage: &Stage, manager: &str, node: &str, volumes: &[&str], all: &[&str]) {
    let entry = |volume: &&str| json!({ "name": unique_name(volume), "devicePath": "" });
    let list: Vec<_> = volumes.iter().map(entry).collect();
    let nodes = stage.cluster.all::<Node>();
    patch_status_as(manager, &nodes, node, json!({ "status": { "volumesAttached": list } })).await;
    stage.cluster.published(node, all).await;
}

/// Creates the attachment of a volume under the name of a manager.
async fn create_attachment(stage: &Stage, manager: &str, volume: &str, node: &str) {
    let attachment = json!({
        "metadata": { "name": attachment_name(volume, DRIVER, node) },
        "spec": { "attacher": DRIVER, "nodeName": node, "source": { "persistentVolumeName": volume } },
    });
    let attachment = serde_json::from_value(attachment).expect("a VolumeAttachment");
    let params = PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
    stage.cluster.all::<VolumeAttachment>().create(&params, &attachment).await.expect("create it");
}

async fn ready_page_says(daemon: &Daemon, text: &str) -> bool {
    daemon.page("/readyz?verbose").await.contains(text)
}

const ALARM: &str = "alarms ok: second_attach_detach_controller: another attach/detach controller";

/// The manager under whose name kube-controller-manager writes.
const KCM: &str = "kube-controller-manager";

async fn stops_every_detach(stage: Stage) {
    let _attacher = stage.attacher();
    let daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    two_pods(&stage).await;
    cluster.node("n2").await;
    for volume in ["v4", "v5"] {
        cluster.bound_pair(volume, &volume.replace('v', "c")).await;
    }
    cluster.pod("p4", "n2", &["c4", "c5"]).await;
    cluster.published("n2", &["v4", "v5"]).await;
    assert!(!ready_page_says(&daemon, ALARM).await);

    write_list(&stage, KCM, "n2", &["v5"], &["v4", "v5"]).await;
    daemon.page_says("/debug/attach-detach", "\"manager\":\"kube-controller-manager\"").await;
    daemon.shows("mooring_foreign_writes_total{kind=\"node_list_changed\"} 1").await;
    assert!(!ready_page_says(&daemon, ALARM).await, "one object alone shows too little");
    cluster.bound_pair("v6", "c6").await;
    create_attachment(&stage, KCM, "v6", "n2").await;
    daemon.page_says("/readyz?verbose", ALARM).await;
    daemon.page_says("/readyz?verbose", "kube-controller-manager wrote spec of volumeattachment/").await;
    daemon.shows("mooring_alarm{alarm=\"second_attach_detach_controller\"} 1").await;
    cluster.event("n2", "ForeignWriter").await;

    // Attaching goes on, detaching does not. What nobody wants may be on its way out before that is known.
    let detaches = || -> Vec<String> {
        stage.proxy.writes().into_iter().filter(Proxy::is_detach).map(|write| write.path).collect()
    };
    let (before, unwanted) = (detaches(), attachment_name("v6", DRIVER, "n2"));
    assert!(before.iter().all(|path| path.contains(&unwanted)), "{before:?}");
    cluster.remove_pod("p1").await;
    cluster.bound_pair("v3", "c3").await;
    cluster.pod("p3", "n1", &["c3"]).await;
    cluster.published("n1", &["v1", "v2", "v3"]).await;
    daemon.page_says("/debug/attach-detach", "ForeignWriter").await;
    assert_eq!(detaches(), before);
}

/// An agent that rewrites the lists of its nodes, however often, holds up nothing.
async fn is_not_an_agent(stage: Stage) {
    let _attacher = stage.attacher();
    let daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    two_pods(&stage).await;
    cluster.node("n2").await;
    cluster.bound_pair("v3", "c3").await;
    cluster.pod("p3", "n2", &["c3"]).await;
    cluster.published("n2", &["v3"]).await;

    for list in [&["v1"][..], &["v2"], &[], &["v1"]] {
        write_list(&stage, "node-agent", "n1", list, &["v1", "v2"]).await;
    }
    write_list(&stage, "node-agent", "n2", &[], &["v3"]).await;
    daemon.page_says("/debug/attach-detach", "\"manager\":\"node-agent\"").await;

    cluster.remove_pod("p1").await;
    cluster.remove_pod("p3").await;
    cluster.detached("v1", "n1").await;
    cluster.detached("v3", "n2").await;
    cluster.published("n1", &["v2"]).await;
    cluster.published("n2", &[]).await;
    daemon.shows("mooring_alarm{alarm=\"second_attach_detach_controller\"} 0").await;
}

/// What the leader does is no second controller's act: neither to a standby, nor to a replica that has just taken over.
async fn is_not_the_leader(stage: Stage) {
    let _attacher = stage.attacher();
    let cluster = &stage.cluster;
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), DAEMON_NAMESPACE);
    leases.delete("mooring", &DeleteParams::default()).await.ok();
    let replica = Launch::replica(DAEMON_NAMESPACE);
    let leader = stage.start_daemon(&replica, &stage.proxy).await;
    leader.page_says("/debug/attach-detach", "\"leads\":true").await;
    let standby = stage.start_daemon(&replica, &stage.proxy).await;
    two_pods(&stage).await;
    cluster.remove_pod("p1").await;
    cluster.detached("v1", "n1").await;
    cluster.published("n1", &["v2"]).await;
    assert!(standby.page("/debug/attach-detach").await.contains("\"leads\":false"));
    leader.kill();
    cluster.bound_pair("v3", "c3").await;
    cluster.pod("p3", "n1", &["c3"]).await;
    cluster.published("n1", &["v2", "v3"]).await;
    for kind in ["node_list_changed", "attachment_created"] {
        standby.shows(&format!("mooring_foreign_writes_total{{kind=\"{kind}\"}} 0")).await;
    }
    assert!(!standby.page("/debug/attach-detach").await.contains("\"manager\""));
}

/// Deletes attachments by hand, and writes a list once.
async fn is_not_an_administrator(stage: Stage) {
    let _attacher = stage.attacher();
    let daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    two_pods(&stage).await;

    write_list(&stage, "kubectl-edit", "n1", &[], &["v1", "v2"]).await;
    let name = attachment_name("v1", DRIVER, "n1");
    cluster.all::<VolumeAttachment>().delete(&name, &DeleteParams::default()).await.unwrap();
    cluster.repeated_event("p1", "SuccessfulAttachVolume", "").await;
    cluster.published("n1", &["v1", "v2"]).await;
    assert!(!ready_page_says(&daemon, ALARM).await);

    cluster.remove_pod("p2").await;
    cluster.detached("v2", "n1").await;
    cluster.published("n1", &["v1"]).await;
}
