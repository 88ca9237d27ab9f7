//! The in-tree plugins of the binder: the recycler, and volumes of directories of this machine (`kubernetes.io/host-path`).
//!
//! They are off unless asked for, for test clusters mostly, and can be left out of the build: without the feature
//! `host-plugins` only their options are here. The binder asks "reclaim this volume", "make a volume for this claim",
//! and passes the answers to their requests on, all through one door ([`Plugins`](crate::binder::state::Plugins)).
//! The pods, the directories, and how far each operation has got are known here alone.
//!
//! `plugins` is the door, `operations` the state, `recycler` and `host_path` decide the next step, `hands` acts on this
//! machine.

#[cfg(feature = "host-plugins")]
mod directories;
#[cfg(feature = "host-plugins")]
mod hands;
#[cfg(feature = "host-plugins")]
mod host_path;
#[cfg(feature = "host-plugins")]
mod operations;
pub mod options;
#[cfg(feature = "host-plugins")]
mod plugins;
#[cfg(feature = "host-plugins")]
mod recycler;
#[cfg(test)]
#[cfg(feature = "host-plugins")]
mod tests;

#[cfg(feature = "host-plugins")]
pub use {hands::MachineHands, plugins::HostPlugins};

/// What is wrong with a flag for the plugins where they are not compiled in.
pub const ABSENT: &str = "this build has no such plugin: build it with the feature host-plugins";

/// Whether the plugins are compiled in.
pub const ARE_COMPILED_IN: bool = cfg!(feature = "host-plugins");
