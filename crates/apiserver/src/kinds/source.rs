//! In-tree volume sources: those that KCM's library translates to CSI, and iSCSI, Fibre Channel and
//! FlexVolume.
//!
//! In: one entry of a pod's `volumes`, or the `spec` of a PersistentVolume, both of which carry at most
//! one source, under a key of its own. Out: that source. A source that cannot be read never fails the
//! object it is in, let alone the list: it becomes [`InTreeSource::Malformed`] and blocks that volume
//! alone (S42). Sources are rare, so each is boxed where it is kept.

use std::borrow::Cow;

use serde::{
    Deserialize,
    de::{DeserializeOwned, DeserializeSeed, IntoDeserializer, MapAccess},
};
use serde_json::Value;

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
#[derive(Clone, PartialEq, Eq, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct AwsElasticBlockStore {
    /// Id of the volume, in one of three forms.
    #[serde(rename = "volumeID")]
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// File system.
    #[prost(string, tag = "2")]
    pub fs_type: String,
    /// Partition, 0 for the whole disk.
    #[prost(int32, tag = "3")]
    pub partition: i32,
    /// Whether it is mounted read-only.
    #[prost(bool, tag = "4")]
    pub read_only: bool,
}

/// `gcePersistentDisk`.
#[derive(Clone, PartialEq, Eq, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct GcePersistentDisk {
    /// Name of the disk.
    #[prost(string, tag = "1")]
    pub pd_name: String,
    /// File system.
    #[prost(string, tag = "2")]
    pub fs_type: String,
    /// Partition, 0 for the whole disk.
    #[prost(int32, tag = "3")]
    pub partition: i32,
    /// Whether it is attached read-only.
    #[prost(bool, tag = "4")]
    pub read_only: bool,
}

/// `azureDisk`.
#[derive(Clone, PartialEq, Eq, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct AzureDisk {
    /// URI of the disk.
    #[serde(rename = "diskURI")]
    #[prost(string, tag = "2")]
    pub disk_uri: String,
    /// Host caching.
    #[prost(string, optional, tag = "3")]
    pub caching_mode: Option<String>,
    /// File system.
    #[prost(string, optional, tag = "4")]
    pub fs_type: Option<String>,
    /// Whether it is mounted read-only.
    #[prost(bool, optional, tag = "5")]
    pub read_only: Option<bool>,
    /// `Managed`, or one of the kinds that no CSI driver supports.
    #[prost(string, optional, tag = "6")]
    pub kind: Option<String>,
}

/// `azureFile`.
#[derive(Clone, PartialEq, Eq, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct AzureFile {
    /// Secret with account name and key.
    #[prost(string, tag = "1")]
    pub secret_name: String,
    /// Namespace of the secret; PersistentVolumes only.
    #[prost(string, optional, tag = "4")]
    pub secret_namespace: Option<String>,
    /// Name of the share.
    #[prost(string, tag = "2")]
    pub share_name: String,
    /// Whether it is mounted read-only.
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

/// `cinder`.
#[derive(Clone, PartialEq, Eq, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct Cinder {
    /// Id of the volume.
    #[serde(rename = "volumeID")]
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// File system.
    #[prost(string, tag = "2")]
    pub fs_type: String,
    /// Whether it is mounted read-only.
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

/// `vsphereVolume`.
#[derive(Clone, PartialEq, Eq, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct VsphereVolume {
    /// Path of the disk.
    #[prost(string, tag = "1")]
    pub volume_path: String,
    /// File system.
    #[prost(string, tag = "2")]
    pub fs_type: String,
    /// Storage policy by name.
    #[prost(string, tag = "3")]
    pub storage_policy_name: String,
}

/// `portworxVolume`.
#[derive(Clone, PartialEq, Eq, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct PortworxVolume {
    /// Id of the volume.
    #[serde(rename = "volumeID")]
    #[prost(string, tag = "1")]
    pub volume_id: String,
    /// File system.
    #[prost(string, tag = "2")]
    pub fs_type: String,
    /// Whether it is mounted read-only.
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

/// `iscsi`.
#[derive(Clone, PartialEq, Eq, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct Iscsi {
    /// Address of the target.
    #[prost(string, tag = "1")]
    pub target_portal: String,
    /// Qualified name of the target.
    #[prost(string, tag = "2")]
    pub iqn: String,
    /// Logical unit.
    #[prost(int32, tag = "3")]
    pub lun: i32,
}

