//! A first-in first-out set: what is in it already is not added again, and nothing overtakes. And two of them
//! in one: what has begun goes before what is new, so that a volume that has become attached is published
//! although a thousand others have been asked for meanwhile.

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
        while let Some(key) = self.order.pop_front() {
            if self.members.remove(&key) {
                return Some(key);
            }
        }
        None
    }

    /// Takes a key out of turn. Its place is left; if it comes again before that is reached, it has that place.
    fn forget(&mut self, key: &K) {
        self.members.remove(key);
    }
}

impl<K: Clone + Eq + Hash> Extend<K> for Queue<K> {
    fn extend<I: IntoIterator<Item = K>>(&mut self, keys: I) {
        for key in keys {
            self.push(key);
        }
    }
}

/// What has begun, and what is new. A key is in one of them.
#[derive(Clone, Debug)]
pub struct Lanes<K> {
    begun: Queue<K>,
    new: Queue<K>,
}

impl<K> Default for Lanes<K> {
    fn default() -> Self {
        Self { begun: Queue::default(), new: Queue::default() }
    }
}

impl<K: Clone + Eq + Hash> Lanes<K> {
    /// Adds a key with which something has begun.
    pub fn push(&mut self, key: K) {
        self.new.forget(&key);
        self.begun.push(key);
    }

    /// Adds keys with which nothing may have begun yet.
    pub fn extend_new(&mut self, keys: impl IntoIterator<Item = K>) {
        let begun = &self.begun;
        self.new.extend(keys.into_iter().filter(|key| !begun.members.contains(key)));
    }

    /// Takes the oldest key of those with which something has begun, then of the others.
    pub fn pop(&mut self) -> Option<K> {
        self.begun.pop().or_else(|| self.new.pop())
    }
}

impl<K: Clone + Eq + Hash> Extend<K> for Lanes<K> {
    fn extend<I: IntoIterator<Item = K>>(&mut self, keys: I) {
        for key in keys {
            self.push(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l15_what_has_begun_goes_before_what_is_new_and_each_in_its_order() {
        let mut lanes = Lanes::default();
        lanes.extend_new([1, 2, 3, 1]);
        lanes.push(9);
        lanes.extend([8, 9, 2]);
        let order: Vec<_> = std::iter::from_fn(|| lanes.pop()).collect();
        assert_eq!(order, [9, 8, 2, 1, 3]);
        // What was new and has begun keeps no second place, whatever comes first.
        lanes.extend_new([1, 2, 3]);
        lanes.extend([3, 1]);
        lanes.extend_new([3, 4]);
        let order: Vec<_> = std::iter::from_fn(|| lanes.pop()).collect();
        assert_eq!(order, [3, 1, 2, 4]);
    }
}
