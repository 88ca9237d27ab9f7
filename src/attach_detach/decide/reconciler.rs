//! Reconciler: compares desired and actual state of one volume over all its nodes. Pure.
//!
//! In: the nodes for which the volume is desired, and what is known of it on each node. Out: a [`NodeVerdict`] per node.
//! What needs more than one node to decide is one rule, and comes with the view: an exclusive volume is never attached,
//! nor about to be, nor possibly still attached, on two nodes (S1, [`super::multi_attach`]).

use std::collections::{BTreeMap, BTreeSet};

use apiserver::ids::NodeName;
use k8s_openapi::jiff::Timestamp;
use litemap::LiteMap;
use tokio::time::Instant;

use super::{
    csi,
    multi_attach::Exclusive,
    verdict::{AttachStep, ConflictingNode, NodeVerdict, NodeVolumeView, Waiting, wait},
};
use crate::attach_detach::{
    options::ForcePolicy,
    state::{
        actual::{ActualState, Mount, NodeVolume, ReportAsAttached},
        desired::{
            DesiredAttachment,
            volume_name::{VolumeId, VolumeKind},
        },
    },
};

/// One volume as the reconciler sees it.
#[derive(Clone, Debug)]
pub struct VolumeView<'a> {
    /// The volume.
    pub volume: &'a VolumeId,
    /// Desired attachments by node.
    pub desired_nodes: Option<&'a LiteMap<NodeName, DesiredAttachment>>,
    /// What is known of it and its nodes.
    pub actual: &'a ActualState,
    /// On which nodes it is judged.
    pub names: &'a BTreeSet<NodeName>,
    /// When a detach may be forced.
    pub policy: ForcePolicy,
    /// Who has it, or is to have it, of all nodes, if it may be on one node at a time only.
    pub exclusive: Option<&'a Exclusive>,
    /// Nodes from which an end takes it that has begun, or is to begin: of another VolumeAttachment of its PersistentVolume's
    /// name (S43).
    pub losing: BTreeSet<NodeName>,
    /// Why nothing may be taken away, if that is so (S14, E11).
    pub stand_off: Option<Waiting>,
    /// For what a VolumeAttachment that is to be created waits, if none may be (S1).
    pub hand_over: Option<Waiting>,
    /// Nodes from which it may not be taken away, each with the reason, and until when if that is known.
    pub stood_off: BTreeMap<NodeName, (Waiting, Option<Instant>)>,
    /// Nodes whose pods are not given what is there: a list alone, to which their claims do not lead any more (S44), or what the
    /// machine was given that had the node's name before (S43).
    pub leftovers: BTreeSet<NodeName>,
    /// Nodes on which nothing may be done, each with the object that cannot be read (S42).
    pub unreadable: &'a BTreeMap<NodeName, String>,
    /// The time by this process' clock.
    pub wall: Timestamp,
}

/// Judges the nodes of the volume.
pub fn plan(view: &VolumeView<'_>, now: Instant) -> BTreeMap<NodeName, NodeVerdict> {
    let absent = NodeVolume::default();
    let state = view.actual.volume(view.volume);
    // Whether a volume that no pod needs may be on several nodes is not known.
    let is_sharing_unknown = view.desired_nodes.is_none();
    let first_two = |is_there: fn(&NodeVolume) -> bool| -> Vec<&NodeName> {
        let nodes = state.filter(|_| is_sharing_unknown).into_iter().flat_map(|state| &state.nodes);
        nodes.filter(|(_, node_volume)| is_there(node_volume)).map(|(name, _)| name).take(2).collect()
    };
    let listing = first_two(|it| it.listed);
    let using = first_two(|it| it.listed || it.mount == Mount::Possible);
    // Of an exclusive volume nothing is listed anew while it may be mounted elsewhere: people may have emptied the list there.
    // What this process took off itself is put back.
    let is_exclusive = state.is_some_and(|state| state.is_exclusive);
    let mut verdicts = BTreeMap::new();
    for node in view.names {
        let node_volume = view.actual.node_volume(view.volume, node).unwrap_or(&absent);
        let node_state = view.actual.node(node);
        let desired = view.desired_nodes.and_then(|desired_nodes| desired_nodes.get(node));
        let desired = desired.filter(|_| !view.leftovers.contains(node));
        let is_withheld = desired.is_none() && node_state.is_some_and(|state| state.withholds(view.volume));
        let conflict = view.exclusive.and_then(|exclusive| exclusive.conflict_of(node));
        let own = || ConflictingNode { node: node.clone(), is_attached: true, is_own: true };
        let conflict = match conflict {
            Some(conflict) if conflict.is_attached => Some(conflict),
            conflict => view.losing.contains(node).then(own).or(conflict),
        };
        let there = if is_exclusive && !node_volume.may_be_put_back() { &using } else { &listing };
        let view_of_node = NodeVolumeView {
            kind: view.volume.kind(),
            desired,
            node_volume,
            node: node_state,
            conflict: conflict.as_ref(),
            is_withheld,
            is_elsewhere: there.iter().any(|other| *other != node),
            publishes: view.exclusive.and_then(|exclusive| exclusive.publishes(node)),
            policy: &view.policy,
            doubt: node_state.and_then(|state| state.doubts(view.volume, &view.policy)),
            wall: view.wall,
        };
        if let Some(object) = view.unreadable.get(node) {
            verdicts.insert(node.clone(), NodeVerdict::blocked(object));
            continue;
        }
        let verdict = csi::judge(&view_of_node, now);
        let stand_off = view.stand_off.as_ref().filter(|why| why.holds(view_of_node.node));
        // That of a hand-over comes last: it alone lets what is off the list be finished.
        let strict = stand_off.filter(|why| **why != Waiting::HAND_OVER);
        let stood_off = view.stood_off.get(node);
        let verdict = match strict.or(stood_off.map(|(why, _)| why)).or(stand_off) {
            Some(why) => {
                let verdict = verdict.standing_off(&view_of_node, why);
                let until = stood_off.and_then(|(_, until)| *until);
                NodeVerdict { wake_at: verdict.wake_at.into_iter().chain(until).min(), ..verdict }
            }
            None => verdict,
        };
        // Of a volume without attachments, a list that another controller wrote before the hand-over may land late.
        let begins_listing = view_of_node.kind == VolumeKind::NoOp
            && verdict.report_as_attached == ReportAsAttached::Yes
            && !(node_volume.listed || node_volume.mount == Mount::Possible);
        let mut verdict = match &view.hand_over {
            Some(waiting) if matches!(verdict.step, Some(AttachStep::Create(_))) => {
                wait(verdict.report_as_attached, waiting.clone())
            }
            Some(waiting) if begins_listing => wait(ReportAsAttached::Unchanged, waiting.clone()),
            _ => verdict,
        };
        // What ends by itself is judged again then.
        let until = verdict.waiting.as_ref().and_then(Waiting::until).filter(|until| *until > view.wall);
        let left = until.and_then(|until| until.duration_since(view.wall).try_into().ok());
        let ends_at = left.and_then(|left| now.checked_add(left));
        verdict.wake_at = verdict.wake_at.into_iter().chain(ends_at).min();
        verdicts.insert(node.clone(), verdict);
    }
    verdicts
}
