//! What a burst of pairs costs, and a large cluster at rest: counted, not timed.

use std::cell::Cell;

use apiserver::kinds::StorageClass;

use super::*;
use crate::binder::plan::LOOKS;

/// Claims first, then the volumes one by one: every claim is bound, and no step looks at more than
/// its own pair.
#[test]
fn l1_the_work_per_pair_does_not_grow_with_the_number_of_waiting_claims() {
    const PAIRS: usize = 2_000;
    let claims = (0..PAIRS).map(|number| claim(&format!("c{number:04}"))).collect();
    let (objects, mut planner) = planner(vec![], claims);
    let now = Instant::now();
    assert!(planner.plan(now).ops.is_empty());
    for number in 0..PAIRS {
        let name = format!("pv{number:04}");
        let mut volume = volume(&name);
        volume.metadata.resource_version = ResourceVersion(2);
        objects.apply(volume);
        planner.changed(&ObjectRef::Volume(VolumeName::from(name)), now);
    }
    let (mut revision, mut writes, mut decisions) = (10, 0, 0);
    loop {
        let plan = planner.plan(now);
        decisions += plan.decisions.values().sum::<u64>();
        if plan.ops.is_empty() {
            break;
        }
        for op in plan.ops {
            revision += 1;
            writes += 1;
            let answer = answer(&objects, &op, revision);
            planner.answered(op, Ok(answer), now, 0.0);
        }
    }
    assert_eq!(writes, 4 * PAIRS);
    assert!(planner.waiting().is_empty());
    assert!(decisions <= 12 * PAIRS as u64, "{decisions} decisions for {PAIRS} pairs");
}

/// One of thousands suits, by a label or by its size: neither the search for a volume nor that for a claim looks at the others.
#[test]
fn a_selector_and_a_size_cost_their_own_candidates() {
    const ALL: usize = 2_000;
    type Volumes = fn(usize) -> PersistentVolume;
    type Claims = fn(usize) -> PersistentVolumeClaim;

    fn labels(number: usize) -> [(String, String); 2] {
        [("kind".to_owned(), "disk".to_owned()), ("disk".to_owned(), number.to_string())]
    }
    fn labelled(number: usize) -> PersistentVolume {
        let mut volume = volume(&format!("pv{number}"));
        volume.metadata.labels = labels(number).into();
        volume
    }
    fn selecting(number: usize) -> PersistentVolumeClaim {
        let mut claim = claim(&format!("c{number}"));
        let selector = LabelSelector { match_labels: labels(number).into(), ..LabelSelector::default() };
        claim.spec.selector = Some(Box::new(selector));
        claim
    }
    fn sized(number: usize) -> PersistentVolume {
        let mut volume = volume(&format!("pv{number}"));
        volume.spec.capacity.insert("storage".to_owned(), if number == 7 { "4Gi" } else { "1Gi" }.to_owned());
        volume
    }
    fn asking(number: usize) -> PersistentVolumeClaim {
        let mut claim = claim(&format!("c{number}"));
        let size = if number == 7 { "3Gi" } else { "5Gi" };
        claim.spec.resources.requests.insert("storage".to_owned(), size.to_owned());
        claim
    }

    // The labels are in order, and claims queue under their first.
    let rows: [(&str, Volumes, Claims); 2] = [("label", labelled, selecting), ("size", sized, asking)];
    for (name, volumes, claims) in rows {
        let (mut index, mut waiting) = (VolumeIndex::default(), ClaimIndex::default());
        for number in 0..ALL {
            let volume = volumes(number);
            index.update(&volume.key(), Some(&volume));
            waiting.wait(&Requirements::of(&claims(number)).unwrap(), "".into());
        }
        let looked = Cell::new(0);
        let number = |name: &str| {
            looked.set(looked.get() + 1);
            name.trim_start_matches(['p', 'v', 'c']).parse().unwrap()
        };
        let current = |name: &VolumeName| Some(Arc::new(volumes(number(name.as_str()))));
        let claim = claims(7);
        let requirements = Requirements::of(&claim).unwrap();
        let compared = Comparisons::default();
        let found = index.search(&requirements, false, &current, &|_| false, &compared);
        assert!(matches!(found, Search::Found(volume) if *volume.metadata.name == *"pv7"), "{name}");
        assert_eq!((looked.take(), compared.get()), (1, 1), "{name}");

        let current = |key: &ClaimKey| Some(Arc::new(claims(number(key.name()))));
        let candidate = waiting.candidate(&volumes(7), &current, None).map(|rank| rank.1.0.1.clone());
        assert_eq!(candidate, Some(ClaimKey::new("ns", "c7")), "{name}");
        assert_eq!(looked.take(), 1, "{name}");
    }
}

