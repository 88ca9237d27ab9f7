//! Own writes: what we wrote to each claim and volume of late, and what others make of it.
//!
//! In: writes that were made, and what the tables show later. Out: whether another has changed what we wrote, and when a
//! write may be made again.
//!
//! - A phase is the binder's alone, so one that changed after our write is a sign of another binder (S14); what follows from
//!   that, [`crate::controller::second_writer`] says. A volume that refers to another claim from one moment to the next is
//!   none: that is how a populator hands a volume over, and no stock binder does it in one step.
//! - A write is undone if the same one is due again before it has stood for a minute, and nothing new was written to the
//!   object since (S46). The first time it is repeated at once, and then after pauses that grow. Each write is repeated once
//!   a round, so that what was undone together is put right together. The next steps of a bind, and a bind to another
//!   claim, are new, and wait for nothing. Two writes of one kind in a row are the same one, whatever they say: between
//!   them the first was undone, and what it says may be others' to choose.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
};

use tokio::time::Instant;

use super::calls::{Shown, Target, Write, WriteKind};
use crate::controller::{
    second_writer::{self, Role},
    undone::{STANDS, Undone},
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

impl second_writer::WrittenObject for Target {
    fn field(&self) -> &'static str {
        "status.phase"
    }

    fn kind(&self) -> &'static str {
        PHASE_CHANGED
    }
}

/// So many writes to one object are told apart.
const CONTENTS: usize = 16;

/// What we wrote to one object, as long as it has not stood for a minute.
#[derive(Debug)]
struct Written {
    at: Instant,
    /// The answer, until the object is written to again: the outcome of that may be told late.
    shown: Option<Shown>,
    /// What was written last, and as which of the contents it counts.
    last: Option<(WriteKind, u64)>,
    /// What was written, the last of it at the end.
    contents: VecDeque<u64>,
    /// What was written in this round: it is undone if it is due again.
    round: BTreeSet<u64>,
    /// Of the write that began this round.
    pace: Undone,
}

impl Written {
    fn new(at: Instant) -> Self {
        let (contents, round, pace) = (VecDeque::new(), BTreeSet::new(), Undone::default());
        Self { at, shown: None, last: None, contents, round, pace }
    }

    /// As which of the contents a write counts.
    fn counts_as(&self, write: &Write) -> u64 {
        self.last.filter(|(kind, _)| *kind == write.kind).map_or_else(|| content(write), |(_, last)| last)
    }
}

/// Objects written to of late.
#[derive(Debug, Default)]
pub(crate) struct OwnWrites(HashMap<Target, Written>);

/// What a write changes, without the revisions that it was decided on.
pub(super) fn content(write: &Write) -> u64 {
    let mut body = write.request.body.clone().unwrap_or_default();
    for object in ["/metadata", "/spec/claimRef"] {
        if let Some(object) = body.pointer_mut(object).and_then(|object| object.as_object_mut()) {
            object.remove("resourceVersion");
        }
    }
    let mut hasher = DefaultHasher::new();
    (<&str>::from(write.kind), body.to_string(), &write.claim).hash(&mut hasher);
    hasher.finish()
}

impl OwnWrites {
    /// A write is sent.
    pub(crate) fn sends(&mut self, target: &Target) {
        if let Some(written) = self.0.get_mut(target) {
            written.shown = None;
        }
    }

    /// The answer to a write shows this.
    pub(crate) fn shown(&mut self, object: impl Into<Shown>, now: Instant) {
        let shown = object.into();
        let written = self.of_late(shown.target.clone(), now);
        written.shown = Some(shown);
    }

    /// A write was made that repeats itself if it is undone.
    pub(crate) fn made(&mut self, target: Target, write: &Write, now: Instant, jitter: f64) {
        let written = self.of_late(target, now);
        let content = written.counts_as(write);
        written.last = Some((write.kind, content));
        let Written { contents, round, pace, .. } = written;
        let is_known = contents.contains(&content);
        contents.retain(|before| *before != content);
        contents.push_back(content);
        if contents.len() > CONTENTS {
            contents.pop_front();
        }
        if !round.contains(&content) && is_known {
            round.insert(content);
            return;
        }
        if round.contains(&content) {
            pace.undone(now);
            pace.sent(now);
            pace.landed(now, jitter);
        } else {
            pace.withdrawn(now);
            pace.sent(now);
        }
        *round = BTreeSet::from([content]);
    }

