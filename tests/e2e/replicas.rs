//! Several replicas: one writes, another goes on when it dies, and a restart by itself changes
//! nothing.

use std::time::Duration;

use http::Method;
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::PersistentVolume},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};
use testbed::faults::Write;

use test_support::{
    backend::Proxy,
    cluster::{create, patch, patch_status, until},
    daemon::{Daemon, Launch},
    wire::Wire,
};
use tokio::time::Instant;

use crate::stage::{DAEMON_NAMESPACE, Stage, Story, story};

/// Longer than the server takes over a request with the lease of these tests.
const SHORTEST_HOLD: Duration = Duration::from_secs(8);

/// Seconds by which the clock of a story, whose time may pass faster, and what a page shows may disagree: fewer than a
/// lease needs to expire.
const CLOCK_SLACK: i64 = 2;

pub fn stories() -> Vec<Story> {
    vec![
        story("replicas_go_on_when_the_leader_is_killed", leader_killed)
            .also_real("The leader is a process that is killed, and its lease expires in real time."),
        story("replicas_hand_over_when_the_leader_is_stopped", leader_stopped)
            .also_real("A process that is asked to end gives back its lease in time."),
        story("replicas_begin_with_what_the_former_leader_wrote_last", leader_behind)
            .also_real("The watch cache of kube-apiserver may be behind what a leader wrote last."),
        story("replicas_l18_begin_with_waits_of_their_own", own_waits),
        story("replicas_l15_look_at_wanted_claims_first_and_measure_no_time_of_the_standby", wanted_claims),
        story("replicas_refuse_a_late_patch_of_a_former_leader", late_patch)
            .also_real("kube-apiserver refuses a patch that names an older revision."),
        story("replicas_refuse_a_late_delete_of_a_former_leader", late_delete)
            .also_real("kube-apiserver refuses a deletion that names another UID."),
        story("replicas_e9_a_create_whose_head_is_held_up_never_lands", head_held_up)
            .only_real("kube-apiserver reads requests that come in pieces."),
        story("replicas_e9_a_create_whose_body_is_held_up_never_lands", body_held_up)
            .only_real("kube-apiserver reads requests that come in pieces."),
        story("replicas_e9_a_patch_whose_body_is_held_up_never_lands", patch_held_up)
            .only_real_if_all("kube-apiserver reads requests that come in pieces."),
        story("replicas_e9_a_delete_whose_body_is_held_up_never_lands", delete_held_up)
            .only_real_if_all("kube-apiserver reads requests that come in pieces."),
        story("replicas_e9_a_leader_that_was_stopped_writes_nothing_when_it_goes_on", leader_frozen)
            .only_real("A process is stopped by a signal."),
        story("replicas_s10_a_deleted_lease_is_left_to_its_holder", lease_deleted),
        story("replicas_take_over_what_does_not_fit_on_a_page_without_listing_it", large_take_over)
            .also_real("Pages and resumed watches are those of etcd and the watch cache."),
        story("restart_with_attached_volumes_writes_nothing", quiet_restart)
            .also_real("kube-apiserver stores something else than was sent: it converts and defaults."),
    ]
}

/// Waits for a lease that is held by another replica than before.
pub async fn new_holder(stage: &Stage, before: &str) -> String {
    let leases: Api<Lease> = Api::namespaced(stage.cluster.client.clone(), DAEMON_NAMESPACE);
    let holder = |lease: &Lease| {
        let holder = lease.spec.as_ref()?.holder_identity.clone()?;
        (!holder.is_empty()).then_some(holder)
    };
    let what = format!("somebody other than {before:?} leads");
    let lease = until(leases, "mooring", &what, |lease: Option<&Lease>| {
        lease.and_then(holder).is_some_and(|holder| holder != before)
    });
    holder(&lease.await.unwrap()).unwrap()
}

async fn no_lease(stage: &Stage) {
    let leases: Api<Lease> = Api::namespaced(stage.cluster.client.clone(), DAEMON_NAMESPACE);
    leases.delete("mooring", &DeleteParams::default()).await.ok();
}

/// A proxy of its own for a replica, so that it is seen who writes.
pub async fn replica(stage: &Stage) -> (Proxy, Launch) {
    (stage.another_proxy().await, Launch::replica(DAEMON_NAMESPACE))
}

