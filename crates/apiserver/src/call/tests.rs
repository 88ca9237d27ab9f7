mod busy;

use std::{cell::RefCell, convert::Infallible, sync::Mutex};

use hyper_util::rt::TokioIo;
use serde_json::json;
use telemetry::metrics::Metrics;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    task::JoinHandle,
};

use super::*;
use crate::{
    call::gate::Gated, ids::VolumeName, kinds::PersistentVolume, lease::Timing, suspension::Suspended,
};

/// A server that says yes, and remembers what it was asked.
#[derive(Debug, Default)]
struct Server {
    /// Method and URI, content type, and the requests in flight.
    asked: Vec<(String, String, usize)>,
    work: Option<watch::Receiver<usize>>,
}

impl Server {
    fn answer(&mut self, request: &http::Request<Body>) -> http::Response<Body> {
        let media = request.headers().get(http::header::CONTENT_TYPE).unwrap().to_str().unwrap();
        let line = format!("{} {}", request.method(), request.uri());
        let in_flight = self.work.as_ref().map_or(0, |work| *work.borrow());
        self.asked.push((line, media.to_owned(), in_flight));
        http::Response::new(Body::empty())
    }
}

fn caller() -> (Caller, Arc<Mutex<Server>>) {
    let server = Arc::new(Mutex::new(Server::default()));
    let answering = Arc::clone(&server);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let response = answering.lock().unwrap().answer(&request);
        async { Ok::<_, Infallible>(response) }
    });
    let client = Client::new(service, "default");
    let metrics = Arc::new(ApiMetrics::new(&Metrics::default(), "test").unwrap());
    (Caller::new(client, Leadership::new(Term::Unlimited), None, metrics), server)
}

fn request(verb: Verb) -> Request {
    Request { verb, path: "/x".to_owned(), body: None }
}

#[tokio::test]
async fn a_request_says_what_its_body_is_and_how_long_it_is_waited_for() {
    let (caller, server) = caller();
    let hurried = caller.clone().with_request_timeout(Duration::from_secs(2));
    let cases = [
        (Verb::Get, "GET", "application/json"),
        (Verb::Create, "POST", "application/json"),
        (Verb::Update, "PUT", "application/json"),
        (Verb::Patch, "PATCH", "application/merge-patch+json"),
        (Verb::Delete, "DELETE", "application/json"),
    ];
    for (verb, method, media) in cases {
        for (caller, timeout) in [(&caller, 34_000), (&hurried, 2000)] {
            // Nothing, which is no answer to a delete.
            assert_eq!(caller.send(&request(verb)).await.is_ok(), verb != Verb::Delete);
            let line = format!("{method} /x?timeout={timeout}ms");
            assert_eq!(server.lock().unwrap().asked.pop(), Some((line, media.to_owned(), 0)));
        }
    }
}

#[tokio::test]
async fn who_observes_reads_and_hands_over_each_write_in_place_of_sending_it() {
    let (caller, server) = caller();
    let (wishes, mut held_over) = Wishes::new();
    let caller = caller.observing(wishes);
    caller.send(&request(Verb::Get)).await.unwrap();
    assert_eq!(server.lock().unwrap().asked.len(), 1);
    for verb in [Verb::Create, Verb::Update, Verb::Patch, Verb::Delete] {
        // More than there are permits, of which none is taken.
        let writes: Vec<JoinHandle<_>> = (0..=MAX_IN_FLIGHT)
            .map(|_| {
                let caller = caller.clone();
                tokio::spawn(async move { caller.send(&request(verb)).await })
            })
            .collect();
        let mut held = Vec::new();
        for _ in 0..=MAX_IN_FLIGHT {
            held.push(held_over.recv().await.unwrap());
        }
        assert!(held.iter().all(|wish| wish.request == request(verb)));
        assert!(writes.iter().all(|write| !write.is_finished()));
        held.into_iter().for_each(Wish::release);
        for write in writes {
            assert_eq!(write.await.unwrap(), Err(CallError::NotLeader));
        }
    }
    assert_eq!(caller.owners("/x".to_owned(), &"u".into(), "f").await, Ok(Vec::new()));
    drop(held_over);
    assert_eq!(caller.send(&request(Verb::Create)).await, Err(CallError::NotLeader), "nobody asks any more");
    assert_eq!(server.lock().unwrap().asked.len(), 1, "nothing but the read was sent");
}

