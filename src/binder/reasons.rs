//! Where a claim or a volume stands, and why: the one value that events, log fields, metric labels
//! and explanations are made from (L18).
//!
//! Each reason has its text beside it, and one row in the table of its kind: the code, the event, and what ends the wait.
//! Texts and events are KCM's where it has one; only why a plugin refuses a claim is said by the plugin itself. Events
//! that are about more than the reason are in [`super::events`].

use apiserver::{
    ids::{ClaimKey, ClassName, PodKey, Uid, VolumeName},
    kinds::{Malformed, PersistentVolumeClaim},
};
use thiserror::Error;
use tokio::time::Instant;

use crate::binder::{
    calls::WriteKind,
    matching::predicate::{Mismatch, Unreadable, claim_class},
};

/// What ends the wait for a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// Nothing is left to wait for.
    Nothing,
    /// A free volume that fits, among others.
    FreeVolume,
    /// The deletion of a volume that is Released, and not kept.
    Deletion,
    /// What the reason says.
    Other,
}

use WaitsFor::{Deletion, FreeVolume, Nothing, Other};

/// The event about a reason: its type and reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasonEvent {
    /// There is none.
    Silent,
    /// A Normal event.
    Normal(&'static str),
    /// A Warning.
    Warning(&'static str),
    /// A Warning about what comes and goes: it is written again only before it expires.
    Standing(&'static str),
}

use ReasonEvent::{Normal, Silent, Standing, Warning};

/// The row of a reason: its code (user-experience §3), its event, and what ends the wait.
pub type ReasonRow = (&'static str, ReasonEvent, WaitsFor);

/// Why a write waits that cannot be taken back, or that is undone each time: until the end of the one or the other.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HeldBack {
    /// Another writes what only the binder should, everywhere or here.
    #[error("nothing is taken back or given up while another writes what only the binder should: {0}")]
    ForeignWriter(String),
    /// Etcd was restored from a backup a short while ago (E11).
    #[error("nothing is taken back or given up for five minutes after a restore of etcd from a backup")]
    Restored,
    /// This write was made, and is undone again and again (S46).
    #[error(
        "{} undoes each write to {}: it is repeated after a pause of up to half a minute",
        by.as_deref().unwrap_or("another writer, which the object does not show,"),
        write.aim()
    )]
    Undone {
        write: WriteKind,
        /// The manager that undoes it, if the object shows that.
        by: Option<String>,
    },
}

