//! The simulated API server, and the checks that every write of the daemon must pass.
//!
//! Here, where requests arrive, they are checked against what mooring itself wrote ([`super::authors`]). What the world
//! showed when they were sent is [`super::wishes`]'s, and what the daemon knew then [`super::justified`]'s.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, LazyLock},
};

use apiserver::{
    call::{CallError, Request},
    ids::{AttachmentName, ClaimKey, DriverName, NodeName, PodKey, ResourceVersion, VolumeName},
    kinds::{
        AttachedVolume, CsiDriver, Meta, Narrow, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim,
        Pod, VolumeAttachment,
    },
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use mooring::attach_detach::state::desired::volume_name::{VolumeId, VolumeKind};
use serde_json::Value;
use test_support::promises::requests;

use super::{
    authors::{Author, Authors},
    clocks::Clocks,
};

/// An object as the watch shows it.
#[derive(Clone, Debug)]
pub enum Object {
    Node(Node),
    Pod(Pod),
    Attachment(VolumeAttachment),
    Volume(PersistentVolume),
    Claim(PersistentVolumeClaim),
    Driver(CsiDriver),
}

impl Object {
    pub(super) fn metadata_mut(&mut self) -> &mut Meta {
        match self {
            Self::Node(object) => &mut object.metadata,
            Self::Pod(object) => &mut object.metadata,
            Self::Attachment(object) => &mut object.metadata,
            Self::Volume(object) => &mut object.metadata,
            Self::Claim(object) => &mut object.metadata,
            Self::Driver(object) => &mut object.metadata,
        }
    }
}

/// What the watch of a kind delivers.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub key: ObjectRef,
    pub object: Object,
    pub deleted: bool,
}

#[derive(Clone, Debug)]
pub struct Server {
    pub(super) revision: u64,
    pub(super) uids: u64,
    pub nodes: BTreeMap<NodeName, Node>,
    pub pods: BTreeMap<PodKey, Pod>,
    pub volumes: Arc<BTreeMap<VolumeName, PersistentVolume>>,
    pub claims: Arc<BTreeMap<ClaimKey, PersistentVolumeClaim>>,
    pub drivers: BTreeMap<DriverName, CsiDriver>,
    pub attachments: BTreeMap<AttachmentName, VolumeAttachment>,
    pub history: Vec<Delivery>,
    /// What is mounted, and who had listed it when it was.
    pub(super) mounted: BTreeMap<(NodeName, VolumeId), Author>,
    /// Per node and volume that is not on `volumesAttached`: what the revisions since it was taken off
    /// have shown.
    pub(super) unpublished: BTreeMap<(NodeName, VolumeId), Shown>,
    /// The world's true time, which no process in it knows.
    pub(super) wall: Timestamp,
    /// What the clocks of its machines show.
    pub clocks: Clocks,
    /// Nodes whose kubelet is silent.
    pub(super) silent: BTreeSet<NodeName>,
    /// Nodes that do not come back.
    pub(super) gone_for_good: BTreeSet<NodeName>,
    /// Since when each node has been gone or not Ready.
    pub(super) unready_since: BTreeMap<NodeName, Timestamp>,
    /// Since when no pod has wanted each volume on each node.
    pub(super) unwanted_since: BTreeMap<(NodeName, VolumeId), Timestamp>,
    /// The same as the leader has seen it.
    pub(super) seen_unwanted_since: BTreeMap<(NodeName, VolumeId), Timestamp>,
    pub(super) authors: Authors,
    /// S4: what is mounted, though force has been due.
    pub(super) overdue: BTreeSet<(NodeName, VolumeId)>,
    /// Nodes whose object was made anew, and whose kubelet has not reported since what it uses.
    pub(super) unreported: BTreeSet<NodeName>,
    /// S43: what is mounted, though no node told so when the leader changed.
    pub(super) unwitnessed: BTreeSet<(NodeName, VolumeId)>,
    /// For how long the leader had seen no pod want each volume on each node, when it last renewed the lease.
    pub(super) kept: BTreeMap<(NodeName, VolumeId), SignedDuration>,
    /// What the lease said of waits for force when it was last renewed.
    pub told: Option<Arc<str>>,
}

