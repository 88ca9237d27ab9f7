//! What shows that another binder is at work on the same objects (S14, for claims and volumes).
//!
//! In: what we wrote, and what the tables show later. Out: the writes of others, from which
//! [`crate::controller::second_writer`] draws its signal: while that lasts, nothing is written that cannot be taken back.
//! Phases are the binder's alone, so a changed phase is suspicious. A volume that refers to another claim from one moment
//! to the next is not: that is how a populator hands a volume over, and no stock binder does it in one step.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::act::write::Target;
use crate::{
    controller::second_writer::{self, OwnedField, Role, SecondWriters},
    kube_api::{
        ids::{ResourceVersion, Uid},
        kinds::{Narrow, PersistentVolume, PersistentVolumeClaim},
    },
};

/// A phase that we wrote is another.
const PHASE_CHANGED: &str = "phase_changed";

/// What this controller is, to people.
pub(super) const ROLE: Role = Role {
    name: "binder",
    alarm: "second_binder",
    held: "nothing is released or given up",
    kinds: &[PHASE_CHANGED],
};

impl second_writer::Target for Target {
    fn field(&self) -> OwnedField {
        OwnedField::Phase
    }

    fn kind(&self) -> &'static str {
        PHASE_CHANGED
    }
}

/// For how long after a write of ours its undoing is a sign. Two binders that see the same objects
/// answer each other within a second; the rest allows for one that is slow or throttled.
const MEMORY: Duration = Duration::from_mins(1);

/// A claim or volume at one revision.
#[derive(Clone, Debug)]
pub struct Sight {
    target: Target,
    uid: Uid,
    revision: ResourceVersion,
    /// The field that only a binder changes.
    phase: &'static str,
}

impl From<&PersistentVolumeClaim> for Sight {
    fn from(claim: &PersistentVolumeClaim) -> Self {
        Self {
            target: Target::Claim(claim.key()),
            uid: claim.metadata.uid.clone(),
            revision: claim.metadata.resource_version,
            phase: claim.status.phase.as_str(),
        }
    }
}

impl From<&PersistentVolume> for Sight {
    fn from(volume: &PersistentVolume) -> Self {
        Self {
            target: Target::Volume(volume.key()),
            uid: volume.metadata.uid.clone(),
            revision: volume.metadata.resource_version,
            phase: volume.status.phase.as_str(),
        }
    }
}

/// What we wrote of late, and who undid it.
#[derive(Debug, Default)]
pub struct SecondBinder {
    wrote: HashMap<Target, (Instant, Sight)>,
    pub(super) writers: SecondWriters<Target>,
}

impl SecondBinder {
    /// Notes the answer to a write of ours.
    pub fn wrote(&mut self, object: impl Into<Sight>, now: Instant) {
        let sight = object.into();
        self.wrote.insert(sight.target.clone(), (now, sight));
    }

    /// Forgets what was written too long ago.
    pub fn forget_old(&mut self, now: Instant) {
        self.wrote.retain(|_, (at, _)| *at + MEMORY > now);
    }

    /// Forgets a write: the object is written to again, with an outcome that may be told late.
    pub fn forget(&mut self, target: &Target) {
        self.wrote.remove(target);
    }

    /// The object is gone.
    pub fn gone(&mut self, target: &Target) {
        self.forget(target);
        self.writers.gone(target);
    }

