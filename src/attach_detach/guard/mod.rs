//! Guard: what holds writes back although the rules would allow them, and what outlives a restart.
//!
//! * [`blocks`]: the reasons to stand off: a second controller, a restore of etcd, an object that cannot be read
//! * [`foreign_acts`], [`second_controller`]: how another attach/detach controller is found out
//! * [`force_timers`]: how long detaches have waited for nodes that are not Ready, kept in a ConfigMap

pub mod blocks;
pub mod force_timers;
pub(super) mod foreign_acts;
pub mod second_controller;
