//! Which volume a claim gets, and which claim gets a volume that has become free.
//!
//! [`predicate`] says whether one volume suits one claim. [`choose_volume`] finds the smallest that does;
//! [`choose_claim`] is its mirror, the largest claim that a free volume suits: the two must agree.

mod buckets;
pub(crate) mod choose_claim;
pub(crate) mod choose_volume;
pub(crate) mod predicate;

pub(crate) use crate::controller::quantity;
