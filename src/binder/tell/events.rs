//! Every event of the binder, its type, reason and text, and the texts of all reasons (pv-binder §10, L18).
//!
//! In: an object, and the value that was decided about it. Out: an [`Event`]. Reasons and texts are KCM's where it has
//! one. Logs and the debug page show the same texts. Only why a plugin refuses a claim is
//! said by the plugin itself.

use std::fmt;

use apiserver::{
    call::CallError,
    events::{Event, EventType, Involved, Novelty},
    ids::{PodKey, VolumeName},
    kinds::{ClaimRef, Malformed, Narrow, PersistentVolume, PersistentVolumeClaim, ReclaimPolicy},
};

use super::{
    failure::{Failure, Task},
    reason::{ClaimReason, HeldBack, Unprovisioned, Unreclaimable, VolumeReason},
};
use crate::binder::{calls::WriteKind, matching::predicate::Mismatch};

/// A Normal event about an object.
#[must_use]
pub fn normal<T: Narrow>(object: &T, reason: &'static str, message: String) -> Event {
    event(Involved::object(object), EventType::Normal, reason, message)
}

/// A Warning event about an object.
#[must_use]
pub fn warning<T: Narrow>(object: &T, reason: &'static str, message: String) -> Event {
    event(Involved::object(object), EventType::Warning, reason, message)
}

