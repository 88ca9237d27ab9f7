//! Who has to be looked at again when something appears: claims by the volume they name, by class,
//! and by what they wait for.
//!
//! In: claims as they change, and which claims found no volume. Out: the few keys to plan
//! again. A free volume goes to the waiting claim that needs most of it (the oldest among equals),
//! so a new volume costs one claim's plan, however many wait.

use std::{cmp::Reverse, collections::HashMap, sync::Arc};

use apiserver::{
    ids::{ClaimKey, VolumeName},
    kinds::{ClaimPhase, Narrow, PersistentVolume, PersistentVolumeClaim},
    tables::{Relation, give_back_room},
    text::Text,
};
use k8s_openapi::jiff::Timestamp;

use super::{
    buckets::{Bucket, Buckets},
    predicate::{AccessModes, Group, Requirements, capacity, claim_class, mismatch_for_search, was_bound},
    quantity::Quantity,
};
use crate::binder::annotations;

/// Order among waiting claims: by size, and the oldest last.
pub type Rank = (Quantity, Reverse<(Option<Timestamp>, ClaimKey)>);

#[derive(Debug, Default, PartialEq, Eq)]
struct IndexedClaim {
    volume: VolumeName,
    never_bound: bool,
    /// Its phase is Bound: of several that name the volume, it is this one's (S45).
    is_bound: bool,
    /// Of a claim that has and names no volume.
    class: Option<Text>,
}

/// Claims by what can make a difference to them.
#[derive(Debug, Default)]
pub struct ClaimIndex {
    entries: HashMap<ClaimKey, IndexedClaim>,
    /// With whether each was never bound to the volume that it names: those that were come first.
    by_volume: Relation<VolumeName, (bool, ClaimKey)>,
    by_class: Relation<Text, ClaimKey>,
    /// Waiting claims of a group: those that accept any label, or those that insist on this one (and
    /// perhaps on others).
    waiting: Buckets<Rank>,
    positions: HashMap<ClaimKey, (Bucket, AccessModes, Rank, VolumeName)>,
    /// Waiting claims by the volume that they try meanwhile.
    trying: Relation<VolumeName, ClaimKey>,
}

impl ClaimIndex {
    /// Takes a claim's current content, or its absence. Returns the volume that it named before, or that it was bound to, if
    /// that is so no longer.
    pub fn update(&mut self, key: &ClaimKey, claim: Option<&PersistentVolumeClaim>) -> Option<VolumeName> {
        let entry = claim.map(|claim| {
            let open = claim.spec.volume_name.is_empty()
                && !annotations::has(&claim.metadata, annotations::BIND_COMPLETED);
            IndexedClaim {
                volume: claim.spec.volume_name.clone(),
                never_bound: !was_bound(claim),
                is_bound: claim.status.phase == ClaimPhase::Bound,
                class: open.then(|| claim_class(claim).into()),
            }
        });
        if self.entries.get(key) == entry.as_ref() {
            return None;
        }
        let before = self.entries.remove(key).unwrap_or_default();
        self.by_volume.remove(&before.volume, &(before.never_bound, key.clone()));
        if let Some(class) = &before.class {
            self.by_class.remove(class, key);
        }
        let keeps = |now: &IndexedClaim| {
            now.volume == before.volume
                && (before.never_bound || !now.never_bound)
                && (now.is_bound || !before.is_bound)
        };
        let is_kept = before.volume.is_empty() || entry.as_ref().is_some_and(keeps);
        let left = (!is_kept).then_some(before.volume);
        let Some(entry) = entry else {
            give_back_room(&mut self.entries);
            return left;
        };
        if !entry.volume.is_empty() {
            self.by_volume.insert(entry.volume.clone(), (entry.never_bound, key.clone()));
        }
        if let Some(class) = &entry.class {
            self.by_class.insert(class.clone(), key.clone());
        }
        self.entries.insert(key.clone(), entry);
        left
    }

    /// The claims that name a volume.
    pub fn naming<'a>(&'a self, volume: &VolumeName) -> impl Iterator<Item = &'a ClaimKey> + use<'a> {
        self.by_volume.of(volume.clone()).map(|(_, key)| key)
    }

    /// Those of them that were bound to it: one, unless people copy claims.
    pub fn bound_to(&self, volume: &VolumeName) -> impl Iterator<Item = &ClaimKey> {
        let namers = self.by_volume.of(volume.clone());
        namers.take_while(|(never_bound, _)| !never_bound).map(|(_, key)| key)
    }

    /// The claims of a class that have and name no volume; that without name also holds those without class.
    pub fn open_in_class(&self, class: &str) -> impl Iterator<Item = &ClaimKey> {
        self.by_class.of(class.into())
    }

    /// Notes that a claim found no volume, or tries this one, and takes the next one that fits.
    pub fn wait(&mut self, requirements: &Requirements<'_>, tries: VolumeName) {
        let key = requirements.claim.key();
        self.forget(&key);
        let rank =
            (requirements.request, Reverse((requirements.claim.metadata.creation_timestamp, key.clone())));
        let bucket = (requirements.group(), requirements.labels().next());
        self.waiting.insert(bucket.clone(), requirements.modes, rank.clone());
        if !tries.is_empty() {
            self.trying.insert(tries.clone(), key.clone());
        }
        self.positions.insert(key, (bucket, requirements.modes, rank, tries));
    }

    /// The waiting claims that try a volume.
    pub fn trying(&self, volume: &VolumeName) -> impl Iterator<Item = &ClaimKey> {
        self.trying.of(volume.clone())
    }

    /// Notes that a claim no longer waits.
    pub fn forget(&mut self, key: &ClaimKey) {
        let Some((bucket, modes, rank, tries)) = self.positions.remove(key) else { return };
        give_back_room(&mut self.positions);
        self.trying.remove(&tries, key);
        self.waiting.remove(&bucket, modes, &rank);
    }

    /// The waiting claim that should have a free volume, of those below a rank, leaving out those that `current` does not
    /// show.
    pub fn candidate(
        &self,
        volume: &PersistentVolume,
        current: &dyn Fn(&ClaimKey) -> Option<Arc<PersistentVolumeClaim>>,
        below: Option<&Rank>,
    ) -> Option<&Rank> {
        let size = capacity(volume)?;
        let offered = AccessModes::known(&volume.spec.access_modes);
        let group = Group::of(volume);
        let labels = volume.metadata.labels.iter().map(|(key, value)| Some((key.clone(), value.clone())));
        let buckets =
            std::iter::once(None).chain(labels).filter_map(|label| self.waiting.get(&(group.clone(), label)));
        // The greatest rank of this size: reversed, the least possible age and key.
        let most = (size, Reverse((None, ClaimKey::default())));
        let below = below.map_or(&most, |below| below.min(&most));
        let mut best: Option<&Rank> = None;
        for (modes, ranks) in buckets.flatten() {
            if !offered.contains(*modes) {
                continue;
            }
            let fitting = ranks.range(..below).rev().find(|rank| {
                let (_, Reverse((_, key))) = rank;
                let suits = |claim: Arc<PersistentVolumeClaim>| {
                    Requirements::of(&claim)
                        .is_ok_and(|requirements| mismatch_for_search(volume, &requirements).is_none())
                };
                current(key).is_some_and(suits)
            });
            best = best.max(fitting);
        }
        best
    }
}
