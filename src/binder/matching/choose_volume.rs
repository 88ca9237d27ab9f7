//! The volumes, ordered so that one claim costs its own candidates and not the cluster.
//!
//! In: volumes as they change. Out: per claim the volumes whose claimRef names it, and per class,
//! volume mode, attributes class and set of access modes the free volumes by size: all of them, and
//! once more those with each label, as a selector may leave few of many. Only labels that must have one
//! value narrow the search: with `NotIn`, `Exists`, `DoesNotExist` and `In` of several values it goes
//! through the labels of all volumes that are otherwise large enough, up to the first that suits, and says
//! through how many. What is found here is a hint: the search looks at the current object again before it
//! takes one, since a change may still be on its way.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use apiserver::{
    ids::{ClaimKey, VolumeName},
    kinds::{ClaimRef, Narrow, PersistentVolume, VolumePhase},
    tables::{Relation, give_back_room},
    text::TextMap,
};

use super::{
    buckets::{Bucket, Buckets, ByModes},
    predicate::{
        AccessModes, Comparisons, Group, Mismatch, Requirements, capacity, held_by, mismatch_for_reserved,
        mismatch_for_search, selects,
    },
    quantity::Quantity,
};
/// Free volumes go by size; the name breaks ties, so that the choice is the same every time.
type Sized = (Quantity, VolumeName);

/// What a free volume is found by.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FreeVolume {
    group: Group,
    modes: AccessModes,
    size: Quantity,
    labels: TextMap,
}

impl FreeVolume {
    /// `None` for a volume the binder may not pick by itself (pv-binder §4.2).
    fn of(volume: &PersistentVolume) -> Option<Self> {
        if volume.spec.claim_ref.is_some()
            || volume.status.phase != VolumePhase::Available
            || volume.metadata.is_terminating()
        {
            return None;
        }
        Some(Self {
            group: Group::of(volume),
            modes: AccessModes::known(&volume.spec.access_modes),
            size: capacity(volume)?,
            labels: volume.metadata.labels.clone(),
        })
    }

