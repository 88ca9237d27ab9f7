//! NodeVerdict: the judgement of one volume on a node, as a value: what its node's status should say, at most one request, and
//! what is waited for.

use std::{fmt, sync::Arc};

use apiserver::{
    ids::{AttachmentName, NodeName, ResourceVersion, Uid},
    kinds::Node,
    wire::rfc3339,
};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use strum::IntoStaticStr;
use thiserror::Error;
use tokio::time::Instant;

use super::force::Unforced;
use crate::{
    attach_detach::{
        options::ForcePolicy,
        state::{
            actual::{
                AttachmentCall, Deletion, ForceReason, NodeVolume, ReportAsAttached,
                node::{NodeDoubt, NodeState},
                unpublishing::Unpublished,
            },
            desired::{AttachSource, DesiredAttachment, volume_name::VolumeKind},
        },
    },
    controller::retry::Retry,
};

/// What is known of one volume on a node when it is judged.
#[derive(Clone, Copy, Debug)]
pub struct NodeVolumeView<'a> {
    /// Whether the volume has VolumeAttachments at all.
    pub kind: VolumeKind,
    /// The pods that need the volume here, if any.
    pub desired: Option<&'a DesiredAttachment>,
    /// The volume on the node.
    pub node_volume: &'a NodeVolume,
    /// Its node.
    pub node: Option<&'a NodeState>,
    /// The node that keeps this one from attaching, if the volume is exclusive.
    pub conflict: Option<&'a ConflictingNode>,
    /// Whether another node lists the volume, or may have it mounted, and no pod needs it: whether it may be on several is not
    /// known then.
    pub is_elsewhere: bool,
    /// Of several nodes that have the volume, one may list it: whether that is this one.
    pub publishes: Option<bool>,
    /// When a detach may be forced.
    pub policy: &'a ForcePolicy,
    /// Whether what is here is of the machine that had the node's name before.
    pub is_withheld: bool,
    /// Why it counts as in use though the node does not say so.
    pub doubt: Option<NodeDoubt>,
    /// The time by this process' clock.
    pub wall: Timestamp,
}

/// Another node that has, or is to have, an exclusive volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ConflictingNode {
    /// The node.
    pub node: NodeName,
    /// Whether the volume is, or may be, attached there, or a pod there merely comes first.
    pub is_attached: bool,
    /// Whether it is the node itself, which has another volume of the same PersistentVolume.
    pub is_own: bool,
}

impl fmt::Display for ConflictingNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, is_attached, is_own } = self;
        if *is_own {
            return write!(
                f,
                "another volume of its PersistentVolume is on node {node}, too, and comes first"
            );
        }
        if *is_attached {
            return write!(f, "node {node} holds the volume, which is for one node alone");
        }
        write!(f, "the volume is for one node alone, and a pod on node {node} comes first")
    }
}

/// The judgement of one volume on a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeVerdict {
    /// What the node's status should say of the volume.
    pub report_as_attached: ReportAsAttached,
    /// Whether the volume is being unpublished.
    pub unpublishes: bool,
    /// What to do next.
    pub step: Option<AttachStep>,
    /// What has to happen before the next step, if this is not it.
    pub waiting: Option<Waiting>,
    /// When to judge again although nothing happened.
    pub wake_at: Option<Instant>,
    /// Why the volume is taken away although it may be in use.
    pub forced: Option<ForceReason>,
}

/// What to do next for one volume on a node: a request, or the last stroke where none is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachStep {
    /// Create the VolumeAttachment with this source.
    Create(AttachSource),
    /// Delete the VolumeAttachment of this UID as it is at this revision, given the proof.
    Delete(Uid, ResourceVersion, Unpublished),
    /// Count a volume without attachments as detached, given the proof.
    GiveUp(Unpublished),
    /// Read the node live: nothing is listed, so no write of ours will prove it.
    ReadNode,
    /// Read the VolumeAttachment live, to learn what became of a create, or of it.
    ReadAttachment,
}

