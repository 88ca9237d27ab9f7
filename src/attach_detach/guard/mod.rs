//! Guard: what holds writes back although the rules would allow them, and what outlives a restart.
//!
//! * [`blocks`]: the reasons to stand off: a second writer, a restore of etcd, an object that cannot be read
//! * [`evidence`], [`second_writer`]: what shows another attach/detach controller, and where that holds writes back
//! * [`force_waits`], [`wait_note`]: how long volumes have waited on nodes that are not Ready, carried by the lease

pub mod blocks;
pub mod evidence;
pub mod force_waits;
pub(super) mod second_writer;
pub mod wait_note;