impl HeldBack {
    /// Its row. The codes are the same as of attach/detach. After a restore nothing is wrong with the object.
    fn row(&self) -> ReasonRow {
        match self {
            Self::ForeignWriter(_) => ("ForeignWriter", Warning("ForeignWriter"), Other),
            Self::Undone { .. } => ("ForeignWriter", Standing("ForeignWriter"), Other),
            Self::Restored => ("RestoreGrace", Normal("RestoreGrace"), Other),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Error)]
pub enum ClaimReason {
    /// Bound, nothing left to do.
    #[error("bound to {0}")]
    Bound(VolumeName),
    /// Its annotations are put right first.
    #[error("annotations are put right first")]
    Annotating,
    /// Something is to be written that has to wait, unless more is seen until then.
    #[error("{0}")]
    HeldBack(HeldBack, Instant),
    /// An object that has a say in this cannot be read (S42): which, and what is wrong with it.
    #[error("an object cannot be read: {0}")]
    ObjectUnreadable(String),
    /// The class is in no table; a live read has to confirm that there is none.
    #[error("asking the API server for storage class {0}")]
    ProvingClass(ClassName),
    /// A bind is on its way.
    #[error("binding to {}: {}", .0, <&str>::from(.1))]
    Binding(VolumeName, WriteKind),
    /// The volume is reserved for the claim, but it has no size.
    #[error("PersistentVolume {:?} is without a storage capacity", .0.as_str())]
    NoCapacity(VolumeName),
    /// Another write to the volume is under way, a pod recycles it, or its newest revision cannot be read.
    #[error("{0} cannot be written to now: a write is under way, a pod recycles it, or it cannot be read")]
    VolumeBusy(VolumeName),
    /// The claim still holds another volume, which is given back first (S19).
    #[error("volume {0} has to be given back first")]
    HoldsOther(VolumeName),
    /// A volume carries the claim's UID but does not suit it.
    #[error("volume {} is reserved for the claim: {}", .0, .1.of_reserved(.0.as_str()))]
    HoldsMismatched(VolumeName, Mismatch),
    /// No volume fits, and there is no class that would provide one.
    #[error("no persistent volumes available for this claim and no storage class is set")]
    NoVolume,
    /// The default class is being assigned.
    #[error("assigning the default class {0}")]
    AssigningClass(ClassName),
    /// The class binds when a pod is scheduled, and no pod waits.
    #[error("waiting for first consumer to be created before binding")]
    WaitsForFirstConsumer,
    /// The class binds when one of these pods is scheduled.
    #[error("waiting for {} to be scheduled", these(.0))]
    WaitsForPods(Vec<PodKey>),
    /// An external provisioner is asked, or about to be.
    #[error(
        "Waiting for a volume to be created either by the external provisioner '{0}' or manually by the system \
         administrator. If volume creation is delayed, please verify that the provisioner is running and correctly \
         registered."
    )]
    WaitsForProvisioner(String),
    #[error("no volume fits and dynamic provisioning is off")]
    ProvisioningOff,
    /// The class does not exist.
    #[error("storageclass.storage.k8s.io {:?} not found", .0.as_str())]
    NoClass(ClassName),
    /// The class names a provisioner that does not exist.
    #[error("no volume plugin matched name: {0}")]
    NoProvisioner(String),
    /// The class names a plugin that is known and does not provision.
    #[error("no provisionable volume plugin matched")]
    CannotProvision(String),
    /// A volume is being made by this plugin, here.
    #[error("{0} makes a volume")]
    Provisioning(&'static str),
    /// The plugin here made no volume.
    #[error("{0}")]
    NotProvisioned(Unprovisioned),
    /// Another volume may become the claim's: a write that would reserve it has not been answered.
    #[error("volume {0} may become the claim's: a write of that kind was not answered")]
    Uncertain(VolumeName),
    /// The claim was handed to one provisioner, and its class now names another (S29).
    #[error("the claim was handed to provisioner {asked:?}, and its storage class now names {wanted:?}")]
    OtherProvisioner { asked: String, wanted: String },
    /// The volume the claim names does not exist.
    #[error("volume {:?}, which the claim names, does not exist", .0.as_str())]
    NamedMissing(VolumeName),
    /// The volume the claim names belongs to another claim.
    #[error("volume {:?} already bound to a different claim.", .0.as_str())]
    NamedTaken(VolumeName, ClaimKey),
    /// The volume the claim names does not suit it.
    #[error("Cannot bind to requested volume {:?}: {}", .0.as_str(), .1.text(.0.as_str()))]
    NamedMismatched(VolumeName, Mismatch),
    /// Was bound, but no longer says to what.
    #[error("Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")]
    LostReference,
    /// Was bound to a volume that is gone.
    #[error("Bound claim has lost its PersistentVolume. Data on the volume is lost!")]
    LostVolume(VolumeName),
    /// Was bound to a volume that now carries this UID.
    #[error("Two claims are bound to the same volume, this one is bound incorrectly")]
    Misbound(VolumeName, Uid),
    /// Was bound to a volume that refers to no claim that takes it, as others say of themselves, too: which is true, nobody
    /// knows.
    #[error(
        "Several claims say that they were bound to volume {:?}, and its claimRef names none of them: it goes to none, \
         until its spec.claimRef names one with its UID",
        .0.as_str()
    )]
    Disputed(VolumeName),
    /// Looks lost; a live read has to confirm it.
    #[error("asking the API server for volume {0}")]
    ProvingLost(VolumeName),
    /// Something in the claim cannot be understood.
    #[error("{0}")]
    Unreadable(Unreadable),
    /// The class does not say when to bind, or says something unknown.
    #[error("VolumeBindingMode not set for StorageClass {:?}", .0.as_str())]
    UnknownBindingMode(ClassName),
}

