//! PersistentVolumeClaim.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

use super::meta::{ObjectMeta, Present, Quantity, by_name, quantities};
use crate::{
    ids::VolumeName,
    kinds::{
        ClaimResources, ClaimSpec, ClaimStatus, FromProtobuf, LabelExpression, LabelSelector,
        PersistentVolumeClaim,
    },
    wire::DecodeError,
};

/// `core.v1.PersistentVolumeClaim`.
#[derive(Clone, PartialEq, Message)]
struct ClaimMessage {
    #[prost(message, required, tag = "1")]
    metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    spec: ClaimSpecMessage,
    #[prost(message, required, tag = "3")]
    status: ClaimStatusMessage,
}

/// `core.v1.PersistentVolumeClaimSpec`.
#[derive(Clone, PartialEq, Message)]
struct ClaimSpecMessage {
    #[prost(string, repeated, tag = "1")]
    access_modes: Vec<String>,
    #[prost(message, required, tag = "2")]
    resources: ResourcesMessage,
    #[prost(string, tag = "3")]
    volume_name: String,
    #[prost(message, optional, tag = "4")]
    selector: Option<SelectorMessage>,
    #[prost(string, optional, tag = "5")]
    storage_class_name: Option<String>,
    #[prost(string, optional, tag = "6")]
    volume_mode: Option<String>,
    #[prost(message, optional, tag = "7")]
    data_source: Option<Present>,
    #[prost(string, optional, tag = "9")]
    volume_attributes_class_name: Option<String>,
}

/// `core.v1.VolumeResourceRequirements`.
#[derive(Clone, PartialEq, Message)]
struct ResourcesMessage {
    #[prost(btree_map = "string, message", tag = "2")]
    requests: BTreeMap<String, Quantity>,
}

/// `meta.v1.LabelSelector`.
#[derive(Clone, PartialEq, Message)]
struct SelectorMessage {
    #[prost(btree_map = "string, string", tag = "1")]
    match_labels: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "2")]
    match_expressions: Vec<ExpressionMessage>,
}

/// `meta.v1.LabelSelectorRequirement`.
#[derive(Clone, PartialEq, Message)]
struct ExpressionMessage {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    operator: String,
    #[prost(string, repeated, tag = "3")]
    values: Vec<String>,
}

/// `core.v1.PersistentVolumeClaimStatus`.
#[derive(Clone, PartialEq, Message)]
struct ClaimStatusMessage {
    #[prost(string, tag = "1")]
    phase: String,
    #[prost(string, repeated, tag = "2")]
    access_modes: Vec<String>,
    #[prost(btree_map = "string, message", tag = "3")]
    capacity: BTreeMap<String, Quantity>,
    #[prost(string, optional, tag = "8")]
    current_volume_attributes_class_name: Option<String>,
}

impl FromProtobuf for PersistentVolumeClaim {
    fn from_protobuf(raw: &Bytes) -> Result<Self, DecodeError> {
        let ClaimMessage { metadata, spec, status } = ClaimMessage::decode(raw.clone())?;
        Ok(Self {
            metadata: metadata.narrow()?,
            spec: ClaimSpec {
                access_modes: spec.access_modes.iter().collect(),
                resources: ClaimResources { requests: quantities(&spec.resources.requests) },
                volume_name: VolumeName::shared(&spec.volume_name),
                storage_class_name: spec.storage_class_name.map(Into::into),
                volume_mode: spec.volume_mode.map(Into::into),
                volume_attributes_class_name: spec.volume_attributes_class_name.map(Into::into),
                selector: spec.selector.map(|selector| Box::new(selector.into())),
                data_source: spec.data_source.map(Into::into),
            },
            status: ClaimStatus {
                phase: by_name("status.phase", &status.phase)?,
                access_modes: status.access_modes.iter().collect(),
                capacity: quantities(&status.capacity),
                current_volume_attributes_class_name: status
                    .current_volume_attributes_class_name
                    .map(Into::into),
            },
        })
    }
}

impl From<SelectorMessage> for LabelSelector {
    fn from(selector: SelectorMessage) -> Self {
        let expression = |message: ExpressionMessage| LabelExpression {
            key: message.key.into(),
            operator: message.operator,
            values: message.values.into_iter().map(Into::into).collect(),
        };
        Self {
            match_labels: selector.match_labels.into_iter().collect(),
            match_expressions: selector.match_expressions.into_iter().map(expression).collect(),
        }
    }
}
