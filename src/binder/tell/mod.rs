//! What users and operators are told: reasons and events, logs, metrics, traces and the debug page.

pub(crate) mod events;
pub(crate) mod failure;
pub mod latency;
pub(crate) mod metrics;
pub(crate) mod reason;
pub(crate) mod recorder;
pub(crate) mod sizes;
pub(crate) mod state;
