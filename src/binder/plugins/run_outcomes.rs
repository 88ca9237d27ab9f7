//! What the planner makes of the outcome of a step of a run.
//!
//! In: a request of [`super::recycler`] or [`super::host_path`], and what became of it. Out: the run brought
//! up to it; what is not particular to runs is done as for every request.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    host_path,
    runs::{ClaimStage, VolumeStage},
};
use crate::{
    binder::{
        act::op::{Answer, Call, Op, Purpose},
        decide::decision::{Directory, Object, Target, Write, WriteKind},
        matching::predicate::held_by,
        planner::Planner,
        tell::reason::Unprovisioned,
    },
    kube_api::{
        call::CallError,
        ids::VolumeName,
        kinds::{Narrow, PersistentVolume, PersistentVolumeClaim},
    },
};

/// How often the creation of a volume, and then the removal of its storage, is tried.
///
/// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, createProvisionedPVRetryCount.
const TRIES: u32 = 5;

/// Pause between two tries.
///
/// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, createProvisionedPVInterval.
const PAUSE: Duration = Duration::from_secs(10);

impl Planner {
    /// Takes in the outcome of a step of a run.
    pub(crate) fn run_outcome(
        &mut self,
        op: Op,
        result: Result<Answer, CallError>,
        now: Instant,
        jitter: f64,
    ) {
        if op.call.write_kind() == Some(WriteKind::CreatePod) {
            self.runs.asked();
        }
        if let (Target::Volume(name), Err(_)) = (&op.subject, &result) {
            self.runs.unproven(name);
        }
        let done = !matches!(op.call, Call::Read { .. }) && result.is_ok();
        if done {
            self.retries.clear(&op.subject);
        }
        match (&op.call, result) {
            (Call::Read { purpose: Purpose::ProveReleased, .. }, Ok(Answer::Volume(volume))) => {
                self.runs.proven(&volume);
                self.absorb(Answer::Volume(volume), now);
            }
            (Call::Read { purpose: Purpose::SeeWhose, .. }, Ok(Answer::Volume(volume))) => {
                self.found(&op.subject, volume, now);
            }
            (Call::Directory(directory), Ok(Answer::Directory(result))) => {
                self.directory(&op.subject, directory, result, now);
            }
            (Call::Write(write), Ok(answer)) => self.advanced(&op.subject, write, answer, now),
            (Call::Write(write), Err(error)) if self.refused(&op.subject, write, &error, now) => {}
            // What the object looks like now is not known, or not what was thought.
            (
                Call::Write(write),
                Err(error @ (CallError::Unknown(_) | CallError::Conflict(_) | CallError::AlreadyExists(_))),
            ) => {
                let target = write.target.clone();
                let known = self.known(&target);
                let exists = matches!(error, CallError::AlreadyExists(_));
                let purpose = if exists { Purpose::SeeWhose } else { Purpose::Refresh };
                let read = Op { call: Call::Read { target, purpose }, known, ..op };
                match self.retries.conflicted(&read.subject, now, jitter) {
                    Some(_) => {
                        self.parked.insert(read.subject.clone(), read);
                    }
                    None => self.ready.push_back(read),
                }
                return;
            }
            (_, Err(CallError::NotFound(_))) => {
                self.retries.conflicted(&op.subject, now, jitter);
            }
            (Call::Read { .. }, Err(error)) => self.wait_for_read(&op.subject, &error, now, jitter),
            (_, Err(error)) => self.wait(&op.subject, &error, now, jitter),
            (_, Ok(_)) => {
                // An answer of another kind than asked for proves nothing.
                self.retries.failed(&op.subject, now, jitter);
            }
        }
        self.release(&op, now);
    }

    /// A write of a run was made.
    fn advanced(&mut self, subject: &Target, write: &Write, answer: Answer, now: Instant) {
        match (write.kind, subject, &write.target) {
            (WriteKind::CreatePod, Target::Volume(name), _) => {
                if let (Answer::Pod(pod), Some(volume)) = (&answer, self.objects.volumes.get(name)) {
                    self.runs.begun(&volume, pod);
                }
            }
            (WriteKind::StartPod, Target::Volume(name), _) => self.runs.advance(name, VolumeStage::Started),
            (WriteKind::DeletePod, _, Object::Pod(key)) => self.runs.pod_deleted(key),
            (WriteKind::DeleteVolume, Target::Volume(name), _) => {
                self.runs.advance(name, VolumeStage::Deleted);
            }
            (WriteKind::CreateVolume, target, _) => self.runs.forget(target),
            (WriteKind::Reschedule, ..) => {
                if let Answer::Claim(claim) = &answer {
                    self.runs.reschedule(claim, now);
                }
            }
            _ => {}
        }
        self.absorb(answer, now);
        self.say(subject, &write.then, now);
    }