fn event(involved: Involved, r#type: EventType, reason: &'static str, message: String) -> Event {
    Event { involved, r#type, reason, message, novelty: Novelty::default(), subject: None }
}

/// The event about a claim that waits for this reason, if the reason has one.
#[must_use]
pub fn of_claim(claim: &PersistentVolumeClaim, why: &ClaimReason) -> Option<Event> {
    let normal = |reason| Some(normal(claim, reason, why.to_string()));
    let warning = |reason| Some(warning(claim, reason, why.to_string()));
    match why {
        ClaimReason::HeldBack(why) => held_back(claim, why),
        ClaimReason::NoVolume => normal("FailedBinding"),
        ClaimReason::NamedTaken(..)
        | ClaimReason::NoCapacity(_)
        | ClaimReason::Unreadable(_)
        | ClaimReason::UnknownBindingMode(_) => warning("FailedBinding"),
        ClaimReason::NamedMissing(_) => normal("NamedVolumeMissing"),
        ClaimReason::NamedMismatched(..) => warning("VolumeMismatch"),
        // Of another volume mode, claim and volume get events when the volume is looked at.
        ClaimReason::HoldsMismatched(_, mismatch) if *mismatch != Mismatch::VolumeMode => {
            warning("VolumeMismatch")
        }
        ClaimReason::HoldsOther(_) | ClaimReason::Uncertain(_) => normal(why.code()),
        ClaimReason::WaitsForFirstConsumer => normal("WaitForFirstConsumer"),
        ClaimReason::WaitsForPods(_) => normal("WaitForPodScheduled"),
        ClaimReason::WaitsForProvisioner(_) => normal("ExternalProvisioning"),
        ClaimReason::ProvisioningOff => normal("DynamicProvisioningDisabled"),
        ClaimReason::NoClass(_)
        | ClaimReason::NoProvisioner(_)
        | ClaimReason::CannotProvision(_)
        | ClaimReason::OtherProvisioner { .. } => warning("ProvisioningFailed"),
        ClaimReason::NotProvisioned(why) => Some(not_provisioned(claim, why)),
        ClaimReason::HoldsMismatched(..)
        | ClaimReason::Bound(_)
        | ClaimReason::Annotating
        | ClaimReason::ObjectUnreadable(_)
        | ClaimReason::ProvingClass(_)
        | ClaimReason::Binding(..)
        | ClaimReason::VolumeBusy(_)
        | ClaimReason::AssigningClass(_)
        | ClaimReason::Provisioning(_)
        | ClaimReason::LostReference
        | ClaimReason::LostVolume(_)
        | ClaimReason::Misbound(..)
        | ClaimReason::ProvingLost(_) => None,
    }
}

/// The event about a volume that waits, or has failed, for this reason, if the reason has one.
#[must_use]
pub fn of_volume(volume: &PersistentVolume, why: &VolumeReason) -> Option<Event> {
    let warning = |reason| Some(warning(volume, reason, why.to_string()));
    match why {
        VolumeReason::HeldBack(why) => held_back(volume, why),
        VolumeReason::NotReclaimable(Unreclaimable::NoRecycler) | VolumeReason::RecycleFailed(_) => {
            warning("VolumeFailedRecycle")
        }
        VolumeReason::NotReclaimable(Unreclaimable::UnknownPolicy) => warning("VolumeUnknownReclaimPolicy"),
        VolumeReason::NotReclaimable(
            Unreclaimable::NoDeleter(_)
            | Unreclaimable::CannotDelete(_)
            | Unreclaimable::NoPlugin(_)
            | Unreclaimable::PluginCannotDelete,
        )
        | VolumeReason::DeleteFailed(_) => warning("VolumeFailedDelete"),
        VolumeReason::UsedByPods(_) => Some(normal(volume, "VolumeFailedRecycle", why.to_string())),
        VolumeReason::Annotating
        | VolumeReason::ObjectUnreadable(_)
        | VolumeReason::Available
        | VolumeReason::Reserved(_)
        | VolumeReason::ClaimBindsNext(_)
        | VolumeReason::ModesDiffer(_)
        | VolumeReason::Bound(_)
        | VolumeReason::Undoing(_)
        | VolumeReason::Proving(_)
        | VolumeReason::Releasing(_)
        | VolumeReason::Retained
        | VolumeReason::LeftToProvisioner
        | VolumeReason::Unreadable(_)
        | VolumeReason::Recycling
        | VolumeReason::LeftoverPod(_)
        | VolumeReason::Deleting => None,
    }
}

/// After a restore nothing is wrong with the object.
fn held_back<T: Narrow>(object: &T, why: &HeldBack) -> Option<Event> {
    let event = match why {
        HeldBack::Undone { is_news: false, .. } => return None,
        HeldBack::ForeignWriter { .. } | HeldBack::Undone { .. } => warning,
        HeldBack::Restored { .. } => normal,
    };
    Some(event(object, why.code(), why.to_string()))
}

/// A plugin here made no volume for a claim.
#[must_use]
pub fn not_provisioned(claim: &PersistentVolumeClaim, why: &Unprovisioned) -> Event {
    let reason = match why {
        Unprovisioned::Refused(_) | Unprovisioned::Failed { .. } | Unprovisioned::NotCreated { .. } => {
            "ProvisioningFailed"
        }
        Unprovisioned::NotCleaned { .. } => "ProvisioningCleanupFailed",
    };
    warning(claim, reason, why.to_string())
}

/// Claim and volume have different volume modes: an event on each.
#[must_use]
pub fn modes_differ(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> [Event; 2] {
    let on_volume = format!(
        "Cannot bind PersistentVolume to requested PersistentVolumeClaim {:?} due to incompatible volumeMode.",
        &*claim.metadata.name
    );
    let on_claim = format!(
        "Cannot bind PersistentVolume {:?} to requested PersistentVolumeClaim due to incompatible volumeMode.",
        &*volume.metadata.name
    );
    [warning(volume, "VolumeMismatch", on_volume), warning(claim, "VolumeMismatch", on_claim)]
}

/// The claim is Lost: KCM's event to the letter, and one that says what happened and what can be done, if the volume, as far as it is
/// seen, refers to a claim of this name. One that refers to a claim of another name was handed to that one, as volume
/// populators do, and is not to be taken from it.
#[must_use]
pub fn lost(claim: &PersistentVolumeClaim, why: &ClaimReason, refers: Option<&ClaimRef>) -> [Event; 2] {
    let (stock, reason, text) = match why {
        ClaimReason::LostVolume(volume) => (
            "ClaimLost",
            "LostVolumeMissing",
            format!(
                "There is no volume {:?} any more; nothing was deleted because of that. If it comes back with a \
                 claimRef of UID {} or without one, the claim is Bound again.",
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
#[must_use]
pub fn failed_for_claim(claim: &PersistentVolumeClaim, failure: &Failure) -> Event {
    let reason = match &failure.task {
        Task::Write(WriteKind::AskProvisioner | WriteKind::CreateVolume | WriteKind::Reschedule)
        | Task::ReadClass(_) => "ProvisioningFailed",
        Task::Write(_) | Task::Read => "FailedBinding",
    };
    warning(claim, reason, failure.text())
}

/// A request about a volume for which no claim waits failed. The reason is KCM's where it has one.
#[must_use]
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
    warning(volume, reason, failure.text())
}

/// So many pods that a claim waits for are named, and each change of them is told.
const NAMED_PODS: usize = 3;

/// A pod with the name of a recycler pod is there that is not of this run.
pub const OLD_POD: &str = "old recycler pod found, will retry later";

/// The recycler pod is gone before it was done.
pub const POD_DELETED: &str = "failed to recycle volume: recycler pod was deleted";

/// The recycler pod was not created.
#[must_use]
pub fn pod_refused(error: &CallError) -> String {
    format!("unexpected error creating recycler pod:  {error}")
}

/// The recycler pod failed, and said this.
#[must_use]
pub fn pod_failed(message: &str) -> String {
    if message.is_empty() {
        return "failed to recycle volume: pod failed, pod.Status.Message unknown".to_owned();
    }
    format!("failed to recycle volume: {message}")
}

#[must_use]
pub fn recycled(volume: &PersistentVolume) -> Event {
    normal(volume, "VolumeRecycled", "Volume recycled".to_owned())
}

/// What is told about a recycler pod is told about its volume, too.
#[must_use]
pub fn recycler_pod(volume: Involved, is_warning: bool, message: &str) -> Event {
    let r#type = if is_warning { EventType::Warning } else { EventType::Normal };
    event(volume, r#type, "RecyclerPod", format!("Recycler pod: {message}"))
}

/// A volume was made for a claim.
#[must_use]
pub fn provisioned(claim: &PersistentVolumeClaim, volume: &VolumeName, plugin: &str) -> Event {
    let text = format!("Successfully provisioned volume {volume} using {plugin}");
    normal(claim, "ProvisioningSucceeded", text)
}

impl Failure {
    #[must_use]
    pub fn text(&self) -> String {
        let Self { object, words, .. } = self;
        match &self.task {
            // KCM: pkg/controller/volume/persistentvolume/pv_controller.go, provisionClaimOperationExternal.
            Task::Write(WriteKind::AskProvisioner) => format!("Error saving claim: {words}"),
            Task::Write(kind) => format!("could not {}, a write to {object}: {words}", aim(*kind)),
            Task::Read => format!("could not read {object}: {words}"),
            Task::ReadClass(class) => {
                format!("storage class {:?} could not be read: {words}", class.as_str())
            }
        }
    }
}

/// What a write is to achieve.
fn aim(kind: WriteKind) -> &'static str {
    match kind {
        WriteKind::ReserveVolume => "reserve the volume",
        WriteKind::VolumeBound => "set the volume to Bound",
        WriteKind::NameVolume => "name the volume in the claim",
        WriteKind::ClaimBound => "set the claim to Bound",
        WriteKind::ClaimPending => "set the claim to Pending",
        WriteKind::ClaimLost => "set the claim to Lost",
        WriteKind::AssignClass => "give the claim the default class",
        WriteKind::Annotate => "put annotations and finalizers right",
        WriteKind::AskProvisioner => "hand the claim to its provisioner",
        WriteKind::VolumeAvailable => "set the volume to Available",
        WriteKind::VolumeReleased => "set the volume to Released",
        WriteKind::VolumeFailed => "set the volume to Failed",
        WriteKind::Unbind => "take the claim off the volume",
        WriteKind::CreatePod => "create the recycler pod",
        WriteKind::StartPod => "start the recycler pod",
        WriteKind::DeletePod => "delete the recycler pod",
        WriteKind::CreateVolume => "create the volume",
        WriteKind::DeleteVolume => "delete the volume",
        WriteKind::Reschedule => "ask the scheduler for another node",
    }
}

impl Mismatch {
    /// The tail of the VolumeMismatch event for a volume named by the user (pv-binder §2.1.B-2).
    #[must_use]
    pub fn text(self, volume: &str) -> String {
        match self {
            Self::Taken => "the volume belongs to another claim".to_owned(),
            Self::Terminating => format!("the volume is marked for deletion {volume:?}"),
            Self::TooSmall => "requested PV is too small".to_owned(),
            Self::Class => "storageClassName does not match".to_owned(),
            Self::Attributes => "volumeAttributesClassName does not match".to_owned(),
            Self::VolumeMode => "incompatible volumeMode".to_owned(),
            Self::AccessModes => "incompatible accessMode".to_owned(),
            Self::Phase => "the volume is not available".to_owned(),
            Self::Selector => "the selector does not match".to_owned(),
        }
    }
}

impl fmt::Display for HeldBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForeignWriter { by, .. } => write!(
                f,
                "nothing is taken back or given up while another writes what only the binder should: {by}"
            ),
            Self::Restored { .. } => f.write_str(
                "nothing is taken back or given up for five minutes after a restore of etcd from a backup",
            ),
            Self::Undone { write, by, .. } => write!(
                f,
                "{} undoes each write to {}: it is repeated after a pause of up to half a minute",
                by.as_deref().unwrap_or("another writer, which the object does not show,"),
                aim(*write)
            ),
        }
    }
}

impl fmt::Display for ClaimReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bound(volume) => write!(f, "bound to {volume}"),
            Self::Annotating => f.write_str("annotations are put right first"),
            Self::HeldBack(why) => why.fmt(f),
            Self::ObjectUnreadable(what) => write!(f, "an object cannot be read: {what}"),
            Self::ProvingClass(class) => write!(f, "asking the API server for storage class {class}"),
            Self::Binding(volume, write) => write!(f, "binding to {volume}: {}", write.as_str()),
            Self::NoCapacity(volume) => {
                write!(f, "PersistentVolume {:?} is without a storage capacity", volume.as_str())
            }
            Self::VolumeBusy(volume) => write!(f, "a write to {volume} is under way"),
            Self::HoldsOther(volume) => write!(f, "volume {volume} has to be given back first"),
            Self::HoldsMismatched(volume, mismatch) => {
                let wrong = match mismatch {
                    Mismatch::TooSmall => "it is too small".to_owned(),
                    mismatch => mismatch.text(volume.as_str()),
                };
                write!(f, "volume {volume} is reserved for the claim: {wrong}")
            }
            Self::NoVolume => {
                f.write_str("no persistent volumes available for this claim and no storage class is set")
            }
            Self::AssigningClass(class) => write!(f, "assigning the default class {class}"),
            Self::WaitsForFirstConsumer => {
                f.write_str("waiting for first consumer to be created before binding")
            }
            Self::WaitsForPods(pods) => {
                let names: Vec<&str> = pods.iter().map(PodKey::name).collect();
                let (noun, names) = match names.len() {
                    1 => ("pod", names.join(",")),
                    2..=NAMED_PODS => ("pods", names.join(",")),
                    // One more or one less is no news.
                    _ => ("one of the pods", "that use it".to_owned()),
                };
                write!(f, "waiting for {noun} {names} to be scheduled")
            }
            Self::WaitsForProvisioner(provisioner) => write!(
                f,
                "Waiting for a volume to be created either by the external provisioner '{provisioner}' or \
                 manually by the system administrator. If volume creation is delayed, please verify that the \
                 provisioner is running and correctly registered."
            ),
            Self::ProvisioningOff => f.write_str("no volume fits and dynamic provisioning is off"),
            Self::NoClass(class) => write!(f, "storageclass.storage.k8s.io {:?} not found", class.as_str()),
            Self::NoProvisioner(provisioner) => {
                write!(f, "no volume plugin matched name: {provisioner}")
            }
            Self::CannotProvision(_) => f.write_str("no provisionable volume plugin matched"),
            Self::Provisioning(plugin) => write!(f, "{plugin} makes a volume"),
            Self::NotProvisioned(why) => why.fmt(f),
            Self::Uncertain(volume) => {
                write!(f, "volume {volume} may become the claim's: a write of that kind was not answered")
            }
            Self::OtherProvisioner { asked, wanted } => write!(
                f,
                "the claim was handed to provisioner {asked:?}, and its storage class now names {wanted:?}"
            ),
            Self::NamedMissing(volume) => {
                write!(f, "volume {:?}, which the claim names, does not exist", volume.as_str())
            }
            Self::NamedTaken(volume, _) => {
                write!(f, "volume {:?} already bound to a different claim.", volume.as_str())
            }
            Self::NamedMismatched(volume, mismatch) => write!(
                f,
                "Cannot bind to requested volume {:?}: {}",
                volume.as_str(),
                mismatch.text(volume.as_str())
            ),
            Self::LostReference => {
                f.write_str("Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
            }
            Self::LostVolume(_) => {
                f.write_str("Bound claim has lost its PersistentVolume. Data on the volume is lost!")
            }
            Self::Misbound(..) => {
                f.write_str("Two claims are bound to the same volume, this one is bound incorrectly")
            }
            Self::ProvingLost(volume) => write!(f, "asking the API server for volume {volume}"),
            Self::Unreadable(what) => what.fmt(f),
            Self::UnknownBindingMode(class) => {
                write!(f, "VolumeBindingMode not set for StorageClass {:?}", class.as_str())
            }
        }
    }
}

