//! The one owner of desired and actual state.
//!
//! In: changed objects, and the outcomes of our requests. Out: the next requests, and events for users.
//! Each input marks the volumes it touches dirty; dirty volumes are planned. A volume is planned only
//! while there is room to send, so no decision waits in a queue and goes stale there (S15). Time comes
//! in as an argument, and nothing in here waits, so a whole history can be played in a test.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use tokio::time::Instant;

use super::{
    actual_state::{ActualState, Candidates, Operation, Pair, PairCall, Publication, Told},
    announcer::{self, Announcement},
    calls::{self, Call, PairRequest},
    clock::Clock,
    desired_state::DesiredState,
    force::{ForcePolicy, ForceReason},
    metrics::{AttachDetachMetrics, Ending},
    populator,
    queue::Queue,
    reconciler::{self, VolumeView},
    rules::{Step, Verdict, Waiting},
    status_updater,
    volume_name::VolumeId,
    withdrawal::{Sequence, Withdrawal},
};
use crate::{
    kube_api::{
        events::Event,
        ids::{AttachmentName, NodeName, PodKey},
        kinds::{ObjectRef, VolumeAttachment},
    },
    state::Objects,
};

/// Requests for pairs in flight at once.
pub const PAIR_CALLS: usize = 48;
/// Requests for nodes in flight at once; at most one per node.
pub const NODE_CALLS: usize = 32;

/// What the controller wants done.
#[derive(Debug, Default)]
pub struct Effects {
    /// Requests to send, each with its place in the order of sending.
    pub calls: Vec<(Sequence, Call)>,
    /// What to tell users.
    pub events: Vec<Event>,
}

/// Desired state, actual state, and what is dirty.
#[derive(Debug)]
pub struct Controller {
    pub(super) objects: Arc<Objects>,
    pub(super) metrics: AttachDetachMetrics,
    pub(super) desired: DesiredState,
    pub(super) actual: ActualState,
    pub(super) clock: Clock,
    policy: ForcePolicy,
    pub(super) leads: bool,
    pub(super) pair_calls: usize,
    pub(super) node_calls: usize,
    pub(super) dirty_volumes: Queue<VolumeId>,
    pub(super) dirty_nodes: Queue<NodeName>,
    pub(super) effects: Effects,
    last_sent: Sequence,
    wake_at: BTreeSet<(Instant, Dirty)>,
    waiting: BTreeMap<(VolumeId, NodeName), Waiting>,
}

/// What a timer makes dirty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Dirty {
    Volume(VolumeId),
    Node(NodeName),
}

impl Controller {
    /// A controller over the shared tables, which must be synced before it is loaded.
    #[must_use]
    pub fn new(
        objects: Arc<Objects>,
        metrics: AttachDetachMetrics,
        policy: ForcePolicy,
        clock: Clock,
    ) -> Self {
        Self {
            objects,
            metrics,
            desired: DesiredState::default(),
            actual: ActualState::default(),
            clock,
            policy,
            leads: false,
            pair_calls: 0,
            node_calls: 0,
            dirty_volumes: Queue::default(),
            dirty_nodes: Queue::default(),
            effects: Effects::default(),
            last_sent: Sequence::default(),
            wake_at: BTreeSet::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// Whether this process may write, as far as the controller knows.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// Requests whose outcome has not been taken yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pair_calls + self.node_calls
    }

    /// When to call [`Self::reconcile`] although nothing happened.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        self.wake_at.first().map(|(at, _)| *at)
    }

    /// What every pair waits for.
    pub fn waiting(&self) -> impl Iterator<Item = (&VolumeId, &NodeName, &Waiting)> {
        self.waiting.iter().map(|((volume, node), waiting)| (volume, node, waiting))
    }

    /// Reads the tables whole, once (attach-detach §5, without its gaps).
    pub fn load(&mut self, now: Instant) {
        for (name, node) in self.objects.nodes.snapshot() {
            self.actual.observe_node(&name, Some(&node), self.clock.wall(now));
        }
        for name in self.objects.attachments.snapshot().into_keys() {
            self.refresh_attachment(&name, now);
        }
        for key in self.objects.pods.snapshot().into_keys() {
            self.refresh_pod(&key);
        }
        tracing::info!(
            attachments = self.objects.attachments.len(),
            pods = self.objects.pods.len(),
            "attach/detach state loaded"
        );
    }

