//! Phases: where an attach or a detach stands, and whose turn it is, by what its verdict waits for. Pure.
//!
//! In: the volume on the node, and the verdict on it. Out: [`Progress`], of which times, traces and gauges are made.

use strum::IntoStaticStr;

use super::{
    decide::verdict::Waiting,
    state::actual::{AttachmentCall, NodeVolume, Operation},
};

/// Part of an attach or a detach, in their order. A label of the histograms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Phase {
    /// Attach: desired, and nothing asked for yet, because another node holds the volume or after a failure.
    Queue,
    /// Detach: the kubelet has not unmounted.
    Unmount,
    /// Detach: the node's status is being written.
    Unpublish,
    /// The API server is being asked.
    Api,
    /// The driver is at work.
    Attacher,
    /// Attach: the node's status is being written.
    Publish,
}

impl Phase {
    /// Those of an operation.
    #[cfg(test)]
    pub fn of(operation: Operation) -> [Self; 4] {
        match operation {
            Operation::Attach => [Self::Queue, Self::Api, Self::Attacher, Self::Publish],
            Operation::Detach => [Self::Unmount, Self::Unpublish, Self::Api, Self::Attacher],
        }
    }
}

/// How far a volume on a node is: what is measured of a report.
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on one another")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is to become of the volume on the node.
    pub operation: Operation,
    /// The phase, and whether it is our turn; nothing when it is over.
    pub stands: Option<(Phase, bool)>,
    /// Whether this may be its beginning: what the driver is at already was not seen to begin.
    pub may_begin: bool,
    /// Whether the detach is forced.
    pub forced: bool,
    /// Whether the driver has done its part.
    pub is_done: bool,
    /// Whether the volume was in-tree before it was translated.
    pub is_migrated: bool,
    /// Whether it is attached there; what a kubelet merely reports does not count.
    pub is_attached: bool,
    /// Pods there that need it.
    pub users: usize,
}

impl Progress {
    /// Where a volume on a node stands that so many pods need.
    pub fn of(node_volume: &NodeVolume, users: usize, waiting: Option<&Waiting>) -> Self {
        let wanted = users > 0;
        let attachment = node_volume.attachment();
        let is_over = if wanted { waiting.is_none() } else { attachment.is_none() };
        let stands = waiting.filter(|_| !is_over).map(|waiting| stand(waiting, node_volume, wanted));
        Self {
            operation: if wanted { Operation::Attach } else { Operation::Detach },
            stands,
            may_begin: attachment.is_none() || wanted == node_volume.is_going(),
            forced: node_volume.forced.is_some(),
            is_done: if wanted { node_volume.is_attached() } else { attachment.is_none() },
            is_migrated: false,
            is_attached: node_volume.holds(true),
            users,
        }
    }
}

