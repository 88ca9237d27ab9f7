//! Node: the two lists of the hand-shake with the kubelet, health and taints.

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{
    Keep, Meta,
    meta::{referenced, time_of_json},
};
use crate::{
    protobuf::{message, time},
    text::{Text, TextSet},
};

/// Annotation by which a kubelet hands attach and detach to the controller. Its value is not
/// looked at (attach-detach §1.5).
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// Taint by which an operator declares that a node is off.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// The one condition that is looked at.
const READY: &str = "Ready";

/// A Node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Metadata.
    pub metadata: Meta,
    /// Spec.
    pub spec: NodeSpec,
    /// Status.
    pub status: NodeStatus,
}
message!(Node { metadata: 1 by referenced, spec: 2, status: 3 });

/// `spec` of a Node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// Taints; those that mean something to us are kept.
    pub taints: Vec<Taint>,
}
message!(NodeSpec { taints: 5 });

/// A taint; only its key matters to us (H10).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Key.
    pub key: Text,
}
message!(Taint { key: 1 });

/// `status` of a Node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// What we tell the kubelet: attached, may be mounted. An atomic list that we own.
    pub volumes_attached: Vec<AttachedVolume>,
    /// What the kubelet tells us: mounted, or about to be. An atomic list that it owns.
    pub volumes_in_use: TextSet,
    /// Conditions; `Ready` is kept.
    pub conditions: Vec<NodeCondition>,
    /// What the kubelet says of its machine.
    pub node_info: NodeInfo,
}
message!(NodeStatus { conditions: 4, node_info: 7, volumes_in_use: 9, volumes_attached: 10 });

/// `status.nodeInfo`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeInfo {
    /// Changes when the machine boots: until then, what was mounted may still be.
    #[serde(rename = "bootID")]
    pub boot_id: Box<str>,
    /// The machine's, as its firmware says.
    #[serde(rename = "systemUUID")]
    pub system_uuid: Box<str>,
    /// The installation's.
    #[serde(rename = "machineID")]
    pub machine_id: Box<str>,
}
message!(NodeInfo { machine_id: 1, system_uuid: 2, boot_id: 3 });

/// An entry of `status.volumesAttached`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachedVolume {
    /// Unique volume name.
    pub name: Text,
    /// Always present on the wire, empty for CSI (attach-detach §8).
    pub device_path: Text,
}
message!(AttachedVolume { name: 1, device_path: 2 });

/// A condition.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeCondition {
    /// Type, such as `Ready`.
    pub r#type: Text,
    /// `True`, `False` or `Unknown`.
    pub status: Text,
    /// When `status` last changed.
    #[serde(deserialize_with = "time_of_json")]
    pub last_transition_time: Option<Timestamp>,
}
message!(NodeCondition { r#type: 1, status: 2, last_transition_time: 4 by time });

impl Node {
    /// Whether the kubelet leaves attach and detach to the controller.
    pub fn is_managed(&self) -> bool {
        self.metadata.annotations.contains_key(MANAGED)
    }

    /// The condition `Ready`.
    pub fn ready(&self) -> Option<&NodeCondition> {
        self.status.conditions.iter().find(|condition| condition.r#type == READY)
    }

    /// Whether the kubelet is known to be well (attach-detach §6.2 step 4).
    pub fn is_ready(&self) -> bool {
        self.ready().is_some_and(|condition| condition.status == "True")
    }

    /// Whether the kubelet reports, be it that it is not well: its machine runs. Nobody else writes `False`.
    // KCM: pkg/controller/nodelifecycle/node_lifecycle_controller.go, tryUpdateNodeHealth: `Unknown` alone.
    pub fn kubelet_speaks(&self) -> bool {
        self.ready().is_some_and(|condition| ["True", "False"].contains(&condition.status.as_str()))
    }

    /// Whether an operator has declared the node off. By key alone, with any effect and value (H10).
    pub fn is_out_of_service(&self) -> bool {
        self.spec.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE)
    }

    /// Whether the volume is listed as attached.
    pub fn lists(&self, volume: &str) -> bool {
        self.status.volumes_attached.iter().any(|entry| entry.name == volume)
    }

    /// Whether the kubelet reports the volume as in use.
    pub fn uses(&self, volume: &str) -> bool {
        self.status.volumes_in_use.contains(volume)
    }
}

impl Keep for Node {
    fn trim(&mut self) {
        self.metadata.finalizers.clear();
        self.metadata.keep_owners(|_| false);
        self.spec.taints.retain(|taint| taint.key == OUT_OF_SERVICE);
        self.spec.taints.shrink_to_fit();
        self.status.conditions.retain(|condition| condition.r#type == READY);
        self.status.conditions.shrink_to_fit();
        self.status.volumes_attached.shrink_to_fit();
    }
}
