//! PersistentVolume, and its spec inside a VolumeAttachment.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

use super::{
    meta::{Labelled, ObjectMeta, Quantity, by_name, non_empty, quantities},
    source::{ReadSource, Sources, parse, pick},
    text,
};
use crate::{
    ids::{DriverName, Uid},
    kinds::{
        ClaimRef, CsiSource, FileSource, FromProtobuf, InTreeSource, PersistentVolume, VolumeSource,
        VolumeSpec, VolumeStatus,
    },
    wire::DecodeError,
};

/// `core.v1.PersistentVolume`.
#[derive(Clone, PartialEq, Message)]
struct PersistentVolumeMessage {
    #[prost(message, required, tag = "1")]
    metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    spec: VolumeSpecMessage,
    #[prost(message, required, tag = "3")]
    status: VolumeStatusMessage,
}

/// `core.v1.PersistentVolumeSpec`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct VolumeSpecMessage {
    #[prost(btree_map = "string, message", tag = "1")]
    capacity: BTreeMap<String, Quantity>,
    #[prost(bytes = "bytes", tag = "2")]
    persistent_volume_source: Bytes,
    #[prost(string, repeated, tag = "3")]
    access_modes: Vec<String>,
    #[prost(message, optional, tag = "4")]
    claim_ref: Option<ClaimRefMessage>,
    #[prost(string, tag = "5")]
    persistent_volume_reclaim_policy: String,
    #[prost(string, tag = "6")]
    storage_class_name: String,
    #[prost(string, optional, tag = "8")]
    volume_mode: Option<String>,
    #[prost(string, optional, tag = "10")]
    volume_attributes_class_name: Option<String>,
}

/// `core.v1.PersistentVolumeSource`: those that we read.
#[derive(Clone, PartialEq, Message)]
struct VolumeSourceMessage {
    #[prost(bytes = "bytes", optional, tag = "1")]
    gce_persistent_disk: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "2")]
    aws_elastic_block_store: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    host_path: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "5")]
    nfs: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "7")]
    iscsi: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "8")]
    cinder: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "10")]
    fc: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "12")]
    flex_volume: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "13")]
    azure_file: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "14")]
    vsphere_volume: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "16")]
    azure_disk: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "18")]
    portworx_volume: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "22")]
    csi: Option<Bytes>,
}

/// `core.v1.CSIPersistentVolumeSource`.
#[derive(Clone, PartialEq, Message)]
struct CsiMessage {
    #[prost(string, tag = "1")]
    driver: String,
    #[prost(string, tag = "2")]
    volume_handle: String,
}

/// `core.v1.ObjectReference`.
#[derive(Clone, PartialEq, Message)]
struct ClaimRefMessage {
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    uid: String,
}

/// `core.v1.PersistentVolumeStatus`.
#[derive(Clone, PartialEq, Message)]
struct VolumeStatusMessage {
    #[prost(string, tag = "1")]
    phase: String,
    #[prost(bytes = "bytes", tag = "2")]
    message: Bytes,
}

impl From<CsiMessage> for CsiSource {
    fn from(csi: CsiMessage) -> Self {
        Self { driver: DriverName::shared(&csi.driver), volume_handle: csi.volume_handle.into() }
    }
}

impl FromProtobuf for PersistentVolume {
    fn from_protobuf(raw: &Bytes) -> Result<Self, DecodeError> {
        let PersistentVolumeMessage { metadata, spec, status } =
            PersistentVolumeMessage::decode(raw.clone())?;
        let mut metadata = metadata.narrow()?;
        metadata.labels = Labelled::decode(raw.clone())?.metadata.labels.into_iter().collect();
        Ok(Self {
            metadata,
            spec: spec.narrow()?,
            status: VolumeStatus {
                phase: by_name("status.phase", &status.phase)?,
                message: text(&status.message).into(),
            },
        })
    }
}

impl VolumeSpecMessage {
    pub(super) fn narrow(self) -> Result<VolumeSpec, DecodeError> {
        let mut spec = VolumeSpec {
            capacity: quantities(&self.capacity),
            access_modes: self.access_modes.iter().collect(),
            claim_ref: self
                .claim_ref
                .map(|claim| ClaimRef {
                    namespace: claim.namespace.into(),
                    name: claim.name.into(),
                    uid: Uid::from(claim.uid),
                })
                .filter(ClaimRef::refers),
            reclaim_policy: by_name(
                "spec.persistentVolumeReclaimPolicy",
                &self.persistent_volume_reclaim_policy,
            )?,
            storage_class_name: non_empty(&self.storage_class_name),
            volume_mode: self.volume_mode.map(Into::into),
            volume_attributes_class_name: self.volume_attributes_class_name.map(Into::into),
            ..VolumeSpec::default()
        };
        spec.set_source(source(self.persistent_volume_source)?);
        Ok(spec)
    }
}

impl ReadSource for VolumeSource {
    fn read_message(key: &'static str, raw: &Bytes) -> Self {
        match key {
            "csi" => parse(key, raw, |csi: CsiMessage| Self::Csi(csi.into())),
            "nfs" => parse(key, raw, |nfs| Self::Files(FileSource::Nfs(nfs))),
            "hostPath" => parse(key, raw, |path| Self::Files(FileSource::HostPath(path))),
            _ => Self::InTree(InTreeSource::read_message(key, raw)),
        }
    }
}

fn source(raw: Bytes) -> Result<Option<VolumeSource>, DecodeError> {
    let message = VolumeSourceMessage::decode(raw)?;
    let sources: Sources<'_, 13> = [
        ("gcePersistentDisk", &message.gce_persistent_disk),
        ("awsElasticBlockStore", &message.aws_elastic_block_store),
        ("hostPath", &message.host_path),
        ("nfs", &message.nfs),
        ("iscsi", &message.iscsi),
        ("cinder", &message.cinder),
        ("fc", &message.fc),
        ("flexVolume", &message.flex_volume),
        ("azureFile", &message.azure_file),
        ("vsphereVolume", &message.vsphere_volume),
        ("azureDisk", &message.azure_disk),
        ("portworxVolume", &message.portworx_volume),
        ("csi", &message.csi),
    ];
    Ok(pick(sources))
}
