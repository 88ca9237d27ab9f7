//! Observe: what a changed object, or one that an answer shows, means for desired and actual state.
//!
//! In: objects that have changed. Out: both states as they are then, and the volumes and nodes that this concerns, marked
//! dirty. What is learnt by it is told at once. KCM: the populator and the handlers of the informers, which fill
//! `DesiredStateOfWorld` and `ActualStateOfWorld`.

use std::{collections::BTreeSet, mem, sync::Arc};

use apiserver::{
    ids::{AttachmentName, DriverName, NodeName, PodKey, VolumeName},
    kinds::{Node, ObjectRef, VolumeAttachment},
    tables::FinalState,
};
use tokio::time::Instant;

use super::{
    controller::AttachDetach,
    facts::{Forced, Planned},
    guard::second_writer_role::ActTarget,
    plan::beyond_one_turn,
    queue::Key,
    reasons::NodeVolumeKey,
    state::{
        actual::{NodeVolume, identification::candidates, node::NodeState, unpublishing::Sequence},
        desired::{DesiredAttachment, populator, volume_name::VolumeId, volume_source::volume_of},
    },
};
use crate::controller::undone::Undone;

impl AttachDetach {
    /// Looks at some of what is yet to be looked at of all there is.
    pub(super) fn survey(&mut self) {
        for name in self.queue.survey(&self.actual) {
            let volumes = self.actual.volumes_on(&name).map(|(volume, _)| volume.clone());
            self.queue.add_on(&name, volumes);
            self.queue.add_node(name);
        }
    }

    /// Marks dirty what is due by now.
    pub(super) fn add_due(&mut self, now: Instant) {
        while let Some(key) = self.queue.add_due(now) {
            match key {
                // Of drivers whose CSIDriver stays away nothing is remembered any more.
                Key::Driver(_) => {
                    for driver in self.drivers.0.take_due(now) {
                        for pod in self.desired.dependants(&ObjectRef::Driver(driver)) {
                            self.refresh_pod(&pod, now);
                        }
                    }
                }
                Key::Owner(target, uid) => {
                    self.queue.add_node(target.node().clone());
                    self.second_writer.not_read(target, uid);
                }
                _ => {}
            }
        }
    }

    /// Looks at what a pod needs.
    pub(super) fn refresh_pod(&mut self, key: &PodKey, now: Instant) {
        self.outbox.planned(Planned::Pod, 1);
        let pod = self.objects.pods.get(key);
        let before = self.desired.pod(key);
        let desired_pod = pod.as_deref().and_then(|pod| {
            let is_managed = self.actual.node(&pod.spec.node_name).is_some_and(NodeState::is_managed);
            let node_volume = |volume: &VolumeId| self.actual.node_volume(volume, &pod.spec.node_name);
            let started = pod.has_started();
            let has = |volume: &VolumeId| {
                node_volume(volume)
                    .is_some_and(|it| if started { it.may_be_attached() } else { it.may_be_given() })
            };
            populator::populate(pod, &self.objects, &self.drivers, is_managed, before, has)
        });
        let unresolved = before.map_or(Vec::new(), |before| before.unresolved.clone());
        let nodes: BTreeSet<NodeName> =
            before.into_iter().chain(desired_pod.as_ref()).map(|pod| pod.node.clone()).collect();
        for desired_pod in desired_pod.iter().filter(|_| self.is_loaded) {
            let node = &desired_pod.node;
            for volume in desired_pod.volumes.keys().filter(|id| self.desired.get(id, node).is_none()) {
                self.actual.note_desired(volume, node);
            }
        }
        for volume in self.desired.set(key, desired_pod) {
            for node in &nodes {
                self.touch_desired(&volume, node, now);
            }
        }
        self.report_unresolved(key, &unresolved, now);
        let started = pod.is_some_and(|pod| pod.has_started());
        if let Some(desired_pod) = self.desired.pod(key).filter(|_| started) {
            let node = &desired_pod.node;
            let volumes = desired_pod.volumes.keys().filter(|volume| desired_pod.may_run_with(volume));
            let mounted: Vec<VolumeId> =
                volumes.filter(|volume| self.actual.note_mounted(volume, node)).cloned().collect();
            self.queue.add_on(node, mounted);
        }
    }

