//! The controller's voice: what users and operators are told of a pair, when, and how often.
//!
//! In: the verdicts of a volume, and how long each has stood. Out: events, log lines, the standing of every pair.
//! Something is told when it begins or changes, again before its event expires while it lasts, and when it
//! ends.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    events::{self, Announcement},
    metrics::{Ending, Planned},
    phases::{Journey, Look, Phase, is_ours},
    standing::{PairWait, State},
    traces::Progress,
    transitions::{Stood, named, named_pod},
};
use crate::{
    attach_detach::{
        actual::state::{Operation, PairCall, Publication, Told, Topic},
        controller::{Controller, Dirty},
        decide::{
            csi::{self, Step, Verdict, Waiting},
            force::ForceReason,
            scope::Scope,
        },
        desired::{
            state::{AttachSource, PodWishes, Wish},
            volume_name::{VolumeId, VolumeKind},
        },
    },
    controller::event_dedup::Recorded,
    diagnostics::Reason,
    kube_api::{
        events::Event,
        ids::{AttachmentName, NodeName, PodKey},
        kinds::{Narrow, Pod, VolumeAttachment},
    },
    telemetry::transition::Named,
};

/// How long the driver may take before users are told that it takes long.
///
/// KCM: pkg/volume/csi/csi_attacher.go, the timeout of waitForVolumeAttachment (two minutes).
const LONG: Duration = Duration::from_mins(2);

/// After this long a lost event is written again: the queue that had no room has some by then.
const TELL_AGAIN: Duration = Duration::from_secs(30);

/// A wait for another node that is over sooner is told of in KCM's words only.
const NOTEWORTHY: Duration = Duration::from_secs(10);

/// What there is to know of all nodes of a volume when each is told of.
pub(in crate::attach_detach) struct Others<'a> {
    /// What was decided on each.
    pub(in crate::attach_detach) verdicts: &'a BTreeMap<NodeName, Verdict>,
    /// Nodes that hold the volume, if that is known.
    pub(in crate::attach_detach) holders: Option<BTreeSet<NodeName>>,
}

impl Others<'_> {
    fn holders_beside(&self, node: &NodeName) -> impl Iterator<Item = &NodeName> {
        self.holders.iter().flatten().filter(move |holder| *holder != node)
    }
}

impl Controller {
    /// A detach is about to be forced: counted, logged, told to those who wait for it and on the node.
    pub(in crate::attach_detach) fn force(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        reason: ForceReason,
    ) {
        self.metrics.forced(reason);
        let Named { object, .. } = named(volume, node);
        tracing::warn!(object, reason = "ForcedDetach", because = reason.label(), %volume, %node, "forcing the detach of a volume that may be in use");
        self.tell_others(volume, node, &Announcement::ForcedDetach(node.clone(), reason));
    }

    /// The same for a volume without attachments, which is forced off the node's list, or given up.
    pub(in crate::attach_detach) fn force_off_the_list(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        reason: Option<ForceReason>,
    ) {
        let pair = self.actual.pair_mut(volume, node);
        match (reason, pair.forced) {
            (Some(reason), None) => {
                pair.forced = Some(reason);
                self.force(volume, node, reason);
            }
            (None, Some(_)) if !pair.held => self.tell_of_forced_detach(volume, node),
            (None, Some(_)) if pair.listed => pair.forced = None,
            _ => {}
        }
    }

    /// The attachment is gone; if that was forced, it is told.
    pub(in crate::attach_detach) fn tell_of_forced_detach(&mut self, volume: &VolumeId, node: &NodeName) {
        if let Some(reason) = self.actual.pair_mut(volume, node).forced.take() {
            let Named { object, .. } = named(volume, node);
            tracing::warn!(object, reason = "ForcedDetach", because = reason.label(), %volume, %node, "the forced detach is done");
            self.tell_others(volume, node, &Announcement::ForcedDetachDone(node.clone(), reason));
        }
    }

    fn tell_others(&mut self, volume: &VolumeId, node: &NodeName, announcement: &Announcement) {
        let waiting = self.desired.nodes(volume).into_iter().flatten().filter(|(other, _)| *other != node);
        for (_, wish) in waiting {
            self.effects.events.extend(events::events(&self.objects, wish, announcement));
        }
        self.effects.events.extend(events::node_event(&self.objects, volume, node, announcement));
    }

