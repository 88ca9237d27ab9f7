//! Which volume a claim tries next whose reservation is refused or fails (L15, S26).

use apiserver::kinds::ClaimRef;

use super::*;
use crate::binder::doubt::Doubts;

pub(super) fn refused() -> CallError {
    CallError::Refused { code: 403, message: "policy \"p\" says no".into() }
}

/// The volume of the reservation that is sent next.
pub(super) fn reserved(planner: &mut Recording, now: Instant) -> (Op, VolumeName) {
    let op = only(planner.plan(now));
    assert_eq!(op.call.write_kind(), Some(WriteKind::ReserveVolume));
    let volume = op.volume.clone().unwrap();
    (op, volume)
}

#[test]
fn l15_a_volume_that_is_not_to_be_reserved_keeps_no_claim_from_another() {
    let (objects, mut planner) = planner(vec![volume("v1"), volume("v2"), volume("v3")], vec![claim("c")]);
    let now = Instant::now();
    let (op, first) = reserved(&mut planner, now);
    assert_eq!(first, "v1".into());
    planner.answered(op, Err(refused()), now, 0.0);
    let later = planner.plan(now).wake_at.unwrap();
    let (_, second) = reserved(&mut planner, later);
    assert_eq!(second, "v2".into());
    // Nor one that comes later.
    objects.apply(claim("d"));
    planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "d")), later);
    let (op, third) = reserved(&mut planner, later);
    assert_eq!(third, "v3".into());
    // If there is no other, it is tried again; and it is as any other when it has changed.
    planner.answered(op, Err(refused()), later, 0.0);
    for name in ["v2", "v3"] {
        objects.delete(PersistentVolume::clone(&objects.volumes.get(&name.into()).unwrap()));
        planner.changed(&ObjectRef::Volume(name.into()), later);
    }
    let (_, again) = reserved(&mut planner, later + Duration::from_mins(3));
    assert_eq!(again, "v1".into());
}

/// That the other one is gone says nothing of the volume.
#[test]
fn l15_a_volume_that_was_refused_to_two_claims_that_name_it_goes_to_a_third_when_one_is_gone() {
    let naming = |name: &str| {
        let mut claim = claim(name);
        claim.spec.volume_name = "v".into();
        claim
    };
    let (objects, mut planner) = planner(vec![volume("v")], vec![naming("d1"), naming("d2")]);
    let now = Instant::now();
    for _ in 0..2 {
        let ops = planner.plan(now).ops;
        for op in ops {
            planner.answered(op, Err(refused()), now, 0.0);
        }
    }
    objects.delete(naming("d1"));
    planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "d1")), now);
    objects.apply(claim("e"));
    planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "e")), now);
    let (op, name) = reserved(&mut planner, now);
    assert_eq!((op.subject, name), (Target::Claim(ClaimKey::new("ns", "e")), "v".into()));
}

/// Plays for half an hour; each request is refused. Returns which volumes were tried.
fn refusing(planner: &mut Recording, mut now: Instant) -> Vec<String> {
    let (end, mut tried) = (now + Duration::from_mins(30), Vec::new());
    while now < end {
        let plan = planner.plan(now);
        if plan.ops.is_empty() {
            now = plan.wake_at.unwrap();
        }
        for op in plan.ops {
            tried.extend(op.volume.as_ref().map(ToString::to_string));
            planner.answered(op, Err(refused()), now, 0.0);
        }
    }
    tried
}

#[test]
fn l15_a_volume_that_was_refused_once_is_tried_again_after_the_others() {
    let (_, mut planner) = planner(vec![volume("v1"), volume("v2"), volume("v3")], vec![claim("c")]);
    let tried = refusing(&mut planner, Instant::now());
    for name in ["v1", "v2", "v3"] {
        assert!(tried.iter().filter(|it| *it == name).count() > 3, "{tried:?}");
    }
}

