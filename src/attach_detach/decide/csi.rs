//! The rules for one volume on one node: pure, from what is desired and what is, to what the node's
//! status should say, at most one request, and what is waited for.
//!
//! Order of a detach (S2, S3): nothing is written while the kubelet reports the volume in use; then
//! the node's status is written without it; the answer to that very request proves it unpublished
//! and unused; only then is the VolumeAttachment deleted; and only its absence means detached.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    detach::{give_up, given_up, prove_unpublished, still_in_use},
    force::{Unforced, force},
    no_op,
    verdict::{AttachStep, NodeVerdict, NodeVolumeView, Waiting, pause, wait, withdraw},
};
use crate::{
    attach_detach::state::{
        actual::{AttachmentCall, Mount, NodeVolume, ReportAsAttached, WhyRead},
        desired::{DesiredAttachment, volume_name::VolumeKind},
    },
    controller::retry::Retry,
};

/// Judges one volume on a node.
pub fn judge(view: &NodeVolumeView<'_>, now: Instant) -> NodeVerdict {
    let mut verdict = match (view.kind, view.desired) {
        (VolumeKind::NoOp, _) => no_op::judge(view),
        (VolumeKind::Csi, Some(desired)) => wanted(view, desired, now),
        (VolumeKind::Csi, None) => unwanted(view, now),
    };
    let node = view.node.filter(|state| state.node.is_some());
    let failed = node.map(|state| &state.requests.retry).filter(|retry| retry.pending(now).is_some());
    if let Some(Waiting::Publishing | Waiting::DetachWaitingForUnpublish) = verdict.waiting
        && let Some(message) = failed.and_then(Retry::message)
    {
        verdict.waiting = Some(Waiting::NodeStatusRefused { message: Arc::clone(message) });
    } else if verdict.waiting == Some(Waiting::Publishing)
        && let Some(writer) = node.and_then(|state| state.requests.undone_by(now))
    {
        verdict.waiting = Some(Waiting::WriteUndone { writer });
    }
    // A read after that settles what became of a create; until then this node holds the volume.
    let settles_at = view.node_volume.uncertain.map(|uncertain| uncertain.until).filter(|until| *until > now);
    verdict.wake_at = verdict.wake_at.into_iter().chain(settles_at).min();
    verdict
}

