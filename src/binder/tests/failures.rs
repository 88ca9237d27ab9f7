//! What is told of requests that fail (L18).

use apiserver::{
    events::Event,
    ids::ClassName,
    kinds::{ClaimRef, ReclaimPolicy, StorageClass},
};

use super::{
    tries::{refused, reserved},
    *,
};

fn told(events: &[Event]) -> Vec<(&str, &str, &str)> {
    events.iter().map(|event| (event.involved.kind, event.reason, event.message.as_str())).collect()
}

/// Has the next request fail like this until something is told. Returns what was, and how many tries it took.
fn until_told(planner: &mut Recording, error: &CallError) -> (Vec<Event>, u32) {
    let mut now = Instant::now();
    let mut tries = 0;
    loop {
        let plan = planner.plan(now);
        if !plan.events.is_empty() {
            return (plan.events, tries);
        }
        if plan.ops.is_empty() {
            now = plan.wake_at.unwrap();
        }
        for op in plan.ops {
            // A read after a write of unknown outcome shows what is known.
            let result = match &op.call {
                Call::Read { target: ObjectRef::Volume(name), .. } => Ok(Answer::Volume(
                    PersistentVolume::clone(&planner.state.objects.volumes.get(name).unwrap()),
                )),
                _ => {
                    tries += 1;
                    Err(error.clone())
                }
            };
            planner.answered(op, result, now, 0.0);
        }
    }
}

#[test]
fn l18_a_refusal_is_told_at_once_and_what_the_next_try_may_mend_after_three() {
    let throttled = CallError::Throttled { message: "busy".into(), after: Duration::from_secs(1) };
    let rows = [
        (refused(), 1, "policy \"p\" says no"),
        (throttled, 3, "the API server asks to wait 1 s: busy"),
        (
            CallError::Unknown("500 InternalError: failed calling webhook".into()),
            3,
            "outcome unknown: 500 InternalError: failed calling webhook",
        ),
        (CallError::Conflict("stale".into()), 3, "stale"),
        (CallError::NotSent("no 100 Continue".into()), 3, "nothing was sent: no 100 Continue"),
    ];
    for (error, tries, words) in rows {
        let (_, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
        let (events, took) = until_told(&mut planner, &error);
        let text = format!("could not reserve the volume, a write to pv/pv: {words}");
        assert_eq!(told(&events), [("PersistentVolumeClaim", "FailedBinding", text.as_str())]);
        assert_eq!(took, tries, "{error}");
        assert_eq!(planner.waiting(), [("RetryBackoff", 1)].into());
        let row = row(&mut planner, &Target::Claim(ClaimKey::new("ns", "c")));
        assert_eq!(
            (&row["reason"], &row["facts"]["request"]),
            (&json!("RetryBackoff"), &json!("reserve_volume"))
        );
        assert_eq!(
            (&row["message"], &row["facts"]["meanwhile"]["reason"]),
            (&json!(text), &json!("Binding"))
        );
    }
}

#[test]
fn l18_what_fails_is_not_told_again_while_it_does_and_is_no_more_when_it_works() {
    let (objects, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
    let (_, _) = until_told(&mut planner, &refused());
    let mut now = Instant::now();
    for _ in 0..3 {
        now = planner.plan(now).wake_at.unwrap();
        let plan = planner.plan(now);
        assert_eq!(told(&plan.events), []);
        planner.answered(only(plan), Err(refused()), now, 0.0);
        let plan = planner.plan(now);
        assert_eq!(
            (told(&plan.events), plan.failures),
            (vec![], [(("reserve_volume", "refused"), 1)].into())
        );
        assert!(row(&mut planner, &Target::Claim(ClaimKey::new("ns", "c")))["next"].is_string());
    }
    // Its event may be about to expire.
    now += Duration::from_mins(11);
    let plan = planner.plan(now);
    assert_eq!(plan.events.len(), 1);
    let op = only(plan);
    let reserved = answer(&objects, &op, 2);
    planner.answered(op, Ok(reserved), now, 0.0);
    planner.plan(now);
    assert_eq!(planner.waiting(), [("Binding", 1)].into());
    assert!(row(&mut planner, &Target::Claim(ClaimKey::new("ns", "c")))["next"].is_null());
}

/// A claim that was deleted while its request was under way, or between two, and perhaps made anew.
#[test]
fn s35_what_fails_of_a_claim_is_not_told_of_the_next_of_its_name() {
    for (comes_late, is_made_anew) in [(true, true), (true, false), (false, true)] {
        let (objects, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
        let mut now = Instant::now();
        if !comes_late {
            until_told(&mut planner, &refused());
            now = planner.plan(now).wake_at.unwrap();
        }
        let op = comes_late.then(|| only(planner.plan(now)));
        if is_made_anew {
            let mut successor = claim("c");
            successor.metadata.uid = "uid-of-the-next".into();
            successor.metadata.resource_version = ResourceVersion(9);
            objects.apply(successor);
        } else {
            objects.delete(claim("c"));
        }
        planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "c")), now);
        if let Some(op) = op {
            planner.answered(op, Err(refused()), now, 0.0);
        }
        for _ in 0..3 {
            let plan = planner.plan(now);
            assert_eq!(told(&plan.events), [], "{comes_late} {is_made_anew}");
            assert_eq!(planner.recorder.failing(&Target::Claim(ClaimKey::new("ns", "c"))), None);
            now = plan.wake_at.unwrap();
        }
    }
}

