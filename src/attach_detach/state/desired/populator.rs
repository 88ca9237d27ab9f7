//! Populator: from a pod and the objects it leads to, what the pod needs.
//!
//! In: one pod and the tables. Out: [`DesiredPod`], or `None` when the pod contributes nothing. The
//! result names every object it depends on, so that a change of any of them brings the pod back
//! here; there is no sweep that has to find it (KCM waits up to three minutes for one).

use std::{cell::LazyCell, mem, sync::Arc};

use apiserver::{
    ids::{ClaimKey, DriverName, VolumeName},
    kinds::{
        ClaimPhase, CsiDriver, Narrow, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod,
        PodVolume, PodVolumeSource,
    },
    tables::{Objects, Stored},
    text::Text,
};
use litemap::LiteMap;

use super::{
    attach_required::AttachRequired,
    state::{AttachSource, DesiredPod, DesiredVolume, PodFacts, Unresolved, WhyUnresolved},
    volume_name::{VolumeId, VolumeKind},
    volume_source::{self, CsiVolume, Sharing, Storage},
};
use crate::attach_detach::state::make_room_for_one;
/// What the pod needs now, on a node that is handed to the controller if `is_managed`. `before` is what it needed until
/// now: what its node has of that stays desired while the pod lives, also if claim, volume or driver say otherwise,
/// because it may have it mounted (S44, attach-detach §2, pain 14). Only a driver that no longer needs attaching ends the
/// desired attachment (P-04, S16).
pub fn populate(
    pod: &Pod,
    objects: &Objects,
    drivers: &AttachRequired,
    is_managed: bool,
    before: Option<&DesiredPod>,
    has: impl Fn(&VolumeId) -> bool,
) -> Option<DesiredPod> {
    if pod.spec.node_name.is_empty() || pod.spec.volumes.is_empty() || pod.is_terminated() {
        return None;
    }
    let before = before.filter(|before| before.pod.uid == pod.metadata.uid);
    let mut desired_pod = nothing(pod);
    let mut depends_on = Vec::new();
    let managed = is_managed || before.is_some_and(|before| !before.volumes.is_empty());
    if !managed {
        depends_on.push(ObjectRef::Node(desired_pod.node.clone()));
    }
    for volume in &pod.spec.volumes {
        let resolved = resolve(pod, volume, objects, drivers, &mut depends_on);
        let why = match resolved {
            Ok(None) => continue,
            Ok(Some((id, wanted))) if managed => {
                want(&mut desired_pod.volumes, id, wanted);
                continue;
            }
            Ok(Some(_)) => match readable::<Node>(objects, &desired_pod.node) {
                Err(why) => why,
                Ok(()) if objects.nodes.get(&desired_pod.node).is_none() => {
                    WhyUnresolved::NodeGone(desired_pod.node.clone())
                }
                Ok(()) => WhyUnresolved::NodeNotManaged(desired_pod.node.clone()),
            },
            Err(why) => why,
        };
        desired_pod.unresolved.push(Unresolved { pod_volume: volume.name.to_string(), why });
    }
    for (id, wanted) in before.into_iter().flat_map(|before| &before.volumes) {
        // The modes of a PersistentVolume may change; another one of the same storage changes nothing of what it was given.
        let is_so_now = |now: &Arc<DesiredVolume>| {
            let is_own = now.spec_name == wanted.spec_name && !wanted.exclusive_by_another;
            now.pod_volumes == wanted.pod_volumes && (now.exclusive == wanted.exclusive || is_own)
        };
        if desired_pod.volumes.get(id).is_some_and(is_so_now) || !has(id) {
            continue;
        }
        if id.kind() == VolumeKind::Csi {
            let driver = DriverName::from(id.driver_and_handle().0);
            let is_attached = drivers.of(&driver, objects.drivers.get(&driver).as_deref());
            depends_on.push(ObjectRef::Driver(driver));
            if !is_attached {
                continue;
            }
        }
        want(&mut desired_pod.volumes, id.clone(), DesiredVolume { current: false, ..(**wanted).clone() });
    }
    depends_on.sort();
    depends_on.dedup();
    desired_pod.depends_on = depends_on.into();
    Some(desired_pod)
}

