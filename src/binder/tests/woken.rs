//! Whom a change of another object wakes, and whom it does not.

use apiserver::kinds::StorageClass;

use super::*;

const MINUTE: Duration = Duration::from_mins(1);

fn class(name: &str, mode: &str, revision: u64) -> StorageClass {
    decode(&json!({
        "metadata": {"name": name, "resourceVersion": revision.to_string()},
        "provisioner": "vendor.com/v", "volumeBindingMode": mode,
    }))
}

fn comes(planner: &mut Recording, class: &StorageClass, now: Instant) {
    planner.state.objects.apply(class.clone());
    planner.changed(&ObjectRef::Class(class.key()), now);
}

fn goes(planner: &mut Recording, class: &StorageClass, now: Instant) {
    planner.state.objects.delete(class.clone());
    planner.changed(&ObjectRef::Class(class.key()), now);
}

/// Its fields cannot be changed: who wants it otherwise deletes it and makes it anew. Also of a claim that comes meanwhile.
#[test]
fn s28_a_class_that_is_away_for_a_moment_delays_the_bind_of_its_claims_as_before() {
    let mut free = volume("pv");
    free.spec.storage_class_name = Some("local".into());
    let of_class = |name| {
        let mut claim = claim(name);
        claim.spec.storage_class_name = Some("local".into());
        claim
    };
    for is_back in [true, false] {
        let (objects, mut planner) = planner(vec![], vec![of_class("c")]);
        let (local, mut now) = (class("local", "WaitForFirstConsumer", 5), Instant::now());
        comes(&mut planner, &local, now);
        objects.apply(free.clone());
        planner.changed(&ObjectRef::Volume("pv".into()), now);
        assert_eq!(planner.plan(now).ops, []);
        goes(&mut planner, &local, now);
        objects.apply(of_class("d"));
        planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "d")), now);
        let plan = planner.plan(now);
        assert_eq!((plan.ops, plan.wake_at), (vec![], Some(now + MINUTE)));
        assert_eq!(planner.waiting(), [("WaitingForFirstConsumer", 2)].into());
        now += MINUTE / 2;
        if is_back {
            comes(&mut planner, &class("local", "WaitForFirstConsumer", 6), now);
        }
        now += MINUTE;
        let plan = planner.plan(now);
        if is_back {
            assert_eq!((plan.ops, planner.waiting()["WaitingForFirstConsumer"]), (vec![], 2));
            continue;
        }
        planner.answered(only(plan), Err(CallError::NotFound("local".into())), now, 0.0);
        assert_eq!(only(planner.plan(now)).call.write_kind(), Some(WriteKind::ReserveVolume));
    }
}

/// Of a class that is merely remembered no provisioner is asked for a volume.
#[test]
fn s28_a_claim_whose_node_is_chosen_reads_a_class_that_is_away() {
    let (objects, mut planner) = planner(vec![], vec![]);
    let (local, now) = (class("local", "WaitForFirstConsumer", 5), Instant::now());
    comes(&mut planner, &local, now);
    goes(&mut planner, &local, now);
    let mut chosen = claim("c");
    chosen.spec.storage_class_name = Some("local".into());
    chosen.metadata.annotations.insert("volume.kubernetes.io/selected-node".to_owned(), "n".to_owned());
    objects.apply(chosen);
    planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "c")), now);
    let read = only(planner.plan(now)).call;
    assert!(
        matches!(&read, Call::Read { target: ObjectRef::Class(name), .. } if name.as_str() == "local"),
        "{read:?}"
    );
}

#[test]
fn s28_what_was_read_of_a_class_while_it_was_remembered_is_read_again_when_that_is_over() {
    let mut free = volume("pv");
    free.spec.storage_class_name = Some("local".into());
    let (objects, mut planner) = planner(vec![free], vec![]);
    let (local, now) = (class("local", "WaitForFirstConsumer", 5), Instant::now());
    comes(&mut planner, &local, now);
    goes(&mut planner, &local, now);
    for (name, has_node) in [("c", false), ("s", true)] {
        let mut of_class = claim(name);
        of_class.spec.storage_class_name = Some("local".into());
        if has_node {
            of_class.metadata.annotations.insert("volume.kubernetes.io/selected-node", "n");
        }
        objects.apply(of_class);
        planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", name)), now);
    }
    let read = only(planner.plan(now));
    planner.answered(read, Err(CallError::NotFound("local".into())), now, 0.0);
    assert_eq!(planner.plan(now).ops, []);
    let op = only(planner.plan(now + MINUTE));
    assert!(matches!(op.call, Call::Read { .. }), "{op:?}");
}

/// Has what is sent refused until a minute and more passes before the next try. Returns a moment after the last one.
fn refused_for_long(planner: &mut Recording, mut now: Instant) -> Instant {
    loop {
        let plan = planner.plan(now);
        match plan.wake_at {
            Some(at) if plan.ops.is_empty() && at > now + MINUTE => return now + Duration::from_secs(1),
            Some(at) if plan.ops.is_empty() => now = at,
            _ => {}
        }
        for op in plan.ops {
            let refused = CallError::Refused { code: 403, message: "no".into() };
            planner.answered(op, Err(refused), now, 0.0);
        }
    }
}

