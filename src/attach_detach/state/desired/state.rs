//! Desired state: which volume must be on which node, and for which pods.
//!
//! In: per pod, what it needs ([`DesiredPod`], made by the populator). Out: per volume the nodes that
//! need it, and which volumes a change touched. Also the index by which an object that a pod waits
//! for finds that pod again.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use apiserver::{
    ids::{ClaimKey, DriverName, NodeName, PodKey, Uid, VolumeName},
    kinds::ObjectRef,
    tables::{Objects, Relation, give_back_room},
    text::TextList,
};
use arcstr::ArcStr;
use k8s_openapi::jiff::Timestamp;
use litemap::LiteMap;
use serde_json::Value;
use strum::IntoStaticStr;
use thiserror::Error;

use super::{source_error::SourceError, volume_name::VolumeId};
use crate::attach_detach::state::make_room_for_one;
/// What one pod needs.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredPod {
    /// The pod.
    pub pod: Arc<PodFacts>,
    /// The node it was scheduled to.
    pub node: NodeName,
    /// Volumes to attach there.
    pub volumes: LiteMap<VolumeId, Arc<DesiredVolume>>,
    /// Volumes that cannot be resolved yet, and why.
    pub unresolved: Vec<Unresolved>,
    /// Objects whose change may change these desired attachments, in order.
    pub depends_on: Box<[ObjectRef]>,
}

/// What events and the choice of a winner need to know of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    /// Namespace and name.
    pub key: PodKey,
    /// UID.
    pub uid: Uid,
    /// When it was created.
    pub created: Option<Timestamp>,
}

/// A volume that a pod needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredVolume {
    /// Names of the volume inside the pod: more than one if several claims of the pod lead to it.
    pub pod_volumes: TextList,
    /// What its VolumeAttachment is made of.
    pub source: Option<AttachSource>,
    /// Name of the volume as events print it: that of the PersistentVolume, the one made up for an
    /// in-tree volume without one, or else the pod's own.
    /// KCM: pkg/volume/plugins.go, `Spec.Name`.
    pub spec_name: ArcStr,
    /// Whether it may be attached to one node at a time only (attach-detach §6.5).
    pub exclusive: bool,
    /// Whether only another PersistentVolume of the same storage says that it is exclusive: one that the pod has as well, or
    /// was given before.
    pub exclusive_by_another: bool,
    /// Whether claim, volume and driver still say what they said when the desired attachment was made. A desired
    /// attachment that went stale keeps an attachment (the pod may be using it) but makes none (S8).
    pub current: bool,
}

/// `spec.source` of a VolumeAttachment (attach-detach §7.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachSource {
    /// A PersistentVolume by name.
    PersistentVolume(VolumeName),
    /// The spec of the PersistentVolume that is made up for an in-tree volume without one.
    Inline(Arc<Value>),
}

/// Why a volume of a pod is not in the desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// Name of the volume inside the pod.
    pub pod_volume: String,
    /// The reason.
    pub why: WhyUnresolved,
}

/// What a pod's volume waits for before it can be desired. Printed, a sentence for people, in events and diagnosis; it names
/// no claim of another namespace (S41).
#[derive(Clone, Debug, PartialEq, Eq, Error, IntoStaticStr)]
pub enum WhyUnresolved {
    /// The pod's node is not handed to the controller by its kubelet.
    #[error("node {0} attaches volumes itself: it lacks the annotation of its kubelet")]
    NodeNotManaged(NodeName),
    /// The pod's node has no object.
    #[error("node {0} has no object: nothing can be attached to it")]
    NodeGone(NodeName),
    /// The claim does not exist.
    #[error("PersistentVolumeClaim \"{}\" does not exist", .0.name())]
    ClaimMissing(ClaimKey),
    /// The claim exists, but another object owns it.
    #[error("PersistentVolumeClaim \"{}\" was not created for this pod", .0.name())]
    ClaimNotOwnedByPod(ClaimKey),
    /// The claim is not bound.
    #[error("PersistentVolumeClaim \"{}\" is not bound", .0.name())]
    ClaimNotBound(ClaimKey),
    /// The PersistentVolume does not exist.
    #[error("PersistentVolume \"{0}\" does not exist")]
    VolumeMissing(VolumeName),
    /// The PersistentVolume names another claim.
    #[error("PersistentVolume \"{0}\" is bound to another claim")]
    VolumeBoundElsewhere(VolumeName),
    /// The source of the volume, in the PersistentVolume of this name or in the pod itself, leads
    /// nowhere.
    #[error("{}: {}", leads_nowhere(.0.as_ref()), .1)]
    MalformedSource(Option<VolumeName>, SourceError),
    /// FlexVolume, with the driver it names. It is not supported, so this wait ends with the pod.
    #[error("FlexVolume driver {0} is not supported")]
    FlexVolumeUnsupported(DriverName),
    /// An object that the volume leads to cannot be read (S42): what was known of it may be of the past.
    #[error("{0} cannot be read: {1}")]
    #[strum(serialize = "ObjectUnreadable")]
    Unreadable(ObjectRef, String),
}