    /// Looks at an object as the tables show it now.
    pub fn look_at(&mut self, object: impl Into<Sight>, now: Instant) {
        let sight = object.into();
        let Some((at, wrote)) = self.wrote.get(&sight.target) else { return };
        // A deletion between two looks leaves no trace but another UID.
        let is_it = wrote.uid == sight.uid && now < *at + MEMORY;
        if is_it && sight.revision > wrote.revision && wrote.phase != sight.phase {
            self.wrote.remove(&sight.target);
            self.writers.note(&sight.target, &sight.uid, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube_api::kinds::{ClaimPhase, ClaimRef, VolumePhase};

    fn named(name: &str, revision: u64, phase: VolumePhase, uid: &str) -> PersistentVolume {
        let mut volume = PersistentVolume::default();
        volume.metadata.name = name.into();
        volume.metadata.resource_version = ResourceVersion(revision);
        volume.status.phase = phase;
        volume.spec.claim_ref = Some(ClaimRef { uid: uid.into(), ..ClaimRef::default() });
        volume
    }

    fn volume(revision: u64, phase: VolumePhase, uid: &str) -> PersistentVolume {
        named("pv", revision, phase, uid)
    }

    fn claim(revision: u64, phase: ClaimPhase) -> PersistentVolumeClaim {
        let mut claim = PersistentVolumeClaim::default();
        claim.metadata.name = "c".into();
        claim.metadata.resource_version = ResourceVersion(revision);
        claim.status.phase = phase;
        claim
    }

    /// How many objects are to be read.
    fn reads(writers: &mut SecondBinder) -> usize {
        std::iter::from_fn(|| writers.writers.take_read(|_| true)).count()
    }

    #[test]
    fn s14_a_phase_changed_after_our_write_is_suspicious_and_a_handed_over_volume_is_not() {
        use VolumePhase::{Available, Bound, Released};
        let now = Instant::now();
        // What we wrote, what is seen later, and whether it is asked who did it.
        let cases = [
            ((Bound, "a"), (11, Available, "a"), true),
            ((Bound, "a"), (11, Bound, "a"), false),
            ((Bound, "a"), (11, Bound, "b"), false),
            ((Bound, "a"), (9, Available, "a"), false),
            ((Bound, "a"), (11, Bound, ""), false),
            ((Released, "a"), (11, Released, ""), false),
            ((Released, "a"), (11, Bound, "a"), true),
            ((Available, ""), (11, Available, "a"), false),
            ((Available, ""), (11, Bound, "a"), true),
        ];
        for ((phase, uid), (revision, other, other_uid), sign) in cases {
            let mut writers = SecondBinder::default();
            writers.wrote(&volume(10, phase, uid), now);
            writers.look_at(&volume(revision, other, other_uid), now);
            let name = format!("{phase:?} {uid:?} -> {other:?} {other_uid:?}");
            assert_eq!(reads(&mut writers) == 1, sign, "{name}");
        }
        let mut writers = SecondBinder::default();
        writers.wrote(&claim(10, ClaimPhase::Lost), now);
        writers.look_at(&claim(12, ClaimPhase::Bound), now);
        assert_eq!(reads(&mut writers), 1);
    }

    #[test]
    fn s14_what_we_wrote_long_ago_or_may_have_written_ourselves_is_no_sign() {
        let now = Instant::now();
        let mut writers = SecondBinder::default();
        writers.wrote(&volume(10, VolumePhase::Bound, "a"), now);
        writers.look_at(&volume(11, VolumePhase::Available, "a"), now + MEMORY);
        let mut again = volume(12, VolumePhase::Available, "");
        again.metadata.uid = "another".into();
        writers.wrote(&volume(11, VolumePhase::Bound, "a"), now);
        writers.look_at(&again, now);
        writers.wrote(&volume(12, VolumePhase::Bound, "a"), now);
        writers.forget(&Target::Volume("pv".into()));
        writers.look_at(&volume(13, VolumePhase::Available, "a"), now);
        assert_eq!((reads(&mut writers), writers.writers.take_news()), (0, None));
    }

    #[test]
    fn s14_the_memory_is_bounded() {
        let now = Instant::now();
        let mut writers = SecondBinder::default();
        writers.wrote(&claim(11, ClaimPhase::Bound), now);
        for half_minute in 0..5 {
            writers.wrote(&volume(10, VolumePhase::Bound, "a"), now + MEMORY / 2 * half_minute);
            writers.forget_old(now + MEMORY / 2 * half_minute);
            assert!(writers.wrote.contains_key(&Target::Volume("pv".into())));
        }
        assert_eq!(writers.wrote.len(), 1);
    }
}
