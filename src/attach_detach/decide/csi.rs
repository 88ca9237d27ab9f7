//! The rules for one volume on one node: pure, from what is wanted and what is, to what the node's
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
            state::{Doubt, Pair, PairCall, Publication},
            withdrawal::{Unpublished, Withdrawal},
        },
        desired::{
            state::{AttachSource, Wish},
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

/// What is known of one pair when it is judged.
#[derive(Clone, Copy, Debug)]
pub struct PairView<'a> {
    /// Whether the volume has VolumeAttachments at all.
    pub kind: VolumeKind,
    /// The pods that want the volume here, if any.
    pub wish: Option<&'a Wish>,
    /// The pair.
    pub pair: &'a Pair,
    /// Its node.
    pub node: Option<&'a NodeState>,
    /// The node that keeps this one from attaching, if the volume is exclusive.
    pub rival: Option<&'a Rival>,
    /// When a detach may be forced.
    pub policy: &'a ForcePolicy,
    /// The time by this process' clock.
    pub wall: Timestamp,
}

/// Another node that has, or is to have, an exclusive volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rival {
    /// The node.
    pub node: NodeName,
    /// Whether it holds the volume already, or merely comes first.
    pub holds: bool,
}

/// The judgement of one pair.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// What the node's status should say of the volume.
    pub publication: Publication,
    /// Whether the volume is being withdrawn from the node.
    pub withdraws: bool,
    /// What to do next.
    pub step: Option<Step>,
    /// What has to happen before the next step, if this is not it.
    pub waiting: Option<Waiting>,
    /// When to judge again although nothing happened.
    pub wake_at: Option<Instant>,
    /// Why the volume is taken away although it may be in use.
    pub forced: Option<ForceReason>,
}

/// What to do next for one pair: a request, or the last stroke where none is needed.
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
    /// The request for the pair that it takes, if any.
    pub(in crate::attach_detach) fn call(&self) -> Option<PairCall> {
        match self {
            Self::Create(_) => Some(PairCall::Create),
            Self::Delete(..) => Some(PairCall::Delete),
            Self::ReadAttachment => Some(PairCall::Read),
            Self::GiveUp(_) | Self::ReadNode => None,
        }
    }
}

/// What a pair waits for, with the facts. Printed in logs, events and diagnosis.
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
        rival: Rival,
    },
    /// For an earlier attachment of the same name to be gone.
    WaitingForDeletion,
    /// For the node's status to list the volume.
    Publishing,
    /// For claim or volume to be whole again: the wish is kept but may not attach.
    WishNotCurrent,
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
    /// For another attach/detach controller, or whoever writes to this node again and again, to cease: until then
    /// nothing is detached (S14).
    ForeignWriter {
        /// Who wrote what.
        writer: String,
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
        "WishNotCurrent",
        "ForeignWriter",
        "RestoreGrace",
        "ObjectUnreadable",
        "ForeignAttachment",
    ];

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
            Self::WishNotCurrent => "WishNotCurrent",
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

/// Judges one pair.
#[must_use]
pub fn judge(view: &PairView<'_>, now: Instant) -> Verdict {
    let mut verdict = match (view.kind, view.wish) {
        (VolumeKind::NoOp, _) => no_op::judge(view, now),
        (VolumeKind::Csi, Some(wish)) => wanted(view, wish, now),
        (VolumeKind::Csi, None) => unwanted(view, now),
    };
    let node = view.node.filter(|state| state.node.is_some());
    let failed = node.map(|state| &state.retry).filter(|retry| retry.pending(now).is_some());
    if let Some(Waiting::Publishing | Waiting::DetachWaitingForUnpublish) = verdict.waiting
        && let Some(message) = failed.and_then(Retry::message)
    {
        verdict.waiting = Some(Waiting::NodeStatusRefused { message: Arc::clone(message) });
    }
    verdict
}

