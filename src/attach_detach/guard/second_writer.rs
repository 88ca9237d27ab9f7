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
    attach_detach::state::actual::{AttachmentCall, Deletion, NodeVolume},
    controller::second_writer::{self, OwnedField, Role},
};

/// `volumesAttached` of a node changed after we had written it.
const LIST_CHANGED: &str = "node_list_changed";

/// A VolumeAttachment appeared under a name that we compute, and we did not ask for it.
const CREATED: &str = "attachment_created";

/// One of ours is being deleted, and we did not ask for it. Administrators do that, in numbers, when a node is lost, and
/// nothing tells who did: it is counted, and nothing follows from it. Another controller also writes lists and creates.
pub(in crate::attach_detach) const DELETED: &str = "attachment_deleted";

/// What this controller is, to people.
pub(in crate::attach_detach) const ROLE: Role = Role {
    name: "attach/detach controller",
    alarm: "second_attach_detach_controller",
    held: "nothing is detached",
    kinds: &[LIST_CHANGED, CREATED, DELETED],
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

/// What another has done to an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::attach_detach) enum Act {
    Created,
    Deleted,
}

/// What the new state of an attachment shows that we did not ask for.
pub(in crate::attach_detach) fn act_of(
    node_volume: &NodeVolume,
    attachment: Option<&VolumeAttachment>,
) -> Option<Act> {
    let known = node_volume.attachment();
    let is_new = match (known, attachment) {
        (Some(known), Some(attachment)) => known.metadata.uid != attachment.metadata.uid,
        (None, Some(_)) => true,
        (_, None) => false,
    };
    if is_new {
        let asked = node_volume.call == Some(AttachmentCall::Create) || node_volume.uncertain.is_some();
        return (!asked).then_some(Act::Created);
    }
    let was_staying = known.is_some_and(|known| !known.metadata.is_terminating());
    let is_staying = attachment.is_some_and(|attachment| !attachment.metadata.is_terminating());
    let asked = node_volume.call == Some(AttachmentCall::Delete) || node_volume.deletion() != Deletion::None;
    (was_staying && !is_staying && !asked).then_some(Act::Deleted)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::*;
    use crate::attach_detach::state::actual::Uncertain;

    fn attachment(uid: &str, terminating: bool) -> VolumeAttachment {
        let mut attachment = VolumeAttachment::default();
        attachment.metadata.uid = uid.into();
        attachment.metadata.deletion_timestamp = terminating.then(Default::default);
        attachment
    }

    #[test]
    fn s14_only_what_we_did_not_ask_for_is_foreign() {
        let [one, other, going] = [attachment("1", false), attachment("2", false), attachment("1", true)];
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
        let (created, deleted) = (Some(Act::Created), Some(Act::Deleted));
        let cases = [
            ("the driver attached it", with(Some(&one), |_| ()), Some(&one), None),
            ("created by others", with(None, |_| ()), Some(&one), created),
            (
                "created by us",
                with(None, |node_volume| node_volume.call = Some(AttachmentCall::Create)),
                Some(&one),
                None,
            ),
            ("created by us, unanswered", with(None, uncertain), Some(&one), None),
            ("replaced by others", with(Some(&one), |_| ()), Some(&other), created),
            ("being deleted by others", with(Some(&one), |_| ()), Some(&going), deleted),
            ("deleted by others", with(Some(&one), |_| ()), None, deleted),
            ("being deleted for long", with(Some(&going), |_| ()), Some(&going), None),
            ("gone at last", with(Some(&going), |_| ()), None, None),
            (
                "deletion sent",
                with(Some(&one), |node_volume| node_volume.call = Some(AttachmentCall::Delete)),
                None,
                None,
            ),
            (
                "deletion accepted",
                with(Some(&one), |node_volume| node_volume.note_deletion(&"1".into(), Deletion::Accepted)),
                Some(&going),
                None,
            ),
            (
                "deletion unanswered",
                with(Some(&one), |node_volume| {
                    node_volume.note_deletion(&"1".into(), Deletion::InDoubt { until: Instant::now() });
                }),
                None,
                None,
            ),
        ];
        for (name, node_volume, seen, expected) in cases {
            assert_eq!(act_of(&node_volume, seen), expected, "{name}");
        }
    }
}
