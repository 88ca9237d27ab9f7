//! What is of a group, in order: free volumes by size, and waiting claims by what they need.
//!
//! A thing that must be found by its labels, too, is in once for its group and once for each label.

use std::collections::{BTreeMap, BTreeSet};

use educe::Educe;

use super::predicate::{AccessModes, Group, Label};

/// All of a group, or those with a label.
pub(crate) type Bucket = (Group, Option<Label>);

/// What is in a bucket, by its access modes.
pub(crate) type ByModes<T> = BTreeMap<AccessModes, BTreeSet<T>>;

/// Things by group, label and access modes.
#[derive(Debug, Educe)]
#[educe(Default(bound(false)))]
pub(crate) struct Buckets<T>(BTreeMap<Bucket, ByModes<T>>);

impl<T: Ord> Buckets<T> {
    pub(crate) fn insert(&mut self, bucket: Bucket, modes: AccessModes, thing: T) {
        self.0.entry(bucket).or_default().entry(modes).or_default().insert(thing);
    }

    pub(crate) fn remove(&mut self, bucket: &Bucket, modes: AccessModes, thing: &T) {
        let Some(by_modes) = self.0.get_mut(bucket) else { return };
        if let Some(things) = by_modes.get_mut(&modes) {
            things.remove(thing);
        }
        by_modes.retain(|_, things| !things.is_empty());
        if by_modes.is_empty() {
            self.0.remove(bucket);
        }
    }

    pub(crate) fn get(&self, bucket: &Bucket) -> Option<&ByModes<T>> {
        self.0.get(bucket)
    }
}