/// Claims that all name one free volume, which suits none of them: a look at one of them, or at the volume, is not a look at
/// all.
#[test]
fn l15_claims_that_name_a_volume_that_does_not_suit_them_cost_one_look_each() {
    const CLAIMS: usize = 3_000;
    let naming = |number: usize| {
        let mut claim = claim(&format!("c{number:04}"));
        claim.spec.volume_name = "v".into();
        claim.spec.resources.requests.insert("storage".to_owned(), "5Gi".to_owned());
        claim
    };
    let (objects, mut planner) = planner(vec![volume("v")], (0..CLAIMS).map(naming).collect());
    let now = Instant::now();
    let settle = |planner: &mut Recording| {
        let (mut looks, mut compared) = (0, 0);
        loop {
            let plan = planner.plan(now);
            assert!(plan.ops.is_empty() && plan.looks <= LOOKS + 1, "{} looks", plan.looks);
            (looks, compared) = (looks + plan.looks, compared + plan.compared);
            if plan.wake_at != Some(now) {
                return (looks, compared);
            }
        }
    };
    settle(&mut planner);
    for number in 0..CLAIMS {
        let mut claim = naming(number);
        claim.metadata.resource_version = ResourceVersion(2);
        claim.metadata.annotations.insert("pv.kubernetes.io/x", "y");
        objects.apply(claim.clone());
        planner.changed(&ObjectRef::Claim(claim.key()), now);
    }
    assert_eq!(settle(&mut planner), (CLAIMS, 0));
    let mut volume = volume("v");
    volume.metadata.resource_version = ResourceVersion(2);
    volume.metadata.labels.insert("x", "y");
    objects.apply(volume);
    planner.changed(&ObjectRef::Volume("v".into()), now);
    let (looks, compared) = settle(&mut planner);
    assert!(looks <= CLAIMS + 2 && compared <= 3 * CLAIMS, "{looks} {compared}");
}

/// What is settled costs nothing: no request, no event, and no reason to wake up but the resync.
#[test]
fn s39_a_large_cluster_at_rest_asks_for_nothing() {
    const BOUND: usize = 5_000;
    const RELEASED: usize = 1_000;
    let mut volumes = Vec::new();
    let mut claims = Vec::new();
    for number in 0..BOUND {
        let (mut volume, mut claim) = (volume(&format!("pv{number}")), claim(&format!("c{number}")));
        volume.spec.claim_ref = Some(ClaimRef {
            namespace: "ns".into(),
            name: format!("c{number}").into(),
            uid: claim.metadata.uid.clone(),
        });
        volume.status.phase = VolumePhase::Bound;
        claim.spec.volume_name = volume.key();
        claim.metadata.annotations.insert("pv.kubernetes.io/bind-completed".to_owned(), "yes".to_owned());
        claim.status.phase = ClaimPhase::Bound;
        claim.status.access_modes.clone_from(&volume.spec.access_modes);
        volumes.push(volume);
        claims.push(claim);
    }
    for number in 0..RELEASED {
        let mut volume = volume(&format!("old{number}"));
        // The name of a claim that exists again, with another UID.
        volume.spec.claim_ref =
            Some(ClaimRef { namespace: "ns".into(), name: format!("c{number}").into(), uid: "gone".into() });
        volume.status.phase = VolumePhase::Released;
        volumes.push(volume);
    }
    let (_, mut planner) = planner(volumes, claims);
    let now = Instant::now();
    let mut looks = 0;
    loop {
        let plan = planner.plan(now);
        assert!(plan.ops.is_empty() && plan.events.is_empty());
        looks += plan.looks;
        if plan.wake_at != Some(now) {
            break;
        }
    }
    assert!(looks >= 2 * BOUND + RELEASED, "{looks}");
    assert_eq!(planner.recorder.unsettled(None, usize::MAX), []);
}

/// A resync of whatever many claims wait queues some, and the next when it has looked at these.
#[test]
fn l15_a_resync_takes_turns() {
    const CLAIMS: usize = 3 * LOOKS + 7;
    let (_, mut planner) =
        planner(Vec::new(), (0..CLAIMS).map(|number| claim(&format!("c{number}"))).collect());
    let mut now = Instant::now();
    while planner.plan(now).wake_at == Some(now) {}
    for _ in 0..2 {
        now += BinderOptions::default().sync_period;
        let mut looks = 0;
        loop {
            let plan = planner.plan(now);
            looks += plan.looks;
            let queued: usize = plan.counts.iter().map(|counts| counts.depth).sum();
            assert!(queued + plan.looks <= LOOKS, "{queued}");
            if plan.wake_at != Some(now) {
                break;
            }
        }
        assert_eq!(looks, CLAIMS);
    }
}

