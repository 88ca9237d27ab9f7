//! Rivalry: who has an exclusive volume, or is to have it, and whether those that wait for it have to hear news. Pure.
//!
//! In: the wishes and pairs of all its nodes, which is a look at each, and no judgement. Out: for each node the one
//! that keeps it from attaching (S1), and the nodes whose judgement matters to the others. What those others are told
//! is compared with what they were told last: as long as it is the same, what happens on one node is judged there, and
//! at who holds the volume.

use std::collections::BTreeMap;

use super::csi::{Rival, Verdict, Waiting};
use crate::{
    attach_detach::{
        actual::{
            node::NodeState,
            state::{Doubt, VolumeState},
        },
        desired::{state::Wish, volume_name::VolumeId},
    },
    kube_api::ids::{NodeName, PodKey},
    state::VecMap,
};

/// What was found when all nodes of a volume were last looked at; it is not known when something may have changed that.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Rivalry {
    /// All nodes are to be judged.
    #[default]
    Unknown,
    /// All who want or have it say that it may be on several nodes.
    Shared,
    /// It may be on one node at a time, and these are in the way of the others.
    Exclusive(Box<Leaders>),
}

/// What those that wait for an exclusive volume are told of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Leaders {
    /// Nodes that hold it, what each waits for, and the pods that want it there.
    holders: Vec<(NodeName, Option<Waiting>, Vec<PodKey>)>,
    /// Whose turn it is if nobody does.
    first: Option<NodeName>,
}

/// Who has, or is to have, a volume that may be on one node at a time only.
#[derive(Clone, Debug)]
pub struct Exclusive {
    /// Nodes that hold it in whatever way, those that no longer want it first: it is their detach that
    /// ends the wait.
    holders: Vec<NodeName>,
    /// If nobody holds it, the node whose turn it is: one that reports it in use, of which a process that
    /// starts cannot know whether it held the volume, or that of the oldest pod.
    first: Option<NodeName>,
}

impl Exclusive {
    /// Of a volume that may be on one node only, as some say who want or have it; `None` if nobody wants it.
    #[must_use]
    pub fn of<'a>(
        volume: &VolumeId,
        wishes: Option<&VecMap<NodeName, Wish>>,
        state: Option<&VolumeState>,
        node: impl Fn(&NodeName) -> Option<&'a NodeState>,
    ) -> Option<Self> {
        let wishes = wishes?;
        let pairs = state.into_iter().flat_map(|state| &state.pairs);
        let ours = pairs.filter(|(_, pair)| pair.holds()).map(|(name, _)| name);
        let foreign = state.into_iter().flat_map(|state| state.foreign.values());
        let mut holders: Vec<NodeName> = ours.chain(foreign).cloned().collect();
        holders.sort_by_cached_key(|name| (wishes.contains_key(name), name.clone()));
        if !holders.is_empty() {
            return Some(Self { holders, first: None });
        }
        // A wish that may not attach, or cannot, or is refused, must not keep the others waiting.
        let is_gone = |name| node(name).is_none_or(|state| state.node.is_none());
        let is_used = |name| node(name).is_some_and(|state| state.uses(volume));
        let pair = |name| state.and_then(|state| state.pairs.get(name));
        let is_taken =
            |name| matches!(pair(name).and_then(|pair| pair.doubt.as_ref()), Some(Doubt::NameTaken(_)));
        // A single failure may be an accident, such as a server that is busy.
        let failures = |name| pair(name).map_or(0, |pair| pair.retry.failures().saturating_sub(1));
        let turn = |name, wish: &Wish| {
            let cannot = (is_gone(name), !wish.is_current(), is_taken(name), failures(name));
            (cannot, !is_used(name))
        };
        let first = wishes.iter().min_by(|(name, wish), (other_name, other)| {
            turn(name, wish)
                .cmp(&turn(other_name, other))
                .then_with(|| wish.seniority().cmp(&other.seniority()))
        });
        Some(Self { holders, first: first.map(|(name, _)| name.clone()) })
    }

    /// The nodes whose judgement matters to the others.
    pub fn leaders(&self) -> impl Iterator<Item = &NodeName> {
        self.holders.iter().chain(&self.first)
    }

    /// The node that keeps this one from attaching.
    #[must_use]
    pub fn rival_of(&self, node: &NodeName) -> Option<Rival> {
        if let Some(holder) = self.holders.iter().find(|holder| *holder != node) {
            return Some(Rival { node: holder.clone(), holds: true });
        }
        let first = self.first.as_ref().filter(|first| *first != node)?;
        Some(Rival { node: first.clone(), holds: false })
    }

    /// What the others are told of them, when they have been judged.
    #[must_use]
    pub fn told(
        &self,
        wishes: Option<&VecMap<NodeName, Wish>>,
        verdicts: &BTreeMap<NodeName, Verdict>,
    ) -> Leaders {
        let holders = self.holders.iter().map(|name| {
            let wish = wishes.and_then(|wishes| wishes.get(name));
            let pods = wish.into_iter().flat_map(|wish| wish.pods.values()).map(|(pod, _)| pod.key.clone());
            (name.clone(), verdicts.get(name).and_then(|verdict| verdict.waiting.clone()), pods.collect())
        });
        Leaders { holders: holders.collect(), first: self.first.clone() }
    }
}
