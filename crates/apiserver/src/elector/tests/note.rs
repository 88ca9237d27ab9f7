//! What a leader tells its successor, on the lease.

use k8s_openapi::jiff::Timestamp;

use super::*;

fn on_lease(server: &Server) -> Option<String> {
    let lease = server.lease();
    lease["metadata"]["annotations"][NOTE].as_str().map(str::to_owned)
}

#[tokio::test(start_paused = true)]
async fn s6_a_successor_is_handed_what_the_leader_of_the_last_term_said() {
    let (server, first) = led().await;
    seconds(5).await;
    assert_eq!((on_lease(&server), first.note.left()), (None, None));
    first.note.set("n1:3");
    seconds(3).await;
    assert_eq!(on_lease(&server).as_deref(), Some("0 n1:3"));
    first.task.abort();

    // One that wins the lease and does not come to lead has nothing to say.
    let stuck = start(&server, "b", pending());
    seconds(TIMING.lease_duration.as_secs() + 5).await;
    assert_eq!((server.holder().as_str(), on_lease(&server).as_deref()), ("b", Some("0 n1:3")));
    assert_eq!(stuck.note.left().as_deref(), Some("n1:3"));
    stuck.end().await.unwrap_err();

    // What was said two terms ago proves nothing: the leader in between said nothing.
    let second = start(&server, "c", async {});
    second.wins_within(TIMING.lease_duration.as_secs()).await;
    assert_eq!(second.note.left(), None);
    second.note.set("n1:5");
    seconds(3).await;
    assert_eq!(on_lease(&server).as_deref(), Some("2 n1:5"));
    second.note.set("n1:6");
    second.released().await;
    assert_eq!(on_lease(&server).as_deref(), Some("2 n1:6"), "the last word counts");

    let third = start(&server, "d", async {});
    third.wins_within(10).await;
    assert_eq!(third.note.left().as_deref(), Some("n1:6"));
    third.note.set("");
    seconds(3).await;
    assert_eq!(on_lease(&server), None, "there is nothing to say");
}

#[tokio::test(start_paused = true)]
async fn s6_a_take_over_whose_answer_got_lost_still_knows() {
    let server = Server::default();
    server.with(|store| {
        store.store(json!({
            "kind": "Lease",
            "metadata": { "name": "mooring", "annotations": { NOTE: "4 n1:3" } },
            "spec": {
                "holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 4,
                "renewTime": Timestamp::now().to_string(),
            },
        }))
    });
    let second = start(&server, "b", async {});
    second.note.set("");
    seconds(1).await;
    let third = start(&server, "c", async {});
    seconds(40).await;
    assert!(second.leads() && !third.leads());
    assert_eq!((second.note.left().as_deref(), third.note.left()), (Some("n1:3"), None));
    // The lease is gone, and what it said with it.
    second.task.abort();
    server.with(|store| store.lease = None);
    third.wins_within(60).await;
    assert_eq!(third.note.left(), None);
}
