//! Multi-attach: which node has an exclusive volume, or comes first, and which nodes wait for it (KCM:
//! `IsMultiAttachAllowed`). Pure.
//!
//! In: the desired attachments and volumes on nodes of all its nodes, which is a look at each, and no judgement. Out:
//! for each node the one that keeps it from attaching (S1), and the nodes whose judgement matters to the others. What
//! those others are told is compared with what they were told last: as long as it is the same, what happens on one node
//! is judged there, and at who holds the volume.

use std::collections::BTreeMap;

use apiserver::ids::NodeName;
use litemap::LiteMap;

use super::{
    contention::Contention,
    verdict::{ConflictingNode, NodeVerdict},
};
use crate::attach_detach::state::{
    actual::{ActualState, Mount, NodeVolume, WhyRead},
    desired::{DesiredAttachment, volume_name::VolumeId},
};

/// Who has, or is to have, a volume that may be on one node at a time only.
#[derive(Clone, Debug)]
pub struct Exclusive {
    /// Nodes where it is, or may be, attached, those that no longer need it first: it is their detach that
    /// ends the wait.
    holders: Vec<NodeName>,
    /// The one that may list it: where it is mounted, or may be, also if its attachment is gone, and else, of several to
    /// which it is attached, that of the oldest pod.
    publisher: Option<NodeName>,
    /// If it is attached nowhere, the node whose turn it is: one that reports it in use, of which a process that
    /// starts cannot know whether it held the volume, or that of the oldest pod.
    first: Option<NodeName>,
}

impl Contention {
    /// What there is to tell once the nodes that matter to the others have been judged.
    pub(crate) fn new(
        exclusive: &Exclusive,
        desired_nodes: Option<&LiteMap<NodeName, DesiredAttachment>>,
        verdicts: &BTreeMap<NodeName, NodeVerdict>,
    ) -> Self {
        let holders = exclusive.holders.iter().map(|name| {
            let desired = desired_nodes.and_then(|desired_nodes| desired_nodes.get(name));
            let pods = desired.map(DesiredAttachment::keys).unwrap_or_default();
            (name.clone(), verdicts.get(name).and_then(|verdict| verdict.waiting.clone()), pods)
        });
        let (publisher, first) = (exclusive.publisher.clone(), exclusive.first.clone());
        Self { holders: holders.collect(), publisher, first }
    }
}

impl Exclusive {
    /// Of a volume that may be on one node only, as some say who need or have it; `None` if no pod needs it. On the
    /// `unreadable` nodes nothing is done about it.
    pub fn of(
        volume: &VolumeId,
        desired_nodes: Option<&LiteMap<NodeName, DesiredAttachment>>,
        actual: &ActualState,
        unreadable: &BTreeMap<NodeName, String>,
    ) -> Option<Self> {
        let desired_nodes = desired_nodes?;
        let state = actual.volume(volume);
        let holders = state.into_iter().flat_map(|state| state.holders(Some(desired_nodes)));
        let mut holders: Vec<NodeName> = holders.cloned().collect();
        holders.sort_by_cached_key(|name| (desired_nodes.contains_key(name), name.clone()));
        holders.dedup();
        if !holders.is_empty() {
            let node_volume = |name: &NodeName| state.and_then(|state| state.nodes.get(name));
            let is_listed = |it: &NodeVolume| it.listed || it.may_be_listed;
            let has = |name: &NodeName, it: &NodeVolume| {
                is_listed(it) || it.is_mounted(desired_nodes.contains_key(name))
            };
            let publishers = holders
                .iter()
                .filter(|name| node_volume(name).is_some_and(|it| it.is_attached() || has(name, it)));
            let publisher = publishers.min_by_key(|name| {
                let mount = node_volume(name).map(|it| (!is_listed(it), !has(name, it), !it.in_use));
                let seniority = desired_nodes.get(*name).and_then(DesiredAttachment::seniority);
                (mount, seniority.is_none(), seniority, *name)
            });
            let publisher = publisher.cloned();
            return Some(Self { holders, publisher, first: None });
        }
        // A desired attachment that may not attach, or cannot, or is refused, must not keep the others waiting.
        let is_gone = |name| {
            unreadable.contains_key(name) || actual.node(name).is_none_or(|state| state.node.is_none())
        };
        let is_used = |name| actual.node(name).is_some_and(|state| state.uses(volume));
        let node_volume = |name| state.and_then(|state| state.nodes.get(name));
        let is_taken = |name| {
            matches!(
                node_volume(name).and_then(|node_volume| node_volume.why_read.as_ref()),
                Some(WhyRead::NameTaken(_))
            )
        };
        // A single failure may be an accident, such as a server that is busy.
        let failures =
            |name| node_volume(name).map_or(0, |node_volume| node_volume.retry.failures().saturating_sub(1));
        let turn = |name, desired: &DesiredAttachment| {
            let cannot = (is_gone(name), !desired.is_current(), is_taken(name), failures(name));
            let reported_before = match node_volume(name).map(|node_volume| node_volume.mount) {
                Some(Mount::ReportedBefore { since }) => since,
                _ => i64::MAX,
            };
            (cannot, reported_before, !is_used(name))
        };
        let first = desired_nodes.iter().min_by(|(name, desired), (other_name, other)| {
            turn(name, desired)
                .cmp(&turn(other_name, other))
                .then_with(|| desired.seniority().cmp(&other.seniority()))
        });
        Some(Self { holders, publisher: None, first: first.map(|(name, _)| name.clone()) })
    }

    /// The nodes whose judgement matters to the others.
    pub fn leaders(&self) -> impl Iterator<Item = &NodeName> {
        self.holders.iter().chain(&self.first)
    }

    /// Of several nodes that have the volume, one may list it: whether that is this one.
    pub(crate) fn publishes(&self, node: &NodeName) -> Option<bool> {
        self.publisher.as_ref().map(|publisher| publisher == node)
    }

    /// The node that keeps this one from attaching.
    pub(crate) fn conflict_of(&self, node: &NodeName) -> Option<ConflictingNode> {
        if let Some(holder) = self.holders.iter().find(|holder| *holder != node) {
            return Some(ConflictingNode { node: holder.clone(), is_attached: true, is_own: false });
        }
        let first = self.first.as_ref().filter(|first| *first != node)?;
        Some(ConflictingNode { node: first.clone(), is_attached: false, is_own: false })
    }
}