#[test]
fn l18_a_webhook_that_takes_a_change_out_again_is_told() {
    let (objects, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
    let mut now = Instant::now();
    let unchanged = PersistentVolume::clone(&objects.volumes.get(&VolumeName::from("pv")).unwrap());
    let mut events = Vec::new();
    for _ in 0..3 {
        let op = only(planner.plan(now));
        planner.answered(op, Ok(Answer::Volume(unchanged.clone())), now, 0.0);
        let plan = planner.plan(now);
        events.extend(plan.events);
        now = plan.wake_at.unwrap();
    }
    let text = "could not reserve the volume, a write to pv/pv: the API server answered without the change: a \
                webhook may have taken it out";
    assert_eq!(told(&events), [("PersistentVolumeClaim", "FailedBinding", text)]);
}

/// A webhook takes the phase out of the last write each time.
#[test]
fn a_bind_of_which_the_last_write_is_stripped_is_not_measured_as_done() {
    let (objects, mut planner) = planner(vec![volume("pv")], vec![claim("c")]);
    let (mut now, mut samples) = (Instant::now(), Vec::new());
    for revision in 2..8 {
        let mut plan = planner.plan(now);
        if plan.ops.is_empty() {
            samples.append(&mut plan.samples);
            now = plan.wake_at.unwrap();
            plan = planner.plan(now);
        }
        samples.append(&mut plan.samples);
        let op = only(plan);
        let before = objects.claims.get(&claim("c").key()).unwrap();
        let is_last = op.call.write_kind() == Some(WriteKind::ClaimBound);
        let stripped = Answer::Claim(PersistentVolumeClaim::clone(&before));
        let answer = if is_last { stripped } else { answer(&objects, &op, revision) };
        planner.answered(op, Ok(answer), now, 0.0);
    }
    assert_eq!(samples, []);
}

/// The claim waits for a volume: each resync looks at it again.
#[test]
fn s39_what_a_webhook_takes_out_each_time_is_written_once_whatever_the_resyncs() {
    let mut unmarked = claim("c");
    let provisioner = "volume.kubernetes.io/storage-provisioner".to_owned();
    unmarked.metadata.annotations.insert(provisioner, "kubernetes.io/aws-ebs".to_owned());
    let (objects, mut planner) = planner(vec![], vec![unmarked.clone()]);
    let mut now = Instant::now();
    // It is told at once, and made again as soon as another changes the object: what took it out may be gone.
    for revision in [1, 7] {
        unmarked.metadata.resource_version = ResourceVersion(revision);
        objects.apply(unmarked.clone());
        planner.changed(&ObjectRef::Claim(unmarked.key()), now);
        let (end, mut writes, mut told) = (now + BinderOptions::default().sync_period * 3, 0, Vec::new());
        while now < end {
            let plan = planner.plan(now);
            told.extend(plan.events.iter().map(|event| event.message.clone()));
            now = if plan.ops.is_empty() { plan.wake_at.unwrap() } else { now };
            for op in plan.ops {
                assert_eq!(op.call.write_kind(), Some(WriteKind::Annotate));
                writes += 1;
                planner.answered(op, Ok(Answer::Claim(unmarked.clone())), now, 0.0);
            }
        }
        told.retain(|message| message.contains("answered without the change"));
        assert_eq!((writes, told.len()), (1, 1), "{told:?}");
    }
}

/// Where no claim waits it is told on the volume, for the reason KCM has for what comes of it.
#[test]
fn l18_what_is_refused_of_a_volume_is_told_there() {
    let rows = [
        (ReclaimPolicy::Delete, "VolumeFailedDelete"),
        (ReclaimPolicy::Recycle, "VolumeFailedRecycle"),
        (ReclaimPolicy::Retain, "FailedUpdate"),
    ];
    for (policy, reason) in rows {
        let mut left = volume("pv");
        left.spec.claim_ref =
            Some(ClaimRef { namespace: "ns".into(), name: "c".into(), uid: "uid-c".into() });
        left.spec.reclaim_policy = policy;
        left.status.phase = VolumePhase::Bound;
        let (_, mut planner) = planner(vec![left], vec![]);
        let now = Instant::now();
        let read = only(planner.plan(now));
        planner.answered(read, Err(refused()), now, 0.0);
        let plan = planner.plan(now);
        // Events on volumes are for readers of other namespaces, too (S41).
        let text = "could not read what the volume is for: refused";
        assert_eq!(told(&plan.events), [("PersistentVolume", reason, text)]);
        let now = plan.wake_at.unwrap();
        let read = only(planner.plan(now));
        planner.answered(read, Err(CallError::NotFound("c".into())), now, 0.0);
        let write = only(planner.plan(now));
        planner.answered(write, Err(refused()), now, 0.0);
        let text = "could not set the volume to Released, a write to pv/pv: policy \"p\" says no";
        assert_eq!(told(&planner.plan(now).events), [("PersistentVolume", reason, text)]);
        let row = row(&mut planner, &Target::Volume(VolumeName::from("pv")));
        assert_eq!((&row["volume"], &row["reason"]), (&json!("pv"), &json!("RetryBackoff")));
    }
}

/// A webhook says whose the volume is, whose name only people of that namespace may read.
#[test]
fn s41_of_a_write_that_is_refused_a_volume_is_not_told_whose_it_is() {
    // what the server says, and what of it is told on the volume
    let rows = [
        ("reclaim of team-a/payroll is not allowed", "refused"),
        ("\"payroll\".", "refused"),
        ("Claims of team-a: no", "refused"),
        ("payrolls and team-ab: no", "payrolls and team-ab: no"),
    ];
    for (words, told_of) in rows {
        let mut left = volume("pv");
        left.spec.claim_ref =
            Some(ClaimRef { namespace: "team-a".into(), name: "payroll".into(), uid: "gone".into() });
        left.status.phase = VolumePhase::Bound;
        let (_, mut planner) = planner(vec![left], vec![]);
        let now = Instant::now();
        let read = only(planner.plan(now));
        planner.answered(read, Err(CallError::NotFound("payroll".into())), now, 0.0);
        let refused = CallError::Refused { code: 403, message: words.into() };
        let write = only(planner.plan(now));
        planner.answered(write, Err(refused), now, 0.0);
        let text = format!("could not set the volume to Released, a write to pv/pv: {told_of}");
        assert_eq!(told(&planner.plan(now).events), [("PersistentVolume", "FailedUpdate", text.as_str())]);
    }
}

/// It is Bound to team-a/payroll, and people have pointed it at a claim of another team, which has another volume, or none.
#[test]
fn s41_of_a_volume_that_is_given_back_nobody_else_is_told_whose_it_is() {
    for (phase, kind) in
        [(ClaimPhase::Bound, "PersistentVolume"), (ClaimPhase::Pending, "PersistentVolumeClaim")]
    {
        let mut taken = volume("pv");
        taken.spec.claim_ref =
            Some(ClaimRef { namespace: "team-b".into(), name: "x".into(), uid: "uid-x".into() });
        taken.status.phase = VolumePhase::Bound;
        let of = |namespace: &str, name: &str, volume: &str, phase: ClaimPhase| {
            let mut claim = claim(name);
            claim.metadata.namespace = namespace.into();
            (claim.spec.volume_name, claim.status.phase) = (volume.into(), phase);
            claim.metadata.annotations.insert("pv.kubernetes.io/bind-completed".to_owned(), "yes".to_owned());
            claim
        };
        let claims = vec![of("team-a", "payroll", "pv", ClaimPhase::Bound), of("team-b", "x", "w", phase)];
        let (_, mut planner) = planner(vec![taken, volume("w")], claims);
        let now = Instant::now();
        let message = "may not be bound to team-a/payroll".to_owned();
        for op in planner.plan(now).ops {
            planner.answered(op, Err(CallError::Refused { code: 403, message: message.clone() }), now, 0.0);
        }
        let events = planner.plan(now).events;
        let told = told(&events);
        assert!(told.iter().any(|(of, _, text)| *of == kind && text.ends_with("pv/pv: refused")), "{told:?}");
        assert!(
            !told.iter().any(|(_, _, text)| text.contains("pv/pv") && text.contains("payroll")),
            "{told:?}"
        );
    }
}

#[test]
fn l18_a_claim_that_cannot_be_handed_to_its_provisioner_is_told_in_kcms_words() {
    let class: StorageClass = decode(&json!({
        "metadata": {"name": "gold", "uid": "g", "resourceVersion": "1"}, "provisioner": "p", "volumeBindingMode": "Immediate",
    }));
    let mut claim = claim("c");
    claim.spec.storage_class_name = Some("gold".into());
    let (objects, mut planner) = planner(vec![], vec![claim]);
    objects.apply(class);
    planner.changed(&ObjectRef::Class(ClassName::from("gold")), Instant::now());
    let now = Instant::now();
    let mut told_of = Vec::new();
    let plan = planner.plan(now);
    told_of.extend(plan.events.clone());
    planner.answered(only(plan), Err(refused()), now, 0.0);
    told_of.extend(planner.plan(now).events);
    assert!(told(&told_of).contains(&(
        "PersistentVolumeClaim",
        "ProvisioningFailed",
        "Error saving claim: policy \"p\" says no"
    )));
}

/// Its class has its binds wait meanwhile, so that it takes no volume that may not be its own already.
#[test]
fn s48_a_claim_whose_reservation_is_in_doubt_is_told_of_it() {
    let gold = |mode: &str, revision: &str| -> StorageClass {
        decode(&json!({
            "metadata": {"name": "gold", "resourceVersion": revision}, "provisioner": "vendor.com/v",
            "volumeBindingMode": mode,
        }))
    };
    let (mut pv, mut seeks) = (volume("pv"), claim("c"));
    pv.spec.storage_class_name = Some("gold".into());
    seeks.spec.storage_class_name = Some("gold".into());
    let (objects, mut planner) = planner(vec![pv.clone()], vec![seeks]);
    objects.apply(gold("Immediate", "1"));
    let now = Instant::now();
    let (op, _) = reserved(&mut planner, now);
    planner.answered(op, Err(CallError::Unknown("500".into())), now, 0.0);
    let read = only(planner.plan(now));
    objects.apply(gold("WaitForFirstConsumer", "2"));
    planner.changed(&ObjectRef::Class(ClassName::from("gold")), now);
    planner.answered(read, Ok(Answer::Volume(pv)), now, 0.0);
    let plan = planner.plan(now);
    assert_eq!(plan.ops, []);
    assert_eq!(planner.waiting(), [("Uncertain", 1)].into());
    assert_eq!(plan.events.iter().map(|event| event.reason).collect::<Vec<_>>(), ["Uncertain"]);
}

/// A claim that names the volume may not take it just now, and then takes it no longer.
#[test]
fn l1_a_volume_is_offered_when_the_claim_that_names_it_is_suited_by_it_no_more() {
    let (mut named, rival) = (claim("named"), claim("rival"));
    named.spec.volume_name = VolumeName::from("pv");
    let (objects, mut planner) = planner(vec![volume("pv")], vec![named.clone(), rival.clone()]);
    let now = Instant::now();
    let (op, _) = reserved(&mut planner, now);
    assert_eq!(op.subject, Target::Claim(named.key()));
    let busy = CallError::Throttled { message: "busy".into(), after: Duration::from_secs(7) };
    planner.answered(op, Err(busy), now, 0.0);
    assert_eq!(planner.plan(now).ops, []);
    named.metadata.resource_version = ResourceVersion(5);
    named.spec.storage_class_name = Some("other".into());
    objects.apply(named.clone());
    planner.changed(&ObjectRef::Claim(named.key()), now);
    let later = planner.plan(now).wake_at.unwrap();
    assert_eq!(reserved(&mut planner, later).0.subject, Target::Claim(rival.key()));
}

/// Its reservation is refused, or what comes before that.
#[test]
fn l15_a_claim_that_names_a_volume_and_is_refused_keeps_it_from_no_other() {
    for kind in [WriteKind::ReserveVolume, WriteKind::Annotate] {
        let (mut named, rival) = (claim("named"), claim("rival"));
        named.spec.volume_name = VolumeName::from("pv");
        if kind == WriteKind::Annotate {
            let provisioner = "volume.kubernetes.io/storage-provisioner";
            named.metadata.annotations.insert(provisioner, "kubernetes.io/aws-ebs");
        }
        let (_, mut planner) = planner(vec![volume("pv")], vec![named.clone(), rival.clone()]);
        let now = Instant::now();
        let op = only(planner.plan(now));
        assert_eq!((&op.subject, op.call.write_kind()), (&Target::Claim(named.key()), Some(kind)));
        planner.answered(op, Err(refused()), now, 0.0);
        assert_eq!(reserved(&mut planner, now).0.subject, Target::Claim(rival.key()), "{kind:?}");
    }
}