#[tokio::test]
async fn what_others_may_keep_waiting_has_its_own_budget_and_keeps_nobody_waiting() {
    let (caller, server) = caller();
    let (background, work) = caller.in_the_background();
    let room = |caller: &Caller| caller.in_flight.available_permits();
    assert_eq!([room(&caller), room(&background)], [MAX_IN_FLIGHT, 1]);
    server.lock().unwrap().work = Some(work.clone());
    for (caller, in_flight) in [(&caller, 1), (&background, 0), (&caller, 1)] {
        caller.send(&request(Verb::Get)).await.unwrap();
        assert_eq!(server.lock().unwrap().asked.pop().unwrap().2, in_flight);
        assert_eq!(*work.borrow(), 0, "it has ended");
    }
}

const TIMING: Timing = Timing {
    lease_duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};

/// A write within a term that began just now, and the server's end of the connection.
struct Sent {
    leadership: Leadership,
    start: Instant,
    wire: DuplexStream,
    metrics: Metrics,
    overdue: Arc<Overdue>,
    sending: JoinHandle<Result<Vec<u8>, CallError>>,
}

impl Sent {
    async fn create() -> Self {
        let term = Term::Until(Instant::now() + TIMING.renew_deadline);
        Self::create_within(Leadership::new(term).with_reserve(TIMING.reserve())).await
    }

    async fn create_within(leadership: Leadership) -> Self {
        Self::create_by(leadership, |_| ()).await
    }

    async fn create_by(leadership: Leadership, prepare: impl FnOnce(&Caller)) -> Self {
        let (ours, wire) = tokio::io::duplex(1 << 16);
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(ours)).await.unwrap();
        tokio::spawn(connection);
        let sender = Arc::new(tokio::sync::Mutex::new(sender));
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let sender = Arc::clone(&sender);
            async move { sender.lock().await.send_request(Gated::request(request)).await }
        });
        let start = Instant::now();
        let metrics = Metrics::default();
        let requests = Arc::new(ApiMetrics::new(&metrics, "test").unwrap());
        let caller = Caller::new(Client::new(service, "default"), leadership.clone(), None, requests)
            .with_request_timeout(TIMING.longest_write());
        prepare(&caller);
        let overdue = Arc::clone(&caller.overdue);
        let write = Request { body: Some(json!({"spec": "v1"})), ..request(Verb::Create) };
        let sending = tokio::spawn(async move { caller.send(&write).await });
        Self { leadership, start, wire, metrics, overdue, sending }
    }

    /// Reads up to the end of the head.
    async fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.wire.read_u8().await.expect("a head"));
        }
        String::from_utf8(head).unwrap().to_lowercase()
    }

    async fn say(&mut self, answer: &str) {
        self.wire.write_all(answer.as_bytes()).await.unwrap();
    }

    async fn body(&mut self) -> String {
        let mut body = [0; 13];
        self.wire.read_exact(&mut body).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    /// How it ended, and what the connection carried until it was closed.
    async fn end(mut self) -> (Result<Vec<u8>, CallError>, Vec<u8>) {
        let result = self.sending.await.unwrap();
        let mut rest = Vec::new();
        self.wire.read_to_end(&mut rest).await.unwrap();
        (result, rest)
    }

    fn renew(&self) {
        self.leadership.set(Term::Until(Instant::now() + TIMING.renew_deadline));
    }
}

