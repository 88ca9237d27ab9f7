//! What VolumeAttachments say: which volume on which node each is about, and whether it is ours.
//!
//! In: a VolumeAttachment as last seen, or its absence, and the volumes that it may be about
//! ([`Candidates`]). Out: the volume on the node that changed. One whose name is not the hash of what it is about is
//! another party's: it holds its volume like any other (S1) and is left alone. One that nothing explains
//! waits for an object that does. Where name and source speak of different volumes, as after a
//! PersistentVolume was made anew, which one the driver has attached is not known: both count as attached.

use std::{collections::BTreeSet, iter, mem, sync::Arc};

use apiserver::{
    ids::{AttachmentName, NodeName, VolumeName},
    kinds::VolumeAttachment,
    tables::give_back_room,
};
use k8s_openapi::jiff::Timestamp;

use super::{
    identification::{AttachmentIdentity, Candidates, identify, is_named_after},
    node_volume::{AttachmentCall, Deletion, Mount, NodeVolume},
    state::ActualState,
};
use crate::attach_detach::state::desired::volume_name::VolumeId;

/// How the finalizer of each external-attacher begins.
const ATTACHER_FINALIZER: &str = "external-attacher/";
/// Of how many volumes that have changed handles in a circle none waits for itself.
const LONGEST_CIRCLE: usize = 16;

impl AttachmentIdentity {
    /// All volumes that it holds.
    pub(in crate::attach_detach) fn held(&self) -> impl Iterator<Item = &VolumeId> {
        iter::once(&self.volume).chain(&self.second_volumes)
    }
}

impl ActualState {
    /// What a VolumeAttachment is about, as far as that is known.
    pub(in crate::attach_detach) fn identity(&self, name: &AttachmentName) -> Option<&AttachmentIdentity> {
        self.identities.get(name)
    }

    /// Takes a VolumeAttachment as last seen, or its absence. `candidates` are the volumes that the
    /// named PersistentVolume and the node's status suggest it may be about. Returns the volume on the node for
    /// which something changed. The absence of one that is [replaced](Self::is_replaced_by) comes first.
    pub fn observe_attachment(
        &mut self,
        name: &AttachmentName,
        attachment: Option<Arc<VolumeAttachment>>,
        candidates: impl FnOnce(&VolumeAttachment) -> Candidates,
        wall: Timestamp,
    ) -> Option<(VolumeId, NodeName)> {
        let Some(attachment) = attachment else {
            self.unidentified.remove(name);
            let AttachmentIdentity { volume, node, .. } = self.forget_identity(name)?;
            give_back_room(&mut self.identities);
            return Some((volume, node));
        };
        let known = self.identities.get(name).cloned();
        let found = match &known {
            Some(AttachmentIdentity { ours: true, .. }) => None,
            _ => identify(&attachment, candidates(&attachment)),
        };
        let identity = match (known, found) {
            // Its node may explain the name of one that its source does not.
            (Some(known), found) if !found.as_ref().is_some_and(|found| found.ours) => known,
            (_, Some(found)) => {
                self.forget_identity(name);
                self.learn_identity(name, &found);
                found
            }
            (_, None) => {
                self.unidentified.insert(name, attachment);
                return None;
            }
        };
        if identity.ours {
            let node_volume = self.node_volume_mut(&identity.volume, &identity.node);
            node_volume.observe_attachment(attachment);
            if let Some(state) = self.nodes.get_mut(&identity.node) {
                state.note_absence(wall);
            }
        } else {
            // A volume yet to come may explain its name.
            self.unidentified.insert(name, attachment);
            self.note_second_volume(&identity.volume, name, &identity.node);
        }
        for held in identity.held().filter(|_| identity.is_exclusive) {
            self.volumes.entry(held.clone()).or_default().is_exclusive = true;
        }
        Some((identity.volume, identity.node))
    }

