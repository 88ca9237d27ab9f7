//! A restore of etcd from a backup (E11): what the daemon knew no longer holds, what the cluster says may be
//! of the past, so it starts over and takes nothing away for five minutes.

use apiserver::restore::RESTORE_GRACE;
use http::Method;
use k8s_openapi::api::{
    apps::v1::Deployment,
    coordination::v1::Lease,
    core::v1::{PersistentVolume, PersistentVolumeClaim},
};
use kube::{Api, api::DeleteParams};

use serde_json::{Value, json};
use test_support::{
    actors::{Attacher, AttacherBehaviour},
    attributes_class::VolumeAttributesClass,
    audit,
    backend::Proxy,
    cluster::{Cluster, DRIVER, create, patch, patch_status, until},
    control_plane::{ControlPlane, User},
    daemon::{Daemon, Launch},
    invariants,
};
use testbed::faults::Write;
use tokio::time::Instant;

use crate::{
    ephemeral, expander,
    fence::{STOCK_FLAGS, the_two},
    replicas::leader,
    stage::{DAEMON_NAMESPACE, PROGRAM, Stage, Story, install, story},
    switching::{Switching, deployment},
};

/// How far `etcdutl snapshot restore --bump-revision` usually moves the revisions.
const BUMP: u64 = 1_000_000_000;

const RESTORED: &str = "etcd is restored there, and all servers begin anew.";

pub fn stories() -> Vec<Story> {
    let mut stories = Vec::new();
    for (name, bump) in [("plain", 0), ("bumped", BUMP)] {
        for (replica, with_lease) in [("alone", false), ("with_a_lease", true)] {
            let play = move |stage| embedded(stage, bump, with_lease);
            let name = format!("restore_of_{name}_revisions_takes_nothing_away_for_five_minutes_{replica}");
            stories.push(story(name, play).only_embedded());
        }
    }
    for (name, bumped) in [("plain", false), ("bumped", true)] {
        let story = story(format!("restore_of_etcd_with_{name}_revisions_starts_over"), move |stage| {
            real(stage, bumped)
        });
        stories.push(story.only_real(RESTORED));
    }
    for (name, bump) in [("plain", 0), ("bumped", BUMP)] {
        let play = move |stage| embedded_storage(stage, bump);
        let name = format!(
            "restore_of_{name}_revisions_makes_again_what_is_lost_and_keeps_a_class_for_five_minutes"
        );
        stories.push(story(name, play).only_embedded());
    }
    for (name, bump) in [("plain", 0), ("bumped", BUMP)] {
        let play = move |stage| embedded_unwatched(stage, bump);
        let name = format!("restore_of_{name}_revisions_while_the_only_replica_is_away_is_not_noticed");
        stories.push(story(name, play).only_embedded());
    }
    let name = "restore_s47_a_signal_while_it_starts_over_ends_it_in_order";
    stories.push(story(name, ended_while_it_starts_over).only_embedded());
    stories.push(
        story("restore_of_etcd_while_the_only_replica_is_away_is_not_noticed", real_unwatched)
            .only_real(RESTORED),
    );
    stories.push(
        story("restore_of_etcd_to_before_the_fence_is_followed_by_the_same_switch", before_the_fence)
            .only_real_if_all(RESTORED),
    );
    stories
}