fn wanted(view: &NodeVolumeView<'_>, desired: &DesiredAttachment, now: Instant) -> NodeVerdict {
    let node_volume = view.node_volume;
    if let Some(known) = &node_volume.known {
        let attachment = &known.object;
        if node_volume.is_going() || node_volume.call == Some(AttachmentCall::Delete) {
            return wait(unattached(node_volume), Waiting::WaitingForDeletion);
        }
        if node_volume.deletion_in_doubt().is_some() && node_volume.call.is_some() {
            return wait(ReportAsAttached::No, Waiting::Uncertain);
        }
        if let Some(until) = node_volume.deletion_in_doubt() {
            return in_doubt(node_volume, until, now);
        }
        if attachment.status.attached {
            // Another writer has attached it although it is mounted elsewhere, or may be (S43).
            let is_held = !node_volume.listed && view.publishes == Some(false);
            if let Some(conflict) = view.conflict.filter(|_| is_held) {
                return wait(ReportAsAttached::No, Waiting::HeldByNode { conflict: conflict.clone() });
            }
            let waiting = match view.node {
                _ if node_volume.listed => None,
                Some(state) if state.node.is_some() => Some(Waiting::Publishing),
                _ => Some(Waiting::NodeGone),
            };
            return NodeVerdict { waiting, ..NodeVerdict::say(ReportAsAttached::Yes) };
        }
        let error = attachment.status.attach_error.as_deref();
        // Of an error that was there when the pod came it is not known whether it is of this try; the next is written
        // anew. Times do not tell: the driver's clock is another than that of the pod's creation.
        let is_news = known.desired_again_at.is_none_or(|at| attachment.metadata.resource_version > at);
        let waiting = match error.filter(|_| is_news) {
            Some(error) => Waiting::AttachError { message: error.message.to_string(), at: error.time },
            None => Waiting::WaitingForAttacher,
        };
        return wait(unattached(node_volume), waiting);
    }
    if node_volume.call.is_some() {
        return wait(unattached(node_volume), Waiting::WaitingForVolumeAttachment);
    }
    let is_taken = matches!(node_volume.why_read, Some(WhyRead::NameTaken(_)));
    if !is_taken
        && node_volume.uncertain.is_some_and(|uncertain| !uncertain.read_absent || uncertain.until <= now)
    {
        return read_attachment(node_volume, now);
    }
    // One that is to attach nothing waits for no turn.
    if let Some(conflict) = view.conflict.filter(|conflict| conflict.is_attached || desired.is_current()) {
        return wait(unattached(node_volume), Waiting::HeldByNode { conflict: conflict.clone() });
    }
    if view.node.is_none_or(|state| state.node.is_none()) {
        return wait(ReportAsAttached::Unchanged, Waiting::NodeGone);
    }
    if node_volume.listed && !node_volume.in_use {
        // The attachment vanished behind our back: the kubelet must not mount what is not attached
        // (S10), so the list is mended before the volume is attached again.
        return wait(ReportAsAttached::No, Waiting::DetachWaitingForUnpublish);
    }
    let Some(source) = desired.attachable() else {
        return wait(unattached(node_volume), Waiting::ClaimOrVolumeChanged);
    };
    if let Some(WhyRead::NameTaken(name)) = &node_volume.why_read {
        let waiting = Some(Waiting::ForeignAttachment { name: name.clone() });
        return NodeVerdict { waiting, ..read_attachment(node_volume, now) };
    }
    if let Some(at) = node_volume.retry.pending(now) {
        return NodeVerdict { report_as_attached: unattached(node_volume), ..pause(&node_volume.retry, at) };
    }
    if let Some(at) = node_volume.undone.as_ref().and_then(|undone| undone.pending(now)) {
        // Of what is deleted no object says who did it.
        let waiting = Waiting::WriteUndone { writer: "another writer deletes its VolumeAttachment".into() };
        return NodeVerdict { wake_at: Some(at), ..wait(unattached(node_volume), waiting) };
    }
    NodeVerdict {
        step: Some(AttachStep::Create(source.clone())),
        ..wait(unattached(node_volume), Waiting::WaitingForVolumeAttachment)
    }
}

/// What the list should say of a volume that is not attached, and for no deletion of ours: for one of ours it is off the
/// list. One in use stays listed: a kubelet that starts anew and finds a mounted volume unpublished reports it in use no
/// longer, and neither that kubelet nor the next leader would tell who has it. No kubelet mounts it for the entry alone,
/// for it looks at the attachment, too.
fn unattached(node_volume: &NodeVolume) -> ReportAsAttached {
    if node_volume.in_use { ReportAsAttached::Unchanged } else { ReportAsAttached::No }
}

