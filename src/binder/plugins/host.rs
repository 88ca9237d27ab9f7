//! The plugins of this binary behind their door: recycling, and volumes of directories of this machine.

use tokio::time::Instant;

use super::{
    answers, host_path,
    operations::Operations,
    options::Recyclers,
    path::{Directory, HostPath, volume_name},
    recycler,
};
use crate::{
    binder::{
        act::{
            op::{Answer, Op},
            write::Target,
        },
        decide::{
            decision::{ClaimDecision, Step, VolumeDecision},
            view::{BinderOptions, Plugins, Progress, View},
        },
        tell::reason::Unprovisioned,
    },
    kube_api::{
        call::CallError,
        ids::{ClaimKey, PodKey, Uid, VolumeName},
        kinds::{ClaimRef, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass},
    },
    state::Objects,
};

/// The recycler and the host-path plugin.
#[derive(Debug, Default)]
pub struct HostPlugins {
    pub(crate) operations: Operations,
}

impl HostPlugins {
    /// Nothing is at work yet.
    #[must_use]
    pub fn new(options: &BinderOptions) -> Self {
        let namespaces = options.recyclers.as_deref().map(Recyclers::namespaces).unwrap_or_default();
        Self { operations: Operations::new(namespaces) }
    }
}

impl Plugins for HostPlugins {
    fn first(&self, volume: &PersistentVolume, view: &View<'_>) -> Option<VolumeDecision> {
        recycler::leftover(volume, view, &self.operations)
    }

    fn recycle(&self, volume: &PersistentVolume, reference: &ClaimRef, view: &View<'_>) -> VolumeDecision {
        recycler::recycle(volume, reference, view, &self.operations)
    }

    fn delete(&self, volume: &PersistentVolume, _view: &View<'_>) -> VolumeDecision {
        host_path::delete(volume, &self.operations)
    }

    fn refuses(&self, claim: &PersistentVolumeClaim) -> Option<Unprovisioned> {
        host_path::refuses(claim)
    }

    fn provision(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        view: &View<'_>,
    ) -> ClaimDecision {
        host_path::provision(claim, class, view, &self.operations)
    }

    fn is_at_work(&self, name: &VolumeName, objects: &Objects) -> bool {
        self.operations.may_have_pods(name)
            && objects.volumes.get(name).is_some_and(|volume| self.operations.pods(&volume).next().is_some())
    }

    fn volume_of(&self, pod: &PodKey) -> Option<VolumeName> {
        self.operations.recycled_by_pod(pod)
    }

    fn pods_at_work(&self) -> Vec<(VolumeName, PodKey, Uid)> {
        let started = self.operations.started();
        started.map(|(name, key, uid)| (name.clone(), key.clone(), uid.clone())).collect()
    }

    fn observe_volume(&mut self, volume: &PersistentVolume) {
        self.operations.volume_seen(volume);
    }

    fn observe_pod(&mut self, key: &PodKey, pod: Option<&Pod>, now: Instant) -> Option<VolumeName> {
        self.operations.pod_changed(key, pod, now)
    }

    fn has_claim(&self, claim: &ClaimKey) -> bool {
        self.operations.has_claim(claim)
    }

    fn claim_gone(&mut self, claim: &ClaimKey, objects: &Objects) -> Option<Step> {
        let left = self.operations.take_leftover(claim);
        self.operations.forget(&Target::Claim(claim.clone()));
        let uid = left.filter(|uid| objects.volumes.get(&volume_name(uid)).is_none())?;
        Some(Step::Directory(Directory::Remove(HostPath::of_claim(&uid)?)))
    }

    fn volume_gone(&mut self, volume: &VolumeName) {
        self.operations.forget(&Target::Volume(volume.clone()));
    }

    fn unproven(&mut self, volume: &VolumeName) {
        self.operations.unproven(volume);
    }

    fn take_due(&mut self, now: Instant) -> Vec<Target> {
        self.operations.take_due(now)
    }

    fn next_due(&self) -> Option<Instant> {
        self.operations.pauses.next_due()
    }

    fn count_from(&mut self, number: u64) {
        self.operations.count_from(number);
    }

    fn answered(
        &mut self,
        op: &Op,
        result: Result<Answer, CallError>,
        objects: &Objects,
        now: Instant,
    ) -> Progress {
        answers::answered(&mut self.operations, op, result, objects, now)
    }
}
