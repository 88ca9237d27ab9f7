//! A cluster in trouble: what befalls it, and when.
//!
//! The [`script`] is a pure function of a seed, the [`stage`] is the cluster with all its stand-ins, and the [`director`]
//! does there what the script says. The demo shows it; a story checks that it ends well.

pub mod director;
pub mod script;
pub mod stage;