fn leads_nowhere(volume: Option<&VolumeName>) -> String {
    let of_volume = volume.map(|volume| format!("PersistentVolume \"{volume}\""));
    of_volume.unwrap_or_else(|| "the volume's source leads nowhere".to_owned())
}

impl WhyUnresolved {
    /// Whether waiting will not help: the object has to be changed.
    pub(crate) fn is_permanent(&self) -> bool {
        matches!(self, Self::MalformedSource(..) | Self::FlexVolumeUnsupported(_))
    }

    /// The object that is to change.
    pub fn object(&self) -> Option<ObjectRef> {
        match self {
            Self::NodeNotManaged(node) | Self::NodeGone(node) => Some(ObjectRef::Node(node.clone())),
            Self::ClaimMissing(claim) | Self::ClaimNotOwnedByPod(claim) | Self::ClaimNotBound(claim) => {
                Some(ObjectRef::Claim(claim.clone()))
            }
            Self::VolumeMissing(volume) | Self::VolumeBoundElsewhere(volume) => {
                Some(ObjectRef::Volume(volume.clone()))
            }
            Self::MalformedSource(volume, _) => volume.clone().map(ObjectRef::Volume),
            Self::FlexVolumeUnsupported(_) => None,
            Self::Unreadable(object, _) => Some(object.clone()),
        }
    }
}

impl DesiredPod {
    /// What the pod's volume of this name is desired as: what its claim says now before what it said once.
    pub fn volume(&self, pod_volume: &str) -> Option<(&VolumeId, &DesiredVolume)> {
        let named = |wanted: &DesiredVolume| wanted.pod_volumes.iter().any(|name| name == pod_volume);
        let volumes = self.volumes.iter().filter(|(_, wanted)| named(wanted));
        volumes.max_by_key(|(_, wanted)| wanted.current).map(|(id, wanted)| (id, &**wanted))
    }

    /// Whether the pod, if it runs, may run with the volume: not with one that its claim leads to since it was given
    /// another (S43).
    pub(crate) fn may_run_with(&self, volume: &VolumeId) -> bool {
        let Some(wanted) = self.volumes.get(volume) else { return false };
        let is_in_its_place = |other: &DesiredVolume| {
            !other.current && wanted.pod_volumes.iter().any(|name| other.pod_volumes.contains(name))
        };
        !wanted.current || !self.volumes.values().any(|other| is_in_its_place(other))
    }
}

/// One volume on one node, and the pods that need it there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredAttachment {
    /// The pods by UID, each with its view of the volume.
    pub pods: LiteMap<Uid, (Arc<PodFacts>, Arc<DesiredVolume>)>,
}

impl DesiredAttachment {
    /// Whether at least one desired attachment may make an attachment.
    pub(crate) fn is_current(&self) -> bool {
        self.pods.values().any(|(_, volume)| volume.current)
    }

    /// What the VolumeAttachment is made of, if at least one desired attachment is current and the volume needs one.
    pub(crate) fn attachable(&self) -> Option<&AttachSource> {
        self.pods.values().find(|(_, volume)| volume.current).and_then(|(_, volume)| volume.source.as_ref())
    }

    /// Whether any of the pods has started.
    pub(crate) fn runs(&self, objects: &Objects) -> bool {
        self.pods.values().any(|(facts, _)| has_started(facts, objects))
    }

    /// The pods.
    pub(crate) fn keys(&self) -> Vec<PodKey> {
        self.pods.values().map(|(facts, _)| facts.key.clone()).collect()
    }

    /// Age order: the oldest pod first, then the order of names.
    pub(crate) fn seniority(&self) -> Option<(Option<Timestamp>, &PodKey)> {
        self.pods.values().map(|(pod, _)| (pod.created, &pod.key)).min()
    }
}

/// The nodes for which a volume is desired.
#[derive(Clone, Debug, Default)]
struct DesiredNodes {
    nodes: LiteMap<NodeName, DesiredAttachment>,
    /// How many pods see it as exclusive.
    exclusive: usize,
}