/// One replica on the machine of etcd and the API server, whose end and restart all of them share. What the daemon knew is
/// gone, and the restored cluster is all that the next one sees: there is no grace, as docs/differences.md says.
async fn embedded_unwatched(stage: Stage, bump: u64) {
    let attacher = stage.attacher();
    let launch = Launch::replica(DAEMON_NAMESPACE);
    let daemon = stage.start_daemon(&launch, &stage.proxy).await;
    two_nodes_with_a_pod_on_the_first(&stage.cluster).await;
    let backup = stage.embedded().backup();
    move_on(&stage.cluster).await;

    daemon.kill();
    drop(attacher);
    stage.history_ends().await;
    stage.embedded().restore(&backup, bump);
    let _attacher = stage.attacher();
    let daemon = stage.start_daemon(&launch, &stage.proxy).await;
    let begun = Instant::now();
    without_grace(&stage.cluster, &daemon).await;
    assert!(begun.elapsed() < RESTORE_GRACE / 2, "{:?}", begun.elapsed());
    assert_eq!(invariants::check_requests(&stage.requests()), [""; 0]);
    let leases: Api<Lease> = Api::namespaced(stage.cluster.client.clone(), DAEMON_NAMESPACE);
    leases.delete("mooring", &DeleteParams::default()).await.ok();
}

/// What was under way is finished, and the lease is given up, so the next one need not wait for it to expire.
async fn ended_while_it_starts_over(stage: Stage) {
    let _attacher = stage.attacher();
    let (proxy, daemon, _) = leader(&stage).await;
    let cluster = &stage.cluster;
    two_nodes_with_a_pod_on_the_first(cluster).await;
    let backup = stage.embedded().backup();
    let held = proxy.hold(|write| write.is(&Method::POST, "/volumeattachments"));
    cluster.pod("second", "n2", &["c2"]).await;
    held.reached().await;

    stage.history_ends().await;
    stage.embedded().restore(&backup, 0);
    daemon.shows("mooring_alarm{alarm=\"etcd_restored\"} 1").await;
    let ended = tokio::spawn(daemon.terminate());
    tokio::task::yield_now().await;
    held.release();
    assert_eq!(ended.await.unwrap(), Some(0));
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), DAEMON_NAMESPACE);
    let lease = leases.get("mooring").await.unwrap();
    assert_eq!(lease.spec.unwrap().holder_identity.as_deref(), Some(""), "it was given up");
}

/// A control plane that no other story sees, the daemon's token for it, and its cluster.
async fn etcd_of_its_own(stage: &Stage) -> (ControlPlane, String, Cluster) {
    let plane = ControlPlane::start(&stage.real().assets).await;
    let token = install(&plane).await;
    let cluster = Cluster::new(plane.client(User::Admin));
    (plane, token, cluster)
}

fn start_attacher(plane: &ControlPlane) -> Attacher {
    Attacher::start(plane.client(User::Attacher), DRIVER, AttacherBehaviour::default())
}

/// The same on an etcd of its own.
async fn real_unwatched(stage: Stage) {
    let (mut plane, token, cluster) = etcd_of_its_own(&stage).await;
    let attacher = start_attacher(&plane);
    let start_daemon = |plane: &ControlPlane| {
        Launch::replica(DAEMON_NAMESPACE).start_process(PROGRAM, &plane.kubeconfig(plane.url(), &token))
    };
    let daemon = start_daemon(&plane);
    daemon.ready().await;
    two_nodes_with_a_pod_on_the_first(&cluster).await;
    daemon.kill();
    let backup = plane.back_up().await;
    let daemon = start_daemon(&plane);
    daemon.ready().await;
    move_on(&cluster).await;

    drop(attacher);
    daemon.kill();
    plane.restore(&backup, true).await;
    let _attacher = start_attacher(&plane);
    let daemon = start_daemon(&plane);
    daemon.ready().await;
    without_grace(&cluster, &daemon).await;
}

/// A daemon that has not seen a restore goes by the cluster as it is: the volume that was on n2 is held by n1, where the backup
/// has it, so that no second machine gets it from this cluster; and what ends is taken away at once.
async fn without_grace(cluster: &Cluster, daemon: &Daemon) {
    cluster.published("n1", &["v1"]).await;
    cluster.pod("again", "n2", &["c1"]).await;
    daemon.page_says("/debug/attach-detach", "HeldByNode").await;
    daemon.shows("mooring_alarm{alarm=\"etcd_restored\"} 0").await;
    assert!(cluster.attachment_now("v1", "n2").await.is_none());
    cluster.remove_pod("old").await;
    cluster.published("n2", &["v1"]).await;
    assert!(cluster.attachment_now("v1", "n1").await.is_none());
    cluster.delete_claim("c2").await;
    cluster.volume_phase("v2", "Released").await;
    daemon.shows("mooring_alarm{alarm=\"etcd_restored\"} 0").await;
}

