//! The time that a dead node is given runs on over a change of leader if the lease carries it, and is never shorter (S6).
//! On the embedded server six minutes pass at once.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::Lease,
    jiff::{SignedDuration, Timestamp},
};
use kube::Api;
use mooring::attach_detach::guard::wait_note::NODES_NOT_READY;
use serde_json::json;
use test_support::{
    backend::Proxy,
    cluster::{patch, until},
    daemon::{Daemon, Launch},
};
use tokio::time::Instant;

use crate::{
    force::{set_ready, stuck_volume},
    stage::{DAEMON_NAMESPACE, Stage, Story, story},
};

pub fn stories() -> Vec<Story> {
    vec![
        story("force_waits_run_on_over_a_change_of_leader", run_on),
        story("force_waits_begin_anew_if_another_program_led_meanwhile", begin_anew),
    ]
}

const MINUTE: Duration = Duration::from_mins(1);
/// What a change of leader may cost: an entry of the lease is so old, and so is the lease when it expires.
const CHANGE: Duration = Duration::from_secs(30);

fn leases(stage: &Stage) -> Api<Lease> {
    Api::namespaced(stage.cluster.client.clone(), DAEMON_NAMESPACE)
}

async fn replica(stage: &Stage) -> Daemon {
    stage.start_daemon(&Launch::replica(DAEMON_NAMESPACE), &stage.proxy).await
}

fn is_told(lease: Option<&Lease>) -> bool {
    let annotations = lease.and_then(|lease| lease.metadata.annotations.as_ref());
    annotations.is_some_and(|annotations| annotations.contains_key(NODES_NOT_READY))
}

/// A volume has waited on n1 for four minutes when its leader dies. Returns since when it waits.
async fn leader_dies(stage: &Stage) -> Instant {
    let leader = replica(stage).await;
    stuck_volume(stage).await;
    set_ready(stage, "Unknown", Timestamp::now() - SignedDuration::from_mins(60)).await;
    stage.cluster.remove_pod("p1").await;
    let since = Instant::now();
    until(leases(stage), "mooring", "the lease carries the wait", is_told).await;
    tokio::time::sleep_until(since + 4 * MINUTE).await;
    leader.kill();
    since
}

/// Nothing is detached before that, and soon afterwards it is.
async fn is_forced_at(stage: &Stage, at: Instant) {
    tokio::time::sleep_until(at).await;
    assert!(!stage.proxy.writes().iter().any(Proxy::is_detach), "S4: shorter than six minutes");
    stage.cluster.detached("v1", "n1").await;
    assert!(Instant::now() < at + 2 * CHANGE, "L6: later than it has to be");
    until(leases(stage), "mooring", "the lease carries nothing", |lease| !is_told(lease)).await;
}

async fn run_on(stage: Stage) {
    let _attacher = stage.attacher();
    let since = leader_dies(&stage).await;
    let _next = replica(&stage).await;
    is_forced_at(&stage, since + 6 * MINUTE - Duration::from_secs(1)).await;
}

async fn begin_anew(stage: Stage) {
    let _attacher = stage.attacher();
    leader_dies(&stage).await;
    let lease = leases(&stage).get("mooring").await.unwrap();
    let transitions = lease.spec.and_then(|spec| spec.lease_transitions).unwrap_or_default();
    let spec =
        json!({ "holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": transitions + 1 });
    patch(&leases(&stage), "mooring", json!({ "spec": spec })).await;
    let started = Instant::now();
    let _next = replica(&stage).await;
    is_forced_at(&stage, started + 6 * MINUTE - Duration::from_secs(1)).await;
}
