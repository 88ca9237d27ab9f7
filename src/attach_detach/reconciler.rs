//! Reconciler: compares desired and actual state of one volume over all its nodes. Pure.
//!
//! In: the nodes that want the volume, and its pairs. Out: a [`Verdict`] per node. What needs more
//! than one node to decide is decided here, and that is one rule: an exclusive volume is never
//! attached, nor about to be, nor possibly still attached, on two nodes (S1).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{
    actual_state::{Doubt, Pair, VolumeState},
    blocks::StandOff,
    desired_state::Wish,
    force::ForcePolicy,
    node_state::NodeState,
    rules::{self, PairView, Rival, Verdict},
    scope::Scope,
    volume_name::VolumeId,
};
use crate::{kube_api::ids::NodeName, state::VecMap};

/// One volume as the reconciler sees it.
#[derive(Clone, Debug)]
pub struct VolumeView<'a> {
    /// The volume.
    pub volume: &'a VolumeId,
    /// Wishes by node.
    pub wishes: Option<&'a VecMap<NodeName, Wish>>,
    /// Pairs by node.
    pub state: Option<&'a VolumeState>,
    /// On which nodes it is judged.
    pub scope: &'a Scope,
    /// The nodes of either, or of the scope.
    pub nodes: BTreeMap<&'a NodeName, &'a NodeState>,
    /// When a detach may be forced.
    pub policy: ForcePolicy,
    /// Whether one of its VolumeAttachments names what may be on one node only.
    pub held_exclusively: bool,
    /// Why nothing may be taken away, if that is so (S14, E11).
    pub stand_off: Option<StandOff>,
    /// Nodes from which alone nothing may be taken away, and why (S14).
    pub stand_off_on: BTreeMap<NodeName, StandOff>,
    /// Nodes on which nothing may be done, each with the object that cannot be read (S42).
    pub unreadable: BTreeMap<NodeName, String>,
    /// The time by this process' clock.
    pub wall: Timestamp,
}

/// Whether the volume may be on one node at a time only, as some say who want or have it.
#[must_use]
pub fn is_exclusive(view: &VolumeView<'_>) -> bool {
    view.held_exclusively || view.wishes.is_some_and(|wishes| wishes.values().any(Wish::is_exclusive))
}

/// Judges the nodes of the volume.
#[must_use]
pub fn plan(view: &VolumeView<'_>, now: Instant) -> BTreeMap<NodeName, Verdict> {
    let absent = Pair::default();
    let exclusive = match view.scope {
        Scope::All => Exclusive::of(view),
        Scope::Nodes(_) => None,
    };
    let mut verdicts = BTreeMap::new();
    for node in names(view.wishes, view.state, view.scope) {
        let pair = view.state.and_then(|state| state.pairs.get(node)).map_or(&absent, |pair| &**pair);
        let wish = view.wishes.and_then(|wishes| wishes.get(node));
        let rival = exclusive.as_ref().and_then(|exclusive| exclusive.rival_of(node));
        let pair_view = PairView {
            kind: view.volume.kind(),
            wish,
            pair,
            node: view.nodes.get(node).copied(),
            rival: rival.as_ref(),
            policy: &view.policy,
            wall: view.wall,
        };
        if let Some(object) = view.unreadable.get(node) {
            verdicts.insert(node.clone(), Verdict::blocked(object));
            continue;
        }
        let verdict = rules::judge(&pair_view, now);
        let verdict = match view.stand_off.as_ref().or_else(|| view.stand_off_on.get(node)) {
            Some(why) => verdict.standing_off(pair, why),
            None => verdict,
        };
        verdicts.insert(node.clone(), verdict.confirming(pair, now));
    }
    verdicts
}

/// The nodes that want or have the volume, as far as they are in the scope.
#[must_use]
pub fn names<'a>(
    wishes: Option<&'a VecMap<NodeName, Wish>>,
    state: Option<&'a VolumeState>,
    scope: &'a Scope,
) -> BTreeSet<&'a NodeName> {
    match scope {
        Scope::All => {
            let wanted = wishes.into_iter().flat_map(VecMap::keys);
            wanted.chain(state.into_iter().flat_map(|state| state.pairs.keys())).collect()
        }
        Scope::Nodes(nodes) => {
            let is_wanted = |node| wishes.is_some_and(|wishes| wishes.contains_key(node));
            let is_held = |node| state.is_some_and(|state| state.pairs.contains_key(node));
            nodes.iter().filter(|node| is_wanted(*node) || is_held(*node)).collect()
        }
    }
}

/// Who has, or is to have, a volume that may be on one node at a time only.
struct Exclusive<'a> {
    /// Nodes that hold it in whatever way, those that no longer want it first: it is their detach that
    /// ends the wait.
    holders: Vec<&'a NodeName>,
    /// If nobody holds it, the node whose turn it is: one that reports it in use, of which a process that
    /// starts cannot know whether it held the volume, or that of the oldest pod.
    first: Option<&'a NodeName>,
}

impl<'a> Exclusive<'a> {
    /// `None` for a volume that may be attached to several nodes, as all say who want or have it.
    fn of(view: &VolumeView<'a>) -> Option<Self> {
        let wishes = view.wishes?;
        if !is_exclusive(view) {
            return None;
        }
        let pairs = view.state.into_iter().flat_map(|state| &state.pairs);
        let ours = pairs.filter(|(_, pair)| pair.holds()).map(|(node, _)| node);
        let foreign = view.state.into_iter().flat_map(|state| state.foreign.values());
        let mut holders: Vec<&NodeName> = ours.chain(foreign).collect();
        holders.sort_by_key(|node| (wishes.contains_key(*node), *node));
        // A wish that may not attach, or cannot, or is refused, must not keep the others waiting.
        let is_gone = |node| view.nodes.get(node).is_none_or(|state| state.node.is_none());
        let is_used = |node| view.nodes.get(node).is_some_and(|state| state.uses(view.volume));
        let pair = |node| view.state.and_then(|state| state.pairs.get(node));
        let is_taken =
            |node| matches!(pair(node).and_then(|pair| pair.doubt.as_ref()), Some(Doubt::NameTaken(_)));
        // A single failure may be an accident, such as a server that is busy.
        let failures = |node| pair(node).map_or(0, |pair| pair.retry.failures().saturating_sub(1));
        let turn = |node, wish: &'a Wish| {
            let cannot = (is_gone(node), !wish.is_current(), is_taken(node), failures(node));
            (cannot, !is_used(node), wish.seniority())
        };
        let first = wishes.iter().min_by_key(|(node, wish)| turn(*node, wish)).map(|(node, _)| node);
        Some(Self { holders, first })
    }

    /// The node that keeps this one from attaching.
    fn rival_of(&self, node: &NodeName) -> Option<Rival> {
        if let Some(holder) = self.holders.iter().find(|holder| **holder != node) {
            return Some(Rival { node: (*holder).clone(), holds: true });
        }
        if !self.holders.is_empty() {
            return None;
        }
        self.first.filter(|first| *first != node).map(|first| Rival { node: first.clone(), holds: false })
    }
}
