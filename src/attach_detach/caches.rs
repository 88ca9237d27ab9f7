//! The caches: desired state and actual state as far as objects tell, and the work queue that they feed.
//!
//! In: objects that have changed, also where only an answer to a request of ours shows them. Out: the volumes and nodes
//! that this concerns, marked dirty, and [what is learnt](Learnt) by it, for the parts that remember or tell it. KCM:
//! the populator and the handlers of the informers, which fill `DesiredStateOfWorld` and `ActualStateOfWorld`.

use std::{
    collections::{BTreeSet, HashMap},
    mem,
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{
    actual::{
        identification::{candidates, volume_of},
        node::NodeState,
        state::{ActualState, NodeVolume},
        unpublishing::Sequence,
    },
    clock::Clock,
    decide::scope::Scope,
    desired::{
        attach_required::AttachRequired,
        populator,
        state::{DesiredAttachment, DesiredPod, DesiredState, Unresolved},
        volume_name::{VolumeId, VolumeKind},
    },
    known::Known,
    options::ForcePolicy,
    queue::{Key, Surveyed, WorkQueue},
};
use crate::{
    controller::undone::Undone,
    kube_api::{
        ids::{AttachmentName, DriverName, NodeName, PodKey, Uid},
        kinds::{Narrow, Node, ObjectRef, VolumeAttachment},
    },
    state::{FinalState, Objects},
};

/// Desired and actual state, and what of it has to be looked at.
#[derive(Clone, Debug)]
pub struct Caches {
    /// The tables, which the watches fill.
    pub objects: Arc<Objects>,
    /// Desired state.
    pub desired: DesiredState,
    /// Actual state.
    pub actual: ActualState,
    /// The time of this process.
    pub clock: Clock,
    /// What has to be looked at.
    pub queue: WorkQueue,
    pub(super) drivers: AttachRequired,
    learnt: Vec<Learnt>,
    looked_at: LookedAt,
    is_loaded: bool,
    /// When pods ceased to need volumes on nodes that were not Ready, while another replica led.
    pub(super) ended: HashMap<(VolumeId, NodeName), Timestamp>,
}

/// How many keys were looked at that are no work of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookedAt {
    /// Pods, for what they need.
    pub pods: usize,
    /// VolumeAttachments, for what they are about.
    pub attachments: usize,
}

/// What objects have told. A process that starts learns it of all there are at once, so it is small.
#[derive(Clone, Debug, PartialEq)]
pub enum Learnt {
    /// Which volumes of a pod cannot be attached yet.
    Unresolved(Box<UnresolvedVolumes>),
    /// A pod needs the volume on the node.
    Desired(VolumeId, NodeName),
    /// A VolumeAttachment that is not ours has come, changed or gone.
    Foreign(AttachmentName),
    /// It is not any more.
    Detached(VolumeId, NodeName),
    /// Another party has changed the list of the node object of this UID (S14).
    ListChanged(NodeName, Uid),
}

/// The volumes of a pod that cannot be attached yet.
#[derive(Clone, Debug, PartialEq)]
pub struct UnresolvedVolumes {
    /// The pod.
    pub pod: PodKey,
    /// Those before.
    pub before: Vec<Unresolved>,
    /// Those now.
    pub found: Vec<Unresolved>,
    /// What is to be logged and counted.
    pub new: Vec<Unresolved>,
}

impl Caches {
    /// Empty caches over the shared tables.
    pub fn new(objects: Arc<Objects>, clock: Clock, queue: WorkQueue) -> Self {
        Self {
            objects,
            desired: DesiredState::default(),
            actual: ActualState::default(),
            clock,
            queue,
            drivers: AttachRequired::default(),
            learnt: Vec::new(),
            looked_at: LookedAt::default(),
            is_loaded: false,
            ended: HashMap::new(),
        }
    }

