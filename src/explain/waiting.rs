//! What is said of a volume that waits on a node, where that is more, or less, than the reason says of itself.
//!
//! In: the reason, and what the asker knows. Out: a sentence without the node.

use crate::{
    attach_detach::decide::{force::Unforced, verdict::Waiting},
    kube_api::ids::NodeName,
};

/// What is said of a wait on the node.
pub(super) fn told(node: &NodeName, waiting: &Waiting) -> String {
    match waiting {
        // When that is, is told as far as it is known.
        Waiting::DetachWaitingForUnmount { unforced: Unforced::Until(_) } => {
            "the node is not Ready and its kubelet has not unmounted the volume".to_owned()
        }
        Waiting::DetachWaitingForNode { unforced: Unforced::Until(_) } => {
            "the node has no object, and may still use the volume".to_owned()
        }
        // A driver goes by the name of the PersistentVolume: the end of the one would take the other.
        Waiting::HeldByNode { conflict } if conflict.node == *node => {
            "another volume of the same PersistentVolume is on this node, and has to leave it first"
                .to_owned()
        }
        waiting => waiting.to_string(),
    }
}
