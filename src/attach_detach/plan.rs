//! One key's turn: a volume on its nodes, or a node and its list.
//!
//! In: a dirty volume with the nodes on which something happened, or a dirty node; the room for requests. Out: requests, as
//! far as there is room; timers; events and reports. A request that has no room is not kept: its volume is put back, behind
//! those that wait, and judged anew when there is room, for its pod may be gone by then (S8, S15). So one volume on a
//! thousand nodes keeps no other waiting. The order of the steps in [`AttachDetach::plan_volume`] is safety.

use std::collections::{BTreeMap, BTreeSet};

use apiserver::{
    ids::{NodeName, VolumeName},
    kinds::Node,
};
use litemap::LiteMap;
use tokio::time::Instant;

use super::{
    calls::{self, AttachmentRequest, Call},
    controller::AttachDetach,
    decide::{
        contention::Contention,
        force::force,
        multi_attach::Exclusive,
        node_list::{self, NodeStep, NodeView},
        reconciler::{self, VolumeView},
        verdict::{AttachStep, ConflictingNode, NodeVerdict, Waiting},
    },
    facts::{Fact, Forced, Planned},
    guard::{second_writer_role::ActTarget, unreadable::unreadable_on},
    queue::{AT_ONCE, Key},
    reasons::NodeVolumeKey,
    state::{
        actual::{
            AttachmentCall, ForceReason, Mount, NodeVolume, ReportAsAttached, unpublishing::Unpublishing,
        },
        desired::{
            DesiredAttachment,
            volume_name::{VolumeId, VolumeKind},
            volume_source::volume_of,
        },
    },
};
/// So many nodes are seen in the time in which one is judged: whether each holds an exclusive volume.
const SEEN_FOR_ONE: usize = 32;

/// Takes out what is too much for one turn, so that other volumes have theirs in between (L15).
pub(super) fn beyond_one_turn(nodes: &mut BTreeSet<NodeName>) -> BTreeSet<NodeName> {
    let next = nodes.iter().nth(AT_ONCE).cloned();
    next.map(|next| nodes.split_off(&next)).unwrap_or_default()
}

impl AttachDetach {
    /// Plans a volume on these nodes, and where it is held if it is exclusive. Returns for how many volumes on
    /// nodes that was work. The order of the steps is safety: what is known first, then who holds it, then the verdicts, and
    /// each is carried out before anything is reported of it.
    pub(super) fn plan_volume(
        &mut self,
        volume: &VolumeId,
        nodes: BTreeSet<NodeName>,
        now: Instant,
    ) -> usize {
        self.outbox.planned(Planned::Volume, 1);
        // 1. Attachments that nothing has explained so far may be its.
        self.recognise(volume, now);
        // 2. Who holds it, of all its nodes (S1), and on which nodes it is judged.
        let is_exclusive = self.desired.is_exclusive(volume) || self.is_exclusive_by_attachments(volume);
        let desired = self.desired.nodes(volume).filter(|_| is_exclusive);
        let unreadable = unreadable_on(volume, self.known(now));
        let exclusive = Exclusive::of(volume, desired, &self.actual, &unreadable);
        let seen = exclusive.as_ref().map_or(0, |_| self.count_nodes(volume));
        let names = self.turn(volume, nodes, (exclusive.as_ref(), now));
        // 3. The verdicts.
        let desired = &self.desired;
        let withheld: BTreeSet<&NodeName> =
            names.iter().filter(|node| self.is_withheld(volume, node)).collect();
        let wanted = |node: &NodeName| !withheld.contains(node) && desired.get(volume, node).is_some();
        self.actual.note_undesired(volume, &names, wanted, self.clock.wall(now));
        let view = self.view(volume, &names, (exclusive.as_ref(), &unreadable), now);
        let verdicts = reconciler::plan(&view, now);
        let work = verdicts.len() + seen / SEEN_FOR_ONE;
        self.outbox.planned(Planned::NodeVolume, verdicts.len());
        // 4. Each is carried out: the state, a request.
        let mut makes_way = false;
        for (node, verdict) in &verdicts {
            makes_way |= self.apply(volume, node, verdict, now);
        }
        if makes_way {
            // The nodes that wait for it need no event about it first (L13).
            return work + self.plan_volume(volume, names, now);
        }
        // 5. The other nodes hear of it when it is their turn, if it is news to them: what was decided now counts.
        let contention = match exclusive {
            Some(_) => self.contention(volume, &unreadable, &verdicts, now),
            None => Contention::default(),
        };
        let told = (contention != Contention::default()).then(|| Box::new(contention.clone()));
        if self.actual.tell(volume, told) {
            let mut others = self.known(now).nodes_of(volume);
            others.retain(|name| !verdicts.contains_key(name));
            self.queue.add_new(volume.clone(), others);
        }
        // 6. Users and operators hear of it.
        self.report_verdicts(volume, &contention, &verdicts, now);
        // 7. What has ended is forgotten, and with it all that was reported and measured of it.
        let desired = &self.desired;
        for node in self.actual.prune(volume, &names, |node| desired.get(volume, node).is_some()) {
            self.outbox.forget(volume, &node);
        }
        work
    }