#[test]
fn l15_a_volume_that_was_refused_to_another_claim_is_tried() {
    let (objects, mut planner) = planner(vec![volume("v1"), volume("v2")], vec![claim("z")]);
    let mut now = Instant::now();
    for _ in 0..2 {
        let (op, _) = reserved(&mut planner, now);
        planner.answered(op, Err(refused()), now, 0.0);
        now = planner.plan(now).wake_at.unwrap();
    }
    objects.delete(claim("z"));
    planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "z")), now);
    objects.apply(claim("y"));
    planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "y")), now);
    let tried = refusing(&mut planner, now);
    assert!(tried.contains(&"v1".to_owned()) && tried.contains(&"v2".to_owned()), "{tried:?}");
}

#[test]
fn l15_a_volume_that_is_put_right_is_tried_before_others_that_are_as_good() {
    let (objects, mut planner) = planner(vec![volume("v1"), volume("v2"), volume("v3")], vec![claim("c")]);
    let mut now = Instant::now();
    // Every second try: one that changes all the time keeps no claim from the others.
    for (revision, expected) in [(5, "v1"), (6, "v1"), (7, "v2"), (8, "v1"), (9, "v3"), (10, "v1")] {
        let (op, name) = reserved(&mut planner, now);
        assert_eq!(name, expected.into(), "{revision}");
        planner.answered(op, Err(refused()), now, 0.0);
        now = planner.plan(now).wake_at.unwrap();
        let mut right = volume("v1");
        right.metadata.resource_version = ResourceVersion(revision);
        objects.apply(right);
        planner.changed(&ObjectRef::Volume("v1".into()), now);
    }
}

#[test]
fn l16_one_volume_alone_is_tried_again_in_a_doubt_whoever_else_failed_at_it() {
    let (_, mut planner) = planner(vec![volume("v1")], vec![claim("c"), claim("d")]);
    planner.state.doubts = Doubts::lasting(Duration::from_secs(68));
    let error = CallError::Unknown("500 InternalError".into());
    let mut now = Instant::now();
    for _ in 0..60 {
        failing(&mut planner, (&["v1"], &error), &mut now, Duration::from_secs(10));
        assert_eq!(planner.waiting().get("Uncertain"), None);
    }
}

#[test]
fn s40_claims_that_are_refused_and_go_leave_nothing_behind() {
    let (objects, mut planner) = planner(vec![volume("v1"), volume("v2")], Vec::new());
    let mut now = Instant::now();
    for number in 0..20 {
        let claim = claim(&format!("c{number}"));
        objects.apply(claim.clone());
        planner.changed(&ObjectRef::Claim(claim.key()), now);
        let (op, _) = reserved(&mut planner, now);
        planner.answered(op, Err(refused()), now, 0.0);
        objects.delete(claim.clone());
        planner.changed(&ObjectRef::Claim(claim.key()), now);
        now += Duration::from_secs(1);
        planner.plan(now);
    }
    let state = &planner.state;
    let kept = state.unreservable.values().map(|(_, claims)| claims.len()).sum::<usize>() + state.tried.len();
    assert_eq!(kept, 0);
}

#[test]
fn s26_a_volume_that_was_refused_to_another_claim_stays_with_the_one_that_names_it() {
    let (objects, mut planner) = planner(vec![volume("v")], vec![claim("z")]);
    let now = Instant::now();
    let (op, _) = reserved(&mut planner, now);
    planner.answered(op, Err(refused()), now, 0.0);
    objects.delete(claim("z"));
    planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "z")), now);
    let mut named = claim("c");
    named.spec.volume_name = "v".into();
    objects.apply(named);
    planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "c")), now);
    let (op, _) = reserved(&mut planner, now);
    let throttled = CallError::Throttled { message: "busy".into(), after: Duration::from_secs(1) };
    planner.answered(op, Err(throttled), now, 0.0);
    objects.apply(claim("d"));
    planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "d")), now);
    assert!(planner.plan(now).ops.is_empty(), "another claim is given it");
}

