//! Which node has a volume, and which volumes a pod needs: the questions that laws and situations share. Pure.

use apiserver::{
    ids::NodeName,
    kinds::{Narrow as _, Pod},
    tables::Objects,
};

use crate::attach_detach::state::desired::{
    volume_name::{VolumeId, VolumeKind},
    volume_source::{Sharing, Storage, of_persistent_volume, source_of},
};

/// A volume that is attached, and whether several nodes may have it.
pub(super) type Held = (VolumeId, Sharing);

/// The volumes that a pod needs.
pub(super) fn volumes_of(world: &Objects, pod: &Pod) -> Vec<Held> {
    let claims = pod.spec.volumes.iter().filter_map(|volume| pod.claim_of(volume));
    let volumes = claims.filter_map(|key| world.volumes.get(&world.claims.get(&key)?.spec.volume_name));
    volumes.filter_map(|volume| held(of_persistent_volume(&volume.metadata, &volume.spec).ok()?)).collect()
}

fn held(storage: Storage) -> Option<Held> {
    match storage {
        Storage::Csi(volume) => Some((volume.id, volume.sharing)),
        Storage::NoOp(id, sharing) => Some((id, sharing)),
        Storage::FlexVolume(_) | Storage::NotAttachable => None,
    }
}

/// An iSCSI or Fibre Channel volume of a node's list. It is exclusive if each PersistentVolume of it says so, and there is one.
pub(super) fn no_op(world: &Objects, name: &str) -> Option<Held> {
    let id = VolumeId::parse(name).filter(|id| id.kind() == VolumeKind::NoOp)?;
    let mut sharing = None;
    world.volumes.for_each(|volume| {
        let storage = of_persistent_volume(&volume.metadata, &volume.spec);
        if let Some((_, of_it)) = storage.ok().and_then(held).filter(|(other, _)| *other == id) {
            sharing = sharing.filter(|known| *known == Sharing::Shared).or(Some(of_it));
        }
    });
    Some((id, sharing.unwrap_or(Sharing::Shared)))
}

/// Another node than this that has an exclusive volume: an attachment of it, or, where there are none, an entry in its list.
pub(super) fn holder(world: &Objects, (id, sharing): &Held, node: &NodeName) -> Option<NodeName> {
    let mut holder = None;
    match (sharing, id.kind()) {
        (Sharing::Shared, _) => {}
        (Sharing::Exclusive, VolumeKind::Csi) => world.attachments.for_each(|other| {
            if other.spec.node_name != *node && source_of(world, other).is_some_and(|it| it.id == *id) {
                holder = Some(other.spec.node_name.clone());
            }
        }),
        (Sharing::Exclusive, VolumeKind::NoOp) => world.nodes.for_each(|other| {
            if other.key() != *node && other.lists(id.as_str()) {
                holder = Some(other.key());
            }
        }),
    }
    holder
}
