//! When a wait ends, and what is told meanwhile.

use std::{sync::Arc, time::Duration};

use apiserver::{
    backoff::retry_pause,
    call::CallError,
    events::Novelty,
    ids::{ClaimKey, ClassName, ResourceVersion, VolumeName},
    kinds::{
        ClaimPhase, ClaimRef, Meta, Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim,
        ReclaimPolicy, StorageClass, VolumePhase,
    },
    tables::{ChangeSet, Objects},
};
use serde_json::json;
use tokio::time::Instant;

use super::{Recorded, Recording, answer, claim, decode, only, planner, volume};
use crate::binder::{
    calls::{Answer, Call, Purpose, Target, WriteKind},
    controller::Planner,
    decide::upkeep::IN_TREE_FINALIZER,
    durations::{BindMode, Sample},
    state::Plugins,
};

fn key(name: &str) -> ClaimKey {
    ClaimKey::new("ns", name)
}

fn of_class(name: &str, class: &str) -> PersistentVolumeClaim {
    let mut claim = claim(name);
    claim.spec.storage_class_name = Some(class.into());
    claim
}

fn refused() -> CallError {
    CallError::Refused { code: 403, message: "no".into() }
}

/// An object of which a person has noted this.
fn noted(meta: Meta, team: &str, revision: u64) -> Meta {
    let noted: Meta = serde_json::from_value(json!({"annotations": {"example.com/team": team}})).unwrap();
    Meta { resource_version: ResourceVersion(revision), annotations: noted.annotations, ..meta }
}

/// What the tables tell of.
fn told(planner: &mut Planner, changes: &ChangeSet, now: Instant) {
    changes.take().iter().for_each(|object| planner.changed(object, now));
}

fn reasons(plan: &Recorded) -> Vec<(&'static str, &str)> {
    plan.events.iter().map(|event| (event.reason, event.message.as_str())).collect()
}