/// A replica that leads, with its proxy and its name on the lease.
pub async fn leader(stage: &Stage) -> (Proxy, Daemon, String) {
    no_lease(stage).await;
    let (proxy, launch) = replica(stage).await;
    let daemon = stage.start_daemon(&launch, &proxy).await;
    let holder = new_holder(stage, "").await;
    (proxy, daemon, holder)
}

pub async fn prepare(stage: &Stage, number: usize) {
    stage.cluster.bound_pair(&format!("v{number}"), &format!("c{number}")).await;
    stage.cluster.node(&format!("n{number}")).await;
}

async fn attach(stage: &Stage, number: usize) {
    let (volume, node) = (format!("v{number}"), format!("n{number}"));
    stage.cluster.pod(&format!("p{number}"), &node, &[&format!("c{number}")]).await;
    stage.cluster.published(&node, &[&volume]).await;
}

async fn leader_killed(stage: Stage) {
    let _attacher = stage.attacher();
    let (first_proxy, first, holder) = leader(&stage).await;
    let (second_proxy, second) = replica(&stage).await;
    let _second = stage.start_daemon(&second, &second_proxy).await;
    prepare(&stage, 1).await;
    prepare(&stage, 2).await;
    attach(&stage, 1).await;
    assert_eq!(first_proxy.attach_detach_writes().len(), 2);
    assert_eq!(second_proxy.counted(), 0);

    first.kill();
    attach(&stage, 2).await;
    let new = new_holder(&stage, &holder).await;
    assert_eq!(second_proxy.fresh_writes().len(), 2);

    // From etcd: all writes after the change of the lease are the second's, and none of its writes came
    // before (S36).
    let history = stage.history().await;
    let taken = history.iter().find(|change| {
        change.resource == "leases"
            && change.after.as_ref().is_some_and(|lease| lease["spec"]["holderIdentity"] == new.as_str())
    });
    let taken = taken.expect("the second has taken the lease").revision;
    for change in history.iter().filter(|change| change.resource == "volumeattachments") {
        let Some(after) = change.after.as_ref().filter(|_| change.before.is_none()) else { continue };
        let is_of_second = after["spec"]["nodeName"] == "n2";
        assert_eq!(change.revision > taken, is_of_second, "{change:?}");
    }
}

async fn leader_stopped(stage: Stage) {
    let _attacher = stage.attacher();
    let (_first_proxy, first, holder) = leader(&stage).await;
    let (second_proxy, second) = replica(&stage).await;
    let _second = stage.start_daemon(&second, &second_proxy).await;
    prepare(&stage, 1).await;
    prepare(&stage, 2).await;
    attach(&stage, 1).await;

    let status = first.terminate().await;
    assert_eq!(status, Some(0));
    new_holder(&stage, &holder).await;
    attach(&stage, 2).await;
    assert_eq!(second_proxy.fresh_writes().len(), 2);
    // The lease was given up, not left to expire.
    let released = stage.history().await.into_iter().any(|change| {
        change.resource == "leases"
            && change
                .after
                .is_some_and(|lease| lease["spec"]["holderIdentity"].as_str().is_none_or(str::is_empty))
    });
    assert!(released, "the lease was not released");
}

/// A replica whose watches are behind when it takes over reads what there is before it decides (S1, S38).
async fn leader_behind(stage: Stage) {
    let _attacher = stage.attacher();
    let (_first_proxy, first, holder) = leader(&stage).await;
    let (second_proxy, second) = replica(&stage).await;
    prepare(&stage, 1).await;
    prepare(&stage, 2).await;
    let _second = stage.start_daemon(&second, &second_proxy).await;
    for kind in ["volumeattachments", "nodes"] {
        second_proxy.watches().delay(kind);
    }
    attach(&stage, 1).await;

    first.kill();
    stage.cluster.remove_pod("p1").await;
    stage.cluster.pod("p2", "n2", &["c1"]).await;
    new_holder(&stage, &holder).await;
    stage.cluster.detached("v1", "n1").await;
    for kind in ["volumeattachments", "nodes"] {
        second_proxy.watches().resume(kind);
    }
    stage.cluster.published("n2", &["v1"]).await;
}

