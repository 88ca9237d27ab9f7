//! The rules for one volume on one node: pure, from what is desired and what is, to what the node's
//! status should say, at most one request, and what is waited for.
//!
//! Order of a detach (S2, S3): nothing is written while the kubelet reports the volume in use; then
//! the node's status is written without it; the answer to that very request proves it unpublished
//! and unused; only then is the VolumeAttachment deleted; and only its absence means detached.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use tokio::time::Instant;

use super::{
    force::{ForcePolicy, ForceReason, Unforced, force},
    no_op,
};
use crate::{
    attach_detach::{
        actual::{
            node::NodeState,
            state::{AttachmentCall, NodeVolume, ReportAsAttached, WhyRead},
            unpublishing::{Unpublished, Unpublishing},
        },
        desired::{
            state::{AttachSource, DesiredAttachment},
            volume_name::VolumeKind,
        },
        guard::blocks::StandOff,
    },
    controller::retry::Retry,
    kube_api::{
        ids::{AttachmentName, NodeName, Uid},
        kinds::{VolumeAttachment, VolumeError},
    },
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
    /// When a detach may be forced.
    pub policy: &'a ForcePolicy,
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
}

/// The judgement of one volume on a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// What the node's status should say of the volume.
    pub report_as_attached: ReportAsAttached,
    /// Whether the volume is being unpublished.
    pub unpublishes: bool,
    /// What to do next.
    pub step: Option<Step>,
    /// What has to happen before the next step, if this is not it.
    pub waiting: Option<Waiting>,
    /// When to judge again although nothing happened.
    pub wake_at: Option<Instant>,
    /// Why the volume is taken away although it may be in use.
    pub forced: Option<ForceReason>,
}

/// What to do next for one volume on a node: a request, or the last stroke where none is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Create the VolumeAttachment with this source.
    Create(AttachSource),
    /// Delete the VolumeAttachment of this UID, given the proof.
    Delete(Uid, Unpublished),
    /// Count a volume without attachments as detached, given the proof.
    GiveUp(Unpublished),
    /// Read the node live: nothing is listed, so no write of ours will prove it.
    ReadNode,
    /// Read the VolumeAttachment live, to learn what became of a create, or of it.
    ReadAttachment,
}

impl Step {
    /// The request for the volume on the node that it takes, if any.
    pub(in crate::attach_detach) fn call(&self) -> Option<AttachmentCall> {
        match self {
            Self::Create(_) => Some(AttachmentCall::Create),
            Self::Delete(..) => Some(AttachmentCall::Delete),
            Self::ReadAttachment => Some(AttachmentCall::Read),
            Self::GiveUp(_) | Self::ReadNode => None,
        }
    }
}

