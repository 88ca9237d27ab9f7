//! Planning: which dirty volumes and nodes have their turn, and what follows from the verdicts on a volume.
//!
//! In: dirty volumes, each with the nodes on which something happened; the room for requests. Out: requests, as far as
//! there is room; timers; what is told. A request that has no room is not kept: its pair is put back, behind the
//! volumes that wait, and judged anew when there is room, for its pod may be gone by then (S8, S15). So one volume on a
//! thousand nodes keeps no other waiting. A turn ends after so many pairs, whatever there is left to do.

use tokio::time::Instant;

use super::{
    actual_state::{Pair, PairCall, Publication},
    calls::{self, PairRequest},
    controller::{Controller, Dirty},
    desired_state::Wish,
    force::{ForceReason, Unforced},
    force_timers::{Failure, Wait, WaitKey},
    identification::{is_exclusive, is_held_exclusively},
    metrics::{Counted, Planned},
    reconciler::{self, VolumeView},
    room::NODE_CALLS,
    rules::{Step, Verdict, Waiting},
    scope::Scope,
    telling::Others,
    volume_name::VolumeId,
    withdrawal::Withdrawal,
};
use crate::kube_api::{
    ids::{AttachmentName, NodeName},
    kinds::Node,
};

/// So many pairs are judged, and so many nodes and objects looked at, before what came in meanwhile is taken: some
/// tens of microseconds each where it is slow, so 50 ms at most (L15). A volume that is to be judged on all nodes is
/// judged whole, though: who waits is told who holds it.
pub(super) const AT_ONCE: usize = 1_000;

impl Controller {
    /// Marks a volume dirty with which something happened on a node.
    pub(super) fn touch(&mut self, volume: VolumeId, node: &NodeName) {
        let scope = self.scope_of(&volume, node);
        self.dirty_volumes.push(volume, scope);
    }

    /// Marks several.
    pub(super) fn touch_on(&mut self, node: &NodeName, volumes: impl IntoIterator<Item = VolumeId>) {
        for volume in volumes {
            self.touch(volume, node);
        }
    }

    /// Marks a volume dirty that pods want on a node, or no longer do. To be rid of it is something that has begun.
    pub(super) fn touch_wish(&mut self, volume: &VolumeId, node: &NodeName, now: Instant) {
        let wish = self.desired.wish(volume, node);
        if wish.is_some_and(Wish::is_exclusive) {
            self.actual.note_shared(volume, false);
        }
        if wish.is_some() {
            self.dirty_volumes.push_new(volume.clone(), self.scope_of(volume, node));
        } else {
            self.actual.note_wish_ended(volume, node, self.clock.wall(now));
            self.touch(volume.clone(), node);
        }
    }

    /// A VolumeAttachment that comes may say that its volume is not shared (S1).
    pub(super) fn note_exclusive(&mut self, volume: &VolumeId, name: &AttachmentName) {
        let is_shared = self.actual.volume(volume).is_some_and(|state| state.shared);
        if is_shared
            && let Some(attachment) = self.objects.attachments.get(name)
            && is_exclusive(&self.objects, &attachment)
        {
            self.actual.note_shared(volume, false);
        }
    }

    /// What there is to look at when something happened on a node.
    fn scope_of(&self, volume: &VolumeId, node: &NodeName) -> Scope {
        match self.actual.volume(volume) {
            Some(state) if state.shared => Scope::of(node),
            _ => Scope::All,
        }
    }

    /// Plans dirty volumes and nodes until there is no room, or it was enough for once.
    pub(super) fn plan_dirty(&mut self, now: Instant) {
        let mut judged = 0;
        while judged < AT_ONCE
            && let Some((volume, scope)) = self.next_volume()
        {
            judged += self.reconcile_volume(&volume, scope, now).max(1);
        }
        let mut looked_at = 0;
        while looked_at < AT_ONCE
            && self.node_calls < NODE_CALLS
            && let Some(node) = self.dirty_nodes.pop()
        {
            looked_at += self.reconcile_node(&node, now).max(1);
        }
        let has_volumes = (!self.dirty_volumes.none_begun() && self.room.left() > 0)
            || (!self.dirty_volumes.none_new() && self.room.left_for_creates() > 0);
        let has_nodes = !self.dirty_nodes.is_empty() && self.node_calls < NODE_CALLS;
        self.goes_on_at = (has_volumes || has_nodes || self.has_more_to_survey()).then_some(now);
    }