impl ClaimReason {
    /// Its row in the table. Claims that are Lost have events of their own: [`super::events::lost`].
    pub fn row(&self) -> ReasonRow {
        match self {
            Self::Bound(_) => ("Bound", Silent, Nothing),
            Self::Annotating => ("Annotating", Silent, Other),
            Self::HeldBack(why, _) => why.row(),
            Self::ObjectUnreadable(_) => ("ObjectUnreadable", Silent, Other),
            Self::ProvingClass(_) => ("ConfirmingClass", Silent, Other),
            Self::Binding(..) => ("Binding", Silent, Other),
            Self::NoCapacity(_) => ("NoCapacity", Warning("FailedBinding"), Other),
            Self::VolumeBusy(_) => ("VolumeBusy", Silent, Other),
            Self::HoldsOther(_) => ("HoldsOtherVolume", Normal("HoldsOtherVolume"), Other),
            // Claim and volume get events when the volume is looked at.
            Self::HoldsMismatched(_, Mismatch::VolumeMode) => ("HoldsUnfitVolume", Silent, Other),
            Self::HoldsMismatched(..) => ("HoldsUnfitVolume", Warning("VolumeMismatch"), Other),
            Self::NoVolume => ("NoClassAndNoMatch", Normal("FailedBinding"), FreeVolume),
            Self::AssigningClass(_) => ("AssigningDefaultClass", Silent, FreeVolume),
            Self::WaitsForFirstConsumer => ("WaitingForFirstConsumer", Normal("WaitForFirstConsumer"), Other),
            Self::WaitsForPods(_) => ("WaitingForScheduling", Normal("WaitForPodScheduled"), Other),
            Self::WaitsForProvisioner(_) => {
                ("WaitingForProvisioner", Normal("ExternalProvisioning"), FreeVolume)
            }
            Self::ProvisioningOff => {
                ("DynamicProvisioningDisabled", Normal("DynamicProvisioningDisabled"), FreeVolume)
            }
            Self::NoClass(_) => ("ClassNotFound", Warning("ProvisioningFailed"), FreeVolume),
            Self::NoProvisioner(_) => ("ProvisionerUnknown", Warning("ProvisioningFailed"), FreeVolume),
            Self::CannotProvision(_) => {
                ("ProvisioningUnsupported", Warning("ProvisioningFailed"), FreeVolume)
            }
            Self::Provisioning(_) => ("Provisioning", Silent, Other),
            Self::NotProvisioned(why) => ("ProvisioningError", Warning(why.event()), FreeVolume),
            Self::Uncertain(_) => ("Uncertain", Normal("Uncertain"), Other),
            Self::OtherProvisioner { .. } => {
                ("ProvisionerChanged", Warning("ProvisioningFailed"), FreeVolume)
            }
            Self::NamedMissing(_) => ("NamedVolumeMissing", Normal("NamedVolumeMissing"), Other),
            Self::NamedTaken(..) => ("NamedVolumeTaken", Warning("FailedBinding"), Other),
            Self::NamedMismatched(..) => ("NamedVolumeMismatch", Warning("VolumeMismatch"), Other),
            Self::LostReference => ("LostReference", Silent, Other),
            Self::LostVolume(_) => ("LostVolumeMissing", Silent, Other),
            Self::Misbound(..) => ("LostMisbound", Silent, Other),
            Self::Disputed(_) => ("LostMisbound", Warning("LostMisbound"), Other),
            Self::ProvingLost(_) => ("ConfirmingLost", Silent, Other),
            Self::Unreadable(_) => ("MalformedClaim", Warning("FailedBinding"), Other),
            Self::UnknownBindingMode(_) => ("UnknownBindingMode", Warning("FailedBinding"), Other),
        }
    }

    /// The reason's code, in events, logs, metrics and pages.
    pub fn code(&self) -> &'static str {
        self.row().0
    }

    /// Whether a free volume that fits would end the wait.
    pub fn wants_volume(&self) -> bool {
        self.row().2 == FreeVolume
    }

    /// Whether others undo this kind of write each time.
    pub fn is_undone(&self, kind: WriteKind) -> bool {
        matches!(self, Self::HeldBack(HeldBack::Undone { write, .. }, _) if *write == kind)
    }
}

/// So many pods that a claim waits for are named, and each change of them is told.
const NAMED_PODS: usize = 3;

