//! What the planner keeps and lets go, and how much it hands out at once.

use apiserver::{
    call::{Request, Verb},
    kinds::Pod,
    text::TextMap,
};

use super::*;
use crate::binder::{calls::Write, durations::MeasuredOperation, plan::LOOKS};

#[test]
fn no_more_is_under_way_than_is_useful_and_all_of_it_is_counted() {
    let pairs = 0..200;
    let volumes = pairs.clone().map(|number| volume(&format!("v{number}"))).collect();
    let claims = pairs.map(|number| claim(&format!("c{number}"))).collect();
    let (objects, mut planner) = planner(volumes, claims);
    let now = Instant::now();
    assert_eq!(planner.in_flight(), 0);
    let mut ops = planner.plan(now).ops;
    assert_eq!((ops.len(), planner.in_flight()), (128, 128));
    assert!(planner.plan(now).ops.is_empty());
    let op = ops.remove(0);
    let reserved = answer(&objects, &op, 2);
    planner.answered(op, Ok(reserved), now, 0.0);
    assert_eq!(planner.in_flight(), 127);
    assert_eq!((planner.plan(now).ops.len(), planner.in_flight()), (1, 128));
    // What is read after an answer that was lost counts like any other.
    planner.answered(ops.remove(0), Err(CallError::Conflict("changed".into())), now, 0.0);
    assert_eq!((planner.plan(now).ops.len(), planner.in_flight()), (1, 128));
}

#[test]
fn l12_a_bind_that_has_begun_comes_before_claims_that_a_pod_waits_for_and_all_others() {
    let claims = ["a", "b", "c", "z"].map(claim);
    let mut held = volume("held");
    held.spec.claim_ref =
        Some(ClaimRef { namespace: "ns".into(), name: "z".into(), uid: claims[3].metadata.uid.clone() });
    let objects = Arc::new(Objects::default());
    objects.reset(vec![volume("free"), held]);
    objects.reset(claims.to_vec());
    let waiting = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "p", "resourceVersion": "1"},
        "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "a"}}]},
    });
    objects.apply::<Pod>(decode(&waiting));
    let mut planner = Planner::new(objects, BinderOptions::default());
    let now = Instant::now();
    planner.load(now);
    planner.lead(now);
    let calls = planner.plan(now).calls;
    let order: Vec<Target> = calls.into_iter().map(|op| op.subject).collect();
    assert_eq!(order, ["z", "a"].map(|name| Target::Claim(ClaimKey::new("ns", name))));
}

#[test]
fn nothing_is_kept_of_what_is_gone() {
    let mut named = claim("c");
    named.spec.volume_name = VolumeName::from("missing");
    let mut parked = volume("pv");
    parked.spec.claim_ref = Some(ClaimRef { namespace: "ns".into(), name: "d".into(), uid: "".into() });
    let (objects, mut planner) = planner(vec![parked.clone()], vec![named.clone()]);
    let now = Instant::now();
    assert!(!planner.plan(now).events.is_empty());
    let reasons = &planner.recorder;
    assert!(reasons.claim(&named.key()).is_some() && reasons.volume(&parked.key()).is_some());
    named.metadata.resource_version = ResourceVersion(5);
    parked.metadata.resource_version = ResourceVersion(6);
    objects.delete(named.clone());
    objects.delete(parked.clone());
    planner.changed(&ObjectRef::Claim(named.key()), now);
    planner.changed(&ObjectRef::Volume(parked.key()), now);
    planner.plan(now);
    let reasons = &planner.recorder;
    assert_eq!((reasons.claim(&named.key()), reasons.volume(&parked.key())), (None, None));
    // Made again it is told of again.
    named.metadata.resource_version = ResourceVersion(7);
    objects.apply(named.clone());
    planner.changed(&ObjectRef::Claim(named.key()), now);
    assert!(!planner.plan(now).events.is_empty());
}