/// What a volume on a node waits for, with the facts. Printed in logs, events and diagnosis.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "reason")]
pub enum Waiting {
    /// For the API server to answer a create.
    WaitingForVolumeAttachment,
    /// For the driver's external-attacher to attach.
    WaitingForAttacher,
    /// For the external-attacher to try again after this error.
    AttachError {
        /// What the driver said.
        message: String,
        /// When it said so; each of its tries says so anew.
        at: Option<Timestamp>,
    },
    /// For another node to be rid of an exclusive volume.
    HeldByNode {
        /// That node.
        #[serde(rename = "conflictingNode")]
        conflict: ConflictingNode,
    },
    /// For an earlier attachment of the same name to be gone.
    WaitingForDeletion,
    /// For the node's status to list the volume.
    Publishing,
    /// For claim or volume to be whole again: the desired attachment is kept but may not attach.
    ClaimOrVolumeChanged,
    /// For the kubelet to unmount.
    DetachWaitingForUnmount {
        /// Why it is not forced.
        unforced: Unforced,
    },
    /// For the node's status to be written without the volume, or read live.
    DetachWaitingForUnpublish,
    /// For a status patch of unknown outcome to be settled.
    DetachWaitingForSettlement,
    /// For the external-attacher to detach.
    DetachWaitingForAttacher,
    /// For the external-attacher to try again after this error.
    DetachError {
        /// What the driver said.
        message: String,
        /// When it said so; each of its tries says so anew.
        at: Option<Timestamp>,
    },
    /// For the node, whose object is gone, to come back: nothing can be attached to it, or published there.
    NodeGone,
    /// For the node, whose object is gone, to come back and unmount: nothing proves its kubelet dead.
    DetachWaitingForNode {
        /// Why it is not forced.
        unforced: Unforced,
    },
    /// To learn whether an attachment exists.
    Uncertain,
    /// For another attach/detach controller, or an agent that writes to this node again and again, to cease: until then
    /// nothing is detached (S14).
    ForeignWriter {
        /// Who wrote what.
        writer: String,
        /// When that ends, unless another such write is seen.
        until: Timestamp,
    },
    /// For the grace after a restore of etcd to end: until then nothing is detached (E11).
    RestoreGrace {
        /// When it ends.
        until: Timestamp,
    },
    /// For an object to be readable: until then nothing is done about this volume on this node (S42).
    Unreadable {
        /// Kind and name.
        object: String,
    },
    /// For a VolumeAttachment of the computed name, which is for something else, to be gone (S9).
    ForeignAttachment {
        /// That name.
        name: AttachmentName,
    },
    /// For the pause after a failure to end.
    RetryBackoff {
        /// What the API server, or the way to it, said.
        message: Option<Arc<str>>,
    },
    /// For the node's status to be written, which failed.
    NodeStatusRefused {
        /// What the API server, or the way to it, said.
        message: Arc<str>,
    },
}

impl Waiting {
    /// The codes that say that a safety rule keeps something from being done.
    pub const GUARDS: [&'static str; 10] = [
        "HeldByNode",
        "DetachWaitingForUnmount",
        "DetachWaitingForNode",
        "DetachWaitingForSettlement",
        "Uncertain",
        "ClaimOrVolumeChanged",
        "ForeignWriter",
        "RestoreGrace",
        "ObjectUnreadable",
        "ForeignAttachment",
    ];

    /// Whether it is the same wait for readers. A stand-off that is prolonged is the same one.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::ForeignWriter { writer, until: _ },
                Self::ForeignWriter { writer: other_writer, until: _ },
            ) => writer == other_writer,
            _ => self == other,
        }
    }

    /// The reason code (user-experience §3), also in metrics and logs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::WaitingForVolumeAttachment => "WaitingForVolumeAttachment",
            Self::WaitingForAttacher => "WaitingForAttacher",
            Self::AttachError { .. } => "AttachError",
            Self::HeldByNode { .. } => "HeldByNode",
            Self::WaitingForDeletion => "WaitingForDeletion",
            Self::Publishing => "Publishing",
            Self::ClaimOrVolumeChanged => "ClaimOrVolumeChanged",
            Self::DetachWaitingForUnmount { .. } => "DetachWaitingForUnmount",
            Self::DetachWaitingForUnpublish => "DetachWaitingForUnpublish",
            Self::DetachWaitingForSettlement => "DetachWaitingForSettlement",
            Self::DetachWaitingForAttacher => "DetachWaitingForAttacher",
            Self::DetachError { .. } => "DetachError",
            Self::NodeGone => "NodeGone",
            Self::DetachWaitingForNode { .. } => "DetachWaitingForNode",
            Self::Uncertain => "Uncertain",
            Self::ForeignWriter { .. } => "ForeignWriter",
            Self::RestoreGrace { .. } => "RestoreGrace",
            Self::Unreadable { .. } => "ObjectUnreadable",
            Self::ForeignAttachment { .. } => "ForeignAttachment",
            Self::RetryBackoff { .. } => "RetryBackoff",
            Self::NodeStatusRefused { .. } => "NodeStatusRefused",
        }
    }
}

