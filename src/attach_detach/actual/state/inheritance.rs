//! What a new leader takes over of the waits of its predecessor (S6).
//!
//! In: for how long at least volumes have waited on a node, as the predecessor has proven. Out: waits that have lasted for
//! longer than this process has known of them, by its own clock.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::ActualState;
use crate::{attach_detach::guard::wait_note::NodeWait, kube_api::ids::NodeName};

impl ActualState {
    /// The nodes of which something is known.
    pub fn node_names(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.keys()
    }

    /// Goes on with what has waited there for so long. What this process saw a pod want has waited since then (S4); of a
    /// node that is gone, nothing tells whether it was back in between.
    pub fn go_on(&mut self, name: &NodeName, wait: &NodeWait, elapsed: Duration, wall: Timestamp) {
        let since = wall.checked_sub(elapsed).unwrap_or(wall);
        for volume in wait.volumes() {
            let node_volume = self.node_volume_mut(volume, name);
            let since = node_volume.desired_until.map_or(since, |ended| ended.min(wall).max(since));
            node_volume.inherit_undesired(since);
        }
        let state = self.node_mut(name);
        if state.node.is_some() {
            state.unready_since = state.unready_since.map(|known| known.min(since));
        }
    }
}
