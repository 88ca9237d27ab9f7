//! PersistentVolume: what it is, whom it is for, and how far it got.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::Value;

use super::{
    InTreeSource, Keep, Meta,
    source::{Malformed, Source, WithoutSource, parse},
};
use crate::{
    ids::{ClaimKey, DriverName, NamespacedName, Uid},
    text::{Text, TextList, TextMap},
};

/// A PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PersistentVolume {
    /// Metadata.
    pub metadata: Meta,
    /// Spec.
    pub spec: VolumeSpec,
    /// Status.
    pub status: VolumeStatus,
}

/// `spec` of a PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
pub struct VolumeSpec {
    /// Capacity by resource name, as written (quantities).
    pub capacity: TextMap,
    /// Access modes, in the object's order.
    pub access_modes: TextList,
    /// The claim this volume is bound to or reserved for. One without name and UID refers to none, and counts as cleared.
    pub claim_ref: Option<ClaimRef>,
    /// What happens when the claim is gone.
    #[serde(rename = "persistentVolumeReclaimPolicy")]
    pub reclaim_policy: ReclaimPolicy,
    /// Class; the beta annotation overrides it.
    pub storage_class_name: Option<Text>,
    /// `Filesystem` (also when absent) or `Block`.
    pub volume_mode: Option<Text>,
    /// VolumeAttributesClass.
    pub volume_attributes_class_name: Option<Text>,
    /// CSI source.
    #[serde(skip)]
    pub csi: Option<CsiSource>,
    /// NFS or a directory of the node: the sources for which the stock binder itself has plugins.
    #[serde(skip)]
    pub files: Option<Box<FileSource>>,
    /// In-tree source, or what was meant to be a source and cannot be read.
    #[serde(skip)]
    pub in_tree: Option<Box<InTreeSource>>,
}

impl VolumeSpec {
    /// Puts the source where its kind is kept.
    pub(crate) fn set_source(&mut self, source: Option<VolumeSource>) {
        match source {
            None => {}
            Some(VolumeSource::Csi(source)) => self.csi = Some(source),
            Some(VolumeSource::Files(source)) => self.files = Some(Box::new(source)),
            Some(VolumeSource::InTree(source)) => self.in_tree = Some(Box::new(source)),
        }
    }
}

impl<'de> Deserialize<'de> for VolumeSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Spec;
        impl<'de> Visitor<'de> for Spec {
            type Value = VolumeSpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the spec of a PersistentVolume")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<VolumeSpec, A::Error> {
                let mut source = None;
                let rest = WithoutSource::new(map, &mut source);
                // The derived function, which knows all fields but the sources.
                let mut spec = VolumeSpec::deserialize(MapAccessDeserializer::new(rest))?;
                spec.set_source(source);
                spec.claim_ref = spec.claim_ref.filter(ClaimRef::refers);
                Ok(spec)
            }
        }
        deserializer.deserialize_map(Spec)
    }
}

/// The one source of a PersistentVolume.
pub(crate) enum VolumeSource {
    Csi(CsiSource),
    Files(FileSource),
    InTree(InTreeSource),
}

impl Source for VolumeSource {
    fn key(name: &str) -> Option<&'static str> {
        match name {
            "csi" => Some("csi"),
            "nfs" => Some("nfs"),
            "hostPath" => Some("hostPath"),
            _ => InTreeSource::key(name),
        }
    }

    fn read(key: &'static str, value: Value) -> Self {
        match key {
            "csi" => parse(key, value, Self::Csi),
            "nfs" => parse(key, value, |source| Self::Files(FileSource::Nfs(source))),
            "hostPath" => parse(key, value, |source| Self::Files(FileSource::HostPath(source))),
            _ => Self::InTree(InTreeSource::read(key, value)),
        }
    }

    fn malformed(malformed: Malformed) -> Self {
        Self::InTree(InTreeSource::Malformed(malformed))
    }
}

impl Keep for PersistentVolume {
    fn trim(&mut self) {
        self.metadata.keep_finalizers();
    }
}

/// `spec.claimRef`: an object reference, as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimRef {
    /// Namespace of the claim.
    pub namespace: Text,
    /// Name of the claim.
    pub name: Text,
    /// UID of the claim; empty while the volume is only reserved by name.
    pub uid: Uid,
}

impl ClaimRef {
    /// Whether it refers to a claim at all.
    pub(crate) fn refers(&self) -> bool {
        !self.name.is_empty() || !self.uid.is_empty()
    }

    /// The claim's key.
    #[must_use]
    pub fn key(&self) -> ClaimKey {
        ClaimKey(NamespacedName { namespace: self.namespace.clone().into(), name: self.name.clone().into() })
    }
}

/// `spec.csi`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CsiSource {
    /// Driver.
    pub driver: DriverName,
    /// The driver's name of the volume.
    pub volume_handle: Box<str>,
}

/// A source that is a directory somewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileSource {
    /// `spec.hostPath`.
    HostPath(HostPathSource),
    /// `spec.nfs`.
    Nfs(NfsSource),
}

/// `spec.hostPath`.
#[derive(Clone, PartialEq, Eq, Deserialize, prost::Message)]
#[serde(default)]
pub struct HostPathSource {
    /// Path on the node.
    #[prost(string, tag = "1")]
    pub path: String,
}

/// `spec.nfs`.
#[derive(Clone, PartialEq, Eq, Deserialize, prost::Message)]
#[serde(default)]
pub struct NfsSource {
    /// Host name or address of the server.
    #[prost(string, tag = "1")]
    pub server: String,
    /// Path there.
    #[prost(string, tag = "2")]
    pub path: String,
}

/// `spec.persistentVolumeReclaimPolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ReclaimPolicy {
    /// Keep the data until an administrator acts.
    #[default]
    Retain,
    /// Delete the storage.
    Delete,
    /// Scrub and reuse (deprecated).
    Recycle,
    /// A value this version does not know.
    Other(Text),
}

impl<'de> Deserialize<'de> for ReclaimPolicy {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match String::deserialize(deserializer)?.as_str() {
            "Retain" | "" => Self::Retain,
            "Delete" => Self::Delete,
            "Recycle" => Self::Recycle,
            other => Self::Other(other.into()),
        })
    }
}

/// `status` of a PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeStatus {
    /// Phase.
    pub phase: VolumePhase,
    /// Human-readable detail of the phase.
    pub message: Box<str>,
}

/// `status.phase` of a PersistentVolume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum VolumePhase {
    /// Not looked at yet.
    #[default]
    #[serde(alias = "")]
    Pending,
    /// Free.
    Available,
    /// Bound to a claim.
    Bound,
    /// Its claim is gone.
    Released,
    /// Reclaiming failed.
    Failed,
    /// A phase this version does not know.
    #[serde(other)]
    Unknown,
}

impl VolumePhase {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Available, Self::Bound, Self::Released, Self::Failed, Self::Unknown];

    /// As written in the object.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Available => "Available",
            Self::Bound => "Bound",
            Self::Released => "Released",
            Self::Failed => "Failed",
            Self::Unknown => "Unknown",
        }
    }
}
