//! Actual state: where volumes are attached, or may be, and what each node's status says.
//!
//! In: VolumeAttachments and Nodes as last seen, and the outcomes of our own requests. Out: per volume
//! the [`NodeVolume`]s that decisions are made of, and which volumes a change touched. Nothing here survives
//! a restart or needs to: all of it is read back from the API objects, and what only this process
//! knows (a request in flight, an outcome unknown) errs on the side of "attached".

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
};

use apiserver::{
    ids::{AttachmentName, NodeName, VolumeName},
    tables::{Relation, give_back_room},
};
use k8s_openapi::jiff::Timestamp;
use litemap::LiteMap;

use super::{
    identification::AttachmentIdentity,
    node::NodeState,
    node_volume::{Mount, NodeVolume, WhyRead},
    unidentified::Unidentified,
};
use crate::attach_detach::{
    decide::contention::Contention,
    state::{
        desired::{DesiredAttachment, volume_name::VolumeId},
        make_room_for_one,
    },
};

/// One volume on all its nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeState {
    /// By node.
    pub nodes: LiteMap<NodeName, Box<NodeVolume>>,
    /// VolumeAttachments of this volume under names that are not ours. Left alone, but the volume may be
    /// attached by each of them (S1).
    pub foreign: BTreeMap<AttachmentName, NodeName>,
    /// Whether one of its VolumeAttachments, ours or not, names a PersistentVolume or a spec that may be on one node only,
    /// also if another PersistentVolume of the same volume, which a pod needs now, says otherwise (S1).
    pub is_exclusive: bool,
    /// What its nodes were told of one another last.
    pub told: Option<Box<Contention>>,
}

impl VolumeState {
    /// Nodes where it is, or may be, attached, whichever writer attached it; pods need it on the `desired` ones.
    pub(in crate::attach_detach) fn holders<'a>(
        &'a self,
        desired: Option<&'a LiteMap<NodeName, DesiredAttachment>>,
    ) -> impl Iterator<Item = &'a NodeName> {
        let is_wanted = move |name| desired.is_some_and(|desired| desired.contains_key(name));
        let ours = self.nodes.iter().filter(move |(name, node_volume)| node_volume.holds(is_wanted(*name)));
        ours.map(|(name, _)| name).chain(self.foreign.values())
    }
}

/// All volumes, nodes and attachments.
#[derive(Clone, Debug, Default)]
pub struct ActualState {
    pub(super) volumes: HashMap<VolumeId, VolumeState>,
    pub(super) nodes: BTreeMap<NodeName, NodeState>,
    pub(super) identities: HashMap<AttachmentName, AttachmentIdentity>,
    /// The PersistentVolumes that identified attachments name.
    pub(super) sources: Relation<VolumeName, AttachmentName>,
    /// VolumeAttachments that no known volume explains: worth another look when their node or PersistentVolume changes.
    pub(in crate::attach_detach) unidentified: Unidentified,
    /// Who waits for a name that another VolumeAttachment has.
    pub(in crate::attach_detach) taken: HashMap<AttachmentName, (VolumeId, NodeName)>,
}

impl ActualState {
    /// A volume on all its nodes.
    pub fn volume(&self, volume: &VolumeId) -> Option<&VolumeState> {
        self.volumes.get(volume)
    }

    /// Every volume of which something is known.
    pub fn volumes(&self) -> impl Iterator<Item = (&VolumeId, &VolumeState)> {
        self.volumes.iter()
    }

