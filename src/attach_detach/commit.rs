//! What follows from a verdict: the state, a request, timers, events and reports.
//!
//! In: verdicts, each once. Out: all of that, in the [`Effects`](super::controller::Effects) of the turn.

use std::collections::BTreeSet;

use tokio::time::Instant;

use super::{
    act::calls::{self, AttachmentRequest},
    actual::{
        state::{ActualState, AttachmentCall, Operation, ReportAsAttached},
        unpublishing::Unpublishing,
    },
    controller::{Controller, Dirty},
    decide::{
        csi::{Step, Verdict, Waiting},
        force::{ForceReason, Unforced},
        scope::Scope,
    },
    desired::{
        state::{AttachSource, DesiredAttachment},
        volume_name::{VolumeId, VolumeKind},
    },
    guard::force_timers::{Failure, Wait, WaitKey},
    tell::{
        announcer::{AFTER_LOSS, Known, LONG, News, Others, Topic},
        diagnostics::State,
        events::{self, Announcement},
        metrics::{Ending, Planned},
        phases::{Look, Phase, is_ours},
        report::{Forced, Judged, Line, Report},
    },
};
use crate::kube_api::{call::CallError, events::Event, ids::NodeName, kinds::Node};

impl Controller {
    /// Returns whether the volume on the node held the volume until now, and does not because of this verdict alone.
    pub(super) fn apply(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        verdict: &Verdict,
        now: Instant,
    ) -> bool {
        let sent = self.last_sent;
        let node_volume = self.actual.node_volume_mut(volume, node);
        let held = node_volume.may_be_attached();
        node_volume.publish(verdict.report_as_attached, verdict.unpublishes);
        if !verdict.unpublishes {
            node_volume.unpublishing = Unpublishing::None;
        } else if node_volume.unpublishing == Unpublishing::None {
            node_volume.unpublishing = Unpublishing::Since(sent);
        }
        let stale_list = match verdict.report_as_attached {
            ReportAsAttached::Unchanged => false,
            ReportAsAttached::Yes => !node_volume.is_listed(),
            ReportAsAttached::No => node_volume.is_listed(),
        };
        if stale_list {
            self.dirty_nodes.push(node.clone());
        }
        if let Some(at) = verdict.wake_at {
            self.wake_at.insert((at, Dirty::NodeVolume(volume.clone(), node.clone())));
        }
        if self.actual.node_volume_mut(volume, node).known.is_none() {
            self.force_off_the_list(volume, node, verdict.forced);
        }
        self.remember_wait(volume, node, verdict);
        self.report_verdict(volume, node, verdict, now);
        let has_room =
            verdict.step.as_ref().and_then(Step::call).is_none_or(|call| self.in_flight.has_room_for(call));
        match verdict.step.as_ref().filter(|_| has_room) {
            None => {}
            Some(Step::Create(source)) => {
                let request = AttachmentRequest::Create(calls::create(volume, node, source));
                self.send(volume, node, request, now);
            }
            Some(Step::Delete(uid, proof)) => {
                self.actual.node_volume_mut(volume, node).forced = verdict.forced;
                match verdict.forced {
                    Some(reason) => self.force(volume, node, reason),
                    // KCM: pkg/controller/volume/attachdetach/reconciler: each detach from a node with
                    // the taint counts as forced, mounted or not.
                    None if self.is_out_of_service(node) => {
                        self.report_forced(volume, node, ForceReason::OutOfService, Forced::Tainted);
                    }
                    None => {}
                }
                let request = AttachmentRequest::Delete(uid.clone(), calls::delete(volume, node, uid, proof));
                self.send(volume, node, request, now);
            }
            Some(Step::ReadAttachment) => {
                let name = volume.attachment_name(node);
                self.send(volume, node, AttachmentRequest::Read(name), now);
            }
            Some(Step::ReadNode) => {
                // What was proven before is not proof enough.
                let node_volume = self.actual.node_volume_mut(volume, node);
                if matches!(node_volume.unpublishing, Unpublishing::Proven(_)) {
                    node_volume.unpublishing = Unpublishing::Since(sent);
                }
                self.dirty_nodes.push(node.clone());
            }
            Some(Step::GiveUp(_)) => self.actual.node_volume_mut(volume, node).may_be_mounted = false,
        }
        held && !self.actual.node_volume_mut(volume, node).may_be_attached()
    }