    /// A volume has the name of the one that was to be made: an earlier try made it and was not answered, or it
    /// is somebody else's, which the next decision about the claim says.
    fn found(&mut self, subject: &Target, volume: PersistentVolume, now: Instant) {
        if let Target::Claim(key) = subject
            && let Some(claim) = self.objects.claims.get(key)
            && held_by(&volume, &claim)
        {
            self.pending_events.push(host_path::succeeded(&claim));
        }
        self.absorb(Answer::Volume(volume), now);
    }

    /// Deals with a refusal that ends a run, or brings it nearer to its end. Returns whether it did.
    fn refused(&mut self, subject: &Target, write: &Write, error: &CallError, now: Instant) -> bool {
        match (write.kind, subject, error) {
            // Of a creation, "not found" is about the namespace.
            (
                WriteKind::CreatePod,
                Target::Volume(name),
                CallError::Refused { .. } | CallError::NotFound(_),
            ) => {
                self.volume_failed(name, format!("unexpected error creating recycler pod:  {error}"), now);
            }
            (WriteKind::CreatePod, Target::Volume(name), CallError::AlreadyExists(_)) => {
                self.volume_failed(name, "old recycler pod found, will retry later".to_owned(), now);
            }
            (WriteKind::CreateVolume, Target::Claim(key), CallError::Refused { message, .. }) => {
                let Some(claim) = self.objects.claims.get(key) else { return false };
                let refusals = match self.runs.of_claim(&claim) {
                    Some(ClaimStage::Made(refusals)) => refusals + 1,
                    _ => 1,
                };
                if refusals < TRIES {
                    self.runs.claim_at(&claim, ClaimStage::Made(refusals));
                    self.retries.wait_until(subject, now + PAUSE);
                } else {
                    self.runs.claim_at(&claim, ClaimStage::Undoing(message.clone(), 0));
                }
            }
            _ => return false,
        }
        true
    }

    /// Something was done to a directory, or not.
    fn directory(
        &mut self,
        subject: &Target,
        directory: &Directory,
        result: Result<(), String>,
        now: Instant,
    ) {
        match (subject, directory, result) {
            (Target::Volume(name), _, Ok(())) => self.runs.advance(name, VolumeStage::Done),
            (Target::Volume(name), _, Err(text)) => self.volume_failed(name, text, now),
            (Target::Claim(key), directory, result) => {
                let Some(claim) = self.objects.claims.get(key) else { return };
                match (directory, result) {
                    (Directory::Make(_), Ok(())) => self.runs.claim_at(&claim, ClaimStage::Made(0)),
                    (Directory::Make(_), Err(text)) => {
                        self.runs.claim_failed(&claim, Unprovisioned::failed(&claim, &text), now);
                    }
                    (Directory::Remove(_), result) => self.undone(&claim, result, now),
                }
            }
        }
    }

    /// Storage was removed for which no volume could be created, or not.
    fn undone(&mut self, claim: &PersistentVolumeClaim, result: Result<(), String>, now: Instant) {
        let Some(ClaimStage::Undoing(error, failures)) = self.runs.of_claim(claim).cloned() else { return };
        match result {
            Ok(()) => {
                let why = Unprovisioned::NotCreated { claim: claim.key(), error };
                self.runs.claim_failed(claim, why, now);
            }
            Err(_) if failures + 1 < TRIES => {
                self.runs.claim_at(claim, ClaimStage::Undoing(error, failures + 1));
                self.retries.wait_until(&Target::Claim(claim.key()), now + PAUSE);
            }
            Err(text) => {
                let why = Unprovisioned::NotCleaned { claim: claim.key(), error: text };
                self.runs.claim_failed(claim, why, now);
            }
        }
    }

    fn volume_failed(&mut self, name: &VolumeName, text: String, now: Instant) {
        if let Some(volume) = self.objects.volumes.get(name) {
            self.runs.volume_failed(&volume, text, now);
        }
    }
}
