//! Populator: from a pod and the objects it leads to, what the pod wishes.
//!
//! In: one pod and the tables. Out: [`PodWishes`], or `None` when the pod contributes nothing. The
//! result names every object it depends on, so that a change of any of them brings the pod back
//! here; there is no sweep that has to find it (KCM waits up to three minutes for one).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    desired_state::{PodFacts, PodWishes, Unresolved, WantedVolume, WhyUnresolved},
    volume_name::VolumeId,
};
use crate::{
    kube_api::kinds::{ClaimPhase, Narrow, ObjectRef, PersistentVolume, Pod, PodVolume, PodVolumeSource},
    state::Objects,
};

/// What the pod wishes now. `before` is what it wished until now: a volume that was resolved once
/// stays wanted while the pod lives, even if its claim or volume has vanished, because the pod may
/// have it mounted (attach-detach §2, pain 14). Only a driver that no longer needs attaching ends
/// the wish (P-04, S16).
#[must_use]
pub fn wishes(pod: &Pod, objects: &Objects, before: Option<&PodWishes>) -> Option<PodWishes> {
    if pod.spec.node_name.is_empty() || pod.spec.volumes.is_empty() || pod.is_terminated() {
        return None;
    }
    let before = before.filter(|before| before.pod.uid == pod.metadata.uid);
    let mut wishes = PodWishes {
        pod: Arc::new(PodFacts {
            key: pod.key(),
            uid: pod.metadata.uid.clone(),
            created: pod.metadata.creation_timestamp,
        }),
        node: pod.spec.node_name.clone(),
        volumes: BTreeMap::new(),
        unresolved: Vec::new(),
        depends_on: BTreeSet::new(),
    };
    // KCM: a node stays managed once it was seen so; its annotation is only waited for
    // (attach_detach_controller.go, nodeUpdate).
    let managed = objects.nodes.get(&wishes.node).is_some_and(|node| node.is_managed())
        || before.is_some_and(|before| !before.volumes.is_empty());
    if !managed {
        wishes.depends_on.insert(ObjectRef::Node(wishes.node.clone()));
    }
    for volume in &pod.spec.volumes {
        let resolved = resolve(pod, volume, objects, &mut wishes.depends_on);
        let why = match resolved {
            Ok(Resolved::NotAttachable) => continue,
            Ok(Resolved::Attachable(id, wanted)) if managed => {
                wishes.volumes.insert(id, wanted);
                continue;
            }
            Ok(Resolved::Attachable(..)) => WhyUnresolved::NodeNotManaged(wishes.node.clone()),
            Err(why) => why,
        };
        wishes.unresolved.push(Unresolved { pod_volume: volume.name.clone(), why });
        let kept = before
            .and_then(|before| before.volumes.iter().find(|(_, wanted)| wanted.pod_volume == volume.name));
        if let Some((id, wanted)) = kept {
            wishes.volumes.insert(id.clone(), WantedVolume { current: false, ..wanted.clone() });
        }
    }
    Some(wishes)
}

enum Resolved {
    Attachable(VolumeId, WantedVolume),
    NotAttachable,
}

/// Follows pod volume → claim → PersistentVolume → driver (attach-detach §2.2, §2.3).
fn resolve(
    pod: &Pod,
    volume: &PodVolume,
    objects: &Objects,
    depends_on: &mut BTreeSet<ObjectRef>,
) -> Result<Resolved, WhyUnresolved> {
    let claim_key = pod.claim_of(volume);
    depends_on.insert(ObjectRef::Claim(claim_key.clone()));
    let Some(claim) = objects.claims.get(&claim_key) else {
        return Err(WhyUnresolved::ClaimMissing(claim_key));
    };
    if matches!(volume.source, PodVolumeSource::Ephemeral {})
        && claim.metadata.controller().is_none_or(|owner| owner.uid != pod.metadata.uid)
    {
        return Err(WhyUnresolved::ClaimNotOwnedByPod(claim_key));
    }
    let name = &claim.spec.volume_name;
    if claim.status.phase != ClaimPhase::Bound || name.is_empty() {
        return Err(WhyUnresolved::ClaimNotBound(claim_key));
    }
    depends_on.insert(ObjectRef::Volume(name.clone()));
    let Some(persistent_volume) = objects.volumes.get(name) else {
        return Err(WhyUnresolved::VolumeMissing(name.clone()));
    };
    let bound_here = persistent_volume
        .spec
        .claim_ref
        .as_ref()
        .is_some_and(|claim_ref| claim_ref.uid == claim.metadata.uid);
    if !bound_here {
        return Err(WhyUnresolved::VolumeBoundElsewhere(name.clone()));
    }
    let Some(csi) = &persistent_volume.spec.csi else { return Ok(Resolved::NotAttachable) };
    if csi.driver.is_empty() || csi.volume_handle.is_empty() {
        return Err(WhyUnresolved::MalformedSource(name.clone()));
    }
    depends_on.insert(ObjectRef::Driver(csi.driver.clone()));
    let attach_required =
        objects.drivers.get(&csi.driver).is_none_or(|driver| driver.spec.attach_required.unwrap_or(true));
    if !attach_required {
        return Ok(Resolved::NotAttachable);
    }
    let wanted = WantedVolume {
        pod_volume: volume.name.clone(),
        volume_name: name.clone(),
        exclusive: is_exclusive(&persistent_volume),
        current: !persistent_volume.metadata.is_terminating(),
    };
    Ok(Resolved::Attachable(VolumeId::csi(&csi.driver, &csi.volume_handle), wanted))
}

/// Whether the volume may be on one node at a time only: it has access modes, and none of them
/// allows several nodes (attach-detach §6.5).
#[must_use]
pub fn is_exclusive(volume: &PersistentVolume) -> bool {
    let modes = &volume.spec.access_modes;
    !modes.is_empty() && !modes.iter().any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany")
}
