//! What users and operators are told: reasons and events, logs, metrics, traces and the debug page.

pub mod failures;
pub mod latency;
pub mod metrics;
pub mod reason;
pub(crate) mod sizes;
pub mod standing;
pub(crate) mod trails;
pub mod transitions;