/// Judges one volume on a node.
#[must_use]
pub fn judge(view: &NodeVolumeView<'_>, now: Instant) -> Verdict {
    let mut verdict = match (view.kind, view.desired) {
        (VolumeKind::NoOp, _) => no_op::judge(view, now),
        (VolumeKind::Csi, Some(desired)) => wanted(view, desired, now),
        (VolumeKind::Csi, None) => unwanted(view, now),
    };
    let node = view.node.filter(|state| state.node.is_some());
    let failed = node.map(|state| state.requests.retry()).filter(|retry| retry.pending(now).is_some());
    if let Some(Waiting::Publishing | Waiting::DetachWaitingForUnpublish) = verdict.waiting
        && let Some(message) = failed.and_then(Retry::message)
    {
        verdict.waiting = Some(Waiting::NodeStatusRefused { message: Arc::clone(message) });
    }
    verdict
}

fn wanted(view: &NodeVolumeView<'_>, desired: &DesiredAttachment, now: Instant) -> Verdict {
    let node_volume = view.node_volume;
    if let Some(known) = &node_volume.known {
        let attachment = &known.object;
        if node_volume.is_going() || node_volume.call == Some(AttachmentCall::Delete) {
            return wait(ReportAsAttached::No, Waiting::WaitingForDeletion);
        }
        if node_volume.deletion_in_doubt().is_some() && node_volume.call.is_some() {
            return wait(ReportAsAttached::No, Waiting::Uncertain);
        }
        if let Some(until) = node_volume.deletion_in_doubt() {
            return in_doubt(node_volume, until, now);
        }
        if attachment.status.attached {
            let waiting = match view.node {
                _ if node_volume.is_listed() => None,
                Some(state) if state.node.is_some() => Some(Waiting::Publishing),
                _ => Some(Waiting::NodeGone),
            };
            return Verdict { waiting, ..Verdict::say(ReportAsAttached::Yes) };
        }
        let error = attachment.status.attach_error.as_deref();
        // Of an error that was there when the pod came it is not known whether it is of this try; the next is written
        // anew. Times do not tell: the driver's clock is another than that of the pod's creation.
        let is_news = known.desired_again_at.is_none_or(|at| attachment.metadata.resource_version > at);
        let waiting = match error.filter(|_| is_news) {
            Some(error) => Waiting::AttachError { message: error.message.to_string(), at: error.time },
            None => Waiting::WaitingForAttacher,
        };
        return wait(ReportAsAttached::No, waiting);
    }
    if node_volume.call.is_some() {
        return wait(unattached(node_volume), Waiting::WaitingForVolumeAttachment);
    }
    let is_taken = matches!(node_volume.why_read, Some(WhyRead::NameTaken(_)));
    if !is_taken && node_volume.uncertain.is_some_and(|uncertain| !uncertain.read_absent) {
        return read_attachment(node_volume, now);
    }
    if let Some(conflict) = view.conflict {
        return wait(unattached(node_volume), Waiting::HeldByNode { conflict: conflict.clone() });
    }
    if view.node.is_none_or(|state| state.node.is_none()) {
        return wait(ReportAsAttached::Unchanged, Waiting::NodeGone);
    }
    if node_volume.is_listed() && !node_volume.in_use {
        // The attachment vanished behind our back: the kubelet must not mount what is not attached
        // (S10), so the list is mended before the volume is attached again.
        return wait(ReportAsAttached::No, Waiting::DetachWaitingForUnpublish);
    }
    let Some(source) = desired.attachable() else {
        return wait(unattached(node_volume), Waiting::ClaimOrVolumeChanged);
    };
    if let Some(WhyRead::NameTaken(name)) = &node_volume.why_read {
        let waiting = Some(Waiting::ForeignAttachment { name: name.clone() });
        return Verdict { waiting, ..read_attachment(node_volume, now) };
    }
    if let Some(at) = node_volume.retry.pending(now) {
        return Verdict { report_as_attached: unattached(node_volume), ..pause(&node_volume.retry, at) };
    }
    Verdict {
        step: Some(Step::Create(source.clone())),
        ..wait(unattached(node_volume), Waiting::WaitingForVolumeAttachment)
    }
}

