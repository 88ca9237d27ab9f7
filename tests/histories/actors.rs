//! All actors but the daemon: users, kubelets, machines, and the external-attacher.

use std::collections::BTreeSet;

use apiserver::{
    ids::{AttachmentName, NodeName, PodKey},
    kinds::{
        ClaimSource, Node, NodeCondition, ObjectRef, Pod, PodPhase, PodVolume, PodVolumeSource, Taint,
        VolumeAttachment,
    },
    text::TextSet,
};
use fastrand::Rng;
use k8s_openapi::jiff::Timestamp;
use mooring::attach_detach::state::desired::volume_name::{VolumeId, VolumeKind};

use super::{
    clocks::Machine,
    server::{DRIVER, NODES, OUT_OF_SERVICE, Object, Server, VOLUMES, id},
};

impl Server {
    /// A user creates a pod, deletes one, or one finishes.
    pub fn user_acts(&mut self, rng: &mut Rng) {
        let key = PodKey::new("ns", &format!("p{}", rng.u32(0..3)));
        let Some(mut pod) = self.pods.get(&key).cloned() else {
            let node = NodeName::from(NODES[rng.usize(0..NODES.len())]);
            let mask = rng.usize(1..1 << VOLUMES.len());
            let volumes = VOLUMES.iter().enumerate().filter(|(index, _)| mask & (1 << index) != 0);
            let volumes: Vec<&str> = volumes.map(|(_, (name, _))| *name).collect();
            return self.pod_comes(&key, &node, &volumes);
        };
        if rng.bool() {
            pod.status.phase = PodPhase::Succeeded;
            self.put_pod(pod);
        } else {
            self.pod_goes(&key);
        }
    }

    pub(super) fn pod_comes(&mut self, key: &PodKey, node: &NodeName, volumes: &[&str]) {
        self.uids += 1;
        let mut pod = Pod::default();
        pod.metadata.namespace = "ns".into();
        pod.metadata.name = key.name().into();
        pod.metadata.uid = format!("pod-{}", self.uids).into();
        let order = Timestamp::from_second(i64::try_from(self.uids).unwrap()).unwrap();
        pod.metadata.creation_timestamp = Some(self.clocks.show(Machine::ApiServer, order));
        pod.spec.node_name = node.clone();
        for name in volumes {
            let claim_name = (*name).into();
            let source = PodVolumeSource::PersistentVolumeClaim(ClaimSource { claim_name });
            pod.spec.volumes.push(PodVolume { name: (*name).into(), source });
        }
        self.put_pod(pod);
    }

    pub(super) fn pod_goes(&mut self, key: &PodKey) {
        if let Some(pod) = self.pods.remove(key) {
            self.record_end(ObjectRef::Pod(key.clone()), Object::Pod(pod));
            self.note_wishes();
        }
    }

    /// The external-attacher does something with one attachment.
    pub fn attacher_acts(&mut self, rng: &mut Rng) {
        let names: Vec<AttachmentName> = self.attachments.keys().cloned().collect();
        if !names.is_empty() {
            self.attacher_works(&names[rng.usize(0..names.len())], rng.u32(0..4) == 0);
        }
    }

    /// The next step of the external-attacher for an attachment; the driver may fail.
    pub(super) fn attacher_works(&mut self, name: &AttachmentName, fails: bool) {
        let mut attachment = self.attachments[name].clone();
        if !has_work(&attachment) {
            return;
        }
        if attachment.metadata.is_terminating() {
            if fails {
                attachment.status.detach_error = Some(Box::new(error("busy")));
                self.put_attachment(attachment);
            } else {
                self.remove_attachment(name);
            }
        } else if attachment.metadata.finalizers.is_empty() {
            attachment.metadata.finalizers = ["external-attacher/d"].into();
            self.put_attachment(attachment);
        } else {
            if fails {
                attachment.status.attach_error = Some(Box::new(error("no")));
            } else {
                attachment.status.attached = true;
                attachment.status.attach_error = None;
            }
            self.put_attachment(attachment);
        }
    }

    /// The kubelet of one node reports, mounts, unmounts, or merely says that it is alive.
    pub fn kubelet_acts(&mut self, rng: &mut Rng) {
        let name = NodeName::from(NODES[rng.usize(0..NODES.len())]);
        if !self.is_alive(&name) {
            return;
        }
        match rng.u32(0..4) {
            0 => self.kubelet_reports(&name),
            1 => self.kubelet_mounts(&name),
            2 => self.kubelet_unmounts(&name),
            _ => self.node_is_touched(&name),
        }
    }

    /// Whether there is a node with a kubelet that does its work.
    pub(super) fn is_alive(&self, name: &NodeName) -> bool {
        !self.silent.contains(name) && self.nodes.contains_key(name)
    }

