//! What nodes say: which volumes each lists and has in use, how far that is believed, and what it proves.
//!
//! In: a Node as last seen, or its absence, and answers of nodes to requests of ours. Out: the volumes for which
//! something changed.

use std::{collections::BTreeSet, sync::Arc};

use apiserver::{ids::NodeName, kinds::Node};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::{
    node::NodeState,
    node_volume::{Mount, NodeVolume, ReportAsAttached},
    state::ActualState,
    unpublishing::{Sequence, Unpublished, Unpublishing},
};
use crate::attach_detach::options::ForcePolicy;
use crate::attach_detach::state::desired::volume_name::{VolumeId, VolumeKind};

/// By this age of a node its kubelet has reported what it uses, also where clocks differ.
const YOUNG: SignedDuration = SignedDuration::from_mins(10);

impl ActualState {
    /// Takes a node as last seen, or its absence; pods are known to need there what is `wanted`. Returns the volumes
    /// for which something changed.
    pub fn observe_node(
        &mut self,
        name: &NodeName,
        node: Option<&Arc<Node>>,
        wanted: impl Fn(&VolumeId) -> bool,
        wall: Timestamp,
    ) -> BTreeSet<VolumeId> {
        let volumes = &self.volumes;
        let state = self.nodes.entry(name.clone()).or_default();
        let known = state.volumes.clone();
        let used = || {
            let in_use = |volume: &&VolumeId| {
                let node_volume = volumes.get(*volume).and_then(|volume| volume.nodes.get(name));
                node_volume.is_some_and(|node_volume| node_volume.in_use && node_volume.may_be_had())
            };
            known.iter().filter(in_use).cloned().collect()
        };
        let is_back = node.is_some() && state.node.is_none();
        let withheld = state.withheld();
        let all = state.observe(node, used, wall);
        if state.is_over() {
            self.nodes.remove(name);
            return BTreeSet::new();
        }
        let mut touched = if all { known.clone() } else { BTreeSet::new() };
        touched.extend(withheld.symmetric_difference(&state.withheld()).cloned());
        let entries = node.map(|node| node.status.volumes_attached.as_slice()).unwrap_or_default();
        let listed_now: BTreeSet<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        let in_use = node.into_iter().flat_map(|node| &node.status.volumes_in_use);
        let only_in_use = in_use.map(AsRef::as_ref).filter(|volume: &&str| !listed_now.contains(volume));
        for volume in listed_now.iter().copied().chain(only_in_use).filter_map(VolumeId::parse) {
            self.node_volume_mut(&volume, name);
        }
        self.each_volume_on(name, |state, volume, node_volume| {
            let listed = listed_now.contains(volume.as_str());
            if state.requests.is_quiet() && std::mem::take(&mut node_volume.may_be_listed) {
                touched.insert(volume.clone());
            }
            // Of a node that is gone, the last report stands.
            let in_use = if node.is_some() { state.uses(volume) } else { node_volume.in_use };
            let before = (node_volume.listed, node_volume.in_use);
            if in_use && (node_volume.known.is_some() || !(node_volume.in_use || wanted(volume))) {
                node_volume.note_unexplained_use(wall, wanted(volume));
            }
            // What an earlier object of the node listed, this process may not have seen.
            if is_back && in_use && node_volume.is_attached() {
                node_volume.distrust();
            }
            node_volume.take_report(volume.kind(), listed, in_use);
            let vanished = listed && node_volume.known.is_none() && node_volume.call.is_none();
            if before != (listed, in_use) || vanished {
                touched.insert(volume.clone());
            }
        });
        touched
    }

    /// Notes that a patch is sent which reports every volume as it should be.
    pub(in crate::attach_detach) fn note_listing(&mut self, name: &NodeName) {
        self.each_volume_on(name, |_, _, node_volume| {
            node_volume.may_be_listed |=
                node_volume.report_as_attached == ReportAsAttached::Yes && !node_volume.listed;
        });
    }

    /// Takes note that a request to the node has ended. Returns the volumes that no patch can list any more.
    pub fn node_call_ended(&mut self, name: &NodeName) -> BTreeSet<VolumeId> {
        let mut volumes = BTreeSet::new();
        self.each_volume_on(name, |state, volume, node_volume| {
            if state.requests.is_settled() && std::mem::take(&mut node_volume.may_be_listed) {
                volumes.insert(volume.clone());
            }
        });
        // A node that is gone and has no volumes is forgotten once nothing is on its way to it.
        if self.nodes.get(name).is_some_and(NodeState::is_over) {
            self.nodes.remove(name);
        }
        volumes
    }

    /// Notes that a node went unseen: all its volumes may be in use.
    pub fn distrust_node(&mut self, name: &NodeName) -> BTreeSet<VolumeId> {
        let Some(state) = self.nodes.get_mut(name) else { return BTreeSet::new() };
        // Nor whether it was Ready until then (S4).
        state.unready_since = None;
        let volumes = state.volumes.clone();
        for volume in &volumes {
            self.node_volume_mut(volume, name).distrust();
        }
        volumes
    }

