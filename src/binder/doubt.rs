//! Writes of a bind that were sent, and of which it is not known whether they will be made.
//!
//! In: reservations and namings whose outcome is unknown, and objects as they change. Out: the volume that a claim may
//! yet get that way. The claim asks for that volume again, or for none: a read that shows nothing proves nothing as long
//! as the request may still be on its way: it would then be made at the revision it names, and the claim, which
//! has meanwhile taken another volume, would hold two (S19). When the doubt ends, [`crate::controller::in_doubt`] says.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::act::write::Object;
use crate::{
    controller::in_doubt::{InDoubt, SETTLE_TIME},
    kube_api::{
        ids::{ClaimKey, ResourceVersion, Uid, VolumeName},
        kinds::{Narrow, PersistentVolumeClaim},
    },
    state::Relation,
};

#[derive(Clone, Debug)]
struct Doubt {
    claim: Uid,
    volume: VolumeName,
    /// The write is one to the claim.
    is_naming: bool,
    write: InDoubt,
}

/// What each claim is in doubt about: one volume at most, as it asks for no other meanwhile. After an outage of the API
/// server there may be one of every pair, so each question finds its own without looking at the others.
#[derive(Debug)]
pub struct Doubts {
    claims: BTreeMap<ClaimKey, Doubt>,
    by_volume: Relation<VolumeName, ClaimKey>,
    /// When each ends by itself.
    ends: BTreeSet<(Instant, ClaimKey)>,
    settle_time: Duration,
}

impl Default for Doubts {
    fn default() -> Self {
        Self::lasting(SETTLE_TIME)
    }
}

impl Doubts {
    /// No doubts yet, about requests that may still be carried out for so long when they are not answered.
    #[must_use]
    pub fn lasting(settle_time: Duration) -> Self {
        Self { claims: BTreeMap::new(), by_volume: Relation::default(), ends: BTreeSet::new(), settle_time }
    }

    /// A request that gives the volume to a claim was not answered: a write to that object, at this revision.
    pub fn note(
        &mut self,
        claim: &PersistentVolumeClaim,
        volume: &VolumeName,
        (object, revision): (&Object, ResourceVersion),
        now: Instant,
    ) {
        let key = claim.key();
        self.forget(&key);
        let write = InDoubt::since(now, self.settle_time, revision);
        self.by_volume.insert(volume.clone(), key.clone());
        self.ends.insert((write.until, key.clone()));
        let is_naming = matches!(object, Object::Claim(_));
        let claim = claim.metadata.uid.clone();
        self.claims.insert(key, Doubt { claim, volume: volume.clone(), is_naming, write });
    }

    /// Nothing is in doubt about a claim any more: it is gone, or shown past the write.
    pub fn forget(&mut self, claim: &ClaimKey) -> Option<VolumeName> {
        let doubt = self.claims.remove(claim)?;
        self.by_volume.remove(&doubt.volume, claim);
        self.ends.remove(&(doubt.write.until, claim.clone()));
        Some(doubt.volume)
    }

    /// A volume is at this revision now, or gone. Returns the claims that are or were in doubt about it.
    pub fn look_at_volume(&mut self, volume: &VolumeName, now: Option<ResourceVersion>) -> Vec<ClaimKey> {
        let claims: Vec<ClaimKey> = self.by_volume.of(volume.clone()).cloned().collect();
        for claim in &claims {
            let is_past = |doubt: &Doubt| {
                !doubt.is_naming && now.is_none_or(|revision| doubt.write.is_settled_at(revision))
            };
            if self.claims.get(claim).is_some_and(is_past) {
                self.forget(claim);
            }
        }
        claims
    }

    /// A claim is at this revision now.
    pub fn look_at_claim(&mut self, claim: &ClaimKey, now: ResourceVersion) {
        let is_past = |doubt: &Doubt| doubt.is_naming && doubt.write.is_settled_at(now);
        if self.claims.get(claim).is_some_and(is_past) {
            self.forget(claim);
        }
    }

