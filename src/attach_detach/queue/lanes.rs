//! Volumes to look at, in two lanes: what has begun goes before what is new, so that a volume that has become attached
//! is published although a thousand others have been asked for meanwhile.
//!
//! In: volumes, each with the nodes that it is to be looked at on. Out: the next one; of a volume at most so many
//! nodes, and the others have another turn, behind the volumes that wait (fair).

use std::{
    collections::{BTreeSet, HashMap},
    iter,
};

use tokio::time::Instant;

use crate::{
    attach_detach::{decide::scope::Scope, desired::volume_name::VolumeId},
    controller::queue::Queue,
    kube_api::ids::NodeName,
    metrics::QueueCounts,
};

/// Volumes in order, each with its scope.
#[derive(Clone, Debug, Default)]
struct Lane {
    volumes: Queue<VolumeId>,
    /// The nodes of those that are not to be looked at on all.
    nodes: HashMap<VolumeId, BTreeSet<NodeName>>,
}

impl Lane {
    fn is_whole(&self, volume: &VolumeId) -> bool {
        self.volumes.contains(volume) && !self.nodes.contains_key(volume)
    }

    fn push(&mut self, volume: VolumeId, scope: Scope) {
        match scope {
            Scope::All => {
                self.nodes.remove(&volume);
            }
            Scope::Nodes(_) if self.is_whole(&volume) => return,
            Scope::Nodes(nodes) => self.nodes.entry(volume.clone()).or_default().extend(nodes),
        }
        self.volumes.push(volume);
    }

    fn pop(&mut self, most: usize) -> Option<(VolumeId, Scope)> {
        let volume = self.volumes.pop()?;
        let Some(mut nodes) = self.nodes.remove(&volume) else { return Some((volume, Scope::All)) };
        let turn = iter::from_fn(|| nodes.pop_first()).take(most).collect();
        if !nodes.is_empty() {
            self.push(volume.clone(), Scope::Nodes(nodes));
        }
        Some((volume, Scope::Nodes(turn)))
    }

