//! Planning: which dirty volumes and nodes have their turn, and what follows from the verdicts on a volume.
//!
//! In: dirty volumes, each with the nodes on which something happened; the room for requests. Out: requests, as far as
//! there is room; timers; events and reports. A request that has no room is not kept: its volume is put back, behind
//! those that wait, and judged anew when there is room, for its pod may be gone by then (S8, S15). So one volume on a
//! thousand nodes keeps no other waiting. A turn ends after so many volumes on nodes, also if more are dirty.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use super::{
    actual::{
        identification::{is_exclusive, is_exclusive_by_attachments},
        state::AttachmentCall,
    },
    controller::Controller,
    decide::{
        csi::{Step, Verdict},
        multi_attach::{Exclusive, Exclusivity},
        reconciler::{self, VolumeView},
        scope::Scope,
    },
    desired::{state::DesiredAttachment, volume_name::VolumeId},
    queue::AT_ONCE,
    tell::metrics::Planned,
};
use crate::{
    kube_api::ids::{AttachmentName, NodeName},
    state::VecMap,
};

/// So many nodes are seen in the time in which one is judged: whether each holds an exclusive volume.
const SEEN_FOR_ONE: usize = 32;

/// What is judged of a volume at once.
struct Turn {
    scope: Scope,
    exclusive: Option<Exclusive>,
    /// Whether what is on one node may matter to another.
    may_be_shared: bool,
    /// Whether that is not all that is to be judged.
    is_cut: bool,
    /// At how many nodes it was looked for that.
    seen: usize,
}

impl Controller {
    /// Marks a volume dirty that pods need on a node, or no longer do. To be rid of it is something that has begun.
    pub(super) fn touch_desired(&mut self, volume: &VolumeId, node: &NodeName, now: Instant) {
        let desired = self.desired.get(volume, node);
        let (is_wanted, is_exclusive) =
            (desired.is_some(), desired.is_some_and(DesiredAttachment::is_exclusive));
        if is_exclusive {
            self.actual.note_not_shared(volume);
        }
        if is_wanted {
            self.note_desired(volume, node, now);
            self.queue.add_new(volume.clone(), self.actual.scope_of(volume, node));
        } else {
            self.actual.note_desire_ended(volume, node, self.clock.wall(now));
            self.queue.add_on(node, [volume.clone()], &self.actual);
        }
    }

    /// No wait for force goes on, from now and not only when the volume has its turn: its pod may be gone by then (S4).
    fn note_desired(&mut self, volume: &VolumeId, node: &NodeName, now: Instant) {
        if self.leads {
            self.force_timers.break_off(volume, node);
            self.actual.note_undesired(volume, &Scope::of(node), |_| true, self.clock.wall(now));
        }
    }

    /// A VolumeAttachment that comes may say that its volume is not shared (S1).
    pub(super) fn note_exclusive(&mut self, volume: &VolumeId, name: &AttachmentName) {
        let attachment = self.objects.attachments.get(name);
        if attachment.is_some_and(|attachment| is_exclusive(&self.objects, &attachment)) {
            self.actual.note_not_shared(volume);
        }
    }

    /// Plans dirty volumes and nodes until there is no room, or it was enough for once.
    pub(super) fn plan_dirty(&mut self, now: Instant) {
        let mut judged = 0;
        while judged < AT_ONCE
            && let Some((volume, scope)) = self.queue.get(self.dispatcher.room())
        {
            judged += self.reconcile_volume(&volume, scope, now).max(1);
        }
        let mut looked_at = 0;
        while looked_at < AT_ONCE
            && let Some(node) = self.queue.get_node(self.dispatcher.room())
        {
            looked_at += self.reconcile_node(&node, now).max(1);
        }
        self.queue.end_turn(self.dispatcher.room(), now);
    }

    /// Plans one volume on a node out of turn. Returns how many volumes on nodes were judged for that.
    pub(super) fn reconcile_node_volume(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        now: Instant,
    ) -> usize {
        let scope = self.actual.scope_of(volume, node);
        self.reconcile_volume(volume, scope, now)
    }

