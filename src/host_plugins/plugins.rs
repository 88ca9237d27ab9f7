//! The plugins behind the binder's door: the recycler, and volumes of directories of this machine.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::{
    directories::{HostPath, volume_name},
    operations::Operations,
    options::PluginOptions,
};
use crate::{
    binder::{
        act::{
            op::{Answer, Call, Directory, Op},
            write::Target,
        },
        annotations::HOST_PATH_PLUGIN,
        decide::{
            decision::{ClaimDecision, VolumeDecision},
            view::{Plugins, Then, View},
        },
    },
    controller::claim_pods::ClaimPods,
    kube_api::{
        call::CallError,
        events::Involved,
        ids::{ClaimKey, PodKey, Uid, VolumeName},
        kinds::{
            ClaimRef, FileSource, ObjectRef, PersistentVolume, PersistentVolumeClaim, ReclaimPolicy,
            StorageClass,
        },
    },
    state::Objects,
};

/// The recycler and the host-path plugin.
#[derive(Debug, Default)]
pub struct HostPlugins {
    pub(super) options: PluginOptions,
    pub(super) operations: Operations,
    /// Pods that are not over, if volumes are recycled: none is under them.
    pub(super) users: ClaimPods,
}

impl HostPlugins {
    /// Nothing is at work yet. Recycler pods are counted from here on, so that no other process gives one the same name.
    #[must_use]
    pub fn new(options: PluginOptions, count_from: u64) -> Self {
        let recyclers = options.recyclers.iter().flat_map(|it| [&it.host_path, &it.nfs]);
        let namespaces = recyclers.map(|recycler| recycler.namespace().to_owned()).collect();
        let operations = Operations::new(namespaces, count_from);
        Self { options, operations, users: ClaimPods::default() }
    }
}

impl Plugins for HostPlugins {
    fn provisions(&self, provisioner: &str) -> bool {
        self.options.enable_hostpath_provisioner && provisioner == HOST_PATH_PLUGIN
    }

    fn deletes(&self, volume: &PersistentVolume) -> bool {
        self.options.enable_hostpath_provisioner
            && matches!(volume.spec.files.as_deref(), Some(FileSource::HostPath(_)))
    }

    fn first(&self, volume: &PersistentVolume, view: &View<'_>) -> Option<VolumeDecision> {
        self.leftover(volume, view)
    }

    fn reclaim(
        &self,
        volume: &PersistentVolume,
        reference: &ClaimRef,
        view: &View<'_>,
    ) -> Option<VolumeDecision> {
        match volume.spec.reclaim_policy {
            ReclaimPolicy::Delete => Some(self.delete(volume)),
            _ => self.recycle(volume, reference, view),
        }
    }

    fn provision(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        view: &View<'_>,
    ) -> Option<ClaimDecision> {
        self.make(claim, class, view)
    }

    fn is_at_work(&self, name: &VolumeName, objects: &Objects) -> bool {
        self.operations.may_have_pods(name)
            && objects.volumes.get(name).is_some_and(|volume| self.operations.pods(&volume).next().is_some())
    }

    fn volume_of(&self, pod: &PodKey) -> Option<VolumeName> {
        self.operations.recycled_by_pod(pod)
    }

    fn pods_at_work(&self, objects: &Objects) -> BTreeMap<Uid, (PodKey, Involved)> {
        let volume = |name: &VolumeName| Some(Involved::object(&*objects.volumes.get(name)?));
        let started = self.operations.started();
        started.filter_map(|(name, (key, uid))| Some((uid.clone(), (key.clone(), volume(name)?)))).collect()
    }

    fn changed(&mut self, object: &ObjectRef, objects: &Objects, now: Instant) -> Vec<Target> {
        match object {
            ObjectRef::Volume(name) => {
                match objects.volumes.get(name) {
                    Some(volume) => self.operations.volume_seen(&volume),
                    None => self.operations.forget(&Target::Volume(name.clone())),
                }
                Vec::new()
            }
            ObjectRef::Claim(key) => {
                let is_left = objects.claims.get(key).is_none() && self.operations.has_claim(key);
                is_left.then(|| Target::Claim(key.clone())).into_iter().collect()
            }
            ObjectRef::Pod(key) if self.options.recyclers.is_some() => {
                let pod = objects.pods.get(key);
                let user = pod.as_deref().filter(|pod| !pod.is_terminated());
                let [before, after] = self.users.update(key, user);
                let claims = before.symmetric_difference(&after).cloned().map(Target::Claim);
                let volume = self.operations.pod_changed(key, pod.as_deref(), now).map(Target::Volume);
                claims.chain(volume).collect()
            }
            _ => Vec::new(),
        }
    }

    fn claim_gone(&mut self, claim: &ClaimKey, objects: &Objects) -> Option<Call> {
        let left = self.operations.take_leftover(claim);
        self.operations.forget(&Target::Claim(claim.clone()));
        let uid = left.filter(|uid| objects.volumes.get(&volume_name(uid)).is_none())?;
        Some(Call::Directory(Directory::Remove(HostPath::of_claim(&uid)?.to_string())))
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

    fn answered(
        &mut self,
        op: &Op,
        result: &Result<Answer, CallError>,
        objects: &Objects,
        now: Instant,
    ) -> Option<Then> {
        self.take_answer(op, result, objects, now)
    }
}