fn wanted(view: &PairView<'_>, wish: &Wish, now: Instant) -> Verdict {
    let pair = view.pair;
    if let Some(attachment) = &pair.attachment {
        if pair.is_going() || pair.call == Some(PairCall::Delete) {
            return wait(Publication::Withhold, Waiting::WaitingForDeletion);
        }
        if pair.deletion_doubt.is_some() && pair.call.is_some() {
            return wait(Publication::Withhold, Waiting::Uncertain);
        }
        if let Some(until) = pair.deletion_doubt {
            return in_doubt(pair, until, now);
        }
        if attachment.status.attached {
            let waiting = match view.node {
                _ if pair.listed => None,
                Some(state) if state.node.is_some() => Some(Waiting::Publishing),
                _ => Some(Waiting::NodeGone),
            };
            return Verdict { waiting, ..Verdict::say(Publication::List) };
        }
        let error = attachment.status.attach_error.as_deref();
        // Of an error that was there when the wish began nobody knows whether it is of this try; the next is written
        // anew. Times do not tell: the driver's clock is another than that of the pod's creation.
        let is_news = pair.wanted_again_at.is_none_or(|at| attachment.metadata.resource_version > at);
        let waiting = match error.filter(|_| is_news) {
            Some(error) => Waiting::AttachError { message: error.message.to_string(), at: error.time },
            None => Waiting::WaitingForAttacher,
        };
        return wait(Publication::Withhold, waiting);
    }
    if pair.call.is_some() {
        return wait(unattached(pair), Waiting::WaitingForVolumeAttachment);
    }
    let is_taken = matches!(pair.doubt, Some(Doubt::NameTaken(_)));
    if !is_taken && pair.uncertain.is_some_and(|uncertain| !uncertain.read_absent) {
        return read_attachment(pair, now);
    }
    if let Some(rival) = view.rival {
        return wait(unattached(pair), Waiting::HeldByNode { rival: rival.clone() });
    }
    if view.node.is_none_or(|state| state.node.is_none()) {
        return wait(Publication::Keep, Waiting::NodeGone);
    }
    if pair.listed && !pair.in_use {
        // The attachment vanished behind our back: the kubelet must not mount what is not attached
        // (S10), so the list is mended before the volume is attached again.
        return wait(Publication::Withhold, Waiting::DetachWaitingForUnpublish);
    }
    let Some(source) = wish.attachable() else {
        return wait(unattached(pair), Waiting::WishNotCurrent);
    };
    if let Some(Doubt::NameTaken(name)) = &pair.doubt {
        let waiting = Some(Waiting::ForeignAttachment { name: name.clone() });
        return Verdict { waiting, ..read_attachment(pair, now) };
    }
    if let Some(at) = pair.retry.pending(now) {
        return Verdict { publication: unattached(pair), ..pause(&pair.retry, at) };
    }
    Verdict {
        step: Some(Step::Create(source.clone())),
        ..wait(unattached(pair), Waiting::WaitingForVolumeAttachment)
    }
}

/// What the list should say of a volume whose attachment vanished behind our back. One in use stays listed
/// until it has an attachment again: a kubelet that starts anew and finds a mounted volume unpublished reports
/// it in use no longer, and neither that kubelet nor the next leader would tell who has it.
fn unattached(pair: &Pair) -> Publication {
    if pair.in_use { Publication::Keep } else { Publication::Withhold }
}

/// What the driver said of the detach that is under way.
#[must_use]
pub fn detach_error(attachment: &VolumeAttachment) -> Option<&VolumeError> {
    // An attachment is deleted once, so whatever is said of detaching it is of this one.
    attachment.status.detach_error.as_deref()
}

