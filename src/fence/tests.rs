//! The fence as manifests and as a judgement: `deploy/fence` is what the values say, and what counts as gone.

use std::{
    convert::Infallible,
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use apiserver::connect::ApiServer;
use http::{Request, Response};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    ask::NoAnswer,
    policies::{DRAIN, FENCES, Fence, RAISED},
    probe::{self, LONGEST_LOOK},
    state::{FenceLook, FenceProof, FenceSeen, FenceState, Proven, UNBROKEN},
};

const HEADER: &str = "# Printed from src/fence/policies.rs (MOORING_WRITE_DOCS=1 cargo test --lib fence). The finalizers keep a deleted fence\n\
    # in force: see docs/switching-cases.md before you take them off.\n";

#[test]
fn the_manifests_are_the_values() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/fence");
    for fence in &FENCES {
        let file = folder.join(format!("{}.yaml", fence.account));
        let documents = fence.objects().map(|object| serde_saphyr::to_string(&object).unwrap());
        let text = format!("{HEADER}{}", documents.join("---\n"));
        if std::env::var_os("MOORING_WRITE_DOCS").is_some() {
            fs::write(&file, &text).unwrap();
        }
        assert_eq!(fs::read_to_string(&file).unwrap_or_default(), text, "{}", file.display());
    }
}

#[test]
fn each_fence_has_a_user_a_name_and_a_mark_of_its_own() {
    let mut marks: Vec<String> = FENCES.iter().map(Fence::mark).collect();
    marks.extend(FENCES.iter().map(Fence::name));
    marks.extend(FENCES.iter().map(Fence::user));
    let count = marks.len();
    marks.sort();
    marks.dedup();
    assert_eq!(marks.len(), count);
}

fn refused<T>(words: String) -> Result<T, NoAnswer> {
    Err(NoAnswer::Refused(403, words))
}

fn seen(fence: &Fence) -> FenceSeen {
    let object = |spec: Value| Ok(Some(json!({ "metadata": { "name": "x" }, "spec": spec })));
    FenceSeen {
        policy: object(fence.policy()),
        binding: object(fence.binding()),
        probe: refused(format!("denied request: {}", fence.mark())),
    }
}

#[test]
fn only_our_own_content_that_the_server_enforces_is_a_fence() {
    /// What is done to a fence that is as it should be, and what it is then.
    type Case = (&'static str, fn(&mut FenceSeen), &'static str);
    let cases: [Case; 17] = [
        ("as it should be", |_| {}, "enforced"),
        (
            "deleted, and kept by its finalizer",
            |seen| with(&mut seen.policy, "/metadata", "deletionTimestamp", json!("2026-01-01T00:00:00Z")),
            "enforced",
        ),
        (
            "not there",
            |seen| *seen = FenceSeen { policy: Ok(None), binding: Ok(None), probe: Ok(Value::Null) },
            "absent",
        ),
        ("no policy", |seen| seen.policy = Ok(None), "does not exist"),
        (
            "not there, and another policy refuses the probe, as it would a fence's",
            |seen| {
                let probe = refused("volumeattachments is forbidden".to_owned());
                *seen = FenceSeen { policy: Ok(None), binding: Ok(None), probe };
            },
            "unknown: the probe mooring-fence-",
        ),
        (
            "taken down, and this server is late",
            |seen| (seen.policy, seen.binding) = (Ok(None), Ok(None)),
            "denies yet",
        ),
        ("no binding", |seen| seen.binding = Ok(None), "does not exist"),
        (
            "Warn instead of Deny",
            |seen| with(&mut seen.binding, "/spec", "validationActions", json!(["Warn"])),
            "another content",
        ),
        (
            "only in some namespaces",
            |seen| with(&mut seen.binding, "/spec", "matchResources", json!({})),
            "another content",
        ),
        (
            "a changed condition",
            |seen| with(&mut seen.policy, "/spec", "matchConditions", json!([])),
            "another content",
        ),
        (
            "another version's",
            |seen| {
                let other = json!([{ "message": "must not write: (fence 0000)" }]);
                with(&mut seen.policy, "/spec", "validations", other);
                with(
                    &mut seen.policy,
                    "/metadata",
                    "annotations",
                    json!({ RAISED: "by jane with mooring 0.1" }),
                );
            },
            ", raised by jane with mooring 0.1",
        ),
        ("the server has not read it yet", |seen| seen.probe = Ok(Value::Null), "not enforced"),
        (
            "the server has another version of it",
            |seen| seen.probe = refused("denied request: (fence 0000)".to_owned()),
            "not enforced",
        ),
        (
            "another policy denies it",
            |seen| seen.probe = refused("denied request: no driver of that name".to_owned()),
            "not by the fence: denied request: no driver of that name (exempt",
        ),
        ("may not be read", |seen| seen.policy = refused("forbidden".to_owned()), "unknown"),
        (
            "no policy, and its binding has no answer",
            |seen| (seen.policy, seen.binding) = (Ok(None), Err(NoAnswer::Unknown("no answer".to_owned()))),
            "half read: the policy mooring-fence-",
        ),
        ("no answer", |seen| seen.probe = Err(NoAnswer::Unknown("timed out".to_owned())), "unknown"),
    ];
    for (name, change, expected) in cases {
        for fence in &FENCES {
            let mut seen = seen(fence);
            change(&mut seen);
            let found = match FenceState::of(fence, &seen) {
                FenceState::Enforced => "enforced".to_owned(),
                FenceState::Absent => "absent".to_owned(),
                state @ FenceState::Lingering => state.why().to_owned(),
                FenceState::NotEnforced => "not enforced".to_owned(),
                FenceState::Gone(why) | FenceState::Other(why) => why,
                FenceState::HalfRead(why) => format!("half read: {why}"),
                FenceState::Unprobed(why) | FenceState::Unknown(why) => format!("unknown: {why}"),
            };
            assert!(found.contains(expected), "{name}: {found}");
        }
    }
}