/// A new leader has waited for nothing before, measures nothing that began before, and takes nothing that the
/// former leader did for another's act.
async fn own_waits(stage: Stage) {
    let (_first_proxy, first, holder) = leader(&stage).await;
    let (second_proxy, second) = replica(&stage).await;
    let second = stage.start_daemon(&second, &second_proxy).await;
    let cluster = &stage.cluster;
    prepare(&stage, 1).await;
    prepare(&stage, 2).await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.attachment("v1", "n1").await;
    cluster.pod("p3", "n2", &["missing"]).await;
    let page = "/debug/attach-detach";
    for reason in ["WaitingForAttacher", "ClaimMissing"] {
        first.page_says(page, reason).await;
    }
    second.shows("mooring_watch_events_total{resource=\"pods\",type=\"added\"} 2").await;

    first.kill();
    new_holder(&stage, &holder).await;
    second.page_says(page, "WaitingForAttacher").await;
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), DAEMON_NAMESPACE);
    let lease = leases.get("mooring").await.unwrap();
    let acquired = lease.spec.and_then(|spec| spec.acquire_time).expect("it was acquired").0;
    let shown: Value = serde_json::from_str(&second.page(page).await).unwrap();
    let waiting = shown["waiting"].as_array().expect("rows");
    assert_eq!(waiting.len(), 2, "{waiting:?}");
    for row in waiting {
        let since: Timestamp = row["since"].as_str().expect("a time").parse().unwrap();
        let earliest = acquired.as_second() - CLOCK_SLACK;
        assert!(since.as_second() >= earliest, "since {since}, acquired {acquired}: {row}");
    }

    let _attacher = stage.attacher();
    cluster.published("n1", &["v1"]).await;
    second.page_says(page, "\"settled\":[{").await;
    let metrics = second.page("/metrics").await;
    let measured = ["mooring_attach_e2e_seconds_count", "storage_operation_duration_seconds_count"];
    for name in measured {
        let of_attach = |line: &&str| line.starts_with(name) && !line.contains("volume_detach");
        let series: Vec<&str> = metrics.lines().filter(of_attach).collect();
        assert!(series.iter().all(|line| line.ends_with(" 0")), "measured from before: {series:?}");
    }
    for kind in ["node_list_changed", "attachment_created"] {
        second.shows(&format!("mooring_foreign_writes_total{{kind=\"{kind}\"}} 0")).await;
    }
    // What begins now is measured.
    attach(&stage, 2).await;
    second.page_says("/metrics", "mooring_attach_e2e_seconds_count").await;
}

/// How long the daemon of [`wanted_claims`] stands by: longer than [`SLOWEST`].
const STANDS_BY: Duration = Duration::from_secs(12);
/// Upper end of a bucket, in seconds, that none of its work afterwards goes past.
const SLOWEST: f64 = 10.0;

