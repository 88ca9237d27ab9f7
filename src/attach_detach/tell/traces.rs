//! Attaches and detaches as traces: what [`super::phases`] measures, with its beginning, phases and end.

use tokio::time::Instant;

use super::phases::{Look, Progress};
use crate::{
    attach_detach::{actual::state::Operation, desired::volume_name::VolumeId},
    kube_api::ids::NodeName,
    traces::{End, TraceId, Trails},
};

/// Name of an operation's span.
fn name(operation: Operation) -> &'static str {
    match operation {
        Operation::Attach => "attach volume",
        Operation::Detach => "detach volume",
    }
}

/// Takes how far an operation is into its trace; returns that.
pub(super) fn follow(
    trails: &mut Trails<(VolumeId, NodeName)>,
    (volume, node): (&VolumeId, &NodeName),
    progress: &Progress,
    attempts: u32,
    now: Instant,
) -> Option<TraceId> {
    if !trails.is_on() {
        return None;
    }
    let Progress { look: Look { operation, phase, forced, .. }, was_under_way, is_under_way, .. } = progress;
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
    if trails.name(&key).is_some_and(|known| known != name(*operation)) {
        trails.end(&key, End::Superseded, now, attributes);
    }
    let trace = trails.id(&key);
    match (was_under_way, is_under_way) {
        (false, true) => trails.begin(&key, name(*operation), phase.label(), now),
        (true, true) => trails.reach(&key, phase.label(), now),
        (true, false) => trails.end(&key, End::Done, now, attributes),
        (false, false) => {}
    }
    trace
}