    /// Starts to plan: this process may write from now on.
    pub fn take_over(&mut self) {
        self.leads = true;
        // What is published already was announced by whoever published it.
        let published: Vec<(VolumeId, Vec<NodeName>)> = self
            .actual
            .volumes()
            .map(|(volume, state)| {
                let listed = state.pairs.iter().filter(|(_, pair)| pair.listed && pair.attachment.is_some());
                (volume.clone(), listed.map(|(node, _)| node.clone()).collect())
            })
            .collect();
        for (volume, nodes) in published {
            for node in nodes {
                self.actual.pair_mut(&volume, &node).told.attached = true;
            }
            self.dirty_volumes.push(volume);
        }
        self.dirty_volumes.extend(self.desired.volumes().cloned());
    }

    /// Takes changed objects.
    pub fn take_changes(&mut self, changed: BTreeSet<ObjectRef>, now: Instant) {
        for object in changed {
            match &object {
                ObjectRef::Node(name) => {
                    let node = self.objects.nodes.get(name);
                    let touched = self.actual.observe_node(name, node.as_ref(), self.clock.wall(now));
                    self.dirty_volumes.extend(touched);
                    self.dirty_nodes.push(name.clone());
                    for attachment in self.actual.unidentified(None, Some(name)) {
                        self.refresh_attachment(&attachment, now);
                    }
                }
                ObjectRef::Pod(key) => self.refresh_pod(key),
                ObjectRef::Attachment(name) => self.refresh_attachment(name, now),
                ObjectRef::Volume(name) => {
                    for attachment in self.actual.unidentified(Some(name), None) {
                        self.refresh_attachment(&attachment, now);
                    }
                }
                ObjectRef::Claim(_) | ObjectRef::Driver(_) | ObjectRef::Class(_) | ObjectRef::CsiNode(_) => {}
            }
            for pod in self.desired.dependants(&object) {
                self.refresh_pod(&pod);
            }
        }
    }

    fn refresh_pod(&mut self, key: &PodKey) {
        let pod = self.objects.pods.get(key);
        let wishes = pod.and_then(|pod| populator::wishes(&pod, &self.objects, self.desired.pod(key)));
        let touched = self.desired.set(key, wishes);
        self.dirty_volumes.extend(touched);
    }

    pub(super) fn refresh_attachment(&mut self, name: &AttachmentName, now: Instant) {
        let objects = Arc::clone(&self.objects);
        let attachment = objects.attachments.get(name);
        let attached = attachment.as_ref().map(|attachment| attachment.status.attached);
        let touched =
            self.actual.observe_attachment(name, attachment, |attachment| candidates(&objects, attachment));
        let Some((volume, node)) = touched else { return };
        match attached {
            Some(true) => self.operation_ended(&volume, &node, Operation::Attach, Ending::Success, now),
            Some(false) => {}
            None => self.operation_ended(&volume, &node, Operation::Detach, Ending::Success, now),
        }
        self.dirty_volumes.push(volume);
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
        let pair = self.actual.pair_mut(volume, node);
        if let Some((running, began)) = pair.operation
            && running == operation
        {
            pair.operation = None;
            self.metrics.observe(volume, operation, ending, now - began);
        }
    }

    /// Plans what is dirty, as far as there is room to send.
    pub fn reconcile(&mut self, now: Instant) -> Effects {
        while let Some((at, _)) = self.wake_at.first()
            && *at <= now
        {
            match self.wake_at.pop_first() {
                Some((_, Dirty::Volume(volume))) => self.dirty_volumes.push(volume),
                Some((_, Dirty::Node(node))) => self.dirty_nodes.push(node),
                None => break,
            }
        }
        if !self.leads {
            self.dirty_volumes.clear();
            self.dirty_nodes.clear();
            return Effects::default();
        }
        while self.pair_calls < PAIR_CALLS
            && let Some(volume) = self.dirty_volumes.pop()
        {
            self.reconcile_volume(&volume, now);
        }
        while self.node_calls < NODE_CALLS
            && let Some(node) = self.dirty_nodes.pop()
        {
            self.reconcile_node(&node, now);
        }
        mem::take(&mut self.effects)
    }