    /// The entry of an object that is written to; what has stood for a minute is forgotten.
    fn of_late(&mut self, target: Target, now: Instant) -> &mut Written {
        let written = self.0.entry(target).or_insert_with(|| Written::new(now));
        if written.at + STANDS <= now {
            *written = Written::new(now);
        }
        written.at = now;
        written
    }

    /// Forgets what has stood for long enough.
    pub(crate) fn forget_old(&mut self, now: Instant) {
        self.0.retain(|_, written| written.at + STANDS > now);
    }

    /// The object is gone.
    pub(crate) fn gone(&mut self, target: &Target) {
        self.0.remove(target);
    }

    /// Whether another has changed the phase that we wrote of late, as the tables show the object now. True once. Two
    /// binders that see the same objects answer each other within a second; the rest of the minute allows for one that is
    /// slow or throttled.
    pub(crate) fn take_changed_by_another(&mut self, now_shown: &Shown, now: Instant) -> bool {
        let Some(written) = self.0.get_mut(&now_shown.target) else { return false };
        // A deletion between two looks leaves no trace but another UID.
        let is_changed = |shown: &mut Shown| {
            let is_it = shown.uid == now_shown.uid && now < written.at + STANDS;
            is_it && now_shown.revision > shown.revision && now_shown.phase != shown.phase
        };
        written.shown.take_if(is_changed).is_some()
    }

    /// Until when a write to this object has to wait, as it was undone.
    pub(crate) fn until(&mut self, target: &Target, write: &Write, now: Instant) -> Option<Instant> {
        let written = self.0.get_mut(target).filter(|written| written.at + STANDS > now)?;
        if !written.round.contains(&written.counts_as(write)) {
            return None;
        }
        written.pace.undone(now);
        written.pace.pending(now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use apiserver::{
        ids::ResourceVersion,
        kinds::{ClaimPhase, ClaimRef, PersistentVolume, PersistentVolumeClaim, VolumePhase},
        text::TextMap,
    };

    use super::*;
    use crate::binder::patches::{self, StatusChange};

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
            let mut writes = OwnWrites::default();
            writes.shown(&volume(10, phase, uid), now);
            let seen = Shown::from(&volume(revision, other, other_uid));
            let name = format!("{phase:?} {uid:?} -> {other:?} {other_uid:?}");
            assert_eq!(writes.take_changed_by_another(&seen, now), sign, "{name}");
            assert!(!writes.take_changed_by_another(&seen, now), "once: {name}");
        }
        let mut writes = OwnWrites::default();
        writes.shown(&claim(10, ClaimPhase::Lost), now);
        assert!(writes.take_changed_by_another(&(&claim(12, ClaimPhase::Bound)).into(), now));
    }

    #[test]
    fn s14_what_we_wrote_long_ago_or_may_have_written_ourselves_is_no_sign() {
        let now = Instant::now();
        let mut writes = OwnWrites::default();
        let bound = volume(10, VolumePhase::Bound, "a");
        let available = Shown::from(&volume(13, VolumePhase::Available, "a"));
        writes.shown(&bound, now);
        assert!(!writes.take_changed_by_another(&available, now + STANDS));
        writes.shown(&bound, now);
        let another = Shown { uid: "another".into(), ..available.clone() };
        assert!(!writes.take_changed_by_another(&another, now));
        writes.sends(&available.target);
        assert!(!writes.take_changed_by_another(&available, now));
    }

    #[test]
    fn s14_the_memory_is_bounded() {
        let now = Instant::now();
        let mut writes = OwnWrites::default();
        writes.shown(&claim(11, ClaimPhase::Bound), now);
        for half_minute in 0..5 {
            writes.shown(&volume(10, VolumePhase::Bound, "a"), now + STANDS / 2 * half_minute);
            writes.forget_old(now + STANDS / 2 * half_minute);
            assert!(writes.0.contains_key(&Target::Volume("pv".into())));
        }
        assert_eq!(writes.0.len(), 1);
    }

    fn phase(phase: VolumePhase) -> Write {
        patches::volume_phase(&PersistentVolume::default(), phase, None)
    }

    fn reserve(claim: u64) -> Write {
        let volume = PersistentVolume::default();
        let mut reserved = PersistentVolumeClaim::default();
        reserved.metadata.uid = claim.to_string().into();
        patches::reserve_volume(&volume, &reserved, true)
    }