    /// The volume whose turn it is. One that is shared has it with as many nodes as there is room, for each may need a
    /// request.
    fn next_volume(&mut self) -> Option<(VolumeId, Scope)> {
        let (left, for_creates) = (self.room.left(), self.room.left_for_creates());
        let begun = if left > 0 { self.dirty_volumes.pop_begun(left) } else { None };
        if begun.is_some() || for_creates == 0 {
            return begun;
        }
        self.dirty_volumes.pop_new(for_creates)
    }

    /// Plans one pair out of turn. Returns how many pairs were judged for that.
    pub(super) fn reconcile_pair(&mut self, volume: &VolumeId, node: &NodeName, now: Instant) -> usize {
        let scope = self.scope_of(volume, node);
        self.reconcile_volume(volume, scope, now)
    }

    /// Plans a volume: on the nodes of the scope if it is shared, otherwise on all. Returns how many pairs were
    /// judged.
    fn reconcile_volume(&mut self, volume: &VolumeId, scope: Scope, now: Instant) -> usize {
        self.metrics.planned(Planned::Volume);
        let unreadable = self.unreadable_attachment(volume);
        let wishes = self.desired.nodes(volume);
        let wall = self.clock.wall(now);
        if wishes.is_some() {
            let (found, computed) = self.actual.recognise(volume, wall);
            self.metrics.planned_many(Planned::Name, computed);
            for attachment in found {
                self.actual.note_shared(volume, false);
                self.note_foreign(&attachment, now);
            }
        }
        let is_shared = self.actual.volume(volume).is_some_and(|state| state.shared);
        let scope = if is_shared && unreadable.is_none() { scope } else { Scope::All };
        if scope == Scope::All {
            self.dirty_volumes.forget(volume);
        }
        let wanted = |node: &NodeName| wishes.is_some_and(|wishes| wishes.contains_key(node));
        self.actual.note_unwanted(volume, &scope, wanted, wall);
        let state = self.actual.volume(volume);
        let names = reconciler::names(wishes, state, &scope);
        let nodes = names.into_iter().filter_map(|name| self.actual.node(name).map(|node| (name, node)));
        // What one has that nobody wants matters to nobody else; what several have may be wanted next.
        let may_be_shared = wishes.is_some() || state.is_some_and(|state| state.pairs.len() > 1);
        let view = VolumeView {
            volume,
            wishes,
            state,
            scope: &scope,
            nodes: nodes.collect(),
            policy: self.options.force,
            held_exclusively: scope == Scope::All
                && may_be_shared
                && state.is_some_and(|state| is_held_exclusively(&self.objects, state)),
            stand_off: self.stand_off(now),
            stand_off_on: self.stand_off_on(volume, wishes),
            unreadable: self.unreadable(volume, unreadable.as_ref(), wishes),
            wall,
        };
        let verdicts = reconciler::plan(&view, now);
        // When an object can be read again, all are looked at that it held up.
        let is_shared = match &scope {
            Scope::All => may_be_shared && !reconciler::is_exclusive(&view),
            Scope::Nodes(_) => true,
        };
        let is_shared = is_shared && view.unreadable.is_empty();
        self.metrics.planned_many(Planned::Pair, verdicts.len());
        let mut makes_way = false;
        for (node, verdict) in &verdicts {
            makes_way |= self.apply(volume, node, verdict, now);
        }
        self.actual.note_shared(volume, is_shared);
        for (node, verdict) in &verdicts {
            self.put_back(volume, node, verdict);
        }
        if makes_way {
            // Whoever waits for it need not be told of it first (L13).
            return verdicts.len() + self.reconcile_volume(volume, scope, now);
        }
        let others = Others { verdicts: &verdicts, holders: self.holders(volume, &scope) };
        for (node, verdict) in &verdicts {
            self.count_decision(volume, node, verdict);
            self.time(volume, node, verdict, now);
            self.tell(volume, node, verdict, &others, now);
        }
        let desired = &self.desired;
        self.actual.prune(volume, &scope, |node| desired.wish(volume, node).is_some());
        let counted = verdicts.keys().map(|node| {
            let holds = self.actual.pair(volume, node).is_some_and(Pair::holds);
            let users = desired.wish(volume, node).map_or(0, |wish| wish.pods.len());
            (node.clone(), Counted { holds, users: i64::try_from(users).unwrap_or(i64::MAX) })
        });
        self.metrics.count(volume, &scope, &counted.collect());
        verdicts.len()
    }

