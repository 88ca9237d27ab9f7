//! What a leader counts, on the lease.

use super::*;
use crate::kube_api::tally::Tally;

fn on_lease(server: &Server) -> Option<String> {
    let lease = server.with(|store| store.lease.clone()).unwrap();
    lease["metadata"]["annotations"][lease::note::BROKEN_OFF].as_str().map(str::to_owned)
}

fn tally(text: &str) -> Tally {
    Tally::parse(text).unwrap()
}

#[tokio::test(start_paused = true)]
async fn s4_s6_a_successor_knows_what_the_last_that_led_had_counted() {
    let server = Server::default();
    let first = start(&server, "a", async {});
    first.wins_within(FIRST + 1).await;
    seconds(5).await;
    assert_eq!((on_lease(&server), first.tally.left()), (None, None));
    first.tally.set(3);
    seconds(3).await;
    assert_eq!(on_lease(&server).as_deref(), Some("3 a"));
    first.task.abort();

    // One that wins the lease and does not come to lead has nothing to say.
    let stuck = start(&server, "b", pending());
    seconds(TIMING.lease_duration.as_secs() + 5).await;
    assert_eq!((server.holder().as_str(), on_lease(&server).as_deref()), ("b", Some("3 a")));
    assert_eq!(stuck.tally.left(), Some(tally("3 a")));
    stuck.end().await.unwrap_err();

    let second = start(&server, "c", async {});
    second.wins_within(TIMING.lease_duration.as_secs()).await;
    assert_eq!(second.tally.left(), Some(tally("3 a")));
    second.tally.set(0);
    seconds(3).await;
    assert_eq!(on_lease(&server).as_deref(), Some("0 c"));
    second.tally.set(1);
    second.release.cancel();
    second.end().await.unwrap();
    assert_eq!(on_lease(&server).as_deref(), Some("1 c"), "the last word counts");
}

#[tokio::test(start_paused = true)]
async fn s4_a_take_over_whose_answer_got_lost_still_knows() {
    let server = Server::default();
    server.with(|store| {
        store.store(json!({
            "kind": "Lease",
            "metadata": { "name": "mooring", "annotations": { lease::note::BROKEN_OFF: "3 a" } },
            "spec": { "holderIdentity": "", "leaseDurationSeconds": 1 },
        }))
    });
    let second = start(&server, "b", async {});
    second.tally.set(0);
    seconds(1).await;
    let third = start(&server, "c", async {});
    seconds(40).await;
    assert!(second.leads() && !third.leads());
    assert_eq!((second.tally.left(), third.tally.left()), (Some(tally("3 a")), None));
    // The lease is gone, and what it told with it.
    second.task.abort();
    server.with(|store| store.lease = None);
    third.wins_within(60).await;
    assert_eq!(third.tally.left(), None);
}
