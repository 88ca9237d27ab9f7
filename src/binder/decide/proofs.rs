//! Outcomes of live reads, and for how long a decision may rest on them (S23, S24, S28).

use std::collections::BTreeMap;

use apiserver::{
    ids::{ClaimKey, ClassName, ResourceVersion, Uid, VolumeName},
    kinds::{Narrow, PersistentVolume, PersistentVolumeClaim, VolumePhase},
    tables::Objects,
};

use crate::binder::matching::predicate::is_of_another;

/// What a live read said about the claim a volume refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimProof {
    /// Not found, or another UID: that UID is gone and never comes back.
    Gone,
    /// Found, naming another volume, which it never stops to do (S20), or none: then it takes none that is being deleted.
    BoundElsewhere,
}

impl ClaimProof {
    /// What a live read proves about the claim of this UID that a volume refers to; `None` if the claim is there and
    /// may be the volume's.
    pub fn of(found: Option<&PersistentVolumeClaim>, uid: &Uid, volume: &PersistentVolume) -> Option<Self> {
        let Some(claim) = found.filter(|claim| claim.metadata.uid == *uid) else { return Some(Self::Gone) };
        is_elsewhere(claim, volume).then_some(Self::BoundElsewhere)
    }
}

/// Whether a claim does not take a volume that refers to it: it names another, or none, and the volume is being deleted.
pub(super) fn is_elsewhere(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let named = &claim.spec.volume_name;
    if named.is_empty() { volume.metadata.is_terminating() } else { *named != volume.key() }
}

/// What a live read said about the volume a claim is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeProof {
    /// Not found.
    Gone,
    /// Found, referring to another claim's UID.
    OtherClaim(Uid),
}

impl VolumeProof {
    /// What a live read proves about the volume that a claim is bound to; `None` if the volume is there and
    /// the claim's, or refers to none.
    pub fn of(found: Option<&PersistentVolume>, claim: &PersistentVolumeClaim) -> Option<Self> {
        let Some(volume) = found else { return Some(Self::Gone) };
        let other = volume.spec.claim_ref.as_ref().filter(|reference| is_of_another(reference, claim))?;
        Some(Self::OtherClaim(other.uid.clone()))
    }
}

/// How our tables showed a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its revision, if it was there.
    revision: Option<ResourceVersion>,
    /// Up to which revision the watch had told of volumes.
    observed: ResourceVersion,
}

impl Seen {
    pub fn of(objects: &Objects, volume: &VolumeName) -> Self {
        let revision = objects.volumes.get(volume).map(|volume| volume.metadata.resource_version);
        Self { revision, observed: objects.volumes.observed() }
    }

    /// Whether nothing can have happened to the volume in between. One that was not there may have come and gone.
    fn is_still(self, now: Self) -> bool {
        self.revision == now.revision && (self.revision.is_some() || self.observed == now.observed)
    }
}

/// What is proven about a claim, for the volume that refers to it.
#[derive(Debug)]
struct OfClaim {
    volume: Uid,
    revision: ResourceVersion,
    claim: Uid,
    proof: ClaimProof,
}

/// Outcomes of live reads, each valid only for the objects it was made for.
#[derive(Debug, Default)]
pub struct Proofs {
    claims: BTreeMap<VolumeName, OfClaim>,
    volumes: BTreeMap<ClaimKey, (Uid, Seen, VolumeProof)>,
    no_classes: BTreeMap<ClassName, ResourceVersion>,
}

impl Proofs {
    /// Notes what became of the claim with this UID that the volume, as it is, refers to. Kept as long as the
    /// volume: a released volume whose claim's name is used again costs one read, not one per look.
    pub fn note_claim(&mut self, volume: &PersistentVolume, claim: &Uid, proof: ClaimProof) {
        let (meta, claim) = (&volume.metadata, claim.clone());
        let of_claim = OfClaim { volume: meta.uid.clone(), revision: meta.resource_version, claim, proof };
        self.claims.insert(volume.key(), of_claim);
    }