    /// All nodes of which something is known.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeName, &NodeState)> {
        self.nodes.iter()
    }

    /// The nodes behind a place in their order.
    pub(in crate::attach_detach) fn nodes_behind(
        &self,
        place: Bound<NodeName>,
    ) -> impl Iterator<Item = &NodeName> {
        self.nodes.range((place, Bound::Unbounded)).map(|(name, _)| name)
    }

    /// A node.
    pub fn node(&self, node: &NodeName) -> Option<&NodeState> {
        self.nodes.get(node)
    }

    /// A node, to be changed.
    pub fn node_mut(&mut self, node: &NodeName) -> &mut NodeState {
        self.nodes.entry(node.clone()).or_default()
    }

    /// The volumes on a node.
    pub fn volumes_on(&self, node: &NodeName) -> impl Iterator<Item = (&VolumeId, &NodeVolume)> {
        let volumes = self.nodes.get(node).into_iter().flat_map(|state| &state.volumes);
        volumes.filter_map(move |volume| Some((volume, self.node_volume(volume, node)?)))
    }

    /// The PersistentVolumes that VolumeAttachments of ours on a node name, each with the volume that it was.
    pub(crate) fn sources_on(&self, node: &NodeName) -> Vec<(VolumeName, VolumeId)> {
        let source = |node_volume: &NodeVolume| {
            node_volume.attachment().and_then(|it| it.spec.source.persistent_volume_name.clone())
        };
        let volumes = self.volumes_on(node);
        volumes.filter_map(|(volume, node_volume)| Some((source(node_volume)?, volume.clone()))).collect()
    }

    /// A volume on a node, if something is known of it.
    pub fn node_volume(&self, volume: &VolumeId, node: &NodeName) -> Option<&NodeVolume> {
        self.volumes.get(volume)?.nodes.get(node).map(|node_volume| &**node_volume)
    }

    /// Which attempt the next request about a volume on a node is, from 1.
    pub fn attempt(&self, volume: &VolumeId, node: &NodeName) -> u32 {
        self.node_volume(volume, node).map_or(1, |node_volume| node_volume.retry.failures().saturating_add(1))
    }

    /// A volume on a node; its entry is made if there is none.
    pub fn node_volume_mut(&mut self, volume: &VolumeId, node: &NodeName) -> &mut NodeVolume {
        if self.node_volume(volume, node).is_none() {
            self.add(volume, node);
        }
        self.volumes.entry(volume.clone()).or_default().nodes.entry(node.clone()).or_default()
    }

    fn add(&mut self, volume: &VolumeId, node: &NodeName) {
        let state = self.nodes.entry(node.clone()).or_default();
        state.volumes.insert(volume.clone());
        let listed = state.node.as_ref().is_some_and(|node| node.lists(volume.as_str()));
        // What a node that is there uses is taken with its report.
        let in_use = state.node.is_none();
        let mount = if listed { Mount::Possible } else { Mount::No };
        let node_volume = Box::new(NodeVolume { listed, mount, in_use, ..NodeVolume::default() });
        let nodes = &mut self.volumes.entry(volume.clone()).or_default().nodes;
        make_room_for_one(nodes);
        nodes.insert(node.clone(), node_volume);
    }

    /// Does something with every volume on a node. Each is named in the node's `volumes` as long as it is there:
    /// [`Self::add`] and [`Self::prune`] see to both.
    pub(super) fn each_volume_on(
        &mut self,
        name: &NodeName,
        mut act: impl FnMut(&NodeState, &VolumeId, &mut NodeVolume),
    ) {
        let Some(state) = self.nodes.get(name) else { return };
        for volume in &state.volumes {
            let node_volume = self.volumes.get_mut(volume).and_then(|state| state.nodes.get_mut(name));
            if let Some(node_volume) = node_volume {
                act(state, volume, node_volume);
            }
        }
    }

    /// Notes what the nodes of a volume are told of one another. Returns whether that is news.
    pub fn tell(&mut self, volume: &VolumeId, told: Option<Box<Contention>>) -> bool {
        let Some(state) = self.volumes.get_mut(volume) else { return false };
        let is_news = state.told != told;
        state.told = told;
        is_news
    }

    /// Forgets the volume on nodes where it is not attached, no pod `wants` it and no kubelet reports it in use: what
    /// such a report means is known of one that has been seen to begin. Returns on which.
    pub fn prune(
        &mut self,
        volume: &VolumeId,
        names: &BTreeSet<NodeName>,
        wants: impl Fn(&NodeName) -> bool,
    ) -> Vec<NodeName> {
        let mut gone = Vec::new();
        let Some(state) = self.volumes.get_mut(volume) else { return gone };
        let reports = |state: &NodeState| state.node.as_ref().is_some_and(|node| node.uses(volume.as_str()));
        for name in names.iter().filter(|name| !wants(name)) {
            let is_idle = state.nodes.get(name).is_some_and(|node_volume| node_volume.is_idle());
            if !is_idle || self.nodes.get(name).is_some_and(reports) {
                continue;
            }
            if let Some(WhyRead::NameTaken(taken)) = state.nodes.remove(name).and_then(|it| it.why_read) {
                self.taken.remove(&taken);
            }
            gone.push(name.clone());
            if let Some(node_state) = self.nodes.get_mut(name) {
                node_state.volumes.remove(volume);
                if node_state.is_over() {
                    self.nodes.remove(name);
                }
            }
        }
        if state.nodes.is_empty() && state.foreign.is_empty() {
            self.volumes.remove(volume);
            self.unidentified.forget(volume);
            give_back_room(&mut self.volumes);
        }
        gone
    }

    /// Notes since when a volume has not been desired, on each of these nodes.
    pub fn note_undesired(
        &mut self,
        volume: &VolumeId,
        names: &BTreeSet<NodeName>,
        wants: impl Fn(&NodeName) -> bool,
        wall: Timestamp,
    ) {
        let Some(state) = self.volumes.get_mut(volume) else { return };
        for name in names {
            if let Some(node_volume) = state.nodes.get_mut(name) {
                node_volume.note_desired(wants(name), wall);
            }
        }
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