fn unwanted(view: &PairView<'_>, now: Instant) -> Verdict {
    let pair = view.pair;
    let Some(attachment) = &pair.attachment else { return without_attachment(view, now) };
    if pair.is_going() {
        let waiting = match detach_error(attachment) {
            Some(error) => Waiting::DetachError { message: error.message.to_string(), at: error.time },
            None => Waiting::DetachWaitingForAttacher,
        };
        return wait(Publication::Withhold, waiting);
    }
    if let Some(call) = pair.call {
        // Only a delete has anything to do with the list: what a create or a read leaves published may be
        // mounted.
        let publication = if call == PairCall::Delete { Publication::Withhold } else { Publication::Keep };
        return wait(publication, Waiting::DetachWaitingForAttacher);
    }
    if matches!(pair.doubt, Some(Doubt::DeletionRefused(_))) {
        return wait(Publication::Keep, Waiting::DetachWaitingForAttacher);
    }
    let mut forced = None;
    if pair.in_use {
        if let Some(until) = pair.deletion_doubt {
            return in_doubt(pair, until, now);
        }
        match force(pair, view.node, view.policy, view.wall) {
            Ok(reason) => forced = Some(reason),
            Err(unforced) => return still_in_use(view, attachment.status.attached, unforced, now),
        }
    }
    let pause_ends = pair.retry.pending(now);
    // Nothing is un-published for a deletion that is not to be sent yet (S11).
    if let Some(at) = pause_ends.filter(|_| pair.listed) {
        return Verdict { publication: Publication::Keep, ..pause(&pair.retry, at) };
    }
    let proof = match prove_unpublished(view, forced) {
        Ok(proof) => proof,
        Err(verdict) => return verdict,
    };
    match pause_ends {
        Some(at) => Verdict { withdraws: true, ..pause(&pair.retry, at) },
        None => {
            let step = Step::Delete(attachment.metadata.uid.clone(), proof);
            Verdict {
                forced: forced.or(given_up(pair)),
                ..withdraw(Some(step), Waiting::DetachWaitingForAttacher)
            }
        }
    }
}

/// The proof without which nothing is detached (S2, S3), or what there is to be done for it.
#[allow(clippy::result_large_err, reason = "the verdict is returned either way")]
pub(in crate::attach_detach) fn prove_unpublished(
    view: &PairView<'_>,
    forced: Option<ForceReason>,
) -> Result<Unpublished, Verdict> {
    if view.pair.listed {
        return Err(withdraw(None, Waiting::DetachWaitingForUnpublish));
    }
    if view.node.is_some_and(|state| !state.is_settled()) {
        return Err(withdraw(None, Waiting::DetachWaitingForSettlement));
    }
    let node = view.node.and_then(|state| state.node.as_deref());
    match &view.pair.withdrawal {
        Withdrawal::Proven(proof) if proof.is_about(node) && (proof.is_unused() || forced.is_some()) => {
            Ok(proof.clone())
        }
        _ => Err(withdraw(Some(Step::ReadNode), Waiting::DetachWaitingForUnpublish)),
    }
}

/// The volume is in use, or may be, and that may not be overruled (yet).
pub(in crate::attach_detach) fn still_in_use(
    view: &PairView<'_>,
    attached: bool,
    unforced: Unforced,
    now: Instant,
) -> Verdict {
    let wake_at = wake_at(unforced, view.wall, now);
    if view.node.is_none_or(|state| state.node.is_none()) {
        return Verdict { wake_at, ..wait(Publication::Keep, Waiting::DetachWaitingForNode { unforced }) };
    }
    // Also puts the volume back when the answer to the un-publishing patch showed it in use after all: a
    // kubelet that finds a mounted volume unpublished takes it for lost.
    let publication = if attached { Publication::List } else { Publication::Withhold };
    Verdict { wake_at, ..wait(publication, Waiting::DetachWaitingForUnmount { unforced }) }
}

fn wake_at(unforced: Unforced, wall: Timestamp, now: Instant) -> Option<Instant> {
    let Unforced::Until(due) = unforced else { return None };
    let left = due.duration_since(wall).try_into().ok()?;
    now.checked_add(left)
}

/// Unwanted, and no attachment is known: either there is none, or a create may yet have made one.
fn without_attachment(view: &PairView<'_>, now: Instant) -> Verdict {
    let pair = view.pair;
    if pair.call.is_some() {
        return wait(Publication::Withhold, Waiting::Uncertain);
    }
    if pair.uncertain.is_some() {
        return read_attachment(pair, now);
    }
    if !pair.held {
        return Verdict::say(Publication::Keep);
    }
    let is_gone = view.node.is_none_or(|state| state.node.is_none());
    let mut forced = None;
    if pair.in_use {
        match force(pair, view.node, view.policy, view.wall) {
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
                    ..wait(Publication::Keep, waiting)
                };
            }
        }
    }
    give_up(view, forced)
}

/// Whether the proof is of another machine than the one that may have the volume. It overrules nothing: the node
/// that is there is not to use it either.
fn given_up(pair: &Pair) -> Option<ForceReason> {
    pair.given_up.then_some(ForceReason::AnotherMachine)
}

