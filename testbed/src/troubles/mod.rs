//! A cluster in trouble: its troubles and their times.
//!
//! The [`script`] is a pure function of a seed, the [`stage`] is the cluster with all its stand-ins, and the [`director`]
//! executes the script there. The demo shows it, and a story checks that it ends well.

pub mod director;
pub mod script;
pub mod stage;