/// What the list should say of a volume whose attachment vanished behind our back. One in use stays listed
/// until it has an attachment again: a kubelet that starts anew and finds a mounted volume unpublished reports
/// it in use no longer, and neither that kubelet nor the next leader would tell who has it.
fn unattached(node_volume: &NodeVolume) -> ReportAsAttached {
    if node_volume.in_use { ReportAsAttached::Unchanged } else { ReportAsAttached::No }
}

/// What the driver said of the detach that is under way.
#[must_use]
pub fn detach_error(attachment: &VolumeAttachment) -> Option<&VolumeError> {
    // An attachment is deleted once, so each detach error is of this one.
    attachment.status.detach_error.as_deref()
}

fn unwanted(view: &NodeVolumeView<'_>, now: Instant) -> Verdict {
    let node_volume = view.node_volume;
    let Some(attachment) = node_volume.attachment() else { return without_attachment(view, now) };
    if node_volume.is_going() {
        let waiting = match detach_error(attachment) {
            Some(error) => Waiting::DetachError { message: error.message.to_string(), at: error.time },
            None => Waiting::DetachWaitingForAttacher,
        };
        return wait(ReportAsAttached::No, waiting);
    }
    if let Some(call) = node_volume.call {
        // Only a delete has anything to do with the list: what a create or a read leaves published may be
        // mounted.
        let report_as_attached =
            if call == AttachmentCall::Delete { ReportAsAttached::No } else { ReportAsAttached::Unchanged };
        return wait(report_as_attached, Waiting::DetachWaitingForAttacher);
    }
    if matches!(node_volume.why_read, Some(WhyRead::DeletionRefused(_))) {
        return wait(ReportAsAttached::Unchanged, Waiting::DetachWaitingForAttacher);
    }
    let mut forced = None;
    if node_volume.in_use {
        if let Some(until) = node_volume.deletion_in_doubt() {
            return in_doubt(node_volume, until, now);
        }
        match force(node_volume, view.node, view.policy, view.wall) {
            Ok(reason) => forced = Some(reason),
            Err(unforced) => return still_in_use(view, attachment.status.attached, unforced, now),
        }
    }
    let pause_ends = node_volume.retry.pending(now);
    // Nothing is un-published for a deletion that is not to be sent yet (S11).
    if let Some(at) = pause_ends.filter(|_| node_volume.is_listed()) {
        return Verdict { report_as_attached: ReportAsAttached::Unchanged, ..pause(&node_volume.retry, at) };
    }
    let proof = match prove_unpublished(view, forced) {
        Ok(proof) => proof,
        Err(verdict) => return verdict,
    };
    match pause_ends {
        Some(at) => Verdict { unpublishes: true, ..pause(&node_volume.retry, at) },
        None => {
            let step = Step::Delete(attachment.metadata.uid.clone(), proof);
            Verdict {
                forced: forced.or(given_up(node_volume)),
                ..withdraw(Some(step), Waiting::DetachWaitingForAttacher)
            }
        }
    }
}

/// The proof without which nothing is detached (S2, S3), or what there is to be done for it.
#[allow(clippy::result_large_err, reason = "the verdict is returned either way")]
pub(in crate::attach_detach) fn prove_unpublished(
    view: &NodeVolumeView<'_>,
    forced: Option<ForceReason>,
) -> Result<Unpublished, Verdict> {
    if view.node_volume.is_listed() {
        return Err(withdraw(None, Waiting::DetachWaitingForUnpublish));
    }
    if view.node.is_some_and(|state| !state.requests.is_settled()) {
        return Err(withdraw(None, Waiting::DetachWaitingForSettlement));
    }
    let node = view.node.and_then(|state| state.node.as_deref());
    match &view.node_volume.unpublishing {
        Unpublishing::Proven(proof) if proof.is_about(node) && (proof.is_unused() || forced.is_some()) => {
            Ok(proof.clone())
        }
        _ => Err(withdraw(Some(Step::ReadNode), Waiting::DetachWaitingForUnpublish)),
    }
}

