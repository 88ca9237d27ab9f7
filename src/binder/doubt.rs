//! Reservations that were sent, and of which it is not known whether they will be made.
//!
//! In: reservations whose outcome is unknown, and volumes as they change. Out: whether a claim may still
//! get another volume that way. A read that shows the volume unreserved proves nothing as long as the
//! request may still be on its way: it would then be made at the revision it names, and the claim, which
//! has meanwhile taken another volume, would hold two (S19). The doubt ends when the volume has moved on
//! from that revision, as the request is refused then; or when no request can be that old, and a read after that
//! has shown the volume.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use crate::kube_api::ids::{ClaimKey, ResourceVersion, Uid, VolumeName};

/// For how long a request that was not answered may still be carried out where nothing else is said: for
/// requests of five seconds.
const SETTLE_TIME: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
struct Doubt {
    claim: ClaimKey,
    revision: ResourceVersion,
    until: Instant,
}

/// Reservations in doubt, by volume and claim: several claims may be in doubt about one volume.
#[derive(Debug)]
pub struct Doubts {
    doubts: BTreeMap<(VolumeName, Uid), Doubt>,
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
        Self { doubts: BTreeMap::new(), settle_time }
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
        let until = now + self.settle_time;
        self.doubts.insert((volume.clone(), uid), Doubt { claim, revision, until });
    }

    /// A volume is at this revision now, or gone. Returns the claims that were in doubt about it and are so
    /// no longer.
    pub fn look(&mut self, volume: &VolumeName, now: Option<ResourceVersion>) -> Vec<ClaimKey> {
        let ended =
            |(name, _): &(VolumeName, Uid), doubt: &mut Doubt| name == volume && now != Some(doubt.revision);
        self.doubts.extract_if(.., ended).map(|(_, doubt)| doubt.claim).collect()
    }

    /// Takes the doubts whose requests can no longer be carried out, of claims that are free to be looked at.
    /// What became of each volume is still to be read: our tables may be older.
    pub fn take_over(
        &mut self,
        now: Instant,
        is_free: impl Fn(&ClaimKey) -> bool,
    ) -> Vec<(ClaimKey, VolumeName)> {
        let ended = |_: &(VolumeName, Uid), doubt: &mut Doubt| now >= doubt.until && is_free(&doubt.claim);
        self.doubts.extract_if(.., ended).map(|((volume, _), doubt)| (doubt.claim, volume)).collect()
    }

    /// When the next doubt ends by itself. One that is over, and whose claim is not free, ends with that.
    #[must_use]
    pub fn next_end(&self, now: Instant) -> Option<Instant> {
        self.doubts.values().map(|doubt| doubt.until).filter(|until| *until > now).min()
    }

    /// Whether there is any doubt.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.doubts.is_empty()
    }

    /// A volume other than this one that may become the claim's.
    #[must_use]
    pub fn other(&self, claim: &Uid, than: &VolumeName) -> Option<&VolumeName> {
        self.doubts.keys().find(|(name, uid)| uid == claim && name != than).map(|(name, _)| name)
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
        assert_eq!(doubts.take_over(now, |_| true), vec![]);
        assert_eq!(doubts.take_over(now + SETTLE_TIME, |_| false), vec![]);
        assert_eq!(doubts.next_end(now + SETTLE_TIME), None, "it waits for its claim");
        assert_eq!(doubts.take_over(now + SETTLE_TIME, |_| true), vec![(claim.0, volume)]);
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