/// The same on an etcd of its own, as far as five minutes need not pass.
async fn real(stage: Stage, bumped: bool) {
    let (mut plane, token, cluster) = etcd_of_its_own(&stage).await;
    let attacher = start_attacher(&plane);
    // Its lease would not outlast the restart of the servers.
    let daemon = Launch::alone().start_process(PROGRAM, &plane.kubeconfig(plane.url(), &token));
    daemon.ready().await;
    two_nodes_with_a_pod_on_the_first(&cluster).await;
    let backup = plane.back_up().await;
    move_on(&cluster).await;

    drop(attacher);
    plane.restore(&backup, bumped).await;
    let _attacher = start_attacher(&plane);
    daemon.shows("mooring_alarm{alarm=\"etcd_restored\"} 1").await;
    cluster.pod("third", "n2", &["c2"]).await;
    cluster.published("n2", &["v2"]).await;
    cluster.remove_pod("old").await;
    daemon.page_says("/debug/attach-detach", "RestoreGrace").await;
    let attachment = cluster.attachment("v1", "n1").await;
    assert_eq!(attachment.metadata.deletion_timestamp, None);
}

/// The backup that is put back is from before the way over: it has neither the fence nor mooring's lease. mooring stands by as it did
/// then, and leads again when the same command has been run again. What the backup has attached stays for the whole grace.
async fn before_the_fence(stage: Stage) {
    let (mut plane, token, cluster) = etcd_of_its_own(&stage).await;
    let attacher = start_attacher(&plane);
    // Leases that outlast the restart of the servers. For as long as one lasts, nobody takes it that was deleted.
    let leases = ["--leader-elect-lease-duration=40s", "--leader-elect-renew-deadline=30s"];
    let loops = the_two().map(|fence| fence.controller);
    let flags = [&STOCK_FLAGS[..], &["--leader-elect=true"], &leases].concat();
    let manager = plane.controller_manager(&loops, &flags);
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), DAEMON_NAMESPACE);
    create(&deployments, deployment()).await;
    let ready = json!({ "status": {
        "observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1,
    } });
    patch_status(&deployments, "mooring", ready).await;
    let launch = leases
        .iter()
        .fold(Launch::replica_by_default(DAEMON_NAMESPACE), |launch, flag| launch.with(flag))
        .with("--fence");
    let daemon = launch.start_process(PROGRAM, &plane.kubeconfig(plane.url(), &token));
    daemon.shows("mooring_fence{state=\"absent\"} 1").await;
    two_nodes_with_a_pod_on_the_first(&cluster).await;
    let backup = plane.snapshot();

    let kubeconfig = plane.kubeconfig(plane.url(), &plane.token(User::Admin));
    let over = async || {
        let (code, said) = Switching::begin(&kubeconfig, &["--to", "mooring", "--yes"]).ended().await;
        assert!(code == Some(0) && said.contains("done"), "{code:?} {said}");
    };
    over().await;
    cluster.remove_pod("old").await;
    cluster.detached("v1", "n1").await;

    drop((attacher, manager));
    let sent = audit::length(&plane.audit_log());
    plane.restore(&backup, true).await;
    daemon.shows("mooring_alarm{alarm=\"etcd_restored\"} 1").await;
    // It has started over, and has never seen a fence.
    daemon.shows("mooring_fence{state=\"absent\"} 1").await;
    daemon.shows("mooring_election_fitness{fitness=\"unfenced\"} 1").await;
    let _attacher = start_attacher(&plane);
    let _manager = plane.controller_manager(&loops, &flags);
    over().await;
    cluster.remove_pod("old").await;
    daemon.page_says("/debug/attach-detach", "RestoreGrace").await;
    let attachment = cluster.attachment("v1", "n1").await;
    assert_eq!(attachment.metadata.deletion_timestamp, None);
    cluster.pod("third", "n2", &["c2"]).await;
    cluster.published("n2", &["v2"]).await;
    let mut requests = audit::read(&plane.audit_log(), sent);
    // A server that has just started refuses everybody until it has read the roles.
    requests.retain(|entry| entry.code != 403);
    let deleted: Vec<_> = requests
        .iter()
        .filter(|entry| entry.user == audit::DAEMON && entry.verb == "delete" && entry.code < 300)
        .collect();
    assert!(deleted.is_empty(), "{deleted:#?}");
    assert_eq!(invariants::check_requests(&requests), [""; 0]);
}

