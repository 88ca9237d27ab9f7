//! How many at once: in all, and of one user.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Places that are taken and given back. A clone is the same.
#[derive(Clone, Debug)]
pub(super) struct Places {
    most: usize,
    each: usize,
    taken: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Places {
    pub fn new(most: usize, each: usize) -> Self {
        Self { most, each, taken: Arc::default() }
    }

    /// A place for a user, if there is one.
    pub fn take(&self, user: &str) -> Option<Place> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if taken.values().sum::<usize>() >= self.most {
            return None;
        }
        let own = taken.entry(user.to_owned()).or_default();
        if *own >= self.each {
            return None;
        }
        *own += 1;
        Some(Place { of: user.to_owned(), taken: Arc::clone(&self.taken) })
    }
}

/// A place; given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    of: String,
    taken: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = taken.get_mut(&self.of) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                taken.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_places_in_all_and_so_many_of_one() {
        let places = Places::new(3, 2);
        let held: Vec<_> = ["a", "a", "b"].map(|user| places.take(user).unwrap()).into();
        assert!(["a", "b", "c"].iter().all(|user| places.take(user).is_none()));
        drop(held);
        let held: Vec<_> = ["a", "a"].map(|user| places.take(user).unwrap()).into();
        assert!(places.take("a").is_none() && places.take("c").is_some());
        drop(held);
        assert!(places.taken.lock().unwrap().is_empty());
    }
}
