//! What answers are taken apart into: parts of lists, events of watches, heads of objects.

use arcstr::ArcStr;
use bytes::Bytes;
use serde::Deserialize;
use strum::{IntoStaticStr, VariantNames};

use super::DecodeError;
use crate::{
    ids::{NodeName, ResourceVersion, Uid, VolumeName},
    kinds::{Meta, Narrow},
    protobuf::{Values, enumeration, lenient, message, own},
};

/// `meta.v1.ListMeta`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListMeta {
    pub(super) resource_version: ResourceVersion,
    #[serde(default)]
    r#continue: String,
}
message!(ListMeta { resource_version: 2, r#continue: 3 });

impl ListMeta {
    /// What it says of the list. Its revision is never 0.
    pub(super) fn part(self) -> Result<ListPart, DecodeError> {
        if self.resource_version == ResourceVersion::default() {
            return Err(DecodeError::value("metadata.resourceVersion", "it is no integer"));
        }
        let next = Some(self.r#continue).filter(|token| !token.is_empty());
        Ok(ListPart::Meta { revision: self.resource_version, next })
    }
}

/// A part of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListPart {
    /// What the list says of itself; before all objects.
    Meta {
        /// Revision of the list, the same on all its pages.
        revision: ResourceVersion,
        /// Token by which the next page is asked for; `None` on the last page.
        next: Option<String>,
    },
    /// An object, undecoded.
    Item(Bytes),
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// What happened.
    pub kind: WatchEventKind,
    /// To which object, undecoded: a slice of the frame. For [`WatchEventKind::Error`] a [`crate::wire::Status`]; of a
    /// bookmark only the revision means anything ([`crate::wire::Encoding::head`]).
    pub object: Bytes,
}

/// `type` of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, IntoStaticStr, VariantNames)]
#[serde(rename_all = "UPPERCASE")]
#[strum(serialize_all = "snake_case")]
pub enum WatchEventKind {
    /// The object is new to the watch.
    Added,
    /// The object changed.
    Modified,
    /// The object is gone; it is shown as it was last, at the revision of the deletion.
    Deleted,
    /// Nothing happened up to this revision.
    Bookmark,
    /// The watch ends; the object is a [`crate::wire::Status`].
    Error,
}
enumeration!(WatchEventKind);

/// What identifies an object whose whole may be unreadable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Namespace, empty for cluster-scoped kinds.
    pub namespace: ArcStr,
    /// Name; empty in a bookmark.
    pub name: ArcStr,
    /// UID, if it can be read.
    pub uid: Option<Uid>,
    /// Revision, if it can be read.
    pub resource_version: Option<ResourceVersion>,
}
message!(Head { name: 1 by own, namespace: 3 by own, uid: 5 by lenient, resource_version: 6 by lenient });

impl Head {
    /// The key of the object, as one of that kind.
    pub fn key<T: Narrow>(&self) -> T::Key {
        T::key_of(&Meta { namespace: self.namespace.clone(), name: self.name.clone(), ..Meta::default() })
    }
}

/// What a VolumeAttachment is about whose whole cannot be read: the names in its `spec`, as far as these can be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachmentNames {
    /// Its node.
    pub node: Option<NodeName>,
    /// Its PersistentVolume.
    pub volume: Option<VolumeName>,
}
message!(AttachmentNames { volume: 2 by volume_of, node: 3 by lenient });

fn volume_of(source: Values<'_, '_>) -> Result<Option<VolumeName>, DecodeError> {
    source.message(1 << 1).map_or(Ok(None), |source| lenient(source.of(1)))
}