    /// What was decided and had no room to be sent is judged again when there is room.
    fn put_back(&mut self, volume: &VolumeId, node: &NodeName, verdict: &Verdict) {
        let Some(call) = verdict.step.as_ref().and_then(Step::call) else { return };
        if self.actual.pair(volume, node).is_some_and(|pair| pair.call.is_some()) {
            return;
        }
        let scope = self.scope_of(volume, node);
        if call == PairCall::Create {
            self.dirty_volumes.push_new(volume.clone(), scope);
        } else {
            self.dirty_volumes.push(volume.clone(), scope);
        }
    }

    /// Returns whether the pair held the volume until now, and does not because of this verdict alone.
    fn apply(&mut self, volume: &VolumeId, node: &NodeName, verdict: &Verdict, now: Instant) -> bool {
        let sent = self.last_sent;
        let pair = self.actual.pair_mut(volume, node);
        let held = pair.holds();
        pair.publish(verdict.publication, verdict.withdraws);
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
            self.wake_at.insert((at, Dirty::Pair(volume.clone(), node.clone())));
        }
        if self.actual.pair_mut(volume, node).attachment.is_none() {
            self.force_off_the_list(volume, node, verdict.forced);
        }
        self.remember_wait(volume, node, verdict);
        self.note_waiting(volume, node, verdict, now);
        let has_room = verdict.step.as_ref().and_then(Step::call).is_none_or(|call| self.room.has(call));
        match verdict.step.as_ref().filter(|_| has_room) {
            None => {}
            Some(Step::Create(source)) => {
                let request = PairRequest::Create(calls::create(volume, node, source));
                self.send(volume, node, request, now);
            }
            Some(Step::Delete(uid, proof)) => {
                self.actual.pair_mut(volume, node).forced = verdict.forced;
                match verdict.forced {
                    Some(reason) => self.force(volume, node, reason),
                    // KCM: pkg/controller/volume/attachdetach/reconciler: whatever is detached from a node with
                    // the taint counts as forced, mounted or not.
                    None if self.is_out_of_service(node) => self.metrics.forced(ForceReason::OutOfService),
                    None => {}
                }
                let request = PairRequest::Delete(uid.clone(), calls::delete(volume, node, uid, proof));
                self.send(volume, node, request, now);
            }
            Some(Step::ReadAttachment) => {
                let name = volume.attachment_name(node);
                self.send(volume, node, PairRequest::Read(name), now);
            }
            Some(Step::ReadNode) => {
                // What was proven before is not proof enough.
                let pair = self.actual.pair_mut(volume, node);
                if matches!(pair.withdrawal, Withdrawal::Proven(_)) {
                    pair.withdrawal = Withdrawal::Since(sent);
                }
                self.dirty_nodes.push(node.clone());
            }
            Some(Step::GiveUp(_)) => self.actual.pair_mut(volume, node).held = false,
        }
        held && !self.actual.pair_mut(volume, node).holds()
    }

    fn is_out_of_service(&self, node: &NodeName) -> bool {
        let object = self.actual.node(node).and_then(|state| state.node.as_deref());
        object.is_some_and(Node::is_out_of_service)
    }

    /// Keeps how long a wait has lasted that force may end, for the process that comes after us.
    fn remember_wait(&mut self, volume: &VolumeId, node: &NodeName, verdict: &Verdict) {
        let Some(pair) = self.actual.pair(volume, node) else { return };
        let attachment = pair.attachment.as_ref();
        let is_over = attachment.is_some_and(|attachment| attachment.metadata.is_terminating());
        let is_over = is_over || matches!(verdict.step, Some(Step::GiveUp(_))) || !pair.holds();
        match (pair.unwanted_since, &verdict.waiting) {
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
                    attachment: pair.uid().cloned(),
                };
                self.force_timers.note(WaitKey::new(volume, node), wait);
            }
            (Some(_), _) if !is_over => {}
            _ => self.force_timers.forget(volume, node),
        }
    }
}
