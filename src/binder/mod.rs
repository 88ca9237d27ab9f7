//! The binder: brings claims and volumes together, and takes them apart again.
//!
//! In: claims, volumes, classes and pods from the shared tables. Out: patches of claims and volumes,
//! events, metrics. [`claim`] and [`volume`] decide, purely; [`planner`] owns what has to be
//! remembered between decisions and says which may run now; [`controller`] runs them.
//!
//! ```text
//! changes ─▶ planner: indexes, dirty keys ─▶ claim | volume: Decision ─▶ Op ─▶ controller ─▶ API server
//!               ▲                                                                  │
//!               └──────────────────────────── outcome ─────────────────────────────┘
//! ```

pub mod annotations;
pub mod binding;
mod changes;
pub mod claim;
mod class_reads;
mod class_wakes;
pub mod controller;
pub mod decision;
pub mod directories;
pub mod doubt;
pub mod failures;
pub mod host_path;
pub mod index;
pub mod latency;
mod looks;
pub mod matching;
pub mod metrics;
pub mod nearest;
pub mod op;
pub mod outcomes;
pub mod patches;
pub mod planner;
pub mod pod_events;
pub mod provisioning;
pub mod quantity;
pub mod queue;
pub mod reason;
pub mod reclaim;
pub mod recycle;
pub mod rivals;
mod run_outcomes;
pub mod runs;
mod sizes;
pub mod standing;
#[cfg(test)]
mod tests;
mod trails;
pub mod transitions;
mod unconfirmed;
mod unreadable;
pub mod upkeep;
pub mod view;
pub mod volume;
pub mod waiting;

pub use controller::Binder;
pub use recycle::{Recycler, Recyclers};
pub use standing::Standing;
pub use view::BinderOptions;
