//! Where volumes on nodes and volumes of pods stand, and why, as they are reported: the keys, the states and the reasons
//! (L18). A sentence stands beside each reason.
//!
//! In: what the rules returned, and what is known of the volume on the node. Out: values of [`crate::controller::report`],
//! from which log, metrics and `/debug/attach-detach` are made.

use apiserver::{
    ids::{AttachmentName, NodeName, PodKey},
    kinds::{Narrow, Node, Pod, VolumeAttachment},
};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};
use strum::IntoStaticStr;
use thiserror::Error;

use super::{
    decide::{force::Unforced, verdict::Waiting},
    phases::Progress,
    state::{
        actual::{AttachmentCall, Mount, NodeVolume, node::NodeDoubt},
        desired::{
            WhyUnresolved,
            volume_name::{VolumeId, VolumeKind},
        },
    },
};
use crate::{
    controller::{
        asked::Names,
        report::{self, Reason, ReportKey, WallClock},
    },
    telemetry::transition::Named,
};

/// What is reported of one key.
pub type Report = report::Report<AttachDetachKey, AttachDetachReason>;

/// The state of a volume on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, IntoStaticStr)]
pub enum AttachState {
    /// Neither attached nor on its way.
    #[default]
    Detached,
    /// To be attached by the driver.
    Attaching,
    /// Attached, as the driver says; or, without a driver, as the node's status says, or said last.
    Attached,
    /// To be detached by the driver.
    Detaching,
    /// Unknown: a request of ours had no answer.
    Uncertain,
}

impl AttachState {
    /// The state of a volume on a node.
    pub fn of(node_volume: &NodeVolume) -> Self {
        let Some(attachment) = node_volume.attachment() else {
            return match node_volume.call {
                _ if node_volume.uncertain.is_some() => Self::Uncertain,
                Some(AttachmentCall::Create) => Self::Attaching,
                _ if node_volume.listed || node_volume.mount == Mount::Possible => Self::Attached,
                _ => Self::Detached,
            };
        };
        match node_volume.call {
            _ if node_volume.is_going() => Self::Detaching,
            Some(AttachmentCall::Delete) => Self::Detaching,
            _ if node_volume.deletion_in_doubt().is_some() => Self::Uncertain,
            _ if attachment.status.attached => Self::Attached,
            _ => Self::Attaching,
        }
    }
}

/// A volume on a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeVolumeKey {
    /// The volume.
    pub volume: VolumeId,
    /// The node.
    pub node: NodeName,
}

impl NodeVolumeKey {
    /// A volume on a node.
    pub fn new(volume: &VolumeId, node: &NodeName) -> Self {
        Self { volume: volume.clone(), node: node.clone() }
    }

    /// The attachment as logs name it, or what stands for one of a volume that has none.
    pub fn named(&self) -> Named {
        let Self { volume, node } = self;
        match volume.kind() {
            VolumeKind::Csi => Named::by(VolumeAttachment::KIND, &volume.attachment_name(node)),
            VolumeKind::NoOp => Named::by(Node::KIND, node),
        }
    }
}

/// What is reported on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttachDetachKey {
    /// A volume on a node.
    NodeVolume(NodeVolumeKey),
    /// A volume of a pod, by its name in the pod, that cannot be attached yet.
    PodVolume(PodKey, String),
    /// A VolumeAttachment that is not ours. The last in order: they are counted as what comes from here on.
    Foreign(AttachmentName),
}

impl ReportKey for AttachDetachKey {
    const KINDS: &'static [&'static str] = &["attachment", "pod_volume"];

    fn kind(&self) -> &'static str {
        match self {
            Self::NodeVolume(_) => "attachment",
            Self::PodVolume(..) => "pod_volume",
            Self::Foreign(_) => "foreign_attachment",
        }
    }

    fn names(&self) -> Names {
        match self {
            Self::NodeVolume(NodeVolumeKey { volume, node }) => {
                let is_csi = volume.kind() == VolumeKind::Csi;
                let attachment = is_csi.then(|| ("attachment", volume.attachment_name(node).to_string()));
                self.concerns().into_iter().chain(attachment).collect()
            }
            Self::PodVolume(pod, volume) => vec![("pod", pod.to_string()), ("podVolume", volume.clone())],
            Self::Foreign(name) => vec![("attachment", name.to_string())],
        }
    }

    fn named(&self) -> Named {
        match self {
            Self::NodeVolume(key) => key.named(),
            Self::PodVolume(pod, _) => Named::by(Pod::KIND, pod),
            Self::Foreign(name) => Named::by(VolumeAttachment::KIND, name),
        }
    }

    fn concerns(&self) -> Names {
        let Self::NodeVolume(NodeVolumeKey { volume, node }) = self else { return Names::new() };
        vec![("volume", volume.to_string()), ("node", node.to_string())]
    }
}

/// Why something is where it is.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum AttachDetachReason {
    /// The state of a volume on a node, what it waits for, and what is measured of it.
    #[error("{}", .1.as_ref().map(ToString::to_string).unwrap_or_default())]
    NodeVolume(AttachState, Option<Waiting>, Progress),
    /// Why a volume of a pod cannot be attached yet, and whether the pod waits for it.
    #[error("{0}")]
    Unresolved(WhyUnresolved, bool),
    /// A VolumeAttachment that is not ours is left alone: the volume that it holds, if that is known, and the node.
    #[error("")]
    Foreign(Option<VolumeId>, NodeName),
}