    /// The buckets the volume is in.
    fn buckets(&self) -> impl Iterator<Item = Bucket> {
        let labels = self.labels.iter().map(|(key, value)| Some((key.clone(), value.clone())));
        std::iter::once(None).chain(labels).map(|label| (self.group.clone(), label))
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct IndexedVolume {
    free: Option<Box<FreeVolume>>,
    claim: Option<ClaimKey>,
}

/// All volumes by what claims look for.
#[derive(Debug, Default)]
pub struct VolumeIndex {
    entries: HashMap<VolumeName, IndexedVolume>,
    free: Buckets<Sized>,
    by_claim: Relation<ClaimKey, VolumeName>,
}

/// What the search for a claim's volume found.
#[derive(Clone, Debug, PartialEq)]
pub enum Search {
    Found(Arc<PersistentVolume>),
    /// This one, but a write to it is under way.
    Busy(VolumeName),
    /// One that carries the claim's UID but does not suit it; no other may be taken (S19).
    Held(Arc<PersistentVolume>, Mismatch),
    Nothing,
}

impl VolumeIndex {
    /// Takes a volume's current content, or its absence. Returns the claim it referred to before,
    /// if that has changed.
    pub fn update(&mut self, name: &VolumeName, volume: Option<&PersistentVolume>) -> Option<ClaimKey> {
        let entry = volume.map(|volume| IndexedVolume {
            free: FreeVolume::of(volume).map(Box::new),
            claim: volume.spec.claim_ref.as_ref().map(ClaimRef::key),
        });
        if self.entries.get(name) == entry.as_ref() {
            return None;
        }
        let before = self.entries.remove(name).unwrap_or_default();
        if let Some(free) = &before.free {
            self.remove_free(name, free);
        }
        if let Some(claim) = &before.claim {
            self.by_claim.remove(claim, name);
        }
        let Some(entry) = entry else {
            give_back_room(&mut self.entries);
            return before.claim;
        };
        for (bucket, free) in
            entry.free.iter().flat_map(|free| free.buckets().map(move |bucket| (bucket, free)))
        {
            self.free.insert(bucket, free.modes, (free.size, name.clone()));
        }
        if let Some(claim) = &entry.claim {
            self.by_claim.insert(claim.clone(), name.clone());
        }
        let lost = before.claim.filter(|before| entry.claim.as_ref() != Some(before));
        self.entries.insert(name.clone(), entry);
        lost
    }

    /// A request about the volume is under way: no search passes over it until it is updated. After an outage there may be
    /// one about every volume.
    pub fn withdraw(&mut self, name: &VolumeName) {
        let free = self.entries.get_mut(name).and_then(|entry| entry.free.take());
        if let Some(free) = free {
            self.remove_free(name, &free);
        }
    }

    fn remove_free(&mut self, name: &VolumeName, free: &FreeVolume) {
        for bucket in free.buckets() {
            self.free.remove(&bucket, free.modes, &(free.size, name.clone()));
        }
    }

    /// Whether the binder may pick this volume by itself.
    pub fn is_free(&self, name: &VolumeName) -> bool {
        self.entries.get(name).is_some_and(|entry| entry.free.is_some())
    }

    /// The volumes whose claimRef names a claim, with any UID.
    pub fn referring_to(&self, claim: &ClaimKey) -> impl Iterator<Item = &VolumeName> {
        self.by_claim.of(claim.clone())
    }

    /// The shortest bucket that holds every free volume for the claim, if there is any volume.
    fn bucket_for(&self, requirements: &Requirements<'_>) -> Option<&ByModes<Sized>> {
        let group = requirements.group();
        let mut shortest = self.free.get(&(group.clone(), None))?;
        let length = |sets: &ByModes<Sized>| sets.values().map(BTreeSet::len).sum::<usize>();
        for label in requirements.labels() {
            let bucket = self.free.get(&(group.clone(), Some(label)))?;
            if length(bucket) < length(shortest) {
                shortest = bucket;
            }
        }
        Some(shortest)
    }

    /// Whether the claim selects the labels that the volume is known to bear: most of many volumes are told apart by
    /// that, without a look at each.
    fn is_selected(&self, name: &VolumeName, requirements: &Requirements<'_>) -> bool {
        let Some(selector) = requirements.claim.spec.selector.as_deref() else { return true };
        let free = self.entries.get(name).and_then(|entry| entry.free.as_ref());
        free.is_some_and(|free| selects(selector, &free.labels))
    }

    /// The volume for an unbound claim that names none (pv-binder §4).
    ///
    /// A volume with the claim's UID comes first, before any other that fits: it is a bind that was
    /// begun (S19). Then upstream's order: sets of access modes by their size, in each a volume
    /// reserved for the claim, else the smallest free one. With `delayed` nothing free is taken.
    pub fn search(
        &self,
        requirements: &Requirements<'_>,
        delayed: bool,
        current: &dyn Fn(&VolumeName) -> Option<Arc<PersistentVolume>>,
        busy: &dyn Fn(&VolumeName) -> bool,
        compared: &Comparisons,
    ) -> Search {
        let mut reserved: BTreeMap<(bool, u32), Arc<PersistentVolume>> = BTreeMap::new();
        let mut mismatched = None;
        for name in self.referring_to(&requirements.claim.key()) {
            compared.update(|count| count + 1);
            let Some(volume) = current(name) else { continue };
            let held = held_by(&volume, requirements.claim);
            match mismatch_for_reserved(&volume, requirements) {
                None => {
                    let modes = AccessModes::known(&volume.spec.access_modes).count();
                    reserved.entry((held, modes)).or_insert(volume);
                }
                // What is released while it goes is out of the claim's hands.
                Some(_)
                    if volume.metadata.is_terminating()
                        && matches!(volume.status.phase, VolumePhase::Released | VolumePhase::Failed) => {}
                Some(mismatch) if held => {
                    mismatched.get_or_insert((volume, mismatch));
                }
                Some(_) => {}
            }
        }
        let found = |volume: &Arc<PersistentVolume>| {
            let name = volume.key();
            if busy(&name) { Search::Busy(name) } else { Search::Found(Arc::clone(volume)) }
        };
        if let Some((_, volume)) = reserved.range((true, 0)..).next() {
            return found(volume);
        }
        if let Some((volume, mismatch)) = mismatched {
            return Search::Held(volume, mismatch);
        }
        let bucket = self.bucket_for(requirements);
        for modes in requirements.modes.count()..=AccessModes::MOST {
            if let Some(volume) = reserved.get(&(false, modes)) {
                return found(volume);
            }
            if delayed {
                continue;
            }
            let mut best: Option<(&Sized, Arc<PersistentVolume>)> = None;
            for (set, sizes) in bucket.into_iter().flatten() {
                if set.count() != modes || !set.contains(requirements.modes) {
                    continue;
                }
                let first = sizes
                    .range((requirements.request, VolumeName::default())..)
                    .inspect(|_| compared.update(|count| count + 1))
                    .filter(|(_, name)| self.is_selected(name, requirements) && !busy(name))
                    .filter_map(|entry| Some((entry, current(&entry.1)?)))
                    .find(|(_, volume)| mismatch_for_search(volume, requirements).is_none());
                if let Some((entry, volume)) = first
                    && best.as_ref().is_none_or(|(least, _)| entry < *least)
                {
                    best = Some((entry, volume));
                }
            }
            if let Some((_, volume)) = best {
                return Search::Found(volume);
            }
        }
        Search::Nothing
    }
}
