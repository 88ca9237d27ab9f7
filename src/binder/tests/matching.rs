//! The rules of matching and the two indexes, row by row, where a case that goes through a whole decision
//! would not show the difference.

use apiserver::kinds::ReclaimPolicy;

use super::*;
use crate::binder::{
    decide::{proofs::ClaimProof, volume::sync_volume},
    matching::{
        choose_claim::Rank,
        predicate::{Comparisons, held_by, mismatch_for_search, refers_to},
    },
};

fn reference(namespace: &str, name: &str, uid: &str) -> ClaimRef {
    ClaimRef { namespace: namespace.into(), name: name.into(), uid: uid.into() }
}

#[test]
fn a_volume_is_a_claims_by_namespace_name_and_uid() {
    let cases = [
        (("ns", "c", "uid-c"), true, true),
        (("ns", "c", ""), true, false),
        (("ns", "c", "uid-old"), false, false),
        (("ns", "d", "uid-c"), false, false),
        (("ns", "d", ""), false, false),
        (("ns", "d", "uid-d"), false, false),
        (("other", "c", "uid-c"), false, false),
        (("other", "c", ""), false, false),
    ];
    for (names, refers, held) in cases {
        let mut volume = volume("pv");
        let reference = reference(names.0, names.1, names.2);
        assert_eq!(refers_to(&reference, &claim("c")), refers, "{names:?}");
        volume.spec.claim_ref = Some(reference);
        assert_eq!(held_by(&volume, &claim("c")), held, "{names:?}");
    }
    assert!(!held_by(&volume("pv"), &claim("c")));
}

/// Selectors narrow the search down by each label they insist on.
#[test]
fn labels_that_a_selector_insists_on() {
    let mut claim = claim("c");
    claim.spec.selector = Some(Box::new(decode_selector(&json!({
        "matchLabels": {"kind": "disk"},
        "matchExpressions": [
            {"key": "zone", "operator": "In", "values": ["a"]},
            {"key": "rack", "operator": "In", "values": ["1", "2"]},
            {"key": "tier", "operator": "NotIn", "values": ["slow"]},
            {"key": "fast", "operator": "Exists"},
        ],
    }))));
    let labels: Vec<_> = Requirements::of(&claim).unwrap().labels().collect();
    assert_eq!(labels, [("kind".into(), "disk".into()), ("zone".into(), "a".into())]);
}

fn decode_selector(selector: &Value) -> LabelSelector {
    serde_json::from_str(&selector.to_string()).unwrap()
}

#[test]
fn s42_what_cannot_be_read_in_a_claim_is_named() {
    let of = |change: &dyn Fn(&mut PersistentVolumeClaim)| {
        let mut claim = claim("c");
        change(&mut claim);
        Requirements::of(&claim).unwrap_err().to_string()
    };
    let size = of(&|claim| {
        claim.spec.resources.requests.insert("storage".to_owned(), "lots".to_owned());
    });
    assert!(size.starts_with("requested storage: ") && size.contains("lots"), "{size}");
    let mode = of(&|claim| claim.spec.access_modes = ["Teleport"].into());
    assert_eq!(mode, "\"Teleport\" is not a known access mode");
    let expressions = json!({"matchExpressions": [{"key": "zone", "operator": "Near", "values": ["a"]}]});
    let operator = of(&|claim| claim.spec.selector = Some(Box::new(decode_selector(&expressions))));
    assert_eq!(operator, "\"Near\" is not a valid label selector operator");
}

type Change<'a> = &'a dyn Fn(&mut PersistentVolume);