async fn two_nodes_with_a_pod_on_the_first(cluster: &Cluster) {
    cluster.node("n1").await;
    cluster.node("n2").await;
    for (volume, claim) in [("v1", "c1"), ("v2", "c2")] {
        cluster.bound_pair(volume, claim).await;
    }
    cluster.pod("old", "n1", &["c1"]).await;
    cluster.published("n1", &["v1"]).await;
}

/// The pod moves to the second node, and a claim goes.
async fn move_on(cluster: &Cluster) {
    cluster.remove_pod("old").await;
    cluster.detached("v1", "n1").await;
    cluster.pod("new", "n2", &["c1"]).await;
    cluster.published("n2", &["v1"]).await;
    cluster.delete_claim("c2").await;
    cluster.volume_phase("v2", "Released").await;
}

/// A pod moves from n1 to n2 after the backup was made; after the restore it is on n1 again.
async fn embedded(stage: Stage, bump: u64, with_lease: bool) {
    let attacher = stage.attacher();
    let launch = if with_lease { Launch::replica(DAEMON_NAMESPACE) } else { Launch::alone() };
    let daemon = stage.start_daemon(&launch, &stage.proxy).await;
    let cluster = &stage.cluster;
    two_nodes_with_a_pod_on_the_first(cluster).await;
    let backup = stage.embedded().backup();

    move_on(cluster).await;
    assert!(!daemon.page("/readyz?verbose").await.contains("etcd_restored"));

    drop(attacher);
    stage.history_ends().await;
    stage.embedded().restore(&backup, bump);
    let _attacher = stage.attacher();
    daemon.shows("mooring_alarm{alarm=\"etcd_restored\"} 1").await;
    daemon.page_says("/readyz?verbose", "etcd_restored: etcd was restored").await;
    let restored = Instant::now();
    // What was proven of the claim before the restore is void: it is there again; and its volume is as new as what
    // was released.
    let volumes: Api<PersistentVolume> = Api::all(cluster.client.clone());
    patch(&volumes, "v2", json!({ "metadata": { "labels": { "touched": "yes" } } })).await;

    // The tables are those of the restored cluster: work on them goes on.
    cluster.pod("third", "n2", &["c2"]).await;
    cluster.published("n2", &["v2"]).await;
    // What would take something away waits, and says until when.
    cluster.bound_pair("v9", "c9").await;
    cluster.delete_claim("c9").await;
    cluster.event("v9", "RestoreGrace").await;
    let page: Value = serde_json::from_str(&daemon.page("/debug/binder").await).unwrap();
    let row = page["waiting"].as_array().unwrap().iter().find(|row| row["volume"] == "v9").expect("it waits");
    assert!(row["reason"] == "RestoreGrace" && row["until"].is_string(), "{row}");
    let detaches = stage.proxy.writes().iter().filter(|write| Proxy::is_detach(write)).count();
    cluster.remove_pod("old").await;
    tokio::time::sleep_until(restored + RESTORE_GRACE.mul_f64(0.9)).await;
    assert_eq!(stage.proxy.writes().iter().filter(|write| Proxy::is_detach(write)).count(), detaches);
    daemon.page_says("/debug/attach-detach", "RestoreGrace").await;
    tokio::time::sleep_until(restored + RESTORE_GRACE).await;
    cluster.detached("v1", "n1").await;
    daemon.shows("mooring_alarm{alarm=\"etcd_restored\"} 0").await;
    // What was held back is done by now, and that was not among it.
    cluster.delete_claim("c1").await;
    cluster.volume_phase("v1", "Released").await;
    cluster.volume_phase("v2", "Bound").await;
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), DAEMON_NAMESPACE);
    leases.delete("mooring", &DeleteParams::default()).await.ok();
}