    /// Plans a volume on the nodes of the scope, and at who holds it if it is exclusive. If the others have to hear
    /// news of that, or there are too many for once, they have another turn. Returns for how many volumes on nodes that
    /// was work.
    fn reconcile_volume(&mut self, volume: &VolumeId, scope: Scope, now: Instant) -> usize {
        self.recorder.planned(Planned::Volume, 1);
        let unreadable = self.unreadable.of(volume, &self.objects, &self.actual);
        let wall = self.clock.wall(now);
        if self.desired.nodes(volume).is_some() {
            let (found, computed) = self.actual.recognise(volume, wall);
            self.recorder.planned(Planned::Name, computed);
            for attachment in found {
                self.actual.note_exclusivity(volume, Exclusivity::Unknown);
                self.recorder.foreign(&attachment, &self.actual);
            }
        }
        let turn = self.turn(volume, scope, unreadable.is_some());
        let (scope, exclusive) = (turn.scope, turn.exclusive);
        if scope == Scope::All || turn.is_cut {
            self.queue.forget(volume);
        }
        let desired_nodes = self.desired.nodes(volume);
        let wanted =
            |node: &NodeName| desired_nodes.is_some_and(|desired_nodes| desired_nodes.contains_key(node));
        self.actual.note_undesired(volume, &scope, wanted, wall);
        let state = self.actual.volume(volume);
        let names = reconciler::names(desired_nodes, state, &scope);
        let nodes = names.into_iter().filter_map(|name| self.actual.node(name).map(|node| (name, node)));
        let blocks = self.blocks(now);
        let view = VolumeView {
            volume,
            desired_nodes,
            state,
            scope: &scope,
            nodes: nodes.collect(),
            policy: self.options.force,
            exclusive: exclusive.as_ref(),
            stand_off: blocks.everywhere(),
            stand_off_on: blocks.on_nodes_of(volume),
            unreadable: blocks.unreadable(volume, unreadable.as_ref()),
            wall,
        };
        let verdicts = reconciler::plan(&view, now);
        // When an object can be read again, all are looked at that it held up.
        let is_readable = view.unreadable.is_empty();
        self.recorder.planned(Planned::NodeVolume, verdicts.len());
        let mut makes_way = false;
        for (node, verdict) in &verdicts {
            makes_way |= self.apply(volume, node, verdict, now);
        }
        for (node, verdict) in &verdicts {
            self.put_back(volume, node, verdict);
        }
        let work = verdicts.len() + turn.seen / SEEN_FOR_ONE;
        if makes_way {
            // The nodes that wait for it need no event about it first (L13).
            let scope = if turn.is_cut { Scope::All } else { scope };
            return work + self.reconcile_volume(volume, scope, now);
        }
        let exclusivity = match (is_readable, turn.may_be_shared) {
            (false, _) | (true, false) => Exclusivity::Unknown,
            (true, true) => self.exclusivity(volume, exclusive.is_some(), &verdicts),
        };
        let is_news = self.actual.volume(volume).is_some_and(|state| state.exclusivity != exclusivity);
        self.actual.note_exclusivity(volume, exclusivity);
        if turn.is_cut || (is_news && scope != Scope::All) {
            self.judge_others_later(volume, &verdicts);
        }
        let is_exclusive = exclusive.is_some();
        let (recorder, known) = self.recording(now);
        for (node, at) in recorder.judged(volume, &scope, is_exclusive, &verdicts, known) {
            self.queue.add_node_volume_at([at], volume, &node);
        }
        self.prune(volume, &scope);
        let (recorder, known) = self.recording(now);
        recorder.counted(volume, scope, verdicts.keys(), known);
        work
    }