fn these(pods: &[PodKey]) -> String {
    let names: Vec<&str> = pods.iter().map(PodKey::name).collect();
    match names.len() {
        1 => format!("pod {}", names.join(",")),
        2..=NAMED_PODS => format!("pods {}", names.join(",")),
        // One more or one less is no news.
        _ => "one of the pods that use it".to_owned(),
    }
}

fn number_of(pods: &[PodKey]) -> String {
    if let [_] = pods { "1 pod".to_owned() } else { format!("{} pods", pods.len()) }
}

/// Why a plugin here made no volume, with the text of the event.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unprovisioned {
    /// It was not even asked.
    #[error("{0}")]
    Refused(String),
    #[error("Failed to provision volume with StorageClass {class:?}: {error}")]
    Failed { class: String, error: String },
    /// The object could not be created, for what the API server said, and the storage was removed again.
    #[error("Error creating provisioned PV object for claim {claim}: {error}. Deleting the volume.")]
    NotCreated { claim: ClaimKey, error: String },
    /// The object could not be created, and then the storage not be removed.
    #[error("Error cleaning provisioned volume for claim {claim}: {error}. Please delete manually.")]
    NotCleaned { claim: ClaimKey, error: String },
}

impl Unprovisioned {
    /// The plugin failed to make a volume for this claim.
    pub fn failed(claim: &PersistentVolumeClaim, error: &str) -> Self {
        Self::Failed { class: claim_class(claim).to_owned(), error: error.to_owned() }
    }

    /// The reason of its event.
    pub fn event(&self) -> &'static str {
        if matches!(self, Self::NotCleaned { .. }) {
            "ProvisioningCleanupFailed"
        } else {
            "ProvisioningFailed"
        }
    }

    /// Whether the plugin refused or failed. KCM counts no failure where the object is what could not be made.
    pub fn is_of_plugin(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Failed { .. })
    }
}

#[derive(Clone, Debug, PartialEq, Error)]
pub enum VolumeReason {
    /// Its annotations and finalizers are put right first.
    #[error("annotations and finalizers are put right first")]
    Annotating,
    /// Something is to be written that has to wait, unless more is seen until then.
    #[error("{0}")]
    HeldBack(HeldBack, Instant),
    /// An object that has a say in this cannot be read (S42): which, and what is wrong with it.
    #[error("an object cannot be read: {0}")]
    ObjectUnreadable(String),
    #[error("free")]
    Available,
    /// Reserved for a claim that has not taken it: by name, or after its release.
    #[error("reserved for {0}")]
    Reserved(ClaimKey),
    /// It refers to no claim that takes it, and several say that they were bound to it.
    #[error(
        "several claims were bound to it, as they say: it goes to none until its claimRef names one with its UID"
    )]
    Disputed,
    /// Reserved with UID: its claim binds next.
    #[error("it is kept for claim {0}")]
    ClaimBindsNext(ClaimKey),
    /// Reserved with UID, but file system and block device are confused.
    #[error("claim {0} asks for another volumeMode")]
    ModesDiffer(ClaimKey),
    /// Bound, nothing left to do.
    #[error("bound to {0}")]
    Bound(ClaimKey),
    /// Its claim chose another volume, or is gone; the reservation is undone, or given to the claim that was bound to it.
    #[error("claim {0} does not take it")]
    Undoing(ClaimKey, Option<ClaimKey>),
    /// Its claim seems gone or bound elsewhere; a live read has to confirm it.
    #[error("asking the API server for claim {0}")]
    Proving(ClaimKey),
    #[error("claim {0} is gone, or does not take it")]
    Releasing(ClaimKey),
    /// Released, and kept until an administrator acts.
    #[error("released and kept, as its reclaim policy says")]
    Retained,
    /// Released, and its external provisioner deletes it.
    #[error("released; its provisioner deletes it")]
    LeftToProvisioner,
    /// Released, and what holds its data cannot be read.
    #[error("released, and left alone, as its source {} cannot be read: {}", .0.key, .0.error)]
    Unreadable(Malformed),
    /// Released, and cannot be reclaimed.
    #[error("{0}")]
    NotReclaimable(Unreclaimable),
    /// Released, and not recycled while these pods use it. Their names are for people of their namespace (S41).
    #[error("Volume is used by {}", number_of(.0))]
    UsedByPods(Vec<PodKey>),
    #[error("released, and its recycler pod is at work")]
    Recycling,
    /// Recycling failed, and is tried again.
    #[error("Recycle failed: {0}")]
    RecycleFailed(String),
    /// A recycler pod of an earlier run has to go before anything else.
    #[error("recycler pod {0} of an earlier run has to go first")]
    LeftoverPod(PodKey),
    /// Released, and being deleted here.
    #[error("released, and being deleted")]
    Deleting,
    /// Deleting failed, and is tried again.
    #[error("{0}")]
    DeleteFailed(String),
}

