//! Writes of ours that another writer undoes (S46).
//!
//! In: writes that were made. Out: when one may be made again. A write is undone if the same one is due again before it
//! has stood for a minute, and nothing new was written to the object since. The first time it is repeated at once, and
//! then after pauses that grow. Each write is repeated once a round, so that what was undone together is put right
//! together. The next steps of a bind, and a bind to another claim, are new, and wait for nothing.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use tokio::time::Instant;

use super::act::write::{Target, Write};
use crate::controller::undone::{STANDS, Undone};

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
    /// Of the write that began this round.
    pace: Undone,
    /// Who was said to undo it, and when.
    told: Option<(Instant, Option<String>)>,
}

impl Written {
    /// Whether it was written in this round, so that it is undone if it is due again.
    fn is_of_round(&self, content: u64) -> bool {
        self.contents.iter().any(|(known, number)| *known == content && *number >= self.round)
    }
}

/// Objects written to of late.
#[derive(Debug, Default)]
pub(crate) struct UndoneWrites(HashMap<Target, Written>);

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

impl UndoneWrites {
    /// A write to this object was made.
    pub(crate) fn made(&mut self, target: Target, write: &Write, now: Instant, jitter: f64) {
        let content = content(write);
        let new = || Written {
            contents: Vec::new(),
            last: 0,
            at: now,
            round: 0,
            pace: Undone::default(),
            told: None,
        };
        let written = self.0.entry(target).or_insert_with(new);
        if written.at + STANDS <= now {
            *written = new();
        }
        (written.at, written.last) = (now, written.last + 1);
        let (number, is_of_round) = (written.last, written.is_of_round(content));
        if let Some((_, before)) = written.contents.iter_mut().find(|(known, _)| *known == content) {
            *before = number;
            if is_of_round {
                written.round = number;
                written.pace.undone(now);
                written.pace.sent(now);
                written.pace.landed(now, jitter);
            }
            return;
        }
        written.round = number;
        written.pace.withdrawn(now);
        written.pace.sent(now);
        written.contents.push((content, number));
        if written.contents.len() > CONTENTS {
            let oldest = written.contents.iter().map(|(_, number)| *number).min();
            written.contents.retain(|(_, number)| Some(*number) != oldest);
        }
    }

    /// Forgets what has stood for long enough.
    pub(crate) fn forget_old(&mut self, now: Instant) {
        self.0.retain(|_, written| written.at + STANDS > now);
    }

    /// Until when a write to this object has to wait, as it was undone.
    pub(crate) fn until(&mut self, target: &Target, write: &Write, now: Instant) -> Option<Instant> {
        let written = self.0.get_mut(target).filter(|written| written.at + STANDS > now)?;
        if !written.is_of_round(content(write)) {
            return None;
        }
        written.pace.undone(now);
        written.pace.pending(now)
    }

    /// Whether it is to be told that this manager undoes what is written to an object.
    pub(crate) fn is_news(&mut self, target: &Target, by: Option<&str>, now: Instant) -> bool {
        let Some(written) = self.0.get_mut(target) else { return false };
        let is_told =
            written.told.as_ref().is_some_and(|(at, told)| told.as_deref() == by && now < *at + TOLD);
        if !is_told {
            written.told = Some((now, by.map(str::to_owned)));
        }
        !is_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        binder::act::patches,
        kube_api::kinds::{PersistentVolume, PersistentVolumeClaim, VolumePhase},
    };

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
        let (mut undone, start) = (UndoneWrites::default(), Instant::now());
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
        let (mut undone, now) = (UndoneWrites::default(), Instant::now());
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
        assert!(undone.0[&target].contents.len() <= CONTENTS);
    }
}