/// What a server may answer to a write each time, although the next try may mend it.
fn failures() -> [CallError; 3] {
    let after = Duration::from_secs(1);
    [
        CallError::Unknown("500 InternalError: failed calling webhook".into()),
        CallError::Conflict("a webhook denies it with 409".into()),
        CallError::Throttled { message: "a webhook denies it with 429".into(), after },
    ]
}

/// Plays for so long; whoever reserves one of these volumes fails like this, and reads show the tables. Returns who reserved which.
fn failing(
    planner: &mut Recording,
    (bad, error): (&[&str], &CallError),
    now: &mut Instant,
    lasts: Duration,
) -> Vec<(String, String)> {
    let (end, mut tried) = (*now + lasts, Vec::new());
    while *now < end {
        let plan = planner.plan(*now);
        if plan.ops.is_empty() {
            *now = plan.wake_at.unwrap_or(end);
        }
        for op in plan.ops {
            let objects = Arc::clone(&planner.state.objects);
            let result = match &op.call {
                Call::Read { target: ObjectRef::Volume(name), .. } => {
                    Ok(Answer::Volume(PersistentVolume::clone(&objects.volumes.get(name).unwrap())))
                }
                _ => {
                    let volume = op.volume.clone().unwrap_or_default().to_string();
                    let fails = bad.contains(&&*volume);
                    tried.push((op.subject.to_string(), volume));
                    if fails { Err(error.clone()) } else { Ok(answer(&objects, &op, 100)) }
                }
            };
            planner.answered(op, result, *now, 0.0);
        }
    }
    tried
}

#[test]
fn l15_a_volume_whose_reservation_fails_each_time_keeps_no_claim_from_another() {
    for error in failures() {
        // Without leader election, a request of unknown outcome is in doubt for longer than the longest pause.
        for doubt in [Duration::from_secs(23), Duration::from_secs(68)] {
            let volumes = vec![volume("v1"), volume("v2"), volume("v3")];
            let (objects, mut planner) = planner(volumes, vec![claim("c")]);
            planner.state.doubts = Doubts::lasting(doubt);
            let mut now = Instant::now();
            let tried = failing(&mut planner, (&["v1"], &error), &mut now, Duration::from_mins(3));
            assert_eq!(tried.last().unwrap().1, "v2", "{error} {doubt:?}: {tried:?}");
            objects.apply(claim("d"));
            planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "d")), now);
            let ops = planner.plan(now).ops;
            let next = ops.into_iter().find(|op| op.subject.to_string().ends_with("/d")).unwrap();
            assert_eq!(next.volume, Some("v3".into()), "nor one that comes later");
        }
    }
}

#[test]
fn l18_where_no_other_is_as_good_the_failure_is_told_and_it_is_tried_again() {
    for error in failures() {
        let (_, mut planner) = planner(vec![volume("v1")], vec![claim("c")]);
        let mut now = Instant::now();
        let tried = failing(&mut planner, (&["v1"], &error), &mut now, Duration::from_mins(10));
        assert!(tried.len() > 15, "{error}: {tried:?}");
        assert_eq!(planner.waiting(), [("RetryBackoff", 1)].into(), "{error}");
    }
}

#[test]
fn l15_however_many_fail_each_time_the_one_that_does_not_is_found() {
    let bad: Vec<String> = (0..40).map(|number| format!("v{number:02}")).collect();
    let bad: Vec<&str> = bad.iter().map(String::as_str).collect();
    for error in failures() {
        let volumes = bad.iter().chain([&"w"]).map(|name| volume(name)).collect();
        let (_, mut planner) = planner(volumes, vec![claim("c")]);
        let tried = failing(&mut planner, (&bad, &error), &mut Instant::now(), Duration::from_hours(3));
        assert!(tried.iter().any(|(_, volume)| volume == "w"), "{error}: {tried:?}");
    }
}

