//! Answers of the daemon over tables that are made here, to people whom an API server of the test knows.

mod cost;
mod documented;
mod people;
mod world;

use http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use self::{people::People, world::World};
use super::{api::Asked, copy::part, desk::Desk};
use crate::{
    binder::tell::reason::{ClaimReason, HeldBack},
    explain::subject::Subject,
    http::{Gate, Reply, TlsPeer},
    kube_api::{
        elector::ElectionView,
        ids::{ClaimKey, PodKey, VolumeName},
        kinds::ObjectRef,
    },
    telemetry::transition::{Named, Transition},
};

async fn ask(gate: &Gate, path: &str, token: &str, known: Option<&str>) -> Reply {
    let mut request = Request::get(path).header(header::AUTHORIZATION, format!("Bearer {token}"));
    if let Some(known) = known {
        request = request.header(header::IF_NONE_MATCH, known);
    }
    let (head, ()) = request.body(()).unwrap().into_parts();
    gate.answer(&TlsPeer::new([10, 0, 0, 1].into(), std::sync::Arc::default()), &head).await
}

async fn get(gate: &Gate, path: &str, token: &str) -> (u16, Value) {
    let reply = ask(gate, path, token, None).await;
    let answer = reply.sent.answer();
    (answer.status.as_u16(), serde_json::from_str(&answer.body).unwrap_or(Value::Null))
}

const CLAIM: &str = "/explain/v1/namespaces/shop/persistentvolumeclaims/data";

#[test]
fn a_path_asks_for_one_thing_and_what_is_no_name_for_nothing() {
    let claim = Asked::Object(Subject::Claim(ClaimKey::new("shop", "data")));
    let rows = [
        ("namespaces/shop/persistentvolumeclaims/data", Some(claim)),
        ("nodes/n1", Some(Asked::Object(Subject::Node("n1".into())))),
        ("volumeattachments/csi-1", Some(Asked::Object(Subject::Attachment("csi-1".into())))),
        ("summary", Some(Asked::Summary)),
        ("openapi.json", Some(Asked::OpenApi)),
        ("reasons", Some(Asked::Reasons)),
        ("namespaces/shop/nodes/n1", None),
        ("persistentvolumeclaims/data", None),
        ("namespaces/shop/persistentvolumeclaims/da%2Fta", None),
        ("namespaces/../persistentvolumeclaims/data", None),
        ("nodes/", None),
        ("", None),
    ];
    for (path, expected) in rows {
        assert_eq!(Asked::parse(path), expected, "{path}");
    }
}

#[test]
fn a_copy_has_the_neighbourhood_and_knows_what_is_not_there() {
    let world = World::held();
    let claim = Subject::Claim(ClaimKey::new("shop", "data"));
    let part = part(&claim, &world.objects, world::now());
    let objects = &part.snapshot.objects;
    assert_eq!(objects.pods.keys().len(), 2, "the pods of the claim: {:?}", objects.pods.keys());
    assert_eq!(objects.volumes.keys(), [VolumeName::from("pv-1")]);
    assert_eq!(objects.attachments.keys().len(), 1);
    let gone = ObjectRef::Attachment("csi-gone".into());
    assert!(part.snapshot.is_absent(&gone), "it is in no table");
    let other = ObjectRef::Pod(PodKey::new("shop", "other"));
    assert!(!part.snapshot.is_absent(&other), "it was left out");
    assert!(!part.is_cut);
}

