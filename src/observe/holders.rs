//! Which node has a volume, and which volumes a pod needs: the questions that laws and situations share. Pure.

use apiserver::{ids::NodeName, kinds::Pod, tables::Objects};

use crate::attach_detach::state::desired::volume_source::{CsiVolume, source_of, volume_of};

/// The volumes that a pod needs.
pub(super) fn volumes_of(world: &Objects, pod: &Pod) -> Vec<CsiVolume> {
    let claims = pod.spec.volumes.iter().filter_map(|volume| pod.claim_of(volume));
    claims.filter_map(|key| volume_of(world, &world.claims.get(&key)?.spec.volume_name)).collect()
}

/// Another node than this that has an attachment of an exclusive volume.
pub(super) fn holder(world: &Objects, volume: &CsiVolume, node: &NodeName) -> Option<NodeName> {
    let mut holder = None;
    if volume.is_exclusive() {
        world.attachments.for_each(|other| {
            if other.spec.node_name != *node && source_of(world, other).is_some_and(|it| it.id == volume.id) {
                holder = Some(other.spec.node_name.clone());
            }
        });
    }
    holder
}