    pub(super) fn is_out_of_service(&self, node: &NodeName) -> bool {
        let object = self.actual.node(node).and_then(|state| state.node.as_deref());
        object.is_some_and(Node::is_out_of_service)
    }

    /// Keeps how long a wait has lasted that force may end, for the process that comes after us.
    fn remember_wait(&mut self, volume: &VolumeId, node: &NodeName, verdict: &Verdict) {
        let Some(node_volume) = self.actual.node_volume(volume, node) else { return };
        let attachment = node_volume.attachment();
        let is_over = attachment.is_some_and(|attachment| attachment.metadata.is_terminating());
        let is_over =
            is_over || matches!(verdict.step, Some(Step::GiveUp(_))) || !node_volume.may_be_attached();
        match (node_volume.undesired_since(), &verdict.waiting) {
            (
                Some(since),
                Some(
                    Waiting::DetachWaitingForUnmount { unforced: Unforced::Until(_) }
                    | Waiting::DetachWaitingForNode { unforced: Unforced::Until(_) },
                ),
            ) => {
                let state = self.actual.node(node);
                let unready_since = state.and_then(|state| state.unready_since);
                let wait = Wait {
                    since: unready_since.map_or(since, |unready_since| unready_since.max(since)),
                    failure: state.and_then(|state| state.node.as_deref()).and_then(Failure::of),
                    attachment: node_volume.uid().cloned(),
                };
                self.force_timers.note(WaitKey::new(volume, node), wait);
            }
            (Some(_), _) if !is_over => {}
            _ => self.force_timers.forget(volume, node),
        }
    }

    fn report_forced(&mut self, volume: &VolumeId, node: &NodeName, reason: ForceReason, forced: Forced) {
        self.effects.reports.push(Report::Forced(volume.clone(), node.clone(), reason, forced));
    }

    /// A detach is about to be forced: the pods that wait for it, and the node, have an event.
    fn force(&mut self, volume: &VolumeId, node: &NodeName, reason: ForceReason) {
        self.report_forced(volume, node, reason, Forced::Begins);
        self.record_forced(volume, node, &Announcement::ForcedDetach(node.clone(), reason));
    }

    /// The same for a volume without attachments, which is forced off the node's list, or given up.
    fn force_off_the_list(&mut self, volume: &VolumeId, node: &NodeName, reason: Option<ForceReason>) {
        let node_volume = self.actual.node_volume_mut(volume, node);
        match (reason, node_volume.forced) {
            (Some(reason), None) => {
                node_volume.forced = Some(reason);
                self.force(volume, node, reason);
            }
            (None, Some(_)) if !node_volume.may_be_mounted => self.forced_detach_done(volume, node),
            (None, Some(_)) if node_volume.is_listed() => node_volume.forced = None,
            _ => {}
        }
    }

    /// The attachment is gone; if that was forced, it has an event.
    pub(super) fn forced_detach_done(&mut self, volume: &VolumeId, node: &NodeName) {
        if let Some(reason) = self.actual.node_volume_mut(volume, node).forced.take() {
            self.report_forced(volume, node, reason, Forced::Done);
            self.record_forced(volume, node, &Announcement::ForcedDetachDone(node.clone(), reason));
        }
    }

    fn record_forced(&mut self, volume: &VolumeId, node: &NodeName, announcement: &Announcement) {
        let waiting = self.desired.nodes(volume).into_iter().flatten().filter(|(other, _)| *other != node);
        for (_, desired) in waiting {
            self.effects.events.extend(events::events(&self.objects, desired, announcement));
        }
        self.effects.events.extend(events::node_event(&self.objects, volume, node, announcement));
    }

    /// An event was lost: it is recorded again, a little later, if what it said still holds.
    pub fn not_told(&mut self, lost: &Event, now: Instant) {
        for (volume, node) in self.announcer.lost(lost, &self.desired, &self.actual) {
            self.wake_at.insert((now + AFTER_LOSS, Dirty::NodeVolume(volume, node)));
        }
    }