/// The volume is in use, or may be, and that may not be overruled (yet).
pub(in crate::attach_detach) fn still_in_use(
    view: &NodeVolumeView<'_>,
    attached: bool,
    unforced: Unforced,
    now: Instant,
) -> Verdict {
    let wake_at = wake_at(unforced, view.wall, now);
    if view.node.is_none_or(|state| state.node.is_none()) {
        return Verdict {
            wake_at,
            ..wait(ReportAsAttached::Unchanged, Waiting::DetachWaitingForNode { unforced })
        };
    }
    // Also puts the volume back when the answer to the un-publishing patch showed it in use after all: a
    // kubelet that finds a mounted volume unpublished takes it for lost.
    let report_as_attached = if attached { ReportAsAttached::Yes } else { ReportAsAttached::No };
    Verdict { wake_at, ..wait(report_as_attached, Waiting::DetachWaitingForUnmount { unforced }) }
}

fn wake_at(unforced: Unforced, wall: Timestamp, now: Instant) -> Option<Instant> {
    let Unforced::Until(due) = unforced else { return None };
    let left = due.duration_since(wall).try_into().ok()?;
    now.checked_add(left)
}

/// Undesired, and no attachment is known: either there is none, or a create may yet have made one.
fn without_attachment(view: &NodeVolumeView<'_>, now: Instant) -> Verdict {
    let node_volume = view.node_volume;
    if node_volume.call.is_some() {
        return wait(ReportAsAttached::No, Waiting::Uncertain);
    }
    if node_volume.uncertain.is_some() {
        return read_attachment(node_volume, now);
    }
    if !node_volume.may_be_mounted {
        return Verdict::say(ReportAsAttached::Unchanged);
    }
    let is_gone = view.node.is_none_or(|state| state.node.is_none());
    let mut forced = None;
    if node_volume.in_use {
        match force(node_volume, view.node, view.policy, view.wall) {
            Ok(reason) => forced = Some(reason),
            // Where time may not force, who deletes the attachment of a node that is gone says that it is off.
            Err(Unforced::SwitchedOff) if is_gone => {}
            Err(unforced) => {
                let waiting = if is_gone {
                    Waiting::DetachWaitingForNode { unforced }
                } else {
                    Waiting::DetachWaitingForUnmount { unforced }
                };
                return Verdict {
                    wake_at: wake_at(unforced, view.wall, now),
                    ..wait(ReportAsAttached::Unchanged, waiting)
                };
            }
        }
    }
    give_up(view, forced)
}

/// Whether the proof is of another machine than the one that may have the volume. It overrules nothing: the node
/// that is there is not to use it either.
fn given_up(node_volume: &NodeVolume) -> Option<ForceReason> {
    node_volume.given_up.then_some(ForceReason::AnotherMachine)
}

/// A volume that has no attachment, or none any more, is given up on the proof on which others are detached.
pub(in crate::attach_detach) fn give_up(view: &NodeVolumeView<'_>, forced: Option<ForceReason>) -> Verdict {
    match prove_unpublished(view, forced) {
        Ok(proof) => {
            let forced = forced.or(given_up(view.node_volume));
            Verdict { forced, ..withdraw(Some(Step::GiveUp(proof)), Waiting::DetachWaitingForUnpublish) }
        }
        // The list is all that there is to take by force.
        Err(verdict) => Verdict { forced: forced.filter(|_| view.node_volume.is_listed()), ..verdict },
    }
}

