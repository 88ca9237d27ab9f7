//! Writes of a bind that were sent, and of which it is not known whether they will be made.
//!
//! In: reservations and namings whose outcome is unknown, and objects as they are. Out: the volume that a claim may
//! yet get that way. The claim asks for that volume again, or for none: a read that shows nothing proves nothing as long
//! as the request may still be on its way: it would then be made at the revision it names, and the claim, which
//! has meanwhile taken another volume, would hold two (S19). When the doubt ends, [`crate::controller::in_doubt`] says.

use std::{collections::BTreeMap, time::Duration};

use apiserver::{
    ids::{ClaimKey, ResourceVersion, Uid, VolumeName},
    kinds::{Narrow, ObjectRef, PersistentVolumeClaim},
    tables::{Objects, Relation},
};
use tokio::time::Instant;

use super::calls::revision;
use crate::controller::in_doubt::{InDoubt, SETTLE_TIME};

#[derive(Clone, Debug)]
struct Doubt {
    claim: Uid,
    volume: VolumeName,
    /// The object of the write: the volume, or the claim.
    object: ObjectRef,
    write: InDoubt,
}

impl Doubt {
    /// Whether the object is past the write, or gone.
    fn is_settled(&self, objects: &Objects) -> bool {
        revision(&self.object, objects).is_none_or(|revision| self.write.is_settled_at(revision))
    }
}

/// What each claim is in doubt about: one volume at most, as it asks for no other meanwhile.
#[derive(Debug)]
pub struct Doubts {
    claims: BTreeMap<ClaimKey, Doubt>,
    by_volume: Relation<VolumeName, ClaimKey>,
    settle_time: Duration,
}

impl Default for Doubts {
    fn default() -> Self {
        Self::lasting(SETTLE_TIME)
    }
}

impl Doubts {
    /// No doubts yet, about requests that may still be carried out for so long when they are not answered.
    pub fn lasting(settle_time: Duration) -> Self {
        Self { claims: BTreeMap::new(), by_volume: Relation::default(), settle_time }
    }

    /// A request that gives the volume to a claim was not answered: a write to that object, at this revision.
    pub fn note(
        &mut self,
        claim: &PersistentVolumeClaim,
        volume: &VolumeName,
        (object, revision): (&ObjectRef, ResourceVersion),
        now: Instant,
    ) {
        self.forget(&claim.key());
        let write = InDoubt::since(now, self.settle_time, revision);
        self.by_volume.insert(volume.clone(), claim.key());
        let (uid, object) = (claim.metadata.uid.clone(), object.clone());
        self.claims.insert(claim.key(), Doubt { claim: uid, volume: volume.clone(), object, write });
    }

    /// When the request about a claim can no longer be carried out: it is to be looked at then.
    pub fn until(&self, claim: &ClaimKey) -> Option<Instant> {
        self.claims.get(claim).map(|doubt| doubt.write.until)
    }

    /// The claim is gone, or in doubt no more.
    pub fn forget(&mut self, claim: &ClaimKey) {
        if let Some(doubt) = self.claims.remove(claim) {
            self.by_volume.remove(&doubt.volume, claim);
        }
    }

    /// The claims that are or were in doubt about a volume.
    pub fn about(&self, volume: &VolumeName) -> impl Iterator<Item = &ClaimKey> {
        self.by_volume.of(volume.clone())
    }

    /// Ends the doubt about a claim if its request can no longer be carried out. Returns the object that is still to be
    /// read: our tables may be older.
    pub fn take_over(&mut self, claim: &ClaimKey, objects: &Objects, now: Instant) -> Option<ObjectRef> {
        let doubt = self.claims.get(claim).filter(|doubt| doubt.write.until <= now)?.clone();
        self.forget(claim);
        (!doubt.is_settled(objects)).then_some(doubt.object)
    }

