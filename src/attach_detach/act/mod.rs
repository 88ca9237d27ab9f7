//! Act: requests as values, how many at once, and what their answers mean.
//!
//! * [`calls`]: each request, complete with names, UIDs and preconditions
//! * [`in_flight`]: how many requests may be under way
//! * [`pace`]: how far apart the patches of one node are
//! * [`node_status`]: when a node's list is written, and when it is read live
//! * [`outcomes`]: what each answer means for the state

pub mod calls;
pub mod in_flight;
pub(super) mod node_status;
pub(super) mod outcomes;
pub mod pace;
