//! The part of `metadata` that decisions read.

use std::{collections::BTreeMap, fmt, sync::Arc};

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Deserializer, de::MapAccess};

use crate::kube_api::ids::{ResourceVersion, Uid};

/// Metadata of an object.
///
/// Equality leaves the revision out: two revisions with the same content are the same object, and
/// a change that touches nothing we keep wakes nobody.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// Name.
    pub name: Arc<str>,
    /// Namespace, empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    /// UID.
    pub uid: Uid,
    /// Revision at which the object looked like this.
    pub resource_version: ResourceVersion,
    /// When the API server created the object.
    pub creation_timestamp: Option<Timestamp>,
    /// Set once deletion was asked for; the object is gone when its finalizers are.
    pub deletion_timestamp: Option<Timestamp>,
    /// Finalizers.
    pub finalizers: Vec<String>,
    /// Owners.
    pub owner_references: Vec<OwnerReference>,
    /// Annotations of the storage domains; others are not kept.
    #[serde(deserialize_with = "storage_annotations")]
    pub annotations: BTreeMap<String, String>,
    /// Labels; kept for PersistentVolumes only, where claims select by them.
    pub labels: BTreeMap<String, String>,
}

impl Meta {
    /// Whether deletion was asked for.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// Value of an annotation.
    #[must_use]
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }

    /// The owner that controls this object, if any.
    #[must_use]
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
    pub kind: String,
    /// Name of the owner.
    pub name: String,
    /// UID of the owner.
    pub uid: Uid,
    /// Whether this owner is the managing controller.
    pub controller: bool,
}

/// Keys whose domain one of the storage components owns. The others (`kubectl`'s last-applied
/// configuration above all) are large and mean nothing to us.
const KEPT_DOMAINS: [&str; 9] = [
    "pv.kubernetes.io/",
    "volume.kubernetes.io/",
    "volumes.kubernetes.io/",
    "volume.beta.kubernetes.io/",
    "volume.alpha.kubernetes.io/",
    "storageclass.kubernetes.io/",
    "storageclass.beta.kubernetes.io/",
    "kubernetes.io/azure-file-resource-group",
    "openstorage.io/",
];

/// Whether an annotation of that key is kept.
pub(in crate::kube_api) fn is_kept_annotation(key: &[u8]) -> bool {
    KEPT_DOMAINS.iter().any(|domain| key.starts_with(domain.as_bytes()))
}

fn storage_annotations<'de, D>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error>
where
    D: Deserializer<'de>,
{
    struct Visitor;
    impl<'de> serde::de::Visitor<'de> for Visitor {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map of annotations")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut kept = BTreeMap::new();
            while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
                if is_kept_annotation(key.as_bytes()) {
                    kept.insert(key.into_owned(), map.next_value()?);
                } else {
                    map.next_value::<serde::de::IgnoredAny>()?;
                }
            }
            Ok(kept)
        }
    }
    deserializer.deserialize_any(Visitor)
}
