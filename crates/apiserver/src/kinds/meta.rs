//! The part of `metadata` that decisions read.

use std::collections::BTreeMap;

use ahash::RandomState;
use arcstr::ArcStr;
use derive_more::{Deref, DerefMut};
use educe::Educe;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{
    ids::{ResourceVersion, Uid},
    protobuf::{FromProtobuf, Values, entries, message, own, time},
    text::{self, Text, TextList, TextMap},
    wire::DecodeError,
};

/// Metadata of an object.
///
/// Equality leaves the revision out: two revisions with the same content are the same object, and
/// a change that touches nothing we keep wakes no subscriber. Of claims and volumes it counts what others note, too: a policy
/// may ask for that, so that such a change is what a refused request waits for.
#[derive(Clone, Debug, Default, Deserialize, Educe)]
#[educe(PartialEq)]
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
    #[educe(PartialEq(ignore))]
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
    pub annotations: Annotations,
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
    annotations: 12,
    owner_references: 13,
    finalizers: 14,
});

/// A time that anybody may write into a status, read as [`time`] reads it.
pub(super) fn time_of_json<'de, D: Deserializer<'de>>(source: D) -> Result<Option<Timestamp>, D::Error> {
    let text = Option::<Box<str>>::deserialize(source)?;
    let read = |text: Box<str>| match text.parse() {
        // Go's calendar ends a day later.
        Err(_) if text.starts_with("9999-12-3") => Ok(Timestamp::MAX),
        read => read.map_err(D::Error::custom),
    };
    text.map(read).transpose()
}

/// Metadata of an object that others refer to by its name, which is shared.
pub(super) fn referenced(values: Values<'_, '_>) -> Result<Meta, DecodeError> {
    let meta = Meta::from_values(values)?;
    Ok(Meta { name: text::share(&meta.name), ..meta })
}

/// Metadata of a PersistentVolume, whose labels are kept, or of a claim, of whose labels a hash is.
pub(super) fn labelled(values: Values<'_, '_>) -> Result<Meta, DecodeError> {
    let labels =
        TextMap::from_values(values.message(1 << 11)?.of(11)).map_err(|error| error.within("labels"))?;
    Ok(Meta { labels, ..referenced(values)? })
}

#[expect(clippy::unnecessary_wraps, reason = "as functions of a table are")]
fn unread(_: Values<'_, '_>) -> Result<TextMap, DecodeError> {
    Ok(TextMap::default())
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

    /// Keeps some of the owners, and nothing of what others note.
    pub(super) fn keep_owners(&mut self, is_kept: impl FnMut(&OwnerReference) -> bool) {
        self.labels = TextMap::default();
        self.keep_noted(is_kept);
        self.annotations.others = 0;
    }

    /// Keeps some of the owners, and of what others note a hash, labels included.
    pub(super) fn keep_noted(&mut self, is_kept: impl FnMut(&OwnerReference) -> bool) {
        for (key, value) in std::mem::take(&mut self.labels).iter() {
            self.annotations.note(key, value);
        }
        self.owner_references.retain(is_kept);
        self.owner_references.shrink_to_fit();
    }

    /// The owner that controls this object, if any.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|owner| owner.controller)
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

/// Annotations that are kept, and of the others a hash.
#[derive(Clone, Debug, Default, PartialEq, Deref, DerefMut)]
pub struct Annotations {
    #[deref]
    #[deref_mut]
    kept: TextMap,
    /// Sum of the hashes of all that others note: its order does not matter.
    others: u64,
}

impl Annotations {
    fn note(&mut self, key: &str, value: &str) {
        let hash = RandomState::with_seeds(0, 0, 0, 0).hash_one((key, value));
        self.others = self.others.wrapping_add(hash);
    }

    /// Whether an annotation is kept; one that is not is noted.
    fn keeps(&mut self, key: &str, value: &str) -> bool {
        let is_kept = KEPT_DOMAINS.iter().any(|domain| key.starts_with(domain));
        if !is_kept {
            self.note(key, value);
        }
        is_kept
    }
}

impl<'de> Deserialize<'de> for Annotations {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let all = Option::<BTreeMap<String, String>>::deserialize(deserializer)?;
        let mut read = Self::default();
        let kept = all.into_iter().flatten().filter(|(key, value)| read.keeps(key, value)).collect();
        Ok(Self { kept, ..read })
    }
}

impl FromProtobuf for Annotations {
    fn from_values(values: Values<'_, '_>) -> Result<Self, DecodeError> {
        let mut read = Self::default();
        let kept = entries(values, |key, value| read.keeps(key, value))?;
        Ok(Self { kept, ..read })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::{
        kinds::{Narrow, PersistentVolume, PersistentVolumeClaim, Pod},
        wire::Encoding,
    };

    fn read<T: Narrow>(metadata: &Value) -> T {
        let object = json!({"kind": T::KIND, "metadata": metadata});
        Encoding::Json.object(&object.to_string().into()).unwrap()
    }

    #[test]
    fn what_others_note_of_a_claim_or_volume_counts_and_is_not_kept() {
        let plain =
            json!({"labels": {"a": "b"}, "annotations": {"example.com/c": "d", "example.com/e": "f"}});
        // what is noted, and whether it is the same of a claim, of a volume and of a pod
        let rows = [
            (plain.clone(), [true; 3]),
            (json!({"labels": {"a": "c"}, "annotations": plain["annotations"]}), [false, false, true]),
            (json!({"annotations": plain["annotations"]}), [false, false, true]),
            (json!({"labels": plain["labels"], "annotations": {"example.com/c": "d"}}), [false, false, true]),
            (
                json!({"labels": plain["labels"], "annotations": {"example.com/c": "f", "example.com/e": "d"}}),
                [false, false, true],
            ),
        ];
        for (noted, expected) in rows {
            let same = [
                read::<PersistentVolumeClaim>(&plain) == read(&noted),
                read::<PersistentVolume>(&plain) == read(&noted),
                read::<Pod>(&plain) == read(&noted),
            ];
            assert_eq!(same, expected, "{noted}");
        }
        let claim: PersistentVolumeClaim = read(&plain);
        assert!(claim.metadata.annotations.is_empty() && claim.metadata.labels.is_empty());
    }
}
