//! The plugins behind the binder's door: the recycler, and volumes of directories of this machine.
//!
//! In: what the binder asks, objects as they change, and the answers to requests of [`super::recycler`] and
//! [`super::host_path`]. Out: the next step, and how the subject of an answer goes on, where that is not as after every
//! request.

use std::{collections::BTreeMap, time::Duration};

use apiserver::{
    call::CallError,
    events::Involved,
    ids::{PodKey, Uid, VolumeName},
    kinds::{
        ClaimRef, Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim, ReclaimPolicy, StorageClass,
    },
    tables::Objects,
};
use tokio::time::Instant;

use super::{
    operations::{ClaimStage, Operations, VolumeStage},
    options::PluginOptions,
};
use crate::{
    binder::{
        annotations::HOST_PATH_PLUGIN,
        calls::{Answer, Call, Directory, Op, Purpose, Target, Write, WriteKind},
        decide::decision::{ClaimDecision, VolumeDecision},
        events,
        matching::predicate::held_by,
        reasons::Unprovisioned,
        state::{Plugins, State, Then},
    },
    controller::uses::ClaimPods,
};

/// How often the creation of a volume, and then the removal of its storage, is tried.
///
/// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, createProvisionedPVRetryCount.
const TRIES: u32 = 5;

/// Pause between two tries.
///
/// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, createProvisionedPVInterval.
const PAUSE: Duration = Duration::from_secs(10);

/// The recycler and the host-path plugin.
#[derive(Debug, Default)]
pub struct HostPlugins {
    pub(super) options: PluginOptions,
    pub(super) operations: Operations,
    /// Pods that are not over, if volumes are recycled: none is under them.
    pub(super) users: ClaimPods,
}

impl HostPlugins {
    /// Nothing is at work yet.
    pub fn new(options: PluginOptions) -> Self {
        let recyclers = options.recyclers.iter().flat_map(|it| [&it.host_path, &it.nfs]);
        let namespaces = recyclers.map(|recycler| recycler.namespace().to_owned()).collect();
        let operations = Operations::new(namespaces);
        Self { options, operations, users: ClaimPods::default() }
    }
}

impl Plugins for HostPlugins {
    fn provisions(&self, provisioner: &str) -> bool {
        self.options.enable_hostpath_provisioner && provisioner == HOST_PATH_PLUGIN
    }

    fn first(&self, volume: &PersistentVolume, view: &State) -> Option<VolumeDecision> {
        self.leftover(volume, view)
    }

    fn reclaim(
        &self,
        volume: &PersistentVolume,
        reference: &ClaimRef,
        view: &State,
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
        view: &State,
    ) -> Option<ClaimDecision> {
        self.make(claim, class, view)
    }

    fn is_at_work(&self, name: &VolumeName, objects: &Objects) -> bool {
        self.operations.pods_of.of(name.clone()).next().is_some()
            && objects.volumes.get(name).is_some_and(|volume| self.operations.pods(&volume).next().is_some())
    }

    fn pods_at_work(&self, objects: &Objects) -> BTreeMap<Uid, (PodKey, Involved)> {
        let started = self.operations.volumes.iter().filter(|(_, run)| run.stage == VolumeStage::Started);
        let at_work = started.filter_map(|(name, run)| {
            let (key, uid) = run.pod.clone()?;
            Some((uid, (key, Involved::object(&*objects.volumes.get(name)?))))
        });
        at_work.collect()
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
                if objects.claims.get(key).is_none() {
                    self.operations.forget(&Target::Claim(key.clone()));
                }
                Vec::new()
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
        if let (Target::Volume(name), Err(_)) = (&op.subject, result) {
            self.operations.unproven(name);
        }
        match (&op.call, result) {
            (Call::Read { purpose: Purpose::ProveReleased, .. }, Ok(Answer::Volume(volume))) => {
                self.operations.proven(volume);
                None
            }
            // A volume has the name of the one that was to be made. If it is the claim's, an earlier try made it and was
            // not answered; if not, the next decision about the claim says so.
            (Call::Read { purpose: Purpose::SeeWhose, .. }, Ok(Answer::Volume(volume))) => {
                let Target::Claim(key) = &op.subject else { return None };
                let claim = objects.claims.get(key)?;
                held_by(volume, &claim)
                    .then(|| Then::Tell(events::provisioned(&claim, &volume.key(), HOST_PATH_PLUGIN)))
            }
            (Call::Directory(directory), Ok(Answer::Directory(result))) => {
                Some(self.directory_done(&op.subject, directory, result, objects, now))
            }
            (Call::Write(write), result) => self.written(&op.subject, write, result, objects, now),
            _ => None,
        }
    }
}

