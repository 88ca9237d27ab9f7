//! Pod.

use bytes::Bytes;
use prost::Message;

use super::{
    meta::{ObjectMeta, Present, by_name, utf8},
    source::{ReadSource, Sources, parse, pick},
    text,
};
use crate::{
    ids::NodeName,
    kinds::{
        ClaimSource, ContainerState, FromProtobuf, InTreeSource, Pod, PodSpec, PodStatus, PodVolume,
        PodVolumeSource,
    },
    text::Text,
    wire::DecodeError,
};

/// `core.v1.Pod`.
#[derive(Clone, PartialEq, Message)]
struct PodMessage {
    #[prost(message, required, tag = "1")]
    metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    spec: PodSpecMessage,
    #[prost(message, required, tag = "3")]
    status: PodStatusMessage,
}

/// `core.v1.PodSpec`.
#[derive(Clone, PartialEq, Message)]
struct PodSpecMessage {
    #[prost(message, repeated, tag = "1")]
    volumes: Vec<VolumeMessage>,
    #[prost(string, tag = "10")]
    node_name: String,
}

/// `core.v1.Volume`, not yet copied out of the body: most are not kept.
#[derive(Clone, PartialEq, Message)]
struct VolumeMessage {
    #[prost(bytes = "bytes", tag = "1")]
    name: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    volume_source: Bytes,
}

/// `core.v1.VolumeSource`: those that may lead to something attachable.
#[derive(Clone, PartialEq, Message)]
struct VolumeSourceMessage {
    #[prost(bytes = "bytes", optional, tag = "3")]
    gce_persistent_disk: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    aws_elastic_block_store: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "8")]
    iscsi: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "10")]
    persistent_volume_claim: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "12")]
    flex_volume: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "13")]
    cinder: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "17")]
    fc: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "18")]
    azure_file: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "20")]
    vsphere_volume: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "22")]
    azure_disk: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "24")]
    portworx_volume: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "29")]
    ephemeral: Option<Bytes>,
}

/// `core.v1.PersistentVolumeClaimVolumeSource`.
#[derive(Clone, PartialEq, Message)]
struct ClaimSourceMessage {
    #[prost(string, tag = "1")]
    claim_name: String,
}

impl From<ClaimSourceMessage> for ClaimSource {
    fn from(source: ClaimSourceMessage) -> Self {
        Self { claim_name: source.claim_name.into() }
    }
}

/// `core.v1.PodStatus`.
#[derive(Clone, PartialEq, Message)]
struct PodStatusMessage {
    #[prost(string, tag = "1")]
    phase: String,
    #[prost(bytes = "bytes", tag = "3")]
    message: Bytes,
    #[prost(message, repeated, tag = "8")]
    container_statuses: Vec<ContainerStatusMessage>,
    #[prost(message, repeated, tag = "10")]
    init_container_statuses: Vec<ContainerStatusMessage>,
    #[prost(message, repeated, tag = "13")]
    ephemeral_container_statuses: Vec<ContainerStatusMessage>,
}

/// `core.v1.ContainerStatus`.
#[derive(Clone, PartialEq, Message)]
struct ContainerStatusMessage {
    #[prost(message, required, tag = "2")]
    state: ContainerStateMessage,
}

/// `core.v1.ContainerState`.
#[derive(Clone, PartialEq, Message)]
struct ContainerStateMessage {
    #[prost(message, optional, tag = "1")]
    waiting: Option<Present>,
    #[prost(message, optional, tag = "3")]
    terminated: Option<Present>,
}

impl FromProtobuf for Pod {
    fn from_protobuf(raw: &Bytes) -> Result<Self, DecodeError> {
        let PodMessage { metadata, spec, status } = PodMessage::decode(raw.clone())?;
        let mut volumes = Vec::new();
        for volume in spec.volumes {
            if let Some(source) = source(volume.volume_source)? {
                let name = Text::from(utf8("spec.volumes.name", &volume.name)?);
                volumes.push(PodVolume { name, source });
            }
        }
        Ok(Self {
            metadata: metadata.narrow_unreferenced()?,
            spec: PodSpec { node_name: NodeName::shared(&spec.node_name), volumes },
            status: PodStatus {
                phase: by_name("status.phase", &status.phase)?,
                message: text(&status.message).into(),
                is_running: any_runs(status.init_container_statuses)
                    || any_runs(status.container_statuses)
                    || any_runs(status.ephemeral_container_statuses),
            },
        })
    }
}

fn any_runs(containers: Vec<ContainerStatusMessage>) -> bool {
    containers.into_iter().any(|container| {
        let ContainerStateMessage { waiting, terminated } = container.state;
        ContainerState { waiting: waiting.map(Into::into), terminated: terminated.map(Into::into) }
            .is_running()
    })
}

impl ReadSource for PodVolumeSource {
    fn read_message(key: &'static str, raw: &Bytes) -> Self {
        match key {
            "persistentVolumeClaim" => {
                parse(key, raw, |claim: ClaimSourceMessage| Self::PersistentVolumeClaim(claim.into()))
            }
            "ephemeral" => Self::Ephemeral,
            _ => Self::InTree(Box::new(InTreeSource::read_message(key, raw))),
        }
    }
}

fn source(raw: Bytes) -> Result<Option<PodVolumeSource>, DecodeError> {
    let message = VolumeSourceMessage::decode(raw)?;
    let sources: Sources<'_, 12> = [
        ("gcePersistentDisk", &message.gce_persistent_disk),
        ("awsElasticBlockStore", &message.aws_elastic_block_store),
        ("iscsi", &message.iscsi),
        ("persistentVolumeClaim", &message.persistent_volume_claim),
        ("flexVolume", &message.flex_volume),
        ("cinder", &message.cinder),
        ("fc", &message.fc),
        ("azureFile", &message.azure_file),
        ("vsphereVolume", &message.vsphere_volume),
        ("azureDisk", &message.azure_disk),
        ("portworxVolume", &message.portworx_volume),
        ("ephemeral", &message.ephemeral),
    ];
    Ok(pick(sources))
}
