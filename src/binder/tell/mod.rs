//! What users and operators are told: reasons and events, logs, metrics, traces and the debug page.

pub mod diagnostics;
pub mod events;
pub mod failure;
pub mod failures;
pub mod latency;
pub mod metrics;
pub(crate) mod outbox;
pub mod reason;
pub(crate) mod record;
pub(crate) mod sizes;
pub(crate) mod trails;
pub mod transitions;