    /// Looks at those of the pods that wait for a volume that is not in the desired state.
    pub(super) fn refresh_unresolved(&mut self, pods: Vec<PodKey>, now: Instant) {
        for pod in pods {
            if self.desired.pod(&pod).is_some_and(|pod| !pod.unresolved.is_empty()) {
                self.refresh_pod(&pod, now);
            }
        }
    }

    /// Marks a volume dirty that pods need on a node, or no longer do. To be rid of it is something that has begun.
    fn touch_desired(&mut self, volume: &VolumeId, node: &NodeName, now: Instant) {
        if self.desired.get(volume, node).is_none() {
            return self.look_on(node, [volume.clone()].into());
        }
        // No wait for force goes on, from now and not only when the volume has its turn: its pod may be gone by then (S4).
        self.force_waits.break_off(node);
        self.actual.note_undesired(volume, &[node.clone()].into(), |_| true, self.clock.wall(now));
        if self.actual.node_volume(volume, node).is_some() {
            // Another of its PersistentVolume's name may be attached beside what is needed (S44).
            self.queue.add_on(node, self.actual.beside(volume, node));
        }
        self.queue.add_new(volume.clone(), [node.clone()].into());
    }

    /// Looks at a PersistentVolume, which may explain VolumeAttachments that name it.
    pub(super) fn refresh_volume(&mut self, name: &VolumeName, now: Instant) {
        for attachment in self.actual.unidentified.of(name) {
            self.refresh_attachment(&attachment, now);
        }
        let Some(volume) = volume_of(&self.objects, name) else { return };
        let before = self.actual.observe_source(name, &volume.id, volume.is_exclusive());
        let known = self.actual.volume(&volume.id).is_some().then_some(volume.id);
        for volume in before.into_iter().chain(known) {
            self.look_everywhere(volume, now);
        }
    }

    /// Has a volume looked at on all nodes that need or have it.
    fn look_everywhere(&mut self, volume: VolumeId, now: Instant) {
        let mut nodes = self.known(now).nodes_of(&volume);
        let rest = beyond_one_turn(&mut nodes);
        self.queue.add(volume.clone(), nodes);
        self.queue.add_new(volume, rest);
    }

    /// Looks at a CSIDriver, or at its absence.
    pub(super) fn refresh_driver(&mut self, name: &DriverName, now: Instant) {
        let driver = self.objects.drivers.get(name);
        if let Some(at) = self.drivers.observe(name, driver.as_deref(), now) {
            self.queue.add_at(at, Key::Driver(name.clone()));
        }
    }

    /// Looks at volumes on a node of which something has changed, and at those that wait for one of them.
    pub(super) fn look_on(&mut self, node: &NodeName, volumes: BTreeSet<VolumeId>) {
        let beside = volumes.iter().flat_map(|volume| self.actual.beside(volume, node));
        self.queue.add_on(node, beside.collect::<Vec<_>>());
        self.queue.add_on(node, volumes);
    }

    /// Looks at a node, or at its absence.
    pub(super) fn refresh_node(&mut self, name: &NodeName, now: Instant) {
        self.observe_final_state(name, now);
        let node = self.objects.nodes.get(name);
        let touched = self.observe_node(name, node.as_ref(), now);
        self.look_on(name, touched);
        self.queue.add_node(name.clone());
        for attachment in self.actual.unidentified.on(name) {
            self.refresh_attachment(&attachment, now);
        }
    }

    /// Takes a node as last seen, or its absence. Returns the volumes for which something changed.
    pub(super) fn observe_node(
        &mut self,
        name: &NodeName,
        node: Option<&Arc<Node>>,
        now: Instant,
    ) -> BTreeSet<VolumeId> {
        if let (Some(state), Some(node)) = (self.actual.node(name), node)
            && state.is_changed_by_others(node, self.objects.unfenced().is_in_force())
        {
            self.actual.node_mut(name).requests.suspect = Some(Arc::clone(node));
            self.note_list_changed(name, now);
        }
        let desired = &self.desired;
        let wanted = |volume: &VolumeId| desired.get(volume, name).is_some();
        let mut touched = self.actual.observe_node(name, node, wanted, self.clock.wall(now));
        let runs = |volume: &&VolumeId| self.desired.is_run_with(volume, name, &self.objects);
        let mounted: Vec<VolumeId> = self.actual.merely_in_use(name).filter(runs).cloned().collect();
        touched.extend(mounted.into_iter().filter(|volume| self.actual.note_mounted(volume, name)));
        let is_former =
            |volume: &&VolumeId| self.desired.get(volume, name).is_some_and(|wanted| !wanted.is_current());
        let former: Vec<VolumeId> = touched.iter().filter(is_former).cloned().collect();
        // Of what their pods were given the node may show nothing any more (S44).
        for volume in &former {
            self.given_up(volume, name, now);
        }
        touched
    }

