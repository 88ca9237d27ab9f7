//! What shows that another attach/detach controller may be at work (S14): the acts, and the objects they are seen on.
//!
//! What follows from them is decided in [`crate::controller::second_writer`].

use std::fmt;

use crate::{
    controller::second_writer,
    kube_api::{
        ids::{AttachmentName, NodeName},
        managed_fields::OwnedField,
    },
};

/// What another party did. A label of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// `volumesAttached` of a node changed after we had written it (S14).
    ListChanged,
    /// A VolumeAttachment appeared under a name that we compute, and we did not ask for it.
    AttachmentCreated,
    /// One of ours is being deleted, and we did not ask for it. Administrators do that, in numbers, when a
    /// node is lost, and nothing tells who did: it is counted, and nothing follows from it. Another controller
    /// also writes lists and creates.
    AttachmentDeleted,
}

impl Evidence {
    /// Value of the label `kind`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::ListChanged => "node_list_changed",
            Self::AttachmentCreated => "attachment_created",
            Self::AttachmentDeleted => "attachment_deleted",
        }
    }
}

/// The object of an act, which tells who did it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Its list was changed.
    Node(NodeName),
    /// It was created, for this node.
    Attachment(NodeName, AttachmentName),
}

impl Target {
    /// The field whose owner did it.
    #[must_use]
    pub fn field(&self) -> OwnedField {
        match self {
            Self::Node(_) => OwnedField::VolumesAttached,
            Self::Attachment(..) => OwnedField::AttachmentSpec,
        }
    }

    /// What was done to it.
    #[must_use]
    pub fn act(&self) -> Evidence {
        match self {
            Self::Node(_) => Evidence::ListChanged,
            Self::Attachment(..) => Evidence::AttachmentCreated,
        }
    }

    /// The node on which it tells of something.
    #[must_use]
    pub fn node(&self) -> &NodeName {
        match self {
            Self::Node(name) | Self::Attachment(name, _) => name,
        }
    }
}

/// Each kubelet may write the list of its own node; `NodeRestriction` lets none create VolumeAttachments.
impl second_writer::Target for Target {
    type Place = NodeName;

    fn place(&self) -> NodeName {
        self.node().clone()
    }

    fn is_beyond_agents(&self) -> bool {
        matches!(self, Self::Attachment(..))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(name) => write!(f, "node/{name}"),
            Self::Attachment(_, name) => write!(f, "volumeattachment/{name}"),
        }
    }
}