/// The phase for a reason, and whether it is our turn. Those that belong to no phase are of the first: an operation never
/// goes back to it.
fn stand(waiting: &Waiting, node_volume: &NodeVolume, wanted: bool) -> (Phase, bool) {
    let first = if wanted { Phase::Queue } else { Phase::Unmount };
    match waiting {
        // The API server and the way to it are on our side of the bargain.
        Waiting::WaitingForVolumeAttachment if node_volume.call == Some(AttachmentCall::Create) => {
            (Phase::Api, true)
        }
        Waiting::DetachWaitingForAttacher if node_volume.call == Some(AttachmentCall::Delete) => {
            (Phase::Api, true)
        }
        Waiting::Publishing => (Phase::Publish, true),
        Waiting::DetachWaitingForUnpublish
        | Waiting::DetachWaitingForSettlement
        | Waiting::NodeStatusRefused { .. }
            if !wanted =>
        {
            (Phase::Unpublish, true)
        }
        Waiting::WaitingForVolumeAttachment
        | Waiting::DetachWaitingForUnpublish
        | Waiting::DetachWaitingForSettlement
        | Waiting::NodeStatusRefused { .. }
        | Waiting::Uncertain
        | Waiting::RetryBackoff { .. } => (first, true),
        // No room for the request yet, or its answer was no.
        Waiting::DetachWaitingForAttacher if !node_volume.is_going() => (first, true),
        // The driver.
        Waiting::WaitingForAttacher
        | Waiting::AttachError { .. }
        | Waiting::DetachWaitingForAttacher
        | Waiting::DetachError { .. } => (Phase::Attacher, false),
        // The kubelet, another node, another controller, the owner of an object.
        Waiting::WriteUndone { .. }
        | Waiting::HeldByNode { .. }
        | Waiting::WaitingForDeletion
        | Waiting::ClaimOrVolumeChanged
        | Waiting::DetachWaitingForUnmount { .. }
        | Waiting::NodeGone
        | Waiting::DetachWaitingForNode { .. }
        | Waiting::ForeignWriter { .. }
        | Waiting::RestoreGrace { .. }
        | Waiting::HandOver { .. }
        | Waiting::Unreadable { .. }
        | Waiting::ForeignAttachment { .. } => (first, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach_detach::{decide::force::Unforced, state::actual::Deletion};

    /// Name, the volume on the node, whether it is wanted, what it waits for; phase and whether it is our turn, whether it may
    /// begin there.
    type Case<'a> = (&'a str, NodeVolume, bool, Option<&'a Waiting>, Option<(Phase, bool)>, bool);

    #[test]
    fn phase_and_turn_are_those_of_what_is_waited_for() {
        use Phase::{Api, Attacher, Publish, Queue, Unmount, Unpublish};
        let (none, attached) = (NodeVolume::default, || NodeVolume::with_attachment(true, false));
        let calls = |call, node_volume| NodeVolume { call: Some(call), ..node_volume };
        let accepted = || attached().with_deletion(Deletion::Accepted);
        let unmount = Waiting::DetachWaitingForUnmount { unforced: Unforced::NodeReady };
        let pause = Waiting::RetryBackoff { message: None };
        let refused = Waiting::NodeStatusRefused { message: "no".into() };
        let create = Waiting::WaitingForVolumeAttachment;
        let delete = Waiting::DetachWaitingForAttacher;
        let unpublish = Waiting::DetachWaitingForUnpublish;
        let cases: [Case<'_>; 20] = [
            ("no room to ask", none(), true, Some(&create), Some((Queue, true)), true),
            (
                "asked for",
                calls(AttachmentCall::Create, none()),
                true,
                Some(&create),
                Some((Api, true)),
                true,
            ),
            (
                "looked for",
                calls(AttachmentCall::Read, none()),
                true,
                Some(&create),
                Some((Queue, true)),
                true,
            ),
            ("a pause", none(), true, Some(&pause), Some((Queue, true)), true),
            ("gone, and listed", none(), true, Some(&unpublish), Some((Queue, true)), true),
            ("gone, and listed still", none(), true, Some(&refused), Some((Queue, true)), true),
            ("goes", accepted(), true, Some(&Waiting::WaitingForDeletion), Some((Queue, false)), true),
            ("made", attached(), true, Some(&Waiting::WaitingForAttacher), Some((Attacher, false)), false),
            ("attached", attached(), true, Some(&Waiting::Publishing), Some((Publish, true)), false),
            ("listed", attached(), true, None, None, false),
            ("in use", attached(), false, Some(&unmount), Some((Unmount, false)), true),
            ("a pause after that", attached(), false, Some(&pause), Some((Unmount, true)), true),
            ("taken off", attached(), false, Some(&unpublish), Some((Unpublish, true)), true),
            ("not taken off", attached(), false, Some(&refused), Some((Unpublish, true)), true),
            ("no room to delete", attached(), false, Some(&delete), Some((Unmount, true)), true),
            (
                "deleted",
                calls(AttachmentCall::Delete, attached()),
                false,
                Some(&delete),
                Some((Api, true)),
                true,
            ),
            (
                "read",
                calls(AttachmentCall::Read, attached()),
                false,
                Some(&delete),
                Some((Unmount, true)),
                true,
            ),
            ("accepted", accepted(), false, Some(&delete), Some((Attacher, false)), false),
            ("nothing is left", none(), false, None, None, true),
            ("nothing but the mount", none(), false, Some(&unmount), None, true),
        ];
        for (name, node_volume, wanted, waiting, stands, may_begin) in cases {
            let progress = Progress::of(&node_volume, usize::from(wanted), waiting);
            assert_eq!((progress.stands, progress.may_begin), (stands, may_begin), "{name}");
            if let Some((phase, _)) = stands {
                assert!(Phase::of(progress.operation).contains(&phase), "{name}");
            }
        }
    }
}
