//! The planner's rules about time and order, and what a burst of pairs costs.
//!
//! What is decided, and that it survives faults, is in `tests/binder`.

mod cost;
mod failures;
mod matching;
mod planning;
mod proofs;
mod recording;
mod tries;
mod undone;
mod unreadable;
mod waits;
mod woken;

use std::{
    collections::BTreeMap,
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use apiserver::{
    call::CallError,
    events::Event,
    ids::{ClaimKey, ResourceVersion, VolumeName},
    kinds::{
        ClaimPhase, ClaimRef, LabelSelector, Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim,
        VolumePhase,
    },
    tables::Objects,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use recording::{Recorded, Recording};

use super::{
    calls::{Answer, Call, Op, Purpose, Shown, Target, WriteKind},
    controller::{Measures, Plan, Planner},
    durations::Sample,
    matching::{
        choose_claim::ClaimIndex,
        choose_volume::{Search, VolumeIndex},
        predicate::{Comparisons, Requirements},
    },
    reasons::VolumeReason,
    state::BinderOptions,
};
use crate::{
    controller::{
        Controller,
        asked::Asked,
        report::{
            Reason, ReportKey as _,
            events::{Keyed, RecordedEvents},
            reporter::Reporter,
        },
        second_writer::News,
    },
    metrics::QueueCounts,
};

pub(crate) fn volume(name: &str) -> PersistentVolume {
    decode(&json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "resourceVersion": "1"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]},
        "status": {"phase": "Available"},
    }))
}

pub(crate) fn claim(name: &str) -> PersistentVolumeClaim {
    decode(&json!({
        "metadata": {"namespace": "ns", "name": name, "uid": format!("uid-{name}"), "resourceVersion": "1"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Pending"},
    }))
}

pub(crate) fn decode<T: Narrow>(object: &Value) -> T {
    serde_json::from_str(&object.to_string()).unwrap()
}

/// What the server would answer to a bind's write.
fn answer(objects: &Objects, op: &Op, revision: u64) -> Answer {
    let Call::Write(write) = &op.call else { panic!("{op:?} is no write") };
    match &write.target {
        ObjectRef::Volume(name) => {
            let mut volume = PersistentVolume::clone(&objects.volumes.get(name).unwrap());
            volume.metadata.resource_version = ResourceVersion(revision);
            let body = write.request.body.as_ref().unwrap();
            match write.kind {
                WriteKind::ReserveVolume => {
                    volume.spec.claim_ref = serde_json::from_value(body["spec"]["claimRef"].clone()).unwrap();
                }
                _ => volume.status.phase = VolumePhase::Bound,
            }
            Answer::Volume(volume)
        }
        ObjectRef::Claim(key) => {
            let claim = objects.claims.get(key).unwrap();
            let body = write.request.body.as_ref().unwrap();
            let mut object = PersistentVolumeClaim::clone(&claim);
            object.metadata.resource_version = ResourceVersion(revision);
            if write.kind == WriteKind::NameVolume {
                object.spec.volume_name = decode_text(&body["spec"]["volumeName"]);
                object.metadata.annotations =
                    serde_json::from_value(body["metadata"]["annotations"].clone()).unwrap();
            } else {
                object.status = serde_json::from_str(&body["status"].to_string()).unwrap();
            }
            Answer::Claim(object)
        }
        _ => panic!("{op:?} is not of a bind"),
    }
}

fn decode_text(value: &Value) -> VolumeName {
    VolumeName::from(value.as_str().unwrap())
}

fn planner(volumes: Vec<PersistentVolume>, claims: Vec<PersistentVolumeClaim>) -> (Arc<Objects>, Recording) {
    let objects = Arc::new(Objects::default());
    objects.reset(volumes);
    objects.reset(claims);
    let mut planner = Recording::new(Planner::new(Arc::clone(&objects), BinderOptions::default()));
    planner.load(Instant::now());
    planner.lead(Instant::now());
    (objects, planner)
}

/// What tests ask of a planner.
impl Planner {
    /// How many claims wait, by the code of what is reported of them.
    fn waiting(&self) -> BTreeMap<&'static str, usize> {
        let mut waiting = BTreeMap::new();
        for target in self.recorder.unsettled(None, usize::MAX) {
            let Target::Claim(key) = &target else { continue };
            let is_failing = self.recorder.failing(&target).is_some();
            let code = if is_failing { "RetryBackoff" } else { self.recorder.claim(key).unwrap().code() };
            *waiting.entry(code).or_default() += 1;
        }
        waiting
    }

    /// Why a volume is where it is, if it is not settled.
    pub(crate) fn volume_reason(&self, name: &VolumeName) -> Option<&VolumeReason> {
        self.recorder.volume(name).map(|reason| &**reason)
    }

    /// Requests handed out and not yet answered.
    fn in_flight(&self) -> usize {
        self.state.in_flight.sent
    }
}

