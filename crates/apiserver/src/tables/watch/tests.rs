//! A reflector against a server that is played by the test, in paused time.

use std::{collections::VecDeque, convert::Infallible};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde_json::{Value, json};
use telemetry::metrics::Metrics;

use super::*;
use crate::{
    connect::ApiServer,
    ids::ClassName,
    kinds::StorageClass,
    metrics::{ApiMetrics, WatchMetrics},
};

/// What the server answers to one request.
#[derive(Clone, Debug)]
enum Answer {
    /// A page of a list: revision, token of the next page, items.
    Page(u64, &'static str, Vec<Value>),
    /// The same in protobuf, with classes of these names and revisions; or one that stops before its last byte.
    Protobuf(u64, &'static str, Vec<(&'static str, u64)>),
    Stops(u64, &'static str, Vec<(&'static str, u64)>),
    /// An error, with `Retry-After` in seconds if not 0.
    Error(u16, &'static str, u64),
    /// A watch that sends these lines and stays open for as long as is asked for, or ends.
    Watch(Vec<Value>, bool),
    /// A watch that opens and brings nothing, nor its end.
    Hole,
    /// A watch that brings nothing and ends after [`WELL_AFTER`].
    Ends,
    /// A watch that is cut after so many seconds, with this line or without one, whatever it was opened for.
    Cut(u64, Option<Value>),
    /// A watch that sends this line after [`Answer::LATER`] and stays open.
    Later(Value),
    /// None at all.
    Silence,
}

impl Answer {
    const LATER: Duration = Duration::from_secs(5);
}

#[derive(Debug, Default)]
struct Script {
    /// Answers in order; the last one is repeated.
    lists: VecDeque<Answer>,
    watches: VecDeque<Answer>,
    /// When each request came, and its URI.
    asked: Vec<(Instant, String)>,
    /// How long it takes to tell the revision of now.
    question: Duration,
}

impl Script {
    fn answer(&mut self, uri: &str) -> Answer {
        self.asked.push((Instant::now(), uri.to_owned()));
        let queue = if uri.contains("watch=true") { &mut self.watches } else { &mut self.lists };
        let next = if queue.len() > 1 { queue.pop_front() } else { queue.front().cloned() };
        next.unwrap_or(Answer::Silence)
    }
}

type Sent = Response<UnsyncBoxBody<Bytes, Infallible>>;

struct Stage {
    script: Arc<Mutex<Script>>,
    objects: Arc<Objects>,
    metrics: Metrics,
    fetcher: Fetcher,
    catch_ups: CatchUps,
}

fn json_body(status: u16, value: &Value) -> Sent {
    let body = Full::new(Bytes::from(serde_json::to_vec(value).unwrap()));
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response.headers_mut().insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
    response
}

fn protobuf_body(body: UnsyncBoxBody<Bytes, Infallible>) -> Sent {
    let mut response = Response::new(body);
    let value = "application/vnd.kubernetes.protobuf".parse().unwrap();
    response.headers_mut().insert(header::CONTENT_TYPE, value);
    response
}

fn protobuf_page(revision: u64, next: &str, classes: &[(&str, u64)]) -> Bytes {
    let field = |number: u32, value: &[u8]| {
        let mut field = Vec::new();
        prost::encoding::bytes::encode(number, &value.to_vec(), &mut field);
        field
    };
    let class = |(name, revision): &(&str, u64)| {
        let uid = format!("00000000-0000-4000-8000-0000000000{:02x}", name.as_bytes()[0]);
        let meta =
            [field(1, name.as_bytes()), field(5, uid.as_bytes()), field(6, revision.to_string().as_bytes())];
        field(2, &field(1, &meta.concat()))
    };
    let meta = [field(2, revision.to_string().as_bytes()), field(3, next.as_bytes())].concat();
    let list = [field(1, &meta), classes.iter().flat_map(class).collect()].concat();
    let kind = field(1, &field(2, b"StorageClassList"));
    Bytes::from([b"k8s\0".to_vec(), kind, field(2, &list)].concat())
}