    fn learn_identity(&mut self, name: &AttachmentName, identity: &AttachmentIdentity) {
        if identity.ours {
            self.unidentified.remove(name);
        }
        self.identities.insert(name.clone(), identity.clone());
        for second_volume in &identity.second_volumes {
            self.note_second_volume(second_volume, name, &identity.node);
        }
        if let Some(source) = &identity.source {
            self.sources.insert(source.clone(), name.clone());
        }
    }

    fn forget_identity(&mut self, name: &AttachmentName) -> Option<AttachmentIdentity> {
        let identity = self.identities.remove(name)?;
        if let Some(source) = &identity.source {
            self.sources.remove(source, name);
        }
        if identity.ours && self.node_volume_mut(&identity.volume, &identity.node).forget_attachment() {
            self.node_mut(&identity.node).is_rid_of(&identity.volume);
        }
        for held in identity.second_volumes.iter().chain((!identity.ours).then_some(&identity.volume)) {
            if let Some(state) = self.volumes.get_mut(held) {
                state.foreign.remove(name);
            }
        }
        for held in identity.held().filter(|_| identity.is_exclusive) {
            self.find_exclusive(held);
        }
        Some(identity)
    }

    /// Looks anew whether an attachment of the volume says that it is exclusive.
    fn find_exclusive(&mut self, volume: &VolumeId) {
        let Some(state) = self.volumes.get_mut(volume) else { return };
        let ours = state.nodes.values().filter_map(|node_volume| node_volume.attachment());
        let ours = ours.map(|attachment| AttachmentName::from(attachment.metadata.name.clone()));
        let is_exclusive =
            |name: &AttachmentName| self.identities.get(name).is_some_and(|identity| identity.is_exclusive);
        state.is_exclusive =
            state.foreign.keys().any(is_exclusive) || ours.into_iter().any(|name| is_exclusive(&name));
    }

    /// Notes that an attachment holds a volume by something else than its name, or by its name alone.
    fn note_second_volume(&mut self, volume: &VolumeId, name: &AttachmentName, node: &NodeName) {
        self.volumes.entry(volume.clone()).or_default().foreign.insert(name.clone(), node.clone());
    }

    /// The attachments that are ours, but of another volume, and hold this one as well: their PersistentVolume was made anew.
    fn of_another(&self, volume: &VolumeId) -> impl Iterator<Item = &AttachmentIdentity> {
        let foreign = self.volumes.get(volume).into_iter().flat_map(|state| state.foreign.keys());
        foreign.filter_map(|name| self.identities.get(name)).filter(|identity| identity.ours)
    }

    /// Those of the nodes from which an end takes this volume, too, for a driver goes by the name of the PersistentVolume: there a
    /// VolumeAttachment of another volume names it, or one that nothing explains, as after a restart. Such an end has begun, or
    /// is to begin: the other volume is attached, listed, or mounted for all that is known, and not `wanted` there any more, and
    /// this one is not mounted there yet.
    pub fn nodes_that_lose_it(
        &self,
        volume: &VolumeId,
        names: &BTreeSet<NodeName>,
        wanted: impl Fn(&VolumeId, &NodeName) -> bool,
    ) -> impl Iterator<Item = &NodeName> {
        let is_mounted =
            |node: &NodeName| self.node_volume(volume, node).is_some_and(|it| it.mount == Mount::Possible);
        let is_to_end = move |other: &AttachmentIdentity| {
            let Some(it) = self.node_volume(&other.volume, &other.node) else { return false };
            let is_given = it.is_attached() || it.listed || it.mount != Mount::No;
            // Its driver takes what the name leads to by then.
            let is_ending =
                it.is_going() || it.call == Some(AttachmentCall::Delete) || it.deletion() != Deletion::None;
            is_ending || is_given && !wanted(&other.volume, &other.node) && !is_mounted(&other.node)
        };
        let foreign = self.volumes.get(volume).into_iter().flat_map(|state| &state.foreign);
        foreign
            .filter(|(_, node)| names.contains(*node))
            .filter(move |(name, _)| match self.identities.get(*name) {
                Some(other) if other.ours => is_to_end(other),
                _ => self.is_unexplained_end(name),
            })
            .map(|(_, node)| node)
    }