fn with(object: &mut Result<Option<Value>, NoAnswer>, at: &str, key: &str, value: Value) {
    let object = object.as_mut().unwrap().as_mut().unwrap();
    object.pointer_mut(at).unwrap()[key] = value;
}

/// A look that this server answered, with each lease and its last renewal.
fn look(server: Option<&str>, leases: Option<&[(&str, u64)]>) -> FenceLook {
    let lease = |(name, renewed): &(&str, u64)| ((*name).to_owned(), renewed.to_string());
    let leases = leases.map(|leases| leases.iter().map(lease).collect());
    FenceLook { server: server.map(str::to_owned), leases, ..FenceLook::default() }
}

#[test]
fn it_is_proven_by_all_servers_at_one_time() {
    let start = Instant::now();
    // Each look: the server, whether it was as it should be, and whether that proves it for two servers.
    let courses: [&[(&str, bool, bool)]; 4] = [
        &[("a", true, false), ("a", true, false), ("b", true, false), ("a", true, true)],
        // One is late.
        &[("a", true, false), ("b", false, false), ("b", true, false), ("a", true, false), ("b", true, true)],
        // One has restarted, which is told by no clock, and is still one of two.
        &[
            ("a", true, false),
            ("a2", true, false),
            ("a2", true, false),
            ("a3", true, false),
            ("a3", true, false),
        ],
        &[("a", true, false), ("a2", true, false), ("b", true, false), ("a2", true, true)],
    ];
    for course in courses {
        let mut proof = FenceProof::default();
        for (second, (server, holds, expected)) in (0..).zip(course) {
            let look = look(Some(server), Some(&[("x", second), ("y", second)]));
            let proven = proof.note(*holds, &look, start + Duration::from_secs(second));
            assert_eq!(proven == Proven::ByEachServer, *expected, "{course:?} {second}");
        }
    }
}

#[test]
fn a_server_counts_until_its_lease_was_seen_unrenewed_for_a_minute() {
    // Whatever their clocks say.
    let (mut proof, start) = (FenceProof::default(), Instant::now());
    for second in 0..60 {
        let look = look(Some("a"), Some(&[("late", 1_000 + second), ("gone", 9_000)]));
        assert_eq!(proof.note(true, &look, start + Duration::from_secs(second)), Proven::No, "{second}");
    }
    let last = look(Some("a"), Some(&[("late", 1_060), ("gone", 9_000)]));
    assert_eq!(proof.note(true, &last, start + Duration::from_mins(1)), Proven::ByEachServer);
}

#[test]
fn servers_that_are_counted_have_to_be_seen() {
    let (mut proof, start) = (FenceProof::default(), Instant::now());
    for second in 0..300 {
        let look = look(Some("a"), Some(&[("x", second), ("y", second), ("z", second)]));
        assert_eq!(proof.note(true, &look, start + Duration::from_secs(second)), Proven::No, "{second}");
    }
    assert_eq!(proof.seen(), (1, 3));
}

#[test]
fn where_servers_are_not_told_apart_two_unbroken_minutes_prove_it() {
    for leases in [None, Some(&[] as &[(&str, u64)])] {
        let (mut proof, unknown, start) = (FenceProof::default(), look(None, leases), Instant::now());
        for seconds in 0..UNBROKEN.as_secs() {
            assert_eq!(proof.note(true, &unknown, start + Duration::from_secs(seconds)), Proven::No);
        }
        assert_eq!(proof.note(true, &unknown, start + UNBROKEN), Proven::ByTime, "no lease proves nothing");
    }
}