/// What may entitle to a detach.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shown {
    pub(super) unused: bool,
    pub(super) unready: bool,
    pub(super) out_of_service: bool,
}

/// A kubelet that is well reports at least this often.
pub(super) const KUBELET_PERIOD: std::time::Duration = std::time::Duration::from_secs(10);
/// How long before a detach may be forced.
pub(super) const PATIENCE: SignedDuration = SignedDuration::from_mins(6);
/// By how much a process may be early whose clock goes too fast ([`Clocks::rate`]).
pub(super) const DRIFT: SignedDuration = SignedDuration::from_millis(200);
pub(super) const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

pub(super) const NODES: [&str; 2] = ["n1", "n2"];
pub(super) const DRIVER: &str = "d";
/// Name and access mode of the volumes. The last is an iSCSI volume, which has no VolumeAttachments.
pub(super) const VOLUMES: [(&str, &str); 3] =
    [("v1", "ReadWriteOnce"), ("v2", "ReadWriteMany"), ("v3", "ReadWriteOnce")];

static IDS: LazyLock<[VolumeId; 3]> = LazyLock::new(|| {
    let driver = DriverName::from(DRIVER);
    [VolumeId::csi(&driver, "v1"), VolumeId::csi(&driver, "v2"), VolumeId::iscsi("portal", "v3", 0)]
});

pub fn id(volume: &str) -> VolumeId {
    let known = VOLUMES.iter().zip(&*IDS).find(|((name, _), _)| *name == volume);
    known.map_or_else(|| VolumeId::csi(&DriverName::from(DRIVER), volume), |(_, id)| id.clone())
}

pub(super) fn is_exclusive(volume: &VolumeId) -> bool {
    VOLUMES.iter().any(|(name, mode)| *mode == "ReadWriteOnce" && id(name) == *volume)
}

/// What holds of every request.
fn check(resource: &str, request: &Request) -> Result<(), String> {
    let verb = format!("{:?}", request.verb).to_lowercase();
    let body = request.body.as_ref().unwrap_or(&Value::Null);
    let broken = requests::broken(requests::Request { verb: &verb, resource, body });
    if broken.is_empty() { Ok(()) } else { Err(format!("{broken:?}: {request:?}")) }
}

impl Server {
    pub fn new() -> Self {
        let mut server = Self {
            revision: 100,
            uids: 0,
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            volumes: Arc::default(),
            claims: Arc::default(),
            drivers: BTreeMap::new(),
            attachments: BTreeMap::new(),
            history: Vec::new(),
            mounted: BTreeMap::new(),
            unpublished: BTreeMap::new(),
            wall: Timestamp::from_second(1_000_000).unwrap(),
            clocks: Clocks::default(),
            silent: BTreeSet::new(),
            gone_for_good: BTreeSet::new(),
            unready_since: BTreeMap::new(),
            unwanted_since: BTreeMap::new(),
            seen_unwanted_since: BTreeMap::new(),
            authors: Authors::default(),
            overdue: BTreeSet::new(),
            unreported: BTreeSet::new(),
            unwitnessed: BTreeSet::new(),
            kept: BTreeMap::new(),
            told: None,
        };
        for name in NODES.map(NodeName::from) {
            server.node_registers(&name, "boot-0");
        }
        for (name, mode) in VOLUMES {
            server.storage_is_well(name, mode);
        }
        server.history.clear();
        server
    }

    pub fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn next(&mut self) -> ResourceVersion {
        self.revision += 1;
        ResourceVersion(self.revision)
    }

    pub(super) fn record(&mut self, key: ObjectRef, object: Object) {
        self.history.push(Delivery { key, object, deleted: false });
    }

    /// Records that an object is gone, as it was but for the revision.
    pub(super) fn record_end(&mut self, key: ObjectRef, mut object: Object) {
        object.metadata_mut().resource_version = self.next();
        self.history.push(Delivery { key, object, deleted: true });
    }

