//! Whether another binder is at work on the same objects (S14, for claims and volumes).
//!
//! In: what we wrote, and what the tables show later. Out: sightings of somebody who changed it back
//! or on. Phases are the binder's alone, so one changed phase tells; a volume taken from its claim
//! does too. While a sighting is fresh nothing is written that cannot be taken back.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    time::Duration,
};

use tokio::time::Instant;

use super::decision::Target;
use crate::kube_api::{
    ids::{ResourceVersion, Uid},
    kinds::{ClaimPhase, Meta, Narrow, PersistentVolume, PersistentVolumeClaim, VolumePhase},
};

/// For how long after a write of ours its undoing is a sign. Two binders that see the same objects
/// answer each other within a second; the rest allows for one that is slow or throttled.
const MEMORY: Duration = Duration::from_mins(1);

/// For how long after the last sign the alarm stands. Longer than the stock binder's resync (15 s)
/// and its back-off on a quiet object (2 min), so that one that is there is seen again before it ends.
const ALARM: Duration = Duration::from_mins(10);

/// The fields of an object that only a binder changes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shown {
    Claim(ClaimPhase),
    Volume(VolumePhase, Uid),
}

impl Shown {
    fn claim(claim: &PersistentVolumeClaim) -> Self {
        Self::Claim(claim.status.phase)
    }

    fn volume(volume: &PersistentVolume) -> Self {
        let uid = volume.spec.claim_ref.as_ref().map(|reference| reference.uid.clone());
        Self::Volume(volume.status.phase, uid.unwrap_or_default())
    }

    /// Whether it takes a binder to get from here to there.
    fn leads_only_a_binder_to(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Claim(before), Self::Claim(after)) => before != after,
            (Self::Volume(phase, uid), Self::Volume(other_phase, other_uid)) => {
                // People clear references, and reserve free volumes; schedulers and provisioners do the latter.
                let taken = !uid.is_empty() && !other_uid.is_empty() && uid != other_uid;
                phase != other_phase || (taken && *phase == VolumePhase::Bound)
            }
            _ => false,
        }
    }
}

#[derive(Clone, Debug)]
struct Wrote {
    uid: Uid,
    revision: ResourceVersion,
    shown: Shown,
    at: Instant,
}

/// Somebody changed what we had written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The object.
    pub target: Target,
    /// The revision we wrote.
    pub ours: ResourceVersion,
    /// The revision that differs.
    pub theirs: ResourceVersion,
    at: Instant,
}

impl fmt::Display for Sighting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, ours, theirs, .. } = self;
        write!(
            f,
            "{target} was changed at revision {theirs} as only a binder does, after we wrote it at revision \
             {ours}: is kube-controller-manager's persistentvolume-binder-controller still running?"
        )
    }
}

/// What we wrote of late, and who undid it.
#[derive(Debug, Default)]
pub struct Rivals {
    wrote: HashMap<Target, Wrote>,
    order: VecDeque<(Instant, Target)>,
    last: Option<Sighting>,
    sightings: u64,
}

impl Rivals {
    /// Notes the answer to a write of ours.
    pub fn wrote_claim(&mut self, claim: &PersistentVolumeClaim, now: Instant) {
        let target = Target::Claim(claim.key());
        self.note(target, &claim.metadata, Shown::claim(claim), now);
    }

    /// Notes the answer to a write of ours.
    pub fn wrote_volume(&mut self, volume: &PersistentVolume, now: Instant) {
        let target = Target::Volume(volume.key());
        self.note(target, &volume.metadata, Shown::volume(volume), now);
    }

    fn note(&mut self, target: Target, meta: &Meta, shown: Shown, now: Instant) {
        while let Some((at, old)) = self.order.pop_front() {
            if at + MEMORY > now {
                self.order.push_front((at, old));
                break;
            }
            if self.wrote.get(&old).is_some_and(|wrote| wrote.at == at) {
                self.wrote.remove(&old);
            }
        }
        self.order.push_back((now, target.clone()));
        let wrote = Wrote { uid: meta.uid.clone(), revision: meta.resource_version, shown, at: now };
        self.wrote.insert(target, wrote);
    }

    /// Forgets a write: the object is gone, or written to again, with an outcome that may be told late.
    pub fn forget(&mut self, target: &Target) {
        self.wrote.remove(target);
    }

    /// Forgets all writes: another of our own processes may lead now, and change what we wrote.
    pub fn forget_all(&mut self) {
        self.wrote.clear();
        self.order.clear();
    }

    /// Looks at a claim as the tables show it now.
    pub fn look_at_claim(&mut self, claim: &PersistentVolumeClaim, now: Instant) {
        let target = Target::Claim(claim.key());
        self.look(target, &claim.metadata, &Shown::claim(claim), now);
    }

    /// Looks at a volume as the tables show it now.
    pub fn look_at_volume(&mut self, volume: &PersistentVolume, now: Instant) {
        let target = Target::Volume(volume.key());
        self.look(target, &volume.metadata, &Shown::volume(volume), now);
    }

    fn look(&mut self, target: Target, meta: &Meta, shown: &Shown, now: Instant) {
        let Some(wrote) = self.wrote.get(&target) else { return };
        // A deletion between two looks leaves no trace but another UID.
        let is_it = wrote.uid == meta.uid && now < wrote.at + MEMORY;
        if !is_it || meta.resource_version <= wrote.revision || !wrote.shown.leads_only_a_binder_to(shown) {
            return;
        }
        let (ours, theirs) = (wrote.revision, meta.resource_version);
        self.wrote.remove(&target);
        self.last = Some(Sighting { target, ours, theirs, at: now });
        self.sightings += 1;
    }

