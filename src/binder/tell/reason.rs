//! Where a claim or a volume stands, and why: the one value that events, log fields, metric labels
//! and explanations are printed from (L18).

use std::fmt;

use tokio::time::Instant;

use crate::{
    binder::{
        decide::decision::WriteKind,
        matching::predicate::{Misfit, Unreadable, claim_class},
    },
    kube_api::{
        ids::{ClaimKey, ClassName, PodKey, Uid, VolumeName},
        kinds::{Malformed, PersistentVolumeClaim},
    },
};

/// Why something waits that cannot be taken back: until the end of the one or the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldBack {
    /// Another writes what only the binder should, everywhere or here.
    ForeignWriter {
        /// Who wrote what.
        by: String,
        /// When that ends, unless more is seen.
        until: Instant,
    },
    /// Etcd was restored from a backup a short while ago (E11).
    Restored {
        /// When that is over.
        until: Instant,
    },
}

impl HeldBack {
    /// The reason's code, the same as of attach/detach.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::ForeignWriter { .. } => "ForeignWriter",
            Self::Restored { .. } => "RestoreGrace",
        }
    }

    /// When the wait ends by itself.
    #[must_use]
    pub fn until(&self) -> Instant {
        match self {
            Self::ForeignWriter { until, .. } | Self::Restored { until } => *until,
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
        }
    }
}

/// Where a claim stands.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimReason {
    /// Bound, nothing left to do.
    Bound(VolumeName),
    /// Its annotations are put right first.
    Annotating,
    /// Something is to be written that cannot be taken back.
    HeldBack(HeldBack),
    /// An object that has a say in this cannot be read (S42): which, and what is wrong with it.
    ObjectUnreadable(String),
    /// The class is in no table; a live read has to confirm that there is none.
    ProvingClass(ClassName),
    /// A bind is on its way.
    Binding(VolumeName, WriteKind),
    /// The volume is reserved for the claim, but it has no size.
    NoCapacity(VolumeName),
    /// Another write to the volume is under way.
    VolumeBusy(VolumeName),
    /// The claim still holds another volume, which is given back first (S19).
    HoldsOther(VolumeName),
    /// A volume carries the claim's UID but does not suit it.
    HoldsUnfit(VolumeName, Misfit),
    /// No volume fits, and there is no class that would provide one.
    NoVolume,
    /// The default class is being assigned.
    AssigningClass(ClassName),
    /// The class binds when a pod is scheduled, and no pod waits.
    WaitsForFirstConsumer,
    /// The class binds when one of these pods is scheduled.
    WaitsForPods(Vec<PodKey>),
    /// An external provisioner is asked, or about to be.
    WaitsForProvisioner(String),
    /// Dynamic provisioning is off.
    ProvisioningOff,
    /// The class does not exist.
    NoClass(ClassName),
    /// The class names a provisioner that nobody implements.
    NoProvisioner(String),
    /// The class names a plugin that is known and does not provision.
    CannotProvision(String),
    /// A volume is being made by this plugin, here.
    Provisioning(&'static str),
    /// The plugin here made no volume.
    NotProvisioned(Unprovisioned),
    /// Another volume may become the claim's: a write that would reserve it has not been answered.
    InDoubt(VolumeName),
    /// The claim was handed to one provisioner, and its class now names another (S29).
    OtherProvisioner {
        /// The annotation's.
        asked: String,
        /// The class's.
        wanted: String,
    },
    /// The volume the claim names does not exist.
    NamedMissing(VolumeName),
    /// The volume the claim names belongs to another claim.
    NamedTaken(VolumeName, ClaimKey),
    /// The volume the claim names does not suit it.
    NamedUnfit(VolumeName, Misfit),
    /// Was bound, but no longer says to what.
    LostReference,
    /// Was bound to a volume that is gone.
    LostVolume(VolumeName),
    /// Was bound to a volume that now carries this UID.
    Misbound(VolumeName, Uid),
    /// Looks lost; a live read has to confirm it.
    ProvingLost(VolumeName),
    /// Something in the claim cannot be understood.
    Unreadable(Unreadable),
    /// The class does not say when to bind, or says something unknown.
    UnknownBindingMode(ClassName),
}

