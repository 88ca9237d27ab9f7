//! What to do about one claim or one volume as things are now: at most one step, and why. Pure.
//!
//! [`claim`] and [`volume`] are the entries. The order of the four writes of a bind is in [`binding`].

pub mod annotations;
pub mod binding;
pub mod claim;
pub mod decision;
pub mod provisioning;
pub mod reclaim;
pub mod upkeep;
pub mod view;
pub mod volume;