    /// Notes that another party has changed the list of a node, if that is certain.
    pub(super) fn note_list_changed(&mut self, name: &NodeName, now: Instant) {
        let requests = &mut self.actual.node_mut(name).requests;
        if let Some(node) = requests.take_suspect() {
            requests.undone.undone(now);
            self.note_foreign(&ActTarget::Node(name.clone()), &node.metadata.uid, now);
        }
    }

    /// The final state of a node that is gone counts, also if no watch event showed it: volumes that were in use
    /// then may still be. It counts before a node that has its name since.
    pub(super) fn observe_final_state(&mut self, name: &NodeName, now: Instant) {
        let wall = self.clock.wall(now);
        let desired = &self.desired;
        let wanted = |volume: &VolumeId| desired.get(volume, name).is_some();
        let touched = match self.objects.nodes.take_final_state(name) {
            None => return,
            Some(FinalState::Known(node)) => self.actual.observe_node(name, Some(&node), wanted, wall),
            Some(FinalState::Unknown) => self.actual.distrust_node(name),
        };
        self.look_on(name, touched);
        let touched = self.actual.observe_node(name, None, |_| false, wall);
        self.look_on(name, touched);
    }

    /// A volume was given up on a node: what its pods were given there, they have no more.
    pub(super) fn given_up(&mut self, volume: &VolumeId, node: &NodeName, now: Instant) {
        let pods = self.desired.get(volume, node).map(DesiredAttachment::keys).unwrap_or_default();
        for pod in pods {
            self.refresh_pod(&pod, now);
        }
    }

    /// Takes a node that the server answered with. What it shows of what was being unpublished when it was asked for
    /// is proven.
    pub(super) fn node_answered(&mut self, name: &NodeName, answer: &Node, sent: Sequence, now: Instant) {
        self.objects.observe_response(answer.clone());
        self.observe_final_state(name, now);
        let latest = self.objects.nodes.get(name);
        let mut touched = self.observe_node(name, latest.as_ref(), now);
        touched.extend(self.actual.witness(Some(answer), name, sent));
        self.look_on(name, touched);
    }

    /// The server answered that there is no such node. Returns whether that is believed: the watch is to say so, too.
    pub(super) fn node_is_gone(&mut self, name: &NodeName, sent: Sequence) -> bool {
        let is_gone = self.actual.node(name).is_some_and(|state| state.node.is_none());
        if is_gone {
            let touched = self.actual.witness(None, name, sent);
            self.look_on(name, touched);
        }
        is_gone
    }

