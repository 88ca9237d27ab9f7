//! What `storage.k8s.io` has: VolumeAttachment, StorageClass, CSIDriver.

use bytes::Bytes;
use prost::Message;

use super::{
    meta::{ObjectMeta, Time, by_name, time},
    text,
    volume::VolumeSpecMessage,
};
use crate::{
    ids::{DriverName, NodeName, VolumeName},
    kinds::{
        AttachmentSource, AttachmentSpec, AttachmentStatus, CsiDriver, CsiDriverSpec, FromProtobuf,
        StorageClass, VolumeAttachment, VolumeError,
    },
    wire::DecodeError,
};

/// `storage.v1.VolumeAttachment`.
#[derive(Clone, PartialEq, Message)]
struct AttachmentMessage {
    #[prost(message, required, tag = "1")]
    metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    spec: AttachmentSpecMessage,
    #[prost(message, required, tag = "3")]
    status: AttachmentStatusMessage,
}

/// `storage.v1.VolumeAttachmentSpec`.
#[derive(Clone, PartialEq, Message)]
struct AttachmentSpecMessage {
    #[prost(string, tag = "1")]
    attacher: String,
    #[prost(message, required, tag = "2")]
    source: AttachmentSourceMessage,
    #[prost(string, tag = "3")]
    node_name: String,
}

/// `storage.v1.VolumeAttachmentSource`.
#[derive(Clone, PartialEq, Message)]
struct AttachmentSourceMessage {
    #[prost(string, optional, tag = "1")]
    persistent_volume_name: Option<String>,
    #[prost(message, optional, boxed, tag = "2")]
    inline_volume_spec: Option<Box<VolumeSpecMessage>>,
}

/// `storage.v1.VolumeAttachmentStatus`.
#[derive(Clone, PartialEq, Message)]
struct AttachmentStatusMessage {
    #[prost(bool, tag = "1")]
    attached: bool,
    #[prost(message, optional, tag = "3")]
    attach_error: Option<ErrorMessage>,
    #[prost(message, optional, tag = "4")]
    detach_error: Option<ErrorMessage>,
}

/// `storage.v1.VolumeError`.
#[derive(Clone, PartialEq, Message)]
struct ErrorMessage {
    #[prost(message, optional, tag = "1")]
    time: Option<Time>,
    #[prost(bytes = "bytes", tag = "2")]
    message: Bytes,
}

/// `storage.v1.StorageClass`.
#[derive(Clone, PartialEq, Message)]
struct ClassMessage {
    #[prost(message, required, tag = "1")]
    metadata: ObjectMeta,
    #[prost(string, tag = "2")]
    provisioner: String,
    #[prost(string, optional, tag = "4")]
    reclaim_policy: Option<String>,
    #[prost(string, repeated, tag = "5")]
    mount_options: Vec<String>,
    #[prost(string, optional, tag = "7")]
    volume_binding_mode: Option<String>,
}

/// `storage.v1.CSIDriver`.
#[derive(Clone, PartialEq, Message)]
struct DriverMessage {
    #[prost(message, required, tag = "1")]
    metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    spec: DriverSpecMessage,
}

/// `storage.v1.CSIDriverSpec`.
#[derive(Clone, PartialEq, Message)]
struct DriverSpecMessage {
    #[prost(bool, optional, tag = "1")]
    attach_required: Option<bool>,
}

impl FromProtobuf for VolumeAttachment {
    fn from_protobuf(raw: &Bytes) -> Result<Self, DecodeError> {
        let AttachmentMessage { metadata, spec, status } = AttachmentMessage::decode(raw.clone())?;
        let inline = spec.source.inline_volume_spec.map(|spec| spec.narrow()).transpose()?;
        Ok(Self {
            metadata: metadata.narrow_unreferenced()?,
            spec: AttachmentSpec {
                attacher: DriverName::shared(&spec.attacher),
                node_name: NodeName::shared(&spec.node_name),
                source: AttachmentSource {
                    persistent_volume_name: spec
                        .source
                        .persistent_volume_name
                        .as_deref()
                        .map(VolumeName::shared),
                    inline_volume_spec: inline.map(Box::new),
                },
            },
            status: AttachmentStatus {
                attached: status.attached,
                attach_error: error("status.attachError.time", status.attach_error)?,
                detach_error: error("status.detachError.time", status.detach_error)?,
            },
        })
    }
}

fn error(
    field: &'static str,
    message: Option<ErrorMessage>,
) -> Result<Option<Box<VolumeError>>, DecodeError> {
    let Some(message) = message else { return Ok(None) };
    let time = time(field, message.time.as_ref())?;
    Ok(Some(Box::new(VolumeError { time, message: text(&message.message).into() })))
}

impl FromProtobuf for StorageClass {
    fn from_protobuf(raw: &Bytes) -> Result<Self, DecodeError> {
        let class = ClassMessage::decode(raw.clone())?;
        let mode = class.volume_binding_mode.as_deref();
        Ok(Self {
            metadata: class.metadata.narrow()?,
            provisioner: class.provisioner,
            volume_binding_mode: mode.map(|mode| by_name("volumeBindingMode", mode)).transpose()?,
            reclaim_policy: by_name("reclaimPolicy", class.reclaim_policy.as_deref().unwrap_or_default())?,
            mount_options: class.mount_options,
        })
    }
}

impl FromProtobuf for CsiDriver {
    fn from_protobuf(raw: &Bytes) -> Result<Self, DecodeError> {
        let DriverMessage { metadata, spec } = DriverMessage::decode(raw.clone())?;
        let spec = CsiDriverSpec { attach_required: spec.attach_required };
        Ok(Self { metadata: metadata.narrow()?, spec })
    }
}