/// A volume that has no attachment, or none any more, is given up on the proof on which others are detached.
pub(in crate::attach_detach) fn give_up(view: &PairView<'_>, forced: Option<ForceReason>) -> Verdict {
    match prove_unpublished(view, forced) {
        Ok(proof) => {
            let forced = forced.or(given_up(view.pair));
            Verdict { forced, ..withdraw(Some(Step::GiveUp(proof)), Waiting::DetachWaitingForUnpublish) }
        }
        // The list is all that there is to take by force.
        Err(verdict) => Verdict { forced: forced.filter(|_| view.pair.listed), ..verdict },
    }
}

/// Whether a delete took effect is unknown. Publishing the volume meanwhile could have it mounted just as
/// the delete lands.
fn in_doubt(pair: &Pair, until: Instant, now: Instant) -> Verdict {
    if now < until {
        let wake_at = Some(until);
        return Verdict { wake_at, ..wait(Publication::Withhold, Waiting::Uncertain) };
    }
    read_attachment(pair, now)
}

fn read_attachment(pair: &Pair, now: Instant) -> Verdict {
    match pair.retry.pending(now) {
        Some(at) => pause(&pair.retry, at),
        None => {
            Verdict { step: Some(Step::ReadAttachment), ..wait(Publication::Withhold, Waiting::Uncertain) }
        }
    }
}

pub(in crate::attach_detach) fn wait(publication: Publication, waiting: Waiting) -> Verdict {
    Verdict { waiting: Some(waiting), ..Verdict::say(publication) }
}

fn pause(retry: &Retry, at: Instant) -> Verdict {
    let waiting = Waiting::RetryBackoff { message: retry.message().cloned() };
    Verdict { wake_at: Some(at), ..wait(Publication::Withhold, waiting) }
}

pub(in crate::attach_detach) fn withdraw(step: Option<Step>, waiting: Waiting) -> Verdict {
    Verdict { withdraws: true, step, ..wait(Publication::Withhold, waiting) }
}

impl Verdict {
    /// The same, but nothing is taken away from the node or the driver. What was about to be is put back.
    pub(in crate::attach_detach) fn standing_off(self, pair: &Pair, why: &StandOff) -> Self {
        let deletes = matches!(self.step, Some(Step::Delete(..)));
        let unpublishes = pair.listed && self.publication == Publication::Withhold;
        if !(self.withdraws || deletes || unpublishes) {
            return self;
        }
        let is_attached = pair.attachment.as_deref().is_some_and(|attachment| attachment.status.attached);
        let is_attached = is_attached && !pair.is_going();
        // Only what we took off ourselves is put back: what the watch says may be of yesterday (S10).
        let is_ours = pair.withdrawal != Withdrawal::None || pair.publication == Publication::List;
        let publication = if is_attached && is_ours { Publication::List } else { Publication::Keep };
        let waiting = match why {
            StandOff::ForeignWriter(by) => Waiting::ForeignWriter { writer: by.to_string() },
            StandOff::Restored { until } => Waiting::RestoreGrace { until: *until },
        };
        wait(publication, waiting)
    }

    /// Nothing is done: an object that the rules would have to read cannot be read.
    pub(in crate::attach_detach) fn blocked(object: &str) -> Self {
        wait(Publication::Keep, Waiting::Unreadable { object: object.to_owned() })
    }

    /// The same, and the attachment is read if nobody would tell of its end, or if the server says that it is
    /// another.
    pub(in crate::attach_detach) fn confirming(mut self, pair: &Pair, now: Instant) -> Self {
        let is_to_be_read = matches!(pair.doubt, Some(Doubt::Unconfirmed | Doubt::DeletionRefused(_)));
        if !is_to_be_read || pair.call.is_some() || self.step.is_some() {
            return self;
        }
        match pair.retry.pending(now) {
            Some(at) => self.wake_at = Some(self.wake_at.map_or(at, |wake_at| wake_at.min(at))),
            None => self.step = Some(Step::ReadAttachment),
        }
        self
    }

    pub(in crate::attach_detach) fn say(publication: Publication) -> Self {
        Self { publication, withdraws: false, step: None, waiting: None, wake_at: None, forced: None }
    }
}