    fn reconcile_volume(&mut self, volume: &VolumeId, now: Instant) {
        let wishes = self.desired.nodes(volume);
        if wishes.is_some() {
            self.actual.recognise(volume);
        }
        let wall = self.clock.wall(now);
        let wanted = |node: &NodeName| wishes.is_some_and(|wishes| wishes.contains_key(node));
        self.actual.note_unwanted(volume, wanted, |_| None, wall);
        let state = self.actual.volume(volume);
        let named = wishes.into_iter().flat_map(BTreeMap::keys);
        let named = named.chain(state.into_iter().flat_map(|state| state.pairs.keys()));
        let nodes = named.filter_map(|name| self.actual.node(name).map(|node| (name, node))).collect();
        let verdicts = reconciler::plan(&VolumeView { wishes, state, nodes, policy: self.policy, wall }, now);
        for (node, verdict) in verdicts {
            self.apply(volume, &node, verdict, now);
        }
        let desired = &self.desired;
        self.actual.prune(volume, |node| desired.wish(volume, node).is_some());
        let held =
            self.actual.volume(volume).map_or(0, |state| state.pairs.values().filter(|p| p.holds()).count());
        self.metrics.count(volume, desired.nodes(volume).map_or(0, BTreeMap::len), held);
    }

    fn apply(&mut self, volume: &VolumeId, node: &NodeName, verdict: Verdict, now: Instant) {
        let sent = self.last_sent;
        let pair = self.actual.pair_mut(volume, node);
        pair.publication = verdict.publication;
        if !verdict.withdraws {
            pair.withdrawal = Withdrawal::None;
        } else if pair.withdrawal == Withdrawal::None {
            pair.withdrawal = Withdrawal::Since(sent);
        }
        let stale_list = match verdict.publication {
            Publication::Keep => false,
            Publication::List => !pair.listed,
            Publication::Withhold => pair.listed,
        };
        if stale_list {
            self.dirty_nodes.push(node.clone());
        }
        if let Some(at) = verdict.wake_at {
            self.wake_at.insert((at, Dirty::Volume(volume.clone())));
        }
        self.tell(volume, node, &verdict);
        self.note_waiting(volume, node, verdict.waiting.as_ref());
        match verdict.step {
            None => {}
            Some(Step::Create(source)) => {
                let request = PairRequest::Create(calls::create(volume, node, &source));
                self.send(volume, node, PairCall::Create, request, now);
            }
            Some(Step::Delete(uid, proof, forced)) => {
                if let Some(reason) = forced {
                    self.force(volume, node, reason);
                }
                let request = calls::delete(volume, node, &uid, &proof);
                self.send(volume, node, PairCall::Delete, PairRequest::Delete(uid, request), now);
            }
            Some(Step::ReadAttachment) => {
                let name = volume.attachment_name(node);
                self.send(volume, node, PairCall::Read, PairRequest::Read(name), now);
            }
            Some(Step::ReadNode) => {
                // What was proven before is not proof enough.
                let pair = self.actual.pair_mut(volume, node);
                if matches!(pair.withdrawal, Withdrawal::Proven(_)) {
                    pair.withdrawal = Withdrawal::Since(sent);
                }
                self.dirty_nodes.push(node.clone());
            }
        }
    }

    pub(super) fn send(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        call: PairCall,
        request: PairRequest,
        now: Instant,
    ) {
        let pair = self.actual.pair_mut(volume, node);
        pair.call = Some(call);
        match (call, pair.operation) {
            (PairCall::Create, None) => pair.operation = Some((Operation::Attach, now)),
            (PairCall::Delete, None | Some((Operation::Attach, _))) => {
                pair.operation = Some((Operation::Detach, now));
            }
            _ => {}
        }
        self.pair_calls += 1;
        self.call(Call::Pair(volume.clone(), node.clone(), request));
    }

    /// A detach is about to be forced: counted, logged, told to those who wait for it.
    fn force(&mut self, volume: &VolumeId, node: &NodeName, reason: ForceReason) {
        self.metrics.forced(reason);
        tracing::warn!(%volume, %node, reason = reason.label(), "forcing the detach of a volume that may be in use");
        let waiting = self.desired.nodes(volume).into_iter().flatten().filter(|(other, _)| *other != node);
        for (_, wish) in waiting {
            let announcement = Announcement::ForcedDetach(node.clone(), reason);
            self.effects.events.extend(announcer::events(&self.objects, wish, &announcement));
        }
    }

