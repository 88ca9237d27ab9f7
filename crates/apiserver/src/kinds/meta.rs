//! The part of `metadata` that decisions read.

use std::collections::BTreeMap;

use arcstr::ArcStr;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Deserializer};

use crate::{
    ids::{ResourceVersion, Uid},
    protobuf::{FromProtobuf as _, Values, entries, message, own, time},
    text::{self, Text, TextList, TextMap},
    wire::DecodeError,
};

/// Metadata of an object.
///
/// Equality leaves the revision out: two revisions with the same content are the same object, and
/// a change that touches nothing we keep wakes no subscriber.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// Name.
    #[serde(deserialize_with = "text::shared")]
    pub name: ArcStr,
    /// Namespace, empty for cluster-scoped kinds.
    #[serde(deserialize_with = "text::shared")]
    pub namespace: ArcStr,
    /// UID.
    pub uid: Uid,
    /// Revision at which the object looked like this.
    pub resource_version: ResourceVersion,
    /// When the API server created the object.
    pub creation_timestamp: Option<Timestamp>,
    /// Set once deletion was asked for; the object is gone when its finalizers are.
    pub deletion_timestamp: Option<Box<Timestamp>>,
    /// How long after that, in seconds: 0 of a pod whose containers are gone for good, or that was deleted by force.
    pub deletion_grace_period_seconds: Option<Box<i64>>,
    /// Finalizers; kept for PersistentVolumes, claims and VolumeAttachments.
    pub finalizers: TextList,
    /// Owners that a rule asks for: of a pod PersistentVolumes, of a claim its controller.
    pub owner_references: Vec<OwnerReference>,
    /// Annotations of the storage domains and of our own; others are not kept.
    #[serde(deserialize_with = "storage_annotations")]
    pub annotations: TextMap,
    /// Labels; kept for PersistentVolumes only, where claims select by them.
    pub labels: TextMap,
}
message!(Meta {
    name: 1 by own,
    namespace: 3,
    uid: 5,
    resource_version: 6,
    creation_timestamp: 8 by time,
    deletion_timestamp: 9 by time,
    deletion_grace_period_seconds: 10,
    labels: 11 by unread,
    annotations: 12 by kept_annotations,
    owner_references: 13,
    finalizers: 14,
});

/// Metadata of an object that others refer to by its name, which is shared.
pub(super) fn referenced(values: Values<'_, '_>) -> Result<Meta, DecodeError> {
    let meta = Meta::from_values(values)?;
    Ok(Meta { name: text::share(&meta.name), ..meta })
}

/// Metadata of a PersistentVolume, whose labels are kept.
pub(super) fn labelled(values: Values<'_, '_>) -> Result<Meta, DecodeError> {
    let labels =
        TextMap::from_values(values.message(1 << 11)?.of(11)).map_err(|error| error.within("labels"))?;
    Ok(Meta { labels, ..referenced(values)? })
}

#[expect(clippy::unnecessary_wraps, reason = "as functions of a table are")]
fn unread(_: Values<'_, '_>) -> Result<TextMap, DecodeError> {
    Ok(TextMap::default())
}

fn kept_annotations(values: Values<'_, '_>) -> Result<TextMap, DecodeError> {
    entries(values, is_kept_annotation)
}

impl Meta {
    /// Whether deletion was asked for.
    pub fn is_terminating(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// Value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(Text::as_str)
    }

    /// Keeps some of the owners, and no labels.
    pub(super) fn keep_owners(&mut self, is_kept: impl FnMut(&OwnerReference) -> bool) {
        self.labels = TextMap::default();
        self.owner_references.retain(is_kept);
        self.owner_references.shrink_to_fit();
    }

    /// The owner that controls this object, if any.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|owner| owner.controller)
    }
}

impl PartialEq for Meta {
    fn eq(&self, other: &Self) -> bool {
        let Self {
            name,
            namespace,
            uid,
            resource_version: _,
            creation_timestamp,
            deletion_timestamp,
            deletion_grace_period_seconds,
            finalizers,
            owner_references,
            annotations,
            labels,
        } = self;
        *name == other.name
            && *namespace == other.namespace
            && *uid == other.uid
            && *creation_timestamp == other.creation_timestamp
            && *deletion_timestamp == other.deletion_timestamp
            && *deletion_grace_period_seconds == other.deletion_grace_period_seconds
            && *finalizers == other.finalizers
            && *owner_references == other.owner_references
            && *annotations == other.annotations
            && *labels == other.labels
    }
}

/// An entry of `metadata.ownerReferences`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OwnerReference {
    /// Kind of the owner.
    pub kind: Text,
    /// Name of the owner.
    pub name: Text,
    /// UID of the owner.
    pub uid: Uid,
    /// Whether this owner is the managing controller.
    pub controller: bool,
}
message!(OwnerReference { kind: 1, name: 3, uid: 4, controller: 6 });

/// Keys whose domain one of the storage components owns. The others (`kubectl`'s last-applied
/// configuration above all) are large and mean nothing to us.
const KEPT_DOMAINS: [&str; 10] = [
    "pv.kubernetes.io/",
    "volume.kubernetes.io/",
    "volumes.kubernetes.io/",
    "volume.beta.kubernetes.io/",
    "volume.alpha.kubernetes.io/",
    "storageclass.kubernetes.io/",
    "storageclass.beta.kubernetes.io/",
    "kubernetes.io/azure-file-resource-group",
    "openstorage.io/",
    // Our own, of recycler pods.
    "mooring.binder/",
];

fn is_kept_annotation(key: &str) -> bool {
    KEPT_DOMAINS.iter().any(|domain| key.starts_with(domain))
}

fn storage_annotations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TextMap, D::Error> {
    let all = Option::<BTreeMap<String, String>>::deserialize(deserializer)?;
    Ok(all.into_iter().flatten().filter(|(key, _)| is_kept_annotation(key)).collect())
}
