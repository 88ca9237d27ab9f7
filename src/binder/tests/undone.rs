//! What another writer undoes is done again, at once and then less and less often (S46).

use std::{mem, time::Duration};

use apiserver::{
    call::CallError,
    events::{Event, Novelty},
    ids::{ClaimKey, ResourceVersion, VolumeName},
    kinds::{
        ClaimPhase, ClaimRef, Narrow as _, ObjectRef, PersistentVolume, ReclaimPolicy, StorageClass,
        VolumePhase,
    },
};
use serde_json::json;
use tokio::time::Instant;

use super::{answer, claim, decode, only, planner, volume};
use crate::binder::calls::{Answer, Call, Purpose, Target, WriteKind};

/// Another writer undoes each write of a kind to a volume so long after it is made, until it stops. Returns when the
/// write was made, and what was told.
fn fight(
    kind: WriteKind,
    undo: fn(&mut PersistentVolume),
    after: Duration,
    stops: Duration,
) -> (Vec<Duration>, Vec<Event>) {
    let (objects, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
    let name = VolumeName::from("pv");
    let start = Instant::now();
    let (mut now, end) = (start, start + stops + Duration::from_mins(2));
    let (mut revision, mut undone_at) = (10, None);
    let (mut made, mut told) = (Vec::new(), Vec::new());
    while now < end {
        let plan = planner.plan(now);
        told.extend(plan.events);
        for op in &plan.ops {
            revision += 1;
            if op.call.write_kind() == Some(kind) {
                made.push(now - start);
                undone_at = (now < start + stops).then_some(now + after);
            }
            let answer = match op.call {
                Call::Read { purpose: Purpose::LearnOwner(_), .. } => {
                    Answer::Owners(vec!["kubectl-edit".to_owned()])
                }
                _ => answer(&objects, op, revision),
            };
            planner.answered(op.clone(), Ok(answer), now, 0.5);
        }
        if !plan.ops.is_empty() {
            continue;
        }
        if undone_at.is_some_and(|at| at <= now) {
            undone_at = None;
            revision += 1;
            let mut undone = PersistentVolume::clone(&objects.volumes.get(&name).unwrap());
            undo(&mut undone);
            undone.metadata.resource_version = ResourceVersion(revision);
            objects.apply(undone);
            planner.changed(&ObjectRef::Volume(name.clone()), now);
            continue;
        }
        now = [plan.wake_at, undone_at, Some(end)].into_iter().flatten().min().unwrap();
    }
    let volume = objects.volumes.get(&name).unwrap();
    assert!(volume.spec.claim_ref.is_some() && volume.status.phase == VolumePhase::Bound, "{volume:?}");
    (made, told)
}

fn clear(volume: &mut PersistentVolume) {
    volume.spec.claim_ref = None;
}

fn free(volume: &mut PersistentVolume) {
    volume.status.phase = VolumePhase::Available;
}

#[test]
fn s46_against_a_writer_that_undoes_at_once_a_write_is_made_ten_times_and_then_twice_a_minute() {
    let (stops, minute) = (Duration::from_mins(10), Duration::from_mins(1));
    let fights = [
        (WriteKind::ReserveVolume, clear as fn(&mut PersistentVolume), "another writer, which the object"),
        (WriteKind::VolumeBound, free, "kubectl-edit undoes each write to set the volume to Bound"),
    ];
    for (kind, undo, words) in fights {
        let (made, told) = fight(kind, undo, Duration::from_millis(5), stops);
        let first = made.iter().filter(|at| **at < minute).count();
        assert!((8..=12).contains(&first), "{first}: {made:?}");
        let later: Vec<Duration> = made.iter().copied().skip(first).collect();
        for pair in later.windows(2) {
            let [before, after] = pair else { panic!("{pair:?}") };
            assert!((20..=30).contains(&after.saturating_sub(*before).as_secs()), "{made:?}");
        }
        assert!(made.last().unwrap().saturating_sub(stops) < Duration::from_secs(40), "{made:?}");
        let told: Vec<&Event> = told.iter().filter(|event| event.reason == "ForeignWriter").collect();
        // The writer of events drops the repetitions.
        assert!(told.iter().all(|event| event.novelty == Novelty::Standing), "{told:?}");
        assert!(told.iter().any(|event| event.message.starts_with(words)), "{told:?}");
    }
}

#[test]
fn s46_against_a_writer_that_undoes_less_than_once_a_minute_a_write_is_made_again_at_once() {
    let after = Duration::from_secs(61);
    let (made, told) = fight(WriteKind::ReserveVolume, clear, after, Duration::from_mins(10));
    let expected: Vec<Duration> = (0..=10).map(|time| after * time).collect();
    assert_eq!((made, told.len()), (expected, 0));
}

#[test]
fn s46_a_write_that_is_undone_once_is_made_again_at_once() {
    let (made, told) =
        fight(WriteKind::ReserveVolume, clear, Duration::from_millis(5), Duration::from_millis(1));
    assert_eq!((made, told.len()), (vec![Duration::ZERO, Duration::from_millis(5)], 0));
    let (_, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
    assert_eq!(only(planner.plan(Instant::now())).call.write_kind(), Some(WriteKind::ReserveVolume));
}

/// The next write to the object would hide who changed it: nothing is written while that is not known (S14).
#[test]
fn s14_who_undid_a_write_is_asked_until_it_is_answered() {
    let (objects, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
    let (mut now, name) = (Instant::now(), VolumeName::from("pv"));
    for revision in 2..4 {
        let op = only(planner.plan(now));
        let answer = answer(&objects, &op, revision);
        planner.answered(op, Ok(answer), now, 0.0);
    }
    let mut undone = PersistentVolume::clone(&objects.volumes.get(&name).unwrap());
    free(&mut undone);
    undone.metadata.resource_version = ResourceVersion(9);
    objects.apply(undone);
    planner.changed(&ObjectRef::Volume(name.clone()), now);
    let read = only(planner.plan(now));
    assert!(matches!(read.call, Call::Read { purpose: Purpose::LearnOwner(_), .. }), "{read:?}");
    let errors = [
        CallError::Unknown("timed out".into()),
        CallError::Throttled { message: "busy".into(), after: Duration::from_secs(7) },
        CallError::Refused { code: 403, message: "no".into() },
    ];
    for error in errors {
        planner.answered(read.clone(), Err(error.clone()), now, 0.0);
        let plan = planner.plan(now);
        assert_eq!(plan.ops, [], "{error:?}");
        now = plan.wake_at.unwrap();
        assert_eq!(only(planner.plan(now)), read, "{error:?}");
    }
    planner.answered(read, Ok(Answer::Owners(vec!["k3s".to_owned()])), now, 0.0);
    assert_eq!(planner.state.writers.manager(&Target::Volume(name)), Some("k3s"));
    assert_eq!(only(planner.plan(now)).call.write_kind(), Some(WriteKind::VolumeBound));
}

/// A webhook takes the annotation out of each write, and another writer changes the claim five times a second: that one is no
/// reason to write it again each time.
#[test]
fn s46_what_a_webhook_takes_out_is_written_again_after_pauses_however_often_another_changes_the_object() {
    let mut changed = claim("c");
    let provisioner = "volume.kubernetes.io/storage-provisioner".to_owned();
    changed.metadata.annotations.insert(provisioner, "kubernetes.io/aws-ebs".to_owned());
    let (objects, mut planner) = planner(vec![], vec![changed.clone()]);
    let start = Instant::now();
    let (end, stops) = (start + Duration::from_mins(4), start + Duration::from_mins(3));
    let (mut now, mut change, mut made) = (start, start, Vec::new());
    while now < end {
        if change <= now {
            changed.metadata.resource_version.0 += 1;
            objects.apply(changed.clone());
            planner.changed(&ObjectRef::Claim(changed.key()), now);
            change = if now < stops { now + Duration::from_millis(200) } else { end };
        }
        let plan = planner.plan(now);
        for op in &plan.ops {
            assert_eq!(op.call.write_kind(), Some(WriteKind::Annotate));
            made.push((now - start).as_secs());
            planner.answered(op.clone(), Ok(Answer::Claim(changed.clone())), now, 0.5);
        }
        if plan.ops.is_empty() {
            assert_eq!(planner.waiting(), [("NoClassAndNoMatch", 1)].into(), "nothing waits for it");
            now = plan.wake_at.into_iter().chain([change]).min().unwrap();
        }
    }
    let (first, later) = made.split_at(made.iter().filter(|at| **at < 60).count());
    assert!((8..=12).contains(&first.len()), "{made:?}");
    assert!(later.windows(2).all(|pair| (20..=30).contains(&(pair[1] - pair[0]))), "{made:?}");
    assert!((180..=210).contains(later.last().unwrap()), "the last change is followed by one: {made:?}");
}

/// A webhook takes the annotation out of each write, and changes something else: the volume is released all the same.
#[test]
fn s46_an_annotation_that_is_undone_each_time_holds_up_nothing() {
    let mut left = volume("pv");
    left.metadata.annotations.insert("pv.kubernetes.io/provisioned-by".to_owned(), "kubernetes.io/aws-ebs");
    (left.spec.reclaim_policy, left.status.phase) = (ReclaimPolicy::Delete, VolumePhase::Bound);
    left.spec.claim_ref = Some(ClaimRef { namespace: "ns".into(), name: "c".into(), uid: "uid-c".into() });
    let (_, mut planner) = planner(vec![left.clone()], vec![]);
    let start = Instant::now();
    let (mut now, mut made, mut told) = (start, Vec::new(), Vec::new());
    while now < start + Duration::from_mins(4) {
        let plan = planner.plan(now);
        told.extend(plan.events.into_iter().map(|event| event.reason));
        for op in &plan.ops {
            left.metadata.resource_version.0 += 1;
            let result = match op.call.write_kind() {
                None => Err(CallError::NotFound("c".into())),
                Some(WriteKind::VolumeReleased) => {
                    left.status.phase = VolumePhase::Released;
                    Ok(Answer::Volume(left.clone()))
                }
                kind => {
                    assert_eq!(kind, Some(WriteKind::Annotate));
                    made.push((now - start).as_secs());
                    Ok(Answer::Volume(left.clone()))
                }
            };
            planner.answered(op.clone(), result, now, 0.5);
        }
        now = if plan.ops.is_empty() { plan.wake_at.unwrap() } else { now };
        assert!(now == start || left.status.phase == VolumePhase::Released, "{made:?}");
    }
    assert!(made.windows(2).all(|pair| pair[1] < 60 || (20..=30).contains(&(pair[1] - pair[0]))), "{made:?}");
    assert!(made.len() < 25 && told.contains(&"ForeignWriter"), "{made:?} {told:?}");
}

/// A writer frees the one volume that claims wait for at once, whichever of them gets it: many claims are no reason to
/// write to it more often.
#[test]
fn s46_however_many_claims_wait_for_a_volume_its_reservations_are_undone_twice_a_minute() {
    let claims: Vec<String> = (0..40).map(|number| format!("c{number}")).collect();
    let (objects, mut planner) = planner(vec![volume("pv")], claims.iter().map(|name| claim(name)).collect());
    let (start, name) = (Instant::now(), VolumeName::from("pv"));
    let (mut now, mut revision, mut made) = (start, 10, Vec::new());
    while now < start + Duration::from_mins(5) {
        let plan = planner.plan(now);
        for op in &plan.ops {
            assert_eq!(op.call.write_kind(), Some(WriteKind::ReserveVolume));
            made.push((now - start).as_secs());
            planner.answered(op.clone(), Ok(answer(&objects, op, revision)), now, 0.5);
            let mut undone = PersistentVolume::clone(&objects.volumes.get(&name).unwrap());
            clear(&mut undone);
            undone.metadata.resource_version = ResourceVersion(revision + 1);
            objects.apply(undone);
            planner.changed(&ObjectRef::Volume(name.clone()), now);
            revision += 2;
        }
        now = if plan.ops.is_empty() { plan.wake_at.unwrap() } else { now };
    }
    let (first, later) = made.split_at(made.iter().filter(|at| **at < 60).count());
    assert!((8..=12).contains(&first.len()), "{made:?}");
    assert!(later.windows(2).all(|pair| (20..=30).contains(&(pair[1] - pair[0]))), "{made:?}");
}

/// Somebody frees one of three volumes at once, whichever claim gets it: the claims take the others, and the last one takes it
/// when that ends.
#[test]
fn l15_a_volume_whose_reservation_is_undone_each_time_keeps_no_claim_from_another() {
    let volumes = ["v1", "v2", "v3"].map(volume).to_vec();
    let (objects, mut planner) = planner(volumes, vec![claim("c"), claim("d")]);
    let (mut now, mut revision, mut bound) = (Instant::now(), 10, Vec::new());
    let (comes, stops) = (now + Duration::from_secs(10), now + Duration::from_mins(2));
    let mut has_come = false;
    while now < stops + Duration::from_secs(40) {
        if now >= comes && !has_come {
            assert_eq!(bound.len(), 2, "{bound:?}");
            objects.apply(claim("e"));
            planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "e")), now);
            has_come = true;
        }
        let plan = planner.plan(now);
        for op in &plan.ops {
            revision += 2;
            planner.answered(op.clone(), Ok(answer(&objects, op, revision)), now, 0.5);
            if op.call.write_kind() == Some(WriteKind::NameVolume) {
                bound.push((op.volume.clone().unwrap(), now >= stops));
            }
            if now < stops && op.call.target() == Some(&ObjectRef::Volume("v1".into())) {
                let mut undone = PersistentVolume::clone(&objects.volumes.get(&"v1".into()).unwrap());
                clear(&mut undone);
                undone.metadata.resource_version = ResourceVersion(revision + 1);
                objects.apply(undone);
                planner.changed(&ObjectRef::Volume("v1".into()), now);
            }
        }
        let next = plan.wake_at.unwrap_or(now + Duration::from_secs(1));
        now = if plan.ops.is_empty() { if has_come { next } else { next.min(comes) } } else { now };
    }
    bound.sort();
    assert_eq!(bound, [("v1", true), ("v2", false), ("v3", false)].map(|(name, late)| (name.into(), late)));
}

