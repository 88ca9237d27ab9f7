//! Recorder: what users and operators get to know of a plan, and what was told and measured before, on which that
//! rests (client-go: `EventRecorder`).
//!
//! In: verdicts, requests, and the ends of operations, each once, with the state as a view. Out: events and reports,
//! taken with the plan, and when there may be more to tell although nothing happens. What was told and measured of a
//! volume on a node is forgotten with it ([`Recorder::forget`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use apiserver::{
    call::CallError,
    events::Event,
    ids::{AttachmentName, NodeName},
};
use tokio::time::Instant;

use super::{
    announcer::{self, Announced, Announcer, LONG, Others},
    events::{self, Announcement},
    facts::{Fact, Forced, Line, PlanFacts},
    metrics::{Counted, Planned},
    phases::{Phase, Progress},
    state::{AttachDetachKey, AttachDetachReason, NodeVolumeKey, Report, State},
    unresolved::UnresolvedPods,
    waits::Waits,
};
use crate::{
    attach_detach::{
        actual::state::{ActualState, AttachmentCall, ForceReason, NodeVolume, Operation},
        decide::{
            scope::Scope,
            verdict::{NodeVerdict, Waiting},
        },
        desired::{
            state::{AttachSource, DesiredAttachment, Unresolved, UnresolvedVolumes},
            volume_name::{VolumeId, VolumeKind},
        },
        known::Known,
    },
    controller::report::events::EventUpdate,
};

/// What is told, and what was.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    announcer: Announcer,
    waits: Waits,
    unresolved: UnresolvedPods,
    events: Vec<EventUpdate<AttachDetachKey>>,
    reports: Vec<Report>,
    facts: PlanFacts,
}

impl Recorder {
    /// Takes the events.
    pub fn take_events(&mut self) -> Vec<EventUpdate<AttachDetachKey>> {
        mem::take(&mut self.events)
    }

    /// Takes what there is for operators alone.
    pub fn take_facts(&mut self) -> (Vec<Report>, PlanFacts) {
        (mem::take(&mut self.reports), self.facts.take())
    }

    /// Counts keys that are looked at.
    pub fn planned(&mut self, kind: Planned, count: usize) {
        self.facts.planned(kind, count);
    }

    /// Tells operators of something that rests on nothing before.
    pub fn report(&mut self, fact: Fact) {
        self.facts.push(fact);
    }

    /// The same, in the log alone.
    pub fn log(&mut self, line: Line) {
        self.report(Fact::Line(line));
    }

    /// Tells users and operators of something that rests on nothing before, either.
    pub fn extend(&mut self, events: Vec<Event>, facts: Vec<Fact>) {
        self.events.extend(events.into_iter().map(EventUpdate::Happened));
        for fact in facts {
            self.report(fact);
        }
    }

    /// This process leads from now on. What was under way before was not seen to begin, and a predecessor has told of
    /// what is published.
    pub fn lead(&mut self, Known { actual, desired, now, .. }: Known<'_>) {
        self.report(Fact::Leads);
        for (volume, node) in actual.published() {
            self.announcer.inherit_attached(volume, node);
        }
        self.unresolved.lead(desired.unresolved(), now);
    }

    /// Takes which volumes of a pod cannot be attached yet.
    pub fn unresolved(&mut self, learnt: UnresolvedVolumes, now: Instant) {
        let UnresolvedVolumes { pod, before, found, new } = learnt;
        self.unresolved.found(&pod, &found, now);
        if before != found {
            let key = |of: &Unresolved| AttachDetachKey::PodVolume(pod.clone(), of.pod_volume.clone());
            let is_gone = |of: &&Unresolved| found.iter().all(|still| still.pod_volume != of.pod_volume);
            for gone in before.iter().filter(is_gone) {
                self.reports.push(Report::gone(key(gone)));
                self.events.push(EventUpdate::Forget(key(gone)));
            }
            let unresolved = |of: &Unresolved| AttachDetachReason::Unresolved(of.why.clone());
            self.reports.extend(found.iter().map(|found| Report::of(key(found), unresolved(found))));
        }
        self.report(Fact::Unresolved(pod, new));
    }

    /// Tells pods that have waited for such a volume for a while.
    pub fn tell_unresolved(&mut self, known: Known<'_>) {
        self.events.extend(self.unresolved.take_due(known));
    }

    /// When there may be more to tell although nothing happens.
    pub fn next_at(&self) -> Option<Instant> {
        self.unresolved.next_at()
    }

