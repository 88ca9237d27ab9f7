//! A map of few entries: sorted, in one allocation of their size.
//!
//! Most volumes have one node and most pods one volume, and there are a hundred thousand of them. A `BTreeMap`
//! makes room for eleven entries with its first: of the pairs of attach/detach alone that was 3.7 KB a volume.
//! An insertion costs as many moves as there are entries behind it, so large values belong in a [`Box`].

use std::{borrow::Borrow, slice};

/// A map of few entries, in order of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VecMap<K, V>(Vec<(K, V)>);

/// Up to here there is room for no more entries than there are.
const EXACT: usize = 4;

impl<K, V> Default for VecMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> VecMap<K, V> {
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
    {
        self.0.binary_search_by(|(other, _)| other.borrow().cmp(key))
    }

    /// The value under a key.
    #[must_use]
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.find(key).ok().and_then(|index| self.0.get(index)).map(|(_, value)| value)
    }

    /// The value under a key, to be changed.
    #[must_use]
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let index = self.find(key).ok()?;
        self.0.get_mut(index).map(|(_, value)| value)
    }

    /// Whether there is a value under a key.
    #[must_use]
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_ok()
    }

    /// Puts a value under a key. Returns the one that was there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(index) => self.0.get_mut(index).map(|(_, before)| std::mem::replace(before, value)),
            Err(index) => {
                self.make_room();
                self.0.insert(index, (key, value));
                None
            }
        }
    }

    fn make_room(&mut self) {
        if self.0.len() < EXACT {
            self.0.reserve_exact(1);
        }
    }

    /// Takes the value under a key away.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let index = self.find(key).ok()?;
        Some(self.0.remove(index).1)
    }

    /// Keeps the entries that are to be kept.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        self.0.retain_mut(|(key, value)| keep(key, value));
    }
}

impl<K: Ord + Clone, V: Default> VecMap<K, V> {
    /// The value under a key, made if there is none.
    pub fn get_or_default(&mut self, key: &K) -> &mut V {
        let index = self.find(key).unwrap_or_else(|index| {
            self.make_room();
            self.0.insert(index, (key.clone(), V::default()));
            index
        });
        #[expect(clippy::indexing_slicing, reason = "found, or put there")]
        &mut self.0[index].1
    }
}

impl<K, V> VecMap<K, V> {
    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entries, in order of their keys.
    #[must_use]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&K, &V)> + Clone {
        self.into_iter()
    }

    /// The entries, their values to be changed.
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = (&K, &mut V)> {
        self.0.iter_mut().map(|(key, value)| (&*key, value))
    }

    /// The keys, in order.
    #[must_use]
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &K> + Clone {
        self.0.iter().map(|(key, _)| key)
    }

    /// The values, in order of their keys.
    #[must_use]
    pub fn values(&self) -> impl ExactSizeIterator<Item = &V> + Clone {
        self.0.iter().map(|(_, value)| value)
    }
}

/// Entries of a [`VecMap`], in order.
pub type Iter<'a, K, V> = std::iter::Map<slice::Iter<'a, (K, V)>, fn(&'a (K, V)) -> (&'a K, &'a V)>;

impl<'a, K, V> IntoIterator for &'a VecMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(|(key, value)| (key, value))
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for VecMap<K, V> {
    /// Of two values under one key the later one counts.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::default();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn one_entry_takes_the_room_of_one() {
        let mut map = VecMap::default();
        for size in 1..=EXACT {
            map.insert(size, "value");
            assert_eq!(map.0.capacity(), size);
        }
    }

    #[test]
    fn it_is_a_btree_map() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..200 {
            let (mut map, mut model) = (VecMap::default(), BTreeMap::new());
            for _ in 0..40 {
                let (key, value) = (random.u8(..8), random.u8(..4));
                match random.u8(..4) {
                    0 => assert_eq!(map.insert(key, value), model.insert(key, value)),
                    1 => assert_eq!(map.remove(&key), model.remove(&key)),
                    2 => {
                        *map.get_or_default(&key) ^= value;
                        *model.entry(key).or_default() ^= value;
                    }
                    _ => {
                        map.retain(|key, kept| *key != value || *kept != value);
                        model.retain(|key, kept| *key != value || *kept != value);
                    }
                }
                assert_eq!(map.get(&key), model.get(&key));
                assert_eq!(map.get_mut(&key).copied(), model.get(&key).copied());
                assert_eq!(map.contains_key(&key), model.contains_key(&key));
                assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
                assert!(map.iter().eq(&model));
            }
            let again: VecMap<u8, u8> = model.clone().into_iter().rev().collect();
            assert_eq!(map, again);
        }
    }
}