    /// Writes the list of a node.
    pub(super) fn put_list(&mut self, node: Node, author: Author) {
        let taken_off = self.authors.note_list(self.nodes.get(&node.key()), &node, author);
        for (volume, listed_by) in taken_off {
            // Mooring need not have been told that another listed it meanwhile.
            if [author, listed_by].contains(&Author::Mooring) {
                self.unpublished.remove(&(node.key(), volume));
            }
        }
        self.put_node(node);
    }

    pub(super) fn put_node(&mut self, mut node: Node) {
        node.metadata.resource_version = self.next();
        let name = node.key();
        for (volume, _) in VOLUMES {
            let pair = (name.clone(), id(volume));
            if node.lists(pair.1.as_str()) {
                if self.authors.listed(&pair) == Some(Author::Mooring) {
                    self.unpublished.remove(&pair);
                    self.unwitnessed.remove(&pair);
                    if node.is_ready() {
                        self.overdue.remove(&pair);
                    }
                }
                continue;
            }
            let shown = self.unpublished.entry(pair.clone()).or_default();
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
        self.record(ObjectRef::Node(name), Object::Node(node));
    }

    pub(super) fn put_pod(&mut self, mut pod: Pod) {
        pod.metadata.resource_version = self.next();
        let key = pod.key();
        self.pods.insert(key.clone(), pod.clone());
        self.record(ObjectRef::Pod(key), Object::Pod(pod));
        self.note_wishes();
    }

    pub(super) fn put_attachment(&mut self, mut attachment: VolumeAttachment) -> VolumeAttachment {
        attachment.metadata.resource_version = self.next();
        let name = attachment.key();
        self.attachments.insert(name.clone(), attachment.clone());
        self.record(ObjectRef::Attachment(name), Object::Attachment(attachment.clone()));
        attachment
    }

    pub(super) fn remove_attachment(&mut self, name: &AttachmentName) {
        if let Some(attachment) = self.attachments.remove(name) {
            self.authors.note_end(&attachment.metadata.uid);
            self.record_end(ObjectRef::Attachment(name.clone()), Object::Attachment(attachment));
        }
    }

    pub fn wall(&self) -> Timestamp {
        self.wall
    }

    pub fn time_passes(&mut self, time: std::time::Duration) {
        self.wall = self.wall.checked_add(time).unwrap();
        self.patience_ends();
        if time < KUBELET_PERIOD {
            return;
        }
        for name in NODES.map(NodeName::from) {
            if self.nodes.contains_key(&name) && !self.silent.contains(&name) {
                self.kubelet_reports(&name);
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
        if volume.kind() == VolumeKind::NoOp
            || volume.attachment_name(&attachment.spec.node_name) != name
            || attachment.spec.attacher.as_str() != DRIVER
        {
            return Err(format!("S9: {name} is not the hash of {volume} and {}", attachment.spec.node_name));
        }
        if self.attachments.contains_key(&name) {
            return Ok(Err(CallError::AlreadyExists(name.to_string())));
        }
        let elsewhere = self.attachments.values().find(|other| {
            other.spec.source == attachment.spec.source
                && other.spec.node_name != attachment.spec.node_name
                && self.authors.created(&other.metadata.uid) == Some(Author::Mooring)
        });
        if is_exclusive(&volume)
            && let Some(elsewhere) = elsewhere
        {
            return Err(format!(
                "S1: {volume} created for {} while attached to {}",
                attachment.spec.node_name, elsewhere.spec.node_name
            ));
        }
        self.uids += 1;
        attachment.metadata.uid = format!("va-{}", self.uids).into();
        self.authors.note_creation(&attachment.metadata.uid, Author::Mooring);
        Ok(Ok(self.put_attachment(attachment)))
    }

    /// Deletes a VolumeAttachment. The answer is the object if finalizers keep it.
    pub fn delete(
        &mut self,
        request: &Request,
    ) -> Result<Result<Option<VolumeAttachment>, CallError>, String> {
        let name = AttachmentName::from(request.path.rsplit('/').next().unwrap_or_default());
        let body = request.body.clone().unwrap_or_default();
        check("volumeattachments", request)?;
        let uid = body["preconditions"]["uid"].as_str().unwrap_or_default();
        let Some(mut attachment) = self.attachments.get(&name).cloned() else {
            return Ok(Err(CallError::NotFound(name.to_string())));
        };
        let is_newest =
            body["preconditions"]["resourceVersion"] == attachment.metadata.resource_version.to_string();
        if attachment.metadata.uid != uid.into() || !is_newest {
            return Ok(Err(CallError::Conflict(name.to_string())));
        }
        let volume = id(attachment.spec.source.persistent_volume_name.clone().unwrap_or_default().as_str());
        let node = attachment.spec.node_name.clone();
        if attachment.spec.attacher.as_str() != DRIVER || volume.attachment_name(&node) != name {
            return Err(format!("S9: {name} deleted, which is somebody else's"));
        }
        self.is_off_the_list(&node, &volume)?;
        self.authors.note_deletion(&attachment.metadata.uid, Author::Mooring);
        if attachment.metadata.is_terminating() {
            return Ok(Ok(Some(attachment)));
        }
        if attachment.metadata.finalizers.is_empty() {
            self.remove_attachment(&name);
            return Ok(Ok(None));
        }
        attachment.metadata.deletion_timestamp = Timestamp::from_second(1).ok().map(Box::new);
        Ok(Ok(Some(self.put_attachment(attachment))))
    }

    /// Patches `volumesAttached` of a node.
    pub fn patch_node(
        &mut self,
        name: &NodeName,
        request: &Request,
    ) -> Result<Result<Node, CallError>, String> {
        let body = request.body.clone().unwrap_or_default();
        check("nodes/status", request)?;
        let Some(mut node) = self.nodes.get(name).cloned() else {
            return Ok(Err(CallError::NotFound(name.to_string())));
        };
        if body["metadata"]["resourceVersion"] != node.metadata.resource_version.to_string()
            || body["metadata"]["uid"] != node.metadata.uid.to_string()
        {
            return Ok(Err(CallError::Conflict(name.to_string())));
        }
        let list: Option<Vec<AttachedVolume>> =
            serde_json::from_value(body["status"]["volumesAttached"].clone())
                .map_err(|error| error.to_string())?;
        node.status.volumes_attached = list.unwrap_or_default();
        for (volume, _) in VOLUMES {
            let volume = id(volume);
            let is_new = node.lists(volume.as_str()) && !self.nodes[name].lists(volume.as_str());
            if is_new && volume.kind() == VolumeKind::NoOp {
                self.is_nowhere_else(&volume, name)?;
            }
            let attachment = self.attachments.get(&volume.attachment_name(name));
            let going = attachment.is_some_and(|attachment| {
                self.authors.deleted(&attachment.metadata.uid) == Some(Author::Mooring)
            });
            if is_new && going {
                return Err(format!("S2: {volume} listed again on {name} while it is being detached"));
            }
        }
        if node != self.nodes[name] {
            self.put_list(node, Author::Mooring);
        }
        Ok(Ok(self.nodes[name].clone()))
    }

    /// S2: mooring has not listed again what it deletes.
    pub(super) fn is_off_the_list(&self, node: &NodeName, volume: &VolumeId) -> Result<(), String> {
        match self.authors.listed(&(node.clone(), volume.clone())) {
            Some(Author::Mooring) => Err(format!("S2: {volume} deleted while {node} lists it")),
            _ => Ok(()),
        }
    }

    /// S1, for a volume whose list is all there is.
    fn is_nowhere_else(&self, volume: &VolumeId, here: &NodeName) -> Result<(), String> {
        let elsewhere = NODES.map(NodeName::from).into_iter().filter(|node| node != here);
        for node in elsewhere {
            if self.authors.listed(&(node.clone(), volume.clone())) == Some(Author::Mooring) {
                return Err(format!("S1: {volume} listed on {here} while {node} lists it"));
            }
        }
        Ok(())
    }

    /// Where a volume is attached; one without VolumeAttachments is so where it is listed.
    pub(super) fn attached_to(&self, volume: &VolumeId) -> Vec<NodeName> {
        let is_attached = |node: &NodeName| match volume.kind() {
            VolumeKind::Csi => self.attachments.contains_key(&volume.attachment_name(node)),
            VolumeKind::NoOp => self.nodes.get(node).is_some_and(|node| node.lists(volume.as_str())),
        };
        NODES.map(NodeName::from).into_iter().filter(is_attached).collect()
    }

    fn is_attached_by_mooring(&self, volume: &VolumeId, node: &NodeName) -> bool {
        let author = match volume.kind() {
            VolumeKind::Csi => {
                let attachment = self.attachments.get(&volume.attachment_name(node));
                attachment.and_then(|attachment| self.authors.created(&attachment.metadata.uid))
            }
            VolumeKind::NoOp => self.authors.listed(&(node.clone(), volume.clone())),
        };
        author == Some(Author::Mooring)
    }

    /// Everything is detached from a node, or asked to be, and off its list.
    pub(super) fn is_rid_of(&self, node: usize) -> Result<(), String> {
        let name = NodeName::from(NODES[node]);
        for volume in VOLUMES.map(|(volume, _)| id(volume)) {
            let attachment = self.attachments.get(&volume.attachment_name(&name));
            if attachment.is_some_and(|attachment| !attachment.metadata.is_terminating()) {
                return Err(format!("{volume} is still attached to {name}"));
            }
            if self.nodes.get(&name).is_some_and(|node| node.lists(volume.as_str())) {
                return Err(format!("{volume} is still listed on {name}"));
            }
        }
        Ok(())
    }

    /// At rest, every wish is fulfilled and nothing else is attached.
    pub fn is_as_wanted(&self) -> Result<(), String> {
        for (name, _) in VOLUMES {
            let volume = id(name);
            let nodes: Vec<NodeName> = NODES
                .map(NodeName::from)
                .into_iter()
                .filter(|node| self.to_be_attached(node).contains(&volume))
                .collect();
            let attached = self.attached_to(&volume);
            let is_in_place = |node: &NodeName| {
                // S16: what was mounted when its driver ceased to need attaching stays until it is unmounted.
                nodes.contains(node) || self.mounted.contains_key(&(node.clone(), volume.clone()))
            };
            let right = if is_exclusive(&volume) {
                // What others attached besides is not taken from pods.
                let is_enough = !attached.is_empty() || nodes.is_empty();
                let by_mooring = attached.iter().filter(|node| self.is_attached_by_mooring(&volume, node));
                by_mooring.count() <= 1 && is_enough && attached.iter().all(is_in_place)
            } else {
                attached.iter().all(is_in_place) && nodes.iter().all(|node| attached.contains(node))
            };
            if !right {
                return Err(format!("at rest {volume} is wanted on {nodes:?} and attached to {attached:?}"));
            }
            for (node, object) in &self.nodes {
                // S16: what is still mounted stays listed even if its attachment was taken away by others. So does what
                // its kubelet reports in use, until it can be attached there again.
                let waits = nodes.contains(node) && object.uses(volume.as_str()) && !attached.is_empty();
                let is_kept = (!nodes.contains(node) && is_in_place(node) || waits)
                    && !attached.contains(node)
                    && object.lists(volume.as_str());
                // One that others attached to a second node is listed on one of them, and nowhere beside a node that has it
                // in use (S43).
                let is_elsewhere = is_exclusive(&volume)
                    && self.nodes.iter().filter(|(other, _)| *other != node).any(|(other, object)| {
                        object.uses(volume.as_str())
                            || attached.contains(other) && object.lists(volume.as_str())
                    });
                let is_second = is_elsewhere && !object.lists(volume.as_str());
                // Nor need it be listed again for nobody where others took it off (S16).
                let is_off = !nodes.contains(node) && is_in_place(node) && !object.lists(volume.as_str());
                let is_right = object.lists(volume.as_str()) == attached.contains(node);
                if !is_right && !is_kept && !is_second && !is_off {
                    let lists = self
                        .nodes
                        .iter()
                        .map(|(name, it)| (name, it.lists(volume.as_str()), it.uses(volume.as_str())));
                    let lists: Vec<_> = lists.collect();
                    return Err(format!(
                        "at rest {node} lists {volume} wrongly; attached to {attached:?}; (node, lists, uses): {lists:?}"
                    ));
                }
            }
        }
        Ok(())
    }
}
