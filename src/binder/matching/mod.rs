//! Which volume a claim gets, which claim gets a volume that has become free, and why others do not fit.
//!
//! [`predicate`] says whether one volume suits one claim. [`choose_volume`] finds the smallest that does;
//! [`choose_claim`] is its mirror, the largest claim that a free volume suits: the two must agree.

pub mod choose_claim;
pub mod choose_volume;
pub mod nearest;
pub mod predicate;
pub mod quantity;
