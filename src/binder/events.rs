//! Events of the binder, their type, reason and text (pv-binder §10, L18): those of reasons, which are in the tables of
//! [`super::reasons`], and all others.
//!
//! In: an object, and the value that was decided about it. Out: an [`Event`]. Reasons and texts are KCM's where it has
//! one. Logs and the debug page show the same texts.

use apiserver::{
    call::CallError,
    events::{Event, EventType, Involved, Novelty},
    ids::VolumeName,
    kinds::{ClaimRef, Narrow, PersistentVolume, PersistentVolumeClaim, ReclaimPolicy},
};

use super::{
    failure::{Failure, Task},
    reasons::{ClaimReason, ReasonEvent, ReasonRow, Unprovisioned},
};
use crate::binder::calls::WriteKind;

/// A Normal event about an object.
pub fn normal<T: Narrow>(object: &T, reason: &'static str, message: String) -> Event {
    Event::new(Involved::object(object), EventType::Normal, reason, message)
}

/// A Warning event about an object.
pub fn warning<T: Narrow>(object: &T, reason: &'static str, message: String) -> Event {
    Event::new(Involved::object(object), EventType::Warning, reason, message)
}

/// The event about an object that waits, or has failed, for a reason with this row and text, if it has one.
pub fn of<T: Narrow>(object: &T, (_, told, _): ReasonRow, text: &impl ToString) -> Option<Event> {
    match told {
        ReasonEvent::Silent => None,
        ReasonEvent::Normal(reason) => Some(normal(object, reason, text.to_string())),
        ReasonEvent::Warning(reason) => Some(warning(object, reason, text.to_string())),
        ReasonEvent::Standing(reason) => {
            Some(Event { novelty: Novelty::Standing, ..warning(object, reason, text.to_string()) })
        }
    }
}

/// A plugin here made no volume for a claim.
pub fn not_provisioned(claim: &PersistentVolumeClaim, why: &Unprovisioned) -> Event {
    warning(claim, why.event(), why.to_string())
}