/// Whether a delete took effect is unknown. Publishing the volume meanwhile could have it mounted just as
/// the delete lands.
fn in_doubt(node_volume: &NodeVolume, until: Instant, now: Instant) -> Verdict {
    if now < until {
        let wake_at = Some(until);
        return Verdict { wake_at, ..wait(ReportAsAttached::No, Waiting::Uncertain) };
    }
    read_attachment(node_volume, now)
}

fn read_attachment(node_volume: &NodeVolume, now: Instant) -> Verdict {
    match node_volume.retry.pending(now) {
        Some(at) => pause(&node_volume.retry, at),
        None => {
            Verdict { step: Some(Step::ReadAttachment), ..wait(ReportAsAttached::No, Waiting::Uncertain) }
        }
    }
}

pub(in crate::attach_detach) fn wait(report_as_attached: ReportAsAttached, waiting: Waiting) -> Verdict {
    Verdict { waiting: Some(waiting), ..Verdict::say(report_as_attached) }
}

fn pause(retry: &Retry, at: Instant) -> Verdict {
    let waiting = Waiting::RetryBackoff { message: retry.message().cloned() };
    Verdict { wake_at: Some(at), ..wait(ReportAsAttached::No, waiting) }
}

pub(in crate::attach_detach) fn withdraw(step: Option<Step>, waiting: Waiting) -> Verdict {
    Verdict { unpublishes: true, step, ..wait(ReportAsAttached::No, waiting) }
}

impl Verdict {
    /// The same, but nothing is taken away from the node or the driver. What was about to be is put back.
    pub(in crate::attach_detach) fn standing_off(self, node_volume: &NodeVolume, why: &StandOff) -> Self {
        let deletes = matches!(self.step, Some(Step::Delete(..)));
        let unpublishes = node_volume.is_listed() && self.report_as_attached == ReportAsAttached::No;
        if !(self.unpublishes || deletes || unpublishes) {
            return self;
        }
        let is_attached = node_volume.attachment().is_some_and(|attachment| attachment.status.attached);
        let is_attached = is_attached && !node_volume.is_going();
        // Only what we took off ourselves is put back: what the watch says may be of yesterday (S10).
        let is_ours = node_volume.unpublishing != Unpublishing::None
            || node_volume.report_as_attached == ReportAsAttached::Yes;
        let report_as_attached =
            if is_attached && is_ours { ReportAsAttached::Yes } else { ReportAsAttached::Unchanged };
        let waiting = match why {
            StandOff::ForeignWriter { by, until } => {
                Waiting::ForeignWriter { writer: by.to_string(), until: *until }
            }
            StandOff::Restored { until } => Waiting::RestoreGrace { until: *until },
        };
        wait(report_as_attached, waiting)
    }

    /// Nothing is done: an object that the rules would have to read cannot be read.
    pub(in crate::attach_detach) fn blocked(object: &str) -> Self {
        wait(ReportAsAttached::Unchanged, Waiting::Unreadable { object: object.to_owned() })
    }

    /// The same, and the attachment is read live if no watch event would tell of its end, or if the server says that it
    /// is another object.
    pub(in crate::attach_detach) fn confirming(mut self, node_volume: &NodeVolume, now: Instant) -> Self {
        let is_to_be_read =
            matches!(node_volume.why_read, Some(WhyRead::Unconfirmed | WhyRead::DeletionRefused(_)));
        if !is_to_be_read || node_volume.call.is_some() || self.step.is_some() {
            return self;
        }
        match node_volume.retry.pending(now) {
            Some(at) => self.wake_at = Some(self.wake_at.map_or(at, |wake_at| wake_at.min(at))),
            None => self.step = Some(Step::ReadAttachment),
        }
        self
    }

    pub(in crate::attach_detach) fn say(report_as_attached: ReportAsAttached) -> Self {
        Self {
            report_as_attached,
            unpublishes: false,
            step: None,
            waiting: None,
            wake_at: None,
            forced: None,
        }
    }
}
