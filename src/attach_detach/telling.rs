//! The controller's voice: what users and operators are told of a pair, when, and how often.
//!
//! In: the verdicts of a volume, and how long each has stood. Out: events, log lines, the standing of every pair.
//! Something is told when it begins or changes, again before its event expires while it lasts, and when it
//! ends.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

use super::{
    actual_state::{Operation, Publication, Told, Topic},
    announcer::{self, Announcement},
    controller::{Controller, Dirty},
    desired_state::{AttachSource, Wish},
    force::ForceReason,
    journey::{Journey, Phase},
    metrics::Ending,
    rules::{Verdict, Waiting},
    standing::{Entry, State},
    volume_name::{VolumeId, VolumeKind},
};
use crate::kube_api::ids::NodeName;

/// After this long of the same wait its event is written again: events expire after an hour.
const REPEAT: Duration = Duration::from_mins(50);

/// How long the driver may take before users are told that it takes long.
///
/// KCM: pkg/volume/csi/csi_attacher.go, the timeout of waitForVolumeAttachment (two minutes).
const LONG: Duration = Duration::from_mins(2);

/// A wait for another node that is over sooner is told of in KCM's words only.
const NOTEWORTHY: Duration = Duration::from_secs(10);

impl Controller {
    /// A detach is about to be forced: counted, logged, told to those who wait for it and on the node.
    pub(super) fn force(&mut self, volume: &VolumeId, node: &NodeName, reason: ForceReason) {
        self.metrics.forced(reason);
        tracing::warn!(%volume, %node, reason = reason.label(), "forcing the detach of a volume that may be in use");
        self.tell_others(volume, node, &Announcement::ForcedDetach(node.clone(), reason));
    }

    /// The attachment is gone; if that was forced, it is told.
    pub(super) fn tell_of_forced_detach(&mut self, volume: &VolumeId, node: &NodeName) {
        if let Some(reason) = self.actual.pair_mut(volume, node).forced.take() {
            tracing::warn!(%volume, %node, reason = reason.label(), "the forced detach is done");
            self.tell_others(volume, node, &Announcement::ForcedDetachDone(node.clone(), reason));
        }
    }

    fn tell_others(&mut self, volume: &VolumeId, node: &NodeName, announcement: &Announcement) {
        let waiting = self.desired.nodes(volume).into_iter().flatten().filter(|(other, _)| *other != node);
        for (_, wish) in waiting {
            self.effects.events.extend(announcer::events(&self.objects, wish, announcement));
        }
        self.effects.events.extend(announcer::node_event(&self.objects, volume, node, announcement));
    }

    /// Tells the pods that want the volume here what changed for them.
    pub(super) fn tell(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        verdict: &Verdict,
        verdicts: &BTreeMap<NodeName, Verdict>,
        now: Instant,
    ) {
        if self.desired.wish(volume, node).is_none() {
            self.actual.pair_mut(volume, node).told = Told::default();
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
            Some(Waiting::AttachError { message }) => {
                self.say_once(volume, node, Topic::Failure, &Announcement::Failed(message.clone()), now);
            }
            Some(Waiting::ForeignAttachment { name }) => {
                let message = announcer::name_taken(name);
                self.say_once(volume, node, Topic::Failure, &Announcement::Failed(message), now);
            }
            Some(Waiting::WaitingForAttacher) if self.lasts(volume, node, LONG, now) => {
                let message = announcer::timed_out(volume, "attach");
                self.say_once(volume, node, Topic::Failure, &Announcement::Failed(message), now);
            }
            Some(Waiting::HeldByNode { rival }) if rival.holds => {
                self.tell_who_holds(volume, node, &rival.node, verdicts, now);
                return;
            }
            _ => {}
        }
        self.tell_that_it_is_free(volume, node, now);
    }

    fn tell_who_holds(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        holder: &NodeName,
        verdicts: &BTreeMap<NodeName, Verdict>,
        now: Instant,
    ) {
        self.actual.pair_mut(volume, node).told.held_since.get_or_insert(now);
        let users = self.desired.wish(volume, holder).into_iter().flat_map(|wish| wish.pods.values());
        let users = users.map(|(pod, _)| pod.key.clone()).collect();
        self.say_once(volume, node, Topic::MultiAttach, &Announcement::HeldElsewhere(users), now);
        let waiting = verdicts.get(holder).and_then(|verdict| verdict.waiting.as_ref());
        let patience = match waiting {
            // The driver's time, not ours.
            Some(Waiting::DetachWaitingForAttacher | Waiting::WaitingForDeletion) => LONG,
            _ => NOTEWORTHY,
        };
        let began = self.standing.since(volume, holder);
        let lasts = match began {
            Some(_) => self.lasts(volume, holder, patience, now),
            None => self.lasts(volume, node, patience, now),
        };
        if !lasts {
            return;
        }
        let Some(since) = began.or_else(|| self.standing.since(volume, node)) else { return };
        let holder = holder.clone();
        let announcement = match waiting {
            Some(Waiting::DetachWaitingForAttacher) => Announcement::DetachTimedOut(volume.clone(), holder),
            waiting => Announcement::Holder { node: holder, waiting: waiting.cloned(), since },
        };
        self.say_once(volume, node, Topic::Holder, &announcement, now);
    }

