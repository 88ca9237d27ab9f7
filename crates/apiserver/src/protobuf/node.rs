//! Node.

use bytes::Bytes;
use prost::Message;

use super::meta::{ObjectMeta, Time, time};
use crate::{
    kinds::{AttachedVolume, FromProtobuf, Node, NodeCondition, NodeInfo, NodeSpec, NodeStatus, Taint},
    wire::DecodeError,
};

/// `core.v1.Node`.
#[derive(Clone, PartialEq, Message)]
struct NodeMessage {
    #[prost(message, required, tag = "1")]
    metadata: ObjectMeta,
    #[prost(message, required, tag = "2")]
    spec: NodeSpecMessage,
    #[prost(message, required, tag = "3")]
    status: NodeStatusMessage,
}

/// `core.v1.NodeSpec`.
#[derive(Clone, PartialEq, Message)]
struct NodeSpecMessage {
    #[prost(message, repeated, tag = "5")]
    taints: Vec<TaintMessage>,
}

/// `core.v1.Taint`.
#[derive(Clone, PartialEq, Message)]
struct TaintMessage {
    #[prost(string, tag = "1")]
    key: String,
}

/// `core.v1.NodeStatus`.
#[derive(Clone, PartialEq, Message)]
struct NodeStatusMessage {
    #[prost(message, repeated, tag = "4")]
    conditions: Vec<ConditionMessage>,
    #[prost(message, required, tag = "7")]
    node_info: NodeInfoMessage,
    #[prost(string, repeated, tag = "9")]
    volumes_in_use: Vec<String>,
    #[prost(message, repeated, tag = "10")]
    volumes_attached: Vec<AttachedVolumeMessage>,
}

/// `core.v1.NodeCondition`.
#[derive(Clone, PartialEq, Message)]
struct ConditionMessage {
    #[prost(string, tag = "1")]
    r#type: String,
    #[prost(string, tag = "2")]
    status: String,
    #[prost(message, optional, tag = "4")]
    last_transition_time: Option<Time>,
}

/// `core.v1.NodeSystemInfo`.
#[derive(Clone, PartialEq, Message)]
struct NodeInfoMessage {
    #[prost(string, tag = "1")]
    machine_id: String,
    #[prost(string, tag = "2")]
    system_uuid: String,
    #[prost(string, tag = "3")]
    boot_id: String,
}

/// `core.v1.AttachedVolume`.
#[derive(Clone, PartialEq, Message)]
struct AttachedVolumeMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    device_path: String,
}

impl FromProtobuf for Node {
    fn from_protobuf(raw: &Bytes) -> Result<Self, DecodeError> {
        let NodeMessage { metadata, spec, status } = NodeMessage::decode(raw.clone())?;
        let mut conditions = Vec::with_capacity(status.conditions.len());
        for condition in status.conditions {
            conditions.push(NodeCondition {
                last_transition_time: time(
                    "status.conditions.lastTransitionTime",
                    condition.last_transition_time.as_ref(),
                )?,
                r#type: condition.r#type.into(),
                status: condition.status.into(),
            });
        }
        let attached = |entry: AttachedVolumeMessage| AttachedVolume {
            name: entry.name.into(),
            device_path: entry.device_path.into(),
        };
        Ok(Self {
            metadata: metadata.narrow()?,
            spec: NodeSpec {
                taints: spec.taints.into_iter().map(|taint| Taint { key: taint.key.into() }).collect(),
            },
            status: NodeStatus {
                volumes_attached: status.volumes_attached.into_iter().map(attached).collect(),
                volumes_in_use: status.volumes_in_use.into_iter().map(Into::into).collect(),
                conditions,
                node_info: NodeInfo {
                    boot_id: status.node_info.boot_id.into(),
                    system_uuid: status.node_info.system_uuid.into(),
                    machine_id: status.node_info.machine_id.into(),
                },
            },
        })
    }
}
