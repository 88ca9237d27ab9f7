//! Reconciler: compares desired and actual state of one volume over all its nodes. Pure.
//!
//! In: the nodes that want the volume, and its pairs. Out: a [`Verdict`] per node. What needs more
//! than one node to decide is one rule, and comes with the view: an exclusive volume is never
//! attached, nor about to be, nor possibly still attached, on two nodes (S1, [`super::multi_attach`]).

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{
    csi::{self, PairView, Verdict},
    force::ForcePolicy,
    multi_attach::Exclusive,
    scope::Scope,
};
use crate::{
    attach_detach::{
        actual::{
            node::NodeState,
            state::{Pair, VolumeState},
        },
        desired::{state::Wish, volume_name::VolumeId},
        guard::blocks::StandOff,
    },
    kube_api::ids::NodeName,
    state::VecMap,
};

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
    /// Who has it, or is to have it, of all nodes, if it may be on one node at a time only.
    pub exclusive: Option<&'a Exclusive>,
    /// Why nothing may be taken away, if that is so (S14, E11).
    pub stand_off: Option<StandOff>,
    /// Nodes from which alone nothing may be taken away, and why (S14).
    pub stand_off_on: BTreeMap<NodeName, StandOff>,
    /// Nodes on which nothing may be done, each with the object that cannot be read (S42).
    pub unreadable: BTreeMap<NodeName, String>,
    /// The time by this process' clock.
    pub wall: Timestamp,
}

/// Judges the nodes of the volume.
#[must_use]
pub fn plan(view: &VolumeView<'_>, now: Instant) -> BTreeMap<NodeName, Verdict> {
    let absent = Pair::default();
    let mut verdicts = BTreeMap::new();
    for node in names(view.wishes, view.state, view.scope) {
        let pair = view.state.and_then(|state| state.pairs.get(node)).map_or(&absent, |pair| &**pair);
        let wish = view.wishes.and_then(|wishes| wishes.get(node));
        let rival = view.exclusive.and_then(|exclusive| exclusive.rival_of(node));
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
        let verdict = csi::judge(&pair_view, now);
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
