//! The simulated API server with the users, kubelets and attacher around it, and the checks that every
//! write of the daemon must pass.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use k8s_openapi::jiff::Timestamp;
use mooring::{
    attach_detach::volume_name::VolumeId,
    kube_api::{
        call::{CallError, Request, Verb},
        ids::{AttachmentName, DriverName, NodeName, PodKey, ResourceVersion, VolumeName},
        kinds::{
            AttachedVolume, Narrow, Node, NodeCondition, ObjectRef, PersistentVolume, PersistentVolumeClaim,
            Pod, PodVolume, PodVolumeSource, Taint, VolumeAttachment,
        },
    },
};
use serde_json::Value;

/// An object as the watch shows it.
#[derive(Clone, Debug)]
pub enum Object {
    Node(Node),
    Pod(Pod),
    Attachment(VolumeAttachment),
}

/// What the watch of a kind delivers.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub revision: u64,
    pub key: ObjectRef,
    pub object: Option<Object>,
}

#[derive(Debug)]
pub struct Server {
    revision: u64,
    uids: u64,
    pub nodes: BTreeMap<NodeName, Node>,
    pub pods: BTreeMap<PodKey, Pod>,
    pub volumes: BTreeMap<VolumeName, PersistentVolume>,
    pub claims: BTreeMap<String, PersistentVolumeClaim>,
    pub attachments: BTreeMap<AttachmentName, VolumeAttachment>,
    pub history: Vec<Delivery>,
    mounted: BTreeSet<(NodeName, VolumeId)>,
    /// Per node and volume that is not on `volumesAttached`: what the revisions since it was taken off
    /// have shown.
    unpublished: BTreeMap<(NodeName, VolumeId), Shown>,
    wall: Timestamp,
    /// Nodes whose kubelet is silent.
    silent: BTreeSet<NodeName>,
    /// Since when each node has been gone or not Ready.
    unready_since: BTreeMap<NodeName, Timestamp>,
    /// Since when nobody has wanted each volume on each node.
    unwanted_since: BTreeMap<(NodeName, VolumeId), Timestamp>,
}

/// What may entitle to a detach.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    unused: bool,
    unready: bool,
    out_of_service: bool,
}

/// How long before a detach may be forced.
const PATIENCE: i64 = 360;
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

const NODES: [&str; 2] = ["n1", "n2"];
/// Name and access mode of the volumes.
const VOLUMES: [(&str, &str); 2] = [("v1", "ReadWriteOnce"), ("v2", "ReadWriteMany")];

pub fn id(volume: &str) -> VolumeId {
    VolumeId::csi(&DriverName::from("d"), volume)
}

impl Server {
    pub fn new() -> Self {
        let mut server = Self {
            revision: 100,
            uids: 0,
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            volumes: BTreeMap::new(),
            claims: BTreeMap::new(),
            attachments: BTreeMap::new(),
            history: Vec::new(),
            mounted: BTreeSet::new(),
            unpublished: BTreeMap::new(),
            wall: Timestamp::from_second(1_000_000).unwrap(),
            silent: BTreeSet::new(),
            unready_since: BTreeMap::new(),
            unwanted_since: BTreeMap::new(),
        };
        for name in NODES.map(NodeName::from) {
            server.node_registers(&name, "boot-0");
        }
        for (name, mode) in VOLUMES {
            let json = serde_json::json!({
                "metadata": {"name": name, "uid": format!("pv-{name}"), "resourceVersion": "1"},
                "spec": {"accessModes": [mode], "csi": {"driver": "d", "volumeHandle": name},
                    "claimRef": {"namespace": "ns", "name": name, "uid": format!("claim-{name}")}},
            });
            server.volumes.insert(name.into(), serde_json::from_value(json).unwrap());
            let json = serde_json::json!({
                "metadata": {"namespace": "ns", "name": name, "uid": format!("claim-{name}"), "resourceVersion": "1"},
                "spec": {"volumeName": name}, "status": {"phase": "Bound"},
            });
            server.claims.insert(name.to_owned(), serde_json::from_value(json).unwrap());
        }
        server
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }

    fn next(&mut self) -> ResourceVersion {
        self.revision += 1;
        ResourceVersion(self.revision)
    }

