//! Planning: which dirty volumes and nodes have their turn, and the steps in which a volume is planned.
//!
//! In: dirty volumes, each with the nodes on which something happened; the room for requests. Out: requests, as far as
//! there is room; timers; events and reports. A request that has no room is not kept: its volume is put back, behind
//! those that wait, and judged anew when there is room, for its pod may be gone by then (S8, S15). So one volume on a
//! thousand nodes keeps no other waiting. A turn ends after so many volumes on nodes, also if more are dirty.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

use super::{
    actual::identification::volume_of,
    controller::Controller,
    decide::{
        contention::Contention,
        multi_attach::Exclusive,
        reconciler::{self, VolumeView},
        scope::Scope,
        verdict::Verdict,
    },
    desired::volume_name::VolumeId,
    guard::unreadable::unreadable_on,
    known::Known,
    queue::AT_ONCE,
    tell::metrics::Planned,
};
use crate::{
    kube_api::ids::{NodeName, VolumeName},
    state::VecMap,
};

/// So many nodes are seen in the time in which one is judged: whether each holds an exclusive volume.
const SEEN_FOR_ONE: usize = 32;

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

    /// Plans a volume on the nodes of the scope, and where it is held if it is exclusive. Returns for how many volumes on
    /// nodes that was work. The order of the steps is safety: what is known first, then who holds it, then the verdicts, and
    /// each is carried out before anything is told of it.
    pub(super) fn reconcile_volume(&mut self, volume: &VolumeId, scope: Scope, now: Instant) -> usize {
        self.recorder.planned(Planned::Volume, 1);
        // 1. Attachments that nothing has explained so far may be its.
        self.recognise(volume, now);
        // 2. Who holds it, of all its nodes (S1), and on which nodes it is judged.
        let exclusive = self.exclusive(volume);
        let seen = exclusive.as_ref().map_or(0, |_| self.count_nodes(volume));
        let scope = self.turn(volume, scope, exclusive.as_ref());
        // 3. The verdicts.
        let unreadable = unreadable_on(volume, self.caches.known(now));
        let is_blocked = !unreadable.is_empty();
        let verdicts = self.judge(volume, &scope, (exclusive.as_ref(), unreadable), now);
        let work = verdicts.len() + seen / SEEN_FOR_ONE;
        self.recorder.planned(Planned::NodeVolume, verdicts.len());
        // 4. Each is carried out: the state, a request.
        let mut makes_way = false;
        for (node, verdict) in &verdicts {
            makes_way |= self.apply(volume, node, verdict, now);
        }
        if makes_way {
            // The nodes that wait for it need no event about it first (L13).
            return work + self.reconcile_volume(volume, scope, now);
        }
        // 5. The other nodes hear of it when it is their turn, if it is news to them.
        let told = self.told(volume, exclusive.as_ref(), is_blocked, &verdicts);
        if self.caches.actual.tell(volume, told) && scope != Scope::All {
            let mut others = self.names(volume);
            others.retain(|name| !verdicts.contains_key(name));
            // That nobody keeps it from them any more is told where all are judged.
            let is_free = exclusive.is_none() && !others.is_empty();
            let others = if is_free { Scope::All } else { Scope::Nodes(others) };
            self.caches.queue.add_new(volume.clone(), others);
        }
        // 6. Users and operators hear of it.
        let (recorder, known) = self.recording(now);
        for (node, at) in recorder.judged(volume, &scope, exclusive.is_some(), &verdicts, known) {
            self.caches.queue.add_node_volume_at([at], volume, &node);
        }
        // 7. What has ended is forgotten.
        self.prune(volume, &scope);
        let (recorder, known) = self.recording(now);
        recorder.counted(volume, scope, verdicts.keys(), known);
        work
    }

    /// Looks for the volume's attachments among those that nothing has explained so far.
    fn recognise(&mut self, volume: &VolumeId, now: Instant) {
        if self.caches.desired.nodes(volume).is_none() {
            return;
        }
        let (found, computed) = self.caches.actual.recognise(volume, self.caches.clock.wall(now));
        self.recorder.planned(Planned::Name, computed);
        for attachment in found {
            self.recorder.foreign(&attachment, &self.caches.actual);
        }
    }

    /// Who has the volume, or is to have it, if it may be on one node only.
    fn exclusive(&self, volume: &VolumeId) -> Option<Exclusive> {
        let (desired, actual) = (&self.caches.desired, &self.caches.actual);
        let is_exclusive = desired.is_exclusive(volume) || self.is_exclusive_by_attachments(volume);
        is_exclusive.then(|| Exclusive::of(volume, desired.nodes(volume), actual)).flatten()
    }

    fn is_exclusive_by_attachments(&self, volume: &VolumeId) -> bool {
        self.caches.actual.volume(volume).is_some_and(|state| state.is_exclusive)
    }

    fn names(&self, volume: &VolumeId) -> BTreeSet<NodeName> {
        let (desired, actual) = (&self.caches.desired, &self.caches.actual);
        reconciler::names(desired.nodes(volume), actual.volume(volume), &Scope::All)
            .into_iter()
            .cloned()
            .collect()
    }

    fn count_nodes(&self, volume: &VolumeId) -> usize {
        let (desired, actual) = (&self.caches.desired, &self.caches.actual);
        desired.nodes(volume).map_or(0, VecMap::len)
            + actual.volume(volume).map_or(0, |state| state.nodes.len())
    }

    /// On which nodes the volume is judged now: those where something happened, and those that matter to all others. If
    /// these are too many for once, the rest has another turn.
    fn turn(&mut self, volume: &VolumeId, scope: Scope, exclusive: Option<&Exclusive>) -> Scope {
        // Who may list an exclusive volume that no pod needs is seen from all its nodes, which are few.
        let is_unwanted = self.caches.desired.nodes(volume).is_none();
        let scope = if is_unwanted && self.is_exclusive_by_attachments(volume) { Scope::All } else { scope };
        let leaders = || exclusive.into_iter().flat_map(Exclusive::leaders).cloned();
        let scope = match scope {
            Scope::Nodes(mut nodes) => {
                nodes.extend(leaders());
                Scope::Nodes(nodes)
            }
            Scope::All if self.count_nodes(volume) <= AT_ONCE => Scope::All,
            Scope::All => {
                let mut nodes = self.names(volume);
                let mut others =
                    nodes.iter().nth(AT_ONCE).cloned().map(|next| nodes.split_off(&next)).unwrap_or_default();
                nodes.extend(leaders());
                others.retain(|node| !nodes.contains(node));
                self.caches.queue.forget(volume, &Scope::All);
                self.caches.queue.add_new(volume.clone(), Scope::Nodes(others));
                Scope::Nodes(nodes)
            }
        };
        self.caches.queue.forget(volume, &scope);
        scope
    }

    fn judge(
        &mut self,
        volume: &VolumeId,
        scope: &Scope,
        (exclusive, unreadable): (Option<&Exclusive>, BTreeMap<NodeName, String>),
        now: Instant,
    ) -> BTreeMap<NodeName, Verdict> {
        let wall = self.caches.clock.wall(now);
        let desired_nodes = self.caches.desired.nodes(volume);
        let wanted =
            |node: &NodeName| desired_nodes.is_some_and(|desired_nodes| desired_nodes.contains_key(node));
        self.caches.actual.note_undesired(volume, scope, wanted, wall);
        let Known { objects, actual, .. } = self.caches.known(now);
        let state = actual.volume(volume);
        let names = reconciler::names(desired_nodes, state, scope);
        let leads_to = |source: &VolumeName| volume_of(objects, source).map(|volume| volume.id);
        let is_beside = |node: &&NodeName| !wanted(node) && actual.is_beside_another(volume, node, leads_to);
        let view = VolumeView {
            volume,
            desired_nodes,
            state,
            scope,
            policy: self.options.force,
            exclusive,
            stand_off: self.stand_off(now),
            beside: names.iter().copied().filter(is_beside).cloned().collect(),
            leftovers: self.caches.leftovers(volume, names.iter().copied()),
            unreadable,
            nodes: names.into_iter().filter_map(|name| Some((name, actual.node(name)?))).collect(),
            wall,
        };
        reconciler::plan(&view, now)
    }

    /// What the nodes of the volume are told of one another after these verdicts. Of one that is on one node alone, and that
    /// no attachment of another party and no unreadable object keeps from it, nothing is kept: nearly all volumes are so.
    fn told(
        &self,
        volume: &VolumeId,
        exclusive: Option<&Exclusive>,
        is_blocked: bool,
        verdicts: &BTreeMap<NodeName, Verdict>,
    ) -> Option<Box<Contention>> {
        // When an object can be read again, or the attachment of another party ends, all are looked at that it held up.
        let has_foreign = self.caches.actual.volume(volume).is_some_and(|state| !state.foreign.is_empty());
        let is_alone = self.count_nodes(volume) <= 2 && self.names(volume).len() <= 1;
        if is_alone && !has_foreign && !is_blocked {
            return None;
        }
        // What was decided now counts.
        let (desired, actual) = (&self.caches.desired, &self.caches.actual);
        let desired_nodes = desired.nodes(volume);
        let exclusive = exclusive.and_then(|_| Exclusive::of(volume, desired_nodes, actual));
        Contention::new(is_blocked, exclusive.as_ref(), desired_nodes, verdicts)
    }
}
