//! Whether another binder is at work on the same objects (S14, for claims and volumes).
//!
//! In: what we wrote, what the tables show later, and what a live read says about who changed it. Out: objects to
//! read, and stand-offs, while which nothing is written there that cannot be taken back. Phases are the binder's
//! alone, so a changed phase is suspicious. A volume that refers to another claim from one moment to the next is
//! not: that is how a populator hands a volume over, and no stock binder does it in one step.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use super::act::write::Target;
use crate::{
    controller::second_writer::{self, Asks, Changes, Owner, SecondWriters, StandOff},
    kube_api::{
        ids::{ResourceVersion, Uid},
        kinds::{ClaimPhase, Meta, Narrow, PersistentVolume, PersistentVolumeClaim, VolumePhase},
        managed_fields::OwnedField,
    },
};

/// No agent of a place writes phases: each claim and each volume stands for itself.
impl second_writer::Target for Target {
    type Place = Self;

    fn place(&self) -> Self {
        self.clone()
    }

    fn is_beyond_agents(&self) -> bool {
        true
    }
}

/// For how long after a write of ours its undoing is a sign. Two binders that see the same objects
/// answer each other within a second; the rest allows for one that is slow or throttled.
const MEMORY: Duration = Duration::from_mins(1);

/// The field of an object that only a binder changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Claim(ClaimPhase),
    Volume(VolumePhase),
}

#[derive(Clone, Debug)]
struct Wrote {
    uid: Uid,
    revision: ResourceVersion,
    phase: Phase,
    at: Instant,
}

/// What we wrote of late, and who undid it.
#[derive(Debug, Default)]
pub struct SecondBinder {
    wrote: HashMap<Target, Wrote>,
    order: VecDeque<(Instant, Target)>,
    writers: SecondWriters<Target>,
    /// Objects to read before they are written to, which would hide who changed them.
    to_read: BTreeMap<Target, Uid>,
    sightings: u64,
}

impl SecondBinder {
    /// Notes the answer to a write of ours.
    pub fn wrote_claim(&mut self, claim: &PersistentVolumeClaim, now: Instant) {
        let target = Target::Claim(claim.key());
        self.note(target, &claim.metadata, Phase::Claim(claim.status.phase), now);
    }

    /// Notes the answer to a write of ours.
    pub fn wrote_volume(&mut self, volume: &PersistentVolume, now: Instant) {
        let target = Target::Volume(volume.key());
        self.note(target, &volume.metadata, Phase::Volume(volume.status.phase), now);
    }

    fn note(&mut self, target: Target, meta: &Meta, phase: Phase, now: Instant) {
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
        let wrote = Wrote { uid: meta.uid.clone(), revision: meta.resource_version, phase, at: now };
        self.wrote.insert(target, wrote);
    }

    /// Forgets a write: the object is gone, or written to again, with an outcome that may be told late.
    pub fn forget(&mut self, target: &Target) {
        self.wrote.remove(target);
    }

    /// Forgets that an object is to be read: it is gone.
    pub fn gone(&mut self, target: &Target) {
        self.forget(target);
        self.to_read.remove(target);
    }

    /// Looks at a claim as the tables show it now.
    pub fn look_at_claim(&mut self, claim: &PersistentVolumeClaim, now: Instant) {
        let target = Target::Claim(claim.key());
        self.look(target, &claim.metadata, Phase::Claim(claim.status.phase), now);
    }

    /// Looks at a volume as the tables show it now.
    pub fn look_at_volume(&mut self, volume: &PersistentVolume, now: Instant) {
        let target = Target::Volume(volume.key());
        self.look(target, &volume.metadata, Phase::Volume(volume.status.phase), now);
    }

    fn look(&mut self, target: Target, meta: &Meta, phase: Phase, now: Instant) {
        let Some(wrote) = self.wrote.get(&target) else { return };
        // A deletion between two looks leaves no trace but another UID.
        let is_it = wrote.uid == meta.uid && now < wrote.at + MEMORY;
        if !is_it || meta.resource_version <= wrote.revision || wrote.phase == phase {
            return;
        }
        self.wrote.remove(&target);
        self.sightings += 1;
        match self.writers.note(&target, OwnedField::Phase, now) {
            Asks::Read => {
                self.to_read.insert(target, meta.uid.clone());
            }
            Asks::Judged(changes) => self.stands_off(&changes),
            Asks::Later => {}
        }
    }

    /// An object to read, with its UID, before anything is written to it.
    pub fn take_read(&mut self, may_be_read: impl Fn(&Target) -> bool) -> Option<(Target, Uid)> {
        let target = self.to_read.keys().find(|target| may_be_read(target))?.clone();
        self.to_read.remove_entry(&target)
    }

    /// Takes the managers that own the phase; none if they could not be read.
    pub fn learn(&mut self, target: &Target, managers: &[String], now: Instant) {
        let owner = Owner::of(managers);
        let manager = owner.manager().unwrap_or_default();
        tracing::info!(object = %target, field = OwnedField::Phase.as_str(), manager, "written by another");
        let changes = self.writers.learn(target, &owner, now);
        self.stands_off(&changes);
    }

    fn stands_off(&self, changes: &Changes<Target>) {
        for begun in &changes.begun {
            if let Some(by) = self.writers.here(begun) {
                tracing::warn!(object = %begun, %by, "nothing is released or given up there for a while");
            }
        }
        for ended in &changes.ended {
            tracing::warn!(object = %ended, "no other writer was seen there for a while: going on");
        }
    }