/// Claims and volumes come while another leads, which does nothing about them. The successor binds the claim that keeps
/// a pod from being scheduled before most others, although its name comes last, and measures none from before it led.
async fn wanted_claims(stage: Stage) {
    const OTHERS: usize = 150;
    no_lease(&stage).await;
    let leases: Api<Lease> = Api::namespaced(stage.cluster.client.clone(), DAEMON_NAMESPACE);
    let now = MicroTime(Timestamp::now());
    let spec = json!({ "holderIdentity": "another", "leaseDurationSeconds": 3_600, "acquireTime": now, "renewTime": now });
    create(&leases, json!({ "metadata": { "name": "mooring" }, "spec": spec })).await;
    let (proxy, launch) = replica(&stage).await;
    let daemon = stage.start_daemon(&launch, &proxy).await;
    let stood_by = Instant::now() + STANDS_BY;
    let cluster = &stage.cluster;
    let pairs = (0..OTHERS).map(|number| async move {
        let (volume, claim) = (format!("v{number}"), format!("c{number}"));
        cluster.volume(&volume).await;
        patch_status(&cluster.all::<PersistentVolume>(), &volume, available()).await;
        cluster.claim(&claim).await;
    });
    futures::future::join_all(pairs).await;
    cluster.volume("last").await;
    patch_status(&cluster.all::<PersistentVolume>(), "last", available()).await;
    cluster.claim("wanted").await;
    cluster.pod("p", "", &["wanted"]).await;
    let events = "mooring_watch_events_total{resource=\"persistentvolumeclaims\",type=\"added\"}";
    daemon.shows(&format!("{events} {}", OTHERS + 1)).await;
    tokio::time::sleep_until(stood_by).await;
    assert_eq!(proxy.counted(), 0);

    patch(&leases, "mooring", json!({ "spec": { "holderIdentity": "", "leaseDurationSeconds": 1 } })).await;
    for number in 0..OTHERS {
        cluster.claim_phase(&format!("c{number}"), "Bound").await;
    }
    cluster.claim_phase("wanted", "Bound").await;
    // A bind begins with the volume's reference to the claim; when it ends is a matter of many requests at once.
    let mut order: Vec<String> = Vec::new();
    for write in proxy.writes() {
        let claim = write.body.pointer("/spec/claimRef/name").and_then(Value::as_str).unwrap_or_default();
        if !claim.is_empty() && !order.iter().any(|known| known == claim) {
            order.push(claim.to_owned());
        }
    }
    let place = order.iter().position(|name| *name == "wanted");
    assert!(
        order.len() == OTHERS + 1 && place.is_some_and(|place| place < OTHERS / 2),
        "{place:?} {order:?}"
    );

    let metrics = daemon.page("/metrics").await;
    for (name, label, least) in [
        ("mooring_bind_", "", OTHERS + 1),
        ("workqueue_queue_duration_seconds", "name=\"claims\"", OTHERS + 1),
    ] {
        let (count, within) = observations(&metrics, name, label);
        assert!(
            count >= least && within == count,
            "{name}: {within} of {count} within {SLOWEST} s\n{metrics}"
        );
    }
    let volume = cluster.all::<PersistentVolume>().get("last").await.unwrap();
    let managers: Vec<String> =
        volume.metadata.managed_fields.into_iter().flatten().filter_map(|entry| entry.manager).collect();
    assert!(managers.iter().any(|manager| manager == "mooring"), "{managers:?}");
}

/// As the one that leads leaves a free volume.
fn available() -> Value {
    json!({ "status": { "phase": "Available" } })
}

/// All observations of the histograms whose name begins so and that have this label, and those of them within
/// [`SLOWEST`].
fn observations(metrics: &str, name: &str, label: &str) -> (usize, usize) {
    let of = |is_it: &dyn Fn(&str) -> bool| {
        let lines =
            metrics.lines().filter(|line| line.starts_with(name) && line.contains(label) && is_it(line));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum()
    };
    let bound = |line: &str| line.split_once("le=\"")?.1.split_once('"')?.0.parse::<f64>().ok();
    let is_slowest = |line: &str| bound(line).is_some_and(|bound| (bound - SLOWEST).abs() < SLOWEST / 100.0);
    (of(&|line| line.contains("_count")), of(&is_slowest))
}

/// A request of the first daemon is on its way while the daemon dies, the second finishes the detach and
/// attaches the volume to the same node again; then the request arrives (S37).
async fn late_write(stage: &Stage, is_late: fn(&Write) -> bool) {
    let _attacher = stage.attacher();
    let first_proxy = stage.another_proxy().await;
    let first = stage.start_daemon(&Launch::alone(), &first_proxy).await;
    prepare(stage, 1).await;
    attach(stage, 1).await;
    let late = first_proxy.delay(is_late);
    stage.cluster.remove_pod("p1").await;
    late.reached().await;
    first.kill();

    let _second = stage.daemon().await;
    stage.cluster.detached("v1", "n1").await;
    attach(stage, 1).await;
    let kept = stage.cluster.attachment("v1", "n1").await;

    late.release();
    let answer = late.answered().await;
    assert_eq!(answer.status.unwrap(), 409, "{answer:?}");
    // Something later, and all is as it was.
    prepare(stage, 2).await;
    attach(stage, 2).await;
    stage.cluster.published("n1", &["v1"]).await;
    let now = stage.cluster.attachment("v1", "n1").await;
    assert_eq!((now.metadata.uid, now.metadata.deletion_timestamp), (kept.metadata.uid, None));
}

async fn late_patch(stage: Stage) {
    late_write(&stage, |write| write.is(&Method::PATCH, "/nodes/n1/status")).await;
}

