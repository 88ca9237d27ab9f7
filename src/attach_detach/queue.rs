//! A first-in first-out set: what is in it already is not added again, and nothing overtakes.

use std::{
    collections::{HashSet, VecDeque},
    hash::Hash,
};

/// Keys to look at, in the order in which they became dirty.
#[derive(Clone, Debug)]
pub struct Queue<K> {
    order: VecDeque<K>,
    members: HashSet<K>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self { order: VecDeque::new(), members: HashSet::new() }
    }
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// Adds a key unless it is in.
    pub fn push(&mut self, key: K) {
        if self.members.insert(key.clone()) {
            self.order.push_back(key);
        }
    }

    /// Takes the oldest key.
    pub fn pop(&mut self) -> Option<K> {
        let key = self.order.pop_front()?;
        self.members.remove(&key);
        Some(key)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.order.clear();
        self.members.clear();
    }
}

impl<K: Clone + Eq + Hash> Extend<K> for Queue<K> {
    fn extend<I: IntoIterator<Item = K>>(&mut self, keys: I) {
        for key in keys {
            self.push(key);
        }
    }
}