    /// Notes what became of the volume the claim is bound to, of which our table shows this.
    pub fn note_volume(&mut self, claim: (&ClaimKey, &Uid), seen: Seen, proof: VolumeProof) {
        self.volumes.insert(claim.0.clone(), (claim.1.clone(), seen, proof));
    }

    /// Notes that there was no such class when the newest claim we knew was at this revision.
    pub fn note_no_class(&mut self, class: &ClassName, newest_claim: ResourceVersion) {
        self.no_classes.insert(class.clone(), newest_claim);
    }

    /// Whether the class was absent when the claim already had this revision: a class that appeared later did not delay
    /// its bind.
    pub fn is_without_class(&self, class: &ClassName, claim: ResourceVersion) -> bool {
        self.no_classes.get(class).is_some_and(|newest| claim <= *newest)
    }

    /// Keeps the absence only of classes that claims ask for.
    pub fn keep_classes(&mut self, is_asked_for: impl Fn(&ClassName) -> bool) {
        self.no_classes.retain(|class, _| is_asked_for(class));
    }

    /// Drops what is known about the absence of a class.
    pub fn forget_class(&mut self, class: &ClassName) {
        self.no_classes.remove(class);
    }

    /// Drops what is known for a volume that is gone.
    pub fn forget_volume(&mut self, name: &VolumeName) {
        self.claims.remove(name);
    }

    /// Drops what is known for a claim: the proof has been used, or the volume has changed.
    pub fn forget_claim(&mut self, key: &ClaimKey) {
        self.volumes.remove(key);
    }

    /// Drops what is known for a claim, unless the volume is as it was then.
    pub fn forget_claim_unless(&mut self, key: &ClaimKey, now: Seen) {
        if self.volumes.get(key).is_some_and(|(_, then, _)| !then.is_still(now)) {
            self.forget_claim(key);
        }
    }

    /// What is proven about the claim a volume refers to. That a volume may be released is proven for its
    /// revision alone: a claim that is gone does come back, with all that it had, when etcd is restored (E11).
    pub fn claim(&self, volume: &PersistentVolume, claim: &Uid) -> Option<ClaimProof> {
        let of_claim = self.claims.get(&volume.key())?;
        let is_released = matches!(volume.status.phase, VolumePhase::Released | VolumePhase::Failed);
        let is_still = is_released || of_claim.revision == volume.metadata.resource_version;
        let is_of_both = of_claim.volume == volume.metadata.uid && of_claim.claim == *claim;
        (is_of_both && is_still).then_some(of_claim.proof)
    }

    /// What is proven about the volume a claim is bound to, as long as our table still shows that
    /// volume as it did then.
    pub fn volume(&self, key: &ClaimKey, claim: &Uid, seen: Option<ResourceVersion>) -> Option<&VolumeProof> {
        let (for_claim, then, proof) = self.volumes.get(key)?;
        (for_claim == claim && then.revision == seen).then_some(proof)
    }
}

#[cfg(test)]
mod tests {
    use apiserver::kinds::ClaimRef;