async fn late_delete(stage: Stage) {
    late_write(&stage, |write| write.is(&Method::DELETE, "/volumeattachments/")).await;
}

/// E9, S1: the leader's POST of a VolumeAttachment, which has no precondition, is held up on its way, together with
/// all that the leader sends, so that another takes over. The pod is moved meanwhile; then the POST arrives.
async fn create_held_up(stage: &Stage, after_chunks: usize) {
    let _attacher = stage.attacher();
    no_lease(stage).await;
    let wire = Wire::to(stage.real().plane.url()).await;
    let launch = Launch::replica(DAEMON_NAMESPACE);
    let _first = stage.wired_daemon(&launch, &wire).await;
    let holder = new_holder(stage, "").await;
    let (second_proxy, second) = replica(stage).await;
    let _second = stage.start_daemon(&second, &second_proxy).await;
    for number in 1..=4 {
        prepare(stage, number).await;
    }
    // Its connections are open.
    attach(stage, 3).await;

    wire.hold_after(after_chunks);
    stage.cluster.pod("p1", "n1", &["c1"]).await;
    // The POST and the renewal.
    wire.holds(2).await;
    let held = Instant::now();
    new_holder(stage, &holder).await;
    stage.cluster.remove_pod("p1").await;
    stage.cluster.pod("moved", "n2", &["c1"]).await;
    stage.cluster.published("n2", &["v1"]).await;
    tokio::time::sleep_until(held + SHORTEST_HOLD).await;
    wire.release().await;

    // Something later, and the volume has stayed where it is; that it never was elsewhere is checked of all
    // stories (S1).
    attach(stage, 4).await;
    stage.cluster.published("n2", &["v1"]).await;
    assert!(stage.cluster.attachment_now("v1", "n1").await.is_none());
}

async fn head_held_up(stage: Stage) {
    create_held_up(&stage, 0).await;
}

async fn body_held_up(stage: Stage) {
    create_held_up(&stage, 1).await;
}

/// E9, S37: the same with the leader's patch of a node, which is about to withdraw a volume that is attached again by
/// the time it arrives.
async fn patch_held_up(stage: Stage) {
    let _attacher = stage.attacher();
    no_lease(&stage).await;
    let wire = Wire::to(stage.real().plane.url()).await;
    let _first = stage.wired_daemon(&Launch::replica(DAEMON_NAMESPACE), &wire).await;
    let holder = new_holder(&stage, "").await;
    let (second_proxy, second) = replica(&stage).await;
    let _second = stage.start_daemon(&second, &second_proxy).await;
    prepare(&stage, 1).await;
    prepare(&stage, 2).await;
    attach(&stage, 1).await;

    wire.hold_after(1);
    stage.cluster.remove_pod("p1").await;
    // The PATCH and the renewal.
    wire.holds(2).await;
    let held = Instant::now();
    new_holder(&stage, &holder).await;
    stage.cluster.detached("v1", "n1").await;
    attach(&stage, 1).await;
    let kept = stage.cluster.attachment("v1", "n1").await;
    tokio::time::sleep_until(held + SHORTEST_HOLD).await;
    wire.release().await;

    attach(&stage, 2).await;
    stage.cluster.published("n1", &["v1"]).await;
    assert_eq!(stage.cluster.attachment("v1", "n1").await.metadata.uid, kept.metadata.uid);
}

/// The same with its deletion of an attachment that no driver has attached yet, and that is made anew by the time it
/// arrives.
async fn delete_held_up(stage: Stage) {
    no_lease(&stage).await;
    let wire = Wire::to(stage.real().plane.url()).await;
    let _first = stage.wired_daemon(&Launch::replica(DAEMON_NAMESPACE), &wire).await;
    let holder = new_holder(&stage, "").await;
    let (second_proxy, second) = replica(&stage).await;
    let _second = stage.start_daemon(&second, &second_proxy).await;
    prepare(&stage, 1).await;
    prepare(&stage, 2).await;
    stage.cluster.pod("p1", "n1", &["c1"]).await;
    let first_made = stage.cluster.attachment("v1", "n1").await;

    wire.hold_after(1);
    stage.cluster.remove_pod("p1").await;
    // The DELETE and the renewal.
    wire.holds(2).await;
    let held = Instant::now();
    new_holder(&stage, &holder).await;
    stage.cluster.detached("v1", "n1").await;
    stage.cluster.pod("p1", "n1", &["c1"]).await;
    let made_anew = stage.cluster.attachment("v1", "n1").await;
    assert_ne!(made_anew.metadata.uid, first_made.metadata.uid);
    tokio::time::sleep_until(held + SHORTEST_HOLD).await;
    wire.release().await;

    let _attacher = stage.attacher();
    attach(&stage, 2).await;
    stage.cluster.published("n1", &["v1"]).await;
    assert_eq!(stage.cluster.attachment("v1", "n1").await.metadata.uid, made_anew.metadata.uid);
}