/// Somebody frees the first of two volumes at once, and the second one was refused once: the claim tries that one again.
#[test]
fn l15_a_volume_that_was_refused_once_is_tried_beside_one_whose_reservation_is_undone() {
    let (objects, mut planner) = planner(["v1", "v2"].map(volume).to_vec(), vec![claim("c")]);
    let (start, mut revision, mut refused) = (Instant::now(), 10, false);
    let mut now = start;
    while now < start + Duration::from_mins(10) {
        let plan = planner.plan(now);
        for op in &plan.ops {
            revision += 2;
            let is_first = op.call.target() == Some(&ObjectRef::Volume("v1".into()));
            if !is_first && !refused {
                refused = true;
                let error = CallError::Refused { code: 403, message: "it reloads".into() };
                planner.answered(op.clone(), Err(error), now, 0.5);
                continue;
            }
            planner.answered(op.clone(), Ok(answer(&objects, op, revision)), now, 0.5);
            if !is_first {
                return;
            }
            let mut undone = PersistentVolume::clone(&objects.volumes.get(&"v1".into()).unwrap());
            clear(&mut undone);
            undone.metadata.resource_version = ResourceVersion(revision + 1);
            objects.apply(undone);
            planner.changed(&ObjectRef::Volume("v1".into()), now);
        }
        now = if plan.ops.is_empty() { plan.wake_at.unwrap() } else { now };
    }
    panic!("v2 is never tried again");
}

