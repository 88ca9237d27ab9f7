//! Second writer: what shows another attach/detach controller (S14): the writes that only this one should make.
//!
//! Of attachments, `stand_off` tells, which sees them as they come; of lists,
//! [`crate::attach_detach::state::actual::node_requests`]. What follows is decided in [`crate::controller::second_writer`].

use apiserver::ids::{AttachmentName, NodeName};
use derive_more::Display;

use crate::controller::second_writer::{self, Role};

/// `volumesAttached` of a node changed after we had written it.
const LIST_CHANGED: &str = "node_list_changed";

/// A VolumeAttachment appeared under a name that we compute, and we did not ask for it.
const CREATED: &str = "attachment_created";

/// What this controller is, to people.
pub(in crate::attach_detach) const ROLE: Role = Role {
    name: "attach/detach controller",
    alarm: "second_attach_detach_controller",
    held: "nothing is detached",
    kinds: &[LIST_CHANGED, CREATED],
};

/// The object of an act, which tells who did it.
#[derive(Clone, Debug, Display, PartialEq, Eq, PartialOrd, Ord)]
pub enum ActTarget {
    /// Its list was changed.
    #[display("node/{_0}")]
    Node(NodeName),
    /// It was created, for this node.
    #[display("volumeattachment/{_1}")]
    Attachment(NodeName, AttachmentName),
}

impl ActTarget {
    /// The node on which it tells of something.
    pub fn node(&self) -> &NodeName {
        match self {
            Self::Node(name) | Self::Attachment(name, _) => name,
        }
    }
}

impl second_writer::WrittenObject for ActTarget {
    fn field(&self) -> &'static str {
        match self {
            Self::Node(_) => "status.volumesAttached",
            // It never changes: who owns it has created the object.
            Self::Attachment(..) => "spec",
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Node(_) => LIST_CHANGED,
            Self::Attachment(..) => CREATED,
        }
    }
}