/// E9: the leader's process is stopped, as when its machine is suspended, and goes on when another leads.
async fn leader_frozen(stage: Stage) {
    let _attacher = stage.attacher();
    let (first_proxy, first, holder) = leader(&stage).await;
    let (second_proxy, second) = replica(&stage).await;
    let _second = stage.start_daemon(&second, &second_proxy).await;
    for number in 1..=3 {
        prepare(&stage, number).await;
    }
    attach(&stage, 1).await;
    let written = first_proxy.counted();

    first.freeze();
    stage.cluster.remove_pod("p1").await;
    stage.cluster.pod("p2", "n2", &["c1"]).await;
    new_holder(&stage, &holder).await;
    stage.cluster.published("n2", &["v1"]).await;
    first.thaw();
    assert_eq!(first.ended().await, Some(1), "it has lost the lease");

    attach(&stage, 3).await;
    assert_eq!(first_proxy.counted(), written, "{:#?}", first_proxy.fresh_writes());
}

/// S10: a user deletes the lease while another replica starts.
async fn lease_deleted(stage: Stage) {
    let _attacher = stage.attacher();
    let (first_proxy, _first, holder) = leader(&stage).await;
    prepare(&stage, 1).await;
    no_lease(&stage).await;
    let (second_proxy, second) = replica(&stage).await;
    let _second = stage.start_daemon(&second, &second_proxy).await;
    assert_eq!(new_holder(&stage, "").await, holder);
    attach(&stage, 1).await;
    assert_eq!((first_proxy.attach_detach_writes().len(), second_proxy.counted()), (2, 0));
    assert_eq!(new_holder(&stage, "").await, holder);
}

/// The kind with most objects has more than a page of them, and nothing happens to it: the new leader's watch of it is
/// behind, and comes up to now without a list.
async fn large_take_over(stage: Stage) {
    let _attacher = stage.attacher();
    let (_first_proxy, first, holder) = leader(&stage).await;
    let (second_proxy, second) = replica(&stage).await;
    for batch in 0..26 {
        let numbers = (100 + batch * 20)..(120 + batch * 20);
        futures::future::join_all(numbers.map(|number| prepare_node(&stage, number))).await;
    }
    prepare(&stage, 1).await;
    let second = stage.start_daemon(&second, &second_proxy).await;

    assert_eq!(first.terminate().await, Some(0));
    new_holder(&stage, &holder).await;
    attach(&stage, 1).await;
    second.shows("mooring_watch_lists_total{cause=\"behind\",resource=\"nodes\"} 0").await;
    second.shows("mooring_watch_lists_total{cause=\"behind\",resource=\"persistentvolumes\"} 1").await;
}

async fn prepare_node(stage: &Stage, number: usize) {
    stage.cluster.node(&format!("n{number}")).await;
}

/// S39: what is as it should be is left alone.
async fn quiet_restart(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let daemon = stage.daemon().await;
    for number in 1..=4 {
        prepare(&stage, number).await;
    }
    for number in 1..=3 {
        attach(&stage, number).await;
        stage.cluster.running(&format!("p{number}")).await;
    }
    daemon.kill();
    let before = stage.proxy.fresh_writes().len();
    let _daemon = stage.daemon().await;
    // It has looked at everything when it does what is new.
    attach(&stage, 4).await;
    let writes = &stage.proxy.fresh_writes()[before..];
    assert_eq!(writes.len(), 2, "{writes:#?}");
    assert!(writes[1].path.ends_with("/nodes/n4/status"), "{writes:#?}");
}