#[tokio::test(start_paused = true)]
async fn who_is_told_what() {
    let world = World::held();
    let people = People::default();
    let gate = people.gate(world.knowledge());
    let stranger = ask(&gate, CLAIM, "made-up", None).await;
    assert_eq!(stranger.sent.answer().status, StatusCode::UNAUTHORIZED);
    assert_eq!(people.questions(), 0, "nothing is asked for strangers");

    let (status, whole) = get(&gate, CLAIM, "admin").await;
    assert_eq!(status, 200);
    assert_eq!((&whole["verdict"], &whole["redacted"]), (&json!("Blocked"), &json!(0)), "{whole:#}");
    assert_eq!(whole["observed"]["source"], "daemon");
    assert_eq!(whole["observed"]["leader"], "me");
    assert!(whole["subject"]["uid"].is_string());
    let text = whole.to_string();
    assert!(text.contains("pv-1") && text.contains("n1") && text.contains("web-0"), "{whole:#}");

    let (status, shown) = get(&gate, CLAIM, "shopkeeper").await;
    assert_eq!(status, 200);
    assert_eq!((&shown["verdict"], &shown["reason"]), (&whole["verdict"], &whole["reason"]));
    let text = shown.to_string();
    for secret in ["pv-1", "vol-1", "n1", "n2", "csi-"] {
        assert!(!text.contains(secret), "{secret} is in {shown:#}");
    }
    assert!(text.contains("web-0"), "the pods of the namespace are shown: {shown:#}");
    assert!(shown["redacted"].as_u64().is_some_and(|count| count >= 3), "{shown:#}");
    let kinds: Vec<&Value> = shown["steps"].as_array().unwrap().iter().map(|step| &step["object"]).collect();
    assert!(kinds.contains(&&json!({ "kind": "PersistentVolume" })), "{kinds:?}");

    let (status, refused) = get(&gate, CLAIM, "neighbour").await;
    assert_eq!((status, &refused["verdict"]), (403, &json!("Forbidden")));
    let missing = "/explain/v1/namespaces/shop/persistentvolumeclaims/gone";
    let (status, also) = get(&gate, missing, "neighbour").await;
    assert_eq!(status, 403);
    let same = |answer: &Value| {
        let mut answer = answer.clone();
        answer["observed"]["at"] = Value::Null;
        answer.to_string().replace("gone", "data")
    };
    assert_eq!(same(&refused), same(&also), "whether it is there or not");
    assert_eq!(get(&gate, missing, "shopkeeper").await.0, 404);
    assert_eq!(get(&gate, "/explain/v1/nodes/n1", "shopkeeper").await.0, 403);
    assert_eq!(get(&gate, "/explain/v1/nodes/n1", "admin").await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn who_guesses_names_is_refused_before_anyone_is_asked() {
    let people = People::default();
    let gate = people.gate(World::held().knowledge());
    let mut last = 0;
    for number in 0..20 {
        let path = format!("/explain/v1/namespaces/shop/persistentvolumeclaims/c{number}");
        last = get(&gate, &path, "neighbour").await.0;
    }
    assert_eq!(last, 429);
    assert_eq!(people.questions(), 10);
    // One answer about what this one may see asks about each object once, and no refusal in it counts.
    tokio::time::advance(std::time::Duration::from_secs(20)).await;
    let before = people.questions();
    assert_eq!(get(&gate, CLAIM, "shopkeeper").await.0, 200);
    let asked = people.questions() - before;
    assert!(asked <= 12, "{asked} questions");
    assert_eq!(get(&gate, CLAIM, "shopkeeper").await.0, 200);
    assert_eq!(people.questions() - before, asked, "answers count for a while");
}

#[tokio::test(start_paused = true)]
async fn those_who_ask_at_the_same_moment_share_one_answer() {
    let desk = Desk::new(World::held().knowledge());
    let subject = Subject::Claim(ClaimKey::new("shop", "data"));
    let answers = futures::future::join_all((0..20).map(|_| desk.answer(&subject))).await;
    let first = answers[0].as_ref().unwrap();
    assert!(answers.iter().all(|answer| std::sync::Arc::ptr_eq(answer.as_ref().unwrap(), first)));
    let later = desk.answer(&subject).await.unwrap();
    assert!(std::sync::Arc::ptr_eq(&later, first), "a second has not passed");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_known_is_not_sent_again() {
    let gate = People::default().gate(World::held().knowledge());
    let first = ask(&gate, CLAIM, "admin", None).await;
    let etag = first.sent.headers()[header::ETAG].to_str().unwrap().to_owned();
    tokio::time::advance(std::time::Duration::from_secs(2)).await;
    let second = ask(&gate, CLAIM, "admin", Some(&etag)).await;
    assert_eq!(second.sent.answer().status, StatusCode::NOT_MODIFIED);
    assert_eq!(second.sent.answer().body, "");
    let other = ask(&gate, CLAIM, "shopkeeper", Some(&etag)).await;
    assert_eq!(other.sent.answer().status, StatusCode::OK, "another one is told something else");
}

#[tokio::test(start_paused = true)]
async fn l18_what_the_controller_says_is_told_with_its_times_and_the_past() {
    let world = World::held();
    let knowledge = world.knowledge();
    let board = knowledge.binder.clone().unwrap();
    let key = ClaimKey::new("shop", "data");
    let until = Instant::now() + std::time::Duration::from_mins(3);
    let reason = std::sync::Arc::new(ClaimReason::HeldBack(HeldBack::Restored { until }));
    board.lead(Instant::now());
    board.set_claim(&key, Some((&reason, None)), Instant::now());
    knowledge.history.note(
        &Transition {
            object: Named::in_namespace("PersistentVolumeClaim", "shop", "data"),
            reason: "RestoreGrace",
            from: "Bound",
            to: "Bound",
            attempt: 1,
            revision: None,
            took: None,
            volume: None,
            node: None,
            claim: None,
        },
        world::now(),
    );
    let gate = People::default().gate(knowledge);
    let (_, told) = get(&gate, CLAIM, "admin").await;
    let step = &told["steps"][0];
    assert_eq!(step["reason"], "RestoreGrace");
    assert!(step["next"]["at"].is_string() && step["since"].is_string(), "{step:#}");
    let past = told["timeline"].to_string();
    assert!(past.contains("pvc/shop/data: Bound (RestoreGrace)"), "{past}");
    assert!(past.contains("pv/pv-1 was created"), "{past}");

    let (status, summary) = get(&gate, "/explain/v1/summary", "shopkeeper").await;
    assert_eq!(status, 200);
    assert_eq!(summary["rows"][0]["reason"], "RestoreGrace");
    assert_eq!(summary["reasons"], json!({ "RestoreGrace": 1 }));
    let (_, summary) = get(&gate, "/explain/v1/summary", "neighbour").await;
    assert_eq!((&summary["rows"], &summary["redacted"]), (&json!([]), &json!(1)));
}

#[tokio::test(start_paused = true)]
async fn a_standby_answers_for_what_it_knows_and_names_the_leader() {
    let view = ElectionView { holder: "other_1".to_owned(), ..ElectionView::default() };
    let (_sender, election) = tokio::sync::watch::channel(view);
    let mut knowledge = World::held().knowledge();
    knowledge.election = Some(election);
    let gate = People::default().gate(knowledge);
    let (status, told) = get(&gate, CLAIM, "admin").await;
    assert_eq!((status, &told["observed"]["leader"]), (200, &json!("other_1")));
    assert!(told["unknown"].to_string().contains("the leader alone, which is other_1"), "{told:#}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_tells_again_when_something_has_changed_and_ends_when_another_leads() {
    let world = World::held();
    let mut knowledge = world.knowledge();
    let leading = ElectionView { leading: true, holder: "me".to_owned(), ..ElectionView::default() };
    let (sender, election) = tokio::sync::watch::channel(leading);
    knowledge.election = Some(election);
    let people = People::default();
    let gate = people.gate(knowledge);
    let path = format!("{CLAIM}?watch=1");
    let mut told = ask(&gate, &path, "shopkeeper", None).await.sent;
    assert!(told.lasts().is_some());
    let first = event(&mut told).await;
    assert!(first.starts_with("id: W/") && first.contains("\nevent: explanation\ndata: {"), "{first}");
    assert!(first.ends_with("}\n\n") && !first.contains("pv-1"), "{first}");
    let quiet = event(&mut told).await;
    assert_eq!(quiet, ": nothing has changed\n\n");
    world.end_the_first_pod();
    let second = event(&mut told).await;
    assert!(second.contains("event: explanation"), "{second}");
    assert_ne!(first, second);
    sender.send_modify(|view| view.leading = false);
    let end = event(&mut told).await;
    assert_eq!(end, "event: end\ndata: {\"why\":\"another replica decides now\"}\n\n");
    assert!(told.frame().await.is_none());

    let watches: Vec<_> =
        futures::future::join_all((0..5).map(|_| ask(&gate, &path, "shopkeeper", None))).await;
    let refused = watches.iter().filter(|reply| reply.sent.answer().status == 429).count();
    assert_eq!(refused, 1, "four watches of one user");
    assert_eq!(ask(&gate, &path, "neighbour", None).await.sent.answer().status, 403);
    people.forget("shopkeeper");
    tokio::time::advance(std::time::Duration::from_mins(1)).await;
    let mut watch = watches.into_iter().next().unwrap().sent;
    let last = loop {
        match event(&mut watch).await {
            told if told.starts_with("event: end") => break told,
            _ => {}
        }
    };
    assert!(last.contains("you may no longer get the object"), "{last}");
}

async fn event(sent: &mut crate::http::Sent) -> String {
    let frame = sent.frame().await.expect("it goes on").unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_page_shows_each_what_the_api_does() {
    let gate = People::default().gate(World::held().knowledge());
    for (path, token, expected) in [
        ("/explain/", "made-up", 401),
        ("/explain/", "neighbour", 200),
        ("/explain/page.css", "neighbour", 200),
        ("/explain/o/pvc/shop/data", "neighbour", 403),
        ("/explain/o/pvc/shop/data", "shopkeeper", 200),
        ("/explain/o/pvc/shop/gone", "shopkeeper", 404),
        ("/explain/node/n1", "shopkeeper", 403),
        ("/explain/node/n1", "admin", 200),
        ("/explain/nothing/here", "admin", 404),
        ("/explainer", "admin", 403),
    ] {
        let reply = ask(&gate, path, token, None).await;
        assert_eq!(reply.sent.answer().status, expected, "{path} {token}");
        if expected == 200 {
            let policy = reply.sent.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
            assert!(policy.starts_with("default-src 'self'"), "{policy}");
        }
    }
    let page = ask(&gate, "/explain/o/pvc/shop/data", "shopkeeper", None).await;
    let page = &page.sent.answer().body;
    assert!(page.contains("HeldByNode") && !page.contains("pv-1") && !page.contains("n1"), "{page}");
    let page = ask(&gate, "/explain/node/n1", "admin", None).await;
    assert!(page.sent.answer().body.contains("pv-1"), "{}", page.sent.answer().body);
}

/// Only one who may get something is known, and keeps a connection while strangers come.
#[tokio::test(start_paused = true)]
async fn what_all_may_see_makes_nobody_known() {
    let gate = People::default().gate(World::held().knowledge());
    for path in ["/explain/v1/reasons", "/explain/v1/openapi.json", "/explain/page.css", "/explain/"] {
        let reply = ask(&gate, path, "neighbour", None).await;
        assert_eq!((reply.sent.answer().status.as_u16(), reply.known), (200, false), "{path}");
    }
    assert!(ask(&gate, CLAIM, "shopkeeper", None).await.known);
    assert!(!ask(&gate, CLAIM, "neighbour", None).await.known);
}
