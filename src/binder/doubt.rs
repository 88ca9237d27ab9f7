//! Reservations that were sent, and of which it is not known whether they will be made.
//!
//! In: reservations whose outcome is unknown, and volumes as they change. Out: whether a claim may still
//! get another volume that way. A read that shows the volume unreserved proves nothing as long as the
//! request may still be on its way: it would then be made at the revision it names, and the claim, which
//! has meanwhile taken another volume, would hold two (S19). When the doubt ends, [`crate::controller::in_doubt`] says.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    controller::in_doubt::{InDoubt, SETTLE_TIME},
    kube_api::ids::{ClaimKey, ResourceVersion, Uid, VolumeName},
    state::Relation,
};

#[derive(Clone, Debug)]
struct Doubt {
    claim: ClaimKey,
    write: InDoubt,
}

/// A volume, and a claim by its UID: several claims may be in doubt about one volume.
type Pair = (VolumeName, Uid);

/// Reservations in doubt. After an outage of the API server there may be one of every pair, so each question finds
/// its own without looking at the others.
#[derive(Debug)]
pub struct Doubts {
    pairs: BTreeMap<Pair, Doubt>,
    by_claim: Relation<Uid, VolumeName>,
    /// When each ends by itself.
    ends: BTreeSet<(Instant, Pair)>,
    /// Those that are over, whose claim is not free to be looked at.
    held: BTreeMap<ClaimKey, BTreeSet<Pair>>,
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
        Self {
            pairs: BTreeMap::new(),
            by_claim: Relation::default(),
            ends: BTreeSet::new(),
            held: BTreeMap::new(),
            settle_time,
        }
    }

    /// A request that reserves the volume at this revision for a claim was not answered.
    pub fn note(
        &mut self,
        volume: &VolumeName,
        revision: ResourceVersion,
        claim: (ClaimKey, Uid),
        now: Instant,
    ) {
        let (claim, uid) = claim;
        let write = InDoubt::since(now, self.settle_time, revision);
        let pair = (volume.clone(), uid);
        self.remove(&pair);
        self.by_claim.insert(pair.1.clone(), pair.0.clone());
        self.ends.insert((write.until, pair.clone()));
        self.pairs.insert(pair, Doubt { claim, write });
    }

    fn remove(&mut self, pair: &Pair) -> Option<Doubt> {
        let doubt = self.pairs.remove(pair)?;
        self.by_claim.remove(&pair.1, &pair.0);
        if !self.ends.remove(&(doubt.write.until, pair.clone()))
            && let Some(held) = self.held.get_mut(&doubt.claim)
        {
            held.remove(pair);
            if held.is_empty() {
                self.held.remove(&doubt.claim);
            }
        }
        Some(doubt)
    }

    /// A volume is at this revision now, or gone. Returns the claims that were in doubt about it and are so
    /// no longer.
    pub fn look(&mut self, volume: &VolumeName, now: Option<ResourceVersion>) -> Vec<ClaimKey> {
        let of_volume = self.pairs.range((volume.clone(), Uid::default())..);
        let ended: Vec<Pair> = of_volume
            .take_while(|((name, _), _)| name == volume)
            .filter(|(_, doubt)| now.is_none_or(|now| doubt.write.is_settled_at(now)))
            .map(|(pair, _)| pair.clone())
            .collect();
        ended.iter().filter_map(|pair| self.remove(pair)).map(|doubt| doubt.claim).collect()
    }

    /// The claim may be looked at again.
    pub fn freed(&mut self, claim: &ClaimKey) {
        for pair in self.held.remove(claim).into_iter().flatten() {
            if let Some(doubt) = self.pairs.get(&pair) {
                self.ends.insert((doubt.write.until, pair));
            }
        }
    }

    /// Takes at most so many doubts whose requests can no longer be carried out, of claims that are free to be
    /// looked at. What became of each volume is still to be read: our tables may be older. One whose claim is not
    /// free is left until that is [freed](Self::freed).
    pub fn take_over(
        &mut self,
        now: Instant,
        most: usize,
        is_free: impl Fn(&ClaimKey) -> bool,
    ) -> Vec<(ClaimKey, VolumeName)> {
        let mut over = Vec::new();
        while over.len() < most
            && let Some((until, pair)) = self.ends.pop_first()
        {
            if until > now {
                self.ends.insert((until, pair));
                break;
            }
            let Some(doubt) = self.pairs.get(&pair) else { continue };
            if is_free(&doubt.claim) {
                over.extend(self.remove(&pair).map(|doubt| (doubt.claim, pair.0)));
            } else {
                self.held.entry(doubt.claim.clone()).or_default().insert(pair);
            }
        }
        over
    }

    /// When the next doubt ends by itself. One that is over, and whose claim is not free, ends with that.
    #[must_use]
    pub fn next_end(&self, now: Instant) -> Option<Instant> {
        // There may have been no room for all that are over: there is when a request is answered.
        let later = (now + Duration::from_nanos(1), Pair::default());
        self.ends.range(later..).next().map(|(until, _)| *until)
    }

    /// Whether there is any doubt.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// A volume other than this one that may become the claim's.
    #[must_use]
    pub fn other(&self, claim: &Uid, than: &VolumeName) -> Option<&VolumeName> {
        self.by_claim.of(claim.clone()).find(|name| *name != than)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s19_a_doubt_ends_when_the_volume_moves_on_or_when_the_request_is_too_old() {
        let now = Instant::now();
        let (volume, other) = (VolumeName::from("a"), VolumeName::from("b"));
        let claim = (ClaimKey::new("ns", "c"), Uid::from("u"));
        let mut doubts = Doubts::default();
        let note = |doubts: &mut Doubts| doubts.note(&volume, ResourceVersion(5), claim.clone(), now);
        note(&mut doubts);
        assert!(!doubts.is_empty());
        assert_eq!(doubts.other(&claim.1, &other), Some(&volume));
        assert_eq!(doubts.other(&claim.1, &volume), None);
        assert_eq!(doubts.other(&Uid::from("another"), &other), None);
        assert_eq!(doubts.look(&volume, Some(ResourceVersion(5))), vec![]);
        assert_eq!(doubts.look(&other, None), vec![]);
        assert_eq!(doubts.next_end(now), Some(now + SETTLE_TIME));
        for moved in [Some(ResourceVersion(6)), None] {
            note(&mut doubts);
            assert_eq!(doubts.look(&volume, moved), vec![claim.0.clone()]);
            assert_eq!(doubts.other(&claim.1, &other), None);
        }
        note(&mut doubts);
        assert_eq!(doubts.take_over(now, 9, |_| true), vec![]);
        assert_eq!(doubts.take_over(now + SETTLE_TIME, 9, |_| false), vec![]);
        assert_eq!(doubts.next_end(now + SETTLE_TIME), None, "it waits for its claim");
        assert_eq!(doubts.take_over(now + SETTLE_TIME, 9, |_| true), vec![]);
        doubts.freed(&claim.0);
        assert_eq!(doubts.take_over(now + SETTLE_TIME, 0, |_| true), vec![]);
        assert_eq!(doubts.take_over(now + SETTLE_TIME, 9, |_| true), vec![(claim.0, volume)]);
        assert!(doubts.is_empty());
    }

    #[test]
    fn s19_a_second_claim_in_doubt_about_a_volume_does_not_free_the_first() {
        let now = Instant::now();
        let (volume, other) = (VolumeName::from("a"), VolumeName::from("b"));
        let claims = ["1", "2"].map(|name| (ClaimKey::new("ns", name), Uid::from(name)));
        let mut doubts = Doubts::default();
        for claim in &claims {
            doubts.note(&volume, ResourceVersion(5), claim.clone(), now);
        }
        for (_, uid) in &claims {
            assert_eq!(doubts.other(uid, &other), Some(&volume));
        }
        let both = claims.map(|(key, _)| key);
        assert_eq!(doubts.look(&volume, Some(ResourceVersion(6))), both);
    }
}
