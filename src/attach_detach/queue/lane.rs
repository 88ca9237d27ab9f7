//! Lane: volumes to look at, in order, each with the nodes that it is to be looked at on.
//!
//! In: volumes and nodes. Out: the next one; of a volume at most so many nodes, and the others have another turn, behind
//! the volumes that wait (fair).

use std::{
    collections::{BTreeSet, HashMap},
    iter,
};

use apiserver::ids::NodeName;

use crate::{attach_detach::state::desired::volume_name::VolumeId, controller::queue::Queue};

/// Volumes in order, each with its nodes.
#[derive(Clone, Debug, Default)]
pub struct VolumeLane {
    pub volumes: Queue<VolumeId>,
    pub nodes: HashMap<VolumeId, BTreeSet<NodeName>>,
}

impl VolumeLane {
    /// Adds a volume on these nodes.
    pub fn push(&mut self, volume: VolumeId, nodes: impl IntoIterator<Item = NodeName>) {
        self.nodes.entry(volume.clone()).or_default().extend(nodes);
        self.volumes.push(volume);
    }

    /// Takes the oldest volume, with at most so many nodes.
    pub fn pop(&mut self, most: usize) -> Option<(VolumeId, BTreeSet<NodeName>)> {
        let volume = self.volumes.pop()?;
        let mut nodes = self.nodes.remove(&volume).unwrap_or_default();
        if self.nodes.is_empty() {
            // A burst made it large. To make a million entries fit while they are taken holds up everything else.
            self.nodes = HashMap::new();
        }
        let turn = iter::from_fn(|| nodes.pop_first()).take(most).collect();
        if !nodes.is_empty() {
            self.push(volume.clone(), nodes);
        }
        Some((volume, turn))
    }

    /// Takes a volume out of turn on these nodes.
    pub fn forget(&mut self, volume: &VolumeId, done: &BTreeSet<NodeName>) {
        let Some(nodes) = self.nodes.get_mut(volume) else { return };
        for node in done {
            nodes.remove(node);
        }
        if nodes.is_empty() {
            self.nodes.remove(volume);
            self.volumes.forget(volume);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After a take-over of a large cluster a million volumes are in it.
    #[test]
    fn l15_no_volume_that_is_taken_moves_all_others() {
        let mut lane = VolumeLane::default();
        for number in 0..10_000 {
            lane.push(VolumeId::csi(&"d".into(), &number.to_string()), [NodeName::from("n")]);
        }
        let room = lane.nodes.capacity();
        while lane.nodes.len() > 1 {
            lane.pop(1).unwrap();
            assert!(lane.nodes.capacity() > room / 2);
        }
        lane.pop(1).unwrap();
        assert_eq!(lane.nodes.capacity(), 0, "an empty one gives it back");
    }
}
