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
            AttachedVolume, ClaimSource, Narrow, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim,
            Pod, PodVolume, PodVolumeSource, VolumeAttachment,
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
    /// Per node and volume: the revision that took it off `volumesAttached`, and whether a revision since
    /// then showed it unused.
    unpublished: BTreeMap<(NodeName, VolumeId), bool>,
}

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
        };
        for name in NODES {
            let mut node = Node::default();
            node.metadata.name = name.into();
            node.metadata.uid = format!("node-{name}").into();
            let managed = "volumes.kubernetes.io/controller-managed-attach-detach";
            node.metadata.annotations.insert(managed.to_owned(), "true".to_owned());
            server.put_node(node);
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
            let unused = !node.uses(pair.1.as_str());
            if listed {
                self.unpublished.remove(&pair);
            } else if was_listed {
                self.unpublished.insert(pair, unused);
            } else {
                let proof = self.unpublished.entry(pair).or_insert(unused);
                *proof |= unused;
            }
        }
        self.nodes.insert(name.clone(), node.clone());
        self.record(ObjectRef::Node(name), Some(Object::Node(node)));
    }

    fn put_pod(&mut self, mut pod: Pod) {
        pod.metadata.resource_version = self.next();
        let key = pod.key();
        self.pods.insert(key.clone(), pod.clone());
        self.record(ObjectRef::Pod(key), Some(Object::Pod(pod)));
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
                    let source = PodVolumeSource::PersistentVolumeClaim(ClaimSource { claim_name });
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
        match rng.u32(0..4) {
            0 => self.kubelet_reports(&name),
            1 => self.kubelet_mounts(&name),
            2 => self.kubelet_unmounts(&name),
            _ => {
                let mut node = self.nodes[&name].clone();
                node.spec.taints.clear();
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
        if self.nodes[&node].lists(volume.as_str()) {
            return Err(format!("S2: {volume} deleted while {node} lists it"));
        }
        if !self.unpublished.get(&(node.clone(), volume.clone())).copied().unwrap_or(true) {
            return Err(format!("S3: {volume} deleted though {node} used it ever since it was unpublished"));
        }
        if self.mounted.contains(&(node.clone(), volume.clone())) {
            return Err(format!("{volume} deleted while mounted on {node}"));
        }
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
        let mut node = self.nodes[name].clone();
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