    /// Records the events of a verdict.
    pub(super) fn record_verdict(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        verdict: &Verdict,
        others: &Others<'_>,
        now: Instant,
    ) {
        let Self { objects, desired, actual, waits, clock, announcer, .. } = self;
        let known = Known { objects, desired, actual, waits, clock, now };
        let news = announcer.judged(volume, node, verdict, others, known);
        self.take_news(volume, node, news);
    }

    /// Records that a request failed.
    pub(super) fn record_failure(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        error: &CallError,
        now: Instant,
    ) {
        let failure = Announcement::Failed(events::refused(error));
        let Self { objects, desired, actual, waits, clock, announcer, .. } = self;
        let known = Known { objects, desired, actual, waits, clock, now };
        let news = announcer.record_once(volume, node, Topic::Failure, &failure, known);
        self.take_news(volume, node, news);
    }

    fn take_news(&mut self, volume: &VolumeId, node: &NodeName, News { events, look_at }: News) {
        self.effects.events.extend(events);
        for at in look_at {
            self.wake_at.insert((at, Dirty::NodeVolume(volume.clone(), node.clone())));
        }
    }

    /// Nodes that hold the volume, sought once for all that wait for it; of one that is shared, none is asked for.
    pub(super) fn holders(
        &mut self,
        volume: &VolumeId,
        scope: &Scope,
        is_exclusive: bool,
    ) -> Option<BTreeSet<NodeName>> {
        let state = self.actual.volume(volume).filter(|_| is_exclusive || *scope == Scope::All)?;
        if state.nodes.len() + state.foreign.len() == 1 {
            // There is no other beside it.
            return Some(BTreeSet::new());
        }
        self.effects.reports.planned_many(Planned::Holder, state.nodes.len());
        let ours =
            state.nodes.iter().filter(|(_, node_volume)| node_volume.may_be_attached()).map(|(node, _)| node);
        Some(ours.chain(state.foreign.values()).cloned().collect())
    }

    /// Reports for which reason it was decided so.
    pub(super) fn report_decision(&mut self, volume: &VolumeId, node: &NodeName, verdict: &Verdict) {
        let state = || self.actual.node_volume(volume, node).map(State::of).unwrap_or_default().code();
        let reason = verdict.waiting.as_ref().map_or_else(state, Waiting::code);
        self.effects.reports.push(Report::Decided(reason));
    }

    /// Reports what is waited for, and counts operations that fail or take long.
    fn report_verdict(&mut self, volume: &VolumeId, node: &NodeName, verdict: &Verdict, now: Instant) {
        let sent =
            verdict.step.as_ref().and_then(Step::call).filter(|call| self.in_flight.has_room_for(*call));
        let node_volume = self.actual.node_volume(volume, node);
        let state = match sent {
            // As it is in a moment.
            Some(AttachmentCall::Create) => State::Attaching,
            Some(AttachmentCall::Delete) => State::Detaching,
            Some(AttachmentCall::Read) | None => node_volume.map(State::of).unwrap_or_default(),
        };
        let attachment = node_volume.and_then(|node_volume| node_volume.attachment());
        let waiting = verdict.waiting.clone();
        let judged = Judged {
            state,
            next: waiting.as_ref().and_then(|waiting| next_look(&self.actual, node, verdict, waiting, now)),
            waiting,
            attempt: self.actual.attempt(volume, node),
            revision: attachment.map(|attachment| attachment.metadata.resource_version),
        };
        let before = self.waits.judged(volume, node, judged.waiting.as_ref(), now);
        self.count_failure(volume, node, before.as_ref(), judged.waiting.as_ref(), now);
        self.effects.reports.push(Report::Judged(volume.clone(), node.clone(), judged));
    }

    /// Reports how far the volume on the node has come on its way.
    pub(super) fn report_progress(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        verdict: &Verdict,
        now: Instant,
    ) {
        if volume.kind() == VolumeKind::NoOp {
            return;
        }
        let Some(node_volume) = self.actual.node_volume(volume, node) else { return };
        let wanted = self.desired.get(volume, node).is_some();
        let operation = if wanted { Operation::Attach } else { Operation::Detach };
        let phase = Phase::of(node_volume, wanted, verdict.unpublishes);
        let ours = is_ours(phase, verdict.waiting.as_ref());
        let look = Look { operation, phase, ours, forced: node_volume.forced.is_some() };
        let progress = self.phases.judged(volume, node, look, now);
        let attempt = self.actual.attempt(volume, node);
        self.effects.reports.push(Report::Progress(volume.clone(), node.clone(), progress, attempt));
    }