    /// An event was lost: what it said of a pod's volumes is told again, a little later, if it still holds.
    pub fn not_told(&mut self, lost: &Event, now: Instant) {
        let pod = PodKey::new(&lost.involved.namespace, &lost.involved.name);
        let wishes = self.desired.pod(&pod).filter(|_| lost.involved.kind == Pod::KIND);
        let pairs: Vec<_> = wishes
            .iter()
            .flat_map(|wishes| wishes.volumes.keys().map(|volume| (volume.clone(), wishes.node.clone())))
            .collect();
        for (volume, node) in pairs {
            if self.actual.pair(&volume, &node).is_none() {
                continue;
            }
            let pair = self.actual.pair_mut(&volume, &node);
            if lost.reason == events::ATTACHED {
                pair.told.attached = false;
            } else {
                pair.told.said.clear();
            }
            self.wake_at.insert((now + TELL_AGAIN, Dirty::Pair(volume, node)));
        }
    }

    /// Tells the pods that want the volume here what changed for them.
    pub(in crate::attach_detach) fn tell(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        verdict: &Verdict,
        others: &Others<'_>,
        now: Instant,
    ) {
        if self.desired.wish(volume, node).is_none() {
            match verdict.waiting.as_ref().and_then(failure) {
                // No pod is there to be told: the node is.
                Some(message) => {
                    let announcement = Announcement::DetachFailed(node.clone(), message.to_string());
                    self.say_once(volume, node, Topic::Failure, &announcement, now);
                }
                // Between two tries it is the same failure.
                None if self.actual.pair_mut(volume, node).retry.failures() > 0 => {}
                None => {
                    // A pod that takes the place of another finds it attached, and is not told again.
                    let pair = self.actual.pair_mut(volume, node);
                    pair.told = Told { attached: pair.told.attached && pair.holds(), ..Told::default() };
                }
            }
            return;
        }
        let told = &mut self.actual.pair_mut(volume, node).told;
        if verdict.publication == Publication::List && !told.attached {
            told.attached = true;
            told.said.remove(&Topic::Failure);
            self.say(volume, node, &Announcement::Attached);
        } else if let Some(Waiting::WaitingForAttacher | Waiting::WaitingForDeletion) = verdict.waiting {
            told.attached = false;
        }
        match &verdict.waiting {
            Some(Waiting::AttachError { message, .. }) => {
                self.say_once(volume, node, Topic::Failure, &Announcement::Failed(message.clone()), now);
            }
            Some(Waiting::ForeignAttachment { name }) => {
                let message = events::name_taken(name);
                self.say_once(volume, node, Topic::Failure, &Announcement::Failed(message), now);
            }
            Some(Waiting::WaitingForAttacher) if self.lasts(volume, node, LONG, now) => {
                let message = events::timed_out(volume, "attach");
                self.say_once(volume, node, Topic::Failure, &Announcement::Failed(message), now);
            }
            Some(Waiting::WaitingForDeletion) => {
                let attachment = self.actual.pair(volume, node).and_then(|pair| pair.attachment.as_deref());
                let error = attachment.and_then(csi::detach_error);
                let message = events::being_deleted(error.map(|error| &*error.message));
                if error.is_some() || self.lasts(volume, node, LONG, now) {
                    self.say_once(volume, node, Topic::Failure, &Announcement::Failed(message), now);
                }
            }
            Some(Waiting::NodeStatusRefused { message }) => {
                let announcement = Announcement::NotPublished(node.clone(), message.to_string());
                self.say_once(volume, node, Topic::Failure, &announcement, now);
            }
            Some(Waiting::HeldByNode { rival }) if rival.holds => {
                self.tell_who_holds(volume, node, &rival.node, others, now);
                return;
            }
            _ => {}
        }
        self.tell_that_it_is_free(volume, node, others, now);
    }