#[test]
fn l15_what_fails_elsewhere_takes_no_volume_from_a_claim() {
    let others: Vec<String> = (0..40).map(|number| format!("n{number:02}")).collect();
    let mut claims = vec![claim("c")];
    claims.extend(others.iter().map(|name| {
        let mut claim = claim(name);
        claim.spec.volume_name = name.as_str().into();
        claim
    }));
    let names = others.iter().map(String::as_str).chain(["v1"]);
    let bad: Vec<&str> = names.collect();
    let volumes = bad.iter().chain([&"v2"]).map(|name| volume(name)).collect();
    let (_, mut planner) = planner(volumes, claims);
    planner.state.doubts = Doubts::lasting(Duration::from_secs(68));
    let error = CallError::Unknown("500 InternalError: failed calling webhook".into());
    let tried = failing(&mut planner, (&bad, &error), &mut Instant::now(), Duration::from_mins(30));
    let is_c = |(who, volume): &&(String, String)| who.ends_with("/c") && volume == "v2";
    assert!(tried.iter().any(|it| is_c(&it)), "{tried:?}");
}

#[test]
fn s26_who_names_a_volume_whose_reservation_fails_each_time_keeps_it() {
    for error in failures() {
        let mut named = claim("n");
        named.spec.volume_name = "v1".into();
        let (_, mut planner) = planner(vec![volume("v1")], vec![named, claim("d")]);
        let mut now = Instant::now();
        let tried = failing(&mut planner, (&["v1"], &error), &mut now, Duration::from_mins(10));
        let is_theirs = |(who, volume): &(String, String)| volume == "v1" && who.ends_with("/n");
        assert!(tried.len() > 15 && tried.iter().all(is_theirs), "{error}: {tried:?}");
    }
}

#[test]
fn s26_a_volume_that_people_reserved_for_the_claim_is_tried_again_where_another_is_as_good() {
    let mut theirs = volume("v1");
    theirs.spec.claim_ref =
        Some(ClaimRef { namespace: "ns".into(), name: "c".into(), ..ClaimRef::default() });
    let (_, mut planner) = planner(vec![theirs, volume("v2")], vec![claim("c")]);
    let mut now = Instant::now();
    for _ in 0..5 {
        let (op, name) = reserved(&mut planner, now);
        assert_eq!(name, "v1".into());
        planner.answered(op, Err(refused()), now, 0.0);
        now = planner.plan(now).wake_at.unwrap();
    }
}

#[test]
fn l11_l15_writes_of_unknown_outcome_hold_neither_what_comes_under_the_claims_name_nor_the_volume() {
    let (objects, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
    let mut now = Instant::now();
    let mut plan = planner.plan(now);
    for _ in 0..12 {
        while plan.ops.is_empty() {
            now = plan.wake_at.unwrap();
            plan = planner.plan(now);
        }
        let write = plan.ops.pop().unwrap();
        assert_eq!(write.call.write_kind(), Some(WriteKind::ReserveVolume));
        planner.answered(write, Err(CallError::Unknown("500".into())), now, 0.0);
        let read = only(planner.plan(now));
        assert!(matches!(read.call, Call::Read { purpose: Purpose::Refresh, .. }), "{read:?}");
        let mut found = PersistentVolume::clone(&objects.volumes.get(&"pv".into()).unwrap());
        found.metadata.resource_version.0 += 1;
        planner.answered(read, Ok(Answer::Volume(found)), now, 0.0);
        plan = planner.plan(now);
    }
    assert!(plan.ops.is_empty(), "the claim pauses");
    let before = claim("c");
    objects.delete(before.clone());
    planner.changed(&ObjectRef::Claim(before.key()), now);
    let mut anew = before;
    anew.metadata.uid = "anew".into();
    anew.metadata.resource_version.0 += 1;
    objects.apply(anew);
    planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "c")), now);
    let (op, _) = reserved(&mut planner, now);
    assert_eq!(op.uid, Some("anew".into()));
}