    /// Reports a VolumeAttachment that is not ours, or is no longer there, or not any more.
    pub fn foreign(&mut self, name: &AttachmentName, actual: &ActualState) {
        let key = AttachDetachKey::Foreign(name.clone());
        self.reports.push(match actual.foreign(name) {
            Some((volume, node)) => Report {
                from: Some("Unknown"),
                other: volume.map(ToString::to_string),
                ..Report::of(key, AttachDetachReason::Foreign(volume.cloned(), node.clone()))
            },
            None => Report::gone(key),
        });
    }

    /// Takes what a verdict waits for, before it is carried out; `sent` is the request that it sends now. Counts
    /// operations that fail or take long. Returns when to look again.
    pub fn waits_for(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        verdict: &NodeVerdict,
        sent: Option<AttachmentCall>,
        Known { actual, now, .. }: Known<'_>,
    ) -> Option<Instant> {
        let node_volume = actual.node_volume(volume, node);
        let state = match sent {
            // As it is in a moment.
            Some(AttachmentCall::Create) => State::Attaching,
            Some(AttachmentCall::Delete) => State::Detaching,
            Some(AttachmentCall::Read) | None => node_volume.map(State::of).unwrap_or_default(),
        };
        let attachment = node_volume.and_then(NodeVolume::attachment);
        let waiting = verdict.waiting.as_ref();
        let before = self.waits.judged(volume, node, waiting, now);
        let look_at = self.count_failure(volume, node, before.as_ref(), waiting, now);
        let code = waiting.map(Waiting::code);
        if before.as_ref().map(Waiting::code) != code
            && let Some(guard) = code.filter(|code| Waiting::GUARDS.contains(code))
        {
            self.report(Fact::Refused(guard));
        }
        let key = AttachDetachKey::NodeVolume(NodeVolumeKey::new(volume, node));
        self.reports.push(Report {
            next: waiting.and_then(|waiting| next_look(actual, node, verdict, waiting, now)),
            attempt: actual.attempt(volume, node),
            revision: attachment.map(|attachment| attachment.metadata.resource_version),
            is_decision: true,
            ..Report::of(key, AttachDetachReason::NodeVolume(state, waiting.cloned()))
        });
        look_at
    }

    /// An operation has failed when the driver says so, each time it does; and when it has said nothing for as
    /// long as KCM waits for it, as often as that passes. Returns when that is next.
    fn count_failure(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        before: Option<&Waiting>,
        waiting: Option<&Waiting>,
        now: Instant,
    ) -> Option<Instant> {
        let operation = match waiting? {
            Waiting::AttachError { .. } => Operation::Attach,
            Waiting::DetachError { .. } => Operation::Detach,
            Waiting::WaitingForAttacher | Waiting::DetachWaitingForAttacher => {
                let since = self.waits.since(volume, node)?;
                let passed = now.saturating_duration_since(since).div_duration_f64(LONG).floor();
                return Some(since + LONG.mul_f64(passed + 1.0));
            }
            _ => return None,
        };
        if before != waiting {
            self.report(Fact::OperationFailed(volume.clone(), node.clone(), operation));
        }
        None
    }

    /// Takes the verdicts on a volume, after all of them have been carried out. Returns where to look again, and when.
    pub fn judged(
        &mut self,
        volume: &VolumeId,
        scope: &Scope,
        is_exclusive: bool,
        verdicts: &BTreeMap<NodeName, NodeVerdict>,
        known: Known<'_>,
    ) -> Vec<(NodeName, Instant)> {
        let others = Others { verdicts, holders: self.holders(volume, scope, is_exclusive, known) };
        let mut look_at = Vec::new();
        for (node, verdict) in verdicts {
            self.report_progress(volume, node, verdict, known);
            let news = self.announcer.judged(volume, node, verdict, &others, &self.waits, known);
            look_at.extend(self.take_news(news).into_iter().map(|at| (node.clone(), at)));
        }
        look_at
    }

    /// Nodes that hold the volume, sought once for all that wait for it; of one that is shared, none is asked for.
    fn holders(
        &mut self,
        volume: &VolumeId,
        scope: &Scope,
        is_exclusive: bool,
        Known { desired, actual, .. }: Known<'_>,
    ) -> Option<BTreeSet<NodeName>> {
        let state = actual.volume(volume).filter(|_| is_exclusive || *scope == Scope::All)?;
        if state.nodes.len() + state.foreign.len() == 1 {
            // There is no other beside it.
            return Some(BTreeSet::new());
        }
        self.planned(Planned::Holder, state.nodes.len());
        let holds = |node, node_volume: &NodeVolume| node_volume.holds(desired.get(volume, node).is_some());
        let ours = state.nodes.iter().filter(|(node, node_volume)| holds(node, node_volume));
        let ours = ours.map(|(node, _)| node);
        Some(ours.chain(state.foreign.values()).cloned().collect())
    }

