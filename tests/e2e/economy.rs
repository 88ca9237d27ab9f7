//! What work costs the API server: nothing is asked, written or read that is not needed.

use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use test_support::{audit::DAEMON, cluster::patch_status};

use crate::stage::{Stage, Story, story};

pub fn stories() -> Vec<Story> {
    vec![story("economy_an_attach_is_two_writes_and_an_event", attach_is_two_writes)]
}

/// The daemon's requests from a position of the record on, but for lists and watches.
fn requests(stage: &Stage, from: usize) -> Vec<String> {
    let entries = stage.requests().split_off(from);
    let ours = entries.iter().filter(|entry| entry.user == DAEMON && !entry.resource.is_empty());
    let ours = ours.filter(|entry| !matches!(entry.verb.as_str(), "list" | "watch"));
    ours.map(|entry| format!("{} {}", entry.verb, entry.resource)).collect()
}

/// A heartbeat is a new revision of the node in which nothing changed for us: the patch after it is right
/// at once.
async fn attach_is_two_writes(stage: Stage) {
    let _attacher = stage.attacher();
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.bound_pair("v2", "c2").await;
    let heartbeat = json!({ "status": { "conditions": [{
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": null,
    }]}});
    patch_status(&cluster.all::<Node>(), "n1", heartbeat).await;
    // Once the daemon works on a node that came after it, it has seen the heartbeat.
    cluster.node("n2").await;
    cluster.pod("p2", "n2", &["c2"]).await;
    cluster.published("n2", &["v2"]).await;
    cluster.event("p2", "SuccessfulAttachVolume").await;
    let before = stage.requests().len();

    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.published("n1", &["v1"]).await;
    cluster.event("p1", "SuccessfulAttachVolume").await;

    let mut requests = requests(&stage, before);
    requests.sort();
    assert_eq!(requests, ["create events", "create volumeattachments", "patch nodes/status"]);
}
