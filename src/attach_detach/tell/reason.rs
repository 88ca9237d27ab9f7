//! What is said of a wait: a sentence for each reason, beside its code (L18).
//!
//! In: a reason as the rules returned it. Out: text for the debug page, and when the wait ends by itself.

use std::fmt;

use k8s_openapi::jiff::Timestamp;

use crate::attach_detach::{
    decide::{force::Unforced, verdict::Waiting},
    desired::state::WhyUnresolved,
};

impl Waiting {
    /// When the wait ends by itself, if it does.
    #[must_use]
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::DetachWaitingForUnmount { unforced: Unforced::Until(at) }
            | Self::DetachWaitingForNode { unforced: Unforced::Until(at) }
            | Self::ForeignWriter { until: at, .. }
            | Self::RestoreGrace { until: at } => Some(*at),
            _ => None,
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WaitingForVolumeAttachment => f.write_str("the VolumeAttachment is being created"),
            Self::WaitingForAttacher => f.write_str("the driver's external-attacher is attaching the volume"),
            Self::AttachError { message, .. } => {
                write!(f, "the driver could not attach the volume and tries again: {message}")
            }
            Self::HeldByNode { conflict } if conflict.is_attached => {
                write!(f, "node {} holds the volume, which is for one node alone", conflict.node)
            }
            Self::HeldByNode { conflict } => {
                write!(f, "the volume is for one node alone, and a pod on node {} comes first", conflict.node)
            }
            Self::WaitingForDeletion => {
                f.write_str("an earlier VolumeAttachment of the same name has to go first")
            }
            Self::Publishing => f.write_str("the volume is attached; the node's status is about to say so"),
            Self::ClaimOrVolumeChanged => f.write_str(
                "the pod's claim or its volume is not bound as it was: nothing is attached for it",
            ),
            Self::DetachWaitingForUnmount { unforced } => {
                let node = match unforced {
                    Unforced::NodeReady => "the node's kubelet has not unmounted the volume",
                    _ => "the node is not Ready and its kubelet has not unmounted the volume",
                };
                write!(f, "{node}{}", forced(*unforced))
            }
            Self::DetachWaitingForUnpublish => {
                f.write_str("the node's status is written without the volume before it is detached")
            }
            Self::DetachWaitingForSettlement => {
                f.write_str("a write to the node's status had no answer: it may still list the volume")
            }
            Self::DetachWaitingForAttacher => {
                f.write_str("the driver's external-attacher is detaching the volume")
            }
            Self::DetachError { message, .. } => {
                write!(f, "the driver could not detach the volume and tries again: {message}")
            }
            Self::NodeGone => f.write_str("the node has no object: nothing can be attached to it"),
            Self::DetachWaitingForNode { unforced } => {
                write!(f, "the node has no object, and may still use the volume{}", forced(*unforced))
            }
            Self::Uncertain => {
                f.write_str("a request had no answer: the VolumeAttachment may exist, or come into being")
            }
            Self::ForeignWriter { writer, until: _ } => {
                write!(f, "nothing is detached there for now, as {writer}")
            }
            Self::RestoreGrace { until } => {
                write!(f, "etcd was restored from a backup: nothing is detached until {until}")
            }
            Self::Unreadable { object } => write!(f, "{object} cannot be read"),
            Self::ForeignAttachment { name } => {
                write!(f, "VolumeAttachment {name} is for something else, and has to go first")
            }
            Self::RetryBackoff { message: Some(message) } => {
                write!(f, "a request failed and is tried again after a pause: {message}")
            }
            Self::RetryBackoff { message: None } => {
                f.write_str("a request failed and is tried again after a pause")
            }
            Self::NodeStatusRefused { message } => write!(
                f,
                "the node's status could not be written and is tried again after a pause: {message}"
            ),
            Self::WriteUndone { writer } => {
                write!(f, "{writer} again and again; what is undone at once is written again after a pause")
            }
        }
    }
}

fn forced(unforced: Unforced) -> String {
    match unforced {
        Unforced::NodeReady => String::new(),
        Unforced::SwitchedOff => "; nothing is forced because of time".to_owned(),
        Unforced::Until(at) => format!(": it is detached by force at {at}"),
    }
}

impl fmt::Display for WhyUnresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodeNotManaged(node) => {
                write!(f, "node {node} attaches volumes itself: it lacks the annotation of its kubelet")
            }
            Self::ClaimMissing(claim) => write!(f, "claim {claim} does not exist"),
            Self::ClaimNotOwnedByPod(claim) => write!(f, "claim {claim} is not owned by the pod"),
            Self::ClaimNotBound(claim) => write!(f, "claim {claim} is not bound"),
            Self::VolumeMissing(volume) => write!(f, "PersistentVolume {volume} does not exist"),
            Self::VolumeBoundElsewhere(volume) => {
                write!(f, "PersistentVolume {volume} is bound to another claim")
            }
            Self::MalformedSource(volume, error) => {
                let of =
                    volume.as_ref().map(|name| format!(" in PersistentVolume {name}")).unwrap_or_default();
                write!(f, "the volume's source{of} leads nowhere: {error}")
            }
            Self::FlexVolumeUnsupported(driver) => write!(f, "FlexVolume driver {driver} is not supported"),
            Self::Unreadable(object, error) => write!(f, "{object} cannot be read: {error}"),
        }
    }
}