    /// Another client writes the node without saying anything new.
    pub(super) fn node_is_touched(&mut self, name: &NodeName) {
        let node = self.nodes[name].clone();
        self.put_node(node);
    }

    /// The kubelet goes silent, and the node is seen not to be Ready.
    pub(super) fn node_fails(&mut self, name: &NodeName) {
        self.silent.insert(name.clone());
        let node = self.nodes[name].clone();
        self.put_ready(node, false);
    }

    /// The kubelet is back, and the node is seen to be Ready.
    pub(super) fn node_recovers(&mut self, name: &NodeName) {
        self.silent.remove(name);
        let node = self.nodes[name].clone();
        self.put_ready(node, true);
    }

    /// What pods on a node use, and must be attached for it.
    pub(super) fn to_be_attached(&self, node: &NodeName) -> BTreeSet<VolumeId> {
        let mut volumes = self.wanted_on(node);
        volumes.retain(|volume| self.attaches(volume));
        volumes
    }

    pub(super) fn wanted_on(&self, node: &NodeName) -> BTreeSet<VolumeId> {
        let pods = self.pods.values().filter(|pod| pod.spec.node_name == *node && !pod.is_terminated());
        pods.flat_map(|pod| &pod.spec.volumes).map(|volume| id(&volume.name)).collect()
    }

    pub(super) fn kubelet_reports(&mut self, name: &NodeName) {
        let in_use = self.in_use(name);
        self.unreported.remove(name);
        let mut node = self.nodes[name].clone();
        if node.status.volumes_in_use != in_use {
            node.status.volumes_in_use = in_use;
            self.put_node(node);
        }
    }

    /// What a kubelet has to report.
    fn in_use(&self, name: &NodeName) -> TextSet {
        let mounted = self.mounted.keys().filter(|(node, _)| node == name).map(|(_, volume)| volume);
        self.to_be_attached(name).iter().chain(mounted).map(|volume| volume.as_str().into()).collect()
    }

    pub(super) fn kubelet_mounts(&mut self, name: &NodeName) {
        let to_mount = self.to_mount(name);
        for volume in to_mount {
            let pair = (name.clone(), volume);
            self.overdue.remove(&pair);
            self.unwitnessed.remove(&pair);
            self.mounted.extend(self.authors.listed(&pair).map(|author| (pair, author)));
        }
    }

    /// What a kubelet can mount that it has not.
    fn to_mount(&self, name: &NodeName) -> Vec<VolumeId> {
        let node = &self.nodes[name];
        let mut volumes: Vec<VolumeId> = self.to_be_attached(name).into_iter().collect();
        volumes.retain(|volume| {
            node.uses(volume.as_str())
                && node.lists(volume.as_str())
                && !self.mounted.contains_key(&(name.clone(), volume.clone()))
        });
        volumes.retain(|volume| {
            let is_attached = |attachment: &VolumeAttachment| {
                attachment.spec.attacher.as_str() == DRIVER && attachment.status.attached
            };
            volume.kind() == VolumeKind::NoOp
                || self.attachments.get(&volume.attachment_name(name)).is_some_and(is_attached)
        });
        volumes
    }

    pub(super) fn kubelet_unmounts(&mut self, name: &NodeName) {
        let wanted = self.wanted_on(name);
        self.mounted.retain(|(node, volume), _| node != name || wanted.contains(volume));
    }

    /// Attacher and kubelets do all they can, without faults.
    pub fn everyone_acts(&mut self) {
        let names = self.nodes.keys().filter(|name| self.is_alive(name));
        let names: Vec<NodeName> = names.cloned().collect();
        for name in names {
            self.kubelet_unmounts(&name);
            self.kubelet_reports(&name);
            self.kubelet_mounts(&name);
        }
        let names: Vec<AttachmentName> = self.attachments.keys().cloned().collect();
        for name in names {
            let mut attachment = self.attachments[&name].clone();
            if attachment.metadata.is_terminating() {
                self.remove_attachment(&name);
            } else if !attachment.status.attached {
                attachment.metadata.finalizers = ["external-attacher/d"].into();
                attachment.status.attached = true;
                attachment.status.attach_error = None;
                self.put_attachment(attachment);
            }
        }
    }

    pub(super) fn node_registers(&mut self, name: &NodeName, boot: &str) {
        self.uids += 1;
        let mut node = Node::default();
        node.metadata.name = name.as_str().into();
        node.metadata.uid = format!("node-{name}-{}", self.uids).into();
        let managed = "volumes.kubernetes.io/controller-managed-attach-detach";
        node.metadata.annotations.insert(managed.to_owned(), "true".to_owned());
        node.status.node_info.boot_id = boot.into();
        self.put_ready(node, true);
    }

