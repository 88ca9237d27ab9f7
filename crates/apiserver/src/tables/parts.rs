//! A map in parts, each with a lock of its own.
//!
//! A large map takes long to go through, and to grow. Here each takes as long as it does for a part: nobody waits for
//! another part, and a task takes one part in each of its turns.

use std::{collections::HashMap, hash::Hash};

use ahash::RandomState;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::room::give_back_room;

/// So many parts. Of two million objects one has 31 250: some milliseconds.
const PARTS: usize = 64;

pub(super) type Part<K, V> = HashMap<K, V, RandomState>;

/// Values by key. The keys are of people who may choose them, so the hashers are seeded.
#[derive(Debug)]
pub(super) struct Parts<K, V> {
    /// Which part has a key: not by what the part itself makes of it.
    hasher: RandomState,
    first: RwLock<Part<K, V>>,
    others: Box<[RwLock<Part<K, V>>]>,
}

impl<K, V> Default for Parts<K, V> {
    fn default() -> Self {
        Self {
            hasher: RandomState::default(),
            first: RwLock::default(),
            others: (1..PARTS).map(|_| RwLock::default()).collect(),
        }
    }
}

impl<K: Eq + Hash, V> Parts<K, V> {
    fn of(&self, key: &K) -> &RwLock<Part<K, V>> {
        let number = self.hasher.hash_one(key) % PARTS as u64;
        usize::try_from(number).ok().and_then(|number| self.others.get(number)).unwrap_or(&self.first)
    }

    fn all(&self) -> impl Iterator<Item = &RwLock<Part<K, V>>> {
        std::iter::once(&self.first).chain(&*self.others)
    }

    /// The part that has a key, or would have it, to be read. Nobody changes it meanwhile.
    pub(super) fn read(&self, key: &K) -> RwLockReadGuard<'_, Part<K, V>> {
        self.of(key).read()
    }

    /// The same, to be changed.
    pub(super) fn write(&self, key: &K) -> RwLockWriteGuard<'_, Part<K, V>> {
        self.of(key).write()
    }

    /// All parts one after the other, to be read.
    pub(super) fn each(&self) -> impl Iterator<Item = RwLockReadGuard<'_, Part<K, V>>> {
        self.all().map(RwLock::read)
    }

    /// The same, to be changed.
    pub(super) fn each_mut(&self) -> impl Iterator<Item = RwLockWriteGuard<'_, Part<K, V>>> {
        self.all().map(RwLock::write)
    }

    /// The keys of one part, in no order; none behind the last.
    pub(super) fn keys_in(&self, number: usize) -> Option<Vec<K>>
    where
        K: Clone,
    {
        self.all().nth(number).map(|part| part.read().keys().cloned().collect())
    }

    /// How many values there are.
    pub(super) fn len(&self) -> usize {
        self.each().map(|part| part.len()).sum()
    }

    /// Gives back the room of what is gone, where most of it is that.
    pub(super) fn give_back_room(&self) {
        self.each_mut().for_each(|mut part| give_back_room(&mut part));
    }
}

impl<K: Clone, V: Clone> Clone for Parts<K, V> {
    fn clone(&self) -> Self {
        let copy = |part: &RwLock<Part<K, V>>| RwLock::new(part.read().clone());
        Self {
            hasher: self.hasher.clone(),
            first: copy(&self.first),
            others: self.others.iter().map(copy).collect(),
        }
    }
}