    fn tell_that_it_is_free(&mut self, volume: &VolumeId, node: &NodeName, now: Instant) {
        let told = &mut self.actual.pair_mut(volume, node).told;
        if let Some(since) = told.held_since.take() {
            told.said.remove(&Topic::MultiAttach);
            told.said.remove(&Topic::Holder);
            self.say(volume, node, &Announcement::Freed(now.saturating_duration_since(since).as_secs()));
        }
    }

    /// Whether the pair has waited for what it waits for that long; if not, it is looked at again then.
    fn lasts(&mut self, volume: &VolumeId, node: &NodeName, long: Duration, now: Instant) -> bool {
        let since = self.standing.since(volume, node).and_then(|since| since.checked_add(long).ok());
        let Some(at) = since.and_then(|at| self.clock.instant(at)).filter(|at| *at > now) else {
            return since.is_some();
        };
        self.wake_at.insert((at, Dirty::Volume(volume.clone())));
        false
    }

    /// Says something unless it was said of late, and sees to it that it is said again in time.
    pub(super) fn say_once(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        topic: Topic,
        announcement: &Announcement,
        now: Instant,
    ) {
        let said = &mut self.actual.pair_mut(volume, node).told.said;
        let again_at = match said.get(&topic) {
            Some((before, at)) if before == announcement && now < *at + REPEAT => *at + REPEAT,
            _ => {
                said.insert(topic, (announcement.clone(), now));
                self.say(volume, node, announcement);
                now + REPEAT
            }
        };
        self.wake_at.insert((again_at, Dirty::Volume(volume.clone())));
    }

    fn say(&mut self, volume: &VolumeId, node: &NodeName, announcement: &Announcement) {
        if let Some(wish) = self.desired.wish(volume, node) {
            self.effects.events.extend(announcer::events(&self.objects, wish, announcement));
        }
    }

    /// Measures how far the pair has come on its way.
    pub(super) fn time(&mut self, volume: &VolumeId, node: &NodeName, verdict: &Verdict, now: Instant) {
        if volume.kind() == VolumeKind::NoOp {
            return;
        }
        let wanted = self.desired.wish(volume, node).is_some();
        let operation = if wanted { Operation::Attach } else { Operation::Detach };
        let pair = self.actual.pair_mut(volume, node);
        let phase = Phase::of(pair, wanted, verdict.withdraws);
        let (journey, laps) =
            Journey::proceed(pair.journey.take(), operation, phase, pair.forced.is_some(), now);
        pair.journey = journey;
        self.metrics.laps(volume, laps);
    }

    /// Whether the volume was in-tree before it was translated: an inline one, or one of a PersistentVolume
    /// that has no CSI source. KCM: the label `migrated` of volume/util/metrics.go.
    pub(super) fn is_migrated(&self, volume: &VolumeId, node: &NodeName) -> bool {
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

    /// Keeps what the pair waits for where it can be looked up, counted and logged.
    pub(super) fn note_waiting(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        verdict: &Verdict,
        now: Instant,
    ) {
        let wall = self.clock.wall(now);
        let state = self.actual.pair(volume, node).map(State::of).unwrap_or_default();
        let settled = if verdict.waiting.is_none() { state } else { State::default() };
        self.standing.settle(volume, node, settled, wall);
        let entry = verdict.waiting.as_ref().map(|waiting| Entry {
            state,
            waiting: waiting.clone(),
            since: wall,
            next_look: verdict.wake_at.map(|at| self.clock.wall(at)),
        });
        let before = self.standing.set(volume, node, entry);
        let waiting = verdict.waiting.as_ref();
        if before.as_ref() != waiting {
            match waiting {
                Some(Waiting::AttachError { .. }) => {
                    self.operation_ended(volume, node, Operation::Attach, Ending::Failure, now);
                }
                Some(Waiting::DetachError { .. }) => {
                    self.operation_ended(volume, node, Operation::Detach, Ending::Failure, now);
                }
                _ => {}
            }
        }
        let (from, to) = (before.as_ref().map(Waiting::code), waiting.map(Waiting::code));
        if from == to {
            return;
        }
        if let Some(from) = from {
            self.metrics.waits(from, -1);
        }
        if let Some(to) = to {
            self.metrics.waits(to, 1);
            if Waiting::GUARDS.contains(&to) {
                self.metrics.refused(to);
            }
        }
        tracing::info!(%volume, %node, from = from.unwrap_or("Settled"), to = to.unwrap_or("Settled"), "attachment");
    }
}