    /// What is known now.
    pub fn known(&self, now: Instant) -> Known<'_> {
        let Self { objects, desired, actual, .. } = self;
        Known { objects, desired, actual, now }
    }

    /// What has been learnt since this was last asked, and how much was looked at for it.
    pub fn take_learnt(&mut self) -> (Vec<Learnt>, LookedAt) {
        (mem::take(&mut self.learnt), mem::take(&mut self.looked_at))
    }

    /// Reads the tables whole, once (attach-detach §5, without its gaps).
    pub fn load(&mut self, now: Instant) {
        self.desired = DesiredState::default();
        let wall = self.clock.wall(now);
        for (name, node) in self.objects.nodes.snapshot() {
            self.actual.observe_node(&name, Some(&node), |_| false, wall);
            if self.objects.nodes.is_missing(&name) {
                self.read_node_live(&name);
            }
        }
        for name in self.objects.attachments.snapshot().into_keys() {
            self.refresh_attachment(&name, now);
            if self.objects.attachments.is_missing(&name) {
                self.read_attachment_live(&name);
            }
        }
        self.actual.distrust_younger_nodes();
        for (key, pod) in self.objects.pods.snapshot() {
            let attached = || self.actual.sources_on(&pod.spec.node_name);
            if let Some(given) = populator::given_before(&pod, &self.objects, attached) {
                self.desired.set(&key, Some(given));
            }
            self.refresh_pod(&key);
        }
        let (desired, objects) = (&self.desired, &self.objects);
        self.actual.forget_given_up(|volume, node| {
            desired.get(volume, node).is_some_and(|desired| desired.runs(objects))
        });
        self.is_loaded = true;
    }

    /// Takes changed objects. Pods are taken node by node: what is desired on one node is then asked for in
    /// a row, becomes attached together, and is published with few patches.
    pub fn take_changes(&mut self, changed: BTreeSet<ObjectRef>, now: Instant) {
        let mut pods = BTreeSet::new();
        for object in changed {
            match &object {
                ObjectRef::Node(name) => self.refresh_node(name, now),
                ObjectRef::Pod(key) => {
                    pods.insert(key.clone());
                }
                ObjectRef::Attachment(name) => {
                    self.refresh_attachment(name, now);
                    if self.objects.attachments.is_missing(name) {
                        self.read_attachment_live(name);
                    }
                }
                ObjectRef::Volume(name) => {
                    for attachment in self.actual.unidentified_of(name) {
                        self.refresh_attachment(&attachment, now);
                    }
                    if let Some(volume) = volume_of(&self.objects, name) {
                        let before = self.actual.observe_source(name, &volume.id, volume.is_exclusive());
                        let now = self.actual.volume(&volume.id).is_some().then_some(volume.id);
                        for volume in before.into_iter().chain(now) {
                            self.queue.add(volume, Scope::All);
                        }
                    }
                }
                ObjectRef::Driver(name) => self.refresh_driver(name, now),
                ObjectRef::Claim(_) | ObjectRef::Class(_) => {}
            }
            pods.extend(self.desired.dependants(&object));
        }
        let node = |key: &PodKey| self.objects.pods.get(key).map(|pod| pod.spec.node_name.clone());
        let mut pods: Vec<_> = pods.into_iter().map(|key| (node(&key), key)).collect();
        pods.sort();
        for (_, key) in pods {
            self.refresh_pod(&key);
        }
    }

    /// Looks at some of what is yet to be looked at of all there is.
    pub fn survey(&mut self) {
        for surveyed in self.queue.survey(&self.objects, &self.desired, &self.actual) {
            match surveyed {
                Surveyed::Pod(key) => self.refresh_pod(&key),
                Surveyed::UnconfirmedNode(name) => self.read_node_live(&name),
                Surveyed::UnconfirmedAttachment(name) => self.read_attachment_live(&name),
                Surveyed::Volume(volume) => self.queue.add(volume, Scope::All),
                Surveyed::Node(name) => self.queue.add_node(name),
            }
        }
    }

    /// Marks dirty what is due by now.
    pub fn add_due(&mut self, now: Instant) {
        while let Some(driver) = self.queue.add_due(now) {
            self.forget_driver(&driver, now);
        }
    }

    fn refresh_pod(&mut self, key: &PodKey) {
        self.looked_at.pods += 1;
        let pod = self.objects.pods.get(key);
        let before = self.desired.pod(key);
        let desired_pod = pod.as_deref().and_then(|pod| {
            let is_managed = self.actual.node(&pod.spec.node_name).is_some_and(NodeState::is_managed);
            let node_volume = |volume: &VolumeId| self.actual.node_volume(volume, &pod.spec.node_name);
            let has = |volume: &VolumeId| node_volume(volume).is_some_and(NodeVolume::may_be_attached);
            populator::populate(pod, &self.objects, &self.drivers, is_managed, before, has)
        });
        self.learnt.extend(unresolved(key, before, desired_pod.as_ref()));
        let nodes: BTreeSet<NodeName> = before
            .into_iter()
            .chain(desired_pod.as_ref())
            .map(|desired_pod| desired_pod.node.clone())
            .collect();
        for desired_pod in desired_pod.iter().filter(|_| self.is_loaded) {
            let node = &desired_pod.node;
            for volume in desired_pod.volumes.keys().filter(|id| self.desired.get(id, node).is_none()) {
                self.actual.note_desired(volume, node);
            }
        }
        for volume in self.desired.set(key, desired_pod) {
            for node in &nodes {
                self.touch_desired(&volume, node);
            }
        }
        let started = pod.is_some_and(|pod| pod.has_started());
        if let Some(DesiredPod { volumes, node, .. }) = self.desired.pod(key).filter(|_| started) {
            let mounted: Vec<VolumeId> =
                volumes.keys().filter(|volume| self.actual.note_mounted(volume, node)).cloned().collect();
            self.queue.add_on(node, mounted);
        }
    }

    /// Marks a volume dirty that pods need on a node, or no longer do. To be rid of it is something that has begun.
    fn touch_desired(&mut self, volume: &VolumeId, node: &NodeName) {
        if self.desired.get(volume, node).is_some() {
            self.learnt.push(Learnt::Desired(volume.clone(), node.clone()));
            self.queue.add_new(volume.clone(), Scope::of(node));
        } else {
            self.queue.add_on(node, [volume.clone()]);
        }
    }

    /// Looks at a CSIDriver, or at its absence.
    pub(super) fn refresh_driver(&mut self, name: &DriverName, now: Instant) {
        let driver = self.objects.drivers.get(name);
        let due = self.drivers.observe(name, driver.as_deref(), now);
        if let Some(at) = due {
            self.queue.add_at(at, Key::Driver(name.clone()));
        }
    }

    /// Of a driver whose CSIDriver stays away nothing is remembered any more.
    fn forget_driver(&mut self, name: &DriverName, now: Instant) {
        if self.drivers.forget(name, now) {
            for pod in self.desired.dependants(&ObjectRef::Driver(name.clone())) {
                self.refresh_pod(&pod);
            }
        }
    }

    fn refresh_node(&mut self, name: &NodeName, now: Instant) {
        self.observe_final_state(name, now);
        if self.objects.nodes.is_missing(name) {
            self.read_node_live(name);
        }
        let node = self.objects.nodes.get(name);
        let touched = self.observe_node(name, node.as_ref(), now);
        self.queue.add_on(name, touched);
        self.queue.add_node(name.clone());
        for attachment in self.actual.unidentified_on(name) {
            self.refresh_attachment(&attachment, now);
        }
    }

    /// Takes a node as last seen, or its absence. Returns the volumes for which something changed.
    pub fn observe_node(
        &mut self,
        name: &NodeName,
        node: Option<&Arc<Node>>,
        now: Instant,
    ) -> BTreeSet<VolumeId> {
        let state = self.actual.node(name);
        if let (Some(state), Some(node)) = (state, node)
            && state.is_changed_by_others(node)
        {
            self.learnt.push(Learnt::ListChanged(name.clone(), node.metadata.uid.clone()));
        }
        let desired = &self.desired;
        let wanted = |volume: &VolumeId| desired.get(volume, name).is_some();
        let mut touched = self.actual.observe_node(name, node, wanted, self.clock.wall(now));
        let runs =
            |volume: &&VolumeId| self.desired.get(volume, name).is_some_and(|pods| pods.runs(&self.objects));
        let mounted: Vec<VolumeId> = self.actual.merely_in_use(name).filter(runs).cloned().collect();
        touched.extend(mounted.into_iter().filter(|volume| self.actual.note_mounted(volume, name)));
        touched
    }

    /// Those of these nodes that list a volume without attachments for pods that have not started, whose claim or volume does not
    /// lead to it any more, and whose kubelet does not report it in use. A list alone gave those pods nothing (S44).
    pub fn leftovers<'a>(
        &self,
        volume: &VolumeId,
        nodes: impl Iterator<Item = &'a NodeName>,
    ) -> BTreeSet<NodeName> {
        if volume.kind() != VolumeKind::NoOp {
            return BTreeSet::new();
        }
        let is_unused = |node: &NodeName| {
            self.actual.node_volume(volume, node).is_some_and(|node_volume| !node_volume.in_use)
        };
        let is_left = |(node, desired): &(&NodeName, &DesiredAttachment)| {
            !(desired.is_current() || desired.runs(&self.objects) || desired.is_unreadable(&self.desired))
                && is_unused(node)
        };
        let desired = nodes.filter_map(|node| Some((node, self.desired.get(volume, node)?)));
        desired.filter(is_left).map(|(node, _)| node.clone()).collect()
    }

    /// A volume was given up on a node: what its pods were given there, they have no more.
    pub fn given_up(&mut self, volume: &VolumeId, node: &NodeName) {
        let pods: Vec<PodKey> =
            self.desired.get(volume, node).map(DesiredAttachment::keys).unwrap_or_default();
        for pod in pods {
            self.refresh_pod(&pod);
        }
    }

    /// Brings the node up to the table before it is written to. A kubelet's heartbeat is a new revision
    /// whose content is not ours and changes no decision, but a patch that names the revision before it is
    /// refused. Returns the volumes for which something changed.
    pub fn catch_up(&mut self, name: &NodeName, now: Instant) -> BTreeSet<VolumeId> {
        let Some(latest) = self.objects.nodes.get(name) else { return BTreeSet::new() };
        let known = self.actual.node(name).and_then(|state| state.node.as_ref());
        if known.is_none_or(|known| known.metadata.resource_version >= latest.metadata.resource_version) {
            return BTreeSet::new();
        }
        self.observe_node(name, Some(&latest), now)
    }

    /// Believes a re-created node's list again if it is time, or sees to it that this is done in time. Returns the
    /// volumes that this changes.
    pub fn believe_node(
        &mut self,
        name: &NodeName,
        policy: &ForcePolicy,
        now: Instant,
    ) -> BTreeSet<VolumeId> {
        let believed = self.actual.trust_node(name, policy, self.clock.wall(now));
        let trusted_at = self.actual.node(name).and_then(|state| state.trusted_at(policy));
        if let Some(at) = trusted_at.and_then(|at| self.clock.instant(at)) {
            self.queue.add_at(at, Key::Node(name.clone()));
        }
        believed
    }

    /// The final state of a node that is gone counts, also if no watch event showed it: volumes that were in use
    /// then may still be.
    fn observe_final_state(&mut self, name: &NodeName, now: Instant) {
        let wall = self.clock.wall(now);
        let desired = &self.desired;
        let wanted = |volume: &VolumeId| desired.get(volume, name).is_some();
        let touched = match self.objects.nodes.take_final_state(name) {
            None => return,
            Some(FinalState::Known(node)) => self.actual.observe_node(name, Some(&node), wanted, wall),
            Some(FinalState::Unknown) => self.actual.distrust_node(name),
        };
        self.queue.add_on(name, touched);
        let touched = self.actual.observe_node(name, None, |_| false, wall);
        self.queue.add_on(name, touched);
    }

    /// A node that is known from answers of its own alone is read.
    fn read_node_live(&mut self, name: &NodeName) {
        self.actual.node_mut(name).requests.outdate();
        self.queue.add_node(name.clone());
    }

    /// Likewise a VolumeAttachment of ours.
    fn read_attachment_live(&mut self, name: &AttachmentName) {
        if let Some((volume, node)) = self.actual.read_attachment_live(name) {
            self.queue.add_on(&node, [volume]);
        }
    }

    /// Takes a node that the server answered with. What it shows of what was being unpublished when it was asked for
    /// is proven.
    pub fn node_answered(&mut self, name: &NodeName, answer: &Node, sent: Sequence, now: Instant) {
        self.objects.observe_response(answer.clone());
        let latest = self.objects.nodes.get(name);
        let mut touched = self.observe_node(name, latest.as_ref(), now);
        touched.extend(self.actual.witness_node(answer, name, sent));
        self.queue.add_on(name, touched);
    }

    /// The server answered that there is no such node. The watch is about to say so, unless it began anew without it.
    /// Returns whether that is believed: not of one that another request has shown since.
    pub fn node_not_found(&mut self, name: &NodeName, sent: Sequence, now: Instant) -> bool {
        if self.objects.prove_unconfirmed_gone::<Node>(name) {
            self.observe_final_state(name, now);
        }
        let is_gone = self.actual.node(name).is_some_and(|state| state.node.is_none());
        if is_gone {
            let touched = self.actual.witness_absence(name, sent);
            self.queue.add_on(name, touched);
        }
        is_gone
    }

    /// Takes a VolumeAttachment that the server answered with.
    pub fn attachment_answered(&mut self, attachment: VolumeAttachment, now: Instant) {
        let name = attachment.key();
        self.objects.observe_response(attachment);
        self.refresh_attachment(&name, now);
    }

    /// The server answered that there is none. The watch is about to say so, unless it began anew without it.
    pub fn attachment_not_found(&mut self, volume: &VolumeId, node: &NodeName, now: Instant) {
        let name = volume.attachment_name(node);
        if self.objects.prove_unconfirmed_gone::<VolumeAttachment>(&name) {
            self.refresh_attachment(&name, now);
        }
    }

    fn refresh_attachment(&mut self, name: &AttachmentName, now: Instant) {
        self.looked_at.attachments += 1;
        let attachment = self.objects.attachments.get(name);
        if attachment.as_deref().is_some_and(|attachment| self.actual.is_replaced_by(name, attachment)) {
            self.take_attachment(name, None, now);
        }
        self.take_attachment(name, attachment, now);
    }

    fn take_attachment(
        &mut self,
        name: &AttachmentName,
        attachment: Option<Arc<VolumeAttachment>>,
        now: Instant,
    ) {
        let objects = Arc::clone(&self.objects);
        let attached = attachment.as_ref().map(|attachment| attachment.status.attached);
        let candidates = |attachment: &VolumeAttachment| candidates(&objects, attachment);
        if attachment.is_none()
            && let Some((volume, node)) = self.actual.note_name_free(name)
        {
            self.queue.add_on(&node, [volume]);
        }
        let foreign = self.actual.foreign(name);
        let was_foreign = foreign.is_some();
        let of = foreign.and_then(|(volume, _)| self.actual.volume(volume?));
        let was_exclusive = of.is_some_and(|state| state.is_exclusive);
        let known = self.actual.node_volume_of(name, None, candidates);
        let is_undone = known.is_some_and(|node_volume| !node_volume.is_ended_by_us());
        let mut second_volumes = self.actual.second_volumes_of(name);
        if attachment.is_none() {
            second_volumes.extend(self.actual.beside(name));
        }
        let touched = self.actual.observe_attachment(name, attachment, candidates, self.clock.wall(now));
        if second_volumes.is_empty() {
            second_volumes = self.actual.second_volumes_of(name);
        }
        for volume in second_volumes {
            self.queue.add(volume, Scope::All);
        }
        if was_foreign || self.actual.foreign(name).is_some() {
            self.learnt.push(Learnt::Foreign(name.clone()));
        }
        let Some((volume, node)) = touched else { return };
        match attached {
            Some(true) => {
                self.actual.node_volume_mut(&volume, &node);
            }
            Some(false) => {}
            None => {
                if is_undone {
                    let undone = &mut self.actual.node_volume_mut(&volume, &node).undone;
                    undone.get_or_insert_with(|| Box::new(Undone::once())).undone(now);
                }
                self.learnt.push(Learnt::Detached(volume.clone(), node.clone()));
            }
        }
        if was_foreign && was_exclusive && attached.is_none() {
            // Who waits for it is not on that node.
            self.queue.add(volume, Scope::All);
        } else {
            self.queue.add_on(&node, [volume]);
        }
    }
}

