//! Which reads an answer needs: a function of the subject and of what has been read so far.
//!
//! In: a [`ObjectRef`] and a [`Snapshot`]. Out: all [`Read`]s that are wanted with what is known now, those that were made
//! included; the reader makes the new ones and asks again, until there are none. References are followed: claim → its
//! volume → the volume's claim → attachments of the volume → their nodes.
//!
//! Objects are read by name wherever a name is known, that of a VolumeAttachment too: it is computed from volume and node.
//! All volumes are listed only for a claim that looks for one, all attachments only where it matters who else holds a
//! volume, pods of one node or one namespace at most.

use std::collections::{BTreeMap, BTreeSet};

use apiserver::{
    ids::{
        AttachmentName, AttributesClassName, ClaimKey, ClassName, DriverName, NodeName, PodKey, VolumeName,
    },
    kinds::{
        BindingMode, CsiDriver, Narrow, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod,
        PodVolumeSource, StorageClass, VolumeAttachment, VolumeAttributesClass,
    },
    tables::Stored,
};

use super::requests::Read;
use crate::{
    attach_detach::state::desired::{
        volume_name::VolumeId,
        volume_source::{CsiVolume, Sharing, Storage, of_inline_volume, of_persistent_volume},
    },
    binder::{
        annotations::SELECTED_NODE,
        matching::predicate::{claim_class, volume_class},
    },
    explain::{
        claim::ONE_POD,
        resize::grows,
        snapshot::Snapshot,
        topology::hosts,
        view::{claims_of, runs_on},
    },
};

/// A volume on more nodes than this is looked for in the list of all attachments: one request, not two for each node.
const MANY_NODES: usize = 16;

/// Where most drivers, and the stock controllers, have their leases.
const SYSTEM_NAMESPACE: &str = "kube-system";

/// All reads that an answer about a subject needs, as far as that is known by now.
#[must_use]
pub fn needed(subject: &ObjectRef, seen: &Snapshot) -> BTreeSet<Read> {
    let mut plan = ReadPlan { seen, reads: BTreeSet::new() };
    plan.reads.insert(Read::events_about(subject));
    if !matches!(subject, ObjectRef::AttributesClass(_)) {
        plan.object(subject.clone());
    }
    match subject {
        ObjectRef::Claim(key) => plan.claim_alone(key),
        ObjectRef::Pod(key) => plan.pod(key),
        ObjectRef::Volume(name) => plan.volume_alone(name),
        ObjectRef::Attachment(name) => plan.attachment_alone(name),
        ObjectRef::Node(name) => plan.node_alone(name),
        ObjectRef::Class(name) => plan.class_alone(name),
        ObjectRef::AttributesClass(name) => plan.attributes_class_alone(name),
        ObjectRef::Driver(_) => {}
    }
    plan.reads
}

pub(super) struct ReadPlan<'a> {
    pub(super) seen: &'a Snapshot,
    pub(super) reads: BTreeSet<Read>,
}