impl HostPlugins {
    /// What a write of an operation came to: it has got further, or a refusal ends it, or brings it nearer to its end.
    fn written(
        &mut self,
        subject: &Target,
        write: &Write,
        result: &Result<Answer, CallError>,
        objects: &Objects,
        now: Instant,
    ) -> Option<Then> {
        let operations = &mut self.operations;
        match (write.kind, subject, result) {
            (WriteKind::CreatePod, Target::Volume(name), result) => {
                let text = match result {
                    Ok(Answer::Pod(pod)) => {
                        operations.pod_created(&*objects.volumes.get(name)?, pod);
                        return None;
                    }
                    // Of a creation, "not found" is about the namespace.
                    Err(error @ (CallError::Refused { .. } | CallError::NotFound(_))) => {
                        events::pod_refused(error)
                    }
                    Err(CallError::AlreadyExists(_)) => events::OLD_POD.to_owned(),
                    _ => return None,
                };
                return Some(self.volume_failed(name, text, objects, now));
            }
            (WriteKind::StartPod, Target::Volume(name), Ok(_)) => {
                operations.advance(name, VolumeStage::Started);
            }
            (WriteKind::DeletePod, _, Ok(_)) => {
                if let ObjectRef::Pod(key) = &write.target {
                    operations.pod_deleted(key);
                }
            }
            (WriteKind::DeleteVolume, Target::Volume(name), Ok(_)) => {
                operations.advance(name, VolumeStage::Deleted);
            }
            (WriteKind::CreateVolume, target, Ok(_)) => operations.forget(target),
            (WriteKind::CreateVolume, Target::Claim(key), Err(CallError::Refused { message, .. })) => {
                let claim = objects.claims.get(key)?;
                let refusals = match operations.of_claim(&claim) {
                    Some(ClaimStage::Made(refusals)) => refusals + 1,
                    _ => 1,
                };
                if refusals < TRIES {
                    operations.claim_at(&claim, ClaimStage::Made(refusals));
                    return Some(Then::At(now + PAUSE));
                }
                operations.claim_at(&claim, ClaimStage::Undoing(message.clone(), 0));
                return Some(Then::Look);
            }
            (WriteKind::Reschedule, _, Ok(Answer::Claim(claim))) => operations.reschedule(claim, now),
            _ => {}
        }
        None
    }

    /// Something was done to a directory, or not.
    fn directory_done(
        &mut self,
        subject: &Target,
        directory: &Directory,
        result: &Result<(), String>,
        objects: &Objects,
        now: Instant,
    ) -> Then {
        let key = match (subject, result) {
            (Target::Claim(key), _) => key,
            (Target::Volume(name), Ok(())) => {
                self.operations.advance(name, VolumeStage::Done);
                return Then::Look;
            }
            (Target::Volume(name), Err(text)) => return self.volume_failed(name, text.clone(), objects, now),
        };
        let Some(claim) = objects.claims.get(key) else { return Then::Look };
        let operations = &mut self.operations;
        let why = match (directory, result, operations.of_claim(&claim).cloned()) {
            (Directory::Make(_), Ok(()), _) => {
                operations.claim_at(&claim, ClaimStage::Made(0));
                return Then::Look;
            }
            (Directory::Make(_), Err(text), _) => Unprovisioned::failed(&claim, text),
            // Of storage for which no volume could be created.
            (Directory::Remove(_), Ok(()), Some(ClaimStage::Undoing(error, _))) => {
                Unprovisioned::NotCreated { claim: key.clone(), error }
            }
            (Directory::Remove(_), Err(_), Some(ClaimStage::Undoing(error, failures)))
                if failures + 1 < TRIES =>
            {
                operations.claim_at(&claim, ClaimStage::Undoing(error, failures + 1));
                return Then::At(now + PAUSE);
            }
            (Directory::Remove(_), Err(text), Some(ClaimStage::Undoing(..))) => {
                Unprovisioned::NotCleaned { claim: key.clone(), error: text.clone() }
            }
            (Directory::Remove(_), ..) => return Then::Look,
        };
        operations.claim_failed(&claim, why, now);
        Then::Look
    }

    /// What was to be done to a volume failed.
    fn volume_failed(&mut self, name: &VolumeName, text: String, objects: &Objects, now: Instant) -> Then {
        if let Some(volume) = objects.volumes.get(name) {
            self.operations.volume_failed(&volume, text, now);
        }
        Then::Look
    }
}