/// Why a volume cannot be reclaimed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unreclaimable {
    /// No deleter is known for what holds the volume.
    #[error("error getting deleter volume plugin for volume {:?}: no volume plugin matched", .0.as_str())]
    NoDeleter(VolumeName),
    /// The plugin for what holds the volume cannot delete.
    #[error("error getting deleter volume plugin for volume {:?}: no deletable volume plugin matched", .0.as_str())]
    CannotDelete(VolumeName),
    /// The in-tree plugin that provisioned it is gone.
    #[error("no volume plugin matched name: {0}")]
    NoPlugin(String),
    /// The in-tree plugin that is said to have provisioned it cannot delete.
    #[error("no deletable volume plugin matched")]
    PluginCannotDelete,
    #[error("No recycler plugin found for the volume!")]
    NoRecycler,
    #[error("Volume has unrecognized PersistentVolumeReclaimPolicy")]
    UnknownPolicy,
    /// Another controller has set its phase.
    #[error("its phase is Failed, and no provisioner deletes such a volume")]
    Failed,
}

impl Unreclaimable {
    /// The reason of its event.
    fn event(&self) -> &'static str {
        match self {
            Self::NoRecycler => "VolumeFailedRecycle",
            Self::UnknownPolicy => "VolumeUnknownReclaimPolicy",
            _ => "VolumeFailedDelete",
        }
    }
}

impl VolumeReason {
    /// Its row in the table.
    pub fn row(&self) -> ReasonRow {
        match self {
            Self::Annotating => ("Annotating", Silent, Other),
            Self::HeldBack(why, _) => why.row(),
            Self::ObjectUnreadable(_) => ("ObjectUnreadable", Silent, Other),
            Self::Available => ("Available", Silent, Nothing),
            Self::Reserved(_) | Self::Disputed => ("Reserved", Silent, Other),
            Self::ClaimBindsNext(_) => ("ClaimBindsNext", Silent, Other),
            Self::ModesDiffer(_) => ("ModeMismatch", Silent, Other),
            Self::Bound(_) => ("Bound", Silent, Nothing),
            Self::Undoing(..) => ("Unbinding", Silent, Other),
            Self::Proving(_) => ("ConfirmingClaimGone", Silent, Other),
            Self::Releasing(_) => ("Releasing", Silent, Other),
            Self::Retained => ("Retained", Silent, Nothing),
            Self::LeftToProvisioner => ("LeftToProvisioner", Silent, Deletion),
            Self::Unreadable(_) => ("MalformedSource", Silent, Other),
            Self::NotReclaimable(why) => ("NotReclaimable", Warning(why.event()), Deletion),
            Self::UsedByPods(_) => ("UsedByPods", Normal("VolumeFailedRecycle"), Other),
            Self::Recycling => ("Recycling", Silent, Other),
            Self::RecycleFailed(_) => ("RecycleFailed", Warning("VolumeFailedRecycle"), Other),
            Self::LeftoverPod(_) => ("LeftoverRecyclerPod", Silent, Other),
            Self::Deleting => ("Deleting", Silent, Deletion),
            Self::DeleteFailed(_) => ("DeleteFailed", Warning("VolumeFailedDelete"), Deletion),
        }
    }

    /// The reason's code, in events, logs, metrics and pages.
    pub fn code(&self) -> &'static str {
        self.row().0
    }

    /// Whether nothing is left to wait for.
    pub fn is_settled(&self) -> bool {
        self.row().2 == Nothing
    }
}
