//! Room that maps keep of entries that are gone: a map never shrinks by itself, and twenty thousand volumes that
//! came and went would leave megabytes.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash},
};

/// A map with room for so many times what is in it gives room back: often enough to be bounded by what is there,
/// rarely enough to cost little for each entry that went.
const MUCH_ROOM: usize = 4;
/// Less than this many entries are not worth it.
const LITTLE: usize = 64;

/// Gives back room if most of it is not needed. Called when entries went, its cost is shared by them.
pub fn give_back_room<K: Eq + Hash, V, S: BuildHasher>(map: &mut HashMap<K, V, S>) {
    if has_much_room(map.capacity(), map.len()) {
        map.shrink_to_fit();
    }
}

/// Whether most of a map's room is not needed.
pub(crate) fn has_much_room(capacity: usize, len: usize) -> bool {
    capacity > MUCH_ROOM * len.max(LITTLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_room_for_what_is_in_it_and_not_much_more() {
        let mut map: HashMap<usize, usize> = (0..20_000).map(|key| (key, key)).collect();
        for key in 0..20_000 {
            map.remove(&key);
            give_back_room(&mut map);
            assert!(map.capacity() <= MUCH_ROOM * map.len().max(LITTLE), "{}", map.len());
        }
    }
}
