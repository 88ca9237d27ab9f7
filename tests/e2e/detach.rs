//! Detach: un-publish, make sure that no pod uses the volume, and only then delete.
//!
//! That the order was kept is proven from etcd's history and the audit log after every story (S2,
//! S3, S7); the stories here make the situations in which it would be easy to get wrong.

use http::Method;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use test_support::cluster::{attached, patch, patch_status, unique_name, until};
use testbed::faults::Write;

use crate::stage::{Stage, Story, story};

pub fn stories() -> Vec<Story> {
    vec![
        story("detach_keeps_the_order", keeps_the_order),
        story("detach_writes_nothing_while_the_volume_is_in_use", waits_while_in_use),
        story("detach_takes_back_what_came_into_use_during_the_patch", put_back),
        story("detach_is_called_off_when_the_volume_is_wanted_again", wanted_again),
        story("detach_judges_live_when_a_crash_left_nothing_to_unpublish", after_crash),
        story("detach_of_a_deleted_claims_volume", claim_deleted_while_attached),
        story("detach_waits_for_a_vanished_node_to_come_back", node_gone),
        story("detach_from_a_vanished_node_that_did_not_use_the_volume", node_gone_unused),
        story("detach_by_force_from_a_node_out_of_service", out_of_service),
    ]
}

fn is_node_patch(write: &Write) -> bool {
    write.is(&Method::PATCH, "/nodes/n1/status")
}

fn is_delete(write: &Write) -> bool {
    write.is(&Method::DELETE, "/volumeattachments/")
}

/// A pod that runs on n1 with v1.
async fn pod_with_volume(stage: &Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.published("n1", &["v1"]).await;
}

async fn report_in_use(stage: &Stage, volumes: &[&str]) {
    let names: Vec<String> = volumes.iter().map(|volume| unique_name(volume)).collect();
    let nodes = stage.cluster.all::<Node>();
    patch_status(&nodes, "n1", json!({ "status": { "volumesInUse": names } })).await;
}

async fn report_boot(stage: &Stage, boot: &str) {
    let nodes = stage.cluster.all::<Node>();
    patch_status(&nodes, "n1", json!({ "status": { "nodeInfo": { "bootID": boot } } })).await;
}