#[test]
fn only_what_nobody_has_and_nobody_deletes_is_free() {
    let rows: [(&str, Change<'_>); 4] = [
        ("reserved", &|volume| volume.spec.claim_ref = Some(reference("ns", "c", ""))),
        ("not available", &|volume| volume.status.phase = VolumePhase::Released),
        ("going", &|volume| {
            volume.metadata.deletion_timestamp = "2026-01-01T00:00:00Z".parse().ok().map(Box::new);
        }),
        ("of unreadable size", &|volume| {
            volume.spec.capacity.insert("storage".to_owned(), "lots".to_owned());
        }),
    ];
    let mut index = VolumeIndex::default();
    let (free, name) = (volume("pv"), volume("pv").key());
    for (row, change) in rows {
        assert_eq!(index.update(&name, Some(&free)), None);
        assert!(index.is_free(&name), "before it is {row}");
        let mut other = free.clone();
        change(&mut other);
        index.update(&name, Some(&other));
        assert!(!index.is_free(&name), "{row}");
        let claim = claim("other");
        let requirements = Requirements::of(&claim).unwrap();
        assert!(mismatch_for_search(&other, &requirements).is_some(), "{row}");
        let current = |_: &VolumeName| panic!("a volume that is {row} is looked at");
        assert_eq!(
            index.search(&requirements, false, &current, &|_| false, &Comparisons::default()),
            Search::Nothing,
            "{row}"
        );
        index.update(&name, Some(&free));
    }
    index.update(&name, None);
    assert!(!index.is_free(&name));
}

#[test]
fn a_volume_stands_under_the_claim_it_refers_to_and_no_other() {
    let keys = ["a", "b"].map(|name| ClaimKey::new("ns", name));
    let (mut index, mut volume) = (VolumeIndex::default(), volume("pv"));
    let name = volume.key();
    let referring = |index: &VolumeIndex| keys.clone().map(|key| index.referring_to(&key).count());
    volume.spec.claim_ref = Some(reference("ns", "a", ""));
    assert_eq!((index.update(&name, Some(&volume)), referring(&index)), (None, [1, 0]));
    volume.spec.claim_ref = Some(reference("ns", "a", "uid-a"));
    volume.status.phase = VolumePhase::Bound;
    assert_eq!((index.update(&name, Some(&volume)), referring(&index)), (None, [1, 0]));
    volume.spec.claim_ref = Some(reference("ns", "b", ""));
    assert_eq!((index.update(&name, Some(&volume)), referring(&index)), (Some(keys[0].clone()), [0, 1]));
    assert_eq!((index.update(&name, None), referring(&index)), (Some(keys[1].clone()), [0, 0]));
}

#[test]
fn a_class_wakes_only_claims_that_have_and_name_no_volume() {
    let mut index = ClaimIndex::default();
    let open = claim("open");
    let mut named = claim("named");
    named.spec.volume_name = VolumeName::from("pv");
    let mut lost = claim("lost");
    lost.metadata.annotations.insert("pv.kubernetes.io/bind-completed".to_owned(), "yes".to_owned());
    for claim in [&open, &named, &lost] {
        index.update(&claim.key(), Some(claim));
    }
    assert_eq!(index.open_in_class("").collect::<Vec<_>>(), [&open.key()]);
    assert_eq!(index.naming(&VolumeName::from("pv")).collect::<Vec<_>>(), [&named.key()]);
    for claim in [&open, &named, &lost] {
        index.update(&claim.key(), None);
    }
    assert_eq!(index.open_in_class("").count() + index.naming(&VolumeName::from("pv")).count(), 0);
}

#[test]
fn a_volume_is_offered_to_who_waits_has_not_declined_and_still_fits() {
    let mut index = ClaimIndex::default();
    let (old, large) = (claim("old"), {
        let mut claim = claim("large");
        claim.spec.resources.requests.insert("storage".to_owned(), "2Gi".to_owned());
        claim
    });
    for claim in [&old, &large] {
        index.wait(&Requirements::of(claim).unwrap(), "".into());
    }
    let candidate = |index: &ClaimIndex, claim: Option<&PersistentVolumeClaim>, below: Option<&Rank>| {
        let current = |_: &ClaimKey| claim.cloned().map(Arc::new);
        index.candidate(&volume("pv"), &current, below).cloned()
    };
    let first = candidate(&index, Some(&old), None).unwrap();
    assert_eq!(first.1.0.1, old.key());
    assert_eq!(candidate(&index, Some(&old), Some(&first)), None, "it has declined");
    assert_eq!(candidate(&index, Some(&large), None), None, "it asks for more by now");
    assert_eq!(candidate(&index, None, None), None, "it is gone");
    let mut offered = volume("pv");
    offered.spec.access_modes = ["ReadOnlyMany"].into();
    let current = |_: &ClaimKey| Some(Arc::new(old.clone()));
    assert_eq!(index.candidate(&offered, &current, None), None, "a mode is missing");
    index.forget(&old.key());
    assert_eq!(candidate(&index, Some(&old), None), None, "it waits no more");
}

/// A claim that is bound elsewhere is not gone: more is done to the volume of one that is.
#[test]
fn s23_the_proof_has_to_be_of_what_is_decided_on() {
    let mut volume = volume("pv");
    volume.spec.claim_ref = Some(reference("ns", "c", "uid-c"));
    volume.status.phase = VolumePhase::Bound;
    let (_, mut planner) = planner(vec![volume.clone()], vec![]);
    let step = |planner: &Planner| sync_volume(&volume, &planner.state).step;
    let proof = Call::Read {
        target: ObjectRef::Claim(ClaimKey::new("ns", "c")),
        purpose: Purpose::ProveClaim("uid-c".into()),
    };
    assert_eq!(step(&planner), Some(proof.clone()));
    planner.state.proofs.note_claim(&volume, &"uid-c".into(), ClaimProof::BoundElsewhere);
    assert_eq!(step(&planner), Some(proof));
    planner.state.proofs.note_claim(&volume, &"uid-c".into(), ClaimProof::Gone);
    assert_eq!(step(&planner).and_then(|call| call.write_kind()), Some(WriteKind::VolumeReleased));

    // What is gone is not bound here either.
    volume.metadata.annotations.insert("pv.kubernetes.io/provisioned-by".to_owned(), "d".to_owned());
    volume.spec.reclaim_policy = ReclaimPolicy::Delete;
    let mut claim = claim("c");
    claim.spec.volume_name = VolumeName::from("elsewhere");
    for proof in [ClaimProof::BoundElsewhere, ClaimProof::Gone] {
        let (_, mut planner) = super::planner(vec![volume.clone()], vec![claim.clone()]);
        let step = |planner: &Planner| sync_volume(&volume, &planner.state).step;
        assert_eq!(step(&planner).and_then(|call| call.write_kind()), None);
        planner.state.proofs.note_claim(&volume, &"uid-c".into(), proof);
        assert_eq!(step(&planner).and_then(|call| call.write_kind()), Some(WriteKind::VolumeReleased));
    }
}
