//! What is known at one moment, as a view.

use std::collections::BTreeSet;

use apiserver::{ids::NodeName, tables::Objects};
use litemap::LiteMap;
use tokio::time::Instant;

use super::state::{
    actual::ActualState,
    desired::{DesiredState, volume_name::VolumeId},
};
/// What is known at one moment, as a view: for those parts of the controller that take note of it, or tell it.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The tables.
    pub objects: &'a Objects,
    /// Desired state.
    pub desired: &'a DesiredState,
    /// Actual state.
    pub actual: &'a ActualState,
    /// That moment.
    pub now: Instant,
}

impl Known<'_> {
    /// The nodes that need or have the volume.
    pub(super) fn nodes_of(&self, volume: &VolumeId) -> BTreeSet<NodeName> {
        let held = self.actual.volume(volume).into_iter().flat_map(|state| state.nodes.keys());
        self.desired.nodes(volume).into_iter().flat_map(LiteMap::keys).chain(held).cloned().collect()
    }
}
