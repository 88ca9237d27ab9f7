use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Method, Request as HttpRequest, Response};
use http_body_util::BodyExt;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    call::{Caller, Request, Verb},
    leadership::{Leadership, Term},
    metrics::ApiMetrics,
};

/// What the server was asked, and the statuses it will answer with (then 200).
#[derive(Debug, Default)]
struct Server {
    asked: Vec<(Method, String, Value)>,
    answers: Vec<u16>,
    /// Minutes since an event that is there was told.
    age: i64,
    /// How long it takes over a request.
    takes: Duration,
}

fn caller(server: &Arc<Mutex<Server>>, term: Term) -> Caller {
    caller_of(server, Leadership::new(term))
}

fn caller_of(server: &Arc<Mutex<Server>>, leadership: Leadership) -> Caller {
    let server = Arc::clone(server);
    let service = tower::service_fn(move |request: HttpRequest<Body>| {
        let server = Arc::clone(&server);
        async move {
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let body = request.into_body().collect().await.unwrap().to_bytes();
            if let Some(millis) = path.strip_prefix("/slow/") {
                sleep(Duration::from_millis(millis.parse().unwrap())).await;
            }
            let takes = server.lock().unwrap().takes;
            sleep(takes).await;
            let name = path.rsplit('/').next().unwrap().to_owned();
            let mut server = server.lock().unwrap();
            server.asked.push((
                method.clone(),
                path.clone(),
                serde_json::from_slice(&body).unwrap_or_default(),
            ));
            let status = if server.answers.is_empty() { 200 } else { server.answers.remove(0) };
            let reason = match status {
                404 => "NotFound",
                409 if method == Method::PATCH => "Conflict",
                409 => "AlreadyExists",
                _ => "",
            };
            let mut answer = json!({ "message": "no", "reason": reason, "details": { "name": name } });
            let revision = server.asked.len().to_string();
            answer["metadata"] = json!({ "resourceVersion": revision });
            if method == Method::GET && path.contains("/events/") {
                let last = Timestamp::now() - SignedDuration::from_mins(server.age);
                (answer["count"], answer["lastTimestamp"]) = (json!(3), json!(last.to_string()));
            }
            let answer = answer.to_string().into_bytes();
            let response = Response::builder().status(status).header("retry-after", "5");
            Ok::<_, Infallible>(response.body(Body::from(answer)).unwrap())
        }
    });
    let metrics = Arc::new(ApiMetrics::new(&Metrics::default(), "test").unwrap());
    Caller::new(Client::new(service, "default"), leadership, None, metrics)
}

fn event(pod: &str, message: &str) -> Event {
    Event {
        involved: Involved {
            api_version: CORE,
            kind: "Pod",
            namespace: "apps".into(),
            name: pod.into(),
            uid: pod.into(),
            resource_version: ResourceVersion(1),
        },
        r#type: EventType::Warning,
        reason: "FailedAttachVolume",
        message: message.to_owned(),
        novelty: Novelty::Unclear,
        subject: None,
    }
}

/// Records the events with the given pauses before each, and returns what the server was asked.
async fn written(
    answers: &[u16],
    term: Term,
    events: Vec<(u64, Event)>,
) -> (Vec<(Method, String, Value)>, String) {
    written_beside(Server { answers: answers.to_vec(), ..Server::default() }, term, events, &[]).await
}

/// The same while other requests are in flight for so many milliseconds.
async fn written_beside(
    server: Server,
    term: Term,
    events: Vec<(u64, Event)>,
    others: &[u64],
) -> (Vec<(Method, String, Value)>, String) {
    let server = Arc::new(Mutex::new(server));
    let metrics = Metrics::default();
    let (queue, writer) = EventQueue::new(&metrics).unwrap();
    let stop = CancellationToken::new();
    let caller = caller(&server, term);
    let running = tokio::spawn(writer.run(caller.clone(), "host_1".to_owned(), stop.clone()));
    let others: Vec<_> = others
        .iter()
        .map(|millis| {
            let request = Request { verb: Verb::Get, path: format!("/slow/{millis}"), body: None };
            let caller = caller.clone();
            tokio::spawn(async move { caller.send(&request).await })
        })
        .collect();
    tokio::task::yield_now().await;
    let recorder = queue.for_component("attachdetach-controller");
    for (pause, event) in events {
        sleep(Duration::from_secs(pause)).await;
        recorder.record(event);
    }
    stop.cancel();
    running.await.unwrap();
    for other in others {
        other.await.unwrap().unwrap();
    }
    let asked = std::mem::take(&mut server.lock().unwrap().asked);
    (asked, metrics.text().unwrap())
}