/// What a volume on a node waits for, with the facts, and a sentence for people. Printed in logs, events and diagnosis.
#[derive(Clone, Debug, PartialEq, Serialize, Error, IntoStaticStr)]
#[serde(tag = "reason")]
pub enum Waiting {
    /// For the API server to answer a create.
    #[error("the VolumeAttachment is being created")]
    WaitingForVolumeAttachment,
    /// For the driver's external-attacher to attach.
    #[error("the driver's external-attacher is attaching the volume")]
    WaitingForAttacher,
    /// For the external-attacher to try again after this error.
    #[error("the driver could not attach the volume and tries again: {message}")]
    AttachError {
        /// What the driver said.
        message: String,
        /// When it said so; each of its tries says so anew.
        at: Option<Timestamp>,
    },
    /// For another node to be rid of an exclusive volume.
    #[error("{conflict}")]
    HeldByNode {
        /// That node.
        #[serde(rename = "conflictingNode")]
        conflict: ConflictingNode,
    },
    /// For an earlier attachment of the same name to be gone.
    #[error("an earlier VolumeAttachment of the same name has to go first")]
    WaitingForDeletion,
    /// For the node's status to list the volume.
    #[error("the volume is attached; the node's status is about to say so")]
    Publishing,
    /// For claim or volume to be whole again: the desired attachment is kept but may not attach.
    #[error("the pod's claim or its volume is not bound as it was: nothing is attached for it")]
    ClaimOrVolumeChanged,
    /// For the kubelet to unmount.
    #[error("{}", unmounted(*unforced))]
    DetachWaitingForUnmount {
        /// Why it is not forced.
        unforced: Unforced,
    },
    /// For the node's status to be written without the volume, or read live.
    #[error("the node's status is written without the volume before it is detached")]
    DetachWaitingForUnpublish,
    /// For a status patch of unknown outcome to be settled.
    #[error("a write to the node's status had no answer: it may still list the volume")]
    DetachWaitingForSettlement,
    /// For the external-attacher to detach.
    #[error("the driver's external-attacher is detaching the volume")]
    DetachWaitingForAttacher,
    /// For the external-attacher to try again after this error.
    #[error("the driver could not detach the volume and tries again: {message}")]
    DetachError {
        /// What the driver said.
        message: String,
        /// When it said so; each of its tries says so anew.
        at: Option<Timestamp>,
    },
    /// For the node, whose object is gone, to come back: nothing can be attached to it, or published there.
    #[error("the node has no object: nothing can be attached to it")]
    NodeGone,
    /// For the node, whose object is gone, to come back and unmount: nothing proves its kubelet dead.
    #[error("the node has no object, and may still use the volume{unforced}")]
    DetachWaitingForNode {
        /// Why it is not forced.
        unforced: Unforced,
    },
    /// To learn whether an attachment exists.
    #[error("a request had no answer: the VolumeAttachment may exist, or come into being")]
    Uncertain,
    /// For another attach/detach controller to cease: until then nothing is detached (S14).
    #[error("nothing is detached there for now, as {writer}")]
    ForeignWriter {
        /// Who wrote what.
        writer: String,
        /// When that ends, unless another such write is seen.
        until: Timestamp,
    },
    /// For the grace after a restore of etcd to end: until then nothing is detached (E11).
    #[error("etcd was restored from a backup: nothing is detached until {}", rfc3339(*until))]
    RestoreGrace {
        /// When it ends.
        until: Timestamp,
    },
    /// For the cluster to have changed hands: until then nothing is attached, or nothing is detached that is listed (S1).
    #[error("nothing new is begun there for now, as {why}")]
    HandOver {
        /// Why.
        why: &'static str,
        /// When that ends, if it is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    },
    /// For an object to be readable: until then nothing is done about this volume on this node (S42).
    #[error("{object} cannot be read")]
    #[strum(serialize = "ObjectUnreadable")]
    Unreadable {
        /// Kind and name.
        object: String,
    },
    /// For a VolumeAttachment of the computed name, which is for something else, to be gone (S9).
    #[error("VolumeAttachment {name} is for something else, and has to go first")]
    ForeignAttachment {
        /// That name.
        name: AttachmentName,
    },
    /// For the pause after a failure to end.
    #[error("a request failed and is tried again after a pause{}", because(message.as_deref()))]
    RetryBackoff {
        /// What the API server, or the way to it, said.
        message: Option<Arc<str>>,
    },
    /// For the node's status to be written, which failed.
    #[error("the node's status could not be written and is tried again after a pause: {message}")]
    NodeStatusRefused {
        /// What the API server, or the way to it, said.
        message: Arc<str>,
    },
    /// For the pause before what another writer undoes at once is written again (S46).
    #[error("{writer} again and again; what is undone at once is written again after a pause")]
    WriteUndone {
        /// Who undoes what.
        writer: Arc<str>,
    },
}

/// Why it is not known to be unmounted.
fn unmounted(unforced: Unforced) -> String {
    match unforced {
        Unforced::NodeReady => "the node's kubelet has not unmounted the volume".to_owned(),
        Unforced::Distrusted(NodeDoubt::New(until)) => {
            let until =
                until.map(|until| format!("; at {} it is believed", rfc3339(until))).unwrap_or_default();
            format!(
                "the node's object is new, and that it does not list the volume in use proves nothing yet{until}"
            )
        }
        Unforced::Distrusted(NodeDoubt::AnotherMachine(None)) => format!("{ANOTHER_MACHINE}: {BY_TAINT}"),
        Unforced::Distrusted(NodeDoubt::AnotherMachine(Some(at))) => {
            format!("{ANOTHER_MACHINE}: it is detached by force at {}", rfc3339(at))
        }
        unforced => format!("the node is not Ready and its kubelet has not unmounted the volume{unforced}"),
    }
}

/// What is said of the machine that a node had before.
const ANOTHER_MACHINE: &str =
    "another machine has the node's name, and the one before it may still use the volume";
/// What ends that where time may not.
const BY_TAINT: &str = "only the taint node.kubernetes.io/out-of-service on the node detaches it";

fn because(message: Option<&str>) -> String {
    message.map(|message| format!(": {message}")).unwrap_or_default()
}

impl Waiting {
    /// kube-controller-manager is about to take over.
    pub const HAND_OVER: Self =
        Self::HandOver { why: "mooring hands over to kube-controller-manager", until: None };