    fn tell_who_holds(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        holder: &NodeName,
        others: &Others<'_>,
        now: Instant,
    ) {
        self.actual.pair_mut(volume, node).told.held_since.get_or_insert(now);
        let wishes = others.holders_beside(node).filter_map(|other| self.desired.wish(volume, other));
        let users = wishes.flat_map(|wish| wish.pods.values()).map(|(pod, _)| pod.key.clone()).collect();
        self.say_once(volume, node, Topic::MultiAttach, &Announcement::HeldElsewhere(users), now);
        let waiting = others.verdicts.get(holder).and_then(|verdict| verdict.waiting.as_ref());
        let patience = match waiting {
            // The driver's time, not ours.
            Some(Waiting::DetachWaitingForAttacher | Waiting::WaitingForDeletion) => LONG,
            _ => NOTEWORTHY,
        };
        let began = self.standing.since(volume, holder);
        let Some(since) = began.or_else(|| self.standing.since(volume, node)) else { return };
        if !self.lasts_since(since, volume, node, patience, now) {
            return;
        }
        let (holder, since) = (holder.clone(), self.clock.wall(since));
        let announcement = match waiting {
            Some(Waiting::DetachWaitingForAttacher) => Announcement::DetachTimedOut(volume.clone(), holder),
            waiting => {
                let foreign = self.actual.volume(volume).into_iter().flat_map(|state| &state.foreign);
                let foreign =
                    foreign.filter(|(_, node)| **node == holder).map(|(name, _)| name.clone()).next();
                Announcement::Holder { node: holder, waiting: waiting.cloned(), foreign, since }
            }
        };
        self.say_once(volume, node, Topic::Holder, &announcement, now);
    }

    /// Nodes that hold the volume, sought once for all that wait for it. Of one that is shared nobody asks.
    pub(in crate::attach_detach) fn holders(
        &self,
        volume: &VolumeId,
        scope: &Scope,
        is_exclusive: bool,
    ) -> Option<BTreeSet<NodeName>> {
        let state = self.actual.volume(volume).filter(|_| is_exclusive || *scope == Scope::All)?;
        if state.pairs.len() + state.foreign.len() == 1 {
            // Nobody is beside it.
            return Some(BTreeSet::new());
        }
        self.metrics.planned_many(Planned::Holder, state.pairs.len());
        let ours = state.pairs.iter().filter(|(_, pair)| pair.holds()).map(|(node, _)| node);
        Some(ours.chain(state.foreign.values()).cloned().collect())
    }

    fn tell_that_it_is_free(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        others: &Others<'_>,
        now: Instant,
    ) {
        let told = &mut self.actual.pair_mut(volume, node).told;
        let Some(since) = told.held_since.take() else { return };
        told.said.remove(&Topic::MultiAttach);
        told.said.remove(&Topic::Holder);
        // If not, somebody else attached it here, too.
        if others.holders.is_some() && others.holders_beside(node).next().is_none() {
            self.say(volume, node, &Announcement::Freed(now.saturating_duration_since(since).as_secs()));
        }
    }

    /// Whether the pair has waited for what it waits for that long; if not, it is looked at again then.
    fn lasts(&mut self, volume: &VolumeId, node: &NodeName, long: Duration, now: Instant) -> bool {
        let Some(since) = self.standing.since(volume, node) else { return false };
        self.lasts_since(since, volume, node, long, now)
    }

    /// The same of what began then, wherever.
    fn lasts_since(
        &mut self,
        since: Instant,
        volume: &VolumeId,
        node: &NodeName,
        long: Duration,
        now: Instant,
    ) -> bool {
        let at = since + long;
        if at <= now {
            return true;
        }
        self.wake_at.insert((at, Dirty::Pair(volume.clone(), node.clone())));
        false
    }

    /// Says something unless it was said of late, and sees to it that it is said again in time.
    pub(in crate::attach_detach) fn say_once(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        topic: Topic,
        announcement: &Announcement,
        now: Instant,
    ) {
        let said = &mut self.actual.pair_mut(volume, node).told.said;
        let again_at = match said.get(&topic) {
            Some(before) if before.holds(announcement, now) => before.repeat_at(),
            _ => {
                let recorded = Recorded::new(announcement.clone(), now);
                let again_at = recorded.repeat_at();
                said.insert(topic, recorded);
                self.say(volume, node, announcement);
                again_at
            }
        };
        self.wake_at.insert((again_at, Dirty::Pair(volume.clone(), node.clone())));
    }

