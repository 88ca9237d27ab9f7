//! Which volumes come nearest to what a claim asks for, and everything that is wrong with each.
//!
//! In: the volumes that are not Bound, and a claim that found none of them fit. Out: a few of them,
//! those with the fewest faults first. Only explains: no decision rests on it. The number looked at
//! is bounded, in clusters of any size: around the claim's size in its own class, then in
//! others.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{
    predicate::{Mismatch, Requirements, capacity, mismatches, volume_class},
    quantity::Quantity,
};
use crate::{
    kube_api::{
        ids::VolumeName,
        kinds::{PersistentVolume, VolumePhase},
    },
    state::give_back_room,
};

/// Volumes looked at on either side of the claim's size in its own class, and as many in others.
const REACH: usize = 16;

/// The volumes that are not Bound, by class and size.
#[derive(Debug, Default)]
pub struct Unbound {
    classes: BTreeMap<String, BTreeSet<(Quantity, VolumeName)>>,
    positions: HashMap<VolumeName, (String, Quantity)>,
}

impl Unbound {
    /// Takes a volume's current content, or its absence.
    pub fn update(&mut self, name: &VolumeName, volume: Option<&PersistentVolume>) {
        let position = volume
            .filter(|volume| volume.status.phase != VolumePhase::Bound)
            .map(|volume| (volume_class(volume).to_owned(), capacity(volume).unwrap_or_default()));
        if self.positions.get(name) == position.as_ref() {
            return;
        }
        if let Some((class, size)) = self.positions.remove(name)
            && let Some(volumes) = self.classes.get_mut(&class)
        {
            volumes.remove(&(size, name.clone()));
            if volumes.is_empty() {
                self.classes.remove(&class);
            }
        }
        if let Some((class, size)) = position {
            self.classes.entry(class.clone()).or_default().insert((size, name.clone()));
            self.positions.insert(name.clone(), (class, size));
        } else {
            give_back_room(&mut self.positions);
        }
    }

    /// At most so many volumes that do not fit, the nearest first.
    pub fn nearest(
        &self,
        requirements: &Requirements<'_>,
        most: usize,
        current: &dyn Fn(&VolumeName) -> Option<Arc<PersistentVolume>>,
    ) -> Vec<Near> {
        let from = (requirements.request, VolumeName::default());
        let around = |volumes| {
            let volumes: &BTreeSet<(Quantity, VolumeName)> = volumes;
            volumes.range(from.clone()..).take(REACH).chain(volumes.range(..from.clone()).rev().take(REACH))
        };
        let own = self.classes.get(requirements.class).into_iter().flat_map(around);
        let others = self
            .classes
            .iter()
            .filter(|(class, _)| **class != requirements.class)
            .flat_map(|(_, volumes)| around(volumes))
            .take(2 * REACH);
        let mut found: Vec<_> = own
            .chain(others)
            .filter_map(|position| {
                let volume = current(&position.1)?;
                let mismatches = mismatches(&volume, requirements);
                (!mismatches.is_empty()).then_some((position, volume, mismatches))
            })
            .collect();
        found.sort_by_key(|(position, _, mismatches)| (mismatches.len(), *position));
        found.into_iter().take(most).map(|(_, volume, mismatches)| Near { volume, mismatches }).collect()
    }
}

/// A volume that does not fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Near {
    pub volume: Arc<PersistentVolume>,
    /// All that is wrong with it.
    pub mismatches: Vec<Mismatch>,
}