    fn record(&mut self, key: ObjectRef, object: Option<Object>) {
        self.history.push(Delivery { revision: self.revision, key, object });
    }

    fn put_node(&mut self, mut node: Node) {
        node.metadata.resource_version = self.next();
        let name = node.key();
        for (volume, _) in VOLUMES {
            let pair = (name.clone(), id(volume));
            let listed = node.lists(pair.1.as_str());
            let was_listed = self.nodes.get(&name).is_some_and(|before| before.lists(pair.1.as_str()));
            if listed {
                self.unpublished.remove(&pair);
                continue;
            }
            let shown = self.unpublished.entry(pair.clone()).or_default();
            if was_listed {
                *shown = Shown::default();
            }
            shown.unused |= !node.uses(pair.1.as_str());
            shown.unready |= !node.is_ready();
            shown.out_of_service |= node.is_out_of_service();
        }
        if node.is_ready() {
            self.unready_since.remove(&name);
        } else {
            self.unready_since.entry(name.clone()).or_insert(self.wall);
        }
        self.nodes.insert(name.clone(), node.clone());
        self.record(ObjectRef::Node(name), Some(Object::Node(node)));
    }

    fn put_pod(&mut self, mut pod: Pod) {
        pod.metadata.resource_version = self.next();
        let key = pod.key();
        self.pods.insert(key.clone(), pod.clone());
        self.record(ObjectRef::Pod(key), Some(Object::Pod(pod)));
        self.note_wishes();
    }

    fn put_attachment(&mut self, mut attachment: VolumeAttachment) -> VolumeAttachment {
        attachment.metadata.resource_version = self.next();
        let name = attachment.key();
        self.attachments.insert(name.clone(), attachment.clone());
        self.record(ObjectRef::Attachment(name), Some(Object::Attachment(attachment.clone())));
        attachment
    }

    fn remove_attachment(&mut self, name: &AttachmentName) {
        self.attachments.remove(name);
        self.next();
        self.record(ObjectRef::Attachment(name.clone()), None);
    }

    /// Somebody creates a pod, deletes one, or one finishes.
    pub fn user_acts(&mut self, rng: &mut Rng) {
        let key = PodKey::new("ns", &format!("p{}", rng.u32(0..3)));
        let Some(mut pod) = self.pods.get(&key).cloned() else {
            self.uids += 1;
            let mut pod = Pod::default();
            pod.metadata.namespace = "ns".into();
            pod.metadata.name = key.name().into();
            pod.metadata.uid = format!("pod-{}", self.uids).into();
            pod.metadata.creation_timestamp = Timestamp::from_second(i64::try_from(self.uids).unwrap()).ok();
            pod.spec.node_name = NodeName::from(NODES[rng.usize(0..NODES.len())]);
            let mask = rng.usize(1..4);
            for (index, (name, _)) in VOLUMES.iter().enumerate() {
                if mask & (1 << index) != 0 {
                    let claim_name = (*name).to_owned();
                    let source = PodVolumeSource::PersistentVolumeClaim { claim_name, read_only: false };
                    pod.spec.volumes.push(PodVolume { name: (*name).to_owned(), source });
                }
            }
            return self.put_pod(pod);
        };
        if rng.bool() {
            "Succeeded".clone_into(&mut pod.status.phase);
            self.put_pod(pod);
        } else {
            self.pods.remove(&key);
            self.next();
            self.record(ObjectRef::Pod(key), None);
            self.note_wishes();
        }
    }

