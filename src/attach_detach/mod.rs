//! Attach/detach: which volume is on which node.
//!
//! ```text
//! pods, claims, volumes ─▶ desired ┐
//! attachments, nodes ────▶ actual ─┴▶ decide ─▶ act ─▶ VolumeAttachments, node status
//!                              guard ───┘  └───▶ tell ─▶ events, reports, metrics, logs
//! ```
//!
//! The rooms, in the order in which a change goes through them:
//!
//! * [`desired`]: from a pod to the nodes that must have a volume (populator, volume names, in-tree migration)
//! * [`actual`]: where volumes are attached or may be, and what each node's status says
//! * [`decide`]: pure: multi-attach, detach order, force detach after `maxWaitForUnmountDuration`, the node's list
//! * [`act`]: requests as values, how many at once, and what their answers mean
//! * [`tell`]: events, reports, metrics, logs and phases
//! * [`guard`]: what holds writes back or outlives a restart: a second controller, waits for force
//!
//! [`caches`] are both states and the work [`queue`] that they feed; they take changes in. [`controller`] hands what is
//! [learnt](caches::Learnt) by that to the parts that remember something else: dispatcher, recorder, second controller,
//! waits for force, which are handed what they need to see ([`Known`](known::Known)). [`planning`] gives the volumes
//! of the queue their turn; [`commit`] does what follows from a verdict; [`AttachDetach`] is all of that at run time.

pub mod act;
pub mod actual;
mod caches;
pub mod clock;
mod commit;
pub mod controller;
pub mod decide;
pub mod desired;
pub mod dry_run;
pub mod guard;
mod known;
pub mod options;
mod planning;
mod queue;
mod stand_off;
mod standby;
mod subsystem;
pub mod tell;

pub use options::AttachDetachOptions;
pub use subsystem::AttachDetach;