/// A volume goes while the read after a conflict waits for its time: the read is made all the same, as the
/// volume's key is held until it is answered.
#[test]
fn a_read_that_waits_outlasts_its_volume() {
    let mut pending = volume("pv");
    pending.status.phase = VolumePhase::Pending;
    let (objects, mut planner) = planner(vec![pending.clone()], vec![]);
    let mut now = Instant::now();
    let mut plan = planner.plan(now);
    while let Some(op) = plan.ops.pop() {
        let result = match &op.call {
            Call::Write(_) => Err(CallError::Conflict("changed".into())),
            _ => Ok(Answer::Volume(pending.clone())),
        };
        planner.answered(op, result, now, 0.0);
        plan = planner.plan(now);
    }
    pending.metadata.resource_version = ResourceVersion(5);
    // It changes, and goes before it is looked at.
    planner.changed(&ObjectRef::Volume(pending.key()), now);
    objects.delete(pending.clone());
    planner.changed(&ObjectRef::Volume(pending.key()), now);
    let plan = planner.plan(now);
    assert!(plan.ops.is_empty());
    now = plan.wake_at.unwrap();
    let read = only(planner.plan(now));
    assert_eq!(read.call, Call::Read { target: ObjectRef::Volume(pending.key()), purpose: Purpose::Refresh });
}

/// What counts as a failure of an operation that is measured from end to end (pv-binder §11).
#[test]
fn failures_of_provisioning_are_those_of_its_own_writes() {
    let unknown = || CallError::Unknown("reset".to_owned());
    let rows = [
        (WriteKind::AskProvisioner, unknown(), true),
        (WriteKind::ReserveVolume, CallError::Conflict("changed".to_owned()), true),
        (WriteKind::NameVolume, unknown(), true),
        (WriteKind::ClaimBound, unknown(), true),
        (WriteKind::ClaimPending, unknown(), false),
        (WriteKind::Annotate, unknown(), false),
        (WriteKind::AssignClass, unknown(), false),
        (WriteKind::ReserveVolume, CallError::NotLeader, false),
        (WriteKind::AskProvisioner, CallError::NotLeader, false),
    ];
    let claim = claim("c");
    let now = Instant::now();
    let request = || Request { verb: Verb::Patch, path: String::new(), body: None };
    for (kind, error, counts) in rows {
        let (_, mut planner) = planner(vec![], vec![]);
        planner.recorder.durations.asks(&claim.key(), "d", now);
        let call = Call::Write(Write {
            kind,
            target: ObjectRef::Claim(claim.key()),
            request: request(),
            then: Vec::new(),
            claim: "".into(),
        });
        let op = Op { subject: Target::Claim(claim.key()), uid: None, volume: None, call, known: None };
        planner.answered(op, Err(error.clone()), now, 0.0);
        let failed = vec![Sample::Failed(MeasuredOperation::Provision, "d".to_owned())];
        let expected = if counts { failed } else { vec![] };
        assert_eq!(planner.plan(now).samples, expected, "{kind:?} {error:?}");
    }
}

/// Of the cluster as it is, and of nothing else: neither memory nor a histogram tells of what came and went
/// while another process led.
#[test]
fn l15_a_standby_keeps_no_keys_and_its_clocks_begin_when_it_leads() {
    let (objects, start) = (Arc::new(Objects::default()), Instant::now());
    let mut planner = Recording::new(Planner::new(Arc::clone(&objects), BinderOptions::default()));
    planner.load(start);
    objects.apply(claim("stays"));
    planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "stays")), start);
    for number in 0..20_000 {
        let (mut claim, mut volume) = (claim(&format!("c{number}")), volume(&format!("v{number}")));
        for revision in [2 * number + 2, 2 * number + 3] {
            claim.metadata.resource_version = ResourceVersion(revision);
            volume.metadata.resource_version = ResourceVersion(revision);
            if revision % 2 == 0 {
                objects.apply(claim.clone());
                objects.apply(volume.clone());
            } else {
                objects.delete(claim.clone());
                objects.delete(volume.clone());
            }
            planner.changed(&ObjectRef::Claim(claim.key()), start);
            planner.changed(&ObjectRef::Volume(volume.key()), start);
        }
    }
    assert_eq!(planner.queue.pop(start), None);

    let later = start + Duration::from_hours(48);
    planner.lead(later);
    let [claims, volumes] = planner.plan(later).counts;
    let waits = [Duration::ZERO].into_iter().collect();
    assert_eq!((claims.adds, claims.waits, claims.depth), (1, waits, 0));
    assert_eq!((volumes.adds, volumes.waits.len(), volumes.depth), (0, 0, 0));
}

