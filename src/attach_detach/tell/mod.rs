//! Tell: what users and operators see of a volume on a node.
//!
//! * [`events`]: reasons and texts of all events, `FailedAttachVolume` for multi-attach among them
//! * [`recorder`]: the way in, for all that happens; [`announcer`], [`waits`]: which events are recorded when, and how
//!   often
//! * [`unresolved`]: what a pod is told of a volume that is not in the desired state
//! * [`facts`], [`reporter`]: what a plan has to say to operators, and what becomes of it
//! * [`state`], [`reason`]: the states, and a sentence for each reason
//! * [`phases`], [`end_to_end`]: where attaches and detaches stand, and how long they take, as histograms and traces
//! * [`metrics`], [`backlog`]: counters, and what waits by driver

pub(super) mod announcer;
pub mod backlog;
pub mod end_to_end;
pub(super) mod events;
pub mod facts;
pub mod metrics;
pub mod phases;
pub(super) mod reason;
pub(super) mod recorder;
pub mod reporter;
pub mod state;
mod unresolved;
mod waits;
