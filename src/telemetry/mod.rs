//! What the log says of each object, in the lines of [`telemetry::logs`].
//!
//! In: changes of state. Out: one line for each ([`transition`]), and the last ones of each object ([`history`]).
//! `docs/logs.md` is printed from the program.

#[cfg(test)]
mod docs;
pub mod history;
pub mod transition;

pub use ::telemetry::logs::*;