/// A part of a body.
type Part = Result<Frame<Bytes>, Infallible>;

fn watch_body(parts: impl Stream<Item = Part> + Send + 'static) -> Sent {
    let mut response = Response::new(StreamBody::new(parts).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
    response
}

/// Nothing, for so long.
fn ends_after(time: Duration) -> impl Stream<Item = Part> {
    stream::once(sleep(time)).filter_map(|()| async { None })
}

/// Answers who asks for a watch of that lifetime, or for something else.
async fn respond(answer: Answer, lifetime: Duration) -> Sent {
    match answer {
        Answer::Page(revision, next, items) => json_body(
            200,
            &json!({
                "kind": "StorageClassList", "apiVersion": "storage.k8s.io/v1",
                "metadata": {"resourceVersion": revision.to_string(), "continue": next}, "items": items,
            }),
        ),
        Answer::Protobuf(revision, next, classes) => {
            protobuf_body(Full::new(protobuf_page(revision, next, &classes)).boxed_unsync())
        }
        Answer::Stops(revision, next, classes) => {
            let mut page = protobuf_page(revision, next, &classes);
            page.truncate(page.len() - 1);
            let frames = stream::once(async { Ok::<_, Infallible>(Frame::data(page)) });
            protobuf_body(StreamBody::new(frames.chain(stream::pending())).boxed_unsync())
        }
        Answer::Error(code, reason, retry_after) => {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                "reason": reason, "message": "no"});
            let mut response = json_body(code, &status);
            if retry_after > 0 {
                response.headers_mut().insert(header::RETRY_AFTER, retry_after.into());
            }
            response
        }
        Answer::Watch(events, stays) => {
            let lines = events.into_iter().map(|event| Ok(Frame::data(Bytes::from(format!("{event}\n")))));
            let lines = stream::iter(lines.collect::<Vec<_>>());
            if stays { watch_body(lines.chain(ends_after(lifetime))) } else { watch_body(lines) }
        }
        Answer::Later(event) => {
            let line = async move {
                sleep(Answer::LATER).await;
                Ok(Frame::data(Bytes::from(format!("{event}\n"))))
            };
            watch_body(stream::once(line).chain(ends_after(lifetime.saturating_sub(Answer::LATER))))
        }
        Answer::Ends => watch_body(ends_after(WELL_AFTER.min(lifetime))),
        Answer::Cut(seconds, line) => {
            let line = line.map(|line| Ok(Frame::data(Bytes::from(format!("{line}\n")))));
            watch_body(ends_after(Duration::from_secs(seconds)).chain(stream::iter(line)))
        }
        Answer::Hole => watch_body(stream::pending()),
        Answer::Silence => std::future::pending().await,
    }
}

/// Starts a reflector of StorageClasses.
fn stage(lists: Vec<Answer>, watches: Vec<Answer>) -> Stage {
    stage_of::<StorageClass>(lists, watches)
}

fn stage_of<T: Stored>(lists: Vec<Answer>, watches: Vec<Answer>) -> Stage {
    let script = Script { lists: lists.into(), watches: watches.into(), ..Script::default() };
    let script = Arc::new(Mutex::new(script));
    let answering = Arc::clone(&script);
    let service = tower::service_fn(move |request: Request<Body>| {
        let uri = request.uri().path_and_query().unwrap().as_str();
        let lifetime = uri.split_once("timeoutSeconds=").map_or(0, |(_, seconds)| seconds.parse().unwrap());
        let mut script = answering.lock();
        let takes = if uri.ends_with("limit=1") { script.question } else { Duration::ZERO };
        let answer = script.answer(uri);
        async move {
            sleep(takes).await;
            Ok::<_, Infallible>(respond(answer, Duration::from_secs(lifetime)).await)
        }
    });
    let api = ApiServer::in_process(Client::new(service, "default"));
    let metrics = Metrics::default();
    let requests = Arc::new(ApiMetrics::new(&metrics, "test").unwrap());
    let kinds = WatchMetrics::new(&metrics).unwrap();
    let objects = Objects::default();
    let objects = Arc::new(if T::IS_OPTIONAL { objects.with_attributes_classes() } else { objects });
    let fetcher = Fetcher::new(&api, requests).unwrap();
    let catch_ups = CatchUps::default();
    let counted = Arc::clone(&objects);
    let watching = watch::<T>(
        fetcher.clone(),
        Arc::clone(&objects),
        kinds.of(T::PLURAL, move || T::table(&counted).unreadable_count()),
        catch_ups.of::<T>(),
    );
    tokio::spawn(watching);
    Stage { script, objects, metrics, fetcher, catch_ups }
}