/// A claim whose volumes the scheduler chooses is not even looked at when one becomes free.
#[test]
fn cost_a_free_volume_is_not_offered_to_claims_that_take_none() {
    let mut class = StorageClass::default();
    class.metadata.name = "late".into();
    class.metadata.resource_version = ResourceVersion(1);
    class.provisioner = "d".to_owned();
    class.volume_binding_mode = serde_json::from_value(json!("WaitForFirstConsumer")).unwrap();
    let mut waiting = claim("c");
    waiting.spec.storage_class_name = Some("late".into());
    for (key, value) in [("selected-node", "n1"), ("storage-provisioner", "d")] {
        waiting.metadata.annotations.insert(format!("volume.kubernetes.io/{key}"), value.to_owned());
    }
    let objects = Arc::new(Objects::default());
    objects.reset(vec![class]);
    objects.reset(vec![waiting]);
    let mut planner = Recording::new(Planner::new(Arc::clone(&objects), BinderOptions::default()));
    let now = Instant::now();
    planner.load(now);
    planner.lead(now);
    assert_eq!(
        planner.plan(now).decisions.into_keys().collect::<Vec<_>>(),
        [("claim", "WaitingForProvisioner")]
    );
    let mut free = volume("pv");
    free.spec.storage_class_name = Some("late".into());
    free.metadata.resource_version = ResourceVersion(2);
    objects.apply(free.clone());
    planner.changed(&ObjectRef::Volume(free.key()), now);
    let looked = planner.plan(now).decisions.into_iter().map(|((kind, _), count)| (kind, count));
    assert_eq!(looked.collect::<Vec<_>>(), [("volume", 1)]);
}

/// The API server was away, and it is not known whether any of so many reservations will still be made.
#[test]
fn s19_l16_the_work_per_pair_does_not_grow_with_the_number_in_doubt() {
    const PAIRS: usize = 5_000;
    let names: Vec<String> = (0..PAIRS).map(|number| format!("{number:05}")).collect();
    let volumes = names.iter().map(|name| volume(name)).collect();
    let (objects, mut planner) = planner(volumes, names.iter().map(|name| claim(name)).collect());
    let mut now = Instant::now();
    let (mut reservations, mut reads, mut is_away) = (0, 0, true);
    let mut revision = 1;
    loop {
        let plan = planner.plan(now);
        if plan.ops.is_empty() && plan.wake_at != Some(now) {
            if is_away && reservations == PAIRS {
                is_away = false;
            } else if reservations > PAIRS && !planner.is_waiting() {
                break;
            }
            now = plan.wake_at.unwrap();
        }
        for op in plan.ops {
            let result = match &op.call {
                _ if is_away => Err(CallError::Unknown("refused".into())),
                Call::Read { target: ObjectRef::Volume(name), .. } => {
                    Ok(Answer::Volume(PersistentVolume::clone(&objects.volumes.get(name).unwrap())))
                }
                _ => {
                    revision += 1;
                    Ok(answer(&objects, &op, revision))
                }
            };
            match op.call.write_kind() {
                Some(WriteKind::ReserveVolume) => reservations += 1,
                None => reads += 1,
                Some(_) => {}
            }
            planner.answered(op, result, now, 0.0);
        }
    }
    assert_eq!(reservations, 2 * PAIRS);
    assert!(reads < 20 * PAIRS, "{reads} reads");
    assert!(planner.waiting().is_empty());
}

/// Nothing is ever written of it again.
#[test]
fn s39_a_claim_that_is_lost_and_shows_it_asks_for_its_volume_never_again() {
    let lost = |name: &str, phase| {
        let mut claim = claim(name);
        (claim.spec.volume_name, claim.status.phase) = (VolumeName::from("pv"), phase);
        claim.metadata.annotations.insert("pv.kubernetes.io/bind-completed".to_owned(), "yes".to_owned());
        claim
    };
    let mut given = volume("pv");
    given.spec.claim_ref = Some(ClaimRef { namespace: "ns".into(), name: "b".into(), uid: "uid-b".into() });
    given.status.phase = VolumePhase::Bound;
    let mut bound = lost("b", ClaimPhase::Bound);
    bound.status.access_modes = given.spec.access_modes.clone();
    let (objects, mut planner) = planner(vec![given.clone()], vec![bound, lost("c", ClaimPhase::Lost)]);
    let now = Instant::now();
    for revision in 2..100 {
        assert_eq!(planner.plan(now).ops, []);
        assert_eq!(planner.waiting(), [("LostMisbound", 1)].into());
        given.metadata.labels.insert("noted".to_owned(), revision.to_string());
        given.metadata.resource_version = ResourceVersion(revision);
        objects.apply(given.clone());
        planner.changed(&ObjectRef::Volume("pv".into()), now);
    }
}