    /// The last sighting, while it is fresh.
    #[must_use]
    pub fn alarm(&self, now: Instant) -> Option<&Sighting> {
        self.last.as_ref().filter(|sighting| now < sighting.at + ALARM)
    }

    /// When the alarm ends, if it stands.
    #[must_use]
    pub fn ends(&self, now: Instant) -> Option<Instant> {
        self.alarm(now).map(|sighting| sighting.at + ALARM)
    }

    /// How often somebody was seen.
    #[must_use]
    pub fn sightings(&self) -> u64 {
        self.sightings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube_api::kinds::ClaimRef;

    fn volume(revision: u64, phase: VolumePhase, uid: &str) -> PersistentVolume {
        let mut volume = PersistentVolume::default();
        volume.metadata.name = "pv".into();
        volume.metadata.resource_version = ResourceVersion(revision);
        volume.status.phase = phase;
        volume.spec.claim_ref = Some(ClaimRef { uid: uid.into(), ..ClaimRef::default() });
        volume
    }

    fn claim(revision: u64, phase: ClaimPhase) -> PersistentVolumeClaim {
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.name = "c".into();
        claim.metadata.resource_version = ResourceVersion(revision);
        claim.status.phase = phase;
        claim
    }

    #[test]
    fn s14_a_phase_changed_after_our_write_is_another_binders() {
        use VolumePhase::{Available, Bound, Released};
        let now = Instant::now();
        // What we wrote, what is seen later, and whether that is a sign.
        let cases = [
            ((Bound, "a"), (11, Available, "a"), true),
            ((Bound, "a"), (11, Bound, "a"), false),
            ((Bound, "a"), (11, Bound, "b"), true),
            ((Bound, "a"), (9, Available, "a"), false),
            ((Bound, "a"), (11, Bound, ""), false),
            ((Released, "a"), (11, Released, ""), false),
            ((Released, "a"), (11, Bound, "a"), true),
            ((Available, ""), (11, Available, "a"), false),
            ((Available, ""), (11, Bound, "a"), true),
        ];
        for ((phase, uid), (revision, other, other_uid), sign) in cases {
            let mut rivals = Rivals::default();
            rivals.wrote_volume(&volume(10, phase, uid), now);
            rivals.look_at_volume(&volume(revision, other, other_uid), now);
            assert_eq!(rivals.alarm(now).is_some(), sign, "{phase:?} {uid:?} -> {other:?} {other_uid:?}");
        }
        let mut rivals = Rivals::default();
        rivals.wrote_claim(&claim(10, ClaimPhase::Lost), now);
        rivals.look_at_claim(&claim(12, ClaimPhase::Bound), now);
        let text = rivals.alarm(now).unwrap().to_string();
        assert!(text.starts_with("pvc//c was changed at revision 12 as only a binder does"), "{text}");
        assert_eq!(rivals.sightings(), 1);
    }

    #[test]
    fn s14_what_we_wrote_long_ago_or_may_have_written_ourselves_is_no_sign() {
        let now = Instant::now();
        let mut rivals = Rivals::default();
        rivals.wrote_volume(&volume(10, VolumePhase::Bound, "a"), now);
        rivals.look_at_volume(&volume(11, VolumePhase::Available, "a"), now + MEMORY);
        assert_eq!(rivals.alarm(now + MEMORY), None);
        let mut again = volume(12, VolumePhase::Available, "");
        again.metadata.uid = "another".into();
        rivals.wrote_volume(&volume(11, VolumePhase::Bound, "a"), now);
        rivals.look_at_volume(&again, now);
        assert_eq!(rivals.alarm(now), None);
        rivals.wrote_volume(&volume(12, VolumePhase::Bound, "a"), now);
        rivals.forget(&Target::Volume("pv".into()));
        rivals.look_at_volume(&volume(13, VolumePhase::Available, "a"), now);
        assert_eq!(rivals.alarm(now), None);
        rivals.wrote_volume(&volume(12, VolumePhase::Bound, "a"), now);
        rivals.forget_all();
        rivals.look_at_volume(&volume(13, VolumePhase::Available, "a"), now);
        assert_eq!(rivals.alarm(now), None);
    }

    #[test]
    fn s14_the_alarm_ends_and_the_memory_is_bounded() {
        let now = Instant::now();
        let mut rivals = Rivals::default();
        rivals.wrote_claim(&claim(10, ClaimPhase::Bound), now);
        rivals.look_at_claim(&claim(11, ClaimPhase::Pending), now);
        assert_eq!(rivals.ends(now), Some(now + ALARM));
        assert_eq!(rivals.alarm(now + ALARM), None);
        assert_eq!(rivals.ends(now + ALARM), None);
        rivals.wrote_claim(&claim(11, ClaimPhase::Bound), now);
        for half_minute in 0..5 {
            rivals.wrote_volume(&volume(10, VolumePhase::Bound, "a"), now + MEMORY / 2 * half_minute);
            assert!(rivals.wrote.contains_key(&Target::Volume("pv".into())));
        }
        assert_eq!((rivals.wrote.len(), rivals.order.len()), (1, 2));
    }
}
