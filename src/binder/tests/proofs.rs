//! What a live read proves, row by row, and when it is repeated.

use apiserver::{ids::Uid, restore::RESTORE_GRACE};
use k8s_openapi::jiff::Timestamp;

use super::*;
use crate::binder::decide::proofs::{ClaimProof, VolumeProof};

/// The proof, and whether the read has to be repeated because our tables lag behind it.
type Proven<T> = (Option<T>, bool);

/// What is proven about the claim of a volume by reading it. Our table does not show the claim; with `late`
/// the watch has passed what is read.
fn claim_read(found: Option<(&str, &str)>, late: bool) -> Proven<ClaimProof> {
    let mut bound = volume("pv");
    bound.spec.claim_ref = Some(ClaimRef { namespace: "ns".into(), name: "c".into(), uid: "uid-c".into() });
    bound.status.phase = VolumePhase::Bound;
    let (objects, mut planner) = planner(vec![bound.clone()], vec![]);
    let now = Instant::now();
    if late {
        let mut gone = claim("passed");
        gone.metadata.resource_version = ResourceVersion(10);
        objects.apply(gone);
    }
    let read = only(planner.plan(now));
    let result = match found {
        Some((uid, names)) => {
            let mut claim = claim("c");
            claim.metadata.uid = uid.into();
            claim.metadata.resource_version = ResourceVersion(5);
            claim.spec.volume_name = VolumeName::from(names);
            Ok(Answer::Claim(claim))
        }
        None => Err(CallError::NotFound("c".into())),
    };
    planner.answered(read, result, now, 0.0);
    let uid = Uid::from("uid-c");
    (planner.state.proofs.claim(&bound, &uid), planner.is_waiting())
}

#[test]
fn s23_only_a_claim_that_is_gone_or_bound_elsewhere_is_proven_to_be() {
    let rows = [
        (None, false, (Some(ClaimProof::Gone), false)),
        (Some(("another", "")), false, (Some(ClaimProof::Gone), false)),
        (Some(("another", "pv")), false, (Some(ClaimProof::Gone), false)),
        (Some(("uid-c", "other")), false, (Some(ClaimProof::BoundElsewhere), false)),
        (Some(("uid-c", "pv")), false, (None, false)),
        (Some(("uid-c", "")), false, (None, false)),
        // The watch is ahead of the answer, and shows no such claim.
        (Some(("uid-c", "pv")), true, (None, true)),
        (Some(("uid-c", "other")), true, (Some(ClaimProof::BoundElsewhere), true)),
    ];
    for (found, late, expected) in rows {
        assert_eq!(claim_read(found, late), expected, "{found:?}, late: {late}");
    }
}

/// A claim that was bound to the volume `pv`.
fn bound_to_pv() -> PersistentVolumeClaim {
    let mut bound = claim("c");
    bound.spec.volume_name = VolumeName::from("pv");
    bound.metadata.annotations.insert("pv.kubernetes.io/bind-completed".to_owned(), "yes".to_owned());
    bound
}

/// What is proven about the volume of a claim by reading it, likewise; `-` for one without claimRef.
fn volume_read(found: Option<&str>, late: bool) -> Proven<VolumeProof> {
    let mut bound = bound_to_pv();
    bound.status.phase = ClaimPhase::Bound;
    let (objects, mut planner) = planner(vec![], vec![bound.clone()]);
    let now = Instant::now();
    if late {
        let mut other = volume("passed");
        other.metadata.resource_version = ResourceVersion(10);
        objects.apply(other);
    }
    let read = only(planner.plan(now));
    let result = match found {
        Some(uid) => {
            let mut volume = volume("pv");
            volume.metadata.resource_version = ResourceVersion(5);
            volume.spec.claim_ref =
                (uid != "-").then(|| ClaimRef { namespace: "ns".into(), name: "c".into(), uid: uid.into() });
            Ok(Answer::Volume(volume))
        }
        None => Err(CallError::NotFound("pv".into())),
    };
    planner.answered(read, result, now, 0.0);
    let seen = objects.volumes.get(&VolumeName::from("pv")).map(|volume| volume.metadata.resource_version);
    (planner.state.proofs.volume(&bound.key(), &bound.metadata.uid, seen).cloned(), planner.is_waiting())
}

