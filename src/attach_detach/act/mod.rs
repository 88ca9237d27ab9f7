//! Act: requests as values, how many at once, and what their answers mean.
//!
//! * [`calls`]: each request, complete with names, UIDs and preconditions
//! * [`room`]: how many requests may be under way
//! * [`pace`]: how far apart the patches of one node are
//! * [`publishing`]: when a node's list is written, and when it is read live
//! * [`outcomes`]: what each answer means for the state

pub mod calls;
pub(super) mod outcomes;
pub mod pace;
pub(super) mod publishing;
pub mod room;