/// The claims that keep pods from being scheduled first, then those that wait for a volume, then all others.
#[test]
fn l15_whoever_takes_over_looks_at_wanted_claims_first() {
    let mut claims: Vec<_> = (0..1_000)
        .map(|number| {
            let mut claim = claim(&format!("a{number:04}"));
            claim.spec.volume_name = "missing".into();
            claim.metadata.annotations.insert("pv.kubernetes.io/bind-completed".to_owned(), "yes".to_owned());
            claim.status.phase = ClaimPhase::Bound;
            claim
        })
        .collect();
    claims.extend(["open", "wanted"].map(claim));
    let pod = |name: &str, claim: &str, node: &str| -> Pod {
        decode(&json!({
            "metadata": {"namespace": "ns", "name": name, "uid": name, "resourceVersion": "1"},
            "spec": {"nodeName": node, "volumes": [{"name": "data",
                "persistentVolumeClaim": {"claimName": claim}}]},
        }))
    };
    let objects = Arc::new(Objects::default());
    objects.reset(claims);
    objects.reset(vec![volume("v1"), volume("v2")]);
    objects.reset(vec![pod("p", "wanted", ""), pod("q", "a0500", "n1")]);
    let mut planner = Recording::new(Planner::new(Arc::clone(&objects), BinderOptions::default()));
    let now = Instant::now();
    planner.load(now);
    planner.lead(now);
    let ops = planner.plan(now).ops;
    let order: Vec<String> = ops.iter().map(|op| op.subject.to_string()).take(3).collect();
    assert_eq!(order, ["pvc/ns/wanted", "pvc/ns/open", "pvc/ns/a0000"]);
}

#[test]
fn l15_a_plan_ends_after_so_many_looks_and_goes_on_where_it_ended() {
    let claims = (0..5_000).map(|number| claim(&format!("c{number:04}"))).collect();
    let (objects, mut planner) = planner(Vec::new(), claims);
    let now = Instant::now();
    let plan = planner.plan(now);
    assert_eq!((plan.ops.len(), plan.wake_at), (0, Some(now)));
    assert!(plan.looks <= LOOKS + 2, "{}", plan.looks);
    let told = plan.events.len();

    // What comes in meanwhile does not wait for the rest: neither a volume nor a claim.
    objects.apply(volume("pv"));
    planner.changed(&ObjectRef::Volume("pv".into()), now);
    let mut named = claim("named");
    named.spec.volume_name = "missing".into();
    objects.apply(named);
    planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "named")), now);
    let plan = planner.plan(now);
    assert!(plan.ops.iter().any(|op| op.call.write_kind() == Some(WriteKind::ReserveVolume)), "{plan:?}");
    assert!(plan.events.iter().any(|event| event.reason == "NamedVolumeMissing"));

    let mut told = told + plan.events.len();
    for _ in 0..9 {
        told += planner.plan(now).events.len();
    }
    // All but the one that takes the volume; one of them before it came.
    assert!((5_000..=5_001).contains(&told), "{told}");
    assert!(planner.plan(now).wake_at > Some(now));

    // The safety net under all this is no longer a plan of its own.
    let resync = now + BinderOptions::default().sync_period;
    let plan = planner.plan(resync);
    assert!(plan.looks <= LOOKS + 2, "{}", plan.looks);
    assert_eq!(plan.wake_at, Some(resync));
}

