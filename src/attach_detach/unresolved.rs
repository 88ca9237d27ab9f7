//! Unresolved: which volumes of a pod are not in the desired state, and why (S48). A verdict tells of a volume that is.
//!
//! In: a pod that was looked at. Out: reports, and an event for each such volume once the pod has waited for a while. The look
//! at a pod that runs, or that has what it waited for, ends both.

use std::{sync::Arc, time::Duration};

use apiserver::{
    events::{Event, Involved},
    ids::PodKey,
    kinds::{Pod, PodPhase},
};
use tokio::time::Instant;

use super::{
    announce::{LONG, NOTEWORTHY},
    controller::AttachDetach,
    events::Announcement,
    known::Known,
    reasons::{AttachDetachKey, AttachDetachReason, Report},
    state::{
        actual::{ActualState, NodeVolume},
        desired::{DesiredPod, Unresolved, WhyUnresolved, volume_name::VolumeKind},
    },
};
use crate::controller::report::events::{EventPatience, EventUpdate};

impl AttachDetach {
    /// Reports the volumes of a pod that cannot be attached yet, which were others `before`.
    pub(super) fn report_unresolved(&mut self, pod: &PodKey, before: &[Unresolved], now: Instant) {
        let desired_pod = self.desired.pod(pod);
        let found = desired_pod.map_or(&[][..], |desired_pod| &desired_pod.unresolved);
        let key = |of: &Unresolved| AttachDetachKey::PodVolume(pod.clone(), of.pod_volume.clone());
        let is_gone = |of: &&Unresolved| found.iter().all(|still| still.pod_volume != of.pod_volume);
        for gone in before.iter().filter(is_gone) {
            self.outbox.reports.push(Report::gone(key(gone)));
            self.outbox.events.push(EventUpdate::Forget(key(gone)));
        }
        let known = Known { objects: &self.objects, desired: &self.desired, actual: &self.actual, now };
        for unresolved in found {
            let pod = desired_pod.and_then(|desired_pod| waiting(desired_pod, unresolved, known));
            let reason = AttachDetachReason::Unresolved(unresolved.why.clone(), pod.is_some());
            self.outbox.reports.push(if pod.is_some() || !is_ours(&unresolved.why) {
                Report::of(key(unresolved), reason)
            } else {
                Report::gone(key(unresolved))
            });
            let events = pod.and_then(|pod| event(&pod, unresolved)).into_iter().collect();
            let patience = EventPatience { waits: vec![key(unresolved)], lasts: patience(&unresolved.why) };
            self.outbox.events.push(EventUpdate::Lasting(key(unresolved), "unresolved", events, patience));
        }
    }
}

/// How long the pod waits before it is told.
fn patience(why: &WhyUnresolved) -> Duration {
    // It may be one that needs no attaching.
    if let WhyUnresolved::FlexVolumeUnsupported(_) = why { LONG } else { NOTEWORTHY }
}

/// The pod, if it waits for the volume: unless it runs, and has its volumes, or its node has what it was given.
fn waiting(desired: &DesiredPod, unresolved: &Unresolved, known: Known<'_>) -> Option<Arc<Pod>> {
    let pod = known.objects.pods.get(&desired.pod.key)?;
    let is_waiting = pod.metadata.uid == desired.pod.uid
        && !pod.metadata.is_terminating()
        && pod.status.phase == PodPhase::Pending;
    let is_without =
        is_without(desired, unresolved, known.actual) && !is_attached_for(&pod, desired, unresolved, known);
    (is_waiting && is_without).then_some(pod)
}

/// If not, its kubelet attaches.
fn is_ours(why: &WhyUnresolved) -> bool {
    !matches!(why, WhyUnresolved::NodeNotManaged(_))
}

/// The event that holds of the volume that the pod waits for.
fn event(pod: &Pod, Unresolved { pod_volume, why }: &Unresolved) -> Option<Event> {
    is_ours(why).then(|| Announcement::unresolved(why).event(Involved::object(pod), pod_volume, ""))
}

/// Whether its node has not the volume that the pod was given before. That a list has one whose VolumeAttachment is gone
/// tells a process that starts of no pod that was given it (S47).
fn is_without(desired: &DesiredPod, unresolved: &Unresolved, actual: &ActualState) -> bool {
    let Some((volume, _)) = desired.volume(&unresolved.pod_volume) else { return true };
    let node_volume = actual.node_volume(volume, &desired.node);
    let is_there = |it: &&NodeVolume| volume.kind() == VolumeKind::NoOp || it.attachment().is_some();
    !node_volume.filter(is_there).is_some_and(NodeVolume::is_attached)
}

/// Whether its node has the volume that its claim named, by a VolumeAttachment that is not older than the pod: a process
/// before this one made it for that pod, and the PersistentVolume is gone since (S47).
fn is_attached_for(pod: &Pod, desired: &DesiredPod, unresolved: &Unresolved, known: Known<'_>) -> bool {
    let WhyUnresolved::ClaimNotBound(claim) = &unresolved.why else { return false };
    let Some(claim) = known.objects.claims.get(claim) else { return false };
    let created = pod.metadata.creation_timestamp;
    known.actual.attachments_of(&claim.spec.volume_name).any(|name| {
        known.objects.attachments.get(&name).is_some_and(|attachment| {
            let is_older = attachment.metadata.creation_timestamp.is_some_and(|made| Some(made) < created);
            let is_there = attachment.status.attached && !attachment.metadata.is_terminating();
            attachment.spec.node_name == desired.node && is_there && !is_older
        })
    })
}