    /// Measures an operation, if it is the one in progress.
    pub(super) fn operation_ended(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        operation: Operation,
        ending: Ending,
        now: Instant,
    ) {
        if let Some(ended) = self.phases.ended(volume, node, operation, ending, now) {
            self.effects.reports.push(Report::Ended(volume.clone(), ended));
        }
    }

    /// An operation has failed when the driver says so, each time it does; and when it has said nothing for as
    /// long as KCM waits for it, as often as that passes.
    fn count_failure(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        before: Option<&Waiting>,
        waiting: Option<&Waiting>,
        now: Instant,
    ) {
        let (operation, said) = match waiting {
            Some(Waiting::AttachError { .. }) => (Operation::Attach, true),
            Some(Waiting::DetachError { .. }) => (Operation::Detach, true),
            Some(Waiting::WaitingForAttacher) => (Operation::Attach, false),
            Some(Waiting::DetachWaitingForAttacher) => (Operation::Detach, false),
            _ => return,
        };
        if said {
            if before != waiting {
                self.operation_ended(volume, node, operation, Ending::Failure, now);
            }
            return;
        }
        let Some(mut began) = self.phases.running_since(volume, node) else { return };
        if now >= began + LONG {
            self.operation_ended(volume, node, operation, Ending::Failure, now);
            began = now;
        }
        self.wake_at.insert((began + LONG, Dirty::NodeVolume(volume.clone(), node.clone())));
    }

    /// Reports that a request failed.
    pub(super) fn report_failure(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        error: &CallError,
        what: &'static str,
    ) {
        let attempt = self.actual.attempt(volume, node);
        let (volume, node) = (volume.clone(), node.clone());
        self.effects.reports.line(Line::Failed { volume, node, attempt, error: error.clone(), what });
    }

    /// Forgets what has ended, and with it all that was recorded and measured of it.
    pub(super) fn prune(&mut self, volume: &VolumeId, scope: &Scope) {
        let desired = &self.desired;
        for node in self.actual.prune(volume, scope, |node| desired.get(volume, node).is_some()) {
            self.announcer.forget(volume, &node);
            self.phases.forget(volume, &node);
        }
    }

    /// Whether the volume was in-tree before it was translated: an inline one, or one of a PersistentVolume
    /// that has no CSI source. KCM: the label `migrated` of volume/util/metrics.go.
    pub(super) fn is_migrated(&self, volume: &VolumeId, node: &NodeName) -> bool {
        let desired_source = match self.desired.get(volume, node).and_then(DesiredAttachment::attachable) {
            Some(AttachSource::Inline(_)) => return true,
            Some(AttachSource::PersistentVolume(name)) => Some(name),
            None => None,
        };
        let attachment =
            self.actual.node_volume(volume, node).and_then(|node_volume| node_volume.attachment());
        let attached = attachment.map(|attachment| &attachment.spec.source);
        if attached.is_some_and(|source| source.inline_volume_spec.is_some()) {
            return true;
        }
        let name =
            desired_source.or_else(|| attached.and_then(|source| source.persistent_volume_name.as_ref()));
        name.and_then(|name| self.objects.volumes.get(name)).is_some_and(|found| found.spec.csi.is_none())
    }
}

/// When there is another look although nothing happens: for the volume's own sake, or its node's.
fn next_look(
    actual: &ActualState,
    node: &NodeName,
    verdict: &Verdict,
    waiting: &Waiting,
    now: Instant,
) -> Option<Instant> {
    let state = actual.node(node)?;
    let of_node = match waiting {
        Waiting::Publishing | Waiting::DetachWaitingForUnpublish | Waiting::NodeStatusRefused { .. } => {
            state.retry.pending(now)
        }
        Waiting::DetachWaitingForSettlement => state.unsettled.map(|patch| patch.until),
        _ => None,
    };
    verdict.wake_at.or(of_node)
}