#[test]
fn s24_only_a_volume_that_is_gone_or_anothers_is_proven_to_be() {
    let other = |uid: &str| Some(VolumeProof::OtherClaim(uid.into()));
    let rows = [
        (None, false, (Some(VolumeProof::Gone), false)),
        (Some("another"), false, (other("another"), false)),
        (Some(""), false, (None, false)),
        (Some("uid-c"), false, (None, false)),
        (Some("-"), false, (None, false)),
        (Some("uid-c"), true, (None, true)),
        (Some("-"), true, (None, true)),
        (Some("another"), true, (other("another"), false)),
    ];
    for (found, late, expected) in rows {
        assert_eq!(volume_read(found, late), expected, "{found:?}, late: {late}");
    }
}

/// The claim was deleted and made anew while its read was under way.
#[test]
fn s24_what_is_read_for_a_claim_proves_nothing_for_the_one_made_after_it() {
    let bound = bound_to_pv();
    let (objects, mut planner) = planner(vec![], vec![bound.clone()]);
    let now = Instant::now();
    let read = only(planner.plan(now));
    let mut anew = bound.clone();
    anew.metadata.uid = "anew".into();
    anew.metadata.resource_version = ResourceVersion(5);
    objects.apply(anew.clone());
    planner.changed(&ObjectRef::Claim(anew.key()), now);
    planner.answered(read.clone(), Err(CallError::NotFound("pv".into())), now, 0.0);
    for uid in [&bound.metadata.uid, &anew.metadata.uid] {
        assert_eq!(planner.state.proofs.volume(&anew.key(), uid, None), None, "{uid}");
    }
    assert_eq!(only(planner.plan(now)).call, read.call);
}

/// The volume was proven to be gone, came back, and is not shown any more: that has to be proven anew.
#[test]
fn s24_what_was_proven_of_a_volume_is_forgotten_when_it_is_seen_again() {
    let (objects, mut planner) = planner(vec![], vec![bound_to_pv()]);
    let now = Instant::now();
    let read = only(planner.plan(now));
    planner.answered(read.clone(), Err(CallError::NotFound("pv".into())), now, 0.0);
    let mut back = volume("pv");
    back.metadata.resource_version = ResourceVersion(5);
    objects.apply(back.clone());
    planner.changed(&ObjectRef::Volume(back.key()), now);
    back.metadata.resource_version = ResourceVersion(6);
    objects.delete(back.clone());
    planner.changed(&ObjectRef::Volume(back.key()), now);
    assert_eq!(only(planner.plan(now)).call, read.call);
}

/// The answer to the read is announced as any other change is.
#[test]
fn s24_the_read_that_proves_a_loss_does_not_take_its_own_proof_away() {
    let bound = bound_to_pv();
    for found in [None, Some("another")] {
        // Our table shows the volume, and is behind.
        let mut behind = volume("pv");
        behind.spec.claim_ref =
            Some(ClaimRef { namespace: "ns".into(), name: "c".into(), uid: "before".into() });
        let (objects, mut planner) = planner(vec![behind.clone()], vec![bound.clone()]);
        let changes = objects.subscribe();
        let now = Instant::now();
        let read =
            planner.plan(now).ops.into_iter().find(|op| op.subject == Target::Claim(bound.key())).unwrap();
        let result = match found {
            None => Err(CallError::NotFound("pv".into())),
            Some(uid) => {
                let mut volume = behind.clone();
                volume.metadata.resource_version = ResourceVersion(5);
                volume.spec.claim_ref.as_mut().unwrap().uid = uid.into();
                Ok(Answer::Volume(volume))
            }
        };
        planner.answered(read, result, now, 0.0);
        for object in changes.take() {
            planner.changed(&object, now);
        }
        let writes: Vec<_> = planner.plan(now).ops.iter().filter_map(|op| op.call.write_kind()).collect();
        assert_eq!(writes, [WriteKind::ClaimLost], "{found:?}");
    }
}