/// `fc`.
#[derive(Clone, PartialEq, Eq, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct Fc {
    /// World-wide names of the target.
    #[serde(rename = "targetWWNs")]
    #[prost(string, repeated, tag = "1")]
    pub target_wwns: Vec<String>,
    /// Logical unit; goes with the target's names.
    #[prost(int32, optional, tag = "2")]
    pub lun: Option<i32>,
    /// World-wide identifiers of the volume, instead of both.
    #[prost(string, repeated, tag = "5")]
    pub wwids: Vec<String>,
}

/// `flexVolume`.
#[derive(Clone, PartialEq, Eq, Deserialize, prost::Message)]
#[serde(default)]
pub struct FlexVolume {
    /// `<vendor>/<driver>`.
    #[prost(string, tag = "1")]
    pub driver: String,
}

/// What one object may carry at most one of.
pub(crate) trait Source: Sized {
    /// The key, if it is one of a source.
    fn key(name: &str) -> Option<&'static str>;
    /// Reads the value under one of the keys.
    fn read(key: &'static str, value: Value) -> Self;
    /// Stands for what cannot be read.
    fn malformed(malformed: Malformed) -> Self;
}

const KEYS: [&str; 10] = [
    "awsElasticBlockStore",
    "gcePersistentDisk",
    "azureDisk",
    "azureFile",
    "cinder",
    "vsphereVolume",
    "portworxVolume",
    "iscsi",
    "fc",
    "flexVolume",
];

impl Source for InTreeSource {
    fn key(name: &str) -> Option<&'static str> {
        KEYS.iter().copied().find(|key| *key == name)
    }

    fn read(key: &'static str, value: Value) -> Self {
        match key {
            "awsElasticBlockStore" => parse(key, value, Self::AwsElasticBlockStore),
            "gcePersistentDisk" => parse(key, value, Self::GcePersistentDisk),
            "azureDisk" => parse(key, value, Self::AzureDisk),
            "azureFile" => parse(key, value, Self::AzureFile),
            "cinder" => parse(key, value, Self::Cinder),
            "vsphereVolume" => parse(key, value, Self::VsphereVolume),
            "portworxVolume" => parse(key, value, Self::PortworxVolume),
            "iscsi" => parse(key, value, Self::Iscsi),
            "fc" => parse(key, value, Self::Fc),
            "flexVolume" => parse(key, value, Self::FlexVolume),
            _ => Self::malformed(Malformed { key, error: "unknown source".to_owned() }),
        }
    }

    fn malformed(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

/// Reads a source into its variant, or says why it cannot be read.
pub(super) fn parse<T: DeserializeOwned, S: Source>(
    key: &'static str,
    value: Value,
    variant: fn(T) -> S,
) -> S {
    // serde would take an array for the fields of a struct in their order.
    if !value.is_object() {
        return S::malformed(Malformed { key, error: "it is not an object".to_owned() });
    }
    match serde_json::from_value(value) {
        Ok(source) => variant(source),
        Err(error) => S::malformed(Malformed { key, error: error.to_string() }),
    }
}

/// A map that keeps the source back and passes everything else on.
pub(super) struct WithoutSource<'a, A, S> {
    map: A,
    source: &'a mut Option<S>,
}

impl<'a, A, S> WithoutSource<'a, A, S> {
    /// Puts the source, if the map has one, into `source`.
    pub(super) fn new(map: A, source: &'a mut Option<S>) -> Self {
        Self { map, source }
    }
}

impl<'de, A: MapAccess<'de>, S: Source> MapAccess<'de> for WithoutSource<'_, A, S> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        while let Some(name) = self.map.next_key::<Cow<'de, str>>()? {
            let Some(key) = S::key(&name) else {
                return seed.deserialize(name.into_deserializer()).map(Some);
            };
            let value: Value = self.map.next_value()?;
            if value.is_null() {
                continue;
            }
            *self.source = Some(match self.source.take() {
                None => S::read(key, value),
                Some(_) => S::malformed(Malformed { key, error: "it is not the only source".to_owned() }),
            });
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}