impl fmt::Display for Unprovisioned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(text) => f.write_str(text),
            Self::Failed { class, error } => {
                write!(f, "Failed to provision volume with StorageClass {class:?}: {error}")
            }
            Self::NotCreated { claim, error } => {
                write!(
                    f,
                    "Error creating provisioned PV object for claim {claim}: {error}. Deleting the volume."
                )
            }
            Self::NotCleaned { claim, error } => {
                write!(
                    f,
                    "Error cleaning provisioned volume for claim {claim}: {error}. Please delete manually."
                )
            }
        }
    }
}

impl fmt::Display for VolumeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Annotating => f.write_str("annotations and finalizers are put right first"),
            Self::HeldBack(why) => why.fmt(f),
            Self::ObjectUnreadable(what) => write!(f, "an object cannot be read: {what}"),
            Self::Available => f.write_str("free"),
            Self::Reserved(claim) => write!(f, "reserved for {claim}"),
            Self::ClaimBindsNext(claim) => write!(f, "it is kept for claim {claim}"),
            Self::ModesDiffer(claim) => write!(f, "claim {claim} asks for another volumeMode"),
            Self::Bound(claim) => write!(f, "bound to {claim}"),
            Self::Undoing(claim) => write!(f, "claim {claim} takes another volume"),
            Self::Proving(claim) => write!(f, "asking the API server for claim {claim}"),
            Self::Releasing(claim) => write!(f, "claim {claim} is gone, or does not take it"),
            Self::Retained => f.write_str("released and kept, as its reclaim policy says"),
            Self::LeftToProvisioner => f.write_str("released; its provisioner deletes it"),
            Self::Unreadable(Malformed { key, error }) => {
                write!(f, "released, and left alone, as its source {key} cannot be read: {error}")
            }
            Self::NotReclaimable(why) => why.fmt(f),
            Self::UsedByPods(pods) => {
                let names: Vec<String> = pods.iter().map(ToString::to_string).collect();
                write!(f, "Volume is used by pods: {}", names.join(","))
            }
            Self::Recycling => f.write_str("released, and its recycler pod is at work"),
            Self::RecycleFailed(error) => write!(f, "Recycle failed: {error}"),
            Self::LeftoverPod(pod) => write!(f, "recycler pod {pod} of an earlier run has to go first"),
            Self::Deleting => f.write_str("released, and being deleted"),
            Self::DeleteFailed(error) => f.write_str(error),
        }
    }
}

impl fmt::Display for Unreclaimable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDeleter(volume) => write!(
                f,
                "error getting deleter volume plugin for volume {:?}: no volume plugin matched",
                volume.as_str()
            ),
            Self::CannotDelete(volume) => write!(
                f,
                "error getting deleter volume plugin for volume {:?}: no deletable volume plugin matched",
                volume.as_str()
            ),
            Self::NoPlugin(plugin) => write!(f, "no volume plugin matched name: {plugin}"),
            Self::PluginCannotDelete => f.write_str("no deletable volume plugin matched"),
            Self::NoRecycler => f.write_str("No recycler plugin found for the volume!"),
            Self::UnknownPolicy => f.write_str("Volume has unrecognized PersistentVolumeReclaimPolicy"),
        }
    }
}
