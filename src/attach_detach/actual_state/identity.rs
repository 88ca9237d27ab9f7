//! Whose a VolumeAttachment is, and what it is about.
//!
//! In: the object, and the volumes that its source and its node's status suggest. Out: the volume and the node it
//! holds, and whether it is ours: then its name is the hash of these. What nothing explains yet is kept, and
//! looked at again when its PersistentVolume or its node changes.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use super::ActualState;
use crate::{
    attach_detach::volume_name::VolumeId,
    kube_api::{
        ids::{AttachmentName, NodeName, VolumeName},
        kinds::VolumeAttachment,
    },
};

/// What a VolumeAttachment is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) volume: VolumeId,
    pub(super) node: NodeName,
    pub(super) ours: bool,
}

impl ActualState {
    /// Of a VolumeAttachment that is not ours: the volume it holds, if that is known, and its node.
    #[must_use]
    pub fn foreign(&self, name: &AttachmentName) -> Option<(Option<&VolumeId>, &NodeName)> {
        match self.identities.get(name) {
            Some(identity) => (!identity.ours).then_some((Some(&identity.volume), &identity.node)),
            None => self.unidentified.get(name).map(|attachment| (None, &attachment.spec.node_name)),
        }
    }

    /// Recognises the attachments of a volume among those that nothing has explained so far: their own
    /// PersistentVolume may be gone while another one stands for the same handle.
    pub fn recognise(&mut self, volume: &VolumeId, wall: Timestamp) -> Vec<AttachmentName> {
        let ours: Vec<Arc<VolumeAttachment>> = self
            .unidentified
            .values()
            .filter(|attachment| is_named_after(attachment, volume))
            .map(Arc::clone)
            .collect();
        let recognise = |attachment: Arc<VolumeAttachment>| {
            let name = AttachmentName::from(&*attachment.metadata.name);
            let about = Candidates { source: Some(volume.clone()), published: Vec::new() };
            self.observe_attachment(&name, Some(attachment), |_| about, wall);
            name
        };
        ours.into_iter().map(recognise).collect()
    }

    /// VolumeAttachments that no known volume explains, among those that name the PersistentVolume or
    /// the node: worth another look when one of these changes.
    #[must_use]
    pub fn unidentified(&self, volume: Option<&VolumeName>, node: Option<&NodeName>) -> Vec<AttachmentName> {
        self.unidentified
            .iter()
            .filter(|(_, attachment)| {
                let spec = &attachment.spec;
                (volume.is_some() && spec.source.persistent_volume_name.as_ref() == volume)
                    || node == Some(&spec.node_name)
            })
            .map(|(name, _)| name.clone())
            .collect()
    }
}

/// The volumes that a VolumeAttachment may be about.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// What its source says, if that can be read.
    pub source: Option<VolumeId>,
    /// What its node's status lists.
    pub published: Vec<VolumeId>,
}

/// Ours is an attachment whose name is the hash of the volume it is about. One that its source
/// explains, but under another name, is somebody else's (S12, conformance tests make such).
pub(super) fn identify(attachment: &VolumeAttachment, candidates: Candidates) -> Option<Identity> {
    let node = &attachment.spec.node_name;
    let identity = |volume: VolumeId, ours| Identity { volume, node: node.clone(), ours };
    let Candidates { source, published } = candidates;
    if let Some(volume) = source.iter().chain(&published).find(|volume| is_named_after(attachment, volume)) {
        return Some(identity(volume.clone(), true));
    }
    source.map(|volume| identity(volume, false))
}

/// The name alone is not enough: what it is the hash of is joined without separators (H6).
pub(super) fn is_named_after(attachment: &VolumeAttachment, volume: &VolumeId) -> bool {
    let spec = &attachment.spec;
    *volume.driver_and_handle().0 == *spec.attacher.as_str()
        && *volume.attachment_name(&spec.node_name).as_str() == *attachment.metadata.name
}
