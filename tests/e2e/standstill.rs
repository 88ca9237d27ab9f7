//! A daemon whose thread that watches and decides stands still while its others go on (L14): the one that renews the
//! lease, and the one that answers the kubelet.

use std::time::Duration;

use http::StatusCode;
use serde_json::Value;
use test_support::{cluster::within_deadline, daemon::Daemon};

use crate::{
    replicas::{leader, new_holder, prepare, replica},
    stage::{Stage, Story, story},
};

pub fn stories() -> Vec<Story> {
    vec![
        story("standstill_l14_of_a_leader_another_leads_and_it_ends_when_it_goes_on", of_a_leader)
            .only_real("A thread of a process is stopped."),
        story("standstill_l14_that_does_not_end_fails_liveness_which_a_restart_mends", without_end)
            .only_real("A thread of a process is stopped."),
    ]
}

/// The lease is given back for it, and not left to expire. What the other leader has done meanwhile it does not touch: it
/// ends, and says why.
async fn of_a_leader(stage: Stage) {
    let _attacher = stage.attacher();
    let (first_proxy, first, holder) = leader(&stage).await;
    let (second_proxy, second) = replica(&stage).await;
    let second = stage.start_daemon(&second, &second_proxy).await;
    for number in 1..=3 {
        prepare(&stage, number).await;
    }
    let cluster = &stage.cluster;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.published("n1", &["v1"]).await;
    // A write that nobody has read the answer of keeps the lease until it expires.
    first.shows(r#"mooring_api_requests_in_flight{subsystem="attach-detach"} 0"#).await;
    let (written, log) = (first_proxy.counted(), stage.log_of(&first));

    let standstill = first.stand_still();
    // For it to wake up with.
    cluster.pod("p2", "n2", &["c2"]).await;
    cluster.remove_pod("p1").await;
    cluster.pod("moved", "n3", &["c1"]).await;
    new_holder(&stage, &holder).await;
    cluster.published("n2", &["v2"]).await;
    cluster.published("n3", &["v1"]).await;
    let is_given_back = stage.history().await.into_iter().any(|change| {
        let is_held_by = |lease: &Option<Value>, name: &str| {
            lease.as_ref().is_some_and(|it| it["spec"]["holderIdentity"] == name)
        };
        change.resource == "leases" && is_held_by(&change.before, &holder) && is_held_by(&change.after, "")
    });
    assert!(is_given_back, "the lease has expired");

    drop(standstill);
    assert_eq!(first.ended().await, Some(1));
    let why = "given back: the thread that watches and decides has stood still for";
    assert!(log.count(why) > 0, "{}", log.tail(10));
    assert_eq!(first_proxy.counted(), written, "{:#?}", first_proxy.fresh_writes());
    assert_eq!(second.visit("/livez", None).await.0, StatusCode::OK);
}

/// Nothing but a restart helps then, and liveness asks for it: there is no election here that would end the process.
async fn without_end(stage: Stage) {
    let _attacher = stage.attacher();
    let daemon = stage.daemon().await;
    prepare(&stage, 1).await;
    assert_eq!(daemon.visit("/livez", None).await.0, StatusCode::OK);
    let standstill = daemon.stand_still();
    stage.cluster.pod("p1", "n1", &["c1"]).await;
    let answer = fails_liveness(&daemon).await;
    assert!(answer.contains("[-]pulse failed"), "{answer}");
    // As the kubelet does.
    daemon.kill();
    drop(standstill);
    let daemon = stage.daemon().await;
    stage.cluster.published("n1", &["v1"]).await;
    assert_eq!(daemon.visit("/livez", None).await.0, StatusCode::OK);
}

/// Asks as a kubelet does, until the answer is that it is not alive.
async fn fails_liveness(daemon: &Daemon) -> String {
    let asking = async {
        let mut pause = tokio::time::interval(Duration::from_millis(250));
        loop {
            pause.tick().await;
            let (status, answer) = daemon.visit("/livez", None).await;
            if status == StatusCode::INTERNAL_SERVER_ERROR {
                return answer;
            }
        }
    };
    within_deadline("liveness fails", asking).await.unwrap_or_else(|late| panic!("{late}"))
}
