//! Which volumes come nearest to what a claim asks for, and everything that is wrong with each.
//!
//! In: the volumes that are not Bound, and a claim that found none of them fit. Out: a few of them,
//! those with the fewest faults first. Only explains: no decision rests on it. The number looked at
//! is bounded, whatever the size of the cluster: around the claim's size in its own class, then in
//! others.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

use super::{
    predicate::{Misfit, STORAGE, Wish, capacity, misfits, volume_class},
    quantity::Quantity,
};
use crate::{
    kube_api::{
        ids::VolumeName,
        kinds::{Narrow, PersistentVolume, VolumePhase},
        text::{Text, TextMap},
    },
    state::give_back_room,
};

/// Volumes looked at on either side of the claim's size in its own class, and as many in others.
const REACH: usize = 16;

/// The volumes that are not Bound, by class and size.
#[derive(Debug, Default)]
pub struct Unbound {
    classes: BTreeMap<String, BTreeSet<(Quantity, VolumeName)>>,
    places: HashMap<VolumeName, (String, Quantity)>,
}

impl Unbound {
    /// Takes a volume's current content, or its absence.
    pub fn update(&mut self, name: &VolumeName, volume: Option<&PersistentVolume>) {
        let place = volume
            .filter(|volume| volume.status.phase != VolumePhase::Bound)
            .map(|volume| (volume_class(volume).to_owned(), capacity(volume).unwrap_or_default()));
        if self.places.get(name) == place.as_ref() {
            return;
        }
        if let Some((class, size)) = self.places.remove(name)
            && let Some(volumes) = self.classes.get_mut(&class)
        {
            volumes.remove(&(size, name.clone()));
            if volumes.is_empty() {
                self.classes.remove(&class);
            }
        }
        if let Some((class, size)) = place {
            self.classes.entry(class.clone()).or_default().insert((size, name.clone()));
            self.places.insert(name.clone(), (class, size));
        } else {
            give_back_room(&mut self.places);
        }
    }

    /// At most so many volumes that do not fit, the nearest first.
    pub fn nearest(
        &self,
        wish: &Wish<'_>,
        most: usize,
        current: &dyn Fn(&VolumeName) -> Option<Arc<PersistentVolume>>,
    ) -> Vec<Near> {
        let from = (wish.request, VolumeName::default());
        let around = |volumes| {
            let volumes: &BTreeSet<(Quantity, VolumeName)> = volumes;
            volumes.range(from.clone()..).take(REACH).chain(volumes.range(..from.clone()).rev().take(REACH))
        };
        let own = self.classes.get(wish.class).into_iter().flat_map(around);
        let others = self
            .classes
            .iter()
            .filter(|(class, _)| **class != wish.class)
            .flat_map(|(_, volumes)| around(volumes))
            .take(2 * REACH);
        let mut found: Vec<_> = own
            .chain(others)
            .filter_map(|place| {
                let volume = current(&place.1)?;
                let misfits = misfits(&volume, wish);
                (!misfits.is_empty()).then_some((place, volume, misfits))
            })
            .collect();
        found.sort_by_key(|(place, _, misfits)| (misfits.len(), *place));
        let near = |volume: &PersistentVolume, misfits: Vec<Misfit>| Near {
            volume: volume.key(),
            faults: misfits.into_iter().map(|misfit| Fault::of(misfit, volume, wish)).collect(),
        };
        found.into_iter().take(most).map(|(_, volume, misfits)| near(&volume, misfits)).collect()
    }
}

/// A volume that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Near {
    /// The volume.
    pub volume: VolumeName,
    /// All that is wrong with it.
    pub faults: Vec<Fault>,
}

impl fmt::Display for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the nearest volume is {:?}, but ", self.volume.as_str())?;
        for (number, fault) in self.faults.iter().enumerate() {
            write!(f, "{}{}", if number == 0 { "" } else { ", " }, fault.text)?;
        }
        Ok(())
    }
}

/// One thing that is wrong with a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What.
    pub misfit: Misfit,
    /// With the facts. Names no other claim: the reader may not be allowed to see it (S41).
    pub text: String,
}

impl Fault {
    fn of(misfit: Misfit, volume: &PersistentVolume, wish: &Wish<'_>) -> Self {
        let text = match misfit {
            Misfit::Taken if volume.status.phase == VolumePhase::Released => {
                "it is Released and still refers to the claim that used it".to_owned()
            }
            Misfit::Taken => "it is reserved for another claim".to_owned(),
            Misfit::Terminating => "it is being deleted".to_owned(),
            Misfit::TooSmall => {
                let size = |map: &TextMap| map.get(STORAGE).cloned().unwrap_or_default();
                let requests = &wish.claim.spec.resources.requests;
                format!("it has {:?} of the {:?} asked for", size(&volume.spec.capacity), size(requests))
            }
            Misfit::Class => {
                format!("its class is {:?} and the claim's {:?}", volume_class(volume), wish.class)
            }
            Misfit::Attributes => "its VolumeAttributesClass is another".to_owned(),
            Misfit::VolumeMode => "its volumeMode is another".to_owned(),
            Misfit::AccessModes => {
                let offered = &volume.spec.access_modes;
                let missing: Vec<&str> = wish
                    .claim
                    .spec
                    .access_modes
                    .iter()
                    .filter(|mode| !offered.contains(mode))
                    .map(Text::as_str)
                    .collect();
                format!("it does not offer {}", missing.join(" and "))
            }
            Misfit::Phase => format!("it is {}", volume.status.phase.as_str()),
            Misfit::Selector => "its labels do not match the claim's selector".to_owned(),
        };
        Self { misfit, text }
    }
}
