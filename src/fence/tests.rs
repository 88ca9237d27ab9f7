//! The fence as manifests and as a judgement: `deploy/fence` is what the values say, and what counts as gone.

use std::{fs, path::Path, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    policies::{FENCES, Fence},
    state::{FenceLook, FenceProof, FenceSeen, FenceServer, FenceState, ProbeAnswer, Proven, UNBROKEN},
};

const HEADER: &str = "# Printed from src/fence/policies.rs (MOORING_WRITE_DOCS=1 cargo test --lib fence). The finalizers keep a deleted fence\n\
    # in force: see docs/adopting.md before you take them off.\n";

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
    let fence = Fence::of("persistentvolume-attach-detach-controller").unwrap();
    assert!(fence.names(&fence.user(), "", "nodes/status"));
    assert!(!fence.names(&fence.user(), "", "nodes"));
    assert!(!fence.names("system:serviceaccount:kube-system:node-controller", "", "nodes/status"));
}

fn seen(fence: &Fence) -> FenceSeen {
    let object = |spec: Value| Ok(Some(json!({ "metadata": { "name": "x" }, "spec": spec })));
    FenceSeen {
        policy: object(fence.policy()),
        binding: object(fence.binding()),
        probe: ProbeAnswer::Refused(format!("denied request: {}", fence.mark())),
    }
}

#[test]
fn only_our_own_content_that_the_server_enforces_is_a_fence() {
    /// What is done to a fence that is as it should be, and what it is then.
    type Case = (&'static str, fn(&mut FenceSeen), &'static str);
    let cases: [Case; 13] = [
        ("as it should be", |_| {}, "enforced"),
        (
            "deleted, and kept by its finalizer",
            |seen| with(&mut seen.policy, "/metadata", "deletionTimestamp", json!("2026-01-01T00:00:00Z")),
            "leaving",
        ),
        (
            "not there",
            |seen| *seen = FenceSeen { policy: Ok(None), binding: Ok(None), probe: ProbeAnswer::Accepted },
            "absent",
        ),
        ("no policy", |seen| seen.policy = Ok(None), "does not exist"),
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
        ("the server has not read it yet", |seen| seen.probe = ProbeAnswer::Accepted, "not enforced"),
        (
            "the server has another version of it",
            |seen| seen.probe = ProbeAnswer::Refused("denied request: (fence 0000)".to_owned()),
            "not enforced",
        ),
        (
            "another policy denies it",
            |seen| seen.probe = ProbeAnswer::Refused("denied request: no driver of that name".to_owned()),
            "unknown",
        ),
        ("may not be read", |seen| seen.policy = Err("forbidden".to_owned()), "unknown"),
        ("no answer", |seen| seen.probe = ProbeAnswer::None("timed out".to_owned()), "unknown"),
    ];
    for (name, change, expected) in cases {
        for fence in &FENCES {
            let mut seen = seen(fence);
            change(&mut seen);
            let found = match FenceState::of(fence, &seen) {
                FenceState::Enforced => "enforced".to_owned(),
                FenceState::Leaving => "leaving".to_owned(),
                FenceState::Absent => "absent".to_owned(),
                FenceState::NotEnforced => "not enforced".to_owned(),
                FenceState::Gone(why) => why,
                FenceState::Unknown(_) => "unknown".to_owned(),
            };
            assert!(found.contains(expected), "{name}: {found}");
        }
    }
}

fn with(object: &mut Result<Option<Value>, String>, at: &str, key: &str, value: Value) {
    let object = object.as_mut().unwrap().as_mut().unwrap();
    object.pointer_mut(at).unwrap()[key] = value;
}

#[test]
fn it_is_proven_by_each_server_or_by_two_unbroken_minutes() {
    let start = Instant::now();
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    // A server with the seconds that it has run for, and how many there are.
    let look = |server: Option<(&str, u64)>, servers: Option<usize>| {
        let server = server.map(|(started, runs)| FenceServer {
            started: started.to_owned(),
            runs: Duration::from_secs(runs),
        });
        FenceLook { states: Vec::new(), server, servers }
    };
    let of_two = |started: &str| look(Some((started, 3600)), Some(2));
    let mut proof = FenceProof::default();
    assert_eq!(proof.note(true, &of_two("a"), at(0)), Proven::No);
    assert_eq!(proof.note(true, &of_two("a"), at(1)), Proven::No, "the same server again");
    assert_eq!(proof.note(false, &of_two("b"), at(2)), Proven::No, "one that is late");
    assert_eq!(proof.note(true, &of_two("b"), at(3)), Proven::No, "it begins anew");
    assert_eq!(proof.note(true, &of_two("a"), at(4)), Proven::ByEachServer);

    let mut proof = FenceProof::default();
    assert_eq!(proof.note(true, &of_two("a"), at(0)), Proven::No);
    let again = look(Some(("a again", 3)), Some(2));
    assert_eq!(proof.note(true, &again, at(10)), Proven::No, "it has restarted, and is still one of two");
    let again = look(Some(("a again", 4)), Some(2));
    assert_eq!(proof.note(true, &again, at(11)), Proven::No);
    assert_eq!(proof.note(true, &of_two("b"), at(12)), Proven::ByEachServer);

    let (mut proof, unknown) = (FenceProof::default(), look(None, None));
    for seconds in 0..UNBROKEN.as_secs() {
        assert_eq!(proof.note(true, &unknown, at(seconds)), Proven::No);
    }
    assert_eq!(proof.note(true, &unknown, start + UNBROKEN), Proven::ByTime);
    assert_eq!(
        proof.note(true, &look(None, Some(0)), start + UNBROKEN),
        Proven::ByTime,
        "no lease proves nothing"
    );
}
