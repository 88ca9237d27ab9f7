//! What a decision may look at, and the proofs it may rest on.
//!
//! In: the shared tables, the binder's indexes, the writes under way and the outcomes of live
//! reads. Nothing here can reach the API server, a clock or a log.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{doubt::Doubts, index::VolumeIndex, recycle::Recyclers, runs::Runs, waiting::PodIndex};
use crate::{
    kube_api::{
        ids::{ClaimKey, ClassName, ResourceVersion, Uid, VolumeName},
        kinds::{PersistentVolume, StorageClass},
    },
    state::Objects,
};

/// Settings of the binder (pv-binder §12).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BinderOptions {
    /// Whether provisioners are asked for volumes.
    pub enable_dynamic_provisioning: bool,
    /// Whether volumes of `kubernetes.io/host-path` are made and deleted.
    pub enable_hostpath_provisioner: bool,
    /// How volumes are recycled, if they are.
    pub recyclers: Option<Arc<Recyclers>>,
    /// How often everything unsettled is looked at although nothing happened.
    pub sync_period: Duration,
}

impl Default for BinderOptions {
    fn default() -> Self {
        Self {
            enable_dynamic_provisioning: true,
            enable_hostpath_provisioner: false,
            recyclers: None,
            sync_period: Duration::from_mins(5),
        }
    }
}

/// The cluster as a decision sees it.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// Current objects.
    pub objects: &'a Objects,
    /// Volumes by what claims look for.
    pub volumes: &'a VolumeIndex,
    /// Unscheduled pods by claim.
    pub pods: &'a PodIndex,
    /// The class that claims without one get.
    pub default_class: Option<&'a ClassName>,
    /// Outcomes of live reads.
    pub proofs: &'a Proofs,
    /// Whether a write to the volume is under way.
    pub busy: &'a dyn Fn(&VolumeName) -> bool,
    /// How far work of several steps has got.
    pub runs: &'a Runs,
    /// Reservations of which it is not known whether they were made.
    pub doubts: &'a Doubts,
    /// Settings.
    pub options: &'a BinderOptions,
}

impl View<'_> {
    /// A volume as last seen.
    #[must_use]
    pub fn volume(&self, name: &VolumeName) -> Option<Arc<PersistentVolume>> {
        self.objects.volumes.get(name)
    }

    /// A class as last seen; no class for the empty name.
    #[must_use]
    pub fn class(&self, name: &str) -> Option<Arc<StorageClass>> {
        if name.is_empty() { None } else { self.objects.classes.get(&ClassName::from(name)) }
    }
}

/// What a live read said about the claim a volume refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimProof {
    /// Not found, or another UID: that UID is gone and never comes back.
    Gone,
    /// Found, naming another volume, which it never stops to do (S20).
    BoundElsewhere,
}

/// What a live read said about the volume a claim is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeProof {
    /// Not found.
    Gone,
    /// Found, referring to another claim's UID (or none).
    OtherClaim(Uid),
}

/// Outcomes of live reads, each valid only for the objects it was made for.
#[derive(Debug, Default)]
pub struct Proofs {
    claims: BTreeMap<VolumeName, (Uid, Uid, ClaimProof)>,
    volumes: BTreeMap<ClaimKey, (Uid, Option<ResourceVersion>, VolumeProof)>,
    no_classes: BTreeMap<ClassName, ResourceVersion>,
}

impl Proofs {
    /// Notes what became of the claim with this UID that the volume refers to. Kept as long as the
    /// volume: a released volume whose claim's name is used again costs one read, not one per look.
    pub fn note_claim(&mut self, volume: (&VolumeName, &Uid), claim: &Uid, proof: ClaimProof) {
        self.claims.insert(volume.0.clone(), (volume.1.clone(), claim.clone(), proof));
    }

    /// Notes what became of the volume the claim is bound to. `seen` is the revision of that volume
    /// in our table at that time, if any.
    pub fn note_volume(
        &mut self,
        claim: (&ClaimKey, &Uid),
        seen: Option<ResourceVersion>,
        proof: VolumeProof,
    ) {
        self.volumes.insert(claim.0.clone(), (claim.1.clone(), seen, proof));
    }

    /// Notes that there was no such class when the newest claim we knew was at this revision.
    pub fn note_no_class(&mut self, class: &ClassName, newest_claim: ResourceVersion) {
        self.no_classes.insert(class.clone(), newest_claim);
    }

    /// Whether there was no such class after the claim was as we know it: one that appeared later did not
    /// delay its bind.
    #[must_use]
    pub fn is_without_class(&self, class: &ClassName, claim: ResourceVersion) -> bool {
        self.no_classes.get(class).is_some_and(|newest| claim <= *newest)
    }

    /// Keeps the absence only of classes that somebody asks for.
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

    /// What is proven about the claim a volume refers to.
    #[must_use]
    pub fn claim(&self, name: &VolumeName, volume: &Uid, claim: &Uid) -> Option<ClaimProof> {
        let (for_volume, for_claim, proof) = self.claims.get(name)?;
        (for_volume == volume && for_claim == claim).then_some(*proof)
    }

    /// What is proven about the volume a claim is bound to, as long as our table still shows that
    /// volume as it did then.
    #[must_use]
    pub fn volume(&self, key: &ClaimKey, claim: &Uid, seen: Option<ResourceVersion>) -> Option<&VolumeProof> {
        let (for_claim, then, proof) = self.volumes.get(key)?;
        (for_claim == claim && *then == seen).then_some(proof)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s23_a_proof_is_for_the_volume_and_the_claim_it_was_made_for_as_long_as_the_volume_is_there() {
        let name = VolumeName::from("pv");
        let [volume, claim, other] = ["volume", "claim", "other"].map(Uid::from);
        let mut proofs = Proofs::default();
        proofs.note_claim((&name, &volume), &claim, ClaimProof::Gone);
        let rows = [
            (&name, &volume, &claim, Some(ClaimProof::Gone)),
            (&name, &other, &claim, None),
            (&name, &volume, &other, None),
            (&VolumeName::from("other"), &volume, &claim, None),
        ];
        for (name, volume, claim, proof) in rows {
            assert_eq!(proofs.claim(name, volume, claim), proof, "{name} {volume} {claim}");
        }
        proofs.forget_volume(&name);
        assert_eq!(proofs.claim(&name, &volume, &claim), None);
    }

    #[test]
    fn s24_a_proof_is_for_the_claim_and_the_state_of_the_volume_it_was_made_for_and_used_once() {
        let key = ClaimKey::new("ns", "c");
        let [claim, other] = ["claim", "other"].map(Uid::from);
        let seen = [None, Some(ResourceVersion(5)), Some(ResourceVersion(6))];
        for then in seen {
            let mut proofs = Proofs::default();
            proofs.note_volume((&key, &claim), then, VolumeProof::Gone);
            for now in seen {
                let holds = proofs.volume(&key, &claim, now).is_some();
                assert_eq!(holds, now == then, "made at {then:?}, asked at {now:?}");
                assert_eq!(proofs.volume(&key, &other, now), None);
            }
            proofs.forget_claim(&key);
            assert_eq!(proofs.volume(&key, &claim, then), None);
        }
    }
}
