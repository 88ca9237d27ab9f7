//! What a daemon tells of itself: metrics, logs, traces and profiles.
//!
//! ```text
//!  measurements ─▶ metrics ─▶ text for Prometheus, with exemplars that name traces
//!  tracing events ─▶ logs ─▶ lines on stderr or in a file
//!  operations that ended ─▶ traces ─▶ spans over OTLP
//!  a query ─▶ profile ─▶ a profile for pprof
//! ```
//!
//! Nothing here knows Kubernetes or volumes. What only mooring has of it (its reference of metrics, its line for a
//! change of state) is in the daemon.

pub mod logs;
pub mod metrics;
pub mod profile;
pub mod traces;