    /// The volume that may become a claim's.
    pub fn of(&self, claim: &PersistentVolumeClaim, objects: &Objects) -> Option<&VolumeName> {
        let doubt = self.claims.get(&claim.key())?;
        (doubt.claim == claim.metadata.uid && !doubt.is_settled(objects)).then_some(&doubt.volume)
    }
}

#[cfg(test)]
mod tests {
    use apiserver::kinds::PersistentVolume;

    use super::*;
    fn claim(name: &str, uid: &str, revision: u64) -> PersistentVolumeClaim {
        let mut claim = PersistentVolumeClaim::default();
        (claim.metadata.name, claim.metadata.uid) = (name.into(), uid.into());
        claim.metadata.resource_version = ResourceVersion(revision);
        claim
    }

    fn volume(revision: u64) -> PersistentVolume {
        let mut volume = PersistentVolume::default();
        volume.metadata.name = "a".into();
        volume.metadata.resource_version = ResourceVersion(revision);
        volume
    }

    /// The tables with a claim and a volume at these revisions.
    fn objects(claim_at: u64, volume_at: Option<u64>) -> Objects {
        let objects = Objects::default();
        objects.reset(vec![claim("c", "u", claim_at)]);
        objects.reset(volume_at.map(volume).into_iter().collect());
        objects
    }

    #[test]
    fn s19_a_doubt_ends_when_the_object_moves_on_or_when_the_request_is_too_old() {
        let now = Instant::now();
        let (name, claim) = (VolumeName::from("a"), claim("c", "u", 5));
        let key = claim.key();
        // The object of the write; revisions of claim and volume; whether that ends the doubt.
        let rows = [
            (ObjectRef::Volume(name.clone()), 5, Some(5), false),
            (ObjectRef::Volume(name.clone()), 6, Some(5), false),
            (ObjectRef::Volume(name.clone()), 5, Some(6), true),
            (ObjectRef::Volume(name.clone()), 5, None, true),
            (ObjectRef::Claim(key.clone()), 5, Some(5), false),
            (ObjectRef::Claim(key.clone()), 5, Some(6), false),
            (ObjectRef::Claim(key.clone()), 5, None, false),
            (ObjectRef::Claim(key.clone()), 6, Some(5), true),
        ];
        for (object, claim_at, volume_at, ends) in rows {
            let mut doubts = Doubts::default();
            let before = objects(5, Some(5));
            doubts.note(&claim, &name, (&object, ResourceVersion(5)), now);
            let until = doubts.until(&key).unwrap();
            assert_eq!((until, doubts.of(&claim, &before)), (now + SETTLE_TIME, Some(&name)));
            let after = objects(claim_at, volume_at);
            assert_eq!(doubts.of(&claim, &after).is_none(), ends, "{object} {claim_at} {volume_at:?}");
            assert_eq!(doubts.take_over(&key, &after, now), None);
            assert_eq!(doubts.take_over(&key, &after, until), (!ends).then_some(object));
            assert_eq!(doubts.of(&claim, &before), None);
        }
    }

    #[test]
    fn s19_several_claims_may_be_in_doubt_about_a_volume_and_a_claim_made_anew_is_not() {
        let (now, name) = (Instant::now(), VolumeName::from("a"));
        let claims = [claim("1", "u", 5), claim("2", "v", 5)];
        let (before, after) = (objects(5, Some(5)), objects(5, Some(6)));
        let mut doubts = Doubts::default();
        for claim in &claims {
            doubts.note(claim, &name, (&ObjectRef::Volume(name.clone()), ResourceVersion(5)), now);
        }
        assert_eq!(claims.each_ref().map(|claim| doubts.of(claim, &before)), [Some(&name); 2]);
        assert_eq!(doubts.of(&claim("1", "another", 5), &before), None);
        assert_eq!(doubts.about(&name).count(), 2);
        assert_eq!(claims.each_ref().map(|claim| doubts.of(claim, &after)), [None; 2]);
    }
}