impl ClaimReason {
    /// The reason's code (user-experience §3), in events, logs, metrics and pages.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Bound(_) => "Bound",
            Self::Annotating => "Annotating",
            Self::HeldBack(why) => why.code(),
            Self::ObjectUnreadable(_) => "ObjectUnreadable",
            Self::ProvingClass(_) => "ConfirmingClass",
            Self::Binding(..) => "Binding",
            Self::NoCapacity(_) => "NoCapacity",
            Self::VolumeBusy(_) => "VolumeBusy",
            Self::HoldsOther(_) => "HoldsOtherVolume",
            Self::HoldsUnfit(..) => "HoldsUnfitVolume",
            Self::NoVolume => "NoClassAndNoMatch",
            Self::AssigningClass(_) => "AssigningDefaultClass",
            Self::WaitsForFirstConsumer => "WaitingForFirstConsumer",
            Self::WaitsForPods(_) => "WaitingForScheduling",
            Self::WaitsForProvisioner(_) => "WaitingForProvisioner",
            Self::ProvisioningOff => "DynamicProvisioningDisabled",
            Self::NoClass(_) => "ClassNotFound",
            Self::NoProvisioner(_) => "ProvisionerUnknown",
            Self::CannotProvision(_) => "ProvisioningUnsupported",
            Self::Provisioning(_) => "Provisioning",
            Self::NotProvisioned(_) => "ProvisioningError",
            Self::InDoubt(_) => "Uncertain",
            Self::OtherProvisioner { .. } => "ProvisionerChanged",
            Self::NamedMissing(_) => "NamedVolumeMissing",
            Self::NamedTaken(..) => "NamedVolumeTaken",
            Self::NamedUnfit(..) => "NamedVolumeMismatch",
            Self::LostReference => "LostReference",
            Self::LostVolume(_) => "LostVolumeMissing",
            Self::Misbound(..) => "LostMisbound",
            Self::ProvingLost(_) => "ConfirmingLost",
            Self::Unreadable(_) => "MalformedClaim",
            Self::UnknownBindingMode(_) => "UnknownBindingMode",
        }
    }

    /// Whether nothing is left to wait for.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        matches!(self, Self::Bound(_))
    }

    /// Whether only a volume that somebody makes or changes by hand would end the wait.
    #[must_use]
    pub fn lacks_volume(&self) -> bool {
        matches!(
            self,
            Self::NoVolume
                | Self::ProvisioningOff
                | Self::NoClass(_)
                | Self::NoProvisioner(_)
                | Self::CannotProvision(_)
        )
    }

    /// Whether a free volume that fits would end the wait.
    #[must_use]
    pub fn wants_volume(&self) -> bool {
        matches!(
            self,
            Self::NoVolume
                | Self::AssigningClass(_)
                | Self::WaitsForProvisioner(_)
                | Self::ProvisioningOff
                | Self::NoClass(_)
                | Self::NoProvisioner(_)
                | Self::CannotProvision(_)
                | Self::NotProvisioned(_)
                | Self::OtherProvisioner { .. }
        )
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
            Self::HoldsUnfit(volume, misfit) => {
                write!(f, "volume {volume} is reserved for the claim: {}", misfit.text(volume.as_str()))
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
                let noun = if names.len() == 1 { "pod" } else { "pods" };
                write!(f, "waiting for {noun} {} to be scheduled", names.join(","))
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
            Self::InDoubt(volume) => {
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
            Self::NamedUnfit(volume, misfit) => write!(
                f,
                "Cannot bind to requested volume {:?}: {}",
                volume.as_str(),
                misfit.text(volume.as_str())
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

/// Why a plugin here made no volume, with the text of the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unprovisioned {
    /// It was not even asked.
    Refused(String),
    /// It failed.
    Failed {
        /// Class of the claim.
        class: String,
        /// What it said.
        error: String,
    },
    /// The object could not be created, and the storage was removed again.
    NotCreated {
        /// The claim.
        claim: ClaimKey,
        /// What the API server said.
        error: String,
    },
    /// The object could not be created, and then the storage not be removed.
    NotCleaned {
        /// The claim.
        claim: ClaimKey,
        /// What the plugin said.
        error: String,
    },
}

impl Unprovisioned {
    /// The plugin failed to make a volume for this claim.
    #[must_use]
    pub fn failed(claim: &PersistentVolumeClaim, error: &str) -> Self {
        Self::Failed { class: claim_class(claim).to_owned(), error: error.to_owned() }
    }

    /// Whether the plugin refused or failed. KCM counts no failure where the object is what could not be made.
    #[must_use]
    pub fn is_of_plugin(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Failed { .. })
    }

    /// Reason of the event (pv-binder §10).
    #[must_use]
    pub fn event_reason(&self) -> &'static str {
        match self {
            Self::Refused(_) | Self::Failed { .. } | Self::NotCreated { .. } => "ProvisioningFailed",
            Self::NotCleaned { .. } => "ProvisioningCleanupFailed",
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

/// Where a volume stands.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeReason {
    /// Its annotations and finalizers are put right first.
    Annotating,
    /// Something is to be written that cannot be taken back.
    HeldBack(HeldBack),
    /// An object that has a say in this cannot be read (S42): which, and what is wrong with it.
    ObjectUnreadable(String),
    /// Free.
    Available,
    /// Reserved by name for a claim that has not taken it.
    Reserved(ClaimKey),
    /// Reserved with UID: its claim binds next.
    ClaimBindsNext(ClaimKey),
    /// Reserved with UID, but file system and block device are confused.
    ModesDiffer(ClaimKey),
    /// Bound, nothing left to do.
    Bound(ClaimKey),
    /// Its claim chose another volume; the reservation is undone.
    Undoing(ClaimKey),
    /// Its claim seems gone or bound elsewhere; a live read has to confirm it.
    Proving(ClaimKey),
    /// Its claim is gone.
    Releasing(ClaimKey),
    /// Released, and kept until an administrator acts.
    Retained,
    /// Released, and its external provisioner deletes it.
    LeftToProvisioner,
    /// Released, and what holds its data cannot be read.
    Unreadable(Malformed),
    /// Released, and nobody can reclaim it.
    NotReclaimable(Unreclaimable),
    /// Released, and not recycled while these pods use it.
    UsedByPods(Vec<PodKey>),
    /// Released, and being recycled.
    Recycling,
    /// Recycling failed, and is tried again.
    RecycleFailed(String),
    /// A recycler pod of an earlier run has to go before anything else.
    LeftoverPod(PodKey),
    /// Released, and being deleted here.
    Deleting,
    /// Deleting failed, and is tried again.
    DeleteFailed(String),
}

/// Why a volume cannot be reclaimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreclaimable {
    /// No deleter is known for what holds the volume.
    NoDeleter(VolumeName),
    /// The plugin for what holds the volume cannot delete.
    CannotDelete(VolumeName),
    /// The in-tree plugin that provisioned it is gone.
    NoPlugin(String),
    /// The in-tree plugin that is said to have provisioned it cannot delete.
    PluginCannotDelete,
    /// There is no recycler.
    NoRecycler,
    /// The policy is unknown.
    UnknownPolicy,
}

impl Unreclaimable {
    /// Reason of the event (pv-binder §10).
    #[must_use]
    pub fn event_reason(&self) -> &'static str {
        match self {
            Self::NoDeleter(_) | Self::CannotDelete(_) | Self::NoPlugin(_) | Self::PluginCannotDelete => {
                "VolumeFailedDelete"
            }
            Self::NoRecycler => "VolumeFailedRecycle",
            Self::UnknownPolicy => "VolumeUnknownReclaimPolicy",
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

impl VolumeReason {
    /// The reason's code (user-experience §3), in events, logs, metrics and pages.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Annotating => "Annotating",
            Self::HeldBack(why) => why.code(),
            Self::ObjectUnreadable(_) => "ObjectUnreadable",
            Self::Available => "Available",
            Self::Reserved(_) => "Reserved",
            Self::ClaimBindsNext(_) => "ClaimBindsNext",
            Self::ModesDiffer(_) => "ModeMismatch",
            Self::Bound(_) => "Bound",
            Self::Undoing(_) => "Unbinding",
            Self::Proving(_) => "ConfirmingClaimGone",
            Self::Releasing(_) => "Releasing",
            Self::Retained => "Retained",
            Self::LeftToProvisioner => "LeftToProvisioner",
            Self::Unreadable(_) => "MalformedSource",
            Self::NotReclaimable(_) => "NotReclaimable",
            Self::UsedByPods(_) => "UsedByPods",
            Self::Recycling => "Recycling",
            Self::RecycleFailed(_) => "RecycleFailed",
            Self::LeftoverPod(_) => "LeftoverRecyclerPod",
            Self::Deleting => "Deleting",
            Self::DeleteFailed(_) => "DeleteFailed",
        }
    }

    /// Whether the volume is Released and not kept.
    #[must_use]
    pub fn awaits_deletion(&self) -> bool {
        matches!(
            self,
            Self::LeftToProvisioner | Self::NotReclaimable(_) | Self::Deleting | Self::DeleteFailed(_)
        )
    }

    /// Whether nothing is left to wait for.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        matches!(self, Self::Available | Self::Bound(_) | Self::Retained)
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
            Self::ClaimBindsNext(claim) => write!(f, "claim {claim} is to be bound"),
            Self::ModesDiffer(claim) => write!(f, "claim {claim} asks for another volumeMode"),
            Self::Bound(claim) => write!(f, "bound to {claim}"),
            Self::Undoing(claim) => write!(f, "claim {claim} is bound to another volume"),
            Self::Proving(claim) => write!(f, "asking the API server for claim {claim}"),
            Self::Releasing(claim) => write!(f, "claim {claim} is gone"),
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