fn sized(name: &str, size: &str) -> PersistentVolume {
    let mut volume = volume(name);
    volume.spec.capacity.insert("storage".to_owned(), size.to_owned());
    volume
}

/// What the next request reserves, and for whom.
fn reserves(planner: &mut Recording, now: Instant) -> (Target, VolumeName) {
    let op = only(planner.plan(now));
    assert_eq!(op.call.write_kind(), Some(WriteKind::ReserveVolume));
    (op.subject, op.volume.unwrap())
}

#[test]
fn l1_a_claim_that_was_refused_a_volume_takes_another_when_that_one_goes_or_is_given_away() {
    for goes in [true, false] {
        let (objects, mut planner) = planner(vec![volume("v"), sized("w", "2Gi")], vec![claim("c")]);
        let now = refused_for_long(&mut planner, Instant::now());
        let mut changed = volume("v");
        changed.metadata.resource_version = ResourceVersion(5);
        if goes {
            objects.delete(changed);
        } else {
            changed.spec.claim_ref =
                Some(ClaimRef { namespace: "ns".into(), name: "other".into(), ..ClaimRef::default() });
            objects.apply(changed);
        }
        planner.changed(&ObjectRef::Volume("v".into()), now);
        assert_eq!(reserves(&mut planner, now), (Target::Claim(ClaimKey::new("ns", "c")), "w".into()));
    }
}

/// Both were refused, the one at the volume a moment ago; the other, which fits it, too, takes a smaller one first.
#[test]
fn l1_a_volume_that_is_put_right_is_tried_by_the_claim_that_was_refused_it() {
    let mut large = claim("c");
    large.spec.resources.requests.insert("storage".to_owned(), "2Gi".to_owned());
    let (objects, mut planner) =
        planner(vec![sized("v", "2Gi"), volume("w")], vec![large.clone(), claim("d")]);
    let mut now = refused_for_long(&mut planner, Instant::now());
    now += MINUTE;
    large.metadata.labels.insert("tried".to_owned(), "again".to_owned());
    large.metadata.resource_version = ResourceVersion(5);
    objects.apply(large);
    planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "c")), now);
    let op = only(planner.plan(now));
    planner.answered(op, Err(CallError::Refused { code: 403, message: "no".into() }), now, 0.0);
    now += Duration::from_secs(1);
    let mut right = sized("v", "2Gi");
    right.metadata.labels.insert("team".to_owned(), "a".to_owned());
    right.metadata.resource_version = ResourceVersion(6);
    objects.apply(right);
    planner.changed(&ObjectRef::Volume("v".into()), now);
    let ops = planner.plan(now).ops;
    let tried = |op: &Op| op.subject == Target::Claim(ClaimKey::new("ns", "c"));
    assert_eq!(ops.iter().find(|op| tried(op)).and_then(|op| op.volume.clone()), Some("v".into()), "{ops:?}");
}

#[test]
fn l17_a_class_that_becomes_default_reaches_a_claim_that_was_refused_the_one_before() {
    let (_, mut planner) = planner(vec![], vec![claim("c")]);
    let mut now = Instant::now();
    let default = |name: &str, created: &str| {
        let annotations = json!({"storageclass.kubernetes.io/is-default-class": "true"});
        let class: StorageClass = decode(&json!({
            "metadata": {"name": name, "resourceVersion": "5", "creationTimestamp": created, "annotations": annotations},
            "provisioner": "vendor.com/v", "volumeBindingMode": "Immediate",
        }));
        class
    };
    comes(&mut planner, &default("gold", "2026-01-01T00:00:00Z"), now);
    now = refused_for_long(&mut planner, now);
    comes(&mut planner, &default("silver", "2026-01-02T00:00:00Z"), now);
    let op = only(planner.plan(now));
    assert_eq!(op.call.write_kind(), Some(WriteKind::AssignClass));
    let Call::Write(write) = op.call else { panic!() };
    assert_eq!(write.request.body.unwrap()["spec"]["storageClassName"], "silver");
}

/// Also where the reservation of another is seen before the answer to it.
#[test]
fn l1_all_that_were_refused_a_volume_go_on_when_another_has_it() {
    let (objects, mut planner) = planner(vec![volume("v")], vec![claim("c"), claim("d"), claim("e")]);
    let now = refused_for_long(&mut planner, Instant::now());
    let mut put_right = claim("c");
    put_right.metadata.labels.insert("team".to_owned(), "a".to_owned());
    put_right.metadata.resource_version = ResourceVersion(5);
    objects.apply(put_right.clone());
    planner.changed(&ObjectRef::Claim(put_right.key()), now);
    assert_eq!(reserves(&mut planner, now).0, Target::Claim(put_right.key()));
    let mut taken = volume("v");
    taken.metadata.resource_version = ResourceVersion(6);
    taken.spec.claim_ref =
        Some(ClaimRef { namespace: "ns".into(), name: "c".into(), uid: put_right.metadata.uid.clone() });
    objects.apply(taken);
    let waiting = |planner: &Recording| {
        let waits = |name: &&&str| planner.retries.waits(&Target::Claim(ClaimKey::new("ns", name)));
        ["d", "e"].iter().filter(waits).count()
    };
    assert_eq!(waiting(&planner), 2);
    planner.changed(&ObjectRef::Volume("v".into()), now);
    assert_eq!(waiting(&planner), 0);
}