impl Stage {
    fn lists(&self) -> Vec<Instant> {
        let script = self.script.lock();
        let is_list = |uri: &str| uri.contains("limit=") && !uri.ends_with("limit=1");
        script.asked.iter().filter(|(_, uri)| is_list(uri)).map(|(at, _)| *at).collect()
    }

    fn watches(&self) -> Vec<(Instant, String)> {
        let script = self.script.lock();
        script.asked.iter().filter(|(_, uri)| uri.contains("watch=true")).cloned().collect()
    }

    fn names(&self) -> Vec<String> {
        self.objects.classes.snapshot().keys().map(ToString::to_string).collect()
    }

    fn shows(&self, line: &str) -> bool {
        self.metrics.text().unwrap().lines().any(|shown| shown == line)
    }

    /// Lets so much time pass.
    async fn pass(&self, time: Duration) {
        sleep(time).await;
    }
}

fn class(name: &str, revision: u64) -> Value {
    json!({"kind": "StorageClass", "apiVersion": "storage.k8s.io/v1",
        "metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": revision.to_string()},
        "provisioner": "p"})
}

fn event(kind: &str, object: &Value) -> Value {
    json!({"type": kind, "object": object})
}

fn open(events: Vec<Value>) -> Answer {
    Answer::Watch(events, true)
}

#[path = "blind_tests.rs"]
mod blind;
#[path = "catch_up_tests.rs"]
mod catch_up;
#[path = "optional_tests.rs"]
mod optional;

const MINUTE: Duration = Duration::from_mins(1);

#[tokio::test(start_paused = true)]
async fn pages_come_into_the_table_and_the_watch_begins_where_the_list_ends() {
    let lists =
        vec![Answer::Page(20, "next", vec![class("a", 10)]), Answer::Page(20, "", vec![class("b", 12)])];
    let stage = stage(lists, vec![open(vec![event("ADDED", &class("c", 25))])]);
    stage.objects_listed().await;
    stage.pass(Duration::from_secs(1)).await;
    assert_eq!(stage.names(), ["a", "b", "c"]);
    let script = stage.script.lock();
    let asked: Vec<&str> = script.asked.iter().map(|(_, uri)| uri.as_str()).collect();
    assert_eq!(asked[0], "/apis/storage.k8s.io/v1/storageclasses?limit=100");
    assert_eq!(asked[1], "/apis/storage.k8s.io/v1/storageclasses?limit=8065&continue=next");
    assert!(asked[2].contains("resourceVersion=20&") && asked[2].contains("allowWatchBookmarks=true"));
}

