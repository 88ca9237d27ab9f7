//! Attach/detach: which volume is on which node.
//!
//! ```text
//! pods, claims, volumes ─▶ populator ─▶ desired state ┐
//! attachments, nodes ────────────────▶ actual state ──┴▶ reconciler ─▶ executor ─▶ VolumeAttachments
//!                                                          └────────▶ status updater ─▶ node status
//! ```
//!
//! [`populator`], [`rules`], [`reconciler`] and [`status_updater`] are functions of values; the
//! [`Controller`] owns the two states and is the only one to change them.

pub mod actual_state;
mod announcer;
pub mod backoff;
mod controller;
pub mod desired_state;
mod executor;
mod metrics;
mod outcomes;
pub mod populator;
mod queue;
pub mod reconciler;
pub mod rules;
pub mod status_updater;
pub mod volume_name;

pub use controller::Controller;
