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
    parts: Box<[RwLock<Part<K, V>>; PARTS]>,
}

impl<K, V> Default for Parts<K, V> {
    fn default() -> Self {
        Self { hasher: RandomState::default(), parts: Box::new(std::array::from_fn(|_| RwLock::default())) }
    }
}

impl<K: Eq + Hash, V> Parts<K, V> {
    fn of(&self, key: &K) -> &RwLock<Part<K, V>> {
        let [first, others @ ..] = &*self.parts;
        let number = usize::try_from(self.hasher.hash_one(key) % PARTS as u64).unwrap_or_default();
        others.get(number).unwrap_or(first)
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
        self.parts.iter().map(RwLock::read)
    }

    /// The same, to be changed.
    pub(super) fn each_mut(&self) -> impl Iterator<Item = RwLockWriteGuard<'_, Part<K, V>>> {
        self.parts.iter().map(RwLock::write)
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
        Self { hasher: self.hasher.clone(), parts: Box::new(self.parts.each_ref().map(copy)) }
    }
}