    /// Looks for the volume's attachments among those that nothing has explained so far.
    fn recognise(&mut self, volume: &VolumeId, now: Instant) {
        if self.desired.nodes(volume).is_none() {
            return;
        }
        let (found, computed) = self.actual.recognise(volume, self.clock.wall(now));
        self.outbox.planned(Planned::Name, computed);
        for attachment in found {
            self.report_foreign(&attachment);
        }
    }

    fn is_exclusive_by_attachments(&self, volume: &VolumeId) -> bool {
        self.actual.volume(volume).is_some_and(|state| state.is_exclusive)
    }

    fn count_nodes(&self, volume: &VolumeId) -> usize {
        self.desired.nodes(volume).map_or(0, LiteMap::len)
            + self.actual.volume(volume).map_or(0, |state| state.nodes.len())
    }

    /// On which nodes the volume is judged now: those where something happened, and those that matter to all others. If
    /// these are too many for once, the rest has another turn.
    fn turn(
        &mut self,
        volume: &VolumeId,
        mut nodes: BTreeSet<NodeName>,
        (exclusive, now): (Option<&Exclusive>, Instant),
    ) -> BTreeSet<NodeName> {
        // Who may list an exclusive volume that no pod needs is seen from all its nodes, which are few.
        if self.desired.nodes(volume).is_none() && self.is_exclusive_by_attachments(volume) {
            nodes.extend(self.known(now).nodes_of(volume));
        }
        self.queue.add_new(volume.clone(), beyond_one_turn(&mut nodes));
        nodes.extend(exclusive.into_iter().flat_map(Exclusive::leaders).cloned());
        self.queue.forget(volume, &nodes);
        nodes.retain(|node| {
            self.desired.get(volume, node).is_some() || self.actual.node_volume(volume, node).is_some()
        });
        nodes
    }