    /// As a reason why nothing is taken away: whether it holds up a node. One with the taint out-of-service is detached from
    /// beside another controller, too: people vouch for it that it is down (S14).
    pub(in crate::attach_detach) fn holds(&self, node: Option<&NodeState>) -> bool {
        let node = node.and_then(|state| state.node.as_deref());
        !(matches!(self, Self::ForeignWriter { .. }) && node.is_some_and(Node::is_out_of_service))
    }

    /// Whether that is what the volume waits for where pods want it, and no step of a detach that is not to be.
    pub(crate) fn is_of_wanted(&self) -> bool {
        matches!(
            self,
            Self::AttachError { .. }
                | Self::WaitingForDeletion
                | Self::WaitingForAttacher
                | Self::WaitingForVolumeAttachment
                | Self::Unreadable { .. }
        )
    }

    /// The codes that say that a safety rule keeps something from being done.
    pub const GUARDS: [&'static str; 11] = [
        "HeldByNode",
        "DetachWaitingForUnmount",
        "DetachWaitingForNode",
        "DetachWaitingForSettlement",
        "Uncertain",
        "ClaimOrVolumeChanged",
        "ForeignWriter",
        "RestoreGrace",
        "HandOver",
        "ObjectUnreadable",
        "ForeignAttachment",
    ];
}

pub(in crate::attach_detach) fn wait(report_as_attached: ReportAsAttached, waiting: Waiting) -> NodeVerdict {
    NodeVerdict { waiting: Some(waiting), ..NodeVerdict::say(report_as_attached) }
}

pub(super) fn pause(retry: &Retry, at: Instant) -> NodeVerdict {
    let waiting = Waiting::RetryBackoff { message: retry.message().cloned() };
    NodeVerdict { wake_at: Some(at), ..wait(ReportAsAttached::No, waiting) }
}

pub(in crate::attach_detach) fn withdraw(step: Option<AttachStep>, waiting: Waiting) -> NodeVerdict {
    NodeVerdict { unpublishes: true, step, ..wait(ReportAsAttached::No, waiting) }
}

impl NodeVerdict {
    /// The same, but nothing is taken away from the node or the driver, for this reason. What was about to be is put back, unless our DELETE may
    /// be carried out yet (S2), or another node has it (S43).
    pub(in crate::attach_detach) fn standing_off(self, view: &NodeVolumeView<'_>, why: &Waiting) -> Self {
        let node_volume = view.node_volume;
        let deletes = matches!(self.step, Some(AttachStep::Delete(..)));
        let unpublishes = node_volume.listed && self.report_as_attached == ReportAsAttached::No;
        let is_begun = *why == Waiting::HAND_OVER && !node_volume.listed;
        if !(self.unpublishes || deletes || unpublishes) || is_begun {
            return self;
        }
        let is_attached = node_volume.attachment().is_some_and(|attachment| attachment.status.attached);
        let is_going = node_volume.is_going()
            || node_volume.call == Some(AttachmentCall::Delete)
            || node_volume.deletion() != Deletion::None;
        let is_elsewhere = view.publishes == Some(false) || view.is_elsewhere || view.is_withheld;
        let is_attached = is_attached && !is_going && (node_volume.listed || !is_elsewhere);
        // Only what we took off ourselves is put back: what the watch says may be of yesterday (S10).
        let is_put_back = is_attached && node_volume.may_be_put_back();
        let report_as_attached =
            if is_put_back { ReportAsAttached::Yes } else { ReportAsAttached::Unchanged };
        wait(report_as_attached, why.clone())
    }

    /// Nothing is done: an object that the rules would have to read cannot be read.
    pub(in crate::attach_detach) fn blocked(object: &str) -> Self {
        wait(ReportAsAttached::Unchanged, Waiting::Unreadable { object: object.to_owned() })
    }

    pub(in crate::attach_detach) fn say(report_as_attached: ReportAsAttached) -> Self {
        Self { report_as_attached, ..Self::default() }
    }
}
