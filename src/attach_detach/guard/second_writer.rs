//! Second writer: what shows another attach/detach controller (S14): writes that only this one should make. Pure.
//!
//! In: what the watch says of an attachment, against what we have asked for ourselves. Out: the acts of others. What
//! follows from them is decided in [`crate::controller::second_writer`]. Of lists,
//! [`crate::attach_detach::state::actual::node_requests`] tells.

use apiserver::{
    ids::{AttachmentName, NodeName},
    kinds::VolumeAttachment,
};
use derive_more::Display;

use crate::{
    attach_detach::state::actual::{AttachmentCall, NodeVolume},
    controller::second_writer::{self, OwnedField, Role},
};

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
    #[must_use]
    pub fn node(&self) -> &NodeName {
        match self {
            Self::Node(name) | Self::Attachment(name, _) => name,
        }
    }
}

impl second_writer::WrittenObject for ActTarget {
    fn field(&self) -> OwnedField {
        match self {
            Self::Node(_) => OwnedField::VolumesAttached,
            Self::Attachment(..) => OwnedField::AttachmentSpec,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Node(_) => LIST_CHANGED,
            Self::Attachment(..) => CREATED,
        }
    }
}

/// Whether an attachment that was not known on the node appeared there without our having asked for it. That one of ours goes
/// tells of nobody: administrators delete them, in numbers, when a node is lost.
pub(in crate::attach_detach) fn is_anothers(node_volume: &NodeVolume, attachment: &VolumeAttachment) -> bool {
    let is_asked = node_volume.call == Some(AttachmentCall::Create) || node_volume.uncertain.is_some();
    !is_asked && node_volume.uid() != Some(&attachment.metadata.uid)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;
    use crate::attach_detach::state::actual::Uncertain;

    fn attachment(uid: &str) -> VolumeAttachment {
        let mut attachment = VolumeAttachment::default();
        attachment.metadata.uid = uid.into();
        attachment
    }

    #[test]
    fn s14_only_what_we_did_not_ask_for_is_foreign() {
        let [one, other] = [attachment("1"), attachment("2")];
        let with = |known: Option<&VolumeAttachment>, change: fn(&mut NodeVolume)| {
            let mut node_volume = NodeVolume::default();
            if let Some(known) = known {
                node_volume.observe_attachment(Arc::new(known.clone()));
            }
            change(&mut node_volume);
            node_volume
        };
        let uncertain = |node_volume: &mut NodeVolume| {
            node_volume.uncertain = Some(Uncertain { until: Instant::now(), read_absent: false });
        };
        let asked = |node_volume: &mut NodeVolume| node_volume.call = Some(AttachmentCall::Create);
        let cases = [
            ("the driver attached it", with(Some(&one), |_| ()), &one, false),
            ("created by others", with(None, |_| ()), &one, true),
            ("created by us", with(None, asked), &one, false),
            ("created by us, unanswered", with(None, uncertain), &one, false),
            ("replaced by others", with(Some(&one), |_| ()), &other, true),
        ];
        for (name, node_volume, seen, expected) in cases {
            assert_eq!(is_anothers(&node_volume, seen), expected, "{name}");
        }
    }
}