impl ReadPlan<'_> {
    pub(super) fn object(&mut self, object: ObjectRef) {
        self.reads.insert(Read::object(object));
    }

    /// A whole kind.
    pub(super) fn list<T: Stored>(&mut self) {
        self.reads.insert(Read::all::<T>());
    }

    /// What shows that an attacher or provisioner is there: the drivers, and leases of all namespaces, or, of who may not
    /// see those, at least where most are.
    pub(super) fn programs(&mut self) {
        self.list::<CsiDriver>();
        self.reads.insert(Read::leases());
        if self.is_unseen(&Read::leases()) {
            self.reads.insert(Read::leases_in(SYSTEM_NAMESPACE));
        }
    }

    pub(super) fn is_unseen(&self, read: &Read) -> bool {
        let what = read.to_string();
        self.seen.unseen.iter().any(|unseen| unseen.what == what)
    }

    /// Whether more can become known of an object.
    fn is_open(&self, object: &ObjectRef) -> bool {
        !self.seen.details.contains_key(object)
            && !self.seen.holds(object)
            && !self.seen.is_absent(object)
            && !self.is_unseen(&Read::object(object.clone()))
    }

    fn claim_alone(&mut self, key: &ClaimKey) {
        let Some(claim) = self.claim(key) else { return };
        if claim.spec.volume_name.is_empty() {
            self.reads.insert(Read::pods_in(key.namespace()));
        } else {
            self.wanted_by(&claim.spec.volume_name, key);
        }
    }

    /// A claim with what it is, or may come to be, bound to.
    fn claim(&mut self, key: &ClaimKey) -> Option<std::sync::Arc<PersistentVolumeClaim>> {
        let object = ObjectRef::Claim(key.clone());
        self.object(object.clone());
        self.reads.insert(Read::events_about(&object));
        let claim = self.seen.objects.claims.get(key)?;
        if claim.spec.volume_name.is_empty() {
            self.list::<PersistentVolume>();
            self.list::<StorageClass>();
            self.programs();
            if let Some(node) = claim.metadata.annotations.get(SELECTED_NODE) {
                self.object(ObjectRef::Node(NodeName::from(node.as_str())));
            }
            let class = claim_class(&claim);
            if !class.is_empty() {
                self.object(ObjectRef::Class(ClassName::from(class)));
                self.reach(class);
            }
        } else if self.volume(&claim.spec.volume_name).is_some() && grows(&self.seen.objects, &claim) {
            // Who is to enlarge the volume, and whether the class lets the next request through.
            self.programs();
            let class = claim_class(&claim);
            if !class.is_empty() {
                self.object(ObjectRef::Class(ClassName::from(class)));
            }
        }
        Some(claim)
    }

    /// Where the volumes that a pod's scheduler might choose may be used: which nodes they name, and whether these exist.
    fn reach(&mut self, class: &str) {
        let mode =
            self.seen.objects.classes.get(&ClassName::from(class)).and_then(|it| it.volume_binding_mode);
        if mode != Some(BindingMode::WaitForFirstConsumer) {
            return;
        }
        let free = self.seen.keys(|volume: &PersistentVolume| {
            volume.spec.claim_ref.is_none() && volume_class(volume) == class
        });
        for name in free.into_iter().take(MANY_NODES) {
            let volume = ObjectRef::Volume(name);
            self.object(volume.clone());
            let whole = self.seen.details.get(&volume);
            for node in whole.and_then(hosts).into_iter().flatten().take(MANY_NODES) {
                self.object(ObjectRef::Node(node.as_str().into()));
            }
        }
    }

    /// A volume with the claim it is for.
    pub(super) fn volume(&mut self, name: &VolumeName) -> Option<std::sync::Arc<PersistentVolume>> {
        self.object(ObjectRef::Volume(name.clone()));
        let volume = self.seen.objects.volumes.get(name)?;
        if let Some(claim) = &volume.spec.claim_ref {
            self.object(ObjectRef::Claim(claim.key()));
        }
        if let Some(csi) = &volume.spec.csi {
            self.object(ObjectRef::Driver(csi.driver.clone()));
        }
        Some(volume)
    }

    fn class_alone(&mut self, name: &ClassName) {
        self.object(ObjectRef::Class(name.clone()));
        self.list::<StorageClass>();
        self.programs();
        // Nothing else says what the name is about.
        if self.seen.is_absent(&ObjectRef::Class(name.clone())) {
            self.list::<PersistentVolumeClaim>();
        }
    }

    /// Who names the class, all claims and volumes say. Of a server without the kind only a list tells that it is none:
    /// asked for an object, it answers as if there were no such one.
    fn attributes_class_alone(&mut self, name: &AttributesClassName) {
        self.list::<VolumeAttributesClass>();
        self.list::<PersistentVolumeClaim>();
        self.list::<PersistentVolume>();
        if self.seen.is_listed::<VolumeAttributesClass>() {
            self.object(ObjectRef::AttributesClass(name.clone()));
        }
    }

    fn pod(&mut self, key: &PodKey) {
        let Some(pod) = self.seen.objects.pods.get(key) else {
            // One that has no volume to be attached may have others of CSI drivers.
            let whole = self.seen.details.get(&ObjectRef::Pod(key.clone()));
            let node = whole.and_then(|pod| pod.pointer("/spec/nodeName")?.as_str());
            if let Some(node) = node {
                self.node(&NodeName::from(node));
            }
            return;
        };
        let node = pod.spec.node_name.clone();
        if !node.is_empty() {
            self.node(&node);
        }
        for volume in inline_volumes(&pod).filter(|_| !node.is_empty()) {
            self.inline(&volume, &node);
        }
        for key in claims_of(&pod) {
            let Some(claim) = self.claim(&key) else { continue };
            let volume = &claim.spec.volume_name;
            let is_for_one =
                |name: &VolumeName| self.seen.objects.volumes.get(name).is_some_and(|it| is_exclusive(&it));
            if claim.spec.access_modes.iter().any(|mode| &**mode == ONE_POD)
                || (!node.is_empty() && is_for_one(volume))
            {
                self.reads.insert(Read::pods_in(key.namespace()));
            }
            if !node.is_empty() && !volume.is_empty() {
                // A volume for one node alone may be on another, where a pod has it, too.
                let mut nodes = self.nodes_using(&key);
                nodes.insert(node.clone());
                self.attached(volume, &nodes);
            }
        }
    }

    /// A volume that a pod names without a claim, and that a CSI driver attaches in place of an in-tree plugin.
    fn inline(&mut self, volume: &CsiVolume, node: &NodeName) {
        self.object(ObjectRef::Driver(volume.driver.clone()));
        if !self.is_attached_by_program(&volume.driver) {
            return;
        }
        if self.is_waited_for(&volume.id, node) {
            self.programs();
            self.list::<VolumeAttachment>();
            self.holders(|other| volume.id.attachment_name(&other.spec.node_name) == other.key());
        }
    }

    /// Whether it is known that a driver is there that needs attachments, or that there is no object of it.
    fn is_attached_by_program(&self, driver: &DriverName) -> bool {
        let object = self.seen.objects.drivers.get(driver);
        !self.is_open(&ObjectRef::Driver(driver.clone()))
            && object.is_none_or(|driver| driver.spec.attach_required != Some(false))
    }

    fn volume_alone(&mut self, name: &VolumeName) {
        let Some(volume) = self.volume(name) else { return };
        match &volume.spec.claim_ref {
            Some(reference) => {
                let key = reference.key();
                self.wanted_by(name, &key);
                let claim = self.seen.objects.claims.get(&key);
                let is_elsewhere = claim.is_some_and(|claim| claim.spec.volume_name != *name);
                if is_elsewhere {
                    // What it waits for, or has in this one's place.
                    self.claim(&key);
                }
                if is_elsewhere || self.seen.is_absent(&ObjectRef::Claim(key)) {
                    // Whose the volume is then, only claims tell.
                    self.list::<PersistentVolumeClaim>();
                }
            }
            None => self.list::<PersistentVolumeClaim>(),
        }
        if volume.spec.csi.is_some() || volume.spec.in_tree.is_some() {
            self.all_holders(name);
        }
    }

    fn attachment_alone(&mut self, name: &AttachmentName) {
        let Some(attachment) = self.seen.objects.attachments.get(name) else { return };
        self.node(&attachment.spec.node_name);
        self.reads.insert(Read::pods_on(&attachment.spec.node_name));
        self.object(ObjectRef::Driver(attachment.spec.attacher.clone()));
        if !is_settled(&attachment) {
            self.programs();
        }
        let Some(volume) = &attachment.spec.source.persistent_volume_name else { return };
        let claim = self.volume(volume).and_then(|volume| Some(volume.spec.claim_ref.as_ref()?.key()));
        if let Some(claim) = claim
            && attachment.metadata.is_terminating()
        {
            // Which pods wait for it to be gone.
            self.wanted_by(volume, &claim);
        }
    }

    /// A volume with the pods that use its claim.
    fn wanted_by(&mut self, name: &VolumeName, claim: &ClaimKey) {
        self.reads.insert(Read::pods_in(claim.namespace()));
        self.attached(name, &self.nodes_using(claim));
    }

    fn node(&mut self, name: &NodeName) {
        self.object(ObjectRef::Node(name.clone()));
        self.reads.insert(Read::csi_node(name));
    }

    fn node_alone(&mut self, name: &NodeName) {
        self.reads.insert(Read::csi_node(name));
        self.list::<VolumeAttachment>();
        for volume in self.on_node(name) {
            self.attached(&volume, &BTreeSet::from([name.clone()]));
        }
    }

    /// What is known to be on a node: its pods with their claims, and its attachments with their volumes. Returns the volumes that the
    /// pods use.
    pub(super) fn on_node(&mut self, name: &NodeName) -> BTreeSet<VolumeName> {
        self.object(ObjectRef::Node(name.clone()));
        self.reads.insert(Read::pods_on(name));
        for attachment in self.seen.all(|it: &VolumeAttachment| it.spec.node_name == *name) {
            attachment.spec.source.persistent_volume_name.iter().for_each(|it| drop(self.volume(it)));
        }
        let pods = self.seen.all(|pod| runs_on(pod, name));
        pods.iter().flat_map(|pod| claims_of(pod)).filter_map(|claim| self.bound(&claim)).collect()
    }

    /// A claim; returns its volume.
    pub(super) fn bound(&mut self, key: &ClaimKey) -> Option<VolumeName> {
        self.object(ObjectRef::Claim(key.clone()));
        let claim = self.seen.objects.claims.get(key)?;
        Some(claim.spec.volume_name.clone()).filter(|name| !name.is_empty())
    }

    /// Nodes with pods that use a claim.
    fn nodes_using(&self, key: &ClaimKey) -> BTreeSet<NodeName> {
        let uses = |pod: &Pod| claims_of(pod).any(|claim| claim == *key);
        let pods =
            self.seen.all(|pod: &Pod| !pod.spec.node_name.is_empty() && !pod.is_terminated() && uses(pod));
        pods.iter().map(|pod| pod.spec.node_name.clone()).collect()
    }

    /// A volume that is wanted on these nodes: its attachments there, and, where it does not get there, who holds it.
    fn attached(&mut self, name: &VolumeName, nodes: &BTreeSet<NodeName>) {
        let Some(volume) = self.volume(name) else { return };
        let Some(csi) = &volume.spec.csi else {
            if let Ok(Storage::NoOp(id, _)) = of_persistent_volume(&volume.metadata, &volume.spec) {
                self.listed(&id, nodes, &volume);
            } else if volume.spec.in_tree.is_some() && !nodes.is_empty() {
                // Its attachment is named by what the driver in its place calls it.
                self.all_holders(name);
            }
            return;
        };
        if !self.is_attached_by_program(&csi.driver) {
            return;
        }
        if nodes.len() > MANY_NODES {
            self.all_holders(name);
            return;
        }
        let id = VolumeId::csi(&csi.driver, &csi.volume_handle);
        for node in nodes {
            self.node(node);
            if !self.is_waited_for(&id, node) && self.is_listed(node, &id) {
                continue;
            }
            self.programs();
            if is_exclusive(&volume) {
                self.all_holders(name);
                if let Some(claim) = &volume.spec.claim_ref {
                    self.reads.insert(Read::pods_in(&claim.namespace));
                }
            }
        }
    }

    /// A volume that is attached by the node's list alone: where it is not listed, any node may hold it.
    fn listed(&mut self, id: &VolumeId, nodes: &BTreeSet<NodeName>, volume: &PersistentVolume) {
        for node in nodes.iter().take(MANY_NODES) {
            self.node(node);
            if is_exclusive(volume) && !self.is_listed(node, id) {
                self.list::<Node>();
                if let Some(claim) = &volume.spec.claim_ref {
                    self.reads.insert(Read::pods_in(&claim.namespace));
                }
            }
        }
    }

    /// Whether a node lists a volume, as far as is known.
    fn is_listed(&self, node: &NodeName, id: &VolumeId) -> bool {
        self.seen.objects.nodes.get(node).is_none_or(|node| node.lists(id.as_str()))
    }

    /// Whether a volume's attachment to a node, which is wanted, is known not to be there as it should be.
    fn is_waited_for(&mut self, volume: &VolumeId, node: &NodeName) -> bool {
        let name = volume.attachment_name(node);
        self.object(ObjectRef::Attachment(name.clone()));
        match self.seen.objects.attachments.get(&name) {
            Some(attachment) => !is_settled(&attachment),
            None => !self.is_open(&ObjectRef::Attachment(name)),
        }
    }

    /// All attachments, for those of a volume.
    fn all_holders(&mut self, name: &VolumeName) {
        self.list::<VolumeAttachment>();
        self.holders(|it| it.spec.source.persistent_volume_name.as_ref() == Some(name));
    }

    /// The nodes of a volume's attachments: all of a few, else those where something is under way.
    fn holders(&mut self, is_its: impl Fn(&VolumeAttachment) -> bool) {
        let held = self.seen.all(is_its);
        let nodes: BTreeMap<_, _> = held.iter().map(|it| (&it.spec.node_name, is_settled(it))).collect();
        let are_few = nodes.len() <= MANY_NODES;
        let unsettled = nodes.iter().filter(|(_, is_settled)| are_few || !**is_settled).take(MANY_NODES);
        for (node, is_settled) in unsettled {
            self.node(node);
            if !is_settled {
                self.programs();
            }
        }
    }
}

/// Volumes that a pod names without a claim, and that a CSI driver has taken over.
fn inline_volumes(pod: &Pod) -> impl Iterator<Item = CsiVolume> {
    let namespace = &pod.metadata.namespace;
    pod.spec.volumes.iter().filter_map(move |volume| {
        let PodVolumeSource::InTree(source) = &volume.source else { return None };
        match of_inline_volume(&volume.name, namespace, source) {
            Ok(Storage::Csi(volume)) => Some(volume),
            _ => None,
        }
    })
}

/// Attached, and to stay.
fn is_settled(attachment: &VolumeAttachment) -> bool {
    attachment.status.attached && !attachment.metadata.is_terminating()
}

/// Whether a volume may be on one node only.
fn is_exclusive(volume: &PersistentVolume) -> bool {
    Sharing::of(volume.spec.access_modes.iter().map(|mode| &**mode)) == Sharing::Exclusive
}

#[cfg(test)]
mod tests;