/// Somebody frees the first of many volumes at once and changes it later, and the last one was refused once: it is tried again.
#[test]
fn l15_a_volume_that_is_undone_and_changes_ends_no_round_of_a_claim() {
    let names: Vec<String> = (1..=20).map(|number| format!("v{number:02}")).collect();
    let volumes = names.iter().map(|name| volume(name)).collect();
    let (objects, mut planner) = planner(volumes, vec![claim("c")]);
    let (start, first) = (Instant::now(), VolumeName::from("v01"));
    let (mut now, mut revision, mut refused_once) = (start, 10, false);
    let mut changes = None;
    let undo = |revision: u64| {
        let mut undone = PersistentVolume::clone(&objects.volumes.get(&first).unwrap());
        clear(&mut undone);
        undone.metadata.resource_version = ResourceVersion(revision);
        objects.apply(undone);
    };
    while now < start + Duration::from_hours(2) {
        if changes.is_some_and(|at| at <= now) {
            changes = None;
            revision += 2;
            undo(revision);
            planner.changed(&ObjectRef::Volume(first.clone()), now);
        }
        let plan = planner.plan(now);
        for op in &plan.ops {
            revision += 2;
            let name = op.volume.clone().unwrap();
            if name == first {
                planner.answered(op.clone(), Ok(answer(&objects, op, revision)), now, 0.5);
                undo(revision + 1);
                planner.changed(&ObjectRef::Volume(first.clone()), now);
                changes = refused_once.then(|| now + Duration::from_secs(40));
                continue;
            }
            if name == "v20".into() && mem::replace(&mut refused_once, true) {
                return;
            }
            let error = CallError::Refused { code: 403, message: "no".into() };
            planner.answered(op.clone(), Err(error), now, 0.5);
        }
        let next = plan.wake_at.unwrap();
        now = if plan.ops.is_empty() { changes.map_or(next, |at| next.min(at)) } else { now };
    }
    panic!("the last one is never tried again");
}

