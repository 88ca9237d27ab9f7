//! Guard: what holds writes back although the rules would allow them, and what outlives a restart.
//!
//! * [`unreadable`]: objects that cannot be read
//! * [`second_writer_role`]: what shows another attach/detach controller
//! * [`force_waits`], [`wait_note`]: how long volumes have waited on nodes that are not Ready, carried by the lease

pub(crate) mod force_waits;
pub mod second_writer_role;
pub(crate) mod unreadable;
pub mod wait_note;