fn only(recorded: Recorded) -> Op {
    let [op] = <[Op; 1]>::try_from(recorded.ops).unwrap();
    op
}

/// It would remember each for as long as it stands by.
#[test]
fn a_standby_keeps_nothing_of_claims_that_are_gone() {
    let objects = Arc::new(Objects::default());
    let mut planner = Planner::new(Arc::clone(&objects), BinderOptions::default());
    let now = Instant::now();
    planner.load(now);
    for _ in 0..3 {
        objects.apply(claim("c"));
        planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "c")), now);
        objects.delete(claim("c"));
        planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "c")), now);
        let plan = Controller::plan(&mut planner, now);
        assert_eq!(plan.events, []);
    }
    assert_eq!(planner.recorder.events, []);
}

#[test]
fn an_unknown_outcome_is_read_before_anything_else_is_decided() {
    let (objects, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
    let now = Instant::now();
    let op = only(planner.plan(now));
    planner.answered(op, Err(CallError::Unknown("timed out".into())), now, 0.0);
    let read = only(planner.plan(now));
    let target = ObjectRef::Volume(VolumeName::from("pv"));
    assert_eq!(read.call, Call::Read { target, purpose: Purpose::Refresh });

    // A change of the claim does not start anything while that is open.
    planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "c")), now);
    assert!(planner.plan(now).ops.is_empty());

    // The read fails too: it is repeated, and still nothing else is.
    planner.answered(read.clone(), Err(CallError::Unknown("timed out".into())), now, 0.0);
    let plan = planner.plan(now);
    assert!(plan.ops.is_empty());
    let later = plan.wake_at.unwrap();
    assert_eq!(only(planner.plan(later)), read);

    let found = PersistentVolume::clone(&objects.volumes.get(&VolumeName::from("pv")).unwrap());
    planner.answered(read, Ok(Answer::Volume(found)), later, 0.0);
    assert_eq!(only(planner.plan(later)).call.write_kind(), Some(WriteKind::ReserveVolume));
}

