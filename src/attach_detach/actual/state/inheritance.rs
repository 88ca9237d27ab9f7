//! What a new leader takes over of the waits of its predecessor (S6).
//!
//! In: what the force-detach timers prove. Out: waits that have lasted for longer than this process has known of them,
//! by its own clock.

use k8s_openapi::jiff::Timestamp;

use super::ActualState;
use crate::{
    attach_detach::guard::force_timers::{Candidate, Failure, Inherited},
    kube_api::kinds::Node,
};

impl ActualState {
    /// The volumes on nodes of which a predecessor of this process may know that they have waited for longer than we
    /// know: on nodes that are not Ready, or gone, and not desired since this process leads.
    #[must_use]
    pub fn waiting_for_force(&self) -> Vec<Candidate> {
        let mut waiting = Vec::new();
        for (name, state) in &self.nodes {
            let node = state.node.as_deref();
            if node.is_some_and(Node::is_ready) {
                continue;
            }
            let failure = node.and_then(Failure::of);
            for volume in &state.volumes {
                let node_volume = self
                    .node_volume(volume, name)
                    .filter(|node_volume| node_volume.may_be_attached() && !node_volume.was_desired);
                let Some(node_volume) = node_volume else { continue };
                waiting.push(Candidate {
                    volume: volume.clone(),
                    node: name.clone(),
                    failure: failure.clone(),
                    attachment: node_volume.uid().cloned(),
                    desired_until: node_volume.desired_until,
                });
            }
        }
        waiting
    }

    /// Takes what a predecessor of this process has proven of a wait.
    pub fn inherit(&mut self, proven: &Inherited, wall: Timestamp) {
        let since = wall.checked_sub(proven.elapsed).unwrap_or(wall);
        let node_volume = self.node_volume_mut(&proven.volume, &proven.node);
        node_volume.undesired_since =
            Some(node_volume.undesired_since.map_or(since, |known| known.min(since)));
        if proven.is_unready_as_long {
            let state = self.node_mut(&proven.node);
            state.unready_since = state.unready_since.map(|known| known.min(since));
        }
    }
}