/// What a pod was given before this process watched (S44), if its node has a VolumeAttachment of a volume that names the
/// pod's claim: the pod is older than that claim, or has none any more; or the volume's source leads nowhere since (S42).
/// `attached` are the PersistentVolumes of such attachments, each with the volume that it was.
pub(crate) fn given_before(
    pod: &Pod,
    objects: &Objects,
    attached: impl Fn() -> Vec<(VolumeName, VolumeId)>,
) -> Option<DesiredPod> {
    let mut given = nothing(pod);
    let attached = LazyCell::new(attached);
    let node = objects.nodes.get(&pod.spec.node_name);
    let is_used = |id: &VolumeId| node.as_ref().is_some_and(|node| node.uses(id.as_str()));
    for volume in &pod.spec.volumes {
        let Some(key) = pod.claim_of(volume) else { continue };
        let mut candidates = Vec::new();
        let claim = objects.claims.get(&key);
        let made = claim.as_ref().map(|claim| claim.metadata.creation_timestamp);
        let is_older = volume.source != PodVolumeSource::Ephemeral
            && made.is_none_or(|made| made > pod.metadata.creation_timestamp);
        let bound = claim.as_ref().map(|claim| &claim.spec.volume_name);
        for (name, was) in attached.iter().filter(|(name, _)| is_older || bound == Some(name)) {
            let Some(found) = objects.volumes.get(name) else { continue };
            let Some(named) = found.spec.claim_ref.as_ref().filter(|named| named.key() == key) else {
                continue;
            };
            let is_its = claim.as_ref().is_some_and(|claim| {
                claim.spec.volume_name == found.key() && claim.metadata.uid == named.uid
            });
            let (id, sharing) = match volume_source::of_persistent_volume(&found.metadata, &found.spec) {
                Ok(Storage::Csi(CsiVolume { sharing, .. })) if is_older => (was.clone(), sharing),
                Err(_) if is_its => {
                    (was.clone(), Sharing::of(found.spec.access_modes.iter().map(|mode| &**mode)))
                }
                _ => continue,
            };
            let wanted = DesiredVolume {
                pod_volumes: [volume.name.clone()].into(),
                source: Some(AttachSource::PersistentVolume(found.key())),
                spec_name: found.metadata.name.clone(),
                exclusive: sharing == Sharing::Exclusive,
                exclusive_by_another: false,
                current: false,
            };
            candidates.push((id, wanted, named.uid.is_empty()));
        }
        // A kubelet mounts one of them, and a claimRef without UID may merely reserve a volume for a claim.
        let is_told = pod.has_started() && candidates.iter().any(|(id, ..)| is_used(id));
        for (id, wanted, is_reserved) in candidates {
            if !is_told || !is_reserved || is_used(&id) {
                want(&mut given.volumes, id, wanted);
            }
        }
    }
    (!given.volumes.is_empty()).then_some(given)
}

fn nothing(pod: &Pod) -> DesiredPod {
    DesiredPod {
        pod: Arc::new(PodFacts {
            key: pod.key(),
            uid: pod.metadata.uid.clone(),
            created: pod.metadata.creation_timestamp,
        }),
        node: pod.spec.node_name.clone(),
        volumes: LiteMap::default(),
        unresolved: Vec::new(),
        depends_on: Box::default(),
    }
}

/// Adds a volume. Two volumes of one pod may be the same storage under two PersistentVolumes (pain 15):
/// then what is current counts before what is stale, and what is exclusive for one is exclusive.
fn want(volumes: &mut LiteMap<VolumeId, Arc<DesiredVolume>>, id: VolumeId, mut wanted: DesiredVolume) {
    if let Some(other) = volumes.remove(&id) {
        let mut other = Arc::unwrap_or_clone(other);
        if other.current || !wanted.current {
            mem::swap(&mut other, &mut wanted);
        }
        if !wanted.exclusive && other.exclusive {
            wanted.exclusive = true;
            wanted.exclusive_by_another = other.exclusive_by_another || other.spec_name != wanted.spec_name;
        }
        let mut names: Vec<Text> =
            wanted.pod_volumes.iter().chain(other.pod_volumes.iter()).cloned().collect();
        names.sort();
        names.dedup();
        wanted.pod_volumes = names.into_iter().collect();
    }
    make_room_for_one(volumes);
    volumes.insert(id, Arc::new(wanted));
}

/// Follows pod volume → claim → PersistentVolume → driver, or pod volume → driver (attach-detach §2.2), to what is attached.
fn resolve(
    pod: &Pod,
    volume: &PodVolume,
    objects: &Objects,
    drivers: &AttachRequired,
    depends_on: &mut Vec<ObjectRef>,
) -> Result<Option<(VolumeId, DesiredVolume)>, WhyUnresolved> {
    let persistent_volume = match pod.claim_of(volume) {
        Some(claim) => Some(bound_volume(pod, volume, claim, objects, depends_on)?),
        None => None,
    };
    let storage = match (&persistent_volume, &volume.source) {
        (Some(found), _) => volume_source::of_persistent_volume(&found.metadata, &found.spec),
        (None, PodVolumeSource::InTree(source)) => {
            volume_source::of_inline_volume(&volume.name, &pod.metadata.namespace, source)
        }
        (None, _) => Ok(Storage::NotAttachable),
    };
    let storage = storage.map_err(|error| {
        WhyUnresolved::MalformedSource(persistent_volume.as_ref().map(|found| found.key()), error)
    })?;
    let (id, sharing, inline) = match storage {
        Storage::NotAttachable => return Ok(None),
        Storage::FlexVolume(driver) => return Err(WhyUnresolved::FlexVolumeUnsupported(driver)),
        Storage::NoOp(id, sharing) => (id, sharing, None),
        Storage::Csi(CsiVolume { driver, id, sharing, inline }) => {
            let object = objects.drivers.get(&driver);
            depends_on.push(ObjectRef::Driver(driver.clone()));
            readable::<CsiDriver>(objects, &driver)?;
            if !drivers.of(&driver, object.as_deref()) {
                return Ok(None);
            }
            (id, sharing, inline)
        }
    };
    let (source, spec_name) = match (&persistent_volume, inline) {
        (Some(found), _) => (Some(AttachSource::PersistentVolume(found.key())), found.metadata.name.clone()),
        (None, Some(inline)) => (Some(AttachSource::Inline(inline.spec)), inline.name.into()),
        (None, None) => (None, volume.name.clone().into()),
    };
    let wanted = DesiredVolume {
        pod_volumes: [volume.name.clone()].into(),
        source: source.filter(|_| id.kind() == VolumeKind::Csi),
        spec_name,
        exclusive: sharing == Sharing::Exclusive,
        exclusive_by_another: false,
        current: persistent_volume.is_none_or(|found| !found.metadata.is_terminating()),
    };
    Ok(Some((id, wanted)))
}