/// Somebody frees a volume each time that one claim has it, which names it: it goes to one that waits for any.
#[test]
fn l15_a_claim_that_names_a_volume_keeps_it_from_no_other_if_it_is_taken_from_it_each_time() {
    for (names, waits) in [("a", "c"), ("c", "a")] {
        let mut naming = claim(names);
        naming.spec.volume_name = "pv".into();
        let (objects, mut planner) = planner(vec![volume("pv")], vec![naming, claim(waits)]);
        let start = Instant::now();
        let (mut now, mut revision, mut tried) = (start, 10, 0);
        let is_bound = || {
            let claim = objects.claims.get(&ClaimKey::new("ns", waits)).unwrap();
            claim.status.phase == ClaimPhase::Bound
        };
        while !is_bound() {
            assert!(now < start + Duration::from_mins(2), "{names} keeps it, and was given it {tried} times");
            let plan = planner.plan(now);
            for op in &plan.ops {
                revision += 2;
                planner.answered(op.clone(), Ok(answer(&objects, op, revision)), now, 0.5);
                let mut undone = PersistentVolume::clone(&objects.volumes.get(&"pv".into()).unwrap());
                if undone.spec.claim_ref.as_ref().is_some_and(|reference| *reference.name == *names) {
                    tried += 1;
                    clear(&mut undone);
                    undone.metadata.resource_version = ResourceVersion(revision + 1);
                    objects.apply(undone);
                    planner.changed(&ObjectRef::Volume("pv".into()), now);
                }
            }
            now = if plan.ops.is_empty() { plan.wake_at.unwrap() } else { now };
        }
    }
}

