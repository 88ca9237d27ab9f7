//! What stands in for the plugins in a binary that was built without them.

use std::{collections::BTreeMap, path::Path};

use kube::Client;

use super::path::Directory;
use crate::{
    binder::decide::view::{BinderOptions, Plugins},
    kube_api::{
        events::{EventRecorder, Involved},
        ids::{PodKey, Uid},
    },
};

/// No plugins.
#[derive(Debug, Default)]
pub struct HostPlugins;

impl HostPlugins {
    /// There is nothing to set up.
    #[must_use]
    pub fn new(_options: &BinderOptions) -> Self {
        Self
    }
}

impl Plugins for HostPlugins {}

/// No pods are at work.
#[derive(Debug)]
pub struct PodEvents;

impl PodEvents {
    /// There is nothing to follow.
    #[must_use]
    pub fn new(_client: Client, _recorder: EventRecorder) -> Self {
        Self
    }

    /// There is nothing to follow.
    pub fn follow(&mut self, _pods: BTreeMap<Uid, (PodKey, Involved)>) {}
}

/// No decision asks for it.
///
/// # Errors
/// Always.
pub fn perform(_root: &Path, _directory: &Directory) -> Result<(), String> {
    Err(super::ABSENT.to_owned())
}