    use super::*;
    #[test]
    fn s23_what_a_live_read_proves() {
        let (gone, elsewhere) = (Some(ClaimProof::Gone), Some(ClaimProof::BoundElsewhere));
        // the claim's UID and the volume that it names, if it is there; of a volume that stays, and one that goes
        let claims = [
            (None, gone, gone),
            (Some(("2", "v")), gone, gone),
            (Some(("1", "")), None, elsewhere),
            (Some(("1", "v")), None, None),
            (Some(("1", "w")), elsewhere, elsewhere),
        ];
        for (found, stays, goes) in claims {
            let found = found.map(|(uid, volume)| {
                let mut claim = PersistentVolumeClaim::default();
                (claim.metadata.uid, claim.spec.volume_name) = (uid.into(), volume.into());
                claim
            });
            let mut volume = PersistentVolume::default();
            volume.metadata.name = "v".into();
            assert_eq!(ClaimProof::of(found.as_ref(), &"1".into(), &volume), stays, "{found:?}");
            volume.metadata.deletion_timestamp = Some(Box::default());
            assert_eq!(ClaimProof::of(found.as_ref(), &"1".into(), &volume), goes, "{found:?}");
        }
        let other = VolumeProof::OtherClaim("2".into());
        let mut claim = PersistentVolumeClaim::default();
        (claim.metadata.name, claim.metadata.uid) = ("c".into(), "1".into());
        // name and UID of the claim that the volume refers to, if it is there
        let volumes = [
            (None, Some(VolumeProof::Gone)),
            (Some(None), None),
            (Some(Some(("c", "1"))), None),
            (Some(Some(("c", ""))), None),
            (Some(Some(("c", "2"))), Some(other)),
            (Some(Some(("d", ""))), Some(VolumeProof::OtherClaim("".into()))),
        ];
        for (found, expected) in volumes {
            let found = found.map(|reference| {
                let mut volume = PersistentVolume::default();
                volume.spec.claim_ref = reference.map(|(name, uid)| ClaimRef {
                    name: name.into(),
                    uid: uid.into(),
                    ..ClaimRef::default()
                });
                volume
            });
            assert_eq!(VolumeProof::of(found.as_ref(), &claim), expected, "{found:?}");
        }
    }

    #[test]
    fn s23_a_proof_is_for_the_volume_and_the_claim_it_was_made_for_as_long_as_the_volume_is_there() {
        let volume = |name: &str, uid: &str, revision, phase| {
            let mut volume = PersistentVolume::default();
            volume.metadata.name = name.into();
            volume.metadata.uid = uid.into();
            volume.metadata.resource_version = ResourceVersion(revision);
            volume.status.phase = phase;
            volume
        };
        let (bound, released) = (VolumePhase::Bound, VolumePhase::Released);
        let [claim, other] = ["claim", "other"].map(Uid::from);
        let mut proofs = Proofs::default();
        let pv = volume("pv", "volume", 5, bound);
        proofs.note_claim(&pv, &claim, ClaimProof::Gone);
        let rows = [
            (pv.clone(), &claim, true),
            (volume("pv", "volume", 6, released), &claim, true),
            (volume("pv", "volume", 6, VolumePhase::Failed), &claim, true),
            // In each case the claim may have come back in a restore.
            (volume("pv", "volume", 6, bound), &claim, false),
            (volume("pv", "other", 5, bound), &claim, false),
            (pv.clone(), &other, false),
            (volume("other", "volume", 5, bound), &claim, false),
        ];
        for (volume, claim, holds) in rows {
            assert_eq!(proofs.claim(&volume, claim).is_some(), holds, "{volume:?} {claim}");
        }
        proofs.forget_volume(&pv.key());
        assert_eq!(proofs.claim(&pv, &claim), None);
    }

    #[test]
    fn s24_a_proof_is_for_the_claim_and_the_state_of_the_volume_it_was_made_for_and_used_once() {
        let key = ClaimKey::new("ns", "c");
        let [claim, other] = ["claim", "other"].map(Uid::from);
        let seen = [None, Some(ResourceVersion(5)), Some(ResourceVersion(6))];
        for then in seen {
            let mut proofs = Proofs::default();
            let seen_then = Seen { revision: then, observed: ResourceVersion(7) };
            proofs.note_volume((&key, &claim), seen_then, VolumeProof::Gone);
            for now in seen {
                let holds = proofs.volume(&key, &claim, now).is_some();
                assert_eq!(holds, now == then, "made at {then:?}, asked at {now:?}");
                assert_eq!(proofs.volume(&key, &other, now), None);
            }
            proofs.forget_claim_unless(&key, seen_then);
            assert!(proofs.volume(&key, &claim, then).is_some());
            let later = Seen { observed: ResourceVersion(8), ..seen_then };
            proofs.forget_claim_unless(&key, later);
            assert_eq!(
                proofs.volume(&key, &claim, then).is_some(),
                then.is_some(),
                "it may have come and gone"
            );
            proofs.forget_claim_unless(&key, Seen { revision: Some(ResourceVersion(9)), ..seen_then });
            assert_eq!(proofs.volume(&key, &claim, then), None);
        }
    }
}
