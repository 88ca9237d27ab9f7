//! Where a claim or a volume stands, and why: the one value that events, log fields, metric labels
//! and explanations are printed from (L18). The texts are in [`super::events`].

use apiserver::{
    ids::{ClaimKey, ClassName, PodKey, Uid, VolumeName},
    kinds::{Malformed, PersistentVolumeClaim},
};
use tokio::time::Instant;

use crate::binder::{
    calls::WriteKind,
    matching::predicate::{Mismatch, Unreadable, claim_class},
};

/// Why a write waits that cannot be taken back, or that is undone each time: until the end of the one or the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldBack {
    /// Another writes what only the binder should, everywhere or here.
    ForeignWriter {
        by: String,
        /// When that ends, unless more is seen.
        until: Instant,
    },
    /// Etcd was restored from a backup a short while ago (E11).
    Restored { until: Instant },
    /// This write was made, and is undone again and again (S46).
    Undone {
        write: WriteKind,
        /// The manager that undoes it, if the object shows that.
        by: Option<String>,
        /// When it is repeated.
        until: Instant,
        /// Whether that has yet to be told.
        is_news: bool,
    },
}

impl HeldBack {
    /// The reason's code, the same as of attach/detach.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::ForeignWriter { .. } | Self::Undone { .. } => "ForeignWriter",
            Self::Restored { .. } => "RestoreGrace",
        }
    }

    /// When the wait ends by itself.
    #[must_use]
    pub fn until(&self) -> Instant {
        match self {
            Self::ForeignWriter { until, .. } | Self::Restored { until } | Self::Undone { until, .. } => {
                *until
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum ClaimReason {
    /// Bound, nothing left to do.
    Bound(VolumeName),
    /// Its annotations are put right first.
    Annotating,
    /// Something is to be written that has to wait.
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
    HoldsMismatched(VolumeName, Mismatch),
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
    ProvisioningOff,
    /// The class does not exist.
    NoClass(ClassName),
    /// The class names a provisioner that does not exist.
    NoProvisioner(String),
    /// The class names a plugin that is known and does not provision.
    CannotProvision(String),
    /// A volume is being made by this plugin, here.
    Provisioning(&'static str),
    /// The plugin here made no volume.
    NotProvisioned(Unprovisioned),
    /// Another volume may become the claim's: a write that would reserve it has not been answered.
    Uncertain(VolumeName),
    /// The claim was handed to one provisioner, and its class now names another (S29).
    OtherProvisioner {
        asked: String,
        wanted: String,
    },
    /// The volume the claim names does not exist.
    NamedMissing(VolumeName),
    /// The volume the claim names belongs to another claim.
    NamedTaken(VolumeName, ClaimKey),
    /// The volume the claim names does not suit it.
    NamedMismatched(VolumeName, Mismatch),
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
            Self::HoldsMismatched(..) => "HoldsUnfitVolume",
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
            Self::Uncertain(_) => "Uncertain",
            Self::OtherProvisioner { .. } => "ProvisionerChanged",
            Self::NamedMissing(_) => "NamedVolumeMissing",
            Self::NamedTaken(..) => "NamedVolumeTaken",
            Self::NamedMismatched(..) => "NamedVolumeMismatch",
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

/// Why a plugin here made no volume, with the text of the event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unprovisioned {
    /// It was not even asked.
    Refused(String),
    Failed {
        class: String,
        error: String,
    },
    /// The object could not be created, and the storage was removed again.
    NotCreated {
        claim: ClaimKey,
        /// What the API server said.
        error: String,
    },
    /// The object could not be created, and then the storage not be removed.
    NotCleaned {
        claim: ClaimKey,
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
}

#[derive(Clone, Debug, PartialEq)]
pub enum VolumeReason {
    /// Its annotations and finalizers are put right first.
    Annotating,
    /// Something is to be written that has to wait.
    HeldBack(HeldBack),
    /// An object that has a say in this cannot be read (S42): which, and what is wrong with it.
    ObjectUnreadable(String),
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
    Releasing(ClaimKey),
    /// Released, and kept until an administrator acts.
    Retained,
    /// Released, and its external provisioner deletes it.
    LeftToProvisioner,
    /// Released, and what holds its data cannot be read.
    Unreadable(Malformed),
    /// Released, and cannot be reclaimed.
    NotReclaimable(Unreclaimable),
    /// Released, and not recycled while these pods use it.
    UsedByPods(Vec<PodKey>),
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
    NoRecycler,
    UnknownPolicy,
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
