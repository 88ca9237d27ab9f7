//! Attaches and detaches as traces: what [`super::phases`] measures, with its beginning, phases and end.

use tokio::time::Instant;

use super::phases::Look;
use crate::{
    attach_detach::{actual::state::Operation, controller::Controller, desired::volume_name::VolumeId},
    kube_api::ids::NodeName,
    traces::{End, TraceId, Traces, Trails},
};

/// Name of an operation's span.
fn name(operation: Operation) -> &'static str {
    match operation {
        Operation::Attach => "attach volume",
        Operation::Detach => "detach volume",
    }
}

/// A look at a pair whose journey is followed.
#[derive(Clone, Copy, Debug)]
pub(in crate::attach_detach) struct Progress {
    /// What was seen.
    pub(in crate::attach_detach) look: Look,
    /// Whether a journey of this operation was under way before.
    pub(in crate::attach_detach) was_under_way: bool,
    /// Whether one is now.
    pub(in crate::attach_detach) is_under_way: bool,
}

impl Controller {
    /// Traces attaches and detaches from now on.
    pub fn trace(&mut self, traces: Traces) {
        self.trails = Trails::of(traces);
    }

    /// Takes a look at a pair into its trace; returns that.
    pub(in crate::attach_detach) fn follow(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        progress: Progress,
        now: Instant,
    ) -> Option<TraceId> {
        if !self.trails.is_on() {
            return None;
        }
        let Progress { look: Look { operation, phase, forced, .. }, was_under_way, is_under_way } = progress;
        let attempts = self.attempt(volume, node);
        let attributes = || {
            let (driver, _) = volume.driver_and_handle();
            vec![
                ("mooring.volume", volume.as_str().to_owned()),
                ("mooring.driver", driver.to_owned()),
                ("k8s.node.name", node.to_string()),
                ("mooring.forced", forced.to_string()),
                ("mooring.attempts", attempts.to_string()),
            ]
        };
        let key = (volume.clone(), node.clone());
        if self.trails.name(&key).is_some_and(|known| known != name(operation)) {
            self.trails.end(&key, End::Superseded, now, attributes);
        }
        let trace = self.trails.id(&key);
        match (was_under_way, is_under_way) {
            (false, true) => self.trails.begin(&key, name(operation), phase.label(), now),
            (true, true) => self.trails.reach(&key, phase.label(), now),
            (true, false) => self.trails.end(&key, End::Done, now, attributes),
            (false, false) => {}
        }
        trace
    }
}
