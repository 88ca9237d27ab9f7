//! Attach/detach: which volume is on which node.
//!
//! ```text
//! pods, claims, volumes ─▶ populator ─▶ desired state ┐
//! attachments, nodes ────────────────▶ actual state ──┴▶ reconciler ─▶ executor ─▶ VolumeAttachments
//!                                                          └────────▶ status updater ─▶ node status
//! ```
//!
//! [`volume_source`], [`populator`], [`rules`], [`reconciler`] and [`status_updater`] are functions of values; the
//! [`controller`] owns the two states and turns what happened into the next requests; [`AttachDetach`]
//! is all of that at run time.

pub mod actual_state;
mod announcer;
pub mod attach_required;
mod backlog;
pub mod blocks;
pub mod calls;
pub mod clock;
pub mod controller;
pub mod desired_state;
pub mod end_to_end;
pub mod force;
pub mod force_timers;
mod foreign_acts;
mod identification;
pub mod in_tree_migration;
pub mod journey;
pub mod metrics;
mod no_op;
pub mod node_state;
mod outcomes;
pub mod pace;
mod planning;
pub mod populator;
mod publishing;
pub mod queue;
mod reason;
pub mod reconciler;
pub mod rivalry;
pub mod room;
pub mod rules;
pub mod scope;
pub mod second_controller;
mod standby;
pub mod standing;
pub mod status_updater;
mod subsystem;
mod sweep;
mod telling;
mod trails;
mod transitions;
pub mod volume_name;
pub mod volume_source;
pub mod withdrawal;

pub use controller::AttachDetachOptions;
pub use force_timers::TimersPlace;
pub use subsystem::AttachDetach;
