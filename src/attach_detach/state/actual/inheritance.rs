//! What a process that begins to lead takes over of its predecessor, where the tables do not say it all.
//!
//! In: the state as the tables have it, and for how long at least volumes have waited on a node, as the predecessor has
//! proven. Out: what it has told of; volumes that it gave up by force; waits that have lasted for longer than this process
//! has known of them, by its own clock (S6).

use std::time::Duration;

use apiserver::{ids::NodeName, kinds::Node};
use k8s_openapi::jiff::Timestamp;

use super::{
    node_volume::{Mount, NodeVolume},
    state::ActualState,
};
use crate::attach_detach::guard::wait_note::NodeWait;
use crate::attach_detach::state::desired::volume_name::VolumeId;

impl ActualState {
    /// What is listed, or was for all that is known: a predecessor of this process has told of that. What was attached
    /// while no process led is not listed, and is still to be told.
    pub(in crate::attach_detach) fn inherit_told(&mut self) {
        for (_, node_volume) in self.volumes.values_mut().flat_map(|state| state.nodes.iter_mut()) {
            node_volume.told.is_attached = node_volume.listed || node_volume.mount == Mount::Possible;
        }
    }

    /// Forgets what is reported in use where no pod runs with it, and is elsewhere by now:
    ///
    /// * What a predecessor gave up by force: the node is not Ready. Why, does not show; but a leader forces nothing before
    ///   its time, takes off the list before it gives to another, and gave to none before that. So an attachment that is
    ///   going from another node shows it, too.
    /// * What a kubelet only announces: the volume is exclusive, another node lists it, this one has no attachment, and a
    ///   pod `waits` here.
    pub(in crate::attach_detach) fn forget_reports(
        &mut self,
        runs: impl Fn(&VolumeId, &NodeName) -> bool,
        waits: impl Fn(&VolumeId, &NodeName) -> bool,
    ) {
        for (volume, state) in &mut self.volumes {
            if !state.nodes.values().any(|node_volume| is_there(node_volume)) {
                continue;
            }
            let is_listed = state.nodes.values().any(|node_volume| node_volume.listed);
            for (name, node_volume) in state.nodes.iter_mut() {
                let node = self.nodes.get(name).and_then(|state| state.node.as_deref());
                let is_down = node.is_some_and(|node: &Node| !node.is_ready());
                let has_attachment =
                    node_volume.known.is_some() || state.foreign.values().any(|node| node == name);
                let is_announced = is_listed && !has_attachment && waits(volume, name);
                if (is_down || is_announced) && !is_there(node_volume) && !runs(volume, name) {
                    node_volume.mount = Mount::No;
                }
            }
        }
    }

    /// Whether the volume is somewhere, by more than a report that it is in use.
    pub(in crate::attach_detach) fn is_settled(&self, volume: &VolumeId) -> bool {
        self.volume(volume).is_some_and(|state| state.nodes.values().any(|node_volume| is_there(node_volume)))
    }

    /// Goes on with what has waited there for so long.
    pub fn go_on(&mut self, name: &NodeName, wait: &NodeWait, elapsed: Duration, wall: Timestamp) {
        let since = wall.checked_sub(elapsed).unwrap_or(wall);
        for volume in wait.volumes() {
            self.node_volume_mut(volume, name).undesired_since = Some(since);
        }
        let state = self.node_mut(name);
        state.unready_since = state.unready_since.map(|known| known.min(since));
    }
}

/// Whether the volume is listed there, or has an attachment, if only one that is going.
fn is_there(node_volume: &NodeVolume) -> bool {
    node_volume.listed || node_volume.known.is_some()
}