    /// The claims whose requests can no longer be carried out: they are to be looked at, each once.
    pub fn take_due(&mut self, now: Instant) -> Vec<ClaimKey> {
        let mut due = Vec::new();
        while let Some((until, claim)) = self.ends.pop_first() {
            if until > now {
                self.ends.insert((until, claim));
                break;
            }
            due.push(claim);
        }
        due
    }

    /// Ends the doubt about a claim if its request can no longer be carried out. Returns the object that is still to be
    /// read: our tables may be older.
    pub fn take_over(&mut self, claim: &ClaimKey, now: Instant) -> Option<Object> {
        let is_naming = self.claims.get(claim).filter(|doubt| doubt.write.until <= now)?.is_naming;
        let volume = self.forget(claim)?;
        Some(if is_naming { Object::Claim(claim.clone()) } else { Object::Volume(volume) })
    }

    /// When the next doubt ends by itself.
    #[must_use]
    pub fn next_end(&self) -> Option<Instant> {
        self.ends.first().map(|(until, _)| *until)
    }

    /// Whether there is any doubt.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// The volume that may become a claim's.
    #[must_use]
    pub fn of(&self, claim: &PersistentVolumeClaim) -> Option<&VolumeName> {
        let doubt = self.claims.get(&claim.key())?;
        (doubt.claim == claim.metadata.uid).then_some(&doubt.volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str, uid: &str) -> PersistentVolumeClaim {
        let mut claim = PersistentVolumeClaim::default();
        (claim.metadata.name, claim.metadata.uid) = (name.into(), uid.into());
        claim
    }

    #[test]
    fn s19_a_doubt_ends_when_the_object_moves_on_or_when_the_request_is_too_old() {
        let now = Instant::now();
        let (volume, other, claim) = (VolumeName::from("a"), VolumeName::from("b"), claim("c", "u"));
        let key = claim.key();
        let objects = [Object::Volume(volume.clone()), Object::Claim(key.clone())];
        let (before, after) = (ResourceVersion(5), ResourceVersion(6));
        for object in &objects {
            let is_naming = *object == objects[1];
            let mut doubts = Doubts::default();
            let note = |doubts: &mut Doubts| doubts.note(&claim, &volume, (object, before), now);
            note(&mut doubts);
            assert_eq!(doubts.of(&claim), Some(&volume));
            assert_eq!(doubts.look_at_volume(&volume, Some(before)), vec![key.clone()]);
            assert_eq!(doubts.look_at_volume(&other, None), vec![]);
            doubts.look_at_claim(&key, before);
            assert_eq!((doubts.of(&claim), doubts.next_end()), (Some(&volume), Some(now + SETTLE_TIME)));
            for moved in [Some(after), None] {
                note(&mut doubts);
                assert_eq!(doubts.look_at_volume(&volume, moved), vec![key.clone()]);
                assert_eq!(doubts.of(&claim).is_some(), is_naming);
            }
            note(&mut doubts);
            doubts.look_at_claim(&key, after);
            assert_eq!(doubts.of(&claim).is_some(), !is_naming);
            note(&mut doubts);
            assert_eq!((doubts.take_due(now), doubts.take_over(&key, now)), (vec![], None));
            assert_eq!(doubts.take_due(now + SETTLE_TIME), vec![key.clone()]);
            assert_eq!(doubts.next_end(), None, "it waits for its claim");
            assert_eq!(doubts.take_over(&key, now + SETTLE_TIME), Some(object.clone()));
            assert!(doubts.is_empty());
        }
    }

    #[test]
    fn s19_several_claims_may_be_in_doubt_about_a_volume_and_a_claim_made_anew_is_not() {
        let now = Instant::now();
        let volume = VolumeName::from("a");
        let claims = [claim("1", "u"), claim("2", "v")];
        let mut doubts = Doubts::default();
        for claim in &claims {
            doubts.note(claim, &volume, (&Object::Volume(volume.clone()), ResourceVersion(5)), now);
        }
        assert_eq!(claims.each_ref().map(|claim| doubts.of(claim)), [Some(&volume); 2]);
        assert_eq!(doubts.of(&claim("1", "another")), None);
        let both = claims.map(|claim| claim.key());
        assert_eq!(doubts.look_at_volume(&volume, Some(ResourceVersion(6))), both);
        assert!(doubts.is_empty());
    }
}
