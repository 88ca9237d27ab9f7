//! What follows from a verdict: the state, a request, waits for force, and what the [recorder](super::tell::recorder) tells.
//!
//! In: verdicts, each once. Out: all of that, in the [`Effects`](super::controller::Effects) of the turn.

use tokio::time::Instant;

use super::{
    act::calls::{self, AttachmentRequest},
    actual::{
        state::{ForceReason, Mount, NodeVolume},
        unpublishing::Unpublishing,
    },
    controller::Controller,
    decide::{
        scope::Scope,
        verdict::{Step, Verdict},
    },
    desired::volume_name::VolumeId,
    tell::facts::Forced,
};
use crate::kube_api::{call::CallError, ids::NodeName, kinds::Node};

impl Controller {
    /// Carries a verdict out. Returns whether the volume on the node held the volume until now, and does not because of
    /// this verdict alone.
    pub(super) fn apply(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        verdict: &Verdict,
        now: Instant,
    ) -> bool {
        // What its node's status is to say.
        let sent = self.dispatcher.last_sent();
        let node_volume = self.caches.actual.node_volume_mut(volume, node);
        let held = node_volume.may_be_attached();
        let forced = force_off_the_list(node_volume, verdict.forced);
        if node_volume.publish(verdict.report_as_attached, verdict.unpublishes, sent) {
            self.caches.queue.add_node(node.clone());
        }
        if let Some((reason, forced)) = forced {
            self.record_forced(volume, node, reason, forced, now);
        }
        // What it waits for.
        self.caches.queue.add_node_volume_at(verdict.wake_at, volume, node);
        self.force_waits.judged(node, verdict);
        let call = verdict.step.as_ref().and_then(Step::call);
        let has_room = call.is_none_or(|call| self.dispatcher.has_room_for(call));
        let (recorder, known) = self.recording(now);
        let look_at = recorder.waits_for(volume, node, verdict, call.filter(|_| has_room), known);
        self.caches.queue.add_node_volume_at(look_at, volume, node);
        // What is done now. What has no room is judged again when there is room.
        match &verdict.step {
            Some(step) if has_room => self.carry_out(volume, node, step, verdict.forced, now),
            Some(Step::Create(_)) => self.caches.queue.add_new(volume.clone(), Scope::of(node)),
            Some(_) => self.caches.queue.add(volume.clone(), Scope::of(node)),
            None => {}
        }
        held && !self.caches.actual.node_volume_mut(volume, node).may_be_attached()
    }

    fn carry_out(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        step: &Step,
        reason: Option<ForceReason>,
        now: Instant,
    ) {
        let node_volume = self.caches.actual.node_volume_mut(volume, node);
        match step {
            Step::Create(source) => {
                let request = AttachmentRequest::Create(calls::create(volume, node, source));
                self.send(volume, node, request, now);
            }
            Step::Delete(uid, revision, proof) => {
                node_volume.forced = reason;
                let forced = match reason {
                    Some(reason) => Some((reason, Forced::Begins)),
                    // KCM: pkg/controller/volume/attachdetach/reconciler: each detach from a node with
                    // the taint counts as forced, mounted or not.
                    None if self.is_out_of_service(node) => {
                        Some((ForceReason::OutOfService, Forced::Tainted))
                    }
                    None => None,
                };
                if let Some((reason, forced)) = forced {
                    self.record_forced(volume, node, reason, forced, now);
                }
                let request = calls::delete(volume, node, (uid, *revision), proof);
                let request = AttachmentRequest::Delete(uid.clone(), *revision, request);
                self.send(volume, node, request, now);
            }
            Step::ReadAttachment => {
                let name = volume.attachment_name(node);
                self.send(volume, node, AttachmentRequest::Read(name), now);
            }
            Step::ReadNode => {
                // What was proven before is not proof enough.
                if matches!(node_volume.unpublishing, Unpublishing::Proven(_)) {
                    node_volume.unpublishing = Unpublishing::Since(self.dispatcher.last_sent());
                }
                self.caches.queue.add_node(node.clone());
            }
            Step::GiveUp(_) => {
                node_volume.mount = Mount::No;
                self.caches.given_up(volume, node);
            }
        }
    }

    pub(super) fn is_out_of_service(&self, node: &NodeName) -> bool {
        let object = self.caches.actual.node(node).and_then(|state| state.node.as_deref());
        object.is_some_and(Node::is_out_of_service)
    }

    fn record_forced(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        reason: ForceReason,
        forced: Forced,
        now: Instant,
    ) {
        let (recorder, known) = self.recording(now);
        recorder.forced(volume, node, reason, forced, known);
    }

    /// The attachment is gone; if that was forced, it has an event.
    pub(super) fn forced_detach_done(&mut self, volume: &VolumeId, node: &NodeName, now: Instant) {
        if let Some(reason) = self.caches.actual.node_volume_mut(volume, node).forced.take() {
            self.record_forced(volume, node, reason, Forced::Done, now);
        }
    }

    /// Records that a request failed.
    pub(super) fn record_failure(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        error: &CallError,
        now: Instant,
    ) {
        let (recorder, known) = self.recording(now);
        recorder.record_failure(volume, node, error, known);
    }

    /// Forgets what has ended, and with it all that was recorded and measured of it.
    pub(super) fn prune(&mut self, volume: &VolumeId, scope: &Scope) {
        let desired = &self.caches.desired;
        for node in self.caches.actual.prune(volume, scope, |node| desired.get(volume, node).is_some()) {
            self.recorder.forget(volume, &node);
        }
    }
}

/// A volume without attachment is forced off the node's list, or given up. Returns what there is to tell of that.
fn force_off_the_list(
    node_volume: &mut NodeVolume,
    reason: Option<ForceReason>,
) -> Option<(ForceReason, Forced)> {
    if node_volume.known.is_some() {
        return None;
    }
    match (reason, node_volume.forced) {
        (Some(reason), None) => {
            node_volume.forced = Some(reason);
            Some((reason, Forced::Begins))
        }
        (None, Some(done)) if node_volume.mount == Mount::No => {
            node_volume.forced = None;
            Some((done, Forced::Done))
        }
        (None, Some(_)) if node_volume.is_listed() => {
            node_volume.forced = None;
            None
        }
        _ => None,
    }
}