/// A claim that waits for a volume whose reservation is undone takes a free one that comes.
#[test]
fn l1_a_claim_whose_reservation_is_undone_takes_a_volume_that_comes() {
    let (objects, mut planner) = planner(vec![volume("v1")], vec![claim("c")]);
    let (mut now, mut revision) = (Instant::now(), 10);
    let held = loop {
        let plan = planner.plan(now);
        let Some(op) = plan.ops.into_iter().next() else { break plan.wake_at };
        revision += 2;
        planner.answered(op.clone(), Ok(answer(&objects, &op, revision)), now, 0.5);
        let mut undone = PersistentVolume::clone(&objects.volumes.get(&"v1".into()).unwrap());
        clear(&mut undone);
        undone.metadata.resource_version = ResourceVersion(revision + 1);
        objects.apply(undone);
        planner.changed(&ObjectRef::Volume("v1".into()), now);
    };
    now += Duration::from_millis(1);
    assert!(held.is_some_and(|until| until > now));
    objects.apply(volume("v2"));
    planner.changed(&ObjectRef::Volume("v2".into()), now);
    assert_eq!(only(planner.plan(now)).volume, Some("v2".into()));
}

/// Somebody sets a claim that never had a volume to Bound each time: it takes a free one that comes all the same.
#[test]
fn l1_a_claim_whose_phase_is_undone_takes_a_volume_that_comes() {
    let (objects, mut planner) = planner(vec![], vec![]);
    let (mut now, mut revision) = (Instant::now(), 10);
    let until = loop {
        let mut undone = claim("c");
        (undone.status.phase, undone.metadata.resource_version) =
            (ClaimPhase::Bound, ResourceVersion(revision));
        objects.apply(undone.clone());
        planner.changed(&ObjectRef::Claim(undone.key()), now);
        let mut plan = planner.plan(now);
        while let Some(op) = plan.ops.pop() {
            let result = match op.call {
                Call::Read { .. } => Answer::Owners(vec!["kubectl-edit".to_owned()]),
                _ => answer(&objects, &op, revision + 1),
            };
            let is_write = matches!(op.call, Call::Write(_));
            planner.answered(op, Ok(result), now, 0.5);
            plan = if is_write { plan } else { planner.plan(now) };
        }
        if objects.claims.get(&undone.key()).unwrap().status.phase == ClaimPhase::Bound {
            assert_eq!(planner.waiting(), [("NoClassAndNoMatch", 1)].into());
            break plan.wake_at;
        }
        revision += 2;
    };
    now += Duration::from_millis(1);
    assert!(until.is_some_and(|until| until > now));
    objects.apply(volume("pv"));
    planner.changed(&ObjectRef::Volume("pv".into()), now);
    assert_eq!(only(planner.plan(now)).volume, Some("pv".into()));
}

