//! Volumes that are recycled, deleted or made here, by plugins compiled into the binary.
//!
//! They are off unless asked for, for test clusters mostly, and can be left out of the build: without the feature
//! `host-plugins` there is `absent` in their place. The binder knows them by one door,
//! [`Plugins`](super::decide::view::Plugins), and by requests and reasons, which are plain values.

#[cfg(not(feature = "host-plugins"))]
mod absent;
#[cfg(feature = "host-plugins")]
mod answers;
#[cfg(feature = "host-plugins")]
mod directories;
#[cfg(feature = "host-plugins")]
mod host;
#[cfg(feature = "host-plugins")]
mod host_path;
#[cfg(feature = "host-plugins")]
pub(crate) mod operations;
pub(crate) mod options;
pub mod path;
#[cfg(feature = "host-plugins")]
mod pod_events;
#[cfg(feature = "host-plugins")]
mod recycler;

#[cfg(not(feature = "host-plugins"))]
pub use absent::{HostPlugins, PodEvents, perform};
#[cfg(feature = "host-plugins")]
pub use {directories::perform, host::HostPlugins, pod_events::PodEvents};

/// What is wrong with a flag for the plugins where they are not compiled in.
pub const ABSENT: &str = "this build has no such plugin: build it with the feature host-plugins";

/// Whether the plugins are compiled in.
pub const ARE_COMPILED_IN: bool = cfg!(feature = "host-plugins");
