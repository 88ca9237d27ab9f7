//! The binder of kube-controller-manager and the daemon at once, on one cluster: the daemon notices.
//!
//! Nobody should run both. Each chooses for itself, so that a claim comes to hold a volume of either, and one
//! of them takes the other's back: what was just written is changed by somebody who decides about it, too.

use futures::{FutureExt, future::join_all};
use libtest_mimic::Failed;

use crate::{
    PROTECTION, QUICK, REPLACED,
    support::{
        assets::Assets,
        cluster::Cluster,
        control_plane::{ControlPlane, User},
        daemon::Launch,
    },
};

/// Pairs of claims and volumes at once, so that both choose at the same time.
const CLAIMS: usize = 40;
/// How often that is tried. Chance decides whether they get in each other's way; it was seen in the first.
const ROUNDS: usize = 10;

/// Plays both until the daemon says so.
pub async fn play() -> Result<(), Failed> {
    let plane = ControlPlane::start(&Assets::find()?).await;
    let [binder, _] = REPLACED;
    let token = plane.token(User::ControllerManager);
    let daemon = Launch::alone().start_process(&plane.kubeconfig(plane.url(), &token));
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