/// Claim and volume have different volume modes: an event on each. That on the volume, which people of all namespaces may
/// read, does not name the claim (S41).
pub fn modes_differ(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> [Event; 2] {
    let on_volume =
        "Cannot bind PersistentVolume to requested PersistentVolumeClaim due to incompatible volumeMode.";
    let on_claim = format!(
        "Cannot bind PersistentVolume {:?} to requested PersistentVolumeClaim due to incompatible volumeMode.",
        &*volume.metadata.name
    );
    [warning(volume, "VolumeMismatch", on_volume.to_owned()), warning(claim, "VolumeMismatch", on_claim)]
}

/// The claim is Lost: KCM's event to the letter, and one that says what happened and what can be done, if the volume, as far as it is
/// seen, refers to a claim of this name. One that refers to a claim of another name was handed to that one, as volume
/// populators do, and is not to be taken from it.
pub fn lost(claim: &PersistentVolumeClaim, why: &ClaimReason, refers: Option<&ClaimRef>) -> [Event; 2] {
    let (stock, reason, text) = match why {
        ClaimReason::LostVolume(volume) => (
            "ClaimLost",
            "LostVolumeMissing",
            format!(
                "There is no volume {:?} any more; nothing was deleted because of that. If it comes back with a \
                 claimRef of UID {}, the claim is Bound again.",
                volume.as_str(),
                claim.metadata.uid
            ),
        ),
        ClaimReason::Misbound(volume, _) if refers.is_none_or(|other| other.key() != claim.key()) => (
            "ClaimMisbound",
            "LostMisbound",
            format!(
                "Volume {:?} is there, but its claimRef has the name of another claim, as after a volume populator \
                 has handed it over; nothing was deleted because of that. While that claim keeps the volume, \
                 nothing has to be done for this one.",
                volume.as_str()
            ),
        ),
        ClaimReason::Misbound(volume, _) => (
            "ClaimMisbound",
            "LostMisbound",
            format!(
                "Volume {:?} is there, but its claimRef has the UID of another claim; nothing was deleted because \
                 of that. If the volume belongs to this claim, setting spec.claimRef.uid to {} makes the claim \
                 Bound again.",
                volume.as_str(),
                claim.metadata.uid
            ),
        ),
        _ => (
            "ClaimLost",
            "LostReference",
            "The claim was bound, but its spec.volumeName is empty; nothing was deleted because of that."
                .to_owned(),
        ),
    };
    [warning(claim, stock, why.to_string()), normal(claim, reason, text)]
}

/// A request about a claim, or about the volume that it waits for, failed. The reason is KCM's where it has one.
pub fn failed_for_claim(claim: &PersistentVolumeClaim, failure: &Failure) -> Event {
    let reason = match &failure.task {
        Task::Write(WriteKind::AskProvisioner | WriteKind::CreateVolume | WriteKind::Reschedule)
        | Task::ReadClass(_) => "ProvisioningFailed",
        Task::Write(_) | Task::Read => "FailedBinding",
    };
    warning(claim, reason, failure.text())
}

/// A request about a volume for which no claim waits failed. The reason is KCM's where it has one.
pub fn failed_for_volume(volume: &PersistentVolume, failure: &Failure) -> Event {
    let reclaims = match &failure.task {
        Task::Write(kind) => matches!(
            kind,
            WriteKind::VolumeReleased
                | WriteKind::VolumeFailed
                | WriteKind::CreatePod
                | WriteKind::StartPod
                | WriteKind::DeletePod
                | WriteKind::DeleteVolume
        ),
        Task::Read => true,
        Task::ReadClass(_) => false,
    };
    let reason = match volume.spec.reclaim_policy {
        ReclaimPolicy::Delete if reclaims => "VolumeFailedDelete",
        ReclaimPolicy::Recycle if reclaims => "VolumeFailedRecycle",
        _ => "FailedUpdate",
    };
    // Of another object than the volume only people of its namespace may know (S41).
    let text = match &failure.task {
        Task::Read if !failure.object.starts_with("pv/") => {
            format!("could not read what the volume is for: {}", failure.of_outcome().words)
        }
        _ if says_whose(&failure.words, volume) => failure.of_outcome().text(),
        _ => failure.text(),
    };
    warning(volume, reason, text)
}

/// Whether somebody names the claim that a volume refers to, or its namespace.
fn says_whose(words: &str, volume: &PersistentVolume) -> bool {
    let is_of_name = |char: char| char.is_alphanumeric() || "-.".contains(char);
    let mut words = words.split(|char| !is_of_name(char)).map(|word| word.trim_matches('.'));
    let is_its =
        |of: &ClaimRef| words.any(|word| of.name == word || word.split('.').any(|part| of.namespace == part));
    volume.spec.claim_ref.as_ref().is_some_and(is_its)
}

/// A pod with the name of a recycler pod is there that is not of this run.
pub const OLD_POD: &str = "old recycler pod found, will retry later";

/// The recycler pod is gone before it was done.
pub const POD_DELETED: &str = "failed to recycle volume: recycler pod was deleted";

/// The recycler pod was not created.
pub fn pod_refused(error: &CallError) -> String {
    format!("unexpected error creating recycler pod:  {error}")
}

/// The recycler pod failed, and said this.
pub fn pod_failed(message: &str) -> String {
    if message.is_empty() {
        return "failed to recycle volume: pod failed, pod.Status.Message unknown".to_owned();
    }
    format!("failed to recycle volume: {message}")
}

pub fn recycled(volume: &PersistentVolume) -> Event {
    normal(volume, "VolumeRecycled", "Volume recycled".to_owned())
}

/// What is told about a recycler pod is told about its volume, too.
pub fn recycler_pod(volume: Involved, is_warning: bool, message: &str) -> Event {
    let r#type = if is_warning { EventType::Warning } else { EventType::Normal };
    Event::new(volume, r#type, "RecyclerPod", format!("Recycler pod: {message}"))
}

/// A volume was made for a claim.
pub fn provisioned(claim: &PersistentVolumeClaim, volume: &VolumeName, plugin: &str) -> Event {
    let text = format!("Successfully provisioned volume {volume} using {plugin}");
    normal(claim, "ProvisioningSucceeded", text)
}
