//! kube-controller-manager and the daemon at once, on one cluster: the daemon notices if the manager's two loops are
//! on, and never if they are off, although the manager's other loops write there under the same name.
//!
//! No cluster should run both. Each chooses for itself, so that a claim comes to hold a volume of either, and one of
//! them takes the other's back: what was just written is changed by another controller that decides about it, too.

use futures::{FutureExt, future::join_all};
use k8s_openapi::api::core::v1::Node;
use libtest_mimic::Failed;
use test_support::{
    actors::{Attacher, AttacherBehaviour},
    assets::Assets,
    cluster::{Cluster, DRIVER, until},
    control_plane::{ControlPlane, User},
    daemon::Launch,
};

use crate::{PROGRAM, PROTECTION, QUICK, REPLACED};

/// Pairs of claims and volumes at once, so that both choose at the same time.
const CLAIMS: usize = 40;
/// How often that is tried. Chance decides whether they get in each other's way; it was seen in the first.
const ROUNDS: usize = 10;

/// Plays both until the daemon says so.
pub async fn play() -> Result<(), Failed> {
    let plane = ControlPlane::start(&Assets::find()?).await;
    let [binder, _] = REPLACED;
    let token = plane.token(User::ControllerManager);
    let daemon = Launch::alone().start_process(PROGRAM, &plane.kubeconfig(plane.url(), &token));
    daemon.ready().await;
    let cluster = Cluster::new(plane.client(User::Admin));
    assert!(daemon.page("/metrics").await.contains(QUIET), "nobody else is there yet");
    let _controllers = plane.controller_manager(&[&[binder][..], &PROTECTION].concat(), &QUICK);
    for round in 0..ROUNDS {
        let names =
            |kind: &str| (0..CLAIMS).map(|number| format!("{kind}{round}-{number}")).collect::<Vec<_>>();
        let (volumes, claims, spare) = (names("v"), names("c"), names("w"));
        let made = volumes.iter().chain(&spare).map(|name| cluster.volume(name).map(drop).boxed());
        let made = made.chain(claims.iter().map(|name| cluster.claim(name).map(drop).boxed()));
        join_all(made).await;
        // However they quarrel, every claim gets a volume in the end.
        join_all(claims.iter().map(|name| cluster.claim_phase(name, "Bound"))).await;
        let ready = daemon.page("/readyz?verbose").await;
        if ready.contains("second_binder: ") {
            assert!(!daemon.page("/metrics").await.contains(QUIET), "the metric says the same as {ready}");
            return Ok(());
        }
    }
    Err(format!("the second binder went unnoticed for {ROUNDS} rounds").into())
}

const QUIET: &str = "mooring_alarm{alarm=\"second_binder\"} 0";
const ATTACHING: &str = "mooring_alarm{alarm=\"second_attach_detach_controller\"} 0";

/// A node with pods that use volumes of their own.
async fn pods(cluster: &Cluster, round: usize) -> Vec<String> {
    let node = format!("node{round}");
    cluster.node(&node).await;
    let names: Vec<String> = (0..PODS).map(|number| format!("{round}-{number}")).collect();
    for name in &names {
        cluster.bound_pair(&format!("pv{name}"), &format!("pvc{name}")).await;
    }
    let made = names.iter().map(|name| async move {
        cluster.pod(&format!("pod{name}"), &format!("node{round}"), &[&format!("pvc{name}")]).await;
    });
    join_all(made).await;
    // In any order.
    until(cluster.all(), &node, "the node lists them all", |node: Option<&Node>| {
        let listed = node.and_then(|node| node.status.as_ref()?.volumes_attached.as_ref());
        listed.is_some_and(|listed| listed.len() == PODS)
    })
    .await;
    names
}

/// Pods at once on one node.
const PODS: usize = 20;

/// Plays the attach/detach controller and the daemon at once until the daemon says so.
pub async fn attach_detach() -> Result<(), Failed> {
    let plane = ControlPlane::start(&Assets::find()?).await;
    let [_, attach_detach] = REPLACED;
    let token = plane.token(User::ControllerManager);
    let daemon = Launch::alone().start_process(PROGRAM, &plane.kubeconfig(plane.url(), &token));
    daemon.ready().await;
    let cluster = Cluster::new(plane.client(User::Admin));
    let _attacher = Attacher::start(plane.client(User::Attacher), DRIVER, AttacherBehaviour::default());
    assert!(daemon.page("/metrics").await.contains(ATTACHING), "nobody else is there yet");
    let _controllers = plane.controller_manager(&[&[attach_detach][..], &PROTECTION].concat(), &QUICK);
    for round in 0..ROUNDS {
        pods(&cluster, round).await;
        let ready = daemon.page("/readyz?verbose").await;
        if ready.contains("second_attach_detach_controller: ") {
            assert!(ready.contains("kube-controller-manager wrote"), "{ready}");
            return Ok(());
        }
    }
    let page = daemon.page("/debug/attach-detach").await;
    Err(format!("the second attach/detach controller went unnoticed for {ROUNDS} rounds: {page}").into())
}

/// Plays all of kube-controller-manager but the two loops, and the daemon.
pub async fn without_the_two() -> Result<(), Failed> {
    let plane = ControlPlane::start(&Assets::find()?).await;
    let token = plane.token(User::ControllerManager);
    let daemon = Launch::alone().start_process(PROGRAM, &plane.kubeconfig(plane.url(), &token));
    daemon.ready().await;
    let cluster = Cluster::new(plane.client(User::Admin));
    let _attacher = Attacher::start(plane.client(User::Attacher), DRIVER, AttacherBehaviour::default());
    let without = REPLACED.map(|controller| format!("-{controller}"));
    let controllers = [&["*"][..], &without.each_ref().map(String::as_str)].concat();
    let _controllers = plane.controller_manager(&controllers, &QUICK);
    for round in 0..3 {
        for name in pods(&cluster, round).await {
            cluster.remove_pod(&format!("pod{name}")).await;
            cluster.detached(&format!("pv{name}"), &format!("node{round}")).await;
            // Its protection controllers take their finalizers away.
            cluster.delete_claim(&format!("pvc{name}")).await;
            cluster.volume_phase(&format!("pv{name}"), "Released").await;
        }
    }
    let metrics = daemon.page("/metrics").await;
    for line in [
        QUIET,
        ATTACHING,
        "mooring_foreign_writes_total{kind=\"phase_changed\"} 0",
        "mooring_foreign_writes_total{kind=\"node_list_changed\"} 0",
        "mooring_foreign_writes_total{kind=\"attachment_created\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
    Ok(())
}