/// Everything that pods need, by volume and by pod.
#[derive(Clone, Debug, Default)]
pub struct DesiredState {
    pods: HashMap<PodKey, Box<DesiredPod>>,
    volumes: HashMap<VolumeId, DesiredNodes>,
    dependants: Relation<ObjectRef, PodKey>,
}

impl DesiredState {
    /// Sets or (with `None`) removes what a pod needs. Returns the volumes whose desired attachments changed.
    pub fn set(&mut self, key: &PodKey, desired_pod: Option<DesiredPod>) -> BTreeSet<VolumeId> {
        if self.pods.get(key).map(|before| &**before) == desired_pod.as_ref() {
            return BTreeSet::new();
        }
        let before = self.pods.remove(key);
        let mut touched = BTreeSet::new();
        if let Some(before) = before {
            for object in &before.depends_on {
                self.dependants.remove(object, key);
            }
            for volume in before.volumes.keys() {
                self.remove(volume, &before.node, &before.pod.uid);
                touched.insert(volume.clone());
            }
        }
        if let Some(desired_pod) = desired_pod {
            for object in &desired_pod.depends_on {
                self.dependants.insert(object.clone(), key.clone());
            }
            for (volume, wanted) in &desired_pod.volumes {
                let desired = self.volumes.entry(volume.clone()).or_default();
                desired.exclusive += usize::from(wanted.exclusive);
                make_room_for_one(&mut desired.nodes);
                let pods = &mut desired.nodes.entry(desired_pod.node.clone()).or_default().pods;
                make_room_for_one(pods);
                pods.insert(desired_pod.pod.uid.clone(), (Arc::clone(&desired_pod.pod), Arc::clone(wanted)));
                touched.insert(volume.clone());
            }
            self.pods.insert(key.clone(), Box::new(desired_pod));
        }
        give_back_room(&mut self.pods);
        give_back_room(&mut self.volumes);
        touched
    }

    fn remove(&mut self, volume: &VolumeId, node: &NodeName, uid: &Uid) {
        let Some(DesiredNodes { nodes, exclusive }) = self.volumes.get_mut(volume) else { return };
        if let Some(desired) = nodes.get_mut(node) {
            let wanted = desired.pods.remove(uid);
            *exclusive -= usize::from(wanted.is_some_and(|(_, wanted)| wanted.exclusive));
            if desired.pods.is_empty() {
                nodes.remove(node);
            }
        }
        if nodes.is_empty() {
            self.volumes.remove(volume);
        }
    }

    /// What a pod needs at present.
    pub fn pod(&self, key: &PodKey) -> Option<&DesiredPod> {
        self.pods.get(key).map(|desired_pod| &**desired_pod)
    }

    /// Pods whose desired attachments depend on the object.
    pub fn dependants(&self, object: &ObjectRef) -> Vec<PodKey> {
        self.dependants.of(object.clone()).cloned().collect()
    }

    /// Every desired volume.
    pub fn volumes(&self) -> impl Iterator<Item = &VolumeId> {
        self.volumes.keys()
    }

    /// The nodes for which the volume is desired.
    pub fn nodes(&self, volume: &VolumeId) -> Option<&LiteMap<NodeName, DesiredAttachment>> {
        self.volumes.get(volume).map(|desired| &desired.nodes)
    }

    /// Whether any pod sees the volume as exclusive.
    pub(crate) fn is_exclusive(&self, volume: &VolumeId) -> bool {
        self.volumes.get(volume).is_some_and(|desired| desired.exclusive > 0)
    }

    /// The pods that need the volume on the node.
    pub fn get(&self, volume: &VolumeId, node: &NodeName) -> Option<&DesiredAttachment> {
        self.volumes.get(volume)?.nodes.get(node)
    }

    /// Whether a pod has started that may run with the volume on the node.
    pub(crate) fn is_run_with(&self, volume: &VolumeId, node: &NodeName, objects: &Objects) -> bool {
        let pods = self.get(volume, node).into_iter().flat_map(|desired| desired.pods.values());
        pods.filter(|(facts, _)| has_started(facts, objects))
            .filter_map(|(facts, _)| self.pod(&facts.key))
            .any(|pod| pod.may_run_with(volume))
    }
}

fn has_started(facts: &PodFacts, objects: &Objects) -> bool {
    let pod = objects.pods.get(&facts.key).filter(|pod| pod.metadata.uid == facts.uid);
    pod.is_some_and(|pod| pod.has_started())
}