#[test]
fn l16_a_pair_goes_on_within_five_seconds_after_an_outage() {
    let (_, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
    let start = Instant::now();
    let mut now = start;
    let op = only(planner.plan(now));
    planner.answered(op, Err(CallError::Unknown("refused".into())), now, 0.0);
    for _ in 0..50 {
        let plan = planner.plan(now);
        let Some(read) = plan.ops.first().cloned() else {
            let next = plan.wake_at.unwrap();
            assert!(next <= now + Duration::from_secs(5), "{:?}", next - now);
            now = next;
            continue;
        };
        planner.answered(read, Err(CallError::Unknown("refused".into())), now, 0.0);
    }
    assert!(now > start + Duration::from_mins(1), "it was not asked all the time");
}

#[test]
fn a_claim_that_was_put_right_is_tried_at_once() {
    let (objects, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
    let changes = objects.subscribe();
    let mut now = Instant::now();
    for _ in 0..2 {
        let op = only(planner.plan(now));
        planner.answered(op, Err(refused()), now, 0.0);
        let plan = planner.plan(now);
        assert!(plan.ops.is_empty());
        now = plan.wake_at.unwrap();
    }
    now -= retry_pause(1, 0.0);

    // Nobody has put it right yet, then a person notes what a policy asks for.
    let mut claim = claim("c");
    claim.metadata.resource_version = ResourceVersion(3);
    objects.apply(claim.clone());
    told(&mut planner, &changes, now);
    assert_eq!(planner.plan(now).ops, []);
    claim.metadata = noted(claim.metadata, "a", 4);
    objects.apply(claim.clone());
    told(&mut planner, &changes, now);
    let op = only(planner.plan(now));
    assert_eq!(op.call.write_kind(), Some(WriteKind::ReserveVolume));

    // Who changes it without end does not have it tried without end (S40).
    planner.answered(op, Err(refused()), now, 0.0);
    claim.metadata = noted(claim.metadata, "b", 5);
    objects.apply(claim);
    told(&mut planner, &changes, now);
    let plan = planner.plan(now);
    assert_eq!((plan.ops.len(), plan.wake_at), (0, Some(now + retry_pause(1, 0.0))));
}

/// The volume that it was to have, or another one; one that it had not found before, too.
#[test]
fn l1_a_claim_whose_step_is_refused_takes_a_volume_that_comes_or_changes() {
    for (class, name) in [("", "pv"), ("", "other"), ("gold", "other")] {
        let mut pv = volume("pv");
        pv.spec.storage_class_name = Some("".into());
        let (objects, mut planner) = planner(vec![pv], vec![of_class("c", class)]);
        let gold: StorageClass = decode(&json!({
            "metadata": {"name": "gold", "resourceVersion": "1"}, "provisioner": "vendor.com/v",
            "volumeBindingMode": "Immediate",
        }));
        objects.apply(gold);
        let changes = objects.subscribe();
        let mut now = Instant::now();
        for _ in 0..3 {
            let op = only(planner.plan(now));
            planner.answered(op, Err(refused()), now, 0.0);
            let plan = planner.plan(now);
            assert_eq!(plan.ops, []);
            now = plan.wake_at.unwrap();
        }
        now -= retry_pause(1, 0.0);
        let mut comes = volume(name);
        comes.spec.storage_class_name = Some(class.into());
        comes.metadata = noted(comes.metadata, "a", 5);
        objects.apply(comes.clone());
        told(&mut planner, &changes, now);
        let op = only(planner.plan(now));
        assert_eq!(op.call.write_kind(), Some(WriteKind::ReserveVolume), "{class} {name}");

        // What changes without end does not have it tried without end (S40).
        planner.answered(op, Err(refused()), now, 0.0);
        comes.metadata.resource_version = ResourceVersion(6);
        comes.metadata.labels.insert("a".to_owned(), "b".to_owned());
        objects.apply(comes);
        told(&mut planner, &changes, now);
        let plan = planner.plan(now);
        assert_eq!((plan.ops, plan.wake_at), (vec![], Some(now + retry_pause(1, 0.0))), "{class} {name}");
    }
}

/// Two claims whose steps were refused so often, just before the next try.
fn two_are_refused(times: usize) -> (Arc<Objects>, Recording, Instant) {
    let (objects, mut planner) = planner(vec![volume("pv"), volume("other")], vec![claim("c"), claim("d")]);
    let mut now = Instant::now();
    for _ in 0..times {
        for op in planner.plan(now).ops {
            planner.answered(op, Err(refused()), now, 0.0);
        }
        now = planner.plan(now).wake_at.unwrap();
    }
    (objects, planner, now)
}

#[test]
fn l15_volumes_that_come_wake_as_many_claims_whose_step_was_refused() {
    let (objects, mut planner, mut now) = two_are_refused(6);
    now -= Duration::from_millis(1);
    for name in ["v", "w"] {
        objects.apply(volume(name));
        planner.changed(&ObjectRef::Volume(name.into()), now);
    }
    let taken: Vec<Target> = planner.plan(now).ops.into_iter().map(|op| op.subject).collect();
    assert_eq!(taken, [Target::Claim(key("c")), Target::Claim(key("d"))]);
}

#[test]
fn l15_a_claim_that_is_always_refused_does_not_keep_volumes_that_come_from_others() {
    let (objects, mut planner, mut now) = two_are_refused(20);
    now -= Duration::from_secs(30);
    let taken = ["v", "w"].map(|name| {
        now += Duration::from_secs(1);
        objects.apply(volume(name));
        planner.changed(&ObjectRef::Volume(name.into()), now);
        let op = only(planner.plan(now));
        planner.answered(op.clone(), Err(refused()), now, 0.0);
        op.subject
    });
    assert_eq!(taken, [Target::Claim(key("c")), Target::Claim(key("d"))]);
}

#[test]
fn s28_one_read_of_a_class_serves_the_claims_known_by_then() {
    let of = |name: &str, revision| {
        let mut claim = of_class(name, "manual");
        claim.metadata.resource_version = ResourceVersion(revision);
        claim
    };
    let (objects, mut planner) = planner(Vec::new(), vec![of("a", 3), of("b", 5)]);
    let now = Instant::now();
    let read = only(planner.plan(now));
    assert_eq!(read.call, Call::read(ObjectRef::Class(ClassName::from("manual")), Purpose::ProveNoClass));
    objects.apply(of("c", 9));
    planner.changed(&ObjectRef::Claim(key("c")), now);
    assert!(planner.plan(now).ops.is_empty());
    assert_eq!(planner.waiting(), [("ConfirmingClass", 3)].into());

    planner.answered(read, Err(CallError::NotFound("manual".into())), now, 0.0);
    let read = only(planner.plan(now));
    assert_eq!(read.subject, Target::Claim(key("c")), "it came after the read was sent");
    planner.answered(read, Err(CallError::NotFound("manual".into())), now, 0.0);
    assert!(planner.plan(now).ops.is_empty());
    assert_eq!(planner.waiting(), [("ClassNotFound", 3)].into());

    // The class comes: its absence is no longer proven.
    let class: StorageClass = decode(&json!({
        "metadata": {"name": "manual", "resourceVersion": "10"}, "provisioner": "p",
        "volumeBindingMode": "WaitForFirstConsumer",
    }));
    objects.apply(class.clone());
    planner.changed(&ObjectRef::Class(class.key()), now);
    planner.plan(now);
    assert_eq!(planner.waiting(), [("WaitingForFirstConsumer", 3)].into());

    // It goes, and stays away for a minute: that there was none before it came says nothing about now.
    objects.delete(class.clone());
    planner.changed(&ObjectRef::Class(class.key()), now);
    let plan = planner.plan(now);
    assert_eq!(plan.ops, []);
    assert_eq!(
        only(planner.plan(plan.wake_at.unwrap())).call,
        Call::read(ObjectRef::Class(class.key()), Purpose::ProveNoClass)
    );
}

/// The answer to the read is announced as any other change is.
#[test]
fn s28_a_class_that_was_read_live_is_used_before_its_watch_tells_of_it() {
    let (objects, mut planner) = planner(Vec::new(), vec![of_class("c", "gold")]);
    let changes = objects.subscribe();
    let now = Instant::now();
    let read = only(planner.plan(now));
    let class: StorageClass = decode(&json!({
        "metadata": {"name": "gold", "uid": "g", "resourceVersion": "10"}, "provisioner": "p",
        "volumeBindingMode": "WaitForFirstConsumer",
    }));
    planner.answered(read, Ok(Answer::Class(class.clone())), now, 0.0);
    told(&mut planner, &changes, now);
    assert_eq!(planner.plan(now).ops, []);
    assert_eq!(planner.waiting(), [("WaitingForFirstConsumer", 1)].into());

    // A list that should show it and does not: it is asked for again, a minute later.
    objects.classes.advance(ResourceVersion(11));
    objects.reset::<StorageClass>(Vec::new());
    told(&mut planner, &changes, now);
    let plan = planner.plan(now);
    assert_eq!(plan.ops, []);
    assert_eq!(
        only(planner.plan(plan.wake_at.unwrap())).call,
        Call::read(ObjectRef::Class(class.key()), Purpose::ProveNoClass)
    );
}

#[test]
fn the_absence_of_a_class_is_known_as_long_as_somebody_asks_for_it() {
    let claim = of_class("c", "manual");
    let (objects, mut planner) = planner(Vec::new(), vec![claim.clone()]);
    let now = Instant::now();
    let read = only(planner.plan(now));
    planner.answered(read, Err(CallError::NotFound("manual".into())), now, 0.0);
    let resync = planner.plan(now).wake_at.unwrap();
    let next = planner.plan(resync).wake_at.unwrap();
    let is_known = |planner: &Planner| {
        planner.state.proofs.is_without_class(&ClassName::from("manual"), claim.metadata.resource_version)
    };
    assert!(is_known(&planner));
    let mut gone = claim.clone();
    gone.metadata.resource_version = ResourceVersion(5);
    objects.delete(gone);
    planner.changed(&ObjectRef::Claim(key("c")), resync);
    planner.plan(next);
    assert!(!is_known(&planner));
}

#[test]
fn s28_a_class_that_cannot_be_read_keeps_its_claims_waiting() {
    let (_, mut planner) = planner(vec![], vec![of_class("a", "manual"), of_class("b", "manual")]);
    let now = Instant::now();
    let read = only(planner.plan(now));
    planner.answered(read, Err(refused()), now, 0.0);
    let plan = planner.plan(now);
    assert!(plan.ops.is_empty(), "the other claim does not try the same at once");
    assert_eq!(plan.wake_at, Some(now + Duration::from_millis(500)));
    assert_eq!(planner.waiting(), [("RetryBackoff", 2)].into());
    let text = "storage class \"manual\" could not be read: no";
    assert_eq!(reasons(&plan), [("ProvisioningFailed", text); 2]);

    // When the pause ends, one read serves both again.
    let now = now + Duration::from_millis(500);
    let read = only(planner.plan(now));
    planner.answered(read, Err(refused()), now, 0.0);
    let plan = planner.plan(now);
    assert_eq!((plan.ops, plan.events), (vec![], vec![]), "what was said is not said again");
    let read = only(planner.plan(plan.wake_at.unwrap()));
    planner.answered(read, Err(CallError::NotFound("manual".into())), now, 0.0);
    planner.plan(now);
    assert_eq!(planner.waiting(), [("ClassNotFound", 2)].into());
}

/// A label, say: the claim's revision grows, and nothing tells of it, as nothing that we keep has changed.
#[test]
fn s39_a_change_of_no_interest_costs_one_read_of_the_class() {
    let mut claim = of_class("c", "manual");
    let (objects, mut planner) = planner(Vec::new(), vec![claim.clone()]);
    let now = Instant::now();
    let read = only(planner.plan(now));
    planner.answered(read, Err(CallError::NotFound("manual".into())), now, 0.0);
    let later = planner.plan(now).wake_at.unwrap();
    claim.metadata.resource_version = ResourceVersion(20);
    objects.apply(claim);
    let read = only(planner.plan(later));
    planner.answered(read, Err(CallError::NotFound("manual".into())), later, 0.0);
    assert!(planner.plan(later).ops.is_empty());
    assert_eq!(planner.waiting(), [("ClassNotFound", 1)].into());
}

/// Both volumes are new, and pre-bound by name; the absence of the class is being proven for one of the
/// claims.
#[test]
fn no_volume_is_made_available_while_the_class_of_its_claim_is_read() {
    let pair = |number: usize| {
        let (mut volume, claim) = (volume(&format!("pv{number}")), of_class(&format!("c{number}"), "manual"));
        volume.spec.storage_class_name = Some("manual".into());
        volume.status.phase = VolumePhase::Pending;
        volume.spec.claim_ref =
            Some(ClaimRef { namespace: "ns".into(), name: format!("c{number}").into(), uid: "".into() });
        (volume, claim)
    };
    let (volumes, claims) = [pair(1), pair(2)].into_iter().unzip();
    let (_, mut planner) = planner(volumes, claims);
    let now = Instant::now();
    let read = only(planner.plan(now));
    planner.answered(read, Err(CallError::NotFound("manual".into())), now, 0.0);
    let kinds: Vec<_> = planner.plan(now).ops.iter().map(|op| op.call.write_kind()).collect();
    assert_eq!(kinds, [Some(WriteKind::ReserveVolume); 2]);
}

#[test]
fn s40_a_write_that_changes_nothing_is_tried_again_after_a_pause() {
    let (_, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
    let now = Instant::now();
    let op = only(planner.plan(now));
    planner.answered(op, Ok(Answer::Volume(volume("pv"))), now, 0.0);
    let plan = planner.plan(now);
    assert!(plan.ops.is_empty());
    assert_eq!(plan.wake_at, Some(now + Duration::from_millis(500)));
}

#[test]
fn a_claim_that_cannot_be_handed_to_its_provisioner_says_so() {
    let (objects, mut planner) = planner(Vec::new(), vec![of_class("c", "gold")]);
    let now = Instant::now();
    let class: StorageClass = decode(&json!({
        "metadata": {"name": "gold", "resourceVersion": "1"}, "provisioner": "vendor.com/v",
        "volumeBindingMode": "Immediate",
    }));
    objects.apply(class);
    planner.changed(&ObjectRef::Class(ClassName::from("gold")), now);
    let op = only(planner.plan(now));
    assert_eq!(op.call.write_kind(), Some(WriteKind::AskProvisioner));
    planner.answered(op, Err(refused()), now, 0.0);
    assert!(reasons(&planner.plan(now)).contains(&("ProvisioningFailed", "Error saving claim: no")));
}

#[test]
fn what_a_write_tells_is_not_told_again_by_the_next_look() {
    let mut bound = claim("c");
    bound.spec.volume_name = VolumeName::from("pv");
    bound.metadata.annotations.insert("pv.kubernetes.io/bind-completed", "yes");
    let (_, mut planner) = planner(Vec::new(), vec![bound.clone()]);
    let now = Instant::now();
    let proof = only(planner.plan(now));
    planner.answered(proof, Err(CallError::NotFound("pv".into())), now, 0.0);
    let write = only(planner.plan(now));
    assert_eq!(write.call.write_kind(), Some(WriteKind::ClaimLost));
    bound.status.phase = ClaimPhase::Lost;
    bound.metadata.resource_version = ResourceVersion(2);
    planner.answered(write, Ok(Answer::Claim(bound)), now, 0.0);
    let plan = planner.plan(now);
    let told: Vec<&str> = plan.events.iter().map(|event| event.reason).collect();
    assert_eq!((told, plan.ops), (vec!["ClaimLost", "LostVolumeMissing"], vec![]));
    let mut now = now;
    for _ in 0..3 {
        let plan = planner.plan(now);
        let news = plan.events.iter().filter(|event| event.novelty != Novelty::Standing).count();
        assert_eq!((plan.ops, news), (vec![], 0), "neither asked nor told again");
        now = plan.wake_at.unwrap();
    }
}

#[test]
fn s14_what_we_wrote_is_not_for_others_to_change() {
    let (objects, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
    let now = Instant::now();
    for revision in 2..4 {
        let op = only(planner.plan(now));
        let answer = answer(&objects, &op, revision);
        planner.answered(op, Ok(answer), now, 0.0);
    }
    let mut other = volume("pv");
    other.metadata.resource_version = ResourceVersion(9);
    objects.apply(other);
    planner.changed(&ObjectRef::Volume(VolumeName::from("pv")), now);
    assert!(
        planner
            .plan(now)
            .ops
            .iter()
            .any(|op| matches!(op.call, Call::Read { purpose: Purpose::LearnOwner(_), .. }))
    );
}

#[test]
fn an_event_that_was_lost_is_recorded_again() {
    let (_, mut planner) = planner(Vec::new(), vec![claim("c")]);
    let now = Instant::now();
    let plan = planner.plan(now);
    let [event] = plan.events.as_slice() else { panic!("{:?}", plan.events) };
    let later = now + Duration::from_mins(4);
    assert!(planner.plan(later).events.is_empty());
    planner.lost((Some(Target::Claim(key("c"))), event.clone()), later);
    let later = planner.plan(later).wake_at.unwrap();
    let told: Vec<Novelty> = planner.plan(later).events.iter().map(|event| event.novelty).collect();
    assert_eq!(told, [Novelty::Unclear]);
}

#[test]
fn a_bind_that_stops_is_not_measured_as_a_long_one() {
    let (objects, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
    let now = Instant::now();
    let op = only(planner.plan(now));
    let reserved = answer(&objects, &op, 2);
    planner.answered(op, Ok(reserved), now, 0.0);
    let op = only(planner.plan(now));
    // The volume is taken away, and an hour later there is another.
    let mut taken = volume("pv");
    taken.metadata.resource_version = ResourceVersion(3);
    taken.metadata.deletion_timestamp = Some(Box::new(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
    planner.answered(op, Err(CallError::Conflict("pv".into())), now, 0.0);
    let read = only(planner.plan(now));
    planner.answered(read, Ok(Answer::Volume(taken)), now, 0.0);
    assert!(planner.plan(now).ops.is_empty());
    let now = now + Duration::from_hours(1);
    let mut other = volume("other");
    other.metadata.resource_version = ResourceVersion(4);
    objects.apply(other);
    planner.changed(&ObjectRef::Volume(VolumeName::from("other")), now);
    let samples = samples_of_bind(&mut planner, &objects, now);
    assert_eq!(binds(samples), [(BindMode::Static, 4)]);
}

/// The server is too busy for the second write of a bind. When its time comes, the volume is being given the
/// finalizer that it needs by now.
#[test]
fn a_bind_that_meets_another_write_to_its_volume_is_measured_from_its_beginning() {
    #[derive(Debug)]
    struct HostPath;

    impl Plugins for HostPath {
        fn provisions(&self, provisioner: &str) -> bool {
            provisioner == "kubernetes.io/host-path"
        }
    }

    let (objects, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
    planner.state.plugins = Box::new(HostPath);
    let start = Instant::now();
    let op = only(planner.plan(start));
    let reserved = answer(&objects, &op, 2);
    planner.answered(op, Ok(reserved), start, 0.0);
    let op = only(planner.plan(start));
    let after = Duration::from_secs(7);
    planner.answered(op, Err(CallError::Throttled { message: "busy".into(), after }), start, 0.0);
    let mut changed = PersistentVolume::clone(&objects.volumes.get(&VolumeName::from("pv")).unwrap());
    changed.metadata.resource_version = ResourceVersion(3);
    changed
        .metadata
        .annotations
        .insert("pv.kubernetes.io/provisioned-by".to_owned(), "kubernetes.io/host-path".to_owned());
    changed.spec.reclaim_policy = ReclaimPolicy::Delete;
    objects.apply(changed.clone());
    planner.changed(&ObjectRef::Volume(changed.key()), start);
    let annotating = only(planner.plan(start));
    assert_eq!(annotating.call.write_kind(), Some(WriteKind::Annotate));
    let mut now = start + after;
    assert!(planner.plan(now).ops.is_empty());
    assert_eq!(planner.waiting(), [("VolumeBusy", 1)].into());
    now += Duration::from_secs(2);
    changed.metadata.resource_version = ResourceVersion(4);
    changed.metadata.finalizers = [IN_TREE_FINALIZER].into();
    planner.answered(annotating, Ok(Answer::Volume(changed)), now, 0.0);
    for revision in 5..8 {
        let op = only(planner.plan(now));
        let answer = answer(&objects, &op, revision);
        planner.answered(op, Ok(answer), now, 0.0);
    }
    assert_eq!(binds(planner.plan(now).samples), [(BindMode::Static, 9)]);
}

/// Binds that were measured, and their whole seconds: a planner is made a moment before a test begins.
fn binds(samples: Vec<Sample>) -> Vec<(BindMode, u64)> {
    let bind = |sample| match sample {
        Sample::Bound(mode, took, _) => Some((mode, took.as_secs())),
        Sample::Took(..) | Sample::Failed(..) => None,
    };
    samples.into_iter().filter_map(bind).collect()
}

/// Plays a bind to its end, each request of which takes a second.
fn samples_of_bind(planner: &mut Recording, objects: &Objects, mut now: Instant) -> Vec<Sample> {
    let mut samples = Vec::new();
    for revision in 5..20 {
        let plan = planner.plan(now);
        samples.extend(plan.samples);
        for op in plan.ops {
            now += Duration::from_secs(1);
            let answer = answer(objects, &op, revision);
            planner.answered(op, Ok(answer), now, 0.0);
        }
    }
    samples
}

/// S-2: a claim that waits its turn can be bound all that time.
#[test]
fn a_bind_is_measured_from_when_it_was_possible_and_not_from_its_turn() {
    let (objects, mut planner) = planner(vec![], vec![claim("c")]);
    let start = Instant::now();
    assert!(planner.plan(start).ops.is_empty());
    let mut free = volume("pv");
    free.status.phase = VolumePhase::Available;
    objects.apply(free);
    let offered = start + Duration::from_mins(1);
    planner.changed(&ObjectRef::Volume(VolumeName::from("pv")), offered);
    let now = offered + Duration::from_secs(2);
    let samples = samples_of_bind(&mut planner, &objects, now);
    assert_eq!(binds(samples), [(BindMode::Static, 2 + 4)]);
}

/// Users may set a sync period that is longer than events last.
#[test]
fn what_waits_is_handed_out_again_before_it_expires_whatever_the_sync_period() {
    let (objects, mut planner) = planner(vec![], vec![claim("c")]);
    let hours = Duration::from_hours(5);
    planner.state.options.sync_period = hours;
    let start = Instant::now();
    let mut due = start;
    for _ in 0..3 {
        let plan = planner.plan(due);
        let told: Vec<Novelty> = plan.events.iter().map(|event| event.novelty).collect();
        assert_eq!(told, [if due == start { Novelty::Unclear } else { Novelty::Standing }]);
        assert_eq!(plan.wake_at, Some(due + Duration::from_mins(10)));
        due = plan.wake_at.unwrap();
    }
    // Who waits for nothing any more is not looked at for that.
    objects.apply(volume("pv"));
    planner.changed(&ObjectRef::Volume(VolumeName::from("pv")), due);
    for revision in 2..6 {
        let op = only(planner.plan(due));
        let answer = answer(&objects, &op, revision);
        planner.answered(op, Ok(answer), due, 0.0);
    }
    assert_eq!(planner.plan(due).wake_at, Some(start + hours));
}

/// Its claimRef was cleared, and the claim that is Bound to it may not take it back just now.
#[test]
fn s45_a_volume_is_its_owners_until_the_owner_is_gone() {
    let mut owner = claim("owner");
    owner.spec.volume_name = VolumeName::from("pv");
    owner.metadata.annotations.insert("pv.kubernetes.io/bind-completed".to_owned(), "yes".to_owned());
    let (objects, mut planner) = planner(vec![volume("pv")], vec![owner.clone(), claim("rival")]);
    let now = Instant::now();
    let op = only(planner.plan(now));
    assert_eq!(op.subject, Target::Claim(key("owner")));
    planner.answered(op, Err(refused()), now, 0.0);
    let plan = planner.plan(now);
    assert_eq!(plan.ops, []);
    assert!(plan.looks < 6, "the rival is not offered the volume: {}", plan.looks);
    owner.metadata.resource_version = ResourceVersion(5);
    objects.delete(owner);
    planner.changed(&ObjectRef::Claim(key("owner")), now);
    assert_eq!(only(planner.plan(now)).subject, Target::Claim(key("rival")));
}