fn unwanted(view: &NodeVolumeView<'_>, now: Instant) -> NodeVerdict {
    let node_volume = view.node_volume;
    let Some(attachment) = node_volume.attachment() else { return without_attachment(view, now) };
    if node_volume.is_going() {
        // An attachment is deleted once, so each detach error is of this one.
        let waiting = match attachment.status.detach_error.as_deref() {
            Some(error) => Waiting::DetachError { message: error.message.to_string(), at: error.time },
            None => Waiting::DetachWaitingForAttacher,
        };
        return wait(unattached(node_volume), waiting);
    }
    if let Some(call) = node_volume.call {
        // Only a delete has anything to do with the list: what a create or a read leaves published may be
        // mounted.
        let report_as_attached =
            if call == AttachmentCall::Delete { ReportAsAttached::No } else { ReportAsAttached::Unchanged };
        return wait(report_as_attached, Waiting::DetachWaitingForAttacher);
    }
    let mut forced = None;
    if node_volume.in_use {
        if let Some(until) = node_volume.deletion_in_doubt() {
            return in_doubt(node_volume, until, now);
        }
        match force(node_volume, (view.node, view.doubt), view.policy, view.wall) {
            Ok(reason) => forced = Some(reason),
            Err(unforced) => {
                // Also puts the volume back when the answer to the un-publishing patch showed it in use after all: a
                // kubelet that finds a mounted volume unpublished takes it for lost.
                // But it is listed nowhere where it never may have been, while it is elsewhere (S43).
                // Nor where another machine was given it than the one that is there.
                let is_elsewhere = view.publishes == Some(false) || view.is_elsewhere || view.is_withheld;
                let stays = node_volume.listed && !view.is_withheld;
                let report = match attachment.status.attached && (stays || !is_elsewhere) {
                    true => ReportAsAttached::Yes,
                    false if view.is_withheld => ReportAsAttached::No,
                    false => unattached(node_volume),
                };
                return still_in_use(view, report, unforced);
            }
        }
    }
    let pause_ends = node_volume.retry.pending(now);
    // Nothing is un-published for a deletion that is not to be sent yet (S11).
    if let Some(at) = pause_ends.filter(|_| node_volume.listed) {
        return NodeVerdict {
            report_as_attached: ReportAsAttached::Unchanged,
            ..pause(&node_volume.retry, at)
        };
    }
    let proof = match prove_unpublished(view, forced) {
        Ok(proof) => proof,
        Err(verdict) => return verdict,
    };
    match pause_ends {
        Some(at) => NodeVerdict { unpublishes: true, ..pause(&node_volume.retry, at) },
        None => {
            let metadata = &attachment.metadata;
            let step = AttachStep::Delete(metadata.uid.clone(), metadata.resource_version, proof);
            NodeVerdict {
                forced: forced.or(given_up(node_volume)),
                ..withdraw(Some(step), Waiting::DetachWaitingForAttacher)
            }
        }
    }
}

/// Undesired, and no attachment is known: either there is none, or a create may yet have made one.
fn without_attachment(view: &NodeVolumeView<'_>, now: Instant) -> NodeVerdict {
    let node_volume = view.node_volume;
    if node_volume.call.is_some() {
        return wait(unattached(node_volume), Waiting::Uncertain);
    }
    if node_volume.uncertain.is_some() {
        return read_attachment(node_volume, now);
    }
    if node_volume.mount == Mount::No {
        return NodeVerdict::say(ReportAsAttached::Unchanged);
    }
    let is_gone = view.node.is_none_or(|state| state.node.is_none());
    let mut forced = None;
    if node_volume.in_use {
        match force(node_volume, (view.node, view.doubt), view.policy, view.wall) {
            Ok(reason) => forced = Some(reason),
            // Where time may not force, who deletes the attachment of a node that is gone says that it is off.
            Err(Unforced::SwitchedOff) if is_gone => {}
            Err(unforced) => return still_in_use(view, ReportAsAttached::Unchanged, unforced),
        }
    }
    give_up(view, forced)
}

/// Whether a delete took effect is unknown. Publishing the volume meanwhile could have it mounted just as
/// the delete lands.
fn in_doubt(node_volume: &NodeVolume, until: Instant, now: Instant) -> NodeVerdict {
    if now < until {
        let wake_at = Some(until);
        return NodeVerdict { wake_at, ..wait(ReportAsAttached::No, Waiting::Uncertain) };
    }
    read_attachment(node_volume, now)
}

fn read_attachment(node_volume: &NodeVolume, now: Instant) -> NodeVerdict {
    // A deletion of ours was sent for what is off the list, and stays off it.
    let report_as_attached = match node_volume.deletion_in_doubt() {
        Some(_) => ReportAsAttached::No,
        None => unattached(node_volume),
    };
    match node_volume.retry.pending(now) {
        Some(at) => NodeVerdict { report_as_attached, ..pause(&node_volume.retry, at) },
        None => NodeVerdict {
            step: Some(AttachStep::ReadAttachment),
            ..wait(report_as_attached, Waiting::Uncertain)
        },
    }
}
