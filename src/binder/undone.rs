//! Writes of ours that another writer undoes (S46).
//!
//! In: writes that were made. Out: when one may be made again. A write is undone if the same one is due again before it
//! has stood for a minute, and nothing new was written to the object since. The first time it is repeated at once, and
//! then after pauses that grow. Each write is repeated once a round, so that what was undone together is put right
//! together. The next steps of a bind, and a bind to another claim, are new, and wait for nothing.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use tokio::time::Instant;

use super::act::write::{Target, Write};
use crate::kube_api::backoff::undone_pause;

/// An object whose last write has stood for so long is forgotten.
const STANDS: Duration = Duration::from_mins(1);

/// Each write is undone, so each is news: it is told as often as events last.
const TOLD: Duration = Duration::from_mins(30);

/// So many writes to one object are told apart.
const CONTENTS: usize = 16;

#[derive(Debug)]
struct Written {
    /// The number of the last write of each content.
    contents: Vec<(u64, u64)>,
    /// The number of the last write.
    last: u64,
    at: Instant,
    /// The number of the write that began this round.
    round: u64,
    /// Rounds that began with a write that had been undone.
    undone: u32,
    /// When the next may begin so.
    again: Instant,
    /// Who was said to undo it, and when.
    told: Option<(Instant, Option<String>)>,
}

/// Objects written to of late.
#[derive(Debug, Default)]
pub(crate) struct Undone {
    written: HashMap<Target, Written>,
    order: VecDeque<(Instant, Target)>,
    waits: BTreeSet<(Instant, Target)>,
}

/// What a write changes, without the revisions that it was decided on.
fn content(write: &Write) -> u64 {
    let mut body = write.request.body.clone().unwrap_or_default();
    for object in ["/metadata", "/spec/claimRef"] {
        if let Some(object) = body.pointer_mut(object).and_then(|object| object.as_object_mut()) {
            object.remove("resourceVersion");
        }
    }
    let mut hasher = DefaultHasher::new();
    (write.kind.as_str(), body.to_string()).hash(&mut hasher);
    hasher.finish()
}

impl Undone {
    /// A write to this object was made.
    pub(crate) fn made(&mut self, target: Target, write: &Write, now: Instant, jitter: f64) {
        self.forget(now);
        self.order.push_back((now, target.clone()));
        let content = content(write);
        let written = self.written.entry(target).or_insert_with(|| Written {
            contents: Vec::new(),
            last: 0,
            at: now,
            round: 0,
            undone: 0,
            again: now,
            told: None,
        });
        written.at = now;
        written.last += 1;
        let number = written.last;
        if let Some((_, before)) = written.contents.iter_mut().find(|(known, _)| *known == content) {
            if *before >= written.round {
                written.round = number;
                written.undone += 1;
                written.again = now + undone_pause(written.undone, jitter);
            }
            *before = number;
            return;
        }
        written.round = number;
        written.contents.push((content, number));
        if written.contents.len() > CONTENTS {
            let oldest = written.contents.iter().map(|(_, number)| *number).min();
            written.contents.retain(|(_, number)| Some(*number) != oldest);
        }
    }

    fn forget(&mut self, now: Instant) {
        while let Some((at, target)) = self.order.pop_front() {
            if at + STANDS > now {
                return self.order.push_front((at, target));
            }
            if self.written.get(&target).is_some_and(|written| written.at == at) {
                self.written.remove(&target);
            }
        }
    }

    /// Until when a write to this object has to wait, as it was undone.
    pub(crate) fn until(&self, target: &Target, write: &Write, now: Instant) -> Option<Instant> {
        let written = self.written.get(target)?;
        if written.again <= now || written.at + STANDS <= now {
            return None;
        }
        let content = content(write);
        let is_undone =
            written.contents.iter().any(|(known, number)| *known == content && *number >= written.round);
        is_undone.then_some(written.again)
    }

    /// Whether it is to be told that this manager undoes what is written to an object.
    pub(crate) fn is_news(&mut self, target: &Target, by: Option<&str>, now: Instant) -> bool {
        let Some(written) = self.written.get_mut(target) else { return false };
        let is_told =
            written.told.as_ref().is_some_and(|(at, told)| told.as_deref() == by && now < *at + TOLD);
        if !is_told {
            written.told = Some((now, by.map(str::to_owned)));
        }
        !is_told
    }

    /// A claim or volume is to be looked at then.
    pub(crate) fn wait(&mut self, subject: &Target, until: Instant) {
        self.waits.insert((until, subject.clone()));
    }

    /// Those to be looked at now.
    pub(crate) fn take_due(&mut self, now: Instant) -> Vec<Target> {
        let mut due = Vec::new();
        while let Some((until, subject)) = self.waits.pop_first() {
            if until > now {
                self.waits.insert((until, subject));
                break;
            }
            due.push(subject);
        }
        due
    }

    /// When the next is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.waits.first().map(|(until, _)| *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        binder::act::{patches, write::WriteKind},
        kube_api::kinds::{PersistentVolume, PersistentVolumeClaim, VolumePhase},
    };

    fn phase(phase: VolumePhase) -> Write {
        let (volume, kind) = (PersistentVolume::default(), WriteKind::VolumeBound);
        Write::volume(&volume, kind, patches::volume_phase(&volume, phase, None))
    }

    fn reserve(claim: u64) -> Write {
        let volume = PersistentVolume::default();
        let mut reserved = PersistentVolumeClaim::default();
        reserved.metadata.uid = claim.to_string().into();
        let request = patches::reserve_volume(&volume, &reserved, true);
        Write::volume(&volume, WriteKind::ReserveVolume, request)
    }

    #[test]
    fn s46_what_was_undone_together_is_repeated_together_later_each_time() {
        let target = Target::Volume("pv".into());
        let (mut undone, start) = (Undone::default(), Instant::now());
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
        assert_eq!(undone.order.len(), 1);
    }

    #[test]
    fn s46_a_volume_that_goes_from_claim_to_claim_is_not_slowed() {
        let target = Target::Volume("pv".into());
        let (mut undone, now) = (Undone::default(), Instant::now());
        for claim in 0..30 {
            let cycle = [
                phase(VolumePhase::Available),
                reserve(claim),
                phase(VolumePhase::Bound),
                phase(VolumePhase::Released),
            ];
            for write in cycle {
                assert_eq!(undone.until(&target, &write, now), None, "{claim} {write:?}");
                undone.made(target.clone(), &write, now, 0.0);
            }
        }
        assert!(undone.written[&target].contents.len() <= CONTENTS);
    }
}