/// All seven controllers: the backup has neither a claim of a pod nor the name of a resizer, which were made after it; and a class
/// that is being deleted, which the lists that were made after it showed to be unused.
async fn embedded_storage(stage: Stage, bump: u64) {
    let daemon = stage.start_daemon(&Launch::alone().with("--controllers=storage"), &stage.proxy).await;
    let cluster = &stage.cluster;
    let (classes, claims) =
        (cluster.all::<VolumeAttributesClass>(), cluster.namespaced::<PersistentVolumeClaim>());
    cluster.node("n1").await;
    cluster.attributes_class("gold").await;
    cluster.claim_of_attributes_class("user", "gold").await;
    until(classes.clone(), "gold", "it is protected", VolumeAttributesClass::is_protected).await;
    classes.delete("gold", &DeleteParams::default()).await.unwrap();
    daemon.page_says("/debug/vac-protection", "Terminating").await;
    let grown = expander::pair(&stage, 0, expander::ebs()).await;
    let annotated = stage.proxy.hold(|write| write.is(&Method::PATCH, "/persistentvolumeclaims/c0/status"));
    let made = stage.proxy.hold(|write| write.is(&Method::POST, "/persistentvolumeclaims"));
    expander::grow(&stage, &grown, "2Gi").await;
    let pod = ephemeral::pod(&stage, "p1").await;
    annotated.reached().await;
    made.reached().await;
    let backup = stage.embedded().backup();

    annotated.release();
    made.release();
    expander::named(&stage, &grown).await;
    let before = ephemeral::claim_of(&stage, &pod).await;
    cluster.delete_claim("user").await;
    until(classes.clone(), "gold", "nothing names it", |class| class.is_none()).await;
    let sent = stage.proxy.counted();

    stage.history_ends().await;
    stage.embedded().restore(&backup, bump);
    daemon.shows("mooring_alarm{alarm=\"etcd_restored\"} 1").await;
    let restored = Instant::now();
    let again = ephemeral::claim_of(&stage, &pod).await;
    assert_ne!(again.metadata.uid, before.metadata.uid);
    expander::named(&stage, &grown).await;
    let is_annotation = |write: &&Write| write.is(&Method::PATCH, "/persistentvolumeclaims/c0/status");
    assert_eq!(stage.proxy.writes()[sent..].iter().filter(is_annotation).count(), 1);
    assert!(claims.get_opt("user").await.unwrap().is_some() && restored.elapsed() < RESTORE_GRACE / 2);

    // What the lists of before showed is void, and what new ones would show waits.
    cluster.delete_claim("user").await;
    daemon.page_says("/debug/vac-protection", "RestoreGrace").await;
    tokio::time::sleep_until(restored + RESTORE_GRACE.mul_f64(0.9)).await;
    assert!(VolumeAttributesClass::is_protected(classes.get_opt("gold").await.unwrap().as_ref()));
    until(classes, "gold", "the grace is over", |class| class.is_none()).await;
    assert!(restored.elapsed() >= RESTORE_GRACE.mul_f64(0.9));
}
