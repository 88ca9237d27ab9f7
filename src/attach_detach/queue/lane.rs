//! Lane: volumes to look at, in order, each with the nodes that it is to be looked at on.
//!
//! In: volumes and nodes. Out: the next one; of a volume at most so many nodes, and the others have another turn, behind
//! the volumes that wait (fair).

use std::{
    collections::{BTreeSet, HashMap},
    iter,
};

use apiserver::ids::NodeName;

use crate::{
    attach_detach::{decide::scope::Scope, state::desired::volume_name::VolumeId},
    controller::queue::Queue,
};

/// Volumes in order, each with its scope.
#[derive(Clone, Debug, Default)]
pub struct VolumeLane {
    pub volumes: Queue<VolumeId>,
    /// The nodes of those that are not to be looked at on all.
    pub nodes: HashMap<VolumeId, BTreeSet<NodeName>>,
}

impl VolumeLane {
    /// Whether a volume is to be looked at on all its nodes.
    pub fn is_whole(&self, volume: &VolumeId) -> bool {
        self.volumes.contains(volume) && !self.nodes.contains_key(volume)
    }

    /// Adds a volume on these nodes.
    pub fn push(&mut self, volume: VolumeId, scope: Scope) {
        match scope {
            Scope::All => {
                self.nodes.remove(&volume);
            }
            Scope::Nodes(_) if self.is_whole(&volume) => return,
            Scope::Nodes(nodes) => self.nodes.entry(volume.clone()).or_default().extend(nodes),
        }
        self.volumes.push(volume);
    }

    /// Takes the oldest volume, with at most so many nodes unless it is to be looked at on all.
    pub fn pop(&mut self, most: usize) -> Option<(VolumeId, Scope)> {
        let volume = self.volumes.pop()?;
        let Some(mut nodes) = self.nodes.remove(&volume) else { return Some((volume, Scope::All)) };
        let turn = iter::from_fn(|| nodes.pop_first()).take(most).collect();
        if !nodes.is_empty() {
            self.push(volume.clone(), Scope::Nodes(nodes));
        }
        Some((volume, Scope::Nodes(turn)))
    }

    /// Takes a volume out of turn on these nodes.
    pub fn forget(&mut self, volume: &VolumeId, scope: &Scope) {
        if let Scope::Nodes(done) = scope {
            let Some(nodes) = self.nodes.get_mut(volume) else { return };
            for node in done {
                nodes.remove(node);
            }
            if !nodes.is_empty() {
                return;
            }
        }
        self.nodes.remove(volume);
        self.volumes.forget(volume);
    }
}
