//! What to do about one claim or one volume as things are now: at most one step, and why. Pure.
//!
//! [`claim`] and [`volume`] are the entries. The order of the four writes of a bind is in [`binding`].

pub mod binding;
pub mod claim;
pub(crate) mod decision;
pub(crate) mod proofs;
pub(crate) mod provisioning;
pub(crate) mod reclaim;
pub(crate) mod unreadable;
pub(crate) mod upkeep;
pub mod volume;