/// A volume whose claim is gone.
fn left() -> PersistentVolume {
    let mut left = volume("pv");
    left.spec.claim_ref = Some(ClaimRef { namespace: "ns".into(), name: "c".into(), uid: "uid-c".into() });
    left.status.phase = VolumePhase::Bound;
    left
}

fn is_proof(op: &Op) -> bool {
    matches!(&op.call, Call::Read { purpose: Purpose::ProveClaim(_), .. })
}

/// Etcd is restored unnoticed: the claim is back, and so is its volume as it was, which another
/// touches so often that it is newer than all we knew.
#[test]
fn s23_e11_a_claim_that_came_back_in_a_restore_is_asked_for_before_its_volume_is_released() {
    let (objects, mut planner) = planner(vec![left()], vec![]);
    let now = Instant::now();
    let read = only(planner.plan(now));
    planner.answered(read, Err(CallError::NotFound("c".into())), now, 0.0);
    let write = only(planner.plan(now));
    assert_eq!(write.call.write_kind(), Some(WriteKind::VolumeReleased));
    let mut released = left();
    released.metadata.resource_version = ResourceVersion(10);
    released.status.phase = VolumePhase::Released;
    planner.answered(write, Ok(Answer::Volume(released)), now, 0.0);
    assert_eq!(planner.plan(now).ops, []);

    let mut restored = left();
    restored.metadata.resource_version = ResourceVersion(20);
    objects.apply(restored.clone());
    planner.changed(&ObjectRef::Volume(restored.key()), now);
    // A phase that changed back is a reason to ask who did that, too.
    let asked = only(planner.plan(now));
    assert!(matches!(asked.call, Call::Read { purpose: Purpose::LearnOwner(_), .. }), "{asked:?}");
    planner.answered(asked, Ok(Answer::Owners(Vec::new())), now, 0.0);
    assert!(is_proof(&only(planner.plan(now))));
}

#[test]
fn s23_a_release_that_was_not_made_takes_a_proof_of_its_own_when_it_is_tried_again() {
    let (_, mut planner) = planner(vec![left()], vec![]);
    let mut now = Instant::now();
    for _ in 0..3 {
        let read = only(planner.plan(now));
        assert!(is_proof(&read));
        planner.answered(read, Err(CallError::NotFound("c".into())), now, 0.0);
        let write = only(planner.plan(now));
        assert_eq!(write.call.write_kind(), Some(WriteKind::VolumeReleased));
        let refused = CallError::Refused { code: 403, message: "no".into() };
        planner.answered(write, Err(refused), now, 0.0);
        now = planner.plan(now).wake_at.unwrap();
    }
}

#[test]
fn s24_a_loss_that_was_not_written_takes_a_proof_of_its_own_when_it_is_tried_again() {
    let (_, mut planner) = planner(vec![], vec![bound_to_pv()]);
    let mut now = Instant::now();
    for _ in 0..3 {
        let read = only(planner.plan(now));
        assert!(matches!(read.call, Call::Read { purpose: Purpose::ProveVolume, .. }), "{read:?}");
        planner.answered(read, Err(CallError::NotFound("pv".into())), now, 0.0);
        let write = only(planner.plan(now));
        assert_eq!(write.call.write_kind(), Some(WriteKind::ClaimLost));
        let refused = CallError::Refused { code: 403, message: "no".into() };
        planner.answered(write, Err(refused), now, 0.0);
        now = planner.plan(now).wake_at.unwrap();
    }
}