#[test]
fn s40_a_busy_server_is_asked_again_when_it_says() {
    let (_, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
    let now = Instant::now();
    let op = only(planner.plan(now));
    let busy = CallError::Throttled { message: "busy".into(), after: Duration::from_secs(7) };
    planner.answered(op.clone(), Err(busy), now, 0.0);
    let plan = planner.plan(now);
    assert!(plan.ops.is_empty());
    assert_eq!(plan.wake_at, Some(now + Duration::from_secs(7)));
    assert_eq!(only(planner.plan(now + Duration::from_secs(7))), op);
}

/// The reservation of a volume is not answered, a live read does not show it, and a better volume appears:
/// the claim asks for the first again. If it names the better one, it gets that only when the first can no longer
/// become its own.
#[test]
fn s19_a_reservation_that_may_come_late_keeps_the_claim_from_another_volume() {
    let mut small = volume("small");
    small.metadata.resource_version = ResourceVersion(2);
    for names_it in [false, true] {
        let mut large = volume("large");
        large.spec.capacity.insert("storage".to_owned(), "2Gi".to_owned());
        let (objects, mut planner) = planner(vec![large.clone()], vec![claim("c")]);
        let now = Instant::now();
        let reservation = only(planner.plan(now));
        planner.answered(reservation.clone(), Err(CallError::Unknown("timed out".into())), now, 0.0);
        let read = only(planner.plan(now));
        objects.apply(small.clone());
        planner.changed(&ObjectRef::Volume(VolumeName::from("small")), now);
        if names_it {
            let mut naming = claim("c");
            naming.metadata.resource_version = ResourceVersion(3);
            naming.spec.volume_name = VolumeName::from("small");
            objects.apply(naming);
            planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "c")), now);
        }
        planner.answered(read, Ok(Answer::Volume(large)), now, 0.0);
        let plan = planner.plan(now);
        if !names_it {
            assert_eq!(only(plan), reservation);
            let answer = answer(&objects, &reservation, 4);
            planner.answered(reservation.clone(), Ok(answer), now, 0.0);
            assert_eq!(planner.state.doubts.of(&claim("c"), &objects), None);
            let op = only(planner.plan(now));
            assert_eq!((op.call.write_kind(), op.volume), (Some(WriteKind::VolumeBound), reservation.volume));
            continue;
        }
        assert!(plan.ops.is_empty(), "S19: {:?}", plan.ops);
        assert_eq!(planner.waiting(), [("Uncertain", 1)].into());
        // It may have come, and only the watch not have told of it.
        let later = plan.wake_at.unwrap();
        // What it waits for until an earlier time does not take the place of that.
        let earlier = now + Duration::from_secs(1);
        planner.queue.add_at(&Target::Claim(ClaimKey::new("ns", "c")), earlier);
        assert_eq!(planner.plan(earlier).wake_at, Some(later));
        let read = only(planner.plan(later));
        let large = ObjectRef::Volume(VolumeName::from("large"));
        assert_eq!(read.call, Call::Read { target: large, purpose: Purpose::Refresh });
        let unchanged = objects.volumes.get(&VolumeName::from("large")).unwrap();
        planner.answered(read, Ok(Answer::Volume(PersistentVolume::clone(&unchanged))), later, 0.0);
        let op = only(planner.plan(later));
        assert_eq!(op.call.write_kind(), Some(WriteKind::ReserveVolume));
        assert_eq!(op.volume, Some(VolumeName::from("small")));
    }
}