    fn say(&mut self, volume: &VolumeId, node: &NodeName, announcement: &Announcement) {
        match (self.desired.wish(volume, node), announcement) {
            (Some(wish), _) => {
                self.effects.events.extend(events::events(&self.objects, wish, announcement));
            }
            (None, Announcement::DetachFailed(..)) => {
                let event = events::node_event(&self.objects, volume, node, announcement);
                self.effects.events.extend(event);
            }
            (None, _) => {}
        }
    }

    /// Counts what was decided of the pair.
    pub(in crate::attach_detach) fn count_decision(
        &self,
        volume: &VolumeId,
        node: &NodeName,
        verdict: &Verdict,
    ) {
        let state = || self.actual.pair(volume, node).map(State::of).unwrap_or_default().code();
        self.metrics.decided(verdict.waiting.as_ref().map_or_else(state, Waiting::code));
    }

    /// Measures how far the pair has come on its way.
    pub(in crate::attach_detach) fn time(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        verdict: &Verdict,
        now: Instant,
    ) {
        if volume.kind() == VolumeKind::NoOp {
            return;
        }
        let wanted = self.desired.wish(volume, node).is_some();
        let operation = if wanted { Operation::Attach } else { Operation::Detach };
        let pair = self.actual.pair_mut(volume, node);
        let phase = Phase::of(pair, wanted, verdict.withdraws);
        let was_under_way = pair.journey.as_ref().is_some_and(|journey| journey.is_of(operation));
        let ours = is_ours(phase, verdict.waiting.as_ref());
        let look = Look { operation, phase, ours, forced: pair.forced.is_some() };
        let (journey, laps) = Journey::proceed(pair.journey.take(), look, now);
        let is_under_way = journey.is_some();
        pair.journey = journey;
        let trace = self.follow(volume, node, Progress { look, was_under_way, is_under_way }, now);
        self.effects.laps.extend(laps.into_iter().map(|lap| (volume.clone(), lap, trace)));
    }

    /// Whether the volume was in-tree before it was translated: an inline one, or one of a PersistentVolume
    /// that has no CSI source. KCM: the label `migrated` of volume/util/metrics.go.
    pub(in crate::attach_detach) fn is_migrated(&self, volume: &VolumeId, node: &NodeName) -> bool {
        let wished = match self.desired.wish(volume, node).and_then(Wish::attachable) {
            Some(AttachSource::Inline(_)) => return true,
            Some(AttachSource::PersistentVolume(name)) => Some(name),
            None => None,
        };
        let attachment = self.actual.pair(volume, node).and_then(|pair| pair.attachment.as_deref());
        let attached = attachment.map(|attachment| &attachment.spec.source);
        if attached.is_some_and(|source| source.inline_volume_spec.is_some()) {
            return true;
        }
        let name = wished.or_else(|| attached.and_then(|source| source.persistent_volume_name.as_ref()));
        name.and_then(|name| self.objects.volumes.get(name)).is_some_and(|found| found.spec.csi.is_none())
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
        let Some((_, mut began)) = self.actual.pair_mut(volume, node).operation else { return };
        if now >= began + LONG {
            self.operation_ended(volume, node, operation, Ending::Failure, now);
            began = now;
        }
        self.wake_at.insert((began + LONG, Dirty::Pair(volume.clone(), node.clone())));
    }

    /// Keeps where a VolumeAttachment that is not ours can be looked up, and counts it.
    pub(in crate::attach_detach) fn note_foreign(&self, name: &AttachmentName, now: Instant) {
        let foreign = self.actual.foreign(name);
        let (volume, node) = foreign.unzip();
        let volume = volume.flatten();
        match self.standing.set_foreign(name, volume, node, now) {
            0 => {}
            change => {
                self.metrics.foreign_attachments(change);
                let node = node.map(NodeName::as_str);
                let Named { object, .. } = Named::in_cluster(VolumeAttachment::KIND, name.as_str());
                let volume = volume.map(VolumeId::as_str);
                let (from, to) = if change > 0 { ("", "Foreign") } else { ("Foreign", "") };
                tracing::info!(
                    object,
                    reason = "ForeignAttachment",
                    from,
                    to,
                    volume,
                    node,
                    "attachment of somebody else"
                );
            }
        }
    }

