//! In-tree volume sources: those that KCM's library translates to CSI, and iSCSI, Fibre Channel and
//! FlexVolume.
//!
//! In: one entry of a pod's `volumes`, or the `spec` of a PersistentVolume, both of which carry at most
//! one source, under a key of its own. Out: that source. A source that cannot be read never fails the
//! object it is in, let alone the list: it becomes [`InTreeSource::Malformed`] and blocks that volume
//! alone (S42). Sources are rare, so each is boxed where it is kept.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{
    protobuf::{FromProtobuf, Values, message},
    wire::DecodeError,
};

/// An in-tree volume source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InTreeSource {
    /// `awsElasticBlockStore`.
    AwsElasticBlockStore(AwsElasticBlockStore),
    /// `gcePersistentDisk`.
    GcePersistentDisk(GcePersistentDisk),
    /// `azureDisk`.
    AzureDisk(AzureDisk),
    /// `azureFile`.
    AzureFile(AzureFile),
    /// `cinder`.
    Cinder(Cinder),
    /// `vsphereVolume`.
    VsphereVolume(VsphereVolume),
    /// `portworxVolume`.
    PortworxVolume(PortworxVolume),
    /// `iscsi`.
    Iscsi(Iscsi),
    /// `fc`.
    Fc(Fc),
    /// `flexVolume`.
    FlexVolume(FlexVolume),
    /// A source that cannot be read.
    Malformed(Malformed),
}

/// What is wrong with a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Key of the source.
    pub key: &'static str,
    /// What the parser said.
    pub error: String,
}

/// `awsElasticBlockStore`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AwsElasticBlockStore {
    /// Id of the volume, in one of three forms.
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// File system.
    pub fs_type: String,
    /// Partition, 0 for the whole disk.
    pub partition: i32,
    /// Whether it is mounted read-only.
    pub read_only: bool,
}
message!(AwsElasticBlockStore { volume_id: 1, fs_type: 2, partition: 3, read_only: 4 });

/// `gcePersistentDisk`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GcePersistentDisk {
    /// Name of the disk.
    pub pd_name: String,
    /// File system.
    pub fs_type: String,
    /// Partition, 0 for the whole disk.
    pub partition: i32,
    /// Whether it is attached read-only.
    pub read_only: bool,
}
message!(GcePersistentDisk { pd_name: 1, fs_type: 2, partition: 3, read_only: 4 });

/// `azureDisk`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AzureDisk {
    /// URI of the disk.
    #[serde(rename = "diskURI")]
    pub disk_uri: String,
    /// Host caching.
    pub caching_mode: Option<String>,
    /// File system.
    pub fs_type: Option<String>,
    /// Whether it is mounted read-only.
    pub read_only: Option<bool>,
    /// `Managed`, or one of the kinds that no CSI driver supports.
    pub kind: Option<String>,
}
message!(AzureDisk { disk_uri: 2, caching_mode: 3, fs_type: 4, read_only: 5, kind: 6 });

/// `azureFile`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AzureFile {
    /// Secret with account name and key.
    pub secret_name: String,
    /// Namespace of the secret; PersistentVolumes only.
    pub secret_namespace: Option<String>,
    /// Name of the share.
    pub share_name: String,
    /// Whether it is mounted read-only.
    pub read_only: bool,
}
message!(AzureFile { secret_name: 1, share_name: 2, read_only: 3, secret_namespace: 4 });

/// `cinder`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Cinder {
    /// Id of the volume.
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// File system.
    pub fs_type: String,
    /// Whether it is mounted read-only.
    pub read_only: bool,
}
message!(Cinder { volume_id: 1, fs_type: 2, read_only: 3 });

/// `vsphereVolume`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VsphereVolume {
    /// Path of the disk.
    pub volume_path: String,
    /// File system.
    pub fs_type: String,
    /// Storage policy by name.
    pub storage_policy_name: String,
}
message!(VsphereVolume { volume_path: 1, fs_type: 2, storage_policy_name: 3 });

/// `portworxVolume`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PortworxVolume {
    /// Id of the volume.
    #[serde(rename = "volumeID")]
    pub volume_id: String,
    /// File system.
    pub fs_type: String,
    /// Whether it is mounted read-only.
    pub read_only: bool,
}
message!(PortworxVolume { volume_id: 1, fs_type: 2, read_only: 3 });