impl Reason for AttachDetachReason {
    const INITIAL: Option<&'static str> = Some("Detached");

    fn code(&self) -> &'static str {
        match self {
            Self::NodeVolume(_, Some(waiting), _) => <&str>::from(waiting),
            Self::NodeVolume(state, None, _) => <&str>::from(state),
            Self::Unresolved(why, _) => <&str>::from(why),
            Self::Foreign(..) => "ForeignAttachment",
        }
    }

    fn state(&self) -> &'static str {
        match self {
            Self::NodeVolume(state, ..) => <&str>::from(state),
            Self::Unresolved(..) => <&str>::from(AttachState::Detached),
            Self::Foreign(..) => "Foreign",
        }
    }

    fn is_settled(&self) -> bool {
        matches!(self, Self::NodeVolume(_, None, _) | Self::Unresolved(_, false) | Self::Foreign(..))
    }

    fn is_shown_settled(&self) -> bool {
        !matches!(self, Self::NodeVolume(AttachState::Detached, None, _))
    }

    /// Claims that are not bound yet are common: those lines are of level debug.
    fn is_logged(&self) -> bool {
        !matches!(self, Self::Unresolved(..))
    }

    fn until(&self, _: &WallClock) -> Option<Timestamp> {
        if let Self::NodeVolume(_, Some(waiting), _) = self { waiting.until() } else { None }
    }

    fn names(&self) -> Names {
        let Self::Foreign(volume, node) = self else { return Vec::new() };
        let volume = volume.iter().map(|volume| ("volume", volume.to_string()));
        volume.chain([("node", node.to_string())]).collect()
    }

    fn facts(&self) -> Map<String, Value> {
        let mut facts = match self {
            Self::NodeVolume(_, waiting, _) => json!(waiting),
            Self::Unresolved(why, _) => json!({ "object": why.object().map(|object| object.to_string()) }),
            Self::Foreign(..) => Value::Null,
        };
        let mut facts = facts.as_object_mut().map(std::mem::take).unwrap_or_default();
        facts.remove("reason");
        facts
    }
}

impl Waiting {
    /// When the wait ends by itself, if it does.
    pub fn until(&self) -> Option<Timestamp> {
        match self {
            Self::DetachWaitingForUnmount { unforced: Unforced::Distrusted(NodeDoubt::New(Some(at))) }
            | Self::ForeignWriter { until: at, .. }
            | Self::RestoreGrace { until: at }
            | Self::HandOver { until: Some(at), .. } => Some(*at),
            waiting => waiting.forced_at(),
        }
    }

    /// When a detach is forced because of time, if nothing else ends the wait.
    pub(crate) fn forced_at(&self) -> Option<Timestamp> {
        match self {
            Self::DetachWaitingForUnmount { unforced } | Self::DetachWaitingForNode { unforced } => {
                match unforced {
                    Unforced::Until(at) | Unforced::Distrusted(NodeDoubt::AnotherMachine(Some(at))) => {
                        Some(*at)
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::attach_detach::state::actual::{Deletion, Uncertain};

    #[test]
    fn l18_the_state_shown_is_what_is_known_of_the_pair() {
        let (none, attached) = (NodeVolume::default, || NodeVolume::with_attachment(true, false));
        let now = Instant::now();
        let uncertain = Some(Uncertain { until: now, read_absent: false });
        let cases = [
            ("nothing", none(), AttachState::Detached),
            (
                "create sent",
                NodeVolume { call: Some(AttachmentCall::Create), ..none() },
                AttachState::Attaching,
            ),
            (
                "create sent, listed of old",
                NodeVolume { call: Some(AttachmentCall::Create), listed: true, ..none() },
                AttachState::Attaching,
            ),
            ("create unanswered", NodeVolume { uncertain, ..none() }, AttachState::Uncertain),
            (
                "create unanswered, sent again",
                NodeVolume { uncertain, call: Some(AttachmentCall::Create), ..none() },
                AttachState::Uncertain,
            ),
            ("listed", NodeVolume { listed: true, ..none() }, AttachState::Attached),
            ("made", NodeVolume::with_attachment(false, false), AttachState::Attaching),
            ("attached", attached(), AttachState::Attached),
            (
                "deletion sent",
                NodeVolume { call: Some(AttachmentCall::Delete), ..attached() },
                AttachState::Detaching,
            ),
            ("deletion accepted", attached().with_deletion(Deletion::Accepted), AttachState::Detaching),
            (
                "deletion unanswered",
                attached().with_deletion(Deletion::InDoubt { until: now }),
                AttachState::Uncertain,
            ),
            (
                "deletion unanswered, sent again",
                NodeVolume {
                    call: Some(AttachmentCall::Delete),
                    ..attached().with_deletion(Deletion::InDoubt { until: now })
                },
                AttachState::Detaching,
            ),
            ("going", NodeVolume::with_attachment(true, true), AttachState::Detaching),
        ];
        for (name, node_volume, expected) in cases {
            assert_eq!(AttachState::of(&node_volume), expected, "{name}");
        }
    }
}
