use std::{
    cell::Cell,
    convert::Infallible,
    future::{pending, ready},
};

use http::{Method, Response};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde_json::{Value, json};
use telemetry::metrics::Metrics;
use tokio::time::{sleep, timeout};

use super::*;
use crate::{lease, metrics::ApiMetrics};

mod deleted_lease;
mod grace;
mod note;
mod pulse;
mod release;

/// Where the note of a leader is.
const NOTE: &str = "example.com/note";

const TIMING: Timing = Timing {
    lease_duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};

/// How long the first replica of all waits for a holder that may have lost its lease, in seconds.
const FIRST: u64 = TIMING.lease_duration.as_secs();

thread_local! {
    /// For how many seconds the machine has slept.
    static SLEPT: Cell<u64> = const { Cell::new(0) };
}

fn slept() -> Suspended {
    Suspended::of(Duration::from_secs(SLEPT.get()))
}

/// How the server treats requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mood {
    #[default]
    Well,
    /// Answers 500 without doing anything.
    Failing,
    /// Carries writes out, but does not answer.
    Silent,
    /// Takes three seconds for everything.
    Slow,
    /// A gateway in between answers everything with success, and does nothing.
    Vain,
}

/// The one Lease of a server.
#[derive(Debug, Default)]
struct Store {
    lease: Option<Value>,
    revision: u64,
    mood: Mood,
    /// Answers 500 to a POST without doing anything.
    refuses_creation: bool,
    /// So many writes are not answered.
    loses: u32,
    log: Vec<String>,
}

#[derive(Clone, Debug, Default)]
struct Server(Arc<Mutex<Store>>);

impl Server {
    fn with<R>(&self, change: impl FnOnce(&mut Store) -> R) -> R {
        change(&mut self.0.lock())
    }

    fn holder(&self) -> String {
        self.with(|store| match &store.lease {
            Some(lease) => lease["spec"]["holderIdentity"].as_str().unwrap_or("none").to_owned(),
            None => "absent".to_owned(),
        })
    }

    /// Another client writes the lease.
    fn put(&self, holder: &str, renew_time: &str) {
        self.with(|store| {
            store.store(json!({
                "kind": "Lease",
                "metadata": { "name": "mooring" },
                "spec": { "holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renew_time },
            }))
        });
    }

    fn lease(&self) -> Value {
        self.with(|store| store.lease.clone()).unwrap()
    }

    /// Another client changes the lease.
    fn edit(&self, change: impl FnOnce(&mut Value)) {
        let mut lease = self.lease();
        change(&mut lease);
        self.with(|store| store.store(lease));
    }

    fn set(&self, mood: Mood) {
        self.with(|store| store.mood = mood);
    }

    fn log(&self) -> Vec<String> {
        self.with(|store| std::mem::take(&mut store.log))
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let server = server.clone();
            async move {
                let method = request.method().clone();
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let (status, answer) = server.with(|store| store.serve(&method, &body));
                if method != Method::GET && server.with(Store::loses) {
                    return pending().await;
                }
                match server.with(|store| store.mood) {
                    Mood::Silent => return pending().await,
                    Mood::Slow => seconds(3).await,
                    Mood::Well | Mood::Failing | Mood::Vain => {}
                }
                let mut response = Response::new(Body::from(answer.to_string().into_bytes()));
                *response.status_mut() = status.try_into().unwrap();
                Ok::<_, Infallible>(response)
            }
        });
        Client::new(service, "default")
    }

    fn elector(
        &self,
        identity: &str,
        leadership: &Leadership,
        timing: Timing,
        shared: Surroundings,
    ) -> Elector {
        let metrics = Metrics::default();
        let api = Arc::new(ApiMetrics::new(&metrics, "test").unwrap());
        let caller = Caller::new(self.client(), Leadership::new(Term::Unlimited), None, api)
            .with_request_timeout(timing.request_timeout());
        let candidacy = Candidacy {
            namespace: "kube-system".to_owned(),
            name: "mooring".to_owned(),
            identity: identity.to_owned(),
            timing,
        };
        let metrics = ElectionMetrics::new(&metrics, "mooring").unwrap();
        Elector::new(caller, candidacy, leadership.clone(), metrics, shared)
    }
}