const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";
const CREATED: &str = "HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}";

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn m8_the_body_of_a_write_leaves_when_the_server_has_begun() {
    let mut sent = Sent::create().await;
    let head = sent.head().await;
    assert!(head.starts_with("post /x?timeout=11500ms http/1.1\r\n"), "{head}");
    assert!(head.contains("expect: 100-continue\r\n") && head.contains("content-length: 13\r\n"), "{head}");
    assert_eq!(sent.leadership.unsettled(Instant::now()), None);
    sent.say(CONTINUE).await;
    assert_eq!(sent.body().await, r#"{"spec":"v1"}"#);
    let until = sent.leadership.unsettled(Instant::now());
    assert_eq!(until, Some(sent.start + Duration::from_millis(11_500)));
    // The server takes nearly all the time it was given: a webhook hangs.
    seconds(11).await;
    sent.say(CREATED).await;
    assert_eq!((&mut sent.sending).await.unwrap().unwrap(), b"{}");
    assert_eq!(sent.leadership.unsettled(Instant::now()), None);
}

#[tokio::test(start_paused = true)]
async fn e9_m8_a_write_that_was_held_up_on_its_way_never_arrives() {
    let mut sent = Sent::create().await;
    sent.head().await;
    // No server begins with it: it lies in a proxy.
    for _ in 0..30 {
        seconds(2).await;
        sent.renew();
    }
    assert_eq!(sent.leadership.unsettled(Instant::now()), None);
    // The connection is closed; what the proxy has of it may go on its way now.
    assert!(sent.wire.write_all(CONTINUE.as_bytes()).await.is_err());
    let (result, rest) = sent.end().await;
    let reason = "no 100 Continue within 12 s, neither from the API server nor past a proxy";
    assert_eq!(result, Err(CallError::NotSent(reason.to_owned())));
    assert_eq!(rest, b"", "the body must not be sent");
}

#[tokio::test(start_paused = true)]
async fn s37_behind_a_proxy_that_swallows_100_continue_the_fourth_write_is_sent_at_once() {
    // What a request that expects it is answered with, and after how many milliseconds: nothing; by the API server, which waits for
    // the body in vain; by a proxy that knows no `Expect`.
    for (status, millis) in [(0, 60_000), (504, 11_500), (417, 0)] {
        let service = tower::service_fn(move |request: http::Request<Body>| async move {
            let expects = Gated::request(request).headers().contains_key(http::header::EXPECT);
            if expects {
                tokio::time::sleep(Duration::from_millis(millis)).await;
            }
            let status = if expects && status > 0 { status } else { 201 };
            let answer = http::Response::builder().status(status).body(Body::from(b"{}".to_vec()));
            answer.map_err(tower::BoxError::from)
        });
        let leadership = Leadership::new(Term::Until(Instant::now() + Duration::from_mins(10)));
        let requests = Arc::new(ApiMetrics::new(&Metrics::default(), "test").unwrap());
        let caller = Caller::new(Client::new(service, "default"), leadership, None, requests);
        let caller = Caller { request_timeout: TIMING.longest_write(), ..caller };
        let write = Request { body: Some(json!({})), ..request(Verb::Create) };
        for _ in 0..3 {
            let result = caller.send(&write).await;
            assert!(matches!(result, Err(CallError::NotSent(_))), "{status}: {result:?}");
        }
        let asked = Instant::now();
        caller.send(&write).await.unwrap();
        assert_eq!(asked.elapsed(), Duration::ZERO, "{status}");
    }
}

/// It may have been the server that hung when the process began.
#[tokio::test(start_paused = true)]
async fn s37_where_100_continue_was_swallowed_a_write_asks_for_it_and_the_next_waits_once_it_has_come() {
    let long_ago = Instant::now();
    tokio::time::sleep(overdue::ASK_AGAIN).await;
    let term = Term::Until(Instant::now() + TIMING.renew_deadline);
    let swallowed = |caller: &Caller| {
        for _ in 0..3 {
            caller.overdue.note(&request(Verb::Create), Ending::NotBegun, true, long_ago);
        }
    };
    let leadership = Leadership::new(term).with_reserve(TIMING.reserve());
    let mut sent = Sent::create_by(leadership, swallowed).await;
    assert!(sent.head().await.contains("expect: 100-continue\r\n"));
    assert_eq!(sent.body().await, r#"{"spec":"v1"}"#, "it does not wait");
    assert!(sent.leadership.unsettled(Instant::now()).is_some());
    assert_eq!(sent.overdue.expectation(Instant::now()), Expectation::None, "the next does not even ask");
    sent.say(CONTINUE).await;
    sent.say(CREATED).await;
    assert_eq!((&mut sent.sending).await.unwrap().unwrap(), b"{}");
    assert_eq!(sent.overdue.expectation(Instant::now()), Expectation::Waits);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_was_cut_off_before_it_was_sent_certainly_was_not() {
    let mut sent = Sent::create().await;
    sent.head().await;
    drop(sent.wire);
    let error = (&mut sent.sending).await.unwrap().unwrap_err();
    assert!(matches!(error, CallError::NotSent(_)) && error.is_certain(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_kept_back_for_a_slow_renewal_is_not_the_servers_fault() {
    let mut sent = Sent::create().await;
    sent.head().await;
    seconds(3).await;
    sent.say(CONTINUE).await;
    // Renewed again and again, but each time too late for this write.
    for _ in 0..5 {
        seconds(2).await;
        sent.leadership.set(Term::Until(Instant::now() + Duration::from_secs(4)));
    }
    let metrics = sent.metrics.clone();
    let (result, rest) = sent.end().await;
    assert_eq!(result, Err(CallError::NotSent("the lease was not renewed within 12 s".to_owned())));
    assert_eq!((rest.as_slice(), metrics.text().unwrap().contains("timed_out_total{")), (&b""[..], false));
}

#[tokio::test(start_paused = true)]
async fn m8_too_late_for_the_lease_is_not_sent_before_it_is_renewed() {
    let mut sent = Sent::create().await;
    sent.head().await;
    seconds(3).await;
    // 3 s + 11.5 s are more than the 14 s that are certain.
    sent.say(CONTINUE).await;
    seconds(2).await;
    assert_eq!(sent.leadership.unsettled(Instant::now()), None);
    sent.renew();
    assert_eq!(sent.body().await, r#"{"spec":"v1"}"#);
    let until = sent.start + Duration::from_secs(5) + TIMING.longest_write();
    assert_eq!(sent.leadership.unsettled(Instant::now()), Some(until));
    sent.say(CREATED).await;
    (&mut sent.sending).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn s36_m8_a_write_whose_term_ends_while_it_waits_is_not_sent() {
    for (name, is_ended) in [("it runs out", false), ("it is ended", true)] {
        let mut sent = Sent::create().await;
        sent.head().await;
        seconds(3).await;
        sent.say(CONTINUE).await;
        if is_ended {
            sent.leadership.set(Term::None);
        }
        let (result, rest) = sent.end().await;
        assert_eq!(result, Err(CallError::NotLeader), "{name}");
        assert_eq!(rest, b"", "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn m8_a_server_need_not_see_the_body_to_refuse() {
    let mut sent = Sent::create().await;
    sent.head().await;
    sent.say("HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n").await;
    let (result, rest) = sent.end().await;
    assert!(matches!(result, Err(CallError::Throttled { after, .. }) if after.as_secs() == 7));
    assert_eq!(rest, b"");
    // Nor to fail, or a proxy to lose it.
    let mut sent = Sent::create().await;
    sent.head().await;
    sent.say("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n").await;
    let (result, rest) = sent.end().await;
    assert!(matches!(result, Err(CallError::NotSent(_))), "{result:?}");
    assert_eq!(rest, b"");
}

thread_local! {
    /// Whether a write is known that may land, each time that the term is asked for.
    static KNOWN: RefCell<(Option<Leadership>, Vec<bool>)> = RefCell::default();
}

fn look() -> Suspended {
    KNOWN.with_borrow_mut(|(leadership, known)| {
        known.extend(leadership.iter().map(|leadership| leadership.unsettled(Instant::now()).is_some()));
    });
    Suspended::default()
}

/// The elector ends the term first and then asks for writes under way: one of the two has to see the other.
#[tokio::test(start_paused = true)]
async fn s37_a_write_is_known_before_the_term_allows_it() {
    let term = Term::Until(Instant::now() + TIMING.renew_deadline);
    let leadership = Leadership::new(term).with_reserve(TIMING.reserve()).looking_by(look);
    leadership.set(term);
    let mut sent = Sent::create_within(leadership.clone()).await;
    sent.head().await;
    KNOWN.set((Some(leadership), Vec::new()));
    sent.say(CONTINUE).await;
    sent.body().await;
    assert_eq!(KNOWN.take().1.first(), Some(&true));
}

#[tokio::test(start_paused = true)]
async fn m8_a_write_that_was_cut_off_may_still_be_carried_out_for_as_long_as_the_server_has() {
    let mut sent = Sent::create().await;
    sent.head().await;
    sent.say(CONTINUE).await;
    sent.body().await;
    let leadership = sent.leadership.clone();
    let start = sent.start;
    drop(sent.wire);
    assert!(matches!((&mut sent.sending).await.unwrap(), Err(CallError::Unknown(_))));
    leadership.settled().await;
    assert_eq!(start.elapsed(), Duration::from_millis(11_500));
}

#[tokio::test(start_paused = true)]
async fn s15_m4_a_write_for_which_too_little_is_left_of_the_lease_is_decided_anew_after_a_renewal() {
    let (caller, server) = caller();
    let start = Instant::now();
    let leadership = Leadership::new(Term::Until(start + TIMING.renew_deadline));
    let leadership = leadership.with_reserve(TIMING.reserve());
    let caller = Caller { leadership: leadership.clone(), request_timeout: TIMING.longest_write(), ..caller };
    seconds(9).await;
    let held = caller.clone();
    let sending = tokio::spawn(async move { held.send(&request(Verb::Delete)).await });
    tokio::task::yield_now().await;
    leadership.set(Term::Until(start + Duration::from_secs(18)));
    let error = sending.await.unwrap().unwrap_err();
    assert!(error.is_of_all() && error.is_certain(), "{error}");
    assert_eq!(server.lock().unwrap().asked.len(), 0);
    caller.send(&request(Verb::Patch)).await.unwrap();
    let line = server.lock().unwrap().asked.pop().unwrap().0;
    // Of 22 s less the half second to get there 12.5 s are left.
    assert_eq!(line, "PATCH /x?timeout=11500ms");
}

/// What only reads, and what has not left yet, would keep a process from its end.
#[tokio::test(start_paused = true)]
async fn l14_at_the_end_of_the_process_only_the_answers_to_writes_are_awaited() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let asking = Arc::clone(&asked);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        asking.lock().unwrap().push(request.method().clone());
        async {
            seconds(3).await;
            Ok::<_, Infallible>(http::Response::new(Body::empty()))
        }
    });
    let metrics = Arc::new(ApiMetrics::new(&Metrics::default(), "test").unwrap());
    let caller =
        Caller::new(Client::new(service, "default"), Leadership::new(Term::Unlimited), None, metrics);
    let ending = CancellationToken::new();
    let caller = Caller { in_flight: Arc::new(Semaphore::new(2)), ..caller }.until(ending.clone());
    let (background, _) = caller.in_the_background();
    let send = |caller: &Caller, verb| {
        let caller = caller.clone();
        tokio::spawn(async move { caller.send(&request(verb)).await })
    };
    let [write, read, waiting] = [Verb::Patch, Verb::Get, Verb::Patch].map(|verb| send(&caller, verb));
    tokio::task::yield_now().await;
    let start = Instant::now();
    ending.cancel();
    for given_up in [read, waiting, send(&caller, Verb::Patch), send(&caller, Verb::Get)] {
        assert_eq!(given_up.await.unwrap(), Err(CallError::NotLeader));
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(write.await.unwrap().is_ok());
    assert!(send(&background, Verb::Create).await.unwrap().is_ok(), "events go on");
    assert_eq!(*asked.lock().unwrap(), [http::Method::PATCH, http::Method::GET, http::Method::POST]);
}

/// The API server takes any text where a claim names a volume or a class.
#[tokio::test]
async fn s42_what_no_object_can_be_named_is_proven_absent_and_asked_of_nobody() {
    let (caller, server) = caller();
    let (long, huge) = ("a".repeat(254), "?".repeat(1 << 20));
    for name in ["", "?watch=true", "a/b", "a b", "..", "ä", "%2e", &long, &huge] {
        let found = caller.get::<PersistentVolume>(&VolumeName::from(name)).await;
        assert!(matches!(found, Err(CallError::NotFound(_))), "{name:.300}");
    }
    assert_eq!(server.lock().unwrap().asked, []);
}
