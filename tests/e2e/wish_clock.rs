//! The time that a dead node is given runs on over restarts of the daemon (S6), kept in a ConfigMap.

use k8s_openapi::{
    api::{
        core::v1::{ConfigMap, Node},
        storage::v1::VolumeAttachment,
    },
    jiff::{SignedDuration, Timestamp, Unit},
};
use kube::Api;
use mooring::attach_detach::{
    volume_name::VolumeId,
    wish_clock::{Wait, WaitKey},
};
use serde_json::json;

use crate::{
    stage::{DAEMON_NAMESPACE, Stage, Story, story},
    support::{
        backend::Proxy,
        cluster::{patch, patch_status, unique_name, until},
    },
};

pub fn stories() -> Vec<Story> {
    vec![story("wish_clock_runs_on_over_a_restart", runs_on)]
}

fn minutes_ago(minutes: i64) -> Timestamp {
    (Timestamp::now() - SignedDuration::from_mins(minutes)).round(Unit::Second).unwrap()
}

async fn set_ready(stage: &Stage, status: &str, since: Timestamp) {
    let condition = json!({
        "type": "Ready", "status": status, "reason": "NodeStatusUnknown", "message": "",
        "lastHeartbeatTime": null, "lastTransitionTime": since.to_string(),
    });
    let body = json!({ "status": {
        "conditions": [condition], "volumesInUse": [unique_name("v1")],
    }});
    patch_status(&stage.cluster.all::<Node>(), "n1", body).await;
}

async fn runs_on(stage: Stage) {
    // The story moves the clock, of which etcd's history knows nothing: to the checkers force comes too early.
    stage.expect_violations();
    let _attacher = stage.attacher();
    let daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.published("n1", &["v1"]).await;
    let attachment: VolumeAttachment = cluster.attachment("v1", "n1").await;
    let uid = attachment.metadata.uid.unwrap();
    let key = WaitKey::new(&VolumeId::parse(&unique_name("v1")).unwrap(), &"n1".into());
    let key = key.as_str();

    // The node dies, and its pod goes.
    set_ready(&stage, "Unknown", minutes_ago(10)).await;
    cluster.remove_pod("p1").await;
    let clocks: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), DAEMON_NAMESPACE);
    let is_kept = |map: Option<&ConfigMap>, expected: bool| {
        map.and_then(|map| map.data.as_ref()).is_some_and(|data| data.contains_key(key)) == expected
    };
    until(clocks.clone(), "mooring-wish-clock", "the clock is kept", |map| is_kept(map, true)).await;
    daemon.kill();

    let waits =
        |minutes| Wait { since: minutes_ago(minutes), attachment: Some(uid.as_str().into()) }.to_string();
    // Five minutes later it is not time yet, two more and it is.
    patch(&clocks, "mooring-wish-clock", json!({ "data": { key: waits(5) } })).await;
    let daemon = stage.daemon().await;
    cluster.node("n2").await;
    cluster.bound_pair("v2", "c2").await;
    cluster.pod("p2", "n2", &["c2"]).await;
    cluster.published("n2", &["v2"]).await;
    assert!(!stage.proxy.writes().iter().any(Proxy::is_detach));
    daemon.kill();
    patch(&clocks, "mooring-wish-clock", json!({ "data": { key: waits(7) } })).await;
    let _daemon = stage.daemon().await;
    cluster.detached("v1", "n1").await;
    until(clocks, "mooring-wish-clock", "the clock is forgotten", |map| is_kept(map, false)).await;
}
