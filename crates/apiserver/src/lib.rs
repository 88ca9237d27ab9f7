//! The edge to the API server of Kubernetes, for controllers that decide on values.
//!
//! ```text
//!  API server ─▶ tables::watch ─▶ wire, protobuf ─▶ kinds (narrow) ─▶ tables: one per kind ─▶ keys that changed
//!  API server ◀─ call (single requests, within the term) ◀─ requests with UID and revision
//!             ◀─ elector (lease, leadership) · events · connect (credentials)
//! ```
//!
//! This is the only place that knows URLs, status codes and bodies. Of volumes it knows the narrow kinds, and nothing
//! that is decided about them.

pub mod backoff;
pub mod call;
mod chain;
pub mod connect;
pub mod elector;
pub mod events;
pub mod ids;
pub mod kinds;
pub mod leadership;
pub mod lease;
pub mod lease_note;
pub mod managed_fields;
pub mod metrics;
pub mod progress;
mod protobuf;
pub mod pulse;
pub mod restore;
pub mod room;
pub mod sight;
pub(crate) mod suspension;
pub mod tables;
pub mod text;
pub mod unfenced;
pub mod wire;

pub use chain::error_chain;