/// Its term ends with the release of the lease, and the process a while later.
#[tokio::test(start_paused = true)]
async fn s47_at_the_end_events_are_written_after_the_term_and_those_for_which_there_is_no_time_are_counted() {
    let server = Arc::new(Mutex::new(Server::default()));
    let metrics = Metrics::default();
    let (queue, writer) = EventQueue::new(&metrics).unwrap();
    let stop = CancellationToken::new();
    let leadership = Leadership::new(Term::Unlimited);
    let caller = caller_of(&server, leadership.clone());
    let recorder = queue.for_component("attachdetach-controller");
    for number in 0..5 {
        recorder.record(event(&format!("slow-{number}"), ""));
    }
    server.lock().unwrap().takes = Duration::from_secs(10);
    let running = tokio::spawn(writer.run(caller, "host_1".to_owned(), stop.clone()));
    sleep(Duration::from_secs(1)).await;
    stop.cancel();
    leadership.set(Term::None);
    sleep(Duration::from_secs(24)).await;
    assert_eq!((server.lock().unwrap().asked.len(), queue.left()), (2, 3));
    sleep(Duration::from_secs(26)).await;
    assert_eq!((server.lock().unwrap().asked.len(), queue.left()), (5, 0));
    running.await.unwrap();
}

/// As when the API servers are restarted together with the daemon.
#[tokio::test(start_paused = true)]
async fn s47_at_the_end_events_that_the_server_does_not_take_are_tried_again_while_there_is_time() {
    let refused = [500; 40];
    let mut events = vec![(0, event("first", "x"))];
    events.extend((0..9).map(|number| (5 * u64::from(number == 0), event(&format!("pod-{number}"), "x"))));
    let start = Instant::now();
    let (asked, text) = written(&refused, Term::Unlimited, events).await;
    assert_eq!(asked.len(), refused.len() + 10);
    assert!(text.contains("mooring_events_dropped_total{cause=\"failed\"} 0"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
}

/// Half a minute of it, and more tries than one has while the daemon goes on.
#[tokio::test(start_paused = true)]
async fn s47_at_the_end_an_event_is_tried_for_as_long_as_there_is_time() {
    let refused = [500; 20];
    let start = Instant::now();
    let (asked, text) = written(&refused, Term::Unlimited, vec![(0, event("first", "x"))]).await;
    assert_eq!(asked.len(), refused.len() + 1);
    assert!(text.contains("mooring_events_dropped_total{cause=\"failed\"} 0"), "{text}");
    assert!(start.elapsed() > Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn what_does_not_fit_is_counted_and_never_blocks() {
    let metrics = Metrics::default();
    let (queue, _writer) = EventQueue::new(&metrics).unwrap();
    let recorder = queue.for_component("attachdetach-controller");
    for _number in 0..QUEUE + 3 {
        recorder.record(event("a", ""));
    }
    let text = metrics.text().unwrap();
    assert!(text.contains("mooring_events_dropped_total{cause=\"queue_full\"} 3"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_repetition_is_counted_on_the_event_that_exists() {
    let events = vec![(0, event("a", "x")), (1, event("a", "x")), (1, event("a", "y")), (1, event("a", "x"))];
    let (asked, _) = written(&[], Term::Unlimited, events).await;
    let methods: Vec<&Method> = asked.iter().map(|(method, ..)| method).collect();
    assert_eq!(methods, [Method::POST, Method::PATCH, Method::POST, Method::PATCH]);
    let name = asked[0].2["metadata"]["name"].as_str().unwrap();
    assert_eq!(asked[3].1, format!("/api/v1/namespaces/apps/events/{name}"));
    assert_eq!(asked[3].2["count"], json!(3));
}

#[tokio::test(start_paused = true)]
async fn an_event_that_expired_on_the_server_is_written_anew() {
    let events = vec![(0, event("a", "x")), (1, event("a", "x"))];
    let (asked, _) = written(&[201, 404], Term::Unlimited, events).await;
    let methods: Vec<&Method> = asked.iter().map(|(method, ..)| method).collect();
    assert_eq!(methods, [Method::POST, Method::PATCH, Method::POST]);
    assert_eq!(asked[2].2["count"], json!(1));
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_is_asked_again_and_what_is_refused_is_counted() {
    let (asked, text) = written(&[429, 500, 201], Term::Unlimited, vec![(0, event("a", "x"))]).await;
    assert_eq!(asked.len(), 3);
    assert!(asked.iter().all(|(_, _, body)| body["metadata"]["name"] == asked[0].2["metadata"]["name"]));
    assert!(text.contains("mooring_events_dropped_total{cause=\"failed\"} 0"), "{text}");

    let (asked, text) = written(&[403], Term::Unlimited, vec![(0, event("a", "x"))]).await;
    assert_eq!(asked.len(), 1);
    assert!(text.contains("mooring_events_dropped_total{cause=\"failed\"} 1"), "{text}");
}

/// As while a webhook is away that fails closed.
#[tokio::test(start_paused = true)]
async fn s48_an_event_that_the_server_does_not_take_for_a_minute_is_told_all_the_same() {
    // Of the first event after 0, 0.5, 1.5, 3.5, 7.5, 15.5 s and then every ten seconds, and of the second likewise.
    let refused = [500; 18];
    let events = vec![(0, event("a", "x")), (5, event("b", "x")), (90, event("c", "x"))];
    let (asked, text) = written(&refused, Term::Unlimited, events).await;
    let told: Vec<&Value> =
        asked.iter().skip(refused.len()).map(|(_, _, body)| &body["involvedObject"]["name"]).collect();
    assert_eq!(told, ["a", "b", "c"]);
    assert!(text.contains("mooring_events_dropped_total{cause=\"failed\"} 0"), "{text}");
    // For good, it is lost.
    let events = vec![(0, event("a", "x")), (600, event("b", "x"))];
    let (_, text) = written(&[500; 16], Term::Unlimited, events).await;
    assert!(text.contains("mooring_events_dropped_total{cause=\"failed\"} 1"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn s48_an_event_that_waits_does_not_take_the_place_of_a_later_one() {
    let holder = |node: &str| Event { subject: Some("holder".into()), ..event("a", node) };
    let events = vec![(0, holder("n1")), (5, holder("n2")), (60, event("b", "x"))];
    let (asked, text) = written(&[500; 4], Term::Unlimited, events).await;
    let told: Vec<&Value> = asked.iter().skip(4).map(|(_, _, body)| &body["message"]).collect();
    assert_eq!(told, ["n2", "x"]);
    assert!(text.contains("mooring_events_dropped_total{cause=\"failed\"} 0"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn s47_a_late_event_does_not_take_the_place_of_one_that_another_process_has_told() {
    // Since when the other has told it, in minutes; and whether that is later than the event.
    for (age, is_later) in [(0, true), (1, false)] {
        let server = Server { answers: vec![201, 429, 409, 409], age, ..Server::default() };
        let new = || Event { novelty: Novelty::New, ..event("a", "x") };
        let (asked, text) = written_beside(server, Term::Unlimited, vec![(0, new()), (1, new())], &[]).await;
        let methods: Vec<&str> = asked.iter().map(|(method, ..)| method.as_str()).collect();
        let expected = ["POST", "PATCH", "PATCH", "POST", "GET", "PATCH"];
        assert_eq!(methods, expected[..expected.len() - usize::from(is_later)], "{age}");
        let patches = asked.iter().filter(|(method, ..)| *method == Method::PATCH);
        let of: Vec<_> = patches.map(|(_, _, body)| &body["metadata"]["resourceVersion"]).collect();
        assert_eq!(of, [&json!("1"), &json!("1"), &json!("5")][..3 - usize::from(is_later)], "{age}");
        assert!(text.contains("mooring_events_dropped_total{cause=\"failed\"} 0"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn s47_neither_the_clock_of_another_process_nor_a_second_conflict_costs_an_event() {
    for (answers, age, minutes, expected) in [
        (vec![409], -1, vec![0], vec!["POST", "GET", "PATCH"]),
        (vec![409, 200, 429], -1, vec![0], vec!["POST", "GET", "PATCH", "PATCH"]),
        (
            vec![201, 409, 409, 200, 409],
            1,
            vec![0, 1],
            vec!["POST", "PATCH", "POST", "GET", "PATCH", "PATCH"],
        ),
    ] {
        let server = Server { answers, age, takes: Duration::from_millis(5), ..Server::default() };
        let new = || Event { novelty: Novelty::New, ..event("a", "x") };
        let events = minutes.into_iter().map(|minute| (minute, new())).collect();
        let (asked, text) = written_beside(server, Term::Unlimited, events, &[]).await;
        let methods: Vec<&str> = asked.iter().map(|(method, ..)| method.as_str()).collect();
        assert_eq!(methods, expected, "{age}");
        assert!(text.contains("mooring_events_dropped_total{cause=\"failed\"} 0"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn s48_however_many_events_the_server_does_not_take_for_a_minute_none_is_lost() {
    let pods = 1_100;
    let mut events: Vec<_> = (0..pods).map(|number| (0, event(&format!("pod-{number}"), "x"))).collect();
    events.push((100, event("last", "x")));
    let refused = [500; 3_000];
    let (asked, text) = written(&refused, Term::Unlimited, events).await;
    assert_eq!(asked.len(), refused.len() + pods + 1);
    assert!(text.contains("mooring_events_dropped_total{cause=\"failed\"} 0"), "{text}");
}

/// `EventRateLimit`, or a server that is too busy, beside a mass move.
#[tokio::test(start_paused = true)]
async fn s40_a_server_that_asks_to_wait_with_events_is_asked_nothing_until_then_and_none_is_lost() {
    let pods = 1_100;
    let mut events: Vec<_> = (0..pods).map(|number| (0, event(&format!("pod-{number}"), "x"))).collect();
    events.push((100, event("last", "x")));
    let start = Instant::now();
    let refused = [429; 30];
    let (asked, text) = written(&refused, Term::Unlimited, events).await;
    assert_eq!(asked.len(), refused.len() + pods + 1);
    assert!(text.contains("mooring_events_dropped_total{cause=\"failed\"} 0"), "{text}");
    // One each five seconds, and at the end each two.
    assert!(start.elapsed() >= Duration::from_secs(115), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn s47_an_event_that_certainly_was_not_written_is_no_repetition_of_itself() {
    for (refusal, age, expected) in [
        (429, 1, vec!["POST", "POST", "GET", "PATCH"]),
        (500, 0, vec!["POST", "POST", "GET"]),
        // What is older than it is another's.
        (500, 1, vec!["POST", "POST", "GET", "PATCH"]),
    ] {
        let new = Event { novelty: Novelty::New, ..event("a", "x") };
        let server = Server { answers: vec![refusal, 409], age, ..Server::default() };
        let (asked, _) = written_beside(server, Term::Unlimited, vec![(0, new)], &[]).await;
        let methods: Vec<&str> = asked.iter().map(|(method, ..)| method.as_str()).collect();
        assert_eq!(methods, expected, "{refusal}, {age}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_writes_and_what_is_queued_at_the_end_is_written() {
    let (asked, _) = written(&[], Term::None, vec![(0, event("a", "x"))]).await;
    assert_eq!(asked, []);
    let events = (0..100).map(|number| (0, event(&format!("pod-{number}"), "x"))).collect();
    let (asked, _) = written(&[], Term::Unlimited, events).await;
    assert_eq!(asked.len(), 100);
}

#[tokio::test(start_paused = true)]
async fn an_event_lets_the_work_go_first_but_not_for_ever() {
    for (others, expected) in [
        (&[10, 20][..], ["/slow/10", "/slow/20", "/api/v1/namespaces/apps/events"]),
        (&[10, 4_000], ["/slow/10", "/api/v1/namespaces/apps/events", "/slow/4000"]),
    ] {
        let (asked, _) =
            written_beside(Server::default(), Term::Unlimited, vec![(0, event("a", "x"))], others).await;
        let paths: Vec<&str> = asked.iter().map(|(_, path, _)| path.as_str()).collect();
        assert_eq!(paths, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn one_object_cannot_take_up_the_writer() {
    let mut events: Vec<_> = (0..40).map(|number| (0, event("a", &number.to_string()))).collect();
    events.push((0, event("b", "x")));
    let (asked, text) = written(&[], Term::Unlimited, events).await;
    assert_eq!(asked.len(), 26);
    assert!(text.contains("mooring_events_dropped_total{cause=\"spam\"} 15"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn s47_what_a_process_before_has_told_stands_until_it_nearly_expires() {
    use Novelty::{New, Standing, Unclear};
    let (post, get, patch) = (Method::POST, Method::GET, Method::PATCH);
    for (novelty, age, expected) in [
        (Unclear, 44, vec![&post, &get]),
        (Standing, 44, vec![&post, &get]),
        (Standing, 45, vec![&post, &get, &patch]),
        (Unclear, 45, vec![&post, &get, &patch]),
        (New, 1, vec![&post, &get, &patch]),
    ] {
        let server = Server { answers: vec![409], age, ..Server::default() };
        let events = vec![(0, Event { novelty, ..event("a", "x") })];
        let (asked, text) = written_beside(server, Term::Unlimited, events, &[]).await;
        let methods: Vec<&Method> = asked.iter().map(|(method, ..)| method).collect();
        assert_eq!(methods, expected, "{novelty:?} {age}");
        let name = asked[0].2["metadata"]["name"].as_str().unwrap();
        assert_eq!(asked[1].1, format!("/api/v1/namespaces/apps/events/{name}"));
        if let Some((_, _, body)) = asked.get(2) {
            assert_eq!(body["count"], json!(4));
        }
        assert!(text.contains("mooring_events_dropped_total{cause=\"failed\"} 0"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn s47_what_stands_is_asked_for_as_often_as_one_likes_and_told_before_it_expires() {
    let standing = || Event { novelty: Novelty::Standing, ..event("a", "x") };
    let mut events = vec![(0, event("a", "x"))];
    events.extend((0..11).map(|_| (5 * 60, standing())));
    let (asked, _) = written(&[], Term::Unlimited, events).await;
    let methods: Vec<&Method> = asked.iter().map(|(method, ..)| method).collect();
    assert_eq!(methods, [Method::POST, Method::PATCH]);
}
