//! One complete list of a kind, taken page by page (mark and sweep).
//!
//! In: objects as the pages come. Out: the keys whose content changed or that went away (L8). Each object
//! is marked with the number of the list that had it, so no list of the world and no set of all keys is
//! held. Only a list that reached its last page at one revision sweeps. What is newer than that revision
//! survives, for the list cannot know of it: the watch, which begins there, will tell.

use std::sync::atomic::Ordering;

use dashmap::Entry;

use super::{
    regression::Regression,
    table::{FinalState, Row, Table},
    unreadable::Unreadable,
};
use crate::{
    ids::{ResourceVersion, Uid},
    kinds::Narrow,
    wire::AttachmentNames,
};

/// A list that is being taken. One at a time per table.
#[derive(Clone, Copy, Debug)]
pub struct Listing {
    generation: u32,
    revision: ResourceVersion,
}

impl Listing {
    /// The revision that all its pages show.
    pub fn revision(&self) -> ResourceVersion {
        self.revision
    }
}

impl<T: Narrow> Table<T> {
    /// Begins a list at this revision, which was asked for after everything that was known.
    ///
    /// # Errors
    /// A list that is older than what the watch has told proves a restore.
    pub(crate) fn begin_list(&self, revision: ResourceVersion) -> Result<Listing, Regression> {
        let observed = self.observed();
        if revision < observed {
            return Err(Regression::List { kind: T::PLURAL, listed: revision, observed });
        }
        let generation = self.generation.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        Ok(Listing { generation, revision })
    }

    /// Whether a listed object is known at this very revision, so that it need not be read again. Marks it.
    ///
    /// # Errors
    /// An object that is older than it was, at a revision the list should show, proves a restore.
    pub(crate) fn is_listed_as_known(
        &self,
        list: &Listing,
        key: &T::Key,
        uid: &Uid,
        revision: ResourceVersion,
    ) -> Result<bool, Regression> {
        if self.unreadable.read().contains_key(key) {
            return Ok(false);
        }
        let Some(mut row) = self.objects.get_mut(key) else { return Ok(false) };
        let known = row.object.metadata();
        let before = known.resource_version;
        if known.uid != *uid {
            return Ok(false);
        }
        if revision < before && before <= list.revision {
            let key = key.to_string();
            return Err(Regression::Object { kind: T::PLURAL, key, now: revision, before });
        }
        row.listed = list.generation;
        Ok(revision <= before)
    }

    /// Takes a listed object. Returns whether its content changed.
    pub fn list(&self, list: &Listing, object: T) -> bool {
        self.take(object, list.generation)
    }

    /// Notes that a revision of an object, listed or watched, cannot be read. Returns whether that is news.
    pub fn note_unreadable(
        &self,
        list: Option<&Listing>,
        key: &T::Key,
        (uid, revision, names): (Option<Uid>, Option<ResourceVersion>, AttachmentNames),
        error: String,
    ) -> bool {
        let listed = list.map_or_else(|| self.generation.load(Ordering::Acquire), |list| list.generation);
        // Of a revision that cannot be read, this much is known.
        let least = list.map_or_else(|| self.observed(), |list| list.revision);
        let mut is_another = false;
        if let Entry::Occupied(mut present) = self.objects.entry(key.clone()) {
            let row = present.get_mut();
            row.listed = listed;
            let known = row.object.metadata();
            // A revision of our own write, which could be read, has overtaken it.
            if revision.is_some_and(|revision| known.resource_version >= revision) {
                return false;
            }
            // Another object of that name: the one we knew is gone.
            is_another = uid.as_ref().is_some_and(|uid| known.uid != *uid);
            if is_another {
                self.counters.gone(&present.remove().object);
                self.note_final_state(key, || FinalState::Unknown);
            }
        }
        let revision = revision.unwrap_or(least);
        let marker = Unreadable { uid, revision, error, names, listed };
        let before = self.unreadable.write().insert(key.clone(), marker.clone());
        is_another || before.is_none_or(|before| before.error != marker.error)
    }

    /// What is wrong with an object whose newest revision cannot be read.
    pub fn unreadable(&self, key: &T::Key) -> Option<Unreadable> {
        self.unreadable.read().get(key).cloned()
    }

    /// All objects whose newest revision cannot be read.
    pub fn all_unreadable(&self) -> Vec<(T::Key, Unreadable)> {
        self.unreadable.read().iter().map(|(key, marker)| (key.clone(), marker.clone())).collect()
    }

    /// How many objects there are whose newest revision cannot be read.
    pub fn unreadable_count(&self) -> usize {
        self.unreadable.read().len()
    }

    /// Ends a list that reached its last page. Returns the keys of what went away.
    pub fn sweep(&self, list: &Listing) -> Vec<T::Key> {
        // From now on a late answer that is older than the list is history: none may come in behind the sweep.
        self.advance(list.revision);
        let mut gone = Vec::new();
        let stays = |key: &T::Key, row: &mut Row<T>| {
            // The watch begins at the list's revision: it tells of what is newer, and of its end.
            if row.listed == list.generation || row.object.metadata().resource_version > list.revision {
                return true;
            }
            self.note_final_state(key, || FinalState::Unknown);
            self.counters.gone(&row.object);
            gone.push(key.clone());
            false
        };
        self.objects.retain(stays);
        self.unreadable.write().retain(|key, marker| {
            let stays = marker.listed == list.generation || marker.revision > list.revision;
            if !stays {
                gone.push(key.clone());
            }
            stays
        });
        gone
    }

    /// Takes a complete list at once. Returns the keys whose content changed or that went away.
    pub fn reset(&self, list: Vec<T>) -> Vec<T::Key> {
        let newest = list.iter().map(|object| object.metadata().resource_version).max().unwrap_or_default();
        let generation = self.generation.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        let listing = Listing { generation, revision: newest.max(self.observed()) };
        let mut changed = Vec::new();
        for object in list {
            let key = object.key();
            if self.list(&listing, object) {
                changed.push(key);
            }
        }
        changed.extend(self.sweep(&listing));
        changed
    }
}

#[cfg(test)]
#[path = "listing_tests.rs"]
mod tests;
