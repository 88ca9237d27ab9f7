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
    /// The pairs of which a predecessor of this process may know that they have waited for longer than we know: on
    /// nodes that are not Ready, or gone, and not wanted since this process leads.
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
                let pair = self.pair(volume, name).filter(|pair| pair.holds() && !pair.was_wanted);
                let Some(pair) = pair else { continue };
                waiting.push(Candidate {
                    volume: volume.clone(),
                    node: name.clone(),
                    failure: failure.clone(),
                    attachment: pair.uid().cloned(),
                    wish_ended: pair.wish_ended,
                });
            }
        }
        waiting
    }

    /// Takes what a predecessor of this process has proven of a wait.
    pub fn inherit(&mut self, proven: &Inherited, wall: Timestamp) {
        let since = wall.checked_sub(proven.elapsed).unwrap_or(wall);
        let pair = self.pair_mut(&proven.volume, &proven.node);
        pair.unwanted_since = Some(pair.unwanted_since.map_or(since, |known| known.min(since)));
        if proven.is_unready_as_long {
            let state = self.node_mut(&proven.node);
            state.unready_since = state.unready_since.map(|known| known.min(since));
        }
    }
}