    /// Whether a VolumeAttachment that nothing explains is being detached: an attacher takes its finalizer off when it is done.
    pub(crate) fn is_unexplained_end(&self, name: &AttachmentName) -> bool {
        self.unidentified.get(name).is_some_and(|attachment| {
            let metadata = &attachment.metadata;
            let is_guarded = metadata.finalizers.iter().any(|it| it.starts_with(ATTACHER_FINALIZER));
            metadata.is_terminating() && is_guarded
        })
    }

    /// Whether the end of the volume's attachment, which no pod needs, would take another volume from the node: the
    /// PersistentVolume that it names leads to that one now, which is attached or mounted there, too, and a driver goes by that
    /// name. In a circle of such volumes only what is `wanted` or in use is kept, so that none waits for itself. While there is
    /// no such PersistentVolume, one that comes may lead to any that had the name: those wanted or in use are kept, as are those
    /// of them that are [one disk](VolumeId::is_one_disk) with it, which the end of each takes. A use that is `overruled`, as on
    /// a node that is off, keeps nothing, and of two in use neither waits for the other.
    pub(crate) fn is_beside_another(
        &self,
        volume: &VolumeId,
        node: &NodeName,
        leads_to: impl Fn(&VolumeName) -> Option<VolumeId>,
        wanted: impl Fn(&VolumeId) -> bool,
        overruled: impl Fn(&VolumeId) -> bool,
    ) -> bool {
        let Some(this) = self.node_volume(volume, node) else { return false };
        let source_of = |it: &NodeVolume| it.attachment()?.spec.source.persistent_volume_name.clone();
        let Some(source) = source_of(this) else { return false };
        let on_node = |other: &VolumeId| self.node_volume(other, node).filter(|_| other != volume);
        let is_used = |other: &VolumeId, it: &NodeVolume, is_wanted: bool| {
            !this.in_use && it.in_use && it.is_mounted(is_wanted) && !overruled(other)
        };
        let is_there = |it: &NodeVolume, is_wanted: bool| {
            it.attachment().is_some() || it.may_be_made_by_us() || it.is_mounted(is_wanted)
        };
        let current = leads_to(&source);
        if let Some((other, it)) = current.as_ref().and_then(|other| Some((other, on_node(other)?))) {
            let next = |of: &VolumeId| leads_to(&source_of(self.node_volume(of, node)?)?);
            let is_circle =
                || iter::successors(Some(other.clone()), next).take(LONGEST_CIRCLE).any(|it| it == *volume);
            let is_wanted = wanted(other);
            if is_there(it, is_wanted) && (is_wanted || is_used(other, it, is_wanted) || !is_circle()) {
                return true;
            }
        }
        let mut others =
            self.of_source(&source, node).chain(self.second_volumes_of(&volume.attachment_name(node)));
        others.any(|other| {
            let is_wanted = wanted(&other);
            let is_kept = |it: &NodeVolume| is_used(&other, it, is_wanted) || is_wanted && is_there(it, true);
            (current.is_none() || volume.is_one_disk(&other)) && on_node(&other).is_some_and(is_kept)
        })
    }

    /// The volumes on the node whose VolumeAttachments name the PersistentVolume.
    pub(crate) fn of_source(&self, source: &VolumeName, node: &NodeName) -> impl Iterator<Item = VolumeId> {
        let of_source = self.sources_on(node).into_iter().filter(move |(name, _)| name == source);
        of_source.map(|(_, volume)| volume)
    }

    /// The volumes on the node that wait for what becomes of this one, or for whose end it waits: a VolumeAttachment of the one
    /// names the PersistentVolume that leads to the other.
    pub fn beside(&self, volume: &VolumeId, node: &NodeName) -> Vec<VolumeId> {
        let others = self.ending_with(volume, node);
        others.chain(self.second_volumes_of(&volume.attachment_name(node))).collect()
    }

    /// The volumes on the node whose VolumeAttachment names the PersistentVolume that leads, or led, to this one.
    pub fn ending_with(&self, volume: &VolumeId, node: &NodeName) -> impl Iterator<Item = VolumeId> {
        self.of_another(volume).filter(|other| other.node == *node).map(|other| other.volume.clone())
    }

