//! Guard: what holds writes back although the rules would allow them, and what outlives a restart.
//!
//! * [`blocks`]: the reasons to stand off: a second writer, a restore of etcd, an object that cannot be read
//! * [`evidence`], [`second_writer`]: what shows another attach/detach controller, and where that holds writes back
//! * [`force_timers`]: how long detaches have waited for nodes that are not Ready, kept in a ConfigMap

pub mod blocks;
pub mod evidence;
pub mod force_timers;
pub(super) mod second_writer;
