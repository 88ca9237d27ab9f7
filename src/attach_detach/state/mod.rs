//! The two states that are compared: [`desired`], which volume must be on which node, and [`actual`], where volumes are
//! attached or may be.

pub mod actual;
pub mod desired;

use litemap::LiteMap;

/// Makes room in an empty map for one entry, where its first would make room for four: most volumes have one node and most
/// pods one volume, and there are a hundred thousand of them.
fn make_room_for_one<K: Ord, V>(map: &mut LiteMap<K, V>) {
    if map.is_empty() {
        *map = LiteMap::with_capacity(1);
    }
}