impl Stage {
    async fn objects_listed(&self) {
        let mut statuses = self.objects.status_changes();
        let listed = |kinds: &Vec<(&str, crate::tables::KindStatus)>| {
            kinds.iter().any(|(kind, status)| *kind == "storageclasses" && status.synced)
        };
        statuses.wait_for(listed).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn e5_s40_a_list_that_fails_for_ever_is_repeated_at_most_once_a_second() {
    let stage = stage(vec![Answer::Error(500, "InternalError", 0)], vec![]);
    stage.pass(MINUTE).await;
    let lists = stage.lists();
    assert!(lists.len() > 20 && lists.len() <= 60, "{}", lists.len());
    assert!(lists.windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_secs(1)));
    let statuses = stage.objects.statuses();
    let error = statuses.into_iter().find_map(|(_, status)| status.error);
    assert_eq!(error.as_deref(), Some("500 InternalError: no"));
    let counted =
        format!("rest_client_requests_total{{code=\"500\",host=\"test\",method=\"GET\"}} {}", lists.len());
    assert!(stage.shows(&counted));
}

#[tokio::test(start_paused = true)]
async fn s40_a_server_that_asks_to_wait_is_left_alone() {
    let stage = stage(vec![Answer::Error(429, "TooManyRequests", 10)], vec![]);
    stage.pass(MINUTE).await;
    assert!((5..=6).contains(&stage.lists().len()), "{}", stage.lists().len());
}

#[tokio::test(start_paused = true)]
async fn e5_a_revision_too_old_is_listed_anew_in_both_forms_of_410() {
    let gone = json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "code": 410,
        "reason": "Expired", "message": "too old"}});
    for expired in [open(vec![gone]), Answer::Error(410, "Expired", 0)] {
        let lists = vec![
            Answer::Page(20, "", vec![class("a", 10), class("b", 12)]),
            Answer::Page(30, "", vec![class("b", 12), class("c", 28)]),
        ];
        let stage = stage(lists, vec![expired, open(vec![])]);
        stage.pass(Duration::from_secs(5)).await;
        assert_eq!(stage.names(), ["b", "c"]);
        assert_eq!(stage.lists().len(), 2);
        assert!(stage.shows("mooring_watch_lists_total{cause=\"expired\",resource=\"storageclasses\"} 1"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_does_not_reach_its_last_page_at_one_revision_sweeps_nothing() {
    let first = Answer::Page(20, "", vec![class("a", 10), class("b", 12)]);
    for broken in [
        Answer::Error(410, "Expired", 0),
        Answer::Page(31, "", vec![]),
        Answer::Error(500, "InternalError", 0),
    ] {
        let lists =
            vec![first.clone(), Answer::Page(30, "next", vec![class("c", 28)]), broken, Answer::Silence];
        let stage = stage(lists, vec![Answer::Error(410, "Expired", 0)]);
        stage.pass(Duration::from_secs(10)).await;
        assert_eq!(stage.names(), ["a", "b", "c"]);
    }
}

#[tokio::test(start_paused = true)]
async fn s42_an_object_that_cannot_be_read_blocks_itself_alone() {
    let broken = |revision: u64| {
        let mut class = class("bad", revision);
        class["mountOptions"] = json!({"secret": 1});
        class
    };
    let lists = vec![Answer::Page(20, "", vec![class("a", 10), broken(11)])];
    let events = vec![
        event("MODIFIED", &broken(21)),
        event("ADDED", &class("b", 22)),
        event(
            "MODIFIED",
            &json!({"kind": "StorageClass", "metadata": {"name": "a", "uid": "uid-a",
            "resourceVersion": "23"}, "provisioner": 7}),
        ),
    ];
    let stage = stage(lists, vec![open(events)]);
    stage.objects_listed().await;
    stage.pass(Duration::from_secs(1)).await;
    assert_eq!(stage.names(), ["a", "b"]);
    let error = |name: &str| stage.objects.unreadable::<StorageClass>(&name.into());
    let bad = error("bad").unwrap();
    assert!(bad.contains("mountOptions") && !bad.contains("secret"), "{bad}");
    assert!(error("a").is_some() && error("b").is_none());
    assert!(stage.shows("mooring_watch_unreadable_objects{resource=\"storageclasses\"} 2"));
    assert_eq!(stage.lists().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn s42_an_object_without_readable_revision_or_uid_blocks_itself_and_proves_no_restore() {
    let unreadable = |field: &str, revision: u64| {
        let mut class = class("a", revision);
        class["metadata"][field] = json!({"secret": 1});
        class
    };
    for field in ["resourceVersion", "uid"] {
        // A list, an event, and a list again.
        let lists = vec![
            Answer::Page(20, "", vec![class("a", 15)]),
            Answer::Page(40, "", vec![unreadable(field, 35), class("b", 30)]),
        ];
        let watches = vec![
            open(vec![event("MODIFIED", &unreadable(field, 25))]),
            Answer::Error(410, "Expired", 0),
            open(vec![]),
        ];
        let stage = stage(lists, watches);
        let is_marked = || stage.objects.unreadable::<StorageClass>(&"a".into()).is_some();
        stage.objects_listed().await;
        stage.pass(Duration::from_secs(1)).await;
        assert!(is_marked(), "{field} of an event");
        stage.pass(Duration::from_mins(2)).await;
        assert_eq!(stage.names(), ["a", "b"], "what was known of it is kept");
        assert!(is_marked(), "{field} in a list");
        assert_eq!(stage.objects.restore_grace().left(Instant::now()), None);
    }
}

#[tokio::test(start_paused = true)]
async fn m1_a_watch_that_is_refused_for_ever_costs_one_list() {
    for code in [403, 429, 500, 503] {
        let lists = vec![Answer::Page(20, "", vec![class("a", 10)])];
        let stage = stage(lists, vec![Answer::Error(code, "No", 0)]);
        stage.pass(Duration::from_mins(10)).await;
        let whole = stage.script.lock().asked.clone();
        let whole = whole.iter().filter(|(_, uri)| uri.ends_with("limit=100")).count();
        assert_eq!(whole, 1, "{code}");
        assert!(stage.watches().len() > 100, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn l8_watches_that_end_at_once_and_bring_nothing_as_through_a_proxy_that_cannot_stream_cost_lists() {
    // How long the question takes that comes before a watch which is to prove the connection.
    for question in [0, 4] {
        let lists =
            vec![Answer::Page(20, "", vec![class("a", 10)]), Answer::Page(30, "", vec![class("b", 30)])];
        let stage = stage(lists, vec![Answer::Watch(vec![], false)]);
        stage.script.lock().question = Duration::from_secs(question);
        stage.pass(MINUTE).await;
        assert!(stage.objects.classes.get(&ClassName::from("b")).is_some(), "{question}");
        assert!(stage.lists().len() < 60, "{}", stage.lists().len());
    }
}

/// A watch that was open for a while before it ended, as behind a proxy that limits how long a response lasts, says that
/// watching works.
#[tokio::test(start_paused = true)]
async fn l8_only_watches_that_end_at_once_one_after_the_other_cost_a_list() {
    let ends = || Answer::Watch(vec![], false);
    let mut watches = Vec::new();
    for _ in 0..10 {
        watches.extend([ends(), Answer::Ends]);
    }
    let stage = stage(vec![Answer::Page(20, "", vec![class("a", 10)])], watches);
    stage.pass(2 * MINUTE).await;
    assert_eq!(stage.lists().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_fails_is_asked_for_again_and_not_all_pages_before_it() {
    let lists = vec![
        Answer::Page(20, "next", vec![class("a", 10)]),
        Answer::Error(500, "InternalError", 0),
        Answer::Error(429, "TooManyRequests", 1),
        Answer::Page(20, "", vec![class("b", 12)]),
    ];
    let stage = stage(lists, vec![open(vec![])]);
    stage.pass(Duration::from_secs(10)).await;
    assert_eq!(stage.names(), ["a", "b"]);
    assert!(stage.shows("mooring_watch_lists_total{cause=\"start\",resource=\"storageclasses\"} 1"));
    let script = stage.script.lock();
    assert_eq!(script.asked.iter().filter(|(_, uri)| uri.ends_with("continue=next")).count(), 3);
}

#[tokio::test(start_paused = true)]
async fn l8_a_page_that_stops_half_way_is_asked_for_again_and_what_came_of_it_is_known_meanwhile() {
    let lists = vec![
        Answer::Protobuf(20, "next", vec![("a", 10)]),
        Answer::Stops(20, "next of next", vec![("b", 11), ("c", 12)]),
        Answer::Protobuf(20, "next of next", vec![("b", 11), ("c", 12)]),
        Answer::Protobuf(20, "", vec![("d", 13)]),
    ];
    let stage = stage(lists, vec![open(vec![])]);
    stage.pass(Duration::from_secs(10)).await;
    assert_eq!(stage.names(), ["a", "b"], "the last class has not come whole");
    assert!(!stage.objects.is_listed::<StorageClass>());
    stage.pass(2 * MINUTE).await;
    assert_eq!(stage.names(), ["a", "b", "c", "d"]);
    assert!(stage.shows("mooring_watch_lists_total{cause=\"start\",resource=\"storageclasses\"} 1"));
    assert!(stage.shows("mooring_watch_list_objects{resource=\"storageclasses\"} 4"));
    let script = stage.script.lock();
    let limits: Vec<&str> =
        script.asked.iter().filter_map(|(_, uri)| Some(uri.split_once('?')?.1)).take(4).collect();
    // The connection may be too slow for so long a page.
    let (long, short) = ("limit=10000&continue=next", "limit=2500&continue=next");
    assert_eq!(limits, ["limit=100", long, short, &format!("{short}+of+next")]);
}

#[test]
fn pages_of_json_are_of_one_size_in_bytes() {
    let cases = [
        (0, 0, 10_000),
        (2_400_000, 500, 436),
        (6_300_000, 500, 166),
        (400_000, 500, 2_621),
        (9 << 20, 2, 1),
    ];
    for (bytes, objects, limit) in cases {
        assert_eq!(pages::limit_after(bytes, objects), limit, "{objects} objects of {bytes} bytes");
    }
}

/// Of an idle kind, as a server shows it that sends no bookmarks: each silence is followed by a short watch, which ends.
#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_opened_anew_from_the_last_revision() {
    let lists = vec![Answer::Page(20, "", vec![class("a", 10)]), Answer::Page(25, "", vec![class("a", 10)])];
    let watches = vec![open(vec![event("ADDED", &class("b", 25))]), open(vec![])];
    let stage = stage(lists, watches);
    let statuses = stage.objects.status_changes();
    for _ in 0..30 * 60 {
        stage.pass(Duration::from_secs(1)).await;
        assert!(statuses.borrow().iter().all(|(_, status)| status.blind_since.is_none()));
    }
    let opened = stage.watches();
    let gaps: Vec<u64> = opened.windows(2).map(|pair| (pair[1].0 - pair[0].0).as_secs()).collect();
    assert!(gaps.len() > 40 && gaps.chunks_exact(2).all(|gaps| gaps == [75, 3]), "{gaps:?}");
    assert!(opened[1..].iter().all(|(_, uri)| uri.contains("resourceVersion=25&")));
    assert_eq!(stage.lists().len(), 1, "silence alone costs no list");
}

#[tokio::test(start_paused = true)]
async fn e11_a_list_below_what_was_watched_proves_a_restore_and_nothing_more_is_taken() {
    let lists = vec![Answer::Page(20, "", vec![class("a", 10)]), Answer::Page(15, "", vec![class("z", 14)])];
    let watches = vec![Answer::Watch(vec![event("ADDED", &class("b", 25))], false)];
    let stage = stage(lists, watches);
    let mut seen = stage.objects.restore_grace().seen();
    seen.changed().await.unwrap();
    stage.pass(Duration::from_secs(2)).await;
    assert_eq!(stage.names(), ["a", "b"]);
    assert!(stage.objects.restore_grace().left(Instant::now()).is_some());
    let asked = stage.script.lock().asked.len();
    stage.pass(MINUTE).await;
    assert_eq!(stage.script.lock().asked.len(), asked);
}
