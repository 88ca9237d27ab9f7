//! What cannot be read, and what waits for it (S42).

use apiserver::{
    call::CallError,
    ids::{ClaimKey, ResourceVersion, Uid},
    kinds::{ClaimRef, Narrow, ObjectRef, PersistentVolumeClaim, ReclaimPolicy, StorageClass, VolumePhase},
};
use serde_json::json;
use tokio::time::Instant;

use super::{claim, decode, only, planner, volume};
use crate::binder::{
    annotations::PROVISIONED_BY,
    calls::{Answer, Target, WriteKind},
    reasons::VolumeReason,
};

fn key(name: &str) -> ClaimKey {
    ClaimKey::new("ns", name)
}

/// It may have the volume that refers to none: neither is that free, nor does another get it that names it.
#[test]
fn s42_s45_a_claim_that_was_never_read_keeps_the_volume_that_may_be_its_own() {
    let (mut lost, mut named) = (volume("pv"), claim("named"));
    lost.status.phase = VolumePhase::Released;
    named.spec.volume_name = lost.key();
    let now = Instant::now();
    let revision = Some(ResourceVersion(1));
    let (objects, mut planner) = planner(vec![lost.clone()], Vec::new());
    let unreadable = || {
        objects.note_unreadable::<PersistentVolumeClaim>(
            None,
            &key("odd"),
            (None, revision, apiserver::wire::AttachmentNames::default()),
            "bad".to_owned(),
        );
        ObjectRef::Claim(key("odd"))
    };
    planner.changed(&unreadable(), now);
    objects.apply(named.clone());
    planner.changed(&ObjectRef::Claim(named.key()), now);
    assert_eq!(planner.plan(now).ops, []);
    assert_eq!(planner.waiting(), [("ObjectUnreadable", 1)].into());
    assert_eq!(planner.volume_reason(&lost.key()).map(VolumeReason::code), Some("ObjectUnreadable"));
    // It is put right, and has another volume.
    let mut odd = claim("odd");
    odd.metadata.resource_version = ResourceVersion(3);
    odd.spec.volume_name = "other".into();
    objects.apply(odd);
    planner.changed(&ObjectRef::Claim(key("odd")), now);
    let op = only(planner.plan(now));
    assert_eq!(
        (op.call.write_kind(), op.subject),
        (Some(WriteKind::ReserveVolume), Target::Claim(key("named")))
    );
}

/// Nor is one given up that refers to another claim, be that gone, or bound elsewhere. What is kept anyway (Retain) is
/// released all the same, unless `claimRef` has the UID of the claim that was never read.
#[test]
fn s42_s45_a_claim_that_was_never_read_keeps_the_volume_that_is_pointed_at_another() {
    use ReclaimPolicy::{Delete, Retain};
    let mut elsewhere = claim("c");
    elsewhere.spec.volume_name = "other".into();
    // the policy, the UID in claimRef, the claim of its name, the UID of the one that was never read, what is written
    let rows = [
        (Delete, "uid-c", Some(&elsewhere), None, None),
        (Delete, "uid-c", None, None, None),
        (Delete, "uid-c", None, Some("odd"), None),
        (Delete, "", Some(&elsewhere), Some("odd"), None),
        (Retain, "uid-c", Some(&elsewhere), Some("odd"), None),
        (Retain, "uid-c", None, None, None),
        (Retain, "uid-c", None, Some("uid-c"), None),
        (Retain, "uid-c", None, Some("odd"), Some(WriteKind::VolumeReleased)),
    ];
    for (policy, uid, other, odd, written) in rows {
        let row = format!("{policy:?} {uid:?} {odd:?}");
        let (now, mut bound) = (Instant::now(), volume("pv"));
        bound.status.phase = VolumePhase::Bound;
        bound.spec.reclaim_policy = policy;
        bound.metadata.annotations.insert(PROVISIONED_BY.to_owned(), "d");
        bound.spec.claim_ref = Some(ClaimRef { namespace: "ns".into(), name: "c".into(), uid: uid.into() });
        let (objects, mut planner) = planner(vec![bound], other.cloned().into_iter().collect());
        let uid = odd.map(Uid::from);
        objects.note_unreadable::<PersistentVolumeClaim>(
            None,
            &key("odd"),
            (uid, None, apiserver::wire::AttachmentNames::default()),
            "bad".to_owned(),
        );
        planner.changed(&ObjectRef::Claim(key("odd")), now);
        let mut writes = Vec::new();
        for _ in 0..3 {
            for op in planner.plan(now).ops.into_iter().filter(|op| op.subject == Target::Volume("pv".into()))
            {
                let found = other.cloned().map(Answer::Claim).ok_or(CallError::NotFound("c".into()));
                match op.call.write_kind() {
                    Some(write) => writes.push(write),
                    None => planner.answered(op, found, now, 0.0),
                }
            }
        }
        assert_eq!(writes, Vec::from_iter(written), "{row}");
        let waits = planner.volume_reason(&"pv".into()).map(VolumeReason::code) == Some("ObjectUnreadable");
        assert_eq!(waits, written.is_none(), "{row}");
    }
}

#[test]
fn s42_a_class_that_cannot_be_read_blocks_the_claims_alone_that_have_yet_to_find_a_volume() {
    let (mut volume, mut bound, mut open) = (volume("v"), claim("c"), claim("o"));
    (bound.spec.storage_class_name, open.spec.storage_class_name) = (Some("odd".into()), Some("odd".into()));
    volume.spec.storage_class_name = Some("odd".into());
    let uid = bound.metadata.uid.clone();
    volume.spec.claim_ref = Some(ClaimRef { namespace: "ns".into(), name: "c".into(), uid });
    bound.spec.volume_name = volume.key();
    let (objects, mut planner) = planner(vec![volume], vec![bound, open]);
    let (now, revision) = (Instant::now(), Some(ResourceVersion(1)));
    objects.note_unreadable::<StorageClass>(
        None,
        &"odd".into(),
        (None, revision, apiserver::wire::AttachmentNames::default()),
        "bad".to_owned(),
    );
    assert_eq!(only(planner.plan(now)).call.write_kind(), Some(WriteKind::VolumeBound));
    assert_eq!(planner.waiting().get("ObjectUnreadable"), Some(&1));
    objects.apply(decode::<StorageClass>(&json!({
        "metadata": {"name": "odd", "resourceVersion": "2"},
        "provisioner": "d", "volumeBindingMode": "Immediate",
    })));
    planner.changed(&ObjectRef::Class("odd".into()), now);
    planner.plan(now);
    assert_eq!(planner.waiting().get("ObjectUnreadable"), None);
}