/// Which volumes of a pod cannot be attached yet, if they are others than before, or it has lost what it was given instead.
fn unresolved(key: &PodKey, before: Option<&DesiredPod>, desired_pod: Option<&DesiredPod>) -> Option<Learnt> {
    let of = |desired_pod: Option<&DesiredPod>| {
        desired_pod.map_or(Vec::new(), |desired_pod| desired_pod.unresolved.clone())
    };
    let new: Vec<_> =
        desired_pod.iter().flat_map(|desired_pod| desired_pod.newly_unresolved(before)).cloned().collect();
    let has_lost = |desired_pod: &DesiredPod| {
        let given = before.into_iter().flat_map(|before| before.volumes.keys());
        !desired_pod.unresolved.is_empty()
            && given.into_iter().any(|id| !desired_pod.volumes.contains_key(id))
    };
    let has_lost = desired_pod.is_some_and(has_lost);
    let (before, found) = (of(before), of(desired_pod));
    let is_news = before != found || !new.is_empty() || has_lost;
    is_news.then(|| Learnt::Unresolved(Box::new(UnresolvedVolumes { pod: key.clone(), before, found, new })))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::kube_api::{
        ids::{ClaimKey, ResourceVersion},
        kinds::{PersistentVolume, PersistentVolumeClaim, Pod},
    };

    #[test]
    fn s42_s44_a_list_alone_gives_a_waiting_pod_nothing_but_what_cannot_be_read_takes_nothing() {
        let meta = |name: &str| json!({"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1"});
        let iscsi = json!({"targetPortal": "p", "iqn": "i", "lun": 0});
        let objects = Arc::new(Objects::default());
        let lists = json!([{"name": "kubernetes.io/iscsi/p:i:0", "devicePath": ""}]);
        let managed = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
        let mut node = json!({"metadata": meta("n1"), "status": {"volumesAttached": lists}});
        node["metadata"]["annotations"] = managed;
        objects.apply::<Node>(serde_json::from_value(node).unwrap());
        let of_claim = json!({"namespace": "ns", "name": "c", "uid": "c"});
        let volume = json!({"metadata": meta("v"), "spec": {"iscsi": iscsi, "claimRef": of_claim}});
        objects.apply::<PersistentVolume>(serde_json::from_value(volume).unwrap());
        let claim = |revision: &str, phase: &str, volume: &str| -> Value {
            let mut metadata = meta("c");
            metadata["resourceVersion"] = revision.into();
            json!({"metadata": metadata, "spec": {"volumeName": volume}, "status": {"phase": phase}})
        };
        objects.apply::<PersistentVolumeClaim>(serde_json::from_value(claim("1", "Bound", "v")).unwrap());
        let source = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]);
        let pod = json!({"metadata": meta("p1"), "spec": {"nodeName": "n1", "volumes": source}});
        objects.apply::<Pod>(serde_json::from_value(pod).unwrap());
        let now = Instant::now();
        let clock = Clock::new(Timestamp::UNIX_EPOCH, now);
        let mut caches = Caches::new(Arc::clone(&objects), clock, WorkQueue::default());
        caches.load(now);
        let (id, node) = (VolumeId::iscsi("p", "i", 0), NodeName::from("n1"));
        let left = |caches: &Caches| caches.leftovers(&id, std::iter::once(&node));
        assert_eq!(left(&caches), BTreeSet::new(), "the claim leads to it");
        let key = ClaimKey::new("ns", "c");
        let revision = Some(ResourceVersion(2));
        objects.note_unreadable::<PersistentVolumeClaim>(None, &key, None, revision, "bad".to_owned());
        caches.take_changes(BTreeSet::from([ObjectRef::Claim(key.clone())]), now);
        assert_eq!(left(&caches), BTreeSet::new(), "what the claim leads to is not known");
        objects.apply::<PersistentVolumeClaim>(serde_json::from_value(claim("3", "Pending", "")).unwrap());
        caches.take_changes(BTreeSet::from([ObjectRef::Claim(key)]), now);
        assert_eq!(left(&caches), BTreeSet::from(["n1".into()]), "the claim leads elsewhere");
    }

    #[test]
    fn what_is_learnt_of_each_of_150_000_pods_at_a_start_is_small() {
        assert!(size_of::<Learnt>() <= 48, "{} bytes", size_of::<Learnt>());
    }
}