    pub(super) fn put_ready(&mut self, mut node: Node, ready: bool) {
        let status = if ready { "True" } else { "Unknown" };
        node.status.conditions = vec![NodeCondition {
            r#type: "Ready".into(),
            status: status.into(),
            last_transition_time: Some(self.clocks.show(clock_of(&node), self.wall)),
        }];
        self.put_node(node);
    }

    /// A machine fails, recovers, reboots, is declared off, or its node object goes.
    pub fn machine_acts(&mut self, rng: &mut Rng) {
        let name = NodeName::from(NODES[rng.usize(0..NODES.len())]);
        let Some(mut node) = self.nodes.get(&name).cloned() else {
            let boot = if rng.bool() { "boot-0".to_owned() } else { self.reboots(&name) };
            self.silent.remove(&name);
            return self.node_registers(&name, &boot);
        };
        match rng.u32(0..6) {
            0 | 1 if node.is_ready() => self.node_fails(&name),
            0 | 1 => self.node_recovers(&name),
            2 => {
                let boot = self.reboots(&name);
                node.status.node_info.boot_id = boot.into();
                node.status.volumes_in_use.clear();
                self.silent.remove(&name);
                self.put_ready(node, true);
            }
            // Only a machine that is off is declared so.
            3 if self.silent.contains(&name) => {
                self.reboots(&name);
                node.spec.taints.push(Taint { key: OUT_OF_SERVICE.into() });
                self.put_node(node);
            }
            4 => self.node_goes(&name),
            _ => {}
        }
    }

    /// The node object goes.
    fn node_goes(&mut self, name: &NodeName) {
        let Some(node) = self.nodes.remove(name) else { return };
        self.authors.note_gone(name);
        self.unreported.insert(name.clone());
        self.unready_since.entry(name.clone()).or_insert(self.wall);
        // A node that is gone publishes nothing, and cannot report anything new either.
        for volume in VOLUMES.map(|(volume, _)| id(volume)) {
            let unused = !node.uses(volume.as_str());
            let shown = self.unpublished.entry((name.clone(), volume)).or_default();
            shown.unused |= unused;
            // A deletion that was sent while it was gone may arrive when it is back.
            shown.unready = true;
        }
        self.record_end(ObjectRef::Node(name.clone()), Object::Node(node));
    }

    /// A machine is gone for good, and with it its node object, or that stays and is not Ready; then its pods
    /// go.
    pub fn machine_goes(&mut self, index: usize, object_goes: bool) {
        let name = NodeName::from(NODES[index]);
        self.reboots(&name);
        if object_goes {
            self.node_goes(&name);
        } else if self.nodes.get(&name).is_some_and(Node::is_ready) {
            self.node_fails(&name);
        }
        self.everybody_leaves(&name);
        self.gone_for_good.insert(name);
    }

    /// The pods of a node go.
    pub(super) fn everybody_leaves(&mut self, name: &NodeName) {
        let pods = self.pods.iter().filter(|(_, pod)| pod.spec.node_name == *name);
        let pods: Vec<PodKey> = pods.map(|(key, _)| key.clone()).collect();
        for key in pods {
            self.pod_goes(&key);
        }
    }

    /// The machine loses what it had mounted. Returns its new boot.
    pub(super) fn reboots(&mut self, name: &NodeName) -> String {
        self.mounted.retain(|(node, _), _| node != name);
        self.uids += 1;
        format!("boot-{}", self.uids)
    }

    /// The trouble stops.
    pub fn everything_is_well(&mut self) {
        self.silent.clone_from(&self.gone_for_good);
        for (name, mode) in VOLUMES {
            self.storage_is_well(name, mode);
        }
        self.driver_says(None);
        self.strangers_leave();
        for name in NODES.map(NodeName::from) {
            match self.nodes.get(&name).cloned() {
                _ if self.gone_for_good.contains(&name) => {}
                None => {
                    let boot = self.reboots(&name);
                    self.node_registers(&name, &boot);
                }
                Some(mut node) => {
                    node.spec.taints.clear();
                    if node.is_ready() { self.put_node(node) } else { self.put_ready(node, true) }
                }
            }
        }
    }
}

/// Whose clock the condition of a node bears the time of.
fn clock_of(node: &Node) -> Machine {
    Machine::Node(NODES.iter().position(|name| **name == *node.metadata.name).unwrap_or_default())
}

/// Whether the external-attacher has something to do.
pub(super) fn has_work(attachment: &VolumeAttachment) -> bool {
    attachment.metadata.is_terminating()
        || attachment.metadata.finalizers.is_empty()
        || !attachment.status.attached
}

fn error(message: &str) -> apiserver::kinds::VolumeError {
    apiserver::kinds::VolumeError { time: None, message: message.into() }
}