async fn keeps_the_order(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    pod_with_volume(&stage).await;
    cluster.running("p1").await;

    cluster.delete_pod("p1").await;
    cluster.pod_gone("p1").await;
    cluster.detached("v1", "n1").await;
    cluster.published("n1", &[]).await;

    // In the order of the daemon: create, publish, un-publish, delete.
    let steps: Vec<String> = stage
        .proxy
        .attach_detach_writes()
        .iter()
        .map(|write| format!("{} {}", write.method, write.path.split('/').next_back().unwrap_or_default()))
        .map(|step| step.split("csi-").next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(steps, ["POST volumeattachments", "PATCH status", "PATCH status", "DELETE "]);
}

/// No kubelet here: the test reports in its place what is in use.
async fn waits_while_in_use(stage: Stage) {
    let _attacher = stage.attacher();
    let daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    pod_with_volume(&stage).await;
    report_in_use(&stage, &["v1"]).await;
    let writes = stage.proxy.counted();

    cluster.remove_pod("p1").await;
    // Something that comes after it in every order: another pod's volume is attached and published.
    cluster.bound_pair("v2", "c2").await;
    cluster.pod("p2", "n1", &["c2"]).await;
    cluster.published("n1", &["v1", "v2"]).await;
    // A new attempt of a new process decides the same.
    daemon.kill();
    let _daemon = stage.daemon().await;
    cluster.bound_pair("v3", "c3").await;
    cluster.pod("p3", "n1", &["c3"]).await;
    cluster.published("n1", &["v1", "v2", "v3"]).await;
    for write in &stage.proxy.writes()[writes..] {
        assert!(!is_delete(write), "{write:?}");
        if is_node_patch(write) {
            let list = write.body["status"]["volumesAttached"].to_string();
            assert!(list.contains(&unique_name("v1")), "un-published while in use: {list}");
        }
    }

    report_in_use(&stage, &[]).await;
    cluster.detached("v1", "n1").await;
    cluster.published("n1", &["v2", "v3"]).await;
}

/// The kubelet reports the volume in use after the daemon decided and before its patch arrives: the
/// patch names the revision it was decided on, is refused, and nothing is detached.
async fn put_back(stage: Stage) {
    let _attacher = stage.attacher();
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    pod_with_volume(&stage).await;

    let unpublish = stage.proxy.hold(is_node_patch);
    cluster.remove_pod("p1").await;
    let write = unpublish.reached().await;
    assert_eq!(write.body["status"]["volumesAttached"].as_array().map(Vec::len).unwrap_or_default(), 0);
    report_in_use(&stage, &["v1"]).await;
    unpublish.release();

    // Something later that shows the daemon has gone on.
    cluster.bound_pair("v2", "c2").await;
    cluster.pod("p2", "n1", &["c2"]).await;
    cluster.published("n1", &["v1", "v2"]).await;
    assert!(!stage.proxy.writes().iter().any(is_delete));
    let refused = stage.proxy.writes().iter().filter(|write| is_node_patch(write)).nth(1).cloned().unwrap();
    assert_eq!(refused.status.unwrap(), 409, "{refused:?}");

    report_in_use(&stage, &[]).await;
    cluster.detached("v1", "n1").await;
    cluster.published("n1", &["v2"]).await;
}

/// A new pod wants the volume on the same node after it was un-published and before it is deleted:
/// it may be detached or kept, but in the end it is attached and published.
async fn wanted_again(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    pod_with_volume(&stage).await;
    cluster.running("p1").await;

    let unpublish = stage.proxy.hold(|write| {
        is_node_patch(write) && write.body["status"]["volumesAttached"].as_array().is_none_or(Vec::is_empty)
    });
    cluster.delete_pod("p1").await;
    unpublish.reached().await;
    cluster.pod_gone("p1").await;
    cluster.pod("p2", "n1", &["c1"]).await;
    unpublish.release();

    cluster.running("p2").await;
    cluster.published("n1", &["v1"]).await;
}

/// Killed after the un-publishing patch: nothing is left to patch, so the node is read live.
async fn after_crash(stage: Stage) {
    let _attacher = stage.attacher();
    let daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    pod_with_volume(&stage).await;

    let delete = stage.proxy.hold(is_delete);
    cluster.remove_pod("p1").await;
    delete.reached().await;
    daemon.kill();
    drop(delete);
    let node = until(cluster.all(), "n1", "n1 exists", |node: Option<&Node>| node.is_some()).await.unwrap();
    assert_eq!(attached(&node), Vec::<String>::new());

    let _daemon = stage.daemon().await;
    cluster.detached("v1", "n1").await;
}

/// What was resolved once can be taken apart without claim and volume.
async fn claim_deleted_while_attached(stage: Stage) {
    let _attacher = stage.attacher();
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    pod_with_volume(&stage).await;

    cluster.delete_claim("c1").await;
    cluster.remove_pod("p1").await;
    cluster.detached("v1", "n1").await;
    cluster.published("n1", &[]).await;
}

/// A Node object that is gone proves nothing about its kubelet: the volume stays attached until the
/// node is back and shows that it is not in use.
async fn node_gone_unused(stage: Stage) {
    let _attacher = stage.attacher();
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    pod_with_volume(&stage).await;

    cluster.remove_node("n1").await;
    cluster.remove_pod("p1").await;
    cluster.detached("v1", "n1").await;
}

async fn out_of_service(stage: Stage) {
    let _attacher = stage.attacher();
    let daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    pod_with_volume(&stage).await;
    report_in_use(&stage, &["v1"]).await;
    cluster.remove_pod("p1").await;

    let taint = json!({ "spec": { "taints": [
        { "key": "node.kubernetes.io/out-of-service", "effect": "NoExecute", "value": "nodeshutdown" },
    ]}});
    patch::<Node>(&cluster.all(), "n1", taint).await;
    cluster.detached("v1", "n1").await;
    let forced =
        "attach_detach_controller_attachdetach_controller_forced_detaches{reason=\"out-of-service\"} 1";
    daemon.shows(forced).await;
}

async fn node_gone(stage: Stage) {
    let _attacher = stage.attacher();
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    pod_with_volume(&stage).await;
    report_in_use(&stage, &["v1"]).await;
    report_boot(&stage, "before").await;

    cluster.remove_node("n1").await;
    cluster.remove_pod("p1").await;
    // Something later that shows the daemon has gone on.
    cluster.node("n2").await;
    cluster.bound_pair("v2", "c2").await;
    cluster.pod("p2", "n2", &["c2"]).await;
    cluster.published("n2", &["v2"]).await;
    assert!(!stage.proxy.writes().iter().any(is_delete));

    // S3: the node's word counts at once only if its machine has booted since.
    cluster.node("n1").await;
    report_boot(&stage, "after").await;
    cluster.detached("v1", "n1").await;
}
