//! Six minutes: how long a volume in use stays attached to a node that is not Ready (S4–S6, L6). On the
//! embedded server they pass at once; on the real one, where these stories play if all are asked for, they do not.

use std::time::Duration;

use k8s_openapi::{api::core::v1::Node, jiff::Timestamp};
use serde_json::json;
use test_support::{
    backend::Proxy,
    cluster::{patch_status, unique_name},
};

use crate::stage::{Stage, Story, story};

pub fn stories() -> Vec<Story> {
    vec![
        story("force_after_six_minutes_of_a_node_that_is_not_ready", not_ready),
        story("force_never_from_a_node_that_is_ready", ready),
        story("force_not_by_time_when_it_is_switched_off", switched_off),
        story("force_begins_anew_when_the_node_was_ready_between", flapping),
    ]
}

/// A volume in use on n1 that no pod wants there any more, while a pod on n2 waits for it.
pub async fn stuck_volume(stage: &Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.node("n2").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.published("n1", &["v1"]).await;
    let in_use = json!({ "status": { "volumesInUse": [unique_name("v1")] } });
    patch_status(&cluster.all::<Node>(), "n1", in_use).await;
    cluster.pod("p2", "n2", &["c1"]).await;
}

/// The node's kubelet is heard of no more, or again.
pub async fn set_ready(stage: &Stage, status: &str, since: Timestamp) {
    let condition = json!({
        "type": "Ready", "status": status, "reason": "Told", "message": "",
        "lastHeartbeatTime": null, "lastTransitionTime": since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    });
    let body = json!({ "status": { "conditions": [condition] } });
    patch_status(&stage.cluster.all::<Node>(), "n1", body).await;
}

/// Time passes in which nothing is detached.
async fn nothing_for(stage: &Stage, time: Duration) {
    tokio::time::sleep(time).await;
    assert!(!stage.proxy.writes().iter().any(Proxy::is_detach));
    assert!(stage.cluster.attachment_now("v1", "n2").await.is_none());
}

const MINUTE: Duration = Duration::from_mins(1);

async fn not_ready(stage: Stage) {
    let (_attacher, _daemon) = (stage.attacher(), stage.daemon().await);
    stuck_volume(&stage).await;
    set_ready(&stage, "Unknown", Timestamp::now()).await;
    stage.cluster.remove_pod("p1").await;
    nothing_for(&stage, Duration::from_secs(6 * 60 - 10)).await;

    stage.cluster.detached("v1", "n1").await;
    stage.cluster.published("n2", &["v1"]).await;
}

async fn ready(stage: Stage) {
    let (_attacher, _daemon) = (stage.attacher(), stage.daemon().await);
    stuck_volume(&stage).await;
    stage.cluster.remove_pod("p1").await;
    nothing_for(&stage, 9 * MINUTE).await;
}

async fn switched_off(stage: Stage) {
    let _attacher = stage.attacher();
    let launch = test_support::daemon::Launch::alone().with("--disable-force-detach-on-timeout");
    let _daemon = stage.start_daemon(&launch, &stage.proxy).await;
    stuck_volume(&stage).await;
    set_ready(&stage, "Unknown", Timestamp::now()).await;
    stage.cluster.remove_pod("p1").await;
    nothing_for(&stage, 9 * MINUTE).await;
}

async fn flapping(stage: Stage) {
    let (_attacher, _daemon) = (stage.attacher(), stage.daemon().await);
    stuck_volume(&stage).await;
    let began = Timestamp::now();
    let after = |minutes: u32| began + minutes * MINUTE;
    set_ready(&stage, "Unknown", began).await;
    stage.cluster.remove_pod("p1").await;
    nothing_for(&stage, 3 * MINUTE).await;
    set_ready(&stage, "True", after(3)).await;
    set_ready(&stage, "Unknown", after(3)).await;
    // Seven minutes since it first went, four since it last did.
    nothing_for(&stage, 4 * MINUTE).await;
    nothing_for(&stage, Duration::from_secs(2 * 60 - 10)).await;
    stage.cluster.detached("v1", "n1").await;
}