/// The volume is made again, which another writer sees first: our watch of volumes is behind.
#[test]
fn s24_a_loss_is_not_written_again_on_the_proof_of_the_first() {
    let mut bound = bound_to_pv();
    let (objects, mut planner) = planner(vec![], vec![bound.clone()]);
    let now = Instant::now();
    let read = only(planner.plan(now));
    planner.answered(read.clone(), Err(CallError::NotFound("pv".into())), now, 0.0);
    let write = only(planner.plan(now));
    assert_eq!(write.call.write_kind(), Some(WriteKind::ClaimLost));
    let lost = answer(&objects, &write, 2);
    planner.answered(write, Ok(lost), now, 0.0);
    assert_eq!(planner.plan(now).ops, []);
    let later = now + Duration::from_hours(2);
    (bound.status.phase, bound.metadata.resource_version) = (ClaimPhase::Bound, ResourceVersion(5));
    objects.apply(bound.clone());
    planner.changed(&ObjectRef::Claim(bound.key()), later);
    assert_eq!(only(planner.plan(later)).call, read.call);
}

/// What is held back after a restore says until when, on the page and to users; and goes on when that is over.
#[tokio::test(start_paused = true)]
async fn e11_nothing_is_released_in_the_grace_after_a_restore_and_its_end_is_shown() {
    let mut bound = volume("pv");
    bound.spec.claim_ref =
        Some(ClaimRef { namespace: "ns".into(), name: "c".into(), uid: claim("c").metadata.uid });
    bound.status.phase = VolumePhase::Bound;
    let (objects, mut planner) = planner(vec![bound], vec![]);
    let now = Instant::now();
    objects.restore_grace().begin(now);
    let plan = planner.plan(now);
    assert!(plan.ops.is_empty(), "{plan:?}");
    let told: Vec<&str> = plan.events.iter().map(|event| event.reason).collect();
    assert_eq!(told, ["RestoreGrace"]);
    let row = row(&mut planner, &Target::Volume(VolumeName::from("pv")));
    assert_eq!((&row["volume"], &row["reason"]), (&json!("pv"), &json!("RestoreGrace")));
    let time = |field: &str| row[field].as_str().unwrap().parse::<Timestamp>().unwrap();
    let lasts = time("until").as_second() - time("since").as_second();
    assert!((299..=301).contains(&lasts), "{row}");

    let end = now + RESTORE_GRACE;
    assert!(plan.wake_at <= Some(end));
    let proof = only(planner.plan(end));
    planner.answered(proof, Err(CallError::NotFound("c".into())), end, 0.0);
    assert_eq!(only(planner.plan(end)).call.write_kind(), Some(WriteKind::VolumeReleased));
}

/// The volume may be back, and a watch that was cut not have told of it.
#[tokio::test(start_paused = true)]
async fn s24_a_loss_that_was_proven_before_it_was_held_back_is_proven_anew() {
    let (objects, mut planner) = planner(vec![], vec![bound_to_pv()]);
    let now = Instant::now();
    let read = only(planner.plan(now));
    planner.answered(read.clone(), Err(CallError::NotFound("pv".into())), now, 0.0);
    objects.restore_grace().begin(now);
    assert_eq!(planner.plan(now).ops, []);
    assert_eq!(only(planner.plan(now + RESTORE_GRACE)).call, read.call);
}

/// Two that ask of each other, and forget what they were told as they are held back, would ask without end.
#[tokio::test(start_paused = true)]
async fn s24_s40_a_loss_that_is_held_back_is_proven_when_that_is_over() {
    let (objects, mut planner) = planner(vec![], vec![bound_to_pv()]);
    let now = Instant::now();
    objects.restore_grace().begin(now);
    assert_eq!(planner.plan(now).ops, []);
    let call = only(planner.plan(now + RESTORE_GRACE)).call;
    assert!(matches!(call, Call::Read { purpose: Purpose::ProveVolume, .. }), "{call:?}");
}
