//! What the answer to a step of a run means.
//!
//! In: a request of [`super::recycler`] or [`super::host_path`], and what became of it. Out: the run brought
//! up to it, and how its subject goes on; the planner does that as for every request.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    host_path,
    operations::{ClaimStage, Operations, VolumeStage},
    path::Directory,
};
use crate::{
    binder::{
        act::{
            op::{Answer, Call, Op, Purpose},
            write::{Object, Target, Write, WriteKind},
        },
        decide::view::{Progress, Then},
        matching::predicate::held_by,
        tell::{events, reason::Unprovisioned},
    },
    kube_api::{
        call::CallError,
        events::Event,
        ids::VolumeName,
        kinds::{Narrow, PersistentVolume, PersistentVolumeClaim},
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

/// Takes the answer to a step of a run.
pub fn answered(
    operations: &mut Operations,
    op: &Op,
    result: Result<Answer, CallError>,
    objects: &Objects,
    now: Instant,
) -> Progress {
    if op.call.write_kind() == Some(WriteKind::CreatePod) {
        operations.asked();
    }
    if let (Target::Volume(name), Err(_)) = (&op.subject, &result) {
        operations.unproven(name);
    }
    let goes_on = |then: Then| Progress { then, ..Progress::default() };
    match (&op.call, result) {
        (Call::Read { purpose: Purpose::ProveReleased, .. }, Ok(Answer::Volume(volume))) => {
            operations.proven(&volume);
            Progress { answer: Some(Answer::Volume(volume)), ..Progress::default() }
        }
        (Call::Read { purpose: Purpose::SeeWhose, .. }, Ok(Answer::Volume(volume))) => {
            let late = found(&op.subject, &volume, objects);
            Progress { answer: Some(Answer::Volume(volume)), late, ..Progress::default() }
        }
        (Call::Directory(directory), Ok(Answer::Directory(result))) => {
            goes_on(directory_done(operations, &op.subject, directory, result, objects, now))
        }
        (Call::Write(write), Ok(answer)) => {
            advance(operations, &op.subject, write, &answer, objects, now);
            Progress { answer: Some(answer), events: write.then.clone(), ..Progress::default() }
        }
        (Call::Write(write), Err(error)) => {
            if let Some(then) = refused(operations, &op.subject, write, &error, objects, now) {
                return goes_on(then);
            }
            goes_on(match error {
                CallError::AlreadyExists(_) => Then::Read(Purpose::SeeWhose),
                // What the object looks like now is not known, or not what was thought.
                CallError::Unknown(_) | CallError::Conflict(_) => Then::Read(Purpose::Refresh),
                CallError::NotFound(_) => Then::Conflicted,
                error => Then::Pause(error),
            })
        }
        (_, Err(CallError::NotFound(_))) => goes_on(Then::Conflicted),
        (Call::Read { .. }, Err(error)) => goes_on(Then::PauseForRead(error)),
        (_, Err(error)) => goes_on(Then::Pause(error)),
        // An answer of another kind than asked for proves nothing.
        (_, Ok(_)) => goes_on(Then::Failed),
    }
}

/// A write of a run was made.
fn advance(
    operations: &mut Operations,
    subject: &Target,
    write: &Write,
    answer: &Answer,
    objects: &Objects,
    now: Instant,
) {
    match (write.kind, subject, &write.target) {
        (WriteKind::CreatePod, Target::Volume(name), _) => {
            if let (Answer::Pod(pod), Some(volume)) = (answer, objects.volumes.get(name)) {
                operations.pod_created(&volume, pod);
            }
        }
        (WriteKind::StartPod, Target::Volume(name), _) => operations.advance(name, VolumeStage::Started),
        (WriteKind::DeletePod, _, Object::Pod(key)) => operations.pod_deleted(key),
        (WriteKind::DeleteVolume, Target::Volume(name), _) => operations.advance(name, VolumeStage::Deleted),
        (WriteKind::CreateVolume, target, _) => operations.forget(target),
        (WriteKind::Reschedule, ..) => {
            if let Answer::Claim(claim) = answer {
                operations.reschedule(claim, now);
            }
        }
        _ => {}
    }
}

/// A volume has the name of the one that was to be made. If it is the claim's, an earlier try made it and was not
/// answered; if not, the next decision about the claim says so.
fn found(subject: &Target, volume: &PersistentVolume, objects: &Objects) -> Option<Event> {
    let Target::Claim(key) = subject else { return None };
    let claim = objects.claims.get(key)?;
    held_by(volume, &claim).then(|| host_path::succeeded(&claim))
}

/// A refusal that ends a run, or brings it nearer to its end.
fn refused(
    operations: &mut Operations,
    subject: &Target,
    write: &Write,
    error: &CallError,
    objects: &Objects,
    now: Instant,
) -> Option<Then> {
    match (write.kind, subject, error) {
        // Of a creation, "not found" is about the namespace.
        (WriteKind::CreatePod, Target::Volume(name), CallError::Refused { .. } | CallError::NotFound(_)) => {
            volume_failed(operations, name, events::pod_refused(error), objects, now);
            Some(Then::Look)
        }
        (WriteKind::CreatePod, Target::Volume(name), CallError::AlreadyExists(_)) => {
            volume_failed(operations, name, events::OLD_POD.to_owned(), objects, now);
            Some(Then::Look)
        }
        (WriteKind::CreateVolume, Target::Claim(key), CallError::Refused { message, .. }) => {
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
            Some(Then::Look)
        }
        _ => None,
    }
}

/// Something was done to a directory, or not.
fn directory_done(
    operations: &mut Operations,
    subject: &Target,
    directory: &Directory,
    result: Result<(), String>,
    objects: &Objects,
    now: Instant,
) -> Then {
    let key = match subject {
        Target::Claim(key) => key,
        Target::Volume(name) => {
            match result {
                Ok(()) => operations.advance(name, VolumeStage::Done),
                Err(text) => volume_failed(operations, name, text, objects, now),
            }
            return Then::Look;
        }
    };
    let Some(claim) = objects.claims.get(key) else { return Then::Look };
    match (directory, result) {
        (Directory::Make(_), Ok(())) => operations.claim_at(&claim, ClaimStage::Made(0)),
        (Directory::Make(_), Err(text)) => {
            operations.claim_failed(&claim, Unprovisioned::failed(&claim, &text), now);
        }
        (Directory::Remove(_), result) => return removed(operations, &claim, result, now),
    }
    Then::Look
}

/// Storage was removed for which no volume could be created, or not.
fn removed(
    operations: &mut Operations,
    claim: &PersistentVolumeClaim,
    result: Result<(), String>,
    now: Instant,
) -> Then {
    let Some(ClaimStage::Undoing(error, failures)) = operations.of_claim(claim).cloned() else {
        return Then::Look;
    };
    match result {
        Ok(()) => {
            operations.claim_failed(claim, Unprovisioned::NotCreated { claim: claim.key(), error }, now);
        }
        Err(_) if failures + 1 < TRIES => {
            operations.claim_at(claim, ClaimStage::Undoing(error, failures + 1));
            return Then::At(now + PAUSE);
        }
        Err(text) => {
            operations.claim_failed(
                claim,
                Unprovisioned::NotCleaned { claim: claim.key(), error: text },
                now,
            );
        }
    }
    Then::Look
}

fn volume_failed(
    operations: &mut Operations,
    name: &VolumeName,
    text: String,
    objects: &Objects,
    now: Instant,
) {
    if let Some(volume) = objects.volumes.get(name) {
        operations.volume_failed(&volume, text, now);
    }
}