    /// Looks at a VolumeAttachment, or at its absence. The end of one that was replaced comes before its successor.
    pub(super) fn refresh_attachment(&mut self, name: &AttachmentName, now: Instant) {
        self.outbox.planned(Planned::Attachment, 1);
        let latest = self.objects.attachments.get(name);
        if latest.is_none()
            && let Some((volume, node)) = self.actual.taken.remove(name)
            && let Some(NodeVolume { why_read: Some(_), .. }) = self.actual.node_volume(&volume, &node)
        {
            // The name is free: it is read once more, and taken.
            let node_volume = self.actual.node_volume_mut(&volume, &node);
            node_volume.retry = mem::take(&mut node_volume.retry).due();
            self.queue.add_on(&node, [volume]);
        }
        let is_replaced = latest.as_deref().is_some_and(|latest| self.actual.is_replaced_by(name, latest));
        let objects = Arc::clone(&self.objects);
        let candidates = |attachment: &VolumeAttachment| candidates(&objects, attachment);
        for attachment in is_replaced.then_some(None).into_iter().chain([latest]) {
            let attached = attachment.as_ref().map(|attachment| attachment.status.attached);
            let foreign =
                self.actual.foreign(name).map(|(volume, _)| volume.and_then(|it| self.actual.volume(it)));
            let was_foreign = foreign.is_some();
            let was_exclusive = foreign.flatten().is_some_and(|state| state.is_exclusive);
            let ours = self.actual.identity(name).filter(|identity| identity.ours && attached.is_none());
            let known = ours.and_then(|identity| self.actual.node_volume(&identity.volume, &identity.node));
            let is_undone = known.is_some_and(|known| !known.is_ended_by_us());
            let is_new = attached.is_some() && self.actual.identity(name).is_none();
            // 1. The state takes it. Volumes that it holds beside its own, before or from now on, are looked at everywhere.
            let mut held = self.actual.second_volumes_of(name);
            let identity = self.actual.identity(name).filter(|_| attached.is_none());
            let source = identity.and_then(|identity| identity.source.clone());
            held.extend(identity.into_iter().flat_map(|it| self.actual.beside(&it.volume, &it.node)));
            // Where the PersistentVolume is gone, others of its name may have waited for what this one was to.
            let of_its_name = identity.into_iter().flat_map(|it| {
                let gone = it.source.iter().filter(|source| self.objects.volumes.get(source).is_none());
                let others = gone.flat_map(|source| self.actual.of_source(source, &it.node));
                others.filter(|other| *other != it.volume)
            });
            held.extend(of_its_name);
            let touched = self.actual.observe_attachment(name, attachment, candidates, self.clock.wall(now));
            held.extend(self.actual.second_volumes_of(name));
            for volume in held {
                self.look_everywhere(volume, now);
            }
            if was_foreign || self.actual.foreign(name).is_some() {
                self.report_foreign(name);
            }
            // By it alone a pod may have had a volume to which its claim does not lead any more.
            let pods = source.map(|source| self.desired.dependants(&ObjectRef::Volume(source)));
            self.refresh_unresolved(pods.unwrap_or_default(), now);
            let Some((volume, node)) = touched else { continue };
            if is_new {
                self.deletions.undone(&NodeVolumeKey::new(&volume, &node), now);
            }
            // 2. What that means for the volume on its node.
            match attached {
                Some(true) => _ = self.actual.node_volume_mut(&volume, &node),
                Some(false) => {}
                None => self.attachment_ended(&volume, &node, is_undone, now),
            }
            // 3. It is looked at. Who waits for the end of another party's is not on that node (L13).
            if was_exclusive && attached.is_none() {
                self.look_everywhere(volume.clone(), now);
            }
            self.queue.add_on(&node, [volume]);
        }
    }