    /// Keeps which volumes of a pod cannot be wanted yet where it can be looked up and counted; logs and counts
    /// what is new of it.
    pub(in crate::attach_detach) fn note_unresolved(
        &self,
        pod: &PodKey,
        before: Option<&PodWishes>,
        wishes: Option<&PodWishes>,
        now: Instant,
    ) {
        let known = before.map_or(&[][..], |before| &before.unresolved);
        let found = wishes.map_or(&[][..], |wishes| &wishes.unresolved);
        if known != found {
            self.standing.set_unresolved(pod, known, found, now);
        }
        for unresolved in wishes.iter().flat_map(|wishes| wishes.newly_unresolved(before)) {
            let reason = unresolved.why.code();
            self.metrics.unresolved(reason);
            let volume = &unresolved.pod_volume;
            if unresolved.why.is_permanent() {
                let Named { object, namespace } = named_pod(pod);
                tracing::warn!(object, namespace, reason, volume, "volume of a pod cannot be attached");
            } else {
                let Named { object, namespace } = named_pod(pod);
                tracing::debug!(object, namespace, reason, volume, "volume of a pod not attachable yet");
            }
        }
    }

    /// When the pair is looked at again although nothing happens: for its own sake, or its node's.
    fn next_look(
        &self,
        node: &NodeName,
        verdict: &Verdict,
        waiting: &Waiting,
        now: Instant,
    ) -> Option<Instant> {
        let state = self.actual.node(node)?;
        let of_node = match waiting {
            Waiting::Publishing | Waiting::DetachWaitingForUnpublish | Waiting::NodeStatusRefused { .. } => {
                state.retry.pending(now)
            }
            Waiting::DetachWaitingForSettlement => state.unsettled.map(|unsettled| unsettled.until),
            _ => None,
        };
        verdict.wake_at.or(of_node)
    }

    /// Keeps what the pair waits for where it can be looked up, counted and logged.
    pub(in crate::attach_detach) fn note_waiting(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        verdict: &Verdict,
        now: Instant,
    ) {
        let sent = verdict.step.as_ref().and_then(Step::call).filter(|call| self.room.has(*call));
        let state = match sent {
            // As it is in a moment.
            Some(PairCall::Create) => State::Attaching,
            Some(PairCall::Delete) => State::Detaching,
            Some(PairCall::Read) | None => self.actual.pair(volume, node).map(State::of).unwrap_or_default(),
        };
        let settled = if verdict.waiting.is_none() { state } else { State::default() };
        let rest = self.standing.settle(volume, node, settled, now);
        let wait = verdict.waiting.as_ref().map(|waiting| {
            (PairWait { state, waiting: waiting.clone() }, self.next_look(node, verdict, waiting, now))
        });
        let before = self.standing.set(volume, node, wait, now);
        let waiting = verdict.waiting.as_ref();
        let waited = before.as_ref().map(|before| &before.reason.waiting);
        self.count_failure(volume, node, waited, waiting, now);
        let (from, to) = (waited.map(Waiting::code), waiting.map(Waiting::code));
        if from != to
            && let Some(to) = to.filter(|to| Waiting::GUARDS.contains(to))
        {
            self.metrics.refused(to);
        }
        let before = match &before {
            Some(wait) => {
                Stood { state: wait.reason.state, reason: wait.reason.code(), since: Some(wait.since) }
            }
            None => Stood::at_rest(rest),
        };
        self.log_change(volume, node, before, (state, to.unwrap_or(state.code())), now);
    }
}

/// What was said of a request for the end of an attachment that failed.
fn failure(waiting: &Waiting) -> Option<&str> {
    match waiting {
        Waiting::RetryBackoff { message } => message.as_deref(),
        Waiting::NodeStatusRefused { message } => Some(message),
        _ => None,
    }
}
