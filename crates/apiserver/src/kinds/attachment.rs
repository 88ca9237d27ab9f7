//! VolumeAttachment: the order to attach a volume to a node, and how far the driver got.

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

use super::{Keep, Meta, VolumeSpec, meta::time_of_json};
use crate::{
    ids::{DriverName, NodeName, VolumeName},
    protobuf::{message, time},
};

/// A VolumeAttachment.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeAttachment {
    /// Metadata.
    pub metadata: Meta,
    /// Spec; immutable.
    pub spec: AttachmentSpec,
    /// Status; written by the external-attacher alone.
    pub status: AttachmentStatus,
}
message!(VolumeAttachment { metadata: 1, spec: 2, status: 3 });

/// `spec` of a VolumeAttachment.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSpec {
    /// Driver that attaches.
    pub attacher: DriverName,
    /// Node to attach to.
    pub node_name: NodeName,
    /// What to attach.
    pub source: AttachmentSource,
}
message!(AttachmentSpec { attacher: 1, source: 2, node_name: 3 });

/// `spec.source`: exactly one of both is set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentSource {
    /// A PersistentVolume by name.
    pub persistent_volume_name: Option<VolumeName>,
    /// The spec of the PersistentVolume that a migrated inline volume was translated to.
    pub inline_volume_spec: Option<Box<VolumeSpec>>,
}
message!(AttachmentSource { persistent_volume_name: 1, inline_volume_spec: 2 });

/// `status` of a VolumeAttachment.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentStatus {
    /// Whether the driver has attached the volume.
    pub attached: bool,
    /// Why the last attach failed.
    pub attach_error: Option<Box<VolumeError>>,
    /// Why the last detach failed.
    pub detach_error: Option<Box<VolumeError>>,
}
message!(AttachmentStatus { attached: 1, attach_error: 3, detach_error: 4 });

/// An error of the driver.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VolumeError {
    /// When it was met.
    #[serde(deserialize_with = "time_of_json")]
    pub time: Option<Timestamp>,
    /// What the driver said.
    pub message: Box<str>,
}
message!(VolumeError { time: 1 by time, message: 2 });

impl Keep for VolumeAttachment {
    fn trim(&mut self) {
        self.metadata.keep_owners(|_| false);
    }
}