    #[test]
    fn s46_what_was_undone_together_is_repeated_together_later_each_time() {
        let target = Target::Volume("pv".into());
        let (mut undone, start) = (OwnWrites::default(), Instant::now());
        let (mut now, writes) = (start, [reserve(1), phase(VolumePhase::Bound)]);
        let mut made = [const { Vec::new() }; 2];
        while now < start + 3 * STANDS {
            for (write, made) in writes.iter().zip(&mut made) {
                if undone.until(&target, write, now).is_none() {
                    undone.made(target.clone(), write, now, 0.0);
                    made.push((now - start).as_millis());
                }
            }
            let due = writes.each_ref().map(|write| undone.until(&target, write, now));
            now = due.into_iter().min().flatten().unwrap_or(now + Duration::from_millis(1));
        }
        let together = [501, 1_501, 3_501, 7_501, 15_501, 31_501, 59_501, 87_501, 115_501, 143_501, 171_501];
        let [first, second] = &made;
        assert_eq!((&first[..3], &first[3..]), (&[0, 1, 2][..], &together[..]));
        assert_eq!((&second[..2], &second[2..]), (&[0, 1][..], &together[..]));
        assert_eq!(undone.until(&Target::Volume("other".into()), &writes[0], now), None);
        now += STANDS;
        assert_eq!(undone.until(&target, &writes[0], now), None, "it has stood for a minute");
        undone.made(target.clone(), &writes[0], now, 0.0);
        assert_eq!(undone.until(&target, &writes[0], now), None, "and what was before is forgotten");
        undone.forget_old(now);
        assert_eq!(undone.0.len(), 1);
        undone.forget_old(now + STANDS);
        assert!(undone.0.is_empty());
    }

    #[test]
    fn s46_a_volume_that_goes_from_claim_to_claim_is_not_slowed() {
        let target = Target::Volume("pv".into());
        let (mut undone, now) = (OwnWrites::default(), Instant::now());
        for claim in 0..60 {
            let of_claim = |phase| {
                let volume = volume(1, phase, &claim.to_string());
                patches::volume_phase(&volume, phase, None)
            };
            let mut cycle = vec![
                phase(VolumePhase::Available),
                reserve(claim),
                of_claim(VolumePhase::Bound),
                of_claim(VolumePhase::Released),
            ];
            if claim >= 30 {
                // The scheduler reserves it for claims that wait for their first consumer.
                cycle.remove(1);
            }
            for write in cycle {
                assert_eq!(undone.until(&target, &write, now), None, "{claim} {write:?}");
                undone.made(target.clone(), &write, now, 0.0);
            }
        }
        assert!(undone.0[&target].contents.len() <= CONTENTS);
    }

    /// Each time the write says something else, as others have changed what it has to say: the finalizers that it keeps,
    /// the quantities that it takes out, the claim that a volume is released from, or the one that gets it next.
    #[test]
    fn s46_what_a_write_says_does_not_hide_that_it_is_undone_each_time() {
        let of = |number: u64| number.to_string();
        let pv = |number| volume(1, VolumePhase::Bound, &of(number));
        let keeps = |number| patches::annotate(&pv(number), None, Some(&[of(number).into()]));
        let bound = |number| {
            let change = patches::capacity(&[(of(number), "1Gi")].into_iter().collect(), &TextMap::default());
            let change = StatusChange::from_iter([("capacity".to_owned(), change)]);
            patches::claim_status(WriteKind::ClaimBound, &claim(1, ClaimPhase::Pending), &change)
        };
        let released = |number| patches::volume_phase(&pv(number), VolumePhase::Released, None);
        let writes: [(&str, &dyn Fn(u64) -> Write); 4] =
            [("finalizers", &keeps), ("capacity", &bound), ("claimRef", &released), ("claims", &reserve)];
        for (name, write) in writes {
            let target = Target::Volume("pv".into());
            let (mut undone, start) = (OwnWrites::default(), Instant::now());
            let (mut now, mut made) = (start, Vec::new());
            for number in 0.. {
                let write = write(number);
                if let Some(until) = undone.until(&target, &write, now) {
                    now = until;
                } else if now >= start + 5 * STANDS {
                    break;
                } else {
                    undone.made(target.clone(), &write, now, 0.0);
                    made.push((now - start).as_secs());
                    now += Duration::from_millis(1);
                }
            }
            let (first, later) = made.split_at(made.iter().filter(|at| **at < 60).count());
            assert!((8..=11).contains(&first.len()), "{name}: {made:?}");
            assert!(
                later.windows(2).all(|pair| (20..=30).contains(&(pair[1] - pair[0]))),
                "{name}: {made:?}"
            );
            // Another kind of write, and the same again after a minute, wait for nothing.
            assert_eq!(undone.until(&target, &phase(VolumePhase::Available), now), None, "{name}");
            assert_eq!(undone.until(&target, &write(0), now + STANDS), None, "{name}");
        }
    }
}