/// Another claim asks for the volume meanwhile, in vain: the claim in doubt is looked at again.
#[test]
fn s19_a_claim_in_doubt_is_looked_at_when_its_volume_is_free_again() {
    let (objects, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
    let now = Instant::now();
    let reservation = only(planner.plan(now));
    planner.answered(reservation.clone(), Err(CallError::Unknown("timed out".into())), now, 0.0);
    let read = only(planner.plan(now));
    // A read of the volume on behalf of itself keeps it busy.
    planner.answered(read, Ok(Answer::Volume(volume("pv"))), now, 0.0);
    let mut plan = Plan::default();
    let call = Call::Read { target: ObjectRef::Volume("pv".into()), purpose: Purpose::Refresh };
    planner.start(Target::Volume("pv".into()), None, call, &mut plan);
    assert!(planner.plan(now).ops.is_empty());
    let read = plan.calls.remove(0);
    planner.answered(read, Ok(Answer::Volume(volume("pv"))), now, 0.0);
    assert_eq!(only(planner.plan(now)), reservation);
    assert!(objects.volumes.get(&"pv".into()).is_some());
}

/// The claim may yet be given the volume's name: a volume that is being deleted is not given back before that is known.
#[test]
fn s21_a_volume_is_not_given_back_while_its_claim_may_yet_name_it() {
    let (objects, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
    let now = Instant::now();
    for revision in [2, 3] {
        let op = only(planner.plan(now));
        let answer = answer(&objects, &op, revision);
        planner.answered(op, Ok(answer), now, 0.0);
    }
    let naming = only(planner.plan(now));
    assert_eq!(naming.call.write_kind(), Some(WriteKind::NameVolume));
    planner.answered(naming, Err(CallError::Unknown("timed out".into())), now, 0.0);
    let read = only(planner.plan(now));
    let mut deleted = PersistentVolume::clone(&objects.volumes.get(&"pv".into()).unwrap());
    deleted.metadata.resource_version = ResourceVersion(4);
    deleted.metadata.deletion_timestamp = Some(Box::new(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
    objects.apply(deleted);
    planner.changed(&ObjectRef::Volume("pv".into()), now);
    planner.answered(read, Ok(Answer::Claim(claim("c"))), now, 0.0);
    let plan = planner.plan(now);
    assert!(plan.ops.is_empty(), "{:?}", plan.ops);
    let later = plan.wake_at.unwrap();
    let read = only(planner.plan(later));
    planner.answered(read, Ok(Answer::Claim(claim("c"))), later, 0.0);
    assert_eq!(only(planner.plan(later)).call.write_kind(), Some(WriteKind::Unbind));
}

/// A claim may go while a provisioner is asked for it, and a volume while it is being reserved.
#[test]
fn what_went_first_is_no_failure() {
    let (objects, mut planner) = planner(vec![volume("a"), volume("b")], vec![claim("c")]);
    let now = Instant::now();
    let op = only(planner.plan(now));
    assert_eq!(op.volume, Some(VolumeName::from("a")));
    planner.answered(op, Err(CallError::NotFound("a".into())), now, 0.0);
    let op = only(planner.plan(now));
    assert_eq!(op.volume, Some(VolumeName::from("b")), "the next volume, at once");
    let answer = answer(&objects, &op, 2);
    planner.answered(op, Ok(answer), now, 0.0);

    let mut op = only(planner.plan(now));
    while !matches!(&op.call, Call::Write(write) if write.kind == WriteKind::NameVolume) {
        let answer = self::answer(&objects, &op, 3);
        planner.answered(op, Ok(answer), now, 0.0);
        op = only(planner.plan(now));
    }
    planner.answered(op, Err(CallError::NotFound("c".into())), now, 0.0);
    assert_eq!(objects.claims.get(&ClaimKey::new("ns", "c")), None);
    assert!(!planner.is_waiting(), "nothing is tried again for a claim that is gone");
}

#[test]
fn a_volume_freed_by_a_failed_write_goes_to_the_next_claim() {
    let (_, mut planner) = planner(vec![volume("pv")], vec![claim("a"), claim("b")]);
    let now = Instant::now();
    let op = only(planner.plan(now));
    assert_eq!(op.subject, Target::Claim(ClaimKey::new("ns", "a")));
    let refused = CallError::Refused { code: 403, message: "no".into() };
    planner.answered(op, Err(refused), now, 0.0);
    assert_eq!(only(planner.plan(now)).subject, Target::Claim(ClaimKey::new("ns", "b")));
}

#[test]
fn an_event_is_not_repeated_until_something_else_was_said() {
    let (objects, mut planner) = planner(vec![], vec![claim("c")]);
    let now = Instant::now();
    let key = ObjectRef::Claim(ClaimKey::new("ns", "c"));
    assert_eq!(planner.plan(now).events.len(), 1);
    planner.changed(&key, now);
    assert!(planner.plan(now).events.is_empty());

    let mut named = claim("c");
    named.spec.volume_name = VolumeName::from("missing");
    named.metadata.resource_version = ResourceVersion(2);
    objects.apply(named);
    planner.changed(&key, now);
    assert_eq!(planner.plan(now).events.len(), 1);

    let mut again = claim("c");
    again.metadata.resource_version = ResourceVersion(3);
    objects.apply(again);
    planner.changed(&key, now);
    assert_eq!(planner.plan(now).events.len(), 1);
}

#[test]
fn what_is_not_settled_is_looked_at_again_after_the_sync_period() {
    let (objects, mut planner) = planner(vec![], vec![claim("c")]);
    let now = Instant::now();
    let due = planner.plan(now).wake_at.unwrap();
    assert_eq!(due, now + BinderOptions::default().sync_period);
    // A volume of which the planner was not told is not found by the resync, but the claim is looked at.
    assert_eq!(planner.plan(now).decisions.values().sum::<u64>(), 0);
    assert_eq!(planner.plan(due).decisions.values().sum::<u64>(), 1);
    objects.apply(volume("pv"));
    planner.changed(&ObjectRef::Volume(VolumeName::from("pv")), due);
    for revision in 2..6 {
        let op = only(planner.plan(due));
        let answer = answer(&objects, &op, revision);
        planner.answered(op, Ok(answer), due, 0.0);
    }
    let later = planner.plan(due).wake_at.unwrap();
    assert!(later > due);
    assert_eq!(planner.plan(later).decisions.values().sum::<u64>(), 0, "a bound pair is settled");
}

/// A claim that we have just written to is gone, and the watch was cut meanwhile: the next list lacks it. What is answered
/// about it later is history.
#[test]
fn l11_a_claim_that_the_list_lacks_is_gone_whatever_is_answered_later() {
    let (objects, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
    let now = Instant::now();
    for revision in 2..5 {
        let op = only(planner.plan(now));
        let answer = answer(&objects, &op, revision);
        planner.answered(op, Ok(answer), now, 0.0);
    }
    let last = only(planner.plan(now));
    let bound = answer(&objects, &last, 5);
    let key = ClaimKey::new("ns", "c");
    objects.claims.advance(ResourceVersion(6));
    objects.reset::<PersistentVolumeClaim>(vec![]);
    planner.changed(&ObjectRef::Claim(key.clone()), now);
    assert!(planner.plan(now).ops.is_empty(), "the status is being written");

    planner.answered(last, Ok(bound), now, 0.0);
    let proof = only(planner.plan(now));
    let purpose = Purpose::ProveClaim(claim("c").metadata.uid);
    assert_eq!(proof.call, Call::Read { target: ObjectRef::Claim(key), purpose });
    planner.answered(proof, Err(CallError::NotFound("c".into())), now, 0.0);
    assert_eq!(only(planner.plan(now)).call.write_kind(), Some(WriteKind::VolumeReleased));
}

/// Bound pairs, of which one's claim is deleted; between, another writer undoes the phases that we wrote.
#[test]
fn s14_nothing_is_released_while_another_binder_is_at_work() {
    let mut small = volume("pv2");
    small.spec.capacity.insert("storage".to_owned(), "2Gi".to_owned());
    let (objects, mut planner) = planner(vec![volume("pv"), small], vec![claim("c"), claim("c2")]);
    let now = Instant::now();
    let mut revision = 2;
    loop {
        let ops = planner.plan(now).ops;
        if ops.is_empty() {
            break;
        }
        for op in ops {
            let answer = answer(&objects, &op, revision);
            revision += 1;
            planner.answered(op, Ok(answer), now, 0.0);
        }
    }
    for (undone, signal) in
        [("pv", None), ("pv2", Some("kube-controller-manager wrote status.phase of pv/pv2"))]
    {
        let name = VolumeName::from(undone);
        let mut undone = PersistentVolume::clone(&objects.volumes.get(&name).unwrap());
        assert_eq!(undone.status.phase, VolumePhase::Bound);
        undone.status.phase = VolumePhase::Available;
        undone.metadata.resource_version = ResourceVersion(revision);
        objects.apply(undone);
        planner.changed(&ObjectRef::Volume(name.clone()), now);
        // Before anything is written to it, it is asked who that was.
        let op = only(planner.plan(now));
        assert!(matches!(op.call, Call::Read { purpose: Purpose::LearnOwner(_), .. }), "{op:?}");
        planner.answered(op, Ok(Answer::Owners(vec!["kube-controller-manager".to_owned()])), now, 0.0);
        assert_eq!(planner.state.writers.signal().map(ToString::to_string).as_deref(), signal);
        // The bind is repaired: that takes nothing from others.
        let plan = planner.plan(now);
        assert_eq!(plan.others.as_ref().map(|news| news.counted("phase_changed")), Some(1));
        let op = only(plan);
        assert_eq!(op.call.write_kind(), Some(WriteKind::VolumeBound));
        let repaired = answer(&objects, &op, revision + 1);
        planner.answered(op, Ok(repaired), now, 0.0);
        revision += 2;
    }
    let name = VolumeName::from("pv");
    let key = objects.volumes.get(&name).unwrap().spec.claim_ref.as_ref().unwrap().key();
    let mut gone = PersistentVolumeClaim::clone(&objects.claims.get(&key).unwrap());
    gone.metadata.resource_version = ResourceVersion(revision);
    objects.delete(gone);
    planner.changed(&ObjectRef::Claim(key), now);
    let mut plan = planner.plan(now);
    assert!(plan.ops.is_empty(), "{:?}", plan.ops);
    assert_eq!(planner.recorder.volume(&name).map(|reason| reason.code()), Some("ForeignWriter"));
    let end = planner.state.writers.signal().unwrap().until;
    assert_eq!(end, now + crate::controller::second_writer::MEMORY);
    while plan.wake_at.unwrap() < end {
        let then = plan.wake_at.unwrap();
        plan = planner.plan(then);
        assert_eq!(plan.ops, []);
        assert_eq!(planner.recorder.volume(&name).map(|reason| reason.code()), Some("ForeignWriter"));
    }
    let read = only(planner.plan(end));
    assert!(matches!(read.call, Call::Read { purpose: Purpose::ProveClaim(_), .. }), "{read:?}");
    planner.answered(read, Err(CallError::NotFound("c".into())), end, 0.0);
    assert_eq!(only(planner.plan(end)).call.write_kind(), Some(WriteKind::VolumeReleased));
}

/// The row of the debug page for a claim or volume, as it is reported.
fn row(planner: &mut Recording, target: &Target) -> serde_json::Value {
    let (shown, attempt) = (Shown::of(target, &planner.state.objects).unwrap(), planner.attempt(target));
    planner.recorder.stands_still(&shown, attempt);
    let reports = std::mem::take(&mut planner.recorder.reports);
    let reporter = Reporter::default();
    for report in reports {
        reporter.take(report, Instant::now(), |_, _| ());
    }
    json!(reporter.board().page(&Asked::default()))["waiting"][0].clone()
}

#[test]
fn l18_every_claim_that_is_not_bound_is_explained() {
    let mut small = volume("small");
    small.spec.capacity.insert("storage".to_owned(), "1Mi".to_owned());
    let mut named = claim("named");
    named.spec.volume_name = VolumeName::from("gone");
    let (_, mut planner) = planner(vec![small], vec![claim("c"), named]);
    planner.plan(Instant::now());
    let shown = row(&mut planner, &Target::Claim(ClaimKey::new("ns", "c")));
    assert!(shown["since"].is_string(), "{shown}");
    assert_eq!((&shown["kind"], &shown["claim"]), (&json!("claim"), &json!("ns/c")));
    assert_eq!(shown["reason"], "NoClassAndNoMatch");
    assert_eq!(
        shown["message"],
        "no persistent volumes available for this claim and no storage class is set"
    );
    assert_eq!((&shown["state"], &shown["facts"]), (&json!("Pending"), &json!({})));
    assert_eq!(planner.waiting(), [("NamedVolumeMissing", 1), ("NoClassAndNoMatch", 1)].into());
}

const BIND: [WriteKind; 4] =
    [WriteKind::ReserveVolume, WriteKind::VolumeBound, WriteKind::NameVolume, WriteKind::ClaimBound];

/// Neither "Available" in between nor a conflict of our own making, in either order of the two changes.
#[test]
fn a_pair_that_names_each_other_takes_four_writes() {
    for volume_first in [true, false] {
        let objects = Arc::new(Objects::default());
        let mut planner = Recording::new(Planner::new(Arc::clone(&objects), BinderOptions::default()));
        let now = Instant::now();
        planner.lead(now);
        let mut reserved = volume("pv");
        reserved.status.phase = VolumePhase::Pending;
        reserved.spec.claim_ref =
            Some(ClaimRef { namespace: "ns".into(), name: "c".into(), ..ClaimRef::default() });
        objects.apply(reserved);
        objects.apply(claim("c"));
        let mut told =
            vec![ObjectRef::Volume(VolumeName::from("pv")), ObjectRef::Claim(ClaimKey::new("ns", "c"))];
        if !volume_first {
            told.reverse();
        }
        for object in &told {
            planner.changed(object, now);
        }
        let mut kinds = Vec::new();
        for revision in 2..6 {
            let op = only(planner.plan(now));
            kinds.extend(op.call.write_kind());
            let answer = answer(&objects, &op, revision);
            planner.answered(op, Ok(answer), now, 0.0);
        }
        assert_eq!(kinds, BIND);
        assert!(planner.plan(now).ops.is_empty());
    }
}