    /// Sends what the node needs: its list, or a live read.
    fn reconcile_node(&mut self, name: &NodeName, now: Instant) {
        match self.actual.trust_node(name, self.clock.wall(now)) {
            Ok(volumes) => self.dirty_volumes.extend(volumes),
            Err(again) => {
                let at = again.and_then(|again| self.clock.instant(again));
                self.wake_at.extend(at.map(|at| (at, Dirty::Node(name.clone()))));
            }
        }
        let Some(state) = self.actual.node(name) else { return };
        if state.busy {
            return;
        }
        if let Some(at) = state.retry.pending(now) {
            self.wake_at.insert((at, Dirty::Node(name.clone())));
            return;
        }
        let publications = state
            .volumes
            .iter()
            .filter_map(|volume| Some((volume, self.actual.pair(volume, name)?.publication)));
        let node = state.node.as_deref().filter(|_| !state.stale);
        let change = node.and_then(|node| Some((node, status_updater::desired_list(node, publications)?)));
        let settle_at = state.unsettled.map(|unsettled| unsettled.until);
        let call = match change {
            Some((node, list)) => {
                let request = status_updater::patch(node, &list);
                Call::PatchNode(name.clone(), node.metadata.resource_version, request)
            }
            None if state.stale || self.actual.needs_proof(name) || settle_at.is_some_and(|at| at <= now) => {
                Call::ReadNode(name.clone())
            }
            None => {
                if let Some(at) = settle_at {
                    self.wake_at.insert((at, Dirty::Node(name.clone())));
                }
                return;
            }
        };
        let state = self.actual.node_mut(name);
        state.busy = true;
        self.node_calls += 1;
        self.call(call);
    }

    fn call(&mut self, call: Call) {
        self.last_sent.0 += 1;
        self.effects.calls.push((self.last_sent, call));
    }

    /// Tells users what changed for them, once.
    fn tell(&mut self, volume: &VolumeId, node: &NodeName, verdict: &Verdict) {
        let Some(wish) = self.desired.wish(volume, node) else {
            self.actual.pair_mut(volume, node).told = Told::default();
            return;
        };
        let rival = match &verdict.waiting {
            Some(Waiting::HeldByNode(rival)) if rival.holds => Some(rival.node.clone()),
            _ => None,
        };
        let users = rival.as_ref().and_then(|rival| self.desired.wish(volume, rival));
        let told = &mut self.actual.pair_mut(volume, node).told;
        let announcement = match (&verdict.waiting, verdict.publication) {
            (_, Publication::List) if !told.attached => {
                told.attached = true;
                told.error = None;
                Announcement::Attached
            }
            (Some(Waiting::AttachError { message }), _) if told.error.as_ref() != Some(message) => {
                told.error = Some(message.clone());
                Announcement::Failed(message.clone())
            }
            (Some(Waiting::HeldByNode(_)), _) if rival.is_some() && !told.held => {
                told.held = true;
                let pods = users.into_iter().flat_map(|wish| wish.pods.values());
                Announcement::HeldElsewhere(pods.map(|(pod, _)| pod.key.clone()).collect())
            }
            (Some(Waiting::WaitingForAttacher | Waiting::WaitingForDeletion), _) => {
                told.attached = false;
                return;
            }
            _ => return,
        };
        self.effects.events.extend(announcer::events(&self.objects, wish, &announcement));
    }

    fn note_waiting(&mut self, volume: &VolumeId, node: &NodeName, waiting: Option<&Waiting>) {
        let key = (volume.clone(), node.clone());
        let before = match waiting {
            Some(waiting) => self.waiting.insert(key, waiting.clone()),
            None => self.waiting.remove(&key),
        };
        let (from, to) = (before.as_ref().map(Waiting::code), waiting.map(Waiting::code));
        if from == to {
            return;
        }
        if let Some(from) = from {
            self.metrics.waits(from, -1);
        }
        if let Some(to) = to {
            self.metrics.waits(to, 1);
        }
        tracing::info!(%volume, %node, from = from.unwrap_or("Settled"), to = to.unwrap_or("Settled"), "attachment");
    }

    /// The pair of an outcome.
    pub(super) fn pair(&mut self, volume: &VolumeId, node: &NodeName) -> &mut Pair {
        self.actual.pair_mut(volume, node)
    }
}

/// The volumes that a VolumeAttachment may be about: its source, or what its node's status lists (its
/// PersistentVolume may be gone).
fn candidates(objects: &Objects, attachment: &VolumeAttachment) -> Candidates {
    let spec = &attachment.spec;
    let source = spec.source.persistent_volume_name.as_ref();
    let volume = source.and_then(|name| objects.volumes.get(name));
    let csi = match (&volume, &spec.source.inline_volume_spec) {
        (Some(volume), _) => volume.spec.csi.as_ref(),
        (None, Some(inline)) => inline.csi.as_ref(),
        (None, None) => None,
    };
    let node = objects.nodes.get(&spec.node_name);
    let listed = node.iter().flat_map(|node| &node.status.volumes_attached);
    Candidates {
        source: csi.map(|csi| VolumeId::csi(&csi.driver, &csi.volume_handle)),
        published: listed.filter_map(|entry| VolumeId::parse_csi(&entry.name)).collect(),
    }
}