    fn forget(&mut self, volume: &VolumeId, scope: &Scope) {
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

/// Volumes with which something has begun, and those that are new. A volume, or a node of one that is shared, is in
/// one of them.
#[derive(Clone, Debug, Default)]
pub struct Lanes {
    begun: Lane,
    new: Lane,
}

impl Lanes {
    /// It is that time.
    pub fn at(&mut self, now: Instant) {
        self.begun.volumes.at(now);
        self.new.volumes.at(now);
    }

    /// What was counted since this was last asked.
    pub fn take_counts(&mut self) -> QueueCounts {
        let (mut counts, new) = (self.begun.volumes.take_counts(), self.new.volumes.take_counts());
        counts.adds += new.adds;
        counts.waits.add(&new.waits);
        counts.depth += new.depth;
        counts
    }

    /// Adds a volume with which something has begun.
    pub fn push(&mut self, volume: VolumeId, scope: Scope) {
        self.new.forget(&volume, &scope);
        self.begun.push(volume, scope);
    }

    /// Adds a volume with which nothing may have begun yet.
    pub fn push_new(&mut self, volume: VolumeId, scope: Scope) {
        if self.begun.is_whole(&volume) {
            return;
        }
        let scope = match (scope, self.begun.nodes.get(&volume)) {
            (Scope::Nodes(nodes), Some(begun)) => Scope::Nodes(nodes.difference(begun).cloned().collect()),
            (scope, _) => scope,
        };
        if !matches!(&scope, Scope::Nodes(nodes) if nodes.is_empty()) {
            self.new.push(volume, scope);
        }
    }

    /// Takes the oldest volume of those with which something has begun, with at most so many nodes unless it is to be
    /// looked at on all.
    pub fn pop_begun(&mut self, most: usize) -> Option<(VolumeId, Scope)> {
        self.begun.pop(most)
    }

    /// Likewise the oldest of the others.
    pub fn pop_new(&mut self, most: usize) -> Option<(VolumeId, Scope)> {
        self.new.pop(most)
    }

    /// Takes a volume out of turn on these nodes.
    pub fn forget(&mut self, volume: &VolumeId, scope: &Scope) {
        self.begun.forget(volume, scope);
        self.new.forget(volume, scope);
    }

    /// Whether something has begun with no volume.
    pub fn none_begun(&self) -> bool {
        self.begun.volumes.is_empty()
    }

    /// Whether no volume is new.
    pub fn none_new(&self) -> bool {
        self.new.volumes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{kube_api::ids::DriverName, metrics::WaitTimes};

    fn volume(number: u32) -> VolumeId {
        VolumeId::csi(&DriverName::from("d"), &number.to_string())
    }

    fn nodes(names: &str) -> Scope {
        Scope::Nodes(names.split(' ').map(NodeName::from).collect())
    }

    fn order(lanes: &mut Lanes, most: usize) -> Vec<(VolumeId, Scope)> {
        iter::from_fn(|| lanes.pop_begun(most).or_else(|| lanes.pop_new(most))).collect()
    }

    fn begin(lanes: &mut Lanes, numbers: &[u32]) {
        for number in numbers {
            lanes.push(volume(*number), Scope::All);
        }
    }

    fn come(lanes: &mut Lanes, numbers: &[u32]) {
        for number in numbers {
            lanes.push_new(volume(*number), Scope::All);
        }
    }

    fn whole(numbers: &[u32]) -> Vec<(VolumeId, Scope)> {
        numbers.iter().map(|number| (volume(*number), Scope::All)).collect()
    }

    #[test]
    fn l15_what_has_begun_goes_before_what_is_new_and_each_in_its_order() {
        let mut lanes = Lanes::default();
        come(&mut lanes, &[1, 2, 3, 1]);
        begin(&mut lanes, &[9, 8, 9, 2]);
        assert_eq!(order(&mut lanes, 1), whole(&[9, 8, 2, 1, 3]));
        // What was new and has begun keeps no second place, in either order.
        come(&mut lanes, &[1, 2, 3]);
        begin(&mut lanes, &[3, 1]);
        come(&mut lanes, &[3, 4]);
        assert_eq!(order(&mut lanes, 1), whole(&[3, 1, 2, 4]));
        assert!(lanes.none_begun() && lanes.none_new());
    }

    #[test]
    fn l15_a_volume_has_a_turn_for_so_many_nodes_and_then_others_have_theirs() {
        let mut lanes = Lanes::default();
        lanes.push_new(volume(1), nodes("a b c d e"));
        lanes.push_new(volume(2), Scope::All);
        lanes.push_new(volume(1), nodes("f"));
        let turn = |number, names: &str| (volume(number), nodes(names));
        assert_eq!(order(&mut lanes, 4), [turn(1, "a b c d"), (volume(2), Scope::All), turn(1, "e f")]);
    }

    #[test]
    fn a_node_of_a_volume_has_begun_or_is_new() {
        let mut lanes = Lanes::default();
        lanes.push_new(volume(1), nodes("a b c"));
        lanes.push(volume(1), nodes("b"));
        lanes.push_new(volume(1), nodes("b"));
        assert_eq!(order(&mut lanes, 9), [(volume(1), nodes("b")), (volume(1), nodes("a c"))]);
        lanes.push_new(volume(1), nodes("a"));
        lanes.push(volume(1), Scope::All);
        lanes.push(volume(1), nodes("a"));
        lanes.push_new(volume(1), nodes("b"));
        assert_eq!(order(&mut lanes, 9), whole(&[1]));
        lanes.push(volume(1), nodes("a"));
        lanes.push_new(volume(1), nodes("b"));
        lanes.forget(&volume(1), &Scope::All);
        assert_eq!(order(&mut lanes, 9), []);
    }

    #[test]
    fn what_waits_is_counted_and_how_long_it_has() {
        let start = Instant::now();
        let second = |second| start + Duration::from_secs(second);
        let mut lanes = Lanes::default();
        lanes.at(start);
        come(&mut lanes, &[1, 2, 1]);
        lanes.at(second(3));
        begin(&mut lanes, &[3]);
        let counted = |adds, waits: &[u64], depth| {
            let waits = waits.iter().copied().map(Duration::from_secs).collect::<WaitTimes>();
            QueueCounts { adds, retries: 0, waits, depth }
        };
        assert_eq!(lanes.take_counts(), counted(3, &[], 3));
        lanes.at(second(5));
        lanes.pop_begun(1).unwrap();
        lanes.forget(&volume(1), &Scope::All);
        assert_eq!(lanes.take_counts(), counted(0, &[2, 5], 1));
        lanes.at(second(9));
        come(&mut lanes, &[1]);
        assert_eq!(order(&mut lanes, 1), whole(&[2, 1]));
        assert_eq!(lanes.take_counts(), counted(1, &[9, 0], 0));
    }
}