    /// What is known of the volume on these nodes.
    fn view<'a>(
        &'a self,
        volume: &'a VolumeId,
        names: &'a BTreeSet<NodeName>,
        (exclusive, unreadable): (Option<&'a Exclusive>, &'a BTreeMap<NodeName, String>),
        now: Instant,
    ) -> VolumeView<'a> {
        let state = self.actual.volume(volume);
        let leads_to = |source: &VolumeName| volume_of(&self.objects, source).map(|volume| volume.id);
        let is_beside = |node: &NodeName| {
            let wanted = |other: &VolumeId| self.desired.get(other, node).is_some();
            // Force takes it in spite of its use.
            let overruled = |other: &VolumeId| {
                let (state, policy) = (self.actual.node(node), &self.options.force);
                let doubt = state.and_then(|state| state.doubts(other, policy));
                let it = self.actual.node_volume(other, node);
                it.is_some_and(|it| force(it, (state, doubt), policy, self.clock.wall(now)).is_ok())
            };
            !wanted(volume) && self.actual.is_beside_another(volume, node, leads_to, wanted, overruled)
        };
        // Who makes it is not read: its `managedFields` are asked for evidence of a second controller alone (S14).
        let made_again = |node: &NodeName| {
            let is_wanted = self.desired.get(volume, node).is_some();
            let until = self.deletions.pending(&NodeVolumeKey::new(volume, node), now);
            let until = until.filter(|_| !is_wanted)?;
            let writer = "another writer creates its VolumeAttachment".into();
            Some((Waiting::WriteUndone { writer }, Some(until)))
        };
        let stand_off = |node: &NodeName| {
            // Its driver would take another volume from this node in its place (S44).
            let conflict = || ConflictingNode { node: node.clone(), is_attached: true, is_own: true };
            let beside = || is_beside(node).then(|| Waiting::HeldByNode { conflict: conflict() });
            let is_held = state.is_some_and(|state| state.nodes.contains_key(node));
            let is_unreadable = is_held && self.unknown_needs.are_on(node);
            // The object is not named: it may be of another namespace than that of the pods that wait for the volume (S41), and
            // its pod is told of it.
            let unreadable = || Waiting::Unreadable { object: "what a pod there needs".to_owned() };
            if is_unreadable {
                return Some((unreadable(), None));
            }
            beside().map(|why| (why, None)).or_else(|| made_again(node))
        };
        let is_wanted = |other: &VolumeId, node: &NodeName| self.desired.get(other, node).is_some();
        let losing = self.actual.nodes_that_lose_it(volume, names, is_wanted);
        let is_left = |node: &NodeName| self.is_left(volume, node) || self.is_withheld(volume, node);
        VolumeView {
            volume,
            desired_nodes: self.desired.nodes(volume),
            actual: &self.actual,
            policy: self.options.force,
            exclusive,
            stand_off: self.stand_off(now),
            hand_over: self.hand_over(now),
            stood_off: names.iter().filter_map(|node| Some((node.clone(), stand_off(node)?))).collect(),
            leftovers: names.iter().filter(|node| is_left(node)).cloned().collect(),
            losing: losing.cloned().collect(),
            unreadable,
            names,
            wall: self.clock.wall(now),
        }
    }

    /// Whether the node lists a volume without attachments for pods that have not started, whose claim or volume does not
    /// lead to it any more, and its kubelet does not report it in use. A list alone gave those pods nothing (S44).
    pub(super) fn is_left(&self, volume: &VolumeId, node: &NodeName) -> bool {
        let is_wanted = |desired: &DesiredAttachment| desired.is_current() || desired.runs(&self.objects);
        volume.kind() == VolumeKind::NoOp
            && self.desired.get(volume, node).is_some_and(|desired| !is_wanted(desired))
            && self.actual.node_volume(volume, node).is_some_and(|node_volume| !node_volume.in_use)
    }

    /// Whether what the node has of the volume is of a machine that another one has replaced. A pod that has started keeps what it
    /// was given, as the number of a machine may change, too.
    fn is_withheld(&self, volume: &VolumeId, node: &NodeName) -> bool {
        let runs = |desired: &DesiredAttachment| desired.runs(&self.objects);
        self.actual.node(node).is_some_and(|state| state.withholds(volume))
            && self.actual.node_volume(volume, node).is_some_and(|it| it.may_be_attached() && !it.is_going())
            && !self.desired.get(volume, node).is_some_and(runs)
    }

    /// What the nodes of an exclusive volume, of which these are `unreadable`, are told of one another after these verdicts. Of
    /// one that is on one node alone, and that no attachment of another party keeps from it, there is nothing to tell: nearly
    /// all volumes are so.
    fn contention(
        &mut self,
        volume: &VolumeId,
        unreadable: &BTreeMap<NodeName, String>,
        verdicts: &BTreeMap<NodeName, NodeVerdict>,
        now: Instant,
    ) -> Contention {
        let state = self.actual.volume(volume);
        // When the attachment of another party ends, all are looked at that it held up.
        let has_foreign = state.is_some_and(|state| !state.foreign.is_empty());
        let is_alone = self.count_nodes(volume) <= 2 && self.known(now).nodes_of(volume).len() <= 1;
        if is_alone && !has_foreign {
            return Contention::default();
        }
        self.outbox.planned(Planned::Holder, state.map_or(0, |state| state.nodes.len()));
        let desired = self.desired.nodes(volume);
        let exclusive = Exclusive::of(volume, desired, &self.actual, unreadable);
        exclusive.map(|exclusive| Contention::new(&exclusive, desired, verdicts)).unwrap_or_default()
    }

    /// Carries a verdict out. Returns whether the volume on the node held the volume until now, and does not because of
    /// this verdict alone.
    fn apply(&mut self, volume: &VolumeId, node: &NodeName, verdict: &NodeVerdict, now: Instant) -> bool {
        // What its node's status is to say.
        let sent = self.dispatcher.last_sent;
        let is_needed = verdict.forced.is_some() && self.desired.nodes(volume).is_some();
        let node_volume = self.actual.node_volume_mut(volume, node);
        let held = node_volume.may_be_attached();
        if !held {
            self.actual.note_nothing_attached(volume, node);
        }
        let node_volume = self.actual.node_volume_mut(volume, node);
        let forced = force_off_the_list(node_volume, verdict, is_needed);
        if node_volume.publish(verdict.report_as_attached, verdict.unpublishes, sent) {
            self.queue.add_node(node.clone());
        }
        if let Some((reason, forced)) = forced {
            self.report_forced(volume, node, reason, forced);
        }
        // What it waits for.
        if let Some(at) = verdict.wake_at {
            self.queue.add_at(at, Key::NodeVolume(volume.clone(), node.clone()));
            for other in self.actual.beside(volume, node) {
                self.queue.add_at(at, Key::NodeVolume(other, node.clone()));
            }
        }
        self.force_waits.judged(node, verdict);
        let room = self.dispatcher.room();
        // What is done now. What has no room is judged again when there is room.
        let node_volume = self.actual.node_volume_mut(volume, node);
        match &verdict.step {
            Some(AttachStep::Create(_)) if room.new_volumes == 0 => {
                self.queue.add_new(volume.clone(), [node.clone()].into());
            }
            Some(AttachStep::Delete(..) | AttachStep::ReadAttachment)
                if self.queue.room_for_begun(room) == 0 =>
            {
                self.queue.add(volume.clone(), [node.clone()].into());
            }
            Some(AttachStep::Create(source)) => {
                let request = AttachmentRequest::Create(calls::create(volume, node, source));
                self.send(volume, node, request, now);
            }
            Some(AttachStep::Delete(uid, revision, proof)) => {
                // One that was not sent in the end is told already.
                let begins = verdict.forced.filter(|_| node_volume.forced != verdict.forced);
                node_volume.forced = verdict.forced;
                if let Some(reason) = begins {
                    self.report_forced(volume, node, reason, Forced::Begins);
                }
                let request = calls::delete(volume, node, (uid, *revision), proof);
                let request = AttachmentRequest::Delete(uid.clone(), *revision, request);
                self.send(volume, node, request, now);
            }
            Some(AttachStep::ReadAttachment) => {
                let name = volume.attachment_name(node);
                self.send(volume, node, AttachmentRequest::Read(name), now);
            }
            Some(AttachStep::ReadNode) => {
                // What was proven before is not proof enough.
                if matches!(node_volume.unpublishing, Unpublishing::Proven(_)) {
                    node_volume.unpublishing = Unpublishing::Since(sent);
                }
                self.queue.add_node(node.clone());
            }
            Some(AttachStep::GiveUp(_)) => {
                node_volume.mount = Mount::No;
                node_volume.told.is_attached = false;
                self.force_waits.begin();
                self.actual.node_mut(node).is_rid_of(volume);
                self.queue.add_on(node, self.actual.beside(volume, node));
                self.given_up(volume, node, now);
            }
            None => {}
        }
        held && !self.actual.node_volume_mut(volume, node).may_be_attached()
    }

    pub(super) fn send(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        request: AttachmentRequest,
        now: Instant,
    ) {
        let call = request.kind();
        let node_volume = self.actual.node_volume_mut(volume, node);
        node_volume.call = Some(call);
        match (&mut node_volume.undone, call) {
            (Some(undone), AttachmentCall::Create) => undone.sent(now),
            (Some(undone), AttachmentCall::Delete) => undone.withdrawn(now),
            _ => {}
        }
        let key = NodeVolumeKey::new(volume, node);
        match call {
            AttachmentCall::Create => self.deletions.withdrawn(&key),
            AttachmentCall::Delete => self.deletions.sent(key, now),
            AttachmentCall::Read => {}
        }
        self.dispatcher.send(Call::Attachment(volume.clone(), node.clone(), request), now);
    }

    /// Plans a node: sends it its list, or reads it live, at most one request at a time, so that answers come in the order of
    /// requests and no older list is ever sent after a newer one. Returns how many volumes on nodes were judged for that.
    pub(super) fn plan_node(&mut self, name: &NodeName, now: Instant) -> usize {
        self.outbox.planned(Planned::Node, 1);
        // 1. What its newest revision says, and whether its list is believed again. Its volumes are planned here and now: their
        //    turn is over, and nothing else may happen for a long time.
        let mut judged = 0;
        let changed = self.catch_up(name, now);
        let beside = changed.iter().flat_map(|volume| self.actual.beside(volume, name));
        self.queue.add_on(name, beside.collect::<Vec<_>>());
        for volume in changed {
            judged += self.plan_volume(&volume, [name.clone()].into(), now);
        }
        // 2. What is sent to it next.
        let target = ActTarget::Node(name.clone());
        let state = self.actual.node(name);
        if state.is_none_or(|state| state.node.is_none()) {
            // Who wrote to it can be read no more.
            self.second_writer.gone(&target);
        }
        let Some(state) = state else { return judged };
        let step = node_list::next(
            &NodeView {
                state,
                volumes: &self.actual.volumes_on(name).collect::<Vec<_>>(),
                is_stood_off: self.stand_off(now).is_some_and(|why| why.holds(Some(state))),
                asks_owner: self.second_writer.has_to_read(&target),
                window: self.dispatcher.pace.window(),
            },
            now,
        );
        // 3. It is sent, or looked at later.
        let node = state.node.clone();
        let known = node.as_deref().map(|node| node.metadata.resource_version);
        let requests = &mut self.actual.node_mut(name).requests;
        let (call, look_at) = match (step, node) {
            (NodeStep::Patch(_), None) => (None, None),
            (NodeStep::Wait(until), _) => {
                requests.pending_since = None;
                (None, until)
            }
            // The pace moves it with every answer: a look too early is repeated.
            (NodeStep::Gather { since, due }, _) => {
                requests.pending_since = Some(since);
                (None, Some(due))
            }
            (NodeStep::ReadOwner, _) => {
                let read = self.second_writer.take_read(|known| *known == target);
                if read.is_some() {
                    requests.read(known);
                }
                (read.map(|(target, uid)| Call::ReadOwner(target, uid)), None)
            }
            (NodeStep::Read, _) => {
                requests.read(known);
                (Some(Call::ReadNode(name.clone())), None)
            }
            (NodeStep::Patch(change), Some(node)) => {
                let request = node_list::patch(&node, &change.list);
                requests.patch(node.metadata.uid.clone(), change.list, now);
                self.actual.note_listing(name);
                self.outbox.push(Fact::Patched(change.volumes));
                (Some(Call::PatchNode(name.clone(), node.metadata.resource_version, request)), None)
            }
        };
        if let Some(at) = look_at {
            self.queue.add_at(at, Key::Node(name.clone()));
        }
        if let Some(call) = call {
            self.dispatcher.send(call, now);
        }
        judged
    }

    /// Brings the node up to the table before it is written to. A kubelet's heartbeat is a new revision whose content is not
    /// ours and changes no decision, but a patch that names the revision before it is refused. Believes a re-created node's
    /// list again if it is time, or sees to it that this is done in time. Returns the volumes for which something changed.
    fn catch_up(&mut self, name: &NodeName, now: Instant) -> BTreeSet<VolumeId> {
        self.observe_final_state(name, now);
        let mut changed = BTreeSet::new();
        let revision = |node: &Node| node.metadata.resource_version;
        let known = self.actual.node(name).and_then(|state| state.node.as_deref()).map(revision);
        if let Some(latest) = self.objects.nodes.get(name)
            && known.is_some_and(|known| known < revision(&latest))
        {
            changed = self.observe_node(name, Some(&latest), now);
        }
        changed.extend(self.actual.trust_node(name, &self.options.force, self.clock.wall(now)));
        let trusted_at = self.actual.node(name).and_then(|state| state.trusted_at(&self.options.force));
        if let Some(at) = trusted_at.and_then(|at| self.clock.instant(at)) {
            self.queue.add_at(at, Key::Node(name.clone()));
        }
        changed
    }
}

/// A volume without attachment is forced off the node's list, or given up. Returns what there is to tell of that. Of what this
/// process knows by a report alone, a predecessor may have told: it is told once more only if a pod needs it.
fn force_off_the_list(
    node_volume: &mut NodeVolume,
    verdict: &NodeVerdict,
    is_needed: bool,
) -> Option<(ForceReason, Forced)> {
    if node_volume.known.is_some() {
        // What is put back was not detached in the end: the next one by force is another.
        node_volume.forced.take_if(|_| verdict.report_as_attached == ReportAsAttached::Yes);
        return None;
    }
    match (verdict.forced, node_volume.forced) {
        (Some(reason), None) if is_needed || node_volume.mount == Mount::Possible => {
            node_volume.forced = Some(reason);
            Some((reason, Forced::Begins))
        }
        (None, Some(done)) if node_volume.mount == Mount::No => {
            node_volume.forced = None;
            Some((done, Forced::Done))
        }
        (None, Some(_)) if node_volume.listed => {
            node_volume.forced = None;
            None
        }
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests;
