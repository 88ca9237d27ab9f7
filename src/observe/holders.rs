//! Which node has a volume, and which volumes a pod needs: the questions that laws and situations share. Pure.

use apiserver::{
    ids::NodeName,
    kinds::{Meta, Pod, VolumeAttachment},
    tables::Objects,
};

use crate::attach_detach::state::desired::volume_source::{CsiVolume, Storage, of_persistent_volume};

/// The volume of an attachment.
pub(super) fn volume_of(world: &Objects, attachment: &VolumeAttachment) -> Option<CsiVolume> {
    let source = &attachment.spec.source;
    let storage = match (&source.persistent_volume_name, &source.inline_volume_spec) {
        (Some(name), _) => {
            let volume = world.volumes.get(name)?;
            of_persistent_volume(&volume.metadata, &volume.spec)
        }
        (None, inline) => of_persistent_volume(&Meta::default(), inline.as_deref()?),
    };
    match storage {
        Ok(Storage::Csi(volume)) => Some(volume),
        _ => None,
    }
}

/// The volumes that a pod needs.
pub(super) fn volumes_of(world: &Objects, pod: &Pod) -> Vec<CsiVolume> {
    let claims = pod.spec.volumes.iter().filter_map(|volume| pod.claim_of(volume));
    let volumes = claims.filter_map(|key| world.volumes.get(&world.claims.get(&key)?.spec.volume_name));
    let csi = volumes.filter_map(|volume| match of_persistent_volume(&volume.metadata, &volume.spec) {
        Ok(Storage::Csi(volume)) => Some(volume),
        _ => None,
    });
    csi.collect()
}

/// Another node than this that has an attachment of an exclusive volume.
pub(super) fn holder(world: &Objects, volume: &CsiVolume, node: &NodeName) -> Option<NodeName> {
    let mut holder = None;
    if volume.is_exclusive() {
        world.attachments.for_each(|other| {
            if other.spec.node_name != *node && volume_of(world, other).is_some_and(|it| it.id == volume.id) {
                holder = Some(other.spec.node_name.clone());
            }
        });
    }
    holder
}