impl Store {
    fn serve(&mut self, method: &Method, body: &[u8]) -> (u16, Value) {
        self.log.push(method.to_string());
        if self.mood == Mood::Vain {
            return (200, json!({}));
        }
        if self.mood == Mood::Failing {
            return (500, json!({ "kind": "Status", "reason": "InternalError", "message": "etcd is down" }));
        }
        let status = |code: u16, reason: &str| {
            let details = json!({ "name": "mooring" });
            (code, json!({ "kind": "Status", "reason": reason, "message": reason, "details": details }))
        };
        match (method, self.lease.clone()) {
            (&Method::POST, None) if self.refuses_creation => status(500, "InternalError"),
            (&Method::PUT, _) if body.is_empty() => status(400, "BadRequest"),
            (&Method::GET, Some(lease)) => (200, lease),
            (&Method::GET, None) => status(404, "NotFound"),
            (&Method::POST, Some(_)) => status(409, "AlreadyExists"),
            (_, present) => {
                let body: Value = serde_json::from_slice(body).unwrap();
                let revision = present.map(|lease| lease["metadata"]["resourceVersion"].clone());
                if *method == Method::PUT && revision.as_ref() != Some(&body["metadata"]["resourceVersion"]) {
                    return status(409, "Conflict");
                }
                (200, self.store(body))
            }
        }
    }

    fn loses(&mut self) -> bool {
        let is_lost = self.loses > 0;
        self.loses = self.loses.saturating_sub(1);
        is_lost
    }

    fn store(&mut self, mut lease: Value) -> Value {
        self.revision += 1;
        lease["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.lease = Some(lease.clone());
        lease
    }
}

/// A running elector.
struct Running {
    leadership: Leadership,
    sight: Sight,
    grace: RestoreGrace,
    progress: Progress,
    note: LeaseNote,
    release: CancellationToken,
    view: watch::Receiver<ElectionView>,
    task: tokio::task::JoinHandle<Result<(), ElectionError>>,
}

fn start(server: &Server, identity: &str, barrier: impl Future<Output = ()> + Send + 'static) -> Running {
    start_when(server, identity, ready(()), barrier)
}

fn start_when(
    server: &Server,
    identity: &str,
    synced: impl Future<Output = ()> + Send + 'static,
    barrier: impl Future<Output = ()> + Send + 'static,
) -> Running {
    start_as(server, identity, TIMING, synced, barrier)
}

fn start_as(
    server: &Server,
    identity: &str,
    timing: Timing,
    synced: impl Future<Output = ()> + Send + 'static,
    barrier: impl Future<Output = ()> + Send + 'static,
) -> Running {
    let leadership = Leadership::new(Term::None).looking_by(slept).with_reserve(timing.reserve());
    let shared = Surroundings { note: LeaseNote::new(NOTE), ..Surroundings::default() };
    let (sight, grace) = (shared.sight.clone(), shared.grace.clone());
    let (progress, note) = (shared.progress.clone(), shared.note.clone());
    let elector = server.elector(identity, &leadership, timing, shared);
    let release = CancellationToken::new();
    let view = elector.view();
    let task = tokio::spawn(elector.run(synced, barrier, release.clone()));
    Running { leadership, sight, grace, progress, note, release, view, task }
}

impl Running {
    fn leads(&self) -> bool {
        self.leadership.may_write(Instant::now())
    }

    async fn wins_within(&self, seconds: u64) {
        timeout(Duration::from_secs(seconds), self.leadership.acquired())
            .await
            .expect("not the leader in time");
    }

    async fn released(self) {
        self.release.cancel();
        self.end().await.unwrap();
    }

