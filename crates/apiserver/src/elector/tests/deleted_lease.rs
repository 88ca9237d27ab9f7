//! A user deletes or edits the lease.

use std::fmt::{Debug, Write as _};

use tracing::{Event, Subscriber, field::Field, subscriber};
use tracing_subscriber::{Layer, layer::Context, prelude::*};

use super::*;

/// What is logged, as `field=value`.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<String>>>);

impl<S: Subscriber> Layer<S> for Logged {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = String::new();
        event.record(&mut |field: &Field, value: &dyn Debug| {
            let _ = write!(line, "{field}={value:?} ");
        });
        self.0.lock().push(line);
    }
}

#[tokio::test(start_paused = true)]
async fn l14_the_first_replica_of_a_cluster_says_once_for_what_it_waits_and_how_long() {
    let logged = Logged::default();
    let _guard = subscriber::set_default(tracing_subscriber::registry().with(logged.clone()));
    let first = start(&Server::default(), "a", async {});
    first.wins_within(FIRST + 1).await;
    let lines = logged.0.lock();
    let of_the_wait: Vec<_> =
        lines.iter().filter(|line| line.contains("no process holds the lease")).collect();
    let [line] = of_the_wait[..] else { panic!("{lines:#?}") };
    assert!(line.contains("seconds=15.0 "), "{line}");
}

#[tokio::test(start_paused = true)]
async fn s10_who_never_saw_the_lease_leaves_a_holder_the_time_to_make_it_anew() {
    let (server, leader) = led().await;
    // A user deletes the lease while another replica starts, and the API server does not take it at once.
    server.with(|store| (store.lease, store.refuses_creation) = (None, true));
    let newcomer = start(&server, "b", async {});
    seconds(7).await;
    server.with(|store| store.refuses_creation = false);
    seconds(30).await;
    assert_eq!(server.holder(), "a");
    assert!(leader.leads() && !newcomer.leads());
}

#[tokio::test(start_paused = true)]
async fn l14_a_new_cluster_is_led_at_once_if_its_lease_says_that_no_process_led_it() {
    let server = Server::default();
    server.with(|store| {
        store.store(json!({"kind": "Lease", "metadata": {"name": "mooring"}, "spec": lease::given_up()}));
    });
    let first = start(&server, "a", async {});
    first.wins_within(1).await;
}

#[tokio::test(start_paused = true)]
async fn m8_a_deleted_lease_is_not_taken_while_its_holder_may_lead() {
    let server = Server::default();
    server.put("dead", "2099-01-01T00:00:00Z");
    let standby = start(&server, "b", async {});
    seconds(5).await;
    server.with(|store| store.lease = None);
    seconds(14).await;
    assert_eq!(server.holder(), "absent");
    standby.wins_within(5).await;

    // A holder that lives creates it anew.
    let other = start(&server, "c", async {});
    seconds(5).await;
    server.with(|store| store.lease = None);
    seconds(60).await;
    assert_eq!(server.holder(), "b");
    assert!(standby.leads() && !other.leads());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_made_anew_at_first_is_made_later() {
    let (server, running) = led().await;
    server.with(|store| (store.lease, store.refuses_creation) = (None, true));
    seconds(5).await;
    server.with(|store| store.refuses_creation = false);
    seconds(30).await;
    assert_eq!((server.holder().as_str(), running.leads()), ("a", true));
}

#[tokio::test(start_paused = true)]
async fn who_could_not_make_the_lease_anew_sees_who_did() {
    let (server, running) = led().await;
    server.with(|store| (store.lease, store.refuses_creation) = (None, true));
    seconds(3).await;
    server.put("b", "2099-01-01T00:00:00Z");
    seconds(3).await;
    assert_eq!(running.end().await, Err(taken("b")));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_is_created_anew() {
    let (server, running) = led().await;
    server.with(|store| store.lease = None);
    seconds(3).await;
    assert_eq!((server.holder().as_str(), running.leads()), ("a", true));
}

/// The leader lives, and knows of nothing before it next renews.
#[tokio::test(start_paused = true)]
async fn s36_a_lease_that_a_person_shortens_is_not_taken_while_its_holder_may_lead() {
    let (server, leader) = led().await;
    let standby = start(&server, "b", async {});
    seconds(5).await;
    server.edit(|lease| lease["spec"]["leaseDurationSeconds"] = json!(1));
    seconds(60).await;
    assert_eq!((server.holder().as_str(), leader.leads(), standby.leads()), ("a", true, false));
}

#[tokio::test(start_paused = true)]
async fn s37_a_leader_that_slept_does_not_make_a_deleted_lease_anew() {
    let (server, running) = led().await;
    // Another led meanwhile, and its lease was deleted.
    SLEPT.set(3_600);
    server.with(|store| store.lease = None);
    seconds(3).await;
    let expected = taken("");
    assert_eq!((server.holder(), running.end().await), ("absent".to_owned(), Err(expected)));
}

/// A candidate whose answer got lost knows its own lease again.
#[tokio::test(start_paused = true)]
async fn l14_a_lease_that_was_won_without_an_answer_is_not_waited_for() {
    let server = Server::default();
    server.with(|store| {
        store.store(json!({"kind": "Lease", "metadata": {"name": "mooring"}, "spec": lease::given_up()}));
        store.loses = 2;
    });
    let running = start(&server, "a", async {});
    running.wins_within(20).await;
}