    /// Ends what is over.
    pub fn settle(&mut self, now: Instant) {
        let changes = self.writers.settle(now);
        self.stands_off(&changes);
    }

    /// Why nothing is taken back anywhere: another binder is at work.
    #[must_use]
    pub fn everywhere(&self) -> Option<&StandOff> {
        self.writers.everywhere()
    }

    /// Why nothing is taken back from one of these.
    #[must_use]
    pub fn stand_off(&self, targets: &[Target]) -> Option<&StandOff> {
        self.everywhere().or_else(|| targets.iter().find_map(|target| self.writers.here(target)))
    }

    /// Every object from which alone nothing is taken back.
    pub fn stand_offs(&self) -> impl Iterator<Item = &StandOff> {
        self.writers.stand_offs().map(|(_, stand_off)| stand_off)
    }

    /// Who wrote the phase of an object last, if that was asked of late and is known.
    #[must_use]
    pub fn manager(&self, target: &Target) -> Option<&str> {
        self.writers.owner(target)?.manager()
    }

    /// When the next of them ends.
    #[must_use]
    pub fn ends(&self) -> Option<Instant> {
        self.writers.ends_at()
    }

    /// How often another writer was seen.
    #[must_use]
    pub fn sightings(&self) -> u64 {
        self.sightings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube_api::kinds::ClaimRef;

    const KCM: &str = "kube-controller-manager";

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

    /// Reads all there is to read, each with this owner. Returns how many were read.
    fn read(writers: &mut SecondBinder, manager: &str, now: Instant) -> usize {
        let mut count = 0;
        while let Some((target, _)) = writers.take_read(|_| true) {
            writers.learn(&target, &[manager.to_owned()], now);
            count += 1;
        }
        count
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
            writers.wrote_volume(&volume(10, phase, uid), now);
            writers.look_at_volume(&volume(revision, other, other_uid), now);
            let name = format!("{phase:?} {uid:?} -> {other:?} {other_uid:?}");
            assert_eq!(read(&mut writers, "kubectl-edit", now) == 1, sign, "{name}");
            assert_eq!(writers.ends(), None, "{name}: nothing follows from what is nobody's in particular");
        }
        let mut writers = SecondBinder::default();
        writers.wrote_claim(&claim(10, ClaimPhase::Lost), now);
        writers.look_at_claim(&claim(12, ClaimPhase::Bound), now);
        assert_eq!(read(&mut writers, KCM, now), 1);
        assert_eq!(writers.sightings(), 1);
    }

    #[test]
    fn s14_what_we_wrote_long_ago_or_may_have_written_ourselves_is_no_sign() {
        let now = Instant::now();
        let mut writers = SecondBinder::default();
        writers.wrote_volume(&volume(10, VolumePhase::Bound, "a"), now);
        writers.look_at_volume(&volume(11, VolumePhase::Available, "a"), now + MEMORY);
        let mut again = volume(12, VolumePhase::Available, "");
        again.metadata.uid = "another".into();
        writers.wrote_volume(&volume(11, VolumePhase::Bound, "a"), now);
        writers.look_at_volume(&again, now);
        writers.wrote_volume(&volume(12, VolumePhase::Bound, "a"), now);
        writers.forget(&Target::Volume("pv".into()));
        writers.look_at_volume(&volume(13, VolumePhase::Available, "a"), now);
        assert_eq!((read(&mut writers, KCM, now), writers.sightings()), (0, 0));
    }

    #[test]
    fn s14_one_pair_is_left_alone_and_all_are_only_when_a_binder_was_at_work_on_several() {
        let now = Instant::now();
        let undone = |writers: &mut SecondBinder, name: &str, manager: &str, now: Instant| {
            writers.wrote_volume(&named(name, 10, VolumePhase::Bound, "a"), now);
            writers.look_at_volume(&named(name, 11, VolumePhase::Available, "a"), now);
            read(writers, manager, now);
        };
        let [one, two, three] = ["one", "two", "three"].map(|name| Target::Volume(name.into()));
        let mut writers = SecondBinder::default();
        undone(&mut writers, "one", KCM, now);
        assert!(writers.stand_off(&[one]).is_some_and(StandOff::is_proven));
        assert_eq!(writers.stand_off(std::slice::from_ref(&three)), None);
        undone(&mut writers, "two", "velero", now);
        assert_eq!(writers.stand_off(&[two]), None);
        undone(&mut writers, "two", KCM, now + MEMORY);
        let by = writers.stand_off(&[three]).unwrap().to_string();
        assert_eq!(by, "kube-controller-manager wrote status.phase of pv/two");
        writers.settle(writers.ends().unwrap());
        assert!(writers.everywhere().is_some());
        writers.settle(writers.ends().unwrap());
        assert_eq!((writers.everywhere(), writers.ends()), (None, None));
    }

    #[test]
    fn s14_the_memory_is_bounded() {
        let now = Instant::now();
        let mut writers = SecondBinder::default();
        writers.wrote_claim(&claim(11, ClaimPhase::Bound), now);
        for half_minute in 0..5 {
            writers.wrote_volume(&volume(10, VolumePhase::Bound, "a"), now + MEMORY / 2 * half_minute);
            assert!(writers.wrote.contains_key(&Target::Volume("pv".into())));
        }
        assert_eq!((writers.wrote.len(), writers.order.len()), (1, 2));
    }
}