/// Somebody takes off each time what hands a claim to its provisioner: it takes a free volume that comes all the same.
#[test]
fn l1_a_claim_whose_hand_over_is_undone_takes_a_volume_that_comes() {
    let mut open = claim("c");
    open.spec.storage_class_name = Some("gold".into());
    let (objects, mut planner) = planner(vec![], vec![open.clone()]);
    let mut now = Instant::now();
    let gold: StorageClass = decode(&json!({
        "metadata": {"name": "gold", "resourceVersion": "1"}, "provisioner": "vendor.com/v",
        "volumeBindingMode": "Immediate",
    }));
    objects.apply(gold);
    planner.changed(&ObjectRef::Class("gold".into()), now);
    let until = loop {
        let mut plan = planner.plan(now);
        let Some(op) = plan.ops.pop() else { break plan.wake_at };
        assert_eq!(op.call.write_kind(), Some(WriteKind::AskProvisioner));
        let mut asked = open.clone();
        asked.metadata.resource_version.0 += 1;
        asked.metadata.annotations.insert("volume.kubernetes.io/storage-provisioner", "vendor.com/v");
        planner.answered(op, Ok(Answer::Claim(asked)), now, 0.5);
        open.metadata.resource_version.0 += 2;
        objects.apply(open.clone());
        planner.changed(&ObjectRef::Claim(open.key()), now);
    };
    assert_eq!(planner.waiting(), [("ForeignWriter", 1)].into());
    now += Duration::from_millis(1);
    assert!(until.is_some_and(|until| until > now));
    let mut comes = volume("pv");
    comes.spec.storage_class_name = Some("gold".into());
    objects.apply(comes);
    planner.changed(&ObjectRef::Volume("pv".into()), now);
    assert_eq!(only(planner.plan(now)).volume, Some("pv".into()));
}