    /// The other volumes that a VolumeAttachment holds: its name is of one, and its source is, or was, of another.
    pub(crate) fn second_volumes_of(&self, name: &AttachmentName) -> Vec<VolumeId> {
        self.identities.get(name).map_or(Vec::new(), |identity| identity.second_volumes.clone())
    }

    /// Takes the volume that a PersistentVolume stands for now, and whether that may be on one node only. A driver follows the
    /// name of the PersistentVolume, so an attachment that names it may be of that one as well as of the one before. Returns
    /// the volumes for which that changes anything.
    pub fn observe_source(
        &mut self,
        source: &VolumeName,
        volume: &VolumeId,
        is_exclusive: bool,
    ) -> BTreeSet<VolumeId> {
        let (mut before, mut changed) = (BTreeSet::new(), BTreeSet::new());
        let names: Vec<AttachmentName> = self.sources.of(source.clone()).cloned().collect();
        for name in names {
            let Some(identity) = self.identities.get_mut(&name) else { continue };
            if mem::replace(&mut identity.is_exclusive, is_exclusive) != is_exclusive {
                changed.extend(identity.held().cloned());
            }
            if identity.volume == *volume {
                continue;
            }
            before.insert(identity.volume.clone());
            if !identity.second_volumes.contains(volume) {
                identity.second_volumes.push(volume.clone());
                let node = identity.node.clone();
                self.note_second_volume(volume, &name, &node);
                changed.insert(volume.clone());
            }
        }
        for volume in &changed {
            self.find_exclusive(volume);
        }
        before.extend(changed);
        before
    }

    /// Whether the VolumeAttachment last taken under this name was another object: it is gone, and this one
    /// may be about something else.
    pub(crate) fn is_replaced_by(&self, name: &AttachmentName, attachment: &VolumeAttachment) -> bool {
        self.identities.get(name).is_some_and(|identity| identity.uid != attachment.metadata.uid)
    }

    /// Of a VolumeAttachment that is not ours: the volume it holds, if that is known, and its node.
    pub(crate) fn foreign(&self, name: &AttachmentName) -> Option<(Option<&VolumeId>, &NodeName)> {
        match self.identities.get(name) {
            Some(identity) => (!identity.ours).then_some((Some(&identity.volume), &identity.node)),
            None => self.unidentified.get(name).map(|attachment| (None, &attachment.spec.node_name)),
        }
    }

    /// Recognises the attachments of a volume among those that nothing has explained so far: their own
    /// PersistentVolume may be gone while another one stands for the same handle. Returns the names of those
    /// found, and how many names were computed for that.
    pub fn recognise(&mut self, volume: &VolumeId, wall: Timestamp) -> (Vec<AttachmentName>, usize) {
        let nodes = self.unidentified.untried(volume);
        let computed = nodes.len();
        let mut found = Vec::new();
        for node in nodes {
            let name = volume.attachment_name(&node);
            let Some(attachment) = self.unidentified.get(&name).map(Arc::clone) else { continue };
            if !is_named_after(&attachment, volume) {
                continue;
            }
            if let Some(identity) = self.identities.get_mut(&name) {
                // Its source is of another volume, whose it stays: to detach it would take that one from the node. It is looked
                // at again when that source changes.
                if identity.second_volumes.contains(volume) {
                    continue;
                }
                identity.second_volumes.push(volume.clone());
                self.note_second_volume(volume, &name, &node);
                self.find_exclusive(volume);
            } else {
                let about = Candidates { source: Some(volume.clone()), ..Candidates::default() };
                self.observe_attachment(&name, Some(attachment), |_| about, wall);
            }
            found.push(name);
        }
        (found, computed)
    }

    /// The VolumeAttachments that name the PersistentVolume, whether a known volume explains them or not.
    pub fn attachments_of(&self, source: &VolumeName) -> impl Iterator<Item = AttachmentName> {
        self.sources.of(source.clone()).cloned().chain(self.unidentified.of(source))
    }
}
