//! Volumes for one node alone that have attachments on several, or are in use beside their attachment (S1): a disk that two
//! machines may write.
//!
//! In: the volumes and the attachments. Out: a group for each such volume, with each of its attachments under the name
//! that the object has.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Severity,
    groups::{ATTACHED_TWICE, Cause, Groups, Victim},
};
use crate::{
    attach_detach::{
        desired::{volume_name::VolumeId, volume_source::Sharing},
        dry_run::Outlook,
    },
    explain::{snapshot::Snapshot, subject::Subject},
    kube_api::{
        ids::{AttachmentName, NodeName, VolumeName},
        kinds::{Narrow, PersistentVolume, Pod, VolumeAttachment, VolumeSpec},
    },
};

type Volumes = BTreeMap<VolumeName, Arc<PersistentVolume>>;
type Attachments = BTreeMap<AttachmentName, Arc<VolumeAttachment>>;

/// The attachments of one volume, as its driver knows it.
#[derive(Default)]
struct Places<'a> {
    /// Two PersistentVolumes may stand for it. One that says so is enough.
    is_exclusive: bool,
    attachments: Vec<(&'a AttachmentName, &'a VolumeAttachment)>,
    /// Nodes that are well and report it in use, without an attachment and without a pod that waits for one.
    in_use: BTreeSet<NodeName>,
}

pub(super) fn look(
    snapshot: &Snapshot,
    outlook: &Outlook,
    (volumes, attachments): (&Volumes, &Attachments),
    groups: &mut Groups,
) {
    let mut by_handle: BTreeMap<(&str, &str), Places<'_>> = BTreeMap::new();
    for (name, attachment) in attachments {
        let Some(spec) = source(attachment, volumes) else { continue };
        let Some(csi) = &spec.csi else { continue };
        let places = by_handle.entry((csi.driver.as_str(), &csi.volume_handle)).or_default();
        let sharing = Sharing::of(spec.access_modes.iter().map(|mode| &**mode));
        places.is_exclusive |= sharing == Sharing::Exclusive;
        places.attachments.push((name, attachment));
    }
    if snapshot.is_listed::<Pod>() {
        in_use(snapshot, outlook, &mut by_handle);
    }
    for ((_, handle), places) in by_handle {
        let nodes = places.attachments.iter().map(|(_, it)| &it.spec.node_name);
        let nodes: BTreeSet<_> = nodes.chain(&places.in_use).collect();
        if places.is_exclusive && nodes.len() > 1 {
            places.tell(handle, groups);
        }
    }
}

/// Notes nodes that report a volume in use which is attached elsewhere alone. One that waits for it does so, too, and has a
/// pod that wants it; one that is silent reports what was.
fn in_use(snapshot: &Snapshot, outlook: &Outlook, by_handle: &mut BTreeMap<(&str, &str), Places<'_>>) {
    let mut suspected: BTreeSet<(VolumeId, NodeName)> = BTreeSet::new();
    snapshot.objects.nodes.for_each(|node| {
        let name = node.key();
        for id in node.status.volumes_in_use.iter().filter_map(|volume| VolumeId::parse_csi(volume)) {
            let places = by_handle.get(&id.driver_and_handle());
            let is_elsewhere = places.is_some_and(|places| {
                places.is_exclusive && places.attachments.iter().all(|(_, it)| it.spec.node_name != name)
            });
            if is_elsewhere && node.is_ready() {
                suspected.insert((id, name.clone()));
            }
        }
    });
    if suspected.is_empty() {
        return;
    }
    for wanted in outlook.desired.values().flatten() {
        suspected.remove(&(wanted.volume.clone(), wanted.node.clone()));
    }
    for (id, node) in suspected {
        if let Some((_, places)) = by_handle.iter_mut().find(|(known, _)| **known == id.driver_and_handle()) {
            places.in_use.insert(node);
        }
    }
}

/// The volume that an attachment is of.
fn source<'a>(attachment: &'a VolumeAttachment, volumes: &'a Volumes) -> Option<&'a VolumeSpec> {
    let source = &attachment.spec.source;
    match &source.persistent_volume_name {
        Some(name) => volumes.get(name).map(|volume| &volume.spec),
        None => source.inline_volume_spec.as_deref(),
    }
}

/// How an attachment holds its volume. One that is being deleted does so until it is gone, with any value of `attached`:
/// after an attach of unknown outcome, the driver has not been asked yet.
fn hold(attachment: &VolumeAttachment) -> &'static str {
    match (attachment.metadata.is_terminating(), attachment.status.attached) {
        (true, _) => "not yet detached from",
        (false, true) => "attached to",
        (false, false) => "being attached to",
    }
}

impl Places<'_> {
    fn tell(mut self, handle: &str, groups: &mut Groups) {
        self.attachments.sort_by_key(|(name, it)| (it.metadata.creation_timestamp, *name));
        let named = |word: &str| {
            let there = self.attachments.iter().filter(|(_, it)| hold(it) == word);
            let nodes: BTreeSet<&str> = there.map(|(_, it)| it.spec.node_name.as_str()).collect();
            nodes.into_iter().collect::<Vec<_>>().join(", ")
        };
        let told: Vec<String> = ["attached to", "not yet detached from", "being attached to"]
            .into_iter()
            .map(|word| (named(word), word))
            .filter(|(nodes, _)| !nodes.is_empty())
            .map(|(nodes, word)| format!("{word} {nodes}"))
            .chain(self.in_use.iter().map(|node| format!("in use on {node}, which has no attachment")))
            .collect();
        let mut earlier_node = None;
        for (name, attachment) in &self.attachments {
            // It is so since the second node has one.
            let node = &attachment.spec.node_name;
            let is_first = earlier_node.get_or_insert(node) == &node;
            let since = attachment.metadata.creation_timestamp.filter(|_| !is_first);
            let subject = Subject::Attachment((*name).clone());
            let victim = Victim { subject, unit: "attachment", since, next_at: None };
            let cause =
                Cause { severity: Severity::Blocked, reason: ATTACHED_TWICE, about: handle.to_owned() };
            let index =
                groups.note(cause, victim, || format!("{handle} is for one node alone, {}", told.join(", ")));
            // The page of the volume shows all nodes of its attachments.
            if let Some(node) = self.in_use.first() {
                groups.explained_by(index, &Subject::Node(node.clone()));
            } else if let Some(volume) = &attachment.spec.source.persistent_volume_name {
                groups.explained_by(index, &Subject::Volume(volume.clone()));
            }
        }
    }
}
