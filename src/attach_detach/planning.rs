//! Planning: which dirty volumes and nodes have their turn, and what follows from the verdicts on a volume.
//!
//! In: dirty volumes, each with the nodes on which something happened; the room for requests. Out: requests, as far as
//! there is room; timers; events and reports. A request that has no room is not kept: its volume is put back, behind
//! those that wait, and judged anew when there is room, for its pod may be gone by then (S8, S15). So one volume on a
//! thousand nodes keeps no other waiting. A turn ends after so many volumes on nodes, also if more are dirty.

use tokio::time::Instant;

use super::{
    actual::{identification::volume_of, state::AttachmentCall},
    controller::Controller,
    decide::{
        exclusivity::Exclusivity,
        reconciler::{self, VolumeView},
        scope::Scope,
        verdict::{Step, Verdict},
    },
    desired::volume_name::VolumeId,
    guard::blocks::unreadable_on,
    queue::AT_ONCE,
    tell::metrics::Planned,
    turn::{Turn, others},
};
use crate::kube_api::ids::{NodeName, VolumeName};

impl Controller {
    /// Plans dirty volumes and nodes until there is no room, or it was enough for once.
    pub(super) fn plan_dirty(&mut self, now: Instant) {
        let mut judged = 0;
        while judged < AT_ONCE
            && let Some((volume, scope)) = self.caches.queue.get(self.dispatcher.room())
        {
            judged += self.reconcile_volume(&volume, scope, now).max(1);
        }
        let mut looked_at = 0;
        while looked_at < AT_ONCE
            && let Some(node) = self.caches.queue.get_node(self.dispatcher.room())
        {
            looked_at += self.reconcile_node(&node, now).max(1);
        }
        self.caches.queue.end_turn(self.dispatcher.room(), now);
    }

    /// Plans one volume on a node out of turn. Returns how many volumes on nodes were judged for that.
    pub(super) fn reconcile_node_volume(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        now: Instant,
    ) -> usize {
        let scope = self.caches.actual.scope_of(volume, node);
        self.reconcile_volume(volume, scope, now)
    }

    /// Plans a volume on the nodes of the scope, and at who holds it if it is exclusive. If the others have to hear
    /// news of that, or there are too many for once, they have another turn. Returns for how many volumes on nodes that
    /// was work.
    fn reconcile_volume(&mut self, volume: &VolumeId, scope: Scope, now: Instant) -> usize {
        self.recorder.planned(Planned::Volume, 1);
        let unreadable = self.unreadable.of(volume, &self.caches.objects, &self.caches.actual);
        let wall = self.caches.clock.wall(now);
        if self.caches.desired.nodes(volume).is_some() {
            let (found, computed) = self.caches.actual.recognise(volume, wall);
            self.recorder.planned(Planned::Name, computed);
            for attachment in found {
                self.caches.actual.note_exclusivity(volume, Exclusivity::Unknown);
                self.recorder.foreign(&attachment, &self.caches.actual);
            }
        }
        let turn = Turn::of(volume, scope, unreadable.is_some(), self.caches.known(now));
        let scope = &turn.scope;
        if *scope == Scope::All || turn.is_cut {
            self.caches.queue.forget(volume);
        }
        let desired_nodes = self.caches.desired.nodes(volume);
        let wanted =
            |node: &NodeName| desired_nodes.is_some_and(|desired_nodes| desired_nodes.contains_key(node));
        self.caches.actual.note_undesired(volume, scope, wanted, wall);
        let state = self.caches.actual.volume(volume);
        let names = reconciler::names(desired_nodes, state, scope);
        let leads_to = |source: &VolumeName| volume_of(&self.caches.objects, source);
        let is_beside =
            |node: &&NodeName| !wanted(node) && self.caches.actual.is_beside_another(volume, node, leads_to);
        let beside = names.iter().copied().filter(is_beside).cloned().collect();
        let leftovers = self.caches.leftovers(volume, names.iter().copied());
        let nodes =
            names.into_iter().filter_map(|name| self.caches.actual.node(name).map(|node| (name, node)));
        let view = VolumeView {
            volume,
            desired_nodes,
            state,
            scope,
            nodes: nodes.collect(),
            policy: self.options.force,
            exclusive: turn.exclusive.as_ref(),
            stand_off: self.stand_off(now),
            beside,
            leftovers,
            unreadable: unreadable_on(volume, unreadable.as_ref(), self.caches.known(now)),
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
        let work = turn.work(&verdicts);
        if makes_way {
            // The nodes that wait for it need no event about it first (L13).
            let scope = if turn.is_cut { Scope::All } else { turn.scope };
            return work + self.reconcile_volume(volume, scope, now);
        }
        let exclusivity = turn.exclusivity(volume, is_readable, &verdicts, self.caches.known(now));
        let is_news = self.caches.actual.volume(volume).is_some_and(|state| state.exclusivity != exclusivity);
        self.caches.actual.note_exclusivity(volume, exclusivity);
        if turn.is_cut || (is_news && *scope != Scope::All) {
            // Those that have not been judged now are judged when it is their turn.
            let others = others(volume, &verdicts, self.caches.known(now));
            if !others.is_empty() {
                self.caches.queue.add_new(volume.clone(), Scope::Nodes(others));
            }
        }
        let is_exclusive = turn.exclusive.is_some();
        let (recorder, known) = self.recording(now);
        for (node, at) in recorder.judged(volume, scope, is_exclusive, &verdicts, known) {
            self.caches.queue.add_node_volume_at([at], volume, &node);
        }
        self.prune(volume, scope);
        let (recorder, known) = self.recording(now);
        recorder.counted(volume, turn.scope, verdicts.keys(), known);
        work
    }

    /// What was decided and had no room to be sent is judged again when there is room.
    fn put_back(&mut self, volume: &VolumeId, node: &NodeName, verdict: &Verdict) {
        let Some(call) = verdict.step.as_ref().and_then(Step::call) else { return };
        if self.caches.actual.node_volume(volume, node).is_some_and(|node_volume| node_volume.call.is_some())
        {
            return;
        }
        let scope = self.caches.actual.scope_of(volume, node);
        if call == AttachmentCall::Create {
            self.caches.queue.add_new(volume.clone(), scope);
        } else {
            self.caches.queue.add(volume.clone(), scope);
        }
    }
}
