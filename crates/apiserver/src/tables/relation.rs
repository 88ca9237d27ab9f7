//! Which of these belong to which of those: an index from one kind of keys to another.
//!
//! One ordered set of pairs. A map of sets would have an allocation per key, and nearly all keys have one
//! partner: of a claim's volumes, a pod's claims, an object's dependants.

use std::collections::BTreeSet;

/// Pairs of keys, found by their first.
#[derive(Clone, Debug, PartialEq, Eq, educe::Educe)]
#[educe(Default(bound(false)))]
pub struct Relation<A, B>(BTreeSet<(A, B)>);

impl<A: Clone + Ord, B: Clone + Default + Ord> Relation<A, B> {
    /// Relates two keys.
    pub fn insert(&mut self, one: A, other: B) {
        self.0.insert((one, other));
    }

    /// Relates two keys no longer.
    pub fn remove(&mut self, one: &A, other: &B) {
        self.0.remove(&(one.clone(), other.clone()));
    }

    /// The keys that this one is related to, in order. `B::default()` must be the least key.
    pub fn of(&self, one: A) -> impl Iterator<Item = &B> {
        let first = (one.clone(), B::default());
        self.0.range(first..).take_while(move |(other, _)| *other == one).map(|(_, other)| other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_are_found_in_order_and_nobody_elses() {
        let mut relation = Relation::default();
        for (one, other) in [("b", "2"), ("a", "9"), ("b", ""), ("c", "0"), ("b", "1"), ("b", "2")] {
            relation.insert(one, other);
        }
        assert_eq!(relation.of("b").collect::<Vec<_>>(), [&"", &"1", &"2"]);
        relation.remove(&"b", &"1");
        relation.remove(&"b", &"9");
        assert_eq!(relation.of("b").collect::<Vec<_>>(), [&"", &"2"]);
        assert_eq!(relation.of("d").count(), 0);
        relation.remove(&"a", &"9");
        assert_eq!(relation.of("a").count(), 0);
    }
}