    /// The attachment of a volume to a node is gone.
    fn attachment_ended(&mut self, volume: &VolumeId, node: &NodeName, is_undone: bool, now: Instant) {
        let node_volume = self.actual.node_volume_mut(volume, node);
        if is_undone {
            node_volume.undone.get_or_insert_with(|| Box::new(Undone::once())).undone(now);
        }
        let forced = node_volume.forced.take();
        self.force_waits.begin();
        if let Some(reason) = forced {
            self.report_forced(volume, node, reason, Forced::Done);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use apiserver::{
        ids::{ClaimKey, ResourceVersion},
        kinds::{PersistentVolume, PersistentVolumeClaim, Pod},
        tables::Objects,
    };
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        attach_detach::{clock::Clock, dispatcher::Room, options::AttachDetachOptions},
        controller::Controller as _,
    };

    #[test]
    fn l15_a_volume_is_looked_at_on_a_node_although_it_gets_to_an_earlier_one_meanwhile() {
        const NODES: usize = 60;
        let objects = Arc::new(Objects::default());
        let name = |number: usize| NodeName::from(format!("n{number:02}").as_str());
        let (now, options) = (Instant::now(), AttachDetachOptions::default());
        let mut controller = AttachDetach::new(objects, options, Clock::new(Timestamp::UNIX_EPOCH, now));
        for number in 0..NODES {
            controller.actual.node_mut(&name(number));
        }
        let (id, last) = (VolumeId::iscsi("p", "i", 0), name(NODES - 1));
        controller.actual.node_volume_mut(&id, &last);
        controller.queue.add_all();
        let room = Room { volumes: NODES, beside_new: NODES, new_volumes: 0, nodes: NODES };
        let mut looked_at = BTreeSet::new();
        for _ in 0..20 {
            controller.survey();
            while let Some(node) = controller.queue.get_node(room) {
                looked_at.insert(node);
            }
            if looked_at.contains(&name(0)) && !looked_at.contains(&last) {
                controller.actual.node_volume_mut(&id, &name(0));
            }
        }
        assert_eq!(controller.queue.get(room), Some((id, [last].into())));
    }

    #[test]
    fn s4_a_pod_that_came_and_went_before_its_volume_had_its_turn_begins_the_wait_for_force_anew() {
        let meta = |name: &str, revision: &str| json!({"name": name, "namespace": "ns", "uid": name, "resourceVersion": revision});
        let objects = Arc::new(Objects::default());
        let name = "kubernetes.io/iscsi/p:i:0";
        let mut node = json!({"metadata": meta("n1", "1")});
        node["metadata"]["annotations"] =
            json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
        node["status"] =
            json!({"volumesAttached": [{"name": name, "devicePath": ""}], "volumesInUse": [name]});
        objects.apply::<Node>(serde_json::from_value(node).unwrap());
        let spec = json!({"iscsi": {"targetPortal": "p", "iqn": "i", "lun": 0},
            "claimRef": {"namespace": "ns", "name": "c", "uid": "c"}});
        let volume = json!({"metadata": meta("v", "1"), "spec": spec});
        objects.apply::<PersistentVolume>(serde_json::from_value(volume).unwrap());
        let claim =
            json!({"metadata": meta("c", "1"), "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}});
        objects.apply::<PersistentVolumeClaim>(serde_json::from_value(claim).unwrap());
        let now = Instant::now();
        let clock = Clock::new(Timestamp::UNIX_EPOCH, now);
        let mut controller = AttachDetach::new(Arc::clone(&objects), AttachDetachOptions::default(), clock);
        controller.lead(now);
        controller.plan(now);
        let (id, node, key) = (VolumeId::iscsi("p", "i", 0), NodeName::from("n1"), PodKey::new("ns", "p1"));
        let waits_since = |controller: &AttachDetach| {
            controller.actual.node_volume(&id, &node).and_then(|node_volume| node_volume.undesired_since)
        };
        assert_eq!(waits_since(&controller), Some(clock.wall(now)));
        let later = now + Duration::from_mins(3);
        let pod = |revision: &str| -> Pod {
            let source = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]);
            let spec = json!({"nodeName": "n1", "volumes": source});
            serde_json::from_value(json!({"metadata": meta("p1", revision), "spec": spec})).unwrap()
        };
        objects.apply(pod("2"));
        controller.changed(BTreeSet::from([ObjectRef::Pod(key.clone())]), later);
        objects.delete(pod("3"));
        controller.changed(BTreeSet::from([ObjectRef::Pod(key)]), later);
        controller.plan(later);
        assert_eq!(waits_since(&controller), Some(clock.wall(later)));
    }

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
        let mut controller = AttachDetach::new(Arc::clone(&objects), AttachDetachOptions::default(), clock);
        controller.lead(now);
        let (id, node) = (VolumeId::iscsi("p", "i", 0), NodeName::from("n1"));
        let left = |controller: &AttachDetach| controller.is_left(&id, &node);
        assert!(!left(&controller), "the claim leads to it");
        let key = ClaimKey::new("ns", "c");
        let revision = Some(ResourceVersion(2));
        objects.note_unreadable::<PersistentVolumeClaim>(
            None,
            &key,
            (None, revision, apiserver::wire::AttachmentNames::default()),
            "bad".to_owned(),
        );
        controller.changed(BTreeSet::from([ObjectRef::Claim(key.clone())]), now);
        assert!(controller.plan(now).calls.is_empty(), "what the claim leads to is not known");
        objects.apply::<PersistentVolumeClaim>(serde_json::from_value(claim("3", "Pending", "")).unwrap());
        controller.changed(BTreeSet::from([ObjectRef::Claim(key)]), now);
        assert!(left(&controller), "the claim leads elsewhere");
    }
}
