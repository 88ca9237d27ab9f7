//! Act: requests as values, how many at once, and what their answers mean.
//!
//! * [`calls`]: each request, complete with names, UIDs and preconditions
//! * [`dispatcher`]: requests to send, in order, those under way, and how many of them there may be
//! * [`pace`]: how far apart the patches of one node are
//! * [`status_updater`]: when a node's list is written, and when it is read live
//! * [`outcomes`]: what each answer means for the state

pub mod calls;
pub(super) mod dispatcher;
pub(super) mod outcomes;
pub mod pace;
pub(super) mod status_updater;

pub use dispatcher::ATTACHMENT_CALLS;