    /// Notes which nodes were made anew since volumes were attached to them, as far as objects tell: what an
    /// earlier object of theirs reported in use is not known. Of what has no VolumeAttachment nothing tells since when it is
    /// listed: there a node counts that is young.
    pub fn distrust_younger_nodes(&mut self, wall: Timestamp) {
        for (volume, state) in &mut self.volumes {
            for (name, node_volume) in state.nodes.iter_mut() {
                let Some(state) = self.nodes.get_mut(name) else { continue };
                let made = state.node.as_ref().and_then(|node| node.metadata.creation_timestamp);
                let is_younger = match node_volume.attachment() {
                    Some(attachment) => made > attachment.metadata.creation_timestamp,
                    None => {
                        let is_young = made.is_some_and(|made| wall.duration_since(made) < YOUNG);
                        is_young
                            && volume.kind() == VolumeKind::NoOp
                            && node_volume.listed
                            && !node_volume.in_use
                    }
                };
                if is_younger {
                    state.distrust(volume);
                    node_volume.distrust();
                }
            }
        }
    }

    /// The nodes whose list is not believed.
    pub fn distrusted_nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.iter().filter(|(_, state)| state.is_distrusted()).map(|(name, _)| name)
    }

    /// Notes that nothing is attached on a node, nor may be: what comes is of the machine that is there now.
    pub(in crate::attach_detach) fn note_nothing_attached(&mut self, volume: &VolumeId, node: &NodeName) {
        if let Some(state) = self.nodes.get_mut(node) {
            state.has_nothing_of(volume);
        }
    }

    /// Notes that the first pod comes that needs the volume here. What its kubelet reported in use before does not announce
    /// that pod.
    pub(in crate::attach_detach) fn note_desired(&mut self, volume: &VolumeId, node: &NodeName) {
        let node_volume = self.volumes.get_mut(volume).and_then(|state| state.nodes.get_mut(node));
        if let Some(node_volume) = node_volume
            && let Mount::Reported { since } = node_volume.mount
        {
            node_volume.mount = Mount::ReportedBefore { since };
        }
    }

    /// The volumes that a kubelet reports in use, of which nothing else tells whether it has them.
    pub fn merely_in_use(&self, node: &NodeName) -> impl Iterator<Item = &VolumeId> {
        let in_use = |node_volume: &NodeVolume| node_volume.in_use && node_volume.mount != Mount::Possible;
        self.volumes_on(node).filter(move |(_, node_volume)| in_use(node_volume)).map(|(volume, _)| volume)
    }

    /// Notes that a pod runs here with the volume: if its kubelet reports it in use, it is mounted. Returns whether that
    /// is news.
    pub fn note_mounted(&mut self, volume: &VolumeId, node: &NodeName) -> bool {
        let node_volume = self.volumes.get_mut(volume).and_then(|state| state.nodes.get_mut(node));
        let news =
            node_volume.filter(|node_volume| node_volume.in_use && node_volume.mount != Mount::Possible);
        news.map(|node_volume| node_volume.mount = Mount::Possible).is_some()
    }

    /// Believes a re-created node's list again if it is time. Returns the volumes that this changes.
    pub fn trust_node(
        &mut self,
        name: &NodeName,
        policy: &ForcePolicy,
        wall: Timestamp,
    ) -> BTreeSet<VolumeId> {
        let Some(state) = self.nodes.get_mut(name) else { return BTreeSet::new() };
        let [volumes, given_up] = state.trust(policy, wall);
        for volume in &volumes {
            let in_use = self.nodes.get(name).is_some_and(|state| state.uses(volume));
            let node_volume = self.node_volume_mut(volume, name);
            node_volume.given_up = given_up.contains(volume) && node_volume.may_be_attached();
            node_volume.take_report(volume.kind(), node_volume.listed, in_use);
        }
        volumes
    }

    /// Takes note that the node was read live: a patch that the server has given up by now will not land.
    pub fn settle_node(&mut self, name: &NodeName, asked: Instant) -> BTreeSet<VolumeId> {
        let Some(state) = self.nodes.get_mut(name) else { return BTreeSet::new() };
        if state.requests.settle_by_read(asked) { state.volumes.clone() } else { BTreeSet::new() }
    }

    /// Takes the answer to a request of ours, a node or "not found": besides what [`Self::observe_node`] does, it proves what it
    /// shows for the volumes that were being unpublished when the request was sent. Every patch on its way to a node that is
    /// not found names an object that is gone, and lands nowhere.
    pub fn witness(&mut self, answer: Option<&Node>, name: &NodeName, sent: Sequence) -> BTreeSet<VolumeId> {
        let Some(state) = self.nodes.get_mut(name) else { return BTreeSet::new() };
        let settles = answer.is_none() && state.requests.settle_by_absence();
        let mut touched = if settles { state.volumes.clone() } else { BTreeSet::new() };
        self.each_volume_on(name, |_, volume, node_volume| {
            if let Unpublishing::Since(since) = node_volume.unpublishing
                && since < sent
            {
                if let Some(proof) = Unpublished::witnessed_by(answer, volume) {
                    node_volume.unpublishing = Unpublishing::Proven(proof);
                }
                touched.insert(volume.clone());
            }
        });
        touched
    }
}