    /// On which nodes a volume is judged now, given on which it is to be.
    fn turn(&self, volume: &VolumeId, scope: Scope, is_unreadable: bool) -> Turn {
        let (desired_nodes, state) = (self.desired.nodes(volume), self.actual.volume(volume));
        let exclusivity = state.map_or(&Exclusivity::Unknown, |state| &state.exclusivity);
        let is_some_nodes = scope != Scope::All && !is_unreadable;
        if *exclusivity == Exclusivity::Shared && is_some_nodes {
            return Turn { scope, exclusive: None, may_be_shared: true, is_cut: false, seen: 0 };
        }
        // A volume on one node that no pod needs concerns no other node; one on several may be desired next.
        let may_be_shared = desired_nodes.is_some() || state.is_some_and(|state| state.nodes.len() > 1);
        let is_exclusive = desired_nodes
            .is_some_and(|desired_nodes| desired_nodes.values().any(DesiredAttachment::is_exclusive))
            || (may_be_shared
                && state.is_some_and(|state| is_exclusive_by_attachments(&self.objects, state)));
        let exclusive = is_exclusive
            .then(|| Exclusive::of(volume, desired_nodes, state, |name| self.actual.node(name)))
            .flatten();
        let seen = desired_nodes.map_or(0, VecMap::len) + state.map_or(0, |state| state.nodes.len());
        let leaders = || exclusive.iter().flat_map(Exclusive::leaders).cloned();
        let (scope, is_cut) = match (scope, exclusivity) {
            (Scope::Nodes(mut nodes), Exclusivity::Exclusive(_)) if is_some_nodes && exclusive.is_some() => {
                nodes.extend(leaders());
                (Scope::Nodes(nodes), false)
            }
            _ if seen <= AT_ONCE || is_unreadable => (Scope::All, false),
            _ => {
                let names = reconciler::names(desired_nodes, state, &Scope::All);
                let now = leaders().chain(names.into_iter().take(AT_ONCE).cloned());
                (Scope::Nodes(now.collect()), true)
            }
        };
        // One that only nodes without such pods have concerns no other.
        let may_be_shared = may_be_shared && (exclusive.is_some() || !is_exclusive);
        Turn { scope, exclusive, may_be_shared, is_cut, seen }
    }

    /// What events say, now or next, on the nodes that wait for the volume.
    fn exclusivity(
        &self,
        volume: &VolumeId,
        is_exclusive: bool,
        verdicts: &BTreeMap<NodeName, Verdict>,
    ) -> Exclusivity {
        if !is_exclusive {
            return Exclusivity::Shared;
        }
        let (desired_nodes, state) = (self.desired.nodes(volume), self.actual.volume(volume));
        // On one node alone no other waits for it. Nearly all volumes are so, and nothing is kept for them.
        let most = desired_nodes.map_or(0, VecMap::len).max(state.map_or(0, |state| state.nodes.len()));
        if most <= 1 && reconciler::names(desired_nodes, state, &Scope::All).len() <= 1 {
            return Exclusivity::Unknown;
        }
        // What was decided now counts.
        match Exclusive::of(volume, desired_nodes, state, |name| self.actual.node(name)) {
            Some(exclusive) => Exclusivity::Exclusive(Box::new(exclusive.told(desired_nodes, verdicts))),
            None => Exclusivity::Unknown,
        }
    }

    /// Those that have not been judged now are judged when it is their turn.
    fn judge_others_later(&mut self, volume: &VolumeId, judged: &BTreeMap<NodeName, Verdict>) {
        let names = reconciler::names(self.desired.nodes(volume), self.actual.volume(volume), &Scope::All);
        let others: BTreeSet<NodeName> =
            names.into_iter().filter(|name| !judged.contains_key(*name)).cloned().collect();
        if !others.is_empty() {
            self.queue.add_new(volume.clone(), Scope::Nodes(others));
        }
    }

    /// What was decided and had no room to be sent is judged again when there is room.
    fn put_back(&mut self, volume: &VolumeId, node: &NodeName, verdict: &Verdict) {
        let Some(call) = verdict.step.as_ref().and_then(Step::call) else { return };
        if self.actual.node_volume(volume, node).is_some_and(|node_volume| node_volume.call.is_some()) {
            return;
        }
        let scope = self.actual.scope_of(volume, node);
        if call == AttachmentCall::Create {
            self.queue.add_new(volume.clone(), scope);
        } else {
            self.queue.add(volume.clone(), scope);
        }
    }
}
