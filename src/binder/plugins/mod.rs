//! Volumes that are recycled, made or deleted here, by plugins compiled into the binder. Off unless asked for.

pub mod directories;
pub mod host_path;
pub mod pod_events;
pub mod recycler;
pub(crate) mod run_outcomes;
pub mod runs;