    async fn end(self) -> Result<(), ElectionError> {
        timeout(Duration::from_mins(1), self.task).await.expect("still running").unwrap()
    }
}

/// A server, and who leads there.
async fn led() -> (Server, Running) {
    let server = Server::default();
    let leader = start(&server, "a", async {});
    leader.wins_within(FIRST + 1).await;
    (server, leader)
}

/// How the term ends of who finds another on its lease.
fn taken(holder: &str) -> ElectionError {
    ElectionError::Taken { lease: "kube-system/mooring".to_owned(), holder: holder.to_owned() }
}

async fn seconds(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn creates_renews_without_reading_and_releases() {
    let (server, running) = led().await;
    assert_eq!((server.holder().as_str(), running.view.borrow().leading), ("a", true));
    seconds(9).await;
    let log = server.log();
    let writes: Vec<&str> = log.iter().map(String::as_str).skip_while(|verb| *verb == "GET").collect();
    assert_eq!(writes, ["POST", "PUT", "PUT", "PUT", "PUT"]);
    assert!(running.leads());

    running.release.cancel();
    let leadership = running.leadership.clone();
    running.end().await.unwrap();
    assert!(!leadership.may_write(Instant::now()));
    let spec = server.lease()["spec"].clone();
    assert_eq!((&spec["holderIdentity"], &spec["leaseDurationSeconds"]), (&json!(""), &json!(1)));
}

#[tokio::test(start_paused = true)]
async fn m8_the_term_begins_only_after_the_barrier() {
    let server = Server::default();
    let (pass, passed) = tokio::sync::oneshot::channel::<()>();
    let running = start(&server, "a", async move {
        let _ = passed.await;
    });
    // Longer than the lease: it is renewed all the while.
    seconds(FIRST + 25).await;
    assert_eq!((server.holder().as_str(), running.leads()), ("a", false));
    let view = running.view.borrow().clone();
    assert_eq!((view.leading, view.taking_over), (false, true));
    assert!(server.log().len() > 10);
    pass.send(()).unwrap();
    running.wins_within(FIRST + 1).await;
    let view = running.view.borrow().clone();
    assert_eq!((view.leading, view.taking_over), (true, false));
}

#[tokio::test(start_paused = true)]
async fn m2_who_does_not_come_to_lead_gives_the_lease_back() {
    let server = Server::default();
    let running = start(&server, "a", pending());
    seconds(FIRST + 29).await;
    assert_eq!(server.holder(), "a");
    let error = running.end().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "lease kube-system/mooring given back: the take-over did not come further for 30s"
    );
    assert_eq!(server.holder(), "");
}

#[tokio::test(start_paused = true)]
async fn m2_a_take_over_that_comes_further_is_not_given_up() {
    let server = Server::default();
    let running = start(&server, "a", pending());
    for _ in 0..20 {
        seconds(20).await;
        running.progress.note();
    }
    assert_eq!((server.holder().as_str(), running.view.borrow().taking_over), ("a", true));
    running.end().await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn m2_l14_who_has_not_listed_everything_does_not_stand() {
    let server = Server::default();
    let (sync, synced) = tokio::sync::oneshot::channel::<()>();
    let synced = async move {
        let _ = synced.await;
    };
    let cold = start_when(&server, "cold", synced, async {});
    seconds(600).await;
    assert_eq!(server.holder(), "absent");
    // A warm one beside it.
    let warm = start(&server, "warm", async {});
    warm.wins_within(FIRST + 1).await;
    warm.released().await;
    seconds(600).await;
    assert_eq!(server.holder(), "");
    sync.send(()).unwrap();
    cold.wins_within(FIRST + 1).await;
}

#[tokio::test(start_paused = true)]
async fn m2_s14_who_waits_for_the_fence_does_not_stand_and_tells_since_when_the_lease_is_free() {
    let (server, leader) = led().await;
    let (leadership, proven) = (Leadership::new(Term::None), CancellationToken::new());
    let shared = Surroundings { fenced: Some(proven.clone()), ..Surroundings::default() };
    let elector = server.elector("b", &leadership, TIMING, shared);
    let view = elector.view();
    tokio::spawn(elector.run(ready(()), async {}, CancellationToken::new()));
    seconds(600).await;
    let expected = (Some(Fitness::Unfenced), None, "a".to_owned());
    let seen = view.borrow().clone();
    assert_eq!((seen.fitness, seen.free_since, seen.holder), expected);

    leader.released().await;
    seconds(600).await;
    let free = view.borrow().free_since.expect("it is free").elapsed();
    assert!((590..600).contains(&free.as_secs()), "{free:?}");
    assert_eq!(server.holder(), "");
    proven.cancel();
    timeout(Duration::from_secs(1), leadership.acquired()).await.expect("at once");
}

#[tokio::test(start_paused = true)]
async fn m2_a_blind_leader_goes_on_unless_another_sees() {
    let (server, first) = led().await;
    // Without another replica, and with one that sees no more.
    first.sight.set(Some(Instant::now()));
    seconds(600).await;
    let second = start(&server, "b", async {});
    second.sight.set(Some(Instant::now()));
    seconds(600).await;
    assert!(first.leads());
    assert_eq!(first.view.borrow().fitness, Some(Fitness::Blind));

    second.sight.set(None);
    second.wins_within(10).await;
    assert_eq!(server.holder(), "b");
    let error = first.end().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "lease kube-system/mooring given back: this replica cannot see or connect any more, and b can"
    );
    // Nothing of that is left on the lease.
    seconds(3).await;
    let lease = server.lease();
    assert_eq!(lease["metadata"]["annotations"], json!({}));
}

#[tokio::test(start_paused = true)]
async fn m2_a_blink_is_not_blindness() {
    let (server, first) = led().await;
    let second = start(&server, "b", async {});
    first.sight.set(Some(Instant::now()));
    seconds(115).await;
    first.sight.set(None);
    seconds(600).await;
    assert!(first.leads() && !second.leads());
    assert_eq!(first.view.borrow().fitness, Some(Fitness::Fit));
    assert!(server.lease()["metadata"].get("annotations").is_none());
}

#[tokio::test(start_paused = true)]
async fn m2_who_sees_goes_before_who_is_blind() {
    let server = Server::default();
    server.put("dead", "2099-01-01T00:00:00Z");
    let blind = start(&server, "blind", async {});
    blind.sight.set(Some(Instant::now()));
    seconds(17).await;
    assert_eq!(server.holder(), "dead");
    // No other replica wants it.
    blind.wins_within(20).await;
}

#[tokio::test(start_paused = true)]
async fn m5_a_slow_lease_is_kept() {
    let (server, running) = led().await;
    server.set(Mood::Slow);
    seconds(120).await;
    assert!(running.leads());
    // And won, as by client-go.
    running.released().await;
    start(&server, "b", async {}).wins_within(20).await;
}

#[tokio::test(start_paused = true)]
async fn s36_writes_stop_at_the_deadline_of_the_last_renewal_that_succeeded() {
    for mood in [Mood::Failing, Mood::Silent, Mood::Vain] {
        let (server, running) = led().await;
        // Just after the renewal at 2 s.
        sleep(Duration::from_millis(2_100)).await;
        server.set(mood);
        sleep(Duration::from_millis(9_800)).await;
        assert!(running.leads(), "{mood:?}: 11.9 s");
        sleep(Duration::from_millis(200)).await;
        assert!(!running.leads(), "{mood:?}: 12.1 s");
        let error = running.end().await.unwrap_err();
        assert!(matches!(error, ElectionError::Overdue { .. }), "{error}");
        assert!(error.to_string().starts_with("lease kube-system/mooring lost: not renewed within 10s ("));
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_ends_no_term() {
    for mood in [Mood::Failing, Mood::Silent, Mood::Vain] {
        let (server, running) = led().await;
        server.set(mood);
        seconds(7).await;
        server.set(Mood::Well);
        seconds(30).await;
        assert!(running.leads(), "{mood:?}");
        assert_eq!(server.holder(), "a");
    }
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_no_loss_while_the_lease_is_ours() {
    let (server, running) = led().await;
    server.log();
    // A user labels the lease.
    server.edit(|_| ());
    seconds(3).await;
    assert_eq!(server.log(), ["PUT", "GET", "PUT"]);
    assert!(running.leads());
}

#[tokio::test(start_paused = true)]
async fn another_name_on_the_lease_ends_the_term_at_once() {
    for holder in ["b", ""] {
        let (server, running) = led().await;
        server.put(holder, "2099-01-01T00:00:00Z");
        seconds(3).await;
        assert!(!running.leads());
        assert_eq!(running.end().await, Err(taken(holder)));
        assert_eq!(server.holder(), holder, "a lost lease is not released");
    }
}

#[tokio::test(start_paused = true)]
async fn l14_takes_over_after_the_lease_has_not_moved_for_its_duration() {
    let server = Server::default();
    // By its own clock the holder renewed decades ago; ours counts from when we saw it.
    server.put("b", "1999-01-01T00:00:00Z");
    let running = start(&server, "a", async {});
    seconds(14).await;
    assert_eq!((server.holder().as_str(), running.leads()), ("b", false));
    running.wins_within(6).await;
    assert_eq!(server.holder(), "a");
    assert_eq!(server.lease()["spec"]["leaseTransitions"], json!(1));
}

#[tokio::test(start_paused = true)]
async fn a_standby_outlasts_any_outage_and_says_why_it_waits() {
    let server = Server::default();
    server.put("b", "1999-01-01T00:00:00Z");
    let running = start(&server, "a", async {});
    server.set(Mood::Failing);
    seconds(3_600).await;
    assert_eq!(
        running.view.borrow().error.as_deref(),
        Some("outcome unknown: 500 InternalError: etcd is down")
    );
    server.set(Mood::Well);
    // The first look at the lease since start counts as its change.
    running.wins_within(25).await;
}

#[tokio::test(start_paused = true)]
async fn of_two_one_leads_and_the_other_follows_its_release() {
    let (server, first) = led().await;
    let second = start(&server, "b", async {});
    seconds(600).await;
    assert!(first.leads() && !second.leads());
    assert_eq!(second.view.borrow().holder, "a");
    first.released().await;
    second.wins_within(5).await;
    assert_eq!(server.holder(), "b");
}

#[tokio::test(start_paused = true)]
async fn e9_a_leader_that_was_stopped_does_not_ask_again() {
    let (server, running) = led().await;
    server.log();
    // The process' clock jumps while none of its tasks runs.
    tokio::time::advance(Duration::from_secs(20)).await;
    assert!(!running.leads());
    running.end().await.unwrap_err();
    assert_eq!(server.log(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_standby_ends_when_told_to() {
    let server = Server::default();
    server.put("b", "2099-01-01T00:00:00Z");
    let running = start(&server, "a", async {});
    seconds(5).await;
    running.released().await;
    assert_eq!(server.holder(), "b");
}