/// Claims that may not be looked at just now are passed over, however many.
#[test]
fn l15_an_offer_passes_over_claims_that_wait_for_their_time() {
    let claims = (0..1_200).map(|number| claim(&format!("c{number:04}"))).collect();
    let (objects, mut planner) = planner(Vec::new(), claims);
    let now = Instant::now();
    while planner.plan(now).wake_at == Some(now) {}
    for key in objects.claims.snapshot().into_keys() {
        planner.retries.wait_until(&Target::Claim(key), now + Duration::from_secs(9));
    }
    objects.apply(volume("pv"));
    planner.changed(&ObjectRef::Volume("pv".into()), now);
    let plan = planner.plan(now);
    assert!(plan.ops.is_empty() && plan.decisions.len() == 1, "{plan:?}");
    assert_eq!((plan.looks, plan.compared), (2, 1_200));
    assert_eq!(planner.plan(now).wake_at, Some(now + Duration::from_secs(9)));
}

/// The table already shows the labels by which they select the volume, and the index is about to.
#[test]
fn l15_an_offer_that_many_decline_goes_on_where_it_ended() {
    let labels: TextMap = [("x".to_owned(), "y".to_owned())].into();
    let selecting = |number| {
        let mut claim = claim(&format!("c{number:04}"));
        let selector = LabelSelector { match_labels: labels.clone(), ..LabelSelector::default() };
        claim.spec.selector = Some(Box::new(selector));
        claim
    };
    let (objects, mut planner) = planner(Vec::new(), (0..600).map(selecting).collect());
    let now = Instant::now();
    while planner.plan(now).wake_at == Some(now) {}
    let mut free = volume("pv");
    objects.apply(free.clone());
    planner.changed(&ObjectRef::Volume("pv".into()), now);
    free.metadata.labels = labels;
    free.metadata.resource_version = ResourceVersion(2);
    objects.apply(free);
    let (mut declined, mut plans, mut compared) = (0, 0, 0);
    loop {
        let plan = planner.plan(now);
        assert!(plan.looks <= LOOKS + 2 && plan.ops.is_empty());
        compared += plan.compared;
        declined += plan.decisions.get(&("claim", "NoClassAndNoMatch")).copied().unwrap_or_default();
        plans += 1;
        if plan.wake_at != Some(now) {
            break;
        }
    }
    assert_eq!(declined, 600, "each once");
    assert!(plans > 1 && compared < 5 * 600, "{plans} {compared}");
}

/// Of two claims that are Bound to a volume without claimRef, people make one give way.
#[test]
fn s45_a_dispute_ends_when_one_of_the_claims_is_bound_no_longer() {
    let bound = |name| {
        let mut bound = claim(name);
        (bound.spec.volume_name, bound.status.phase) = ("pv".into(), ClaimPhase::Bound);
        bound.metadata.annotations.insert("pv.kubernetes.io/bind-completed".to_owned(), "yes");
        bound
    };
    let mut cleared = volume("pv");
    cleared.status.phase = VolumePhase::Bound;
    let (objects, mut planner) = planner(vec![cleared], vec![bound("c"), bound("d")]);
    let now = Instant::now();
    assert_eq!(planner.plan(now).ops, []);
    assert_eq!(planner.waiting(), [("LostMisbound", 2)].into());
    let mut gives_way = bound("c");
    (gives_way.status.phase, gives_way.metadata.resource_version) = (ClaimPhase::Lost, ResourceVersion(2));
    objects.apply(gives_way.clone());
    planner.changed(&ObjectRef::Claim(gives_way.key()), now);
    let op = only(planner.plan(now));
    assert_eq!(op.subject, Target::Claim(ClaimKey::new("ns", "d")));
    assert_eq!(op.call.write_kind(), Some(WriteKind::ReserveVolume));
}
