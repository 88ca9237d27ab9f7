//! PersistentVolume: what it is, whom it is for, and how far it got.

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::{Map, Value};
use strum::{IntoStaticStr, VariantNames};

use super::{
    InTreeSource, Keep, Meta,
    meta::labelled,
    source::{Malformed, Raw, Source, source_of, take_source},
};
use crate::{
    ids::{AttributesClassName, ClaimKey, DriverName, NamespacedName, Uid},
    protobuf::{FromProtobuf as _, Message, Values, enumeration, message, quantities},
    text::{Text, TextList, TextMap},
    wire::DecodeError,
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
message!(PersistentVolume { metadata: 1 by labelled, spec: 2, status: 3 });

impl PersistentVolume {
    /// The VolumeAttributesClass that the volume names.
    pub fn attributes_class(&self) -> Option<AttributesClassName> {
        let name = self.spec.volume_attributes_class_name.as_ref()?;
        Some(AttributesClassName::from(name.as_str())).filter(|name| !name.is_empty())
    }
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
message!(VolumeSpec {
    capacity: 1 by quantities,
    access_modes: 3,
    claim_ref: 4 by referring,
    reclaim_policy: 5,
    storage_class_name: 6 by non_empty,
    volume_mode: 8,
    volume_attributes_class_name: 10,
} .. read_source);

fn read_source(spec: &mut VolumeSpec, message: &Message<'_>) -> Result<(), DecodeError> {
    spec.set_source(source_of(message.of(2))?);
    Ok(())
}

fn referring(values: Values<'_, '_>) -> Result<Option<ClaimRef>, DecodeError> {
    Ok(Option::from_values(values)?.filter(ClaimRef::refers))
}

/// What Go omits from JSON when it is empty, and protobuf has nevertheless.
fn non_empty(values: Values<'_, '_>) -> Result<Option<Text>, DecodeError> {
    Ok(Option::from_values(values)?.filter(|text: &Text| !text.is_empty()))
}

impl VolumeSpec {
    /// Puts the source where its kind is kept.
    fn set_source(&mut self, source: Option<VolumeSource>) {
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
        let mut fields = Map::deserialize(deserializer)?;
        let source = take_source(&mut fields);
        // The derived function, which knows all fields but the sources.
        let mut spec = Self::deserialize(Value::Object(fields)).map_err(D::Error::custom)?;
        spec.set_source(source);
        spec.claim_ref = spec.claim_ref.filter(ClaimRef::refers);
        Ok(spec)
    }
}

/// The one source of a PersistentVolume.
enum VolumeSource {
    Csi(CsiSource),
    Files(FileSource),
    InTree(InTreeSource),
}

impl Source for VolumeSource {
    const KEYS: &'static [(u32, &'static str)] = &[
        (1, "gcePersistentDisk"),
        (2, "awsElasticBlockStore"),
        (3, "hostPath"),
        (5, "nfs"),
        (7, "iscsi"),
        (8, "cinder"),
        (10, "fc"),
        (12, "flexVolume"),
        (13, "azureFile"),
        (14, "vsphereVolume"),
        (16, "azureDisk"),
        (18, "portworxVolume"),
        (22, "csi"),
    ];

    fn read(key: &'static str, raw: Raw<'_>) -> Result<Self, String> {
        Ok(match key {
            "csi" => Self::Csi(raw.parse()?),
            "nfs" => Self::Files(FileSource::Nfs(raw.parse()?)),
            "hostPath" => Self::Files(FileSource::HostPath(raw.parse()?)),
            _ => Self::InTree(InTreeSource::read(key, raw)?),
        })
    }

    fn malformed(malformed: Malformed) -> Self {
        Self::InTree(InTreeSource::Malformed(malformed))
    }
}

impl Keep for PersistentVolume {
    fn trim(&mut self) {
        self.metadata.owner_references = Vec::new();
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
message!(ClaimRef { namespace: 2, name: 3, uid: 4 });

impl ClaimRef {
    /// Whether it refers to a claim at all.
    fn refers(&self) -> bool {
        !self.name.is_empty() || !self.uid.is_empty()
    }

    /// The claim's key.
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
message!(CsiSource { driver: 1, volume_handle: 2 });

/// A source that is a directory somewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileSource {
    /// `spec.hostPath`.
    HostPath(HostPathSource),
    /// `spec.nfs`.
    Nfs(NfsSource),
}

/// `spec.hostPath`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HostPathSource {
    /// Path on the node.
    pub path: String,
}
message!(HostPathSource { path: 1 });

/// `spec.nfs`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NfsSource {
    /// Host name or address of the server.
    pub server: String,
    /// Path there.
    pub path: String,
}
message!(NfsSource { server: 1, path: 2 });

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
enumeration!(ReclaimPolicy);

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
message!(VolumeStatus { phase: 1, message: 2 });

/// `status.phase` of a PersistentVolume.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, IntoStaticStr, VariantNames,
)]
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
enumeration!(VolumePhase);
