//! Reports: what a turn reports of volumes on nodes, and of what is not ours.
//!
//! In: verdicts that were carried out, requests that failed, detaches that are forced. Out: a report for each key, from which
//! log, metrics and the debug page are made, and the events of it; taken with the plan.

use std::collections::BTreeMap;

use apiserver::ids::{AttachmentName, NodeName};
use tokio::time::Instant;

use super::{
    announce,
    controller::AttachDetach,
    decide::{
        contention::Contention,
        verdict::{NodeVerdict, Waiting},
    },
    events::{self, Announcement},
    facts::{Fact, Forced},
    known::Known,
    phases::Progress,
    reasons::{AttachDetachKey, AttachDetachReason, AttachState, NodeVolumeKey, Report},
    state::{
        actual::{ActualState, ForceReason, NodeVolume},
        desired::{AttachSource, DesiredAttachment, volume_name::VolumeId},
    },
};
use crate::controller::report::events::EventUpdate;

impl AttachDetach {
    /// Reports where a volume stands after these verdicts, all of which have been carried out.
    pub(super) fn report_verdicts(
        &mut self,
        volume: &VolumeId,
        contention: &Contention,
        verdicts: &BTreeMap<NodeName, NodeVerdict>,
        now: Instant,
    ) {
        let mut attached = Vec::new();
        for (node, verdict) in verdicts {
            let known = self.known(now);
            let report = report(volume, node, verdict, known);
            let (events, told) = announce::judged(volume, node, verdict, contention, known);
            self.outbox.reports.extend(report);
            self.outbox.events.extend(events);
            let node_volume = self.actual.node_volume_mut(volume, node);
            if told.is_attached && !node_volume.told.is_attached {
                attached
                    .extend(self.desired.get(volume, node).map(DesiredAttachment::keys).unwrap_or_default());
            }
            node_volume.told = told;
        }
        // What they were given they have from now on, also if their claim does not lead to it any more.
        self.refresh_unresolved(attached, now);
    }

    /// Reports a VolumeAttachment that is not ours, or is no longer there, or not any more.
    pub(super) fn report_foreign(&mut self, name: &AttachmentName) {
        let key = AttachDetachKey::Foreign(name.clone());
        self.outbox.reports.push(match self.actual.foreign(name) {
            Some((volume, node)) => Report {
                from: Some("Unknown"),
                other: volume.map(|volume| ("volume", volume.to_string())),
                ..Report::of(key, AttachDetachReason::Foreign(volume.cloned(), node.clone()))
            },
            None => Report::gone(key),
        });
    }

    /// A detach is forced: when it begins and when it is done, the pods that wait for it, and the node, have an event.
    pub(super) fn report_forced(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        reason: ForceReason,
        forced: Forced,
    ) {
        self.outbox.push(Fact::Forced(NodeVolumeKey::new(volume, node), reason, forced));
        let announcement = match forced {
            Forced::Tainted => return,
            Forced::Begins => Announcement::forced_detach(node, reason),
            Forced::Done => Announcement::forced_detach_done(node, reason),
        };
        let waiting = self.desired.nodes(volume).into_iter().flatten().filter(|(other, _)| *other != node);
        let mut events: Vec<_> =
            waiting.flat_map(|(_, desired)| events::events(&self.objects, desired, &announcement)).collect();
        events.extend(events::node_event(&self.objects, volume, node, &announcement));
        self.outbox.events.extend(events.into_iter().map(EventUpdate::Happened));
    }
}

/// Where a volume on a node stands after the verdict on it.
fn report(volume: &VolumeId, node: &NodeName, verdict: &NodeVerdict, known: Known<'_>) -> Option<Report> {
    let Known { desired, actual, now, .. } = known;
    let node_volume = actual.node_volume(volume, node)?;
    let users = desired.get(volume, node).map_or(0, |desired| desired.pods.len());
    let waiting = verdict.waiting.as_ref();
    let progress = Progress {
        is_migrated: is_migrated(volume, node, known),
        ..Progress::of(node_volume, users, waiting)
    };
    let reason = AttachDetachReason::NodeVolume(AttachState::of(node_volume), waiting.cloned(), progress);
    let attachment = node_volume.attachment();
    Some(Report {
        next: waiting.and_then(|waiting| next_look(actual, node, verdict, waiting, now)),
        attempt: actual.attempt(volume, node),
        revision: attachment.map(|attachment| attachment.metadata.resource_version),
        is_decision: true,
        ..Report::of(AttachDetachKey::NodeVolume(NodeVolumeKey::new(volume, node)), reason)
    })
}

/// When there is another look although nothing happens: for the volume's own sake, or its node's.
fn next_look(
    actual: &ActualState,
    node: &NodeName,
    verdict: &NodeVerdict,
    waiting: &Waiting,
    now: Instant,
) -> Option<Instant> {
    let state = actual.node(node)?;
    let of_node = match waiting {
        Waiting::Publishing | Waiting::DetachWaitingForUnpublish | Waiting::NodeStatusRefused { .. } => {
            state.requests.retry.pending(now)
        }
        Waiting::WriteUndone { .. } => state.requests.undone.pending(now),
        Waiting::DetachWaitingForSettlement => state.requests.in_doubt.map(|patch| patch.until),
        _ => None,
    };
    verdict.wake_at.or(of_node)
}

/// Whether the volume was in-tree before it was translated: an inline one, or one of a PersistentVolume
/// that has no CSI source. KCM: the label `migrated` of volume/util/metrics.go.
fn is_migrated(
    volume: &VolumeId,
    node: &NodeName,
    Known { objects, desired, actual, .. }: Known<'_>,
) -> bool {
    let desired_source = match desired.get(volume, node).and_then(DesiredAttachment::attachable) {
        Some(AttachSource::Inline(_)) => return true,
        Some(AttachSource::PersistentVolume(name)) => Some(name),
        None => None,
    };
    let attachment = actual.node_volume(volume, node).and_then(NodeVolume::attachment);
    let attached = attachment.map(|attachment| &attachment.spec.source);
    if attached.is_some_and(|source| source.inline_volume_spec.is_some()) {
        return true;
    }
    let name = desired_source.or_else(|| attached.and_then(|source| source.persistent_volume_name.as_ref()));
    name.and_then(|name| objects.volumes.get(name)).is_some_and(|found| found.spec.csi.is_none())
}