/// Whether the newest revision of an object, if there is one, can be read (S42).
fn readable<T: Stored>(objects: &Objects, key: &T::Key) -> Result<(), WhyUnresolved> {
    match objects.unreadable::<T>(key) {
        Some(error) => Err(WhyUnresolved::Unreadable(T::object_ref(key.clone()), error)),
        None => Ok(()),
    }
}

/// The PersistentVolume that claim and volume agree upon.
fn bound_volume(
    pod: &Pod,
    volume: &PodVolume,
    key: ClaimKey,
    objects: &Objects,
    depends_on: &mut Vec<ObjectRef>,
) -> Result<Arc<PersistentVolume>, WhyUnresolved> {
    depends_on.push(ObjectRef::Claim(key.clone()));
    readable::<PersistentVolumeClaim>(objects, &key)?;
    let Some(claim) = objects.claims.get(&key) else { return Err(WhyUnresolved::ClaimMissing(key)) };
    if volume.source == PodVolumeSource::Ephemeral
        && claim.metadata.controller().is_none_or(|owner| owner.uid != pod.metadata.uid)
    {
        return Err(WhyUnresolved::ClaimNotOwnedByPod(key));
    }
    let name = &claim.spec.volume_name;
    if !name.is_empty() {
        depends_on.push(ObjectRef::Volume(name.clone()));
    }
    if claim.status.phase != ClaimPhase::Bound || name.is_empty() {
        return Err(WhyUnresolved::ClaimNotBound(key));
    }
    readable::<PersistentVolume>(objects, name)?;
    let Some(found) = objects.volumes.get(name) else {
        return Err(WhyUnresolved::VolumeMissing(name.clone()));
    };
    let bound_here =
        found.spec.claim_ref.as_ref().is_some_and(|claim_ref| claim_ref.uid == claim.metadata.uid);
    if !bound_here {
        return Err(WhyUnresolved::VolumeBoundElsewhere(name.clone()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn s42_s44_a_volume_whose_source_leads_nowhere_since_is_still_what_the_pod_was_given() {
        let meta = |name: &str| {
            json!({"namespace": "ns", "name": name, "uid": name, "resourceVersion": "1",
                "creationTimestamp": "2026-01-01T00:00:00Z"})
        };
        let was = VolumeId::csi(&"pd.csi.storage.gke.io".into(), "projects/UNSPECIFIED/zones/a-b/disks/d");
        // The zones of the volume, the claim that its reference means, whether the volume is an ephemeral one of the pod.
        let cases = [
            ("a-b", "c", false, None),
            ("a-b__c-d", "c", false, Some(&was)),
            ("a-b__c-d", "another", false, None),
            ("a-b__c-d", "c", true, Some(&was)),
        ];
        for (zone, uid, is_ephemeral, expected) in cases {
            let claim = if is_ephemeral { "p-data" } else { "c" };
            let objects = Objects::default();
            let mut pv = json!({"metadata": meta("v"), "spec": {"gcePersistentDisk": {"pdName": "d"},
                "accessModes": ["ReadWriteOnce"], "claimRef": {"namespace": "ns", "name": claim, "uid": uid}}});
            pv["metadata"]["labels"] = json!({"topology.kubernetes.io/zone": zone});
            objects.apply::<PersistentVolume>(serde_json::from_value(pv).unwrap());
            let mut bound =
                json!({"metadata": meta("c"), "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}});
            bound["metadata"]["name"] = claim.into();
            objects.apply::<PersistentVolumeClaim>(serde_json::from_value(bound).unwrap());
            let source = if is_ephemeral {
                json!([{"name": "data", "ephemeral": {}}])
            } else {
                json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}])
            };
            let pod = json!({"metadata": meta("p"), "spec": {"nodeName": "n1", "volumes": source}});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            let given = given_before(&pod, &objects, || vec![("v".into(), was.clone())]);
            let given = given.iter().flat_map(|given| &given.volumes).map(|(id, _)| id).next();
            assert_eq!(given, expected, "{zone}, {uid}, ephemeral: {is_ephemeral}");
        }
    }
}