/// `iscsi`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Iscsi {
    /// Address of the target.
    pub target_portal: String,
    /// Qualified name of the target.
    pub iqn: String,
    /// Logical unit.
    pub lun: i32,
}
message!(Iscsi { target_portal: 1, iqn: 2, lun: 3 });

/// `fc`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Fc {
    /// World-wide names of the target.
    #[serde(rename = "targetWWNs")]
    pub target_wwns: Vec<String>,
    /// Logical unit; goes with the target's names.
    pub lun: Option<i32>,
    /// World-wide identifiers of the volume, instead of both.
    pub wwids: Vec<String>,
}
message!(Fc { target_wwns: 1, lun: 2, wwids: 5 });

/// `flexVolume`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct FlexVolume {
    /// `<vendor>/<driver>`.
    pub driver: String,
}
message!(FlexVolume { driver: 1 });

/// What one object may carry at most one of.
pub(super) trait Source: Sized {
    /// The keys of sources, with their numbers in protobuf.
    const KEYS: &'static [(u32, &'static str)];

    /// Reads what is under one of the keys, or says why it cannot be read.
    fn read(key: &'static str, raw: Raw<'_>) -> Result<Self, String>;

    /// Stands for what cannot be read.
    fn malformed(malformed: Malformed) -> Self;

    /// Adds what is under one of the keys to what there is.
    fn add(source: &mut Option<Self>, key: &'static str, raw: Raw<'_>) {
        let read = match source {
            None => Self::read(key, raw),
            Some(_) => Err("it is not the only source".to_owned()),
        };
        *source = Some(read.unwrap_or_else(|error| Self::malformed(Malformed { key, error })));
    }
}

/// A source that is not read yet.
pub(super) enum Raw<'a> {
    Json(Value),
    Protobuf(Values<'a, 'a>),
}

impl Raw<'_> {
    pub(super) fn parse<T: DeserializeOwned + FromProtobuf>(self) -> Result<T, String> {
        match self {
            // serde would take an array for the fields of a struct in their order.
            Raw::Json(value) if !value.is_object() => Err("it is not an object".to_owned()),
            Raw::Json(value) => serde_json::from_value(value).map_err(|error| error.to_string()),
            Raw::Protobuf(values) => T::from_values(values).map_err(|error| error.to_string()),
        }
    }
}

impl InTreeSource {
    pub(super) fn read(key: &'static str, raw: Raw<'_>) -> Result<Self, String> {
        Ok(match key {
            "awsElasticBlockStore" => Self::AwsElasticBlockStore(raw.parse()?),
            "gcePersistentDisk" => Self::GcePersistentDisk(raw.parse()?),
            "azureDisk" => Self::AzureDisk(raw.parse()?),
            "azureFile" => Self::AzureFile(raw.parse()?),
            "cinder" => Self::Cinder(raw.parse()?),
            "vsphereVolume" => Self::VsphereVolume(raw.parse()?),
            "portworxVolume" => Self::PortworxVolume(raw.parse()?),
            "iscsi" => Self::Iscsi(raw.parse()?),
            "fc" => Self::Fc(raw.parse()?),
            "flexVolume" => Self::FlexVolume(raw.parse()?),
            _ => return Err("unknown source".to_owned()),
        })
    }
}

/// The source in a message of sources, if there is one that is asked for.
pub(super) fn source_of<S: Source>(values: Values<'_, '_>) -> Result<Option<S>, DecodeError> {
    let message = values.message(u64::MAX)?;
    let mut source = None;
    for (number, key) in S::KEYS {
        let values = message.of(*number);
        if !values.is_empty() {
            S::add(&mut source, key, Raw::Protobuf(values));
        }
    }
    Ok(source)
}

/// Takes the source out of the fields of an object, if there is one.
pub(super) fn take_source<S: Source>(fields: &mut Map<String, Value>) -> Option<S> {
    let mut source = None;
    for (_, key) in S::KEYS {
        if let Some(value) = fields.remove(*key).filter(|value| !value.is_null()) {
            S::add(&mut source, key, Raw::Json(value));
        }
    }
    source
}
