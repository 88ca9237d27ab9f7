//! Which changes of volumes on nodes are logged: one line each, when a volume on a node's state or the reason for it
//! changes.
//!
//! In: what a volume on a node was at the last look, and what it is now. Out: a [`Transition`] on the log. A replica
//! that comes to lead says nothing of what is at rest: that has not changed.

use tokio::time::Instant;

use super::diagnostics::State;
use crate::{
    attach_detach::desired::volume_name::{VolumeId, VolumeKind},
    kube_api::{
        ids::{NodeName, PodKey, ResourceVersion},
        kinds::{Narrow, Node, Pod, VolumeAttachment},
    },
    telemetry::{
        history::History,
        transition::{Named, Transition},
    },
};

/// What a volume on a node was at the last look, and why.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stood {
    /// What it was.
    pub(super) state: State,
    /// The code of what it waited for, or else its state.
    pub(super) reason: &'static str,
    /// Since when, unless nothing was known of it.
    pub(super) since: Option<Instant>,
}

impl Stood {
    /// What waited for nothing.
    pub(super) fn at_rest(rest: Option<(State, Instant)>) -> Self {
        let (state, since) = rest.map_or((State::Detached, None), |(state, since)| (state, Some(since)));
        Self { state, reason: state.code(), since }
    }
}

/// A pod as logs name it.
pub(super) fn named_pod(pod: &PodKey) -> Named {
    Named::in_namespace(Pod::KIND, pod.namespace(), pod.name())
}

/// The attachment of a volume on a node as logs name it, or what stands for one of a volume that has none.
pub(super) fn named(volume: &VolumeId, node: &NodeName) -> Named {
    match volume.kind() {
        VolumeKind::Csi => Named::in_cluster(VolumeAttachment::KIND, volume.attachment_name(node).as_str()),
        VolumeKind::NoOp => Named::in_cluster(Node::KIND, node.as_str()),
    }
}

/// One line for each change of state, or of the reason for it, which is remembered, too.
pub(super) fn log_change(
    history: &History,
    (volume, node): (&VolumeId, &NodeName),
    before: Stood,
    (state, reason): (State, &'static str),
    (attempt, revision): (u32, Option<ResourceVersion>),
    now: Instant,
) {
    // What is at rest when this process comes to lead has not changed.
    let is_inherited = before.since.is_none() && reason == state.code();
    if (before.state, before.reason) == (state, reason) || is_inherited {
        return;
    }
    let transition = Transition {
        object: named(volume, node),
        reason,
        from: before.state.code(),
        to: state.code(),
        attempt,
        revision: revision.map(|revision| revision.to_string()),
        took: before.since.map(|since| now.saturating_duration_since(since)),
        volume: Some(volume.as_str().to_owned()),
        node: Some(node.to_string()),
        claim: None,
    };
    history.tell(&transition);
}
