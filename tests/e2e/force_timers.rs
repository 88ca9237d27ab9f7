//! The time that a dead node is given runs on over restarts of the daemon (S6), kept in a ConfigMap, and no clock of
//! another machine makes it shorter (S4, E10).

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::StatusCode;
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{ConfigMap, Node},
        storage::v1::VolumeAttachment,
    },
    jiff::{SignedDuration, Timestamp, Unit},
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use mooring::{
    attach_detach::{
        desired::volume_name::VolumeId,
        guard::force_timers::{WaitKey, Waited},
    },
    kube_api::lease::note,
};
use serde_json::json;
use test_support::{
    backend::Proxy,
    cluster::{patch, patch_status, unique_name, until, within_deadline},
    daemon::{Daemon, Launch},
};
use testbed::faults::{Answer, Write};

use crate::stage::{DAEMON_NAMESPACE, Stage, Story, story};

const MAP: &str = "mooring-force-detach-timers";
/// Under which 0.1.0 kept when waits began.
const EARLIER: &str = "mooring-wish-clock";

pub fn stories() -> Vec<Story> {
    vec![
        story("force_timers_run_on_over_a_restart", run_on),
        story("force_timers_are_not_shortened_by_another_clock", are_not_shortened),
        story("force_timers_are_believed_as_the_lease_says", are_believed),
        story("force_timers_that_cannot_be_kept_are_said_once", cannot_be_kept),
    ]
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

fn maps(stage: &Stage) -> Api<ConfigMap> {
    Api::namespaced(stage.cluster.client.clone(), DAEMON_NAMESPACE)
}

/// The timer of v1 on n1.
fn key() -> String {
    WaitKey::new(&VolumeId::parse(&unique_name("v1")).unwrap(), &"n1".into()).as_str().to_owned()
}

fn timer(map: Option<&ConfigMap>) -> Option<&String> {
    map?.data.as_ref()?.get(&key())
}

/// A pod's volume is on n1, that node dies, and its pod goes. What is noted then, when the daemon has died, too.
async fn waits(stage: &Stage) -> String {
    let daemon = stage.daemon().await;
    is_left_behind(stage).await;
    until(maps(stage), MAP, "the wait is noted", |map| timer(map).is_some()).await;
    daemon.kill();
    noted(stage).await
}

async fn noted(stage: &Stage) -> String {
    timer(Some(&maps(stage).get(MAP).await.unwrap())).unwrap().clone()
}

/// A pod's volume is on n1, that node dies, and its pod goes.
async fn is_left_behind(stage: &Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.published("n1", &["v1"]).await;
    set_ready(stage, "Unknown", minutes_ago(10)).await;
    cluster.remove_pod("p1").await;
}

/// A pod that comes later has its volume attached, and until then nothing was detached.
async fn nothing_is_detached(stage: &Stage, volume: &str, node: &str) {
    let (claim, pod) = (format!("c-{volume}"), format!("p-{volume}"));
    stage.cluster.node(node).await;
    stage.cluster.bound_pair(volume, &claim).await;
    stage.cluster.pod(&pod, node, &[&claim]).await;
    stage.cluster.published(node, &[volume]).await;
    assert!(!stage.proxy.writes().iter().any(Proxy::is_detach));
}

async fn starts_after(stage: &Stage, noted: &str, elapsed: u64) -> Daemon {
    has_lasted(stage, noted, elapsed).await;
    stage.daemon().await
}

/// The map says that it has waited for so many seconds.
async fn has_lasted(stage: &Stage, noted: &str, elapsed: u64) {
    let waited = Waited { elapsed: Duration::from_secs(elapsed), ..Waited::parse(noted).unwrap() };
    patch(&maps(stage), MAP, json!({ "data": { key(): waited.to_string() } })).await;
}

async fn run_on(stage: Stage) {
    let _attacher = stage.attacher();
    let noted = waits(&stage).await;
    // After five minutes it is not time yet, after six it is.
    let daemon = starts_after(&stage, &noted, 300).await;
    nothing_is_detached(&stage, "v2", "n2").await;
    daemon.kill();
    let _daemon = starts_after(&stage, &noted, 360).await;
    stage.cluster.detached("v1", "n1").await;
    until(maps(&stage), MAP, "the wait is forgotten", |map| map.is_some() && timer(map).is_none()).await;
}

async fn are_not_shortened(stage: Stage) {
    let _attacher = stage.attacher();
    waits(&stage).await;
    let attachment: VolumeAttachment = stage.cluster.attachment("v1", "n1").await;
    let uid = attachment.metadata.uid.unwrap();
    // By a clock that is behind, or by its own that was set since, the wait began long ago.
    let long_ago = format!("{} {uid}", minutes_ago(60));
    patch(&maps(&stage), MAP, json!({ "data": { key(): long_ago } })).await;
    let earlier =
        serde_json::from_value(json!({ "metadata": { "name": EARLIER }, "data": { key(): long_ago } }));
    maps(&stage).create(&PostParams::default(), &earlier.unwrap()).await.unwrap();
    let daemon = stage.daemon().await;
    until(maps(&stage), EARLIER, "what 0.1.0 kept is gone", |map| map.is_none()).await;
    until(maps(&stage), MAP, "the wait begins anew", |map| {
        let waited = timer(map).and_then(|text| Waited::parse(text));
        waited.is_some_and(|waited| waited.elapsed < Duration::from_mins(1))
    })
    .await;
    nothing_is_detached(&stage, "v2", "n2").await;
    // So it is if the node's condition says that it has not been Ready for longer than is known.
    daemon.kill();
    set_ready(&stage, "Unknown", minutes_ago(120)).await;
    let _daemon = stage.daemon().await;
    nothing_is_detached(&stage, "v3", "n3").await;
}

/// The map can be read and not written, and meanwhile a pod wants the volume again: a wait that is longer in the map
/// than it was is not gone on with. The next one is.
async fn are_believed(stage: Stage) {
    let leases: Api<Lease> = Api::namespaced(stage.cluster.client.clone(), DAEMON_NAMESPACE);
    leases.delete("mooring", &DeleteParams::default()).await.ok();
    let _attacher = stage.attacher();
    let launch = Launch::replica(DAEMON_NAMESPACE);
    let leader = stage.start_daemon(&launch, &stage.proxy).await;
    is_left_behind(&stage).await;
    until(maps(&stage), MAP, "the wait is noted", |map| timer(map).is_some()).await;
    for _ in 0..50 {
        let refusal = Answer::refusal(StatusCode::FORBIDDEN, "Forbidden");
        let is_to_the_map = |write: &Write| write.path.contains("/configmaps");
        let _ = stage.proxy.answer(is_to_the_map, refusal.status, refusal.body);
    }
    stage.cluster.pod("p1", "n1", &["c1"]).await;
    let broken_off = lease_says(&stage, "a wait was broken off", |told| !told.starts_with("0 ")).await;
    stage.cluster.remove_pod("p1").await;
    leader.kill();
    let before = noted(&stage).await;
    has_lasted(&stage, &before, 360).await;

    let proxy = stage.another_proxy().await;
    let next = stage.start_daemon(&launch, &proxy).await;
    until(maps(&stage), MAP, "the wait begins anew", |map| {
        let waited = timer(map).and_then(|text| Waited::parse(text));
        waited.is_some_and(|waited| waited.elapsed < Duration::from_mins(1))
    })
    .await;
    nothing_is_detached(&stage, "v2", "n2").await;
    assert!(!proxy.writes().iter().any(Proxy::is_detach));

    lease_says(&stage, "another leads", |told| told != broken_off).await;
    next.kill();
    has_lasted(&stage, &before, 360).await;
    let _last = stage.start_daemon(&launch, &proxy).await;
    stage.cluster.detached("v1", "n1").await;
}

/// Waits until the lease tells such a thing of broken waits.
async fn lease_says(stage: &Stage, what: &str, is_it: impl Fn(&str) -> bool) -> String {
    fn told(lease: Option<&Lease>) -> Option<&String> {
        lease?.metadata.annotations.as_ref()?.get(note::BROKEN_OFF)
    }
    let leases: Api<Lease> = Api::namespaced(stage.cluster.client.clone(), DAEMON_NAMESPACE);
    let what = format!("the lease says that {what}");
    let lease =
        until(leases, "mooring", &what, |lease: Option<&Lease>| told(lease).is_some_and(|told| is_it(told)));
    told(lease.await.as_ref()).cloned().unwrap()
}

/// A daemon outside the cluster, with the rights that it has where it is installed: it says once what it lacks, and
/// works on; told where its objects are it keeps its timers.
async fn cannot_be_kept(stage: Stage) {
    const WARNING: &str = "the timers of forced detaches cannot be kept";
    const ALARM: &str = "mooring_alarm{alarm=\"force_detach_timers\"}";
    let _attacher = stage.attacher();
    let asked = Arc::new(AtomicUsize::new(0));
    let is_real = stage.is_real();
    for _ in 0..if is_real { 1 } else { 50 } {
        let asked = Arc::clone(&asked);
        let is_refused = move |read: &testbed::faults::Read| {
            let is_it = read.target.contains(&format!("/namespaces/kube-system/configmaps/{MAP}"));
            asked.fetch_add(usize::from(is_it), Ordering::Relaxed);
            // The real server knows who may do what.
            is_it && !is_real
        };
        stage.proxy.answer_read(is_refused, Answer::refusal(StatusCode::FORBIDDEN, "Forbidden"));
    }
    let daemon = stage.start_daemon(&Launch::alone_and_astray(), &stage.proxy).await;
    is_left_behind(&stage).await;
    daemon.shows(&format!("{ALARM} 1")).await;
    daemon.page_says("/readyz?verbose", &format!("ConfigMap kube-system/{MAP} cannot be kept")).await;
    let tries = async {
        let mut pause = tokio::time::interval(Duration::from_millis(10));
        while asked.load(Ordering::Relaxed) < 3 {
            pause.tick().await;
        }
    };
    within_deadline("it tries again", tries).await.expect("it tries again");
    nothing_is_detached(&stage, "v2", "n2").await;
    assert_eq!(stage.logged(WARNING), 1, "it is said once");
    daemon.kill();

    let daemon = stage.daemon().await;
    until(maps(&stage), MAP, "the wait is noted", |map| timer(map).is_some()).await;
    daemon.shows(&format!("{ALARM} 0")).await;
    assert_eq!(stage.logged(WARNING), 1);
    // What its role does not allow, it has asked for on the real server, and did nothing else wrong.
    if is_real {
        stage.expects("the daemon's role does not allow what it asks for: get configmaps");
    }
}