/// That a server was reached which is one of three is known for two minutes, whatever a later look does not show.
#[test]
fn one_look_that_shows_less_proves_nothing_of_servers_that_are_counted() {
    for (server, is_listed) in [(None, true), (Some("a"), false), (None, false)] {
        let (mut proof, start) = (FenceProof::default(), Instant::now());
        let leases = |second| [("x", second), ("y", second), ("z", second)];
        let unbroken = UNBROKEN.as_secs();
        for second in 0..3 * unbroken - 1 {
            let leases = leases(second);
            let shows_less = second == unbroken + 5 || second >= 2 * unbroken;
            let server = if shows_less { server } else { Some("a") };
            let look = look(server, Some(&leases[..]).filter(|_| is_listed || !shows_less));
            let proven = proof.note(true, &look, start + Duration::from_secs(second));
            assert_eq!(proven, Proven::No, "{server:?} {is_listed} {second}");
        }
        // Since then nothing has told them apart.
        let look = look(server, is_listed.then_some(&leases(3 * unbroken - 1)[..]));
        let proven = proof.note(true, &look, start + Duration::from_secs(3 * unbroken - 1));
        assert_eq!(proven, Proven::ByTime, "{server:?} {is_listed}");
    }
}

/// That a policy asks for nothing new to be begun is heard before anything is probed; that none does is not believed where one
/// could not be read.
/// A server that answers each request after so long, and from so many on none.
fn slow_server(each: Duration, answers: usize) -> ApiServer {
    let asked = Arc::new(AtomicUsize::new(0));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (number, is_probe) = (asked.fetch_add(1, Ordering::Relaxed), request.method() == "POST");
        async move {
            if number >= answers {
                std::future::pending::<()>().await;
            }
            sleep(each).await;
            let code = if is_probe { 201 } else { 404 };
            let status = json!({ "kind": "Status", "status": "Failure", "message": "no", "code": code });
            let answer = Response::builder().status(code).body(Body::from(status.to_string().into_bytes()));
            Ok::<_, Infallible>(answer.unwrap())
        }
    });
    ApiServer::in_process(Client::new(service, "default"))
}

/// A limit for the sum of a look is none for what was answered before.
#[tokio::test(start_paused = true)]
async fn s14_of_a_slow_server_what_it_answered_in_time_counts() {
    let all: Vec<&Fence> = FENCES.iter().collect();
    let count = all.len();
    let look = async |each, answers| {
        let (begun, mut heard) = (Instant::now(), None);
        let api = slow_server(Duration::from_millis(each), answers);
        let look = probe::look(&api, &all, |word| heard = Some(word.map(|_| ()))).await;
        (look, heard, begun.elapsed())
    };
    let (open, _, took) = look(600, usize::MAX).await;
    assert!(took < LONGEST_LOOK && open.states == vec![FenceState::Absent; count], "{took:?} {open:?}");
    let (gone, heard, took) = look(100, count).await;
    let is_gone = |state: &FenceState| matches!(state, FenceState::HalfRead(_));
    assert!(gone.states.len() == count && gone.states.iter().all(is_gone), "no policy: {gone:?}");
    assert_eq!((heard, took), (Some(Ok(())), LONGEST_LOOK));
    let (_, heard, _) = look(100, count - 1).await;
    assert_eq!(heard, Some(Err(())), "what one policy asks for is not known");
}

#[tokio::test]
async fn s1_a_word_that_was_read_is_heard_whatever_else_has_no_answer() {
    let asks = json!({ "metadata": { "annotations": { DRAIN: "1" } } });
    for (code, body, expected) in
        [(200, asks, Ok(Some("1"))), (404, json!({}), Ok(None)), (503, json!({}), Err(()))]
    {
        let service = tower::service_fn(move |request: Request<Body>| {
            let is_policy = request.uri().path().contains("/validatingadmissionpolicies/");
            let code = if is_policy { code } else { 429 };
            let status = json!({ "kind": "Status", "status": "Failure", "message": "no", "code": code });
            let answer = if code == 200 { body.clone() } else { status };
            let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
            async move { Ok::<_, Infallible>(answer.unwrap()) }
        });
        let api = ApiServer::in_process(Client::new(service, "default"));
        let mut heard = None;
        let hear = |word: Result<Option<&str>, ()>| heard = Some(word.map(|word| word.map(str::to_owned)));
        probe::look(&api, &[&FENCES[0]], hear).await;
        assert_eq!(heard, Some(expected.map(|word| word.map(str::to_owned))), "{code}");
    }
}
