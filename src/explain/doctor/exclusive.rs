//! Volumes for one node alone that have attachments on several (S1): a disk that two machines may write.
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
    attach_detach::desired::volume_source::Sharing,
    explain::subject::Subject,
    kube_api::{
        ids::{AttachmentName, VolumeName},
        kinds::{PersistentVolume, VolumeAttachment, VolumeSpec},
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
}

pub(super) fn look(volumes: &Volumes, attachments: &Attachments, groups: &mut Groups) {
    let mut by_handle: BTreeMap<(&str, &str), Places<'_>> = BTreeMap::new();
    for (name, attachment) in attachments {
        let Some(spec) = source(attachment, volumes) else { continue };
        let Some(csi) = &spec.csi else { continue };
        let places = by_handle.entry((csi.driver.as_str(), &csi.volume_handle)).or_default();
        let sharing = Sharing::of(spec.access_modes.iter().map(|mode| &**mode));
        places.is_exclusive |= sharing == Sharing::Exclusive;
        places.attachments.push((name, attachment));
    }
    for ((_, handle), places) in by_handle {
        let nodes: BTreeSet<_> = places.attachments.iter().map(|(_, it)| &it.spec.node_name).collect();
        if places.is_exclusive && nodes.len() > 1 {
            places.tell(handle, groups);
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

/// How an attachment holds its volume. One that is being deleted does so until it is gone, whatever `attached` says:
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
            // The page of the volume shows all its nodes.
            if let Some(volume) = &attachment.spec.source.persistent_volume_name {
                groups.explained_by(index, &Subject::Volume(volume.clone()));
            }
        }
    }
}