    /// Reports how far the volume on the node has come on its way.
    fn report_progress(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        verdict: &NodeVerdict,
        known: Known<'_>,
    ) {
        if volume.kind() == VolumeKind::NoOp {
            return;
        }
        let Some(node_volume) = known.actual.node_volume(volume, node) else { return };
        let wanted = known.desired.get(volume, node).is_some();
        let attempt = known.actual.attempt(volume, node);
        let mut progress = Progress::of(node_volume, wanted, verdict.waiting.as_ref(), attempt);
        if matches!(progress.stands, Some((Phase::Api, _))) {
            progress.asks_migrated = Some(is_migrated(volume, node, known));
        }
        self.report(Fact::Progress(volume.clone(), node.clone(), progress));
    }

    /// Counts where a volume is desired and attached, of the nodes on which it was judged.
    pub fn counted<'a>(
        &mut self,
        volume: &VolumeId,
        scope: Scope,
        nodes: impl Iterator<Item = &'a NodeName>,
        Known { actual, desired, .. }: Known<'_>,
    ) {
        let counted = nodes.map(|node| {
            // What a kubelet merely reports is not counted.
            let is_attached =
                actual.node_volume(volume, node).is_some_and(|node_volume| node_volume.holds(true));
            let users = desired.get(volume, node).map_or(0, |desired| desired.pods.len());
            (node.clone(), Counted { is_attached, users: i64::try_from(users).unwrap_or(i64::MAX) })
        });
        let nodes = counted.collect();
        self.report(Fact::Counted { volume: volume.clone(), scope, nodes });
    }

    /// Logs that a request about a volume on a node failed, at which attempt.
    pub fn log_failure(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        attempt: u32,
        error: &CallError,
        what: &'static str,
    ) {
        let (volume, node) = (volume.clone(), node.clone());
        self.log(Line::Failed { volume, node, attempt, error: error.clone(), what });
    }

    /// Tells users that it did.
    pub fn record_failure(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        error: &CallError,
        known: Known<'_>,
    ) {
        let failure = Announcement::Failed(events::refused(error));
        self.events.push(announcer::fails(volume, node, &failure, known));
    }

    fn take_news(&mut self, Announced { events, look_at }: Announced) -> Vec<Instant> {
        self.events.extend(events);
        look_at
    }

    /// A detach is forced: when it begins and when it is done, the pods that wait for it, and the node, have an event.
    pub fn forced(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        reason: ForceReason,
        forced: Forced,
        known: Known<'_>,
    ) {
        self.report(Fact::Forced(volume.clone(), node.clone(), reason, forced));
        let announcement = match forced {
            Forced::Tainted => return,
            Forced::Begins => Announcement::ForcedDetach(node.clone(), reason),
            Forced::Done => Announcement::ForcedDetachDone(node.clone(), reason),
        };
        let waiting = known.desired.nodes(volume).into_iter().flatten().filter(|(other, _)| *other != node);
        let mut events = Vec::new();
        for (_, desired) in waiting {
            events.extend(events::events(known.objects, desired, &announcement));
        }
        events.extend(events::node_event(known.objects, volume, node, &announcement));
        self.events.extend(events.into_iter().map(EventUpdate::Happened));
    }

    /// Nothing is known any more of the volume on that node.
    pub fn forget(&mut self, volume: &VolumeId, node: &NodeName) {
        self.announcer.forget(volume, node);
        let key = AttachDetachKey::NodeVolume(NodeVolumeKey::new(volume, node));
        self.events.push(EventUpdate::Forget(key));
        self.report(Fact::Forgotten(volume.clone(), node.clone()));
    }
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
            state.requests.retry().pending(now)
        }
        Waiting::WriteUndone { .. } => state.requests.undone_until(now),
        Waiting::DetachWaitingForSettlement => state.requests.in_doubt().map(|patch| patch.until),
        _ => None,
    };
    verdict.wake_at.or(of_node)
}

/// Whether the volume was in-tree before it was translated: an inline one, or one of a PersistentVolume
/// that has no CSI source. KCM: the label `migrated` of volume/util/metrics.go.
fn is_migrated(volume: &VolumeId, node: &NodeName, known: Known<'_>) -> bool {
    let Known { objects, desired, actual, .. } = known;
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
