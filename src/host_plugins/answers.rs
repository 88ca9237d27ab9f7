//! What the answer to a step of an operation means.
//!
//! In: a request of [`super::recycler`] or [`super::host_path`], and what became of it. Out: the operation brought up to
//! it, and how its subject goes on, where that is not as after every request.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    host_path,
    operations::{ClaimStage, VolumeStage},
    plugins::HostPlugins,
};
use crate::{
    binder::{
        act::{
            op::{Answer, Call, Directory, Op, Purpose},
            write::{Object, Target, Write, WriteKind},
        },
        decide::view::Then,
        matching::predicate::held_by,
        tell::{events, reason::Unprovisioned},
    },
    kube_api::{
        call::CallError,
        ids::VolumeName,
        kinds::{Narrow, PersistentVolumeClaim},
    },
    state::Objects,
};

/// How often the creation of a volume, and then the removal of its storage, is tried.
///
/// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, createProvisionedPVRetryCount.
const TRIES: u32 = 5;

/// Pause between two tries.
///
/// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, createProvisionedPVInterval.
const PAUSE: Duration = Duration::from_secs(10);

impl HostPlugins {
    /// Takes the answer to a step of an operation.
    pub(super) fn take_answer(
        &mut self,
        op: &Op,
        result: &Result<Answer, CallError>,
        objects: &Objects,
        now: Instant,
    ) -> Option<Then> {
        if op.call.write_kind() == Some(WriteKind::CreatePod) {
            self.operations.asked();
        }
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
                held_by(volume, &claim).then(|| Then::Tell(host_path::succeeded(&claim)))
            }
            (Call::Directory(directory), Ok(Answer::Directory(result))) => {
                Some(self.directory_done(&op.subject, directory, result, objects, now))
            }
            (Call::Write(write), Ok(answer)) => {
                self.advance(&op.subject, write, answer, objects, now);
                None
            }
            (Call::Write(write), Err(error)) => self.refused(&op.subject, write, error, objects, now),
            _ => None,
        }
    }

    /// A write of an operation was made.
    fn advance(&mut self, subject: &Target, write: &Write, answer: &Answer, objects: &Objects, now: Instant) {
        let operations = &mut self.operations;
        match (write.kind, subject, &write.target, answer) {
            (WriteKind::CreatePod, Target::Volume(name), _, Answer::Pod(pod)) => {
                if let Some(volume) = objects.volumes.get(name) {
                    operations.pod_created(&volume, pod);
                }
            }
            (WriteKind::StartPod, Target::Volume(name), ..) => operations.advance(name, VolumeStage::Started),
            (WriteKind::DeletePod, _, Object::Pod(key), _) => operations.pod_deleted(key),
            (WriteKind::DeleteVolume, Target::Volume(name), ..) => {
                operations.advance(name, VolumeStage::Deleted);
            }
            (WriteKind::CreateVolume, target, ..) => operations.forget(target),
            (WriteKind::Reschedule, _, _, Answer::Claim(claim)) => operations.reschedule(claim, now),
            _ => {}
        }
    }

    /// A refusal that ends an operation, or brings it nearer to its end.
    fn refused(
        &mut self,
        subject: &Target,
        write: &Write,
        error: &CallError,
        objects: &Objects,
        now: Instant,
    ) -> Option<Then> {
        match (write.kind, subject, error) {
            // Of a creation, "not found" is about the namespace.
            (
                WriteKind::CreatePod,
                Target::Volume(name),
                CallError::Refused { .. } | CallError::NotFound(_),
            ) => Some(self.volume_failed(name, events::pod_refused(error), objects, now)),
            (WriteKind::CreatePod, Target::Volume(name), CallError::AlreadyExists(_)) => {
                Some(self.volume_failed(name, events::OLD_POD.to_owned(), objects, now))
            }
            (WriteKind::CreateVolume, Target::Claim(key), CallError::Refused { message, .. }) => {
                let claim = objects.claims.get(key)?;
                let refusals = match self.operations.of_claim(&claim) {
                    Some(ClaimStage::Made(refusals)) => refusals + 1,
                    _ => 1,
                };
                if refusals < TRIES {
                    self.operations.claim_at(&claim, ClaimStage::Made(refusals));
                    return Some(Then::At(now + PAUSE));
                }
                self.operations.claim_at(&claim, ClaimStage::Undoing(message.clone(), 0));
                Some(Then::Look)
            }
            _ => None,
        }
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
        match (directory, result) {
            (Directory::Make(_), Ok(())) => self.operations.claim_at(&claim, ClaimStage::Made(0)),
            (Directory::Make(_), Err(text)) => {
                self.operations.claim_failed(&claim, Unprovisioned::failed(&claim, text), now);
            }
            (Directory::Remove(_), result) => return self.removed(&claim, result, now),
        }
        Then::Look
    }

    /// Storage was removed for which no volume could be created, or not.
    fn removed(&mut self, claim: &PersistentVolumeClaim, result: &Result<(), String>, now: Instant) -> Then {
        let Some(ClaimStage::Undoing(error, failures)) = self.operations.of_claim(claim).cloned() else {
            return Then::Look;
        };
        let why = match result {
            Ok(()) => Unprovisioned::NotCreated { claim: claim.key(), error },
            Err(_) if failures + 1 < TRIES => {
                self.operations.claim_at(claim, ClaimStage::Undoing(error, failures + 1));
                return Then::At(now + PAUSE);
            }
            Err(text) => Unprovisioned::NotCleaned { claim: claim.key(), error: text.clone() },
        };
        self.operations.claim_failed(claim, why, now);
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
