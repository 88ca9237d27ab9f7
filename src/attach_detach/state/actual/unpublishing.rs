//! Unpublishing: the way of a volume from "may be mounted" to proven not to be.
//!
//! The proof is a type that only an answer of the API server makes, and without which the request that
//! deletes a VolumeAttachment cannot be built (S2, S3).

use apiserver::{ids::Uid, kinds::Node};

use crate::attach_detach::state::desired::volume_name::VolumeId;

/// How far the unpublishing of a volume has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Unpublishing {
    /// Not being unpublished.
    #[default]
    None,
    /// Being unpublished; only an answer to a request sent after this point in our own order counts.
    Since(Sequence),
    /// Proven.
    Proven(Unpublished),
}

/// Position in the order in which this process sent its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sequence(pub u64);

/// Proof that at one revision the node's status did not publish the volume, and whether it reported it
/// in use then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpublished {
    /// `None` for a node that a live read did not find.
    node: Option<Uid>,
    unused: bool,
}

impl Unpublished {
    /// Whether the volume was not in use.
    pub fn is_unused(&self) -> bool {
        self.unused
    }

    /// What an answer proves, a node or "not found". Only for answers to our own requests: a watch may lag. A node that does
    /// not exist publishes nothing. That says nothing of the machine, so it is the caller's business whether the volume was in
    /// use when last seen.
    pub(in crate::attach_detach) fn witnessed_by(answer: Option<&Node>, volume: &VolumeId) -> Option<Self> {
        let name = volume.as_str();
        match answer {
            Some(node) if node.lists(name) => None,
            Some(node) => Some(Self { node: Some(node.metadata.uid.clone()), unused: !node.uses(name) }),
            None => Some(Self { node: None, unused: true }),
        }
    }

    /// Whether the proof is about this node object, or its absence, rather than about an earlier or
    /// later one of the same name.
    pub(crate) fn is_about(&self, node: Option<&Node>) -> bool {
        self.node.as_ref() == node.map(|node| &node.metadata.uid)
    }
}