    /// The external-attacher does something with one attachment.
    pub fn attacher_acts(&mut self, rng: &mut Rng) {
        let names: Vec<AttachmentName> = self.attachments.keys().cloned().collect();
        let Some(name) = (!names.is_empty()).then(|| &names[rng.usize(0..names.len())]) else { return };
        let mut attachment = self.attachments[name].clone();
        if attachment.metadata.is_terminating() {
            if rng.u32(0..4) == 0 {
                attachment.status.detach_error = Some(error("busy"));
                self.put_attachment(attachment);
            } else {
                self.remove_attachment(name);
            }
        } else if attachment.metadata.finalizers.is_empty() {
            attachment.metadata.finalizers.push("external-attacher/d".to_owned());
            self.put_attachment(attachment);
        } else if !attachment.status.attached {
            if rng.u32(0..4) == 0 {
                attachment.status.attach_error = Some(error("no"));
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
        if self.silent.contains(&name) || !self.nodes.contains_key(&name) {
            return;
        }
        match rng.u32(0..4) {
            0 => self.kubelet_reports(&name),
            1 => self.kubelet_mounts(&name),
            2 => self.kubelet_unmounts(&name),
            _ => {
                let node = self.nodes[&name].clone();
                self.put_node(node);
            }
        }
    }

    fn wanted_on(&self, node: &NodeName) -> BTreeSet<VolumeId> {
        let pods = self.pods.values().filter(|pod| pod.spec.node_name == *node && !pod.is_terminated());
        pods.flat_map(|pod| &pod.spec.volumes).map(|volume| id(&volume.name)).collect()
    }

    fn kubelet_reports(&mut self, name: &NodeName) {
        let mut in_use: BTreeSet<String> =
            self.wanted_on(name).iter().map(|volume| volume.as_str().to_owned()).collect();
        let mounted = self.mounted.iter().filter(|(node, _)| node == name);
        in_use.extend(mounted.map(|(_, volume)| volume.as_str().to_owned()));
        let mut node = self.nodes[name].clone();
        if node.status.volumes_in_use != in_use {
            node.status.volumes_in_use = in_use;
            self.put_node(node);
        }
    }

    fn kubelet_mounts(&mut self, name: &NodeName) {
        let node = &self.nodes[name];
        for volume in self.wanted_on(name) {
            let attachment = self.attachments.get(&volume.attachment_name(name));
            let attached = attachment.is_some_and(|attachment| attachment.status.attached);
            if node.uses(volume.as_str()) && node.lists(volume.as_str()) && attached {
                self.mounted.insert((name.clone(), volume));
            }
        }
    }

    fn kubelet_unmounts(&mut self, name: &NodeName) {
        let wanted = self.wanted_on(name);
        self.mounted.retain(|(node, volume)| node != name || wanted.contains(volume));
    }

    /// Attacher and kubelets do all they can, without faults.
    pub fn everyone_acts(&mut self) {
        for name in NODES.map(NodeName::from) {
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
                attachment.metadata.finalizers = vec!["external-attacher/d".to_owned()];
                attachment.status.attached = true;
                attachment.status.attach_error = None;
                self.put_attachment(attachment);
            }
        }
    }

    /// S3, S4, S5: the volume was seen unused since it was unpublished, or force was due.
    fn is_entitled(&self, node: &NodeName, volume: &VolumeId) -> Result<(), String> {
        let pair = (node.clone(), volume.clone());
        let shown = self.unpublished.get(&pair).copied().unwrap_or_default();
        let mounted = self.mounted.contains(&pair);
        if shown.out_of_service || (shown.unused && !mounted) {
            return Ok(());
        }
        let gone = !self.nodes.contains_key(node);
        if !shown.unready && !gone {
            return Err(format!("S3 S5: {volume} deleted though {node} was well and used it"));
        }
        let since = self.unready_since.get(node).max(self.unwanted_since.get(&pair)).copied();
        match since {
            Some(since) if self.wall.as_second() - since.as_second() >= PATIENCE => Ok(()),
            // The node recovered after it was last seen unwell; how long it had been so is forgotten.
            None if shown.unready => Ok(()),
            _ => Err(format!("S4: {volume} forced off {node} at {} though only since {since:?}", self.wall)),
        }
    }

    pub fn wall(&self) -> Timestamp {
        self.wall
    }

    pub fn time_passes(&mut self, time: std::time::Duration) {
        self.wall = self.wall.checked_add(time).unwrap();
    }

    /// Notes since when nobody has wanted what.
    fn note_wishes(&mut self) {
        for node in NODES.map(NodeName::from) {
            let wanted = self.wanted_on(&node);
            for (volume, _) in VOLUMES {
                let pair = (node.clone(), id(volume));
                if wanted.contains(&pair.1) {
                    self.unwanted_since.remove(&pair);
                } else {
                    self.unwanted_since.entry(pair).or_insert(self.wall);
                }
            }
        }
    }

    fn node_registers(&mut self, name: &NodeName, boot: &str) {
        self.uids += 1;
        let mut node = Node::default();
        node.metadata.name = name.as_str().into();
        node.metadata.uid = format!("node-{name}-{}", self.uids).into();
        let managed = "volumes.kubernetes.io/controller-managed-attach-detach";
        node.metadata.annotations.insert(managed.to_owned(), "true".to_owned());
        boot.clone_into(&mut node.status.node_info.boot_id);
        self.put_ready(node, true);
    }

    fn put_ready(&mut self, mut node: Node, ready: bool) {
        let status = if ready { "True" } else { "Unknown" };
        node.status.conditions = vec![NodeCondition {
            r#type: "Ready".to_owned(),
            status: status.to_owned(),
            last_transition_time: Some(self.wall),
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
            0 | 1 if node.is_ready() => {
                self.silent.insert(name);
                self.put_ready(node, false);
            }
            0 | 1 => {
                self.silent.remove(&name);
                self.put_ready(node, true);
            }
            2 => {
                let boot = self.reboots(&name);
                node.status.node_info.boot_id = boot;
                node.status.volumes_in_use.clear();
                self.silent.remove(&name);
                self.put_ready(node, true);
            }
            // Only a machine that is off is declared so.
            3 if self.silent.contains(&name) => {
                self.reboots(&name);
                node.spec.taints.push(Taint { key: OUT_OF_SERVICE.to_owned() });
                self.put_node(node);
            }
            4 => {
                self.nodes.remove(&name);
                self.next();
                self.unready_since.entry(name.clone()).or_insert(self.wall);
                self.record(ObjectRef::Node(name), None);
            }
            _ => {}
        }
    }

    /// The machine loses what it had mounted. Returns its new boot.
    fn reboots(&mut self, name: &NodeName) -> String {
        self.mounted.retain(|(node, _)| node != name);
        self.uids += 1;
        format!("boot-{}", self.uids)
    }

    /// The trouble stops.
    pub fn everything_is_well(&mut self) {
        self.silent.clear();
        for name in NODES.map(NodeName::from) {
            match self.nodes.get(&name).cloned() {
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

    /// Creates a VolumeAttachment.
    pub fn create(&mut self, request: &Request) -> Result<Result<VolumeAttachment, CallError>, String> {
        let body = request.body.clone().unwrap_or_default();
        let mut body_with_revision = body.clone();
        body_with_revision["metadata"]["resourceVersion"] = Value::from("0");
        let mut attachment: VolumeAttachment =
            serde_json::from_value(body_with_revision).map_err(|error| error.to_string())?;
        let name = attachment.key();
        let volume_name = attachment.spec.source.persistent_volume_name.clone().unwrap_or_default();
        let volume = id(volume_name.as_str());
        if volume.attachment_name(&attachment.spec.node_name) != name {
            return Err(format!("S9: {name} is not the hash of {volume} and {}", attachment.spec.node_name));
        }
        if self.attachments.contains_key(&name) {
            return Ok(Err(CallError::AlreadyExists(name.to_string())));
        }
        let exclusive = VOLUMES.contains(&(volume_name.as_str(), "ReadWriteOnce"));
        let elsewhere = self.attachments.values().find(|other| {
            other.spec.source == attachment.spec.source && other.spec.node_name != attachment.spec.node_name
        });
        if exclusive && let Some(elsewhere) = elsewhere {
            return Err(format!(
                "S1: {volume} created for {} while attached to {}",
                attachment.spec.node_name, elsewhere.spec.node_name
            ));
        }
        self.uids += 1;
        attachment.metadata.uid = format!("va-{}", self.uids).into();
        Ok(Ok(self.put_attachment(attachment)))
    }

    /// Deletes a VolumeAttachment. The answer is the object if finalizers keep it.
    pub fn delete(
        &mut self,
        request: &Request,
    ) -> Result<Result<Option<VolumeAttachment>, CallError>, String> {
        let name = AttachmentName::from(request.path.rsplit('/').next().unwrap_or_default());
        let body = request.body.clone().unwrap_or_default();
        let Some(uid) = body["preconditions"]["uid"].as_str() else {
            return Err(format!("S7: {name} deleted without UID"));
        };
        let Some(mut attachment) = self.attachments.get(&name).cloned() else {
            return Ok(Err(CallError::NotFound(name.to_string())));
        };
        if attachment.metadata.uid.as_str() != uid {
            return Ok(Err(CallError::Conflict(name.to_string())));
        }
        let volume = id(attachment.spec.source.persistent_volume_name.clone().unwrap_or_default().as_str());
        let node = attachment.spec.node_name.clone();
        if self.nodes.get(&node).is_some_and(|node| node.lists(volume.as_str())) {
            return Err(format!("S2: {volume} deleted while {node} lists it"));
        }
        self.is_entitled(&node, &volume)?;
        if attachment.metadata.is_terminating() {
            return Ok(Ok(Some(attachment)));
        }
        if attachment.metadata.finalizers.is_empty() {
            self.remove_attachment(&name);
            return Ok(Ok(None));
        }
        attachment.metadata.deletion_timestamp = Timestamp::from_second(1).ok();
        Ok(Ok(Some(self.put_attachment(attachment))))
    }

    /// Patches `volumesAttached` of a node.
    pub fn patch_node(
        &mut self,
        name: &NodeName,
        request: &Request,
    ) -> Result<Result<Node, CallError>, String> {
        let body = request.body.clone().unwrap_or_default();
        let keys = |value: &Value| -> BTreeSet<String> {
            value.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default()
        };
        let allowed =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<String>>();
        if request.verb != Verb::Patch
            || keys(&body) != allowed(&["metadata", "status"])
            || keys(&body["metadata"]) != allowed(&["uid", "resourceVersion"])
            || keys(&body["status"]) != allowed(&["volumesAttached"])
        {
            return Err(format!("S13: {request:?}"));
        }
        let Some(mut node) = self.nodes.get(name).cloned() else {
            return Ok(Err(CallError::NotFound(name.to_string())));
        };
        if body["metadata"]["resourceVersion"] != node.metadata.resource_version.to_string()
            || body["metadata"]["uid"] != node.metadata.uid.as_str()
        {
            return Ok(Err(CallError::Conflict(name.to_string())));
        }
        let list: Option<Vec<AttachedVolume>> =
            serde_json::from_value(body["status"]["volumesAttached"].clone())
                .map_err(|error| error.to_string())?;
        node.status.volumes_attached = list.unwrap_or_default();
        for (volume, _) in VOLUMES {
            let volume = id(volume);
            let attachment = self.attachments.get(&volume.attachment_name(name));
            let going = attachment.is_some_and(|attachment| attachment.metadata.is_terminating());
            if node.lists(volume.as_str()) && going && !self.nodes[name].lists(volume.as_str()) {
                return Err(format!("S2: {volume} listed again on {name} while it is being detached"));
            }
        }
        if node != self.nodes[name] {
            self.put_node(node);
        }
        Ok(Ok(self.nodes[name].clone()))
    }

    /// At rest, every wish is fulfilled and nothing else is attached.
    pub fn is_as_wanted(&self) -> Result<(), String> {
        for (volume, mode) in VOLUMES {
            let volume = id(volume);
            let nodes: Vec<NodeName> = NODES
                .map(NodeName::from)
                .into_iter()
                .filter(|node| self.wanted_on(node).contains(&volume))
                .collect();
            let attached: Vec<NodeName> = NODES
                .map(NodeName::from)
                .into_iter()
                .filter(|node| self.attachments.contains_key(&volume.attachment_name(node)))
                .collect();
            let right = match mode {
                "ReadWriteOnce" => {
                    attached.len() == nodes.len().min(1) && attached.iter().all(|node| nodes.contains(node))
                }
                _ => attached == nodes,
            };
            if !right {
                return Err(format!("at rest {volume} is wanted on {nodes:?} and attached to {attached:?}"));
            }
            for node in NODES.map(NodeName::from) {
                if self.nodes[&node].lists(volume.as_str()) != attached.contains(&node) {
                    return Err(format!("at rest {node} lists {volume} wrongly; attached to {attached:?}"));
                }
            }
        }
        Ok(())
    }
}

fn error(message: &str) -> mooring::kube_api::kinds::VolumeError {
    mooring::kube_api::kinds::VolumeError { time: None, message: message.to_owned() }
}
