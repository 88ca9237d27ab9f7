//! Tell: what users and operators see of a volume on a node.
//!
//! * [`events`]: reasons and texts of all events, `FailedAttachVolume` for multi-attach among them
//! * [`recorder`]: the way in, for all that happens; [`announcer`], [`waits`]: which events are recorded when, and how
//!   often
//! * [`unresolved`]: what a pod is told of a volume that is not in the desired state
//! * [`report`], [`reporter`]: what a plan has to say to operators, and what becomes of it
//! * [`diagnostics`]: `/debug/attach-detach`: what waits for what, since when
//! * [`reason`]: a sentence for each reason
//! * [`transitions`]: a log line for each change of a volume on a node
//! * [`phases`], [`end_to_end`]: where attaches and detaches stand, and how long they take, as histograms and traces
//! * [`operations`]: the same as kube-controller-manager measures it
//! * [`metrics`], [`backlog`]: counters, and what waits by driver

pub(super) mod announcer;
pub(super) mod backlog;
pub mod diagnostics;
pub mod end_to_end;
pub(super) mod events;
pub mod metrics;
pub mod operations;
pub mod phases;
pub(super) mod reason;
pub(super) mod recorder;
pub mod report;
pub mod reporter;
mod transitions;
mod unresolved;
mod waits;
