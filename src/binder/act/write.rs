//! A write: which object, what for, and what is recorded once it is made.

use crate::{
    kube_api::{
        call::Request,
        events::Event,
        ids::{ClaimKey, PodKey, ResourceVersion, Uid, VolumeName},
        kinds::{Narrow, PersistentVolume, PersistentVolumeClaim, Pod},
    },
    state::{Objects, Stored},
};

/// A write to one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// What it is for.
    pub kind: WriteKind,
    /// The object written to.
    pub target: Object,
    /// The request.
    pub request: Request,
    /// What to tell the user once it has been made.
    pub then: Vec<Event>,
}

impl Write {
    /// Whether it says a phase.
    #[must_use]
    pub fn is_of_a_phase(&self) -> bool {
        self.request.body.as_ref().is_some_and(|body| body.pointer("/status/phase").is_some())
    }

    /// Tells the user about it once it has been made.
    #[must_use]
    pub fn then(mut self, event: Event) -> Self {
        self.then.push(event);
        self
    }
}

/// A volume or a claim: what the binder decides about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// A claim.
    Claim(ClaimKey),
    /// A volume.
    Volume(VolumeName),
}

impl Target {
    /// UID of the claim or volume that is there now.
    #[must_use]
    pub fn uid(&self, objects: &Objects) -> Option<Uid> {
        match self {
            Self::Claim(key) => objects.claims.get(key).map(|claim| claim.metadata.uid.clone()),
            Self::Volume(name) => objects.volumes.get(name).map(|volume| volume.metadata.uid.clone()),
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Claim(key) => write!(f, "pvc/{key}"),
            Self::Volume(name) => write!(f, "pv/{name}"),
        }
    }
}

/// The object of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    /// A claim.
    Claim(ClaimKey),
    /// A volume.
    Volume(VolumeName),
    /// A recycler pod.
    Pod(PodKey),
}

impl Object {
    /// Revision at which the tables show it.
    #[must_use]
    pub fn revision(&self, objects: &Objects) -> Option<ResourceVersion> {
        fn of<T: Stored>(objects: &Objects, key: &T::Key) -> Option<ResourceVersion> {
            objects.get::<T>(key).map(|object| object.metadata().resource_version)
        }
        match self {
            Self::Claim(key) => of::<PersistentVolumeClaim>(objects, key),
            Self::Volume(name) => of::<PersistentVolume>(objects, name),
            Self::Pod(key) => of::<Pod>(objects, key),
        }
    }

    /// The object as something that is decided about, if it is.
    #[must_use]
    pub fn subject(&self) -> Option<Target> {
        match self {
            Self::Claim(key) => Some(Target::Claim(key.clone())),
            Self::Volume(name) => Some(Target::Volume(name.clone())),
            Self::Pod(_) => None,
        }
    }
}

impl From<&PersistentVolumeClaim> for Object {
    fn from(claim: &PersistentVolumeClaim) -> Self {
        Self::Claim(claim.key())
    }
}

impl From<&PersistentVolume> for Object {
    fn from(volume: &PersistentVolume) -> Self {
        Self::Volume(volume.key())
    }
}

impl From<&Pod> for Object {
    fn from(pod: &Pod) -> Self {
        Self::Pod(pod.key())
    }
}

impl From<Target> for Object {
    fn from(target: Target) -> Self {
        match target {
            Target::Claim(key) => Self::Claim(key),
            Target::Volume(name) => Self::Volume(name),
        }
    }
}

impl std::fmt::Display for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Claim(key) => write!(f, "pvc/{key}"),
            Self::Volume(name) => write!(f, "pv/{name}"),
            Self::Pod(key) => write!(f, "pod/{key}"),
        }
    }
}

/// What a write is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteKind {
    /// Bind step 1: the volume names the claim.
    ReserveVolume,
    /// Bind step 2: the volume is Bound.
    VolumeBound,
    /// Bind step 3: the claim names the volume.
    NameVolume,
    /// Bind step 4: the claim is Bound.
    ClaimBound,
    /// The claim is Pending and has nothing.
    ClaimPending,
    /// The claim's volume is gone.
    ClaimLost,
    /// The claim gets the default class.
    AssignClass,
    /// Annotations and finalizers are put right.
    Annotate,
    /// An external provisioner is asked.
    AskProvisioner,
    /// The volume is free, or reserved by name.
    VolumeAvailable,
    /// The volume's claim is gone.
    VolumeReleased,
    /// The volume cannot be reclaimed.
    VolumeFailed,
    /// A bind the claim has not followed is undone, or a recycled volume freed.
    Unbind,
    /// A recycler pod is made, which does not run yet.
    CreatePod,
    /// The recycler pod may run.
    StartPod,
    /// A recycler pod goes.
    DeletePod,
    /// A volume is made for a claim.
    CreateVolume,
    /// A volume goes whose storage is gone.
    DeleteVolume,
    /// The scheduler is asked for another node.
    Reschedule,
}

impl WriteKind {
    /// All of them.
    pub const ALL: [Self; 19] = [
        Self::ReserveVolume,
        Self::VolumeBound,
        Self::NameVolume,
        Self::ClaimBound,
        Self::ClaimPending,
        Self::ClaimLost,
        Self::AssignClass,
        Self::Annotate,
        Self::AskProvisioner,
        Self::VolumeAvailable,
        Self::VolumeReleased,
        Self::VolumeFailed,
        Self::Unbind,
        Self::CreatePod,
        Self::StartPod,
        Self::DeletePod,
        Self::CreateVolume,
        Self::DeleteVolume,
        Self::Reschedule,
    ];

    /// Whether it is one of the four writes of a bind.
    #[must_use]
    pub fn is_bind(self) -> bool {
        matches!(self, Self::ReserveVolume | Self::VolumeBound | Self::NameVolume | Self::ClaimBound)
    }

    /// Destructive: skipped while another binder may be active, or shortly after a restore of etcd.
    #[must_use]
    pub fn is_destructive(self) -> bool {
        matches!(
            self,
            Self::VolumeReleased
                | Self::VolumeFailed
                | Self::Unbind
                | Self::ClaimLost
                | Self::StartPod
                | Self::DeleteVolume
        )
    }

    /// Value of log fields and of the label `op`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReserveVolume => "reserve_volume",
            Self::VolumeBound => "volume_bound",
            Self::NameVolume => "name_volume",
            Self::ClaimBound => "claim_bound",
            Self::ClaimPending => "claim_pending",
            Self::ClaimLost => "claim_lost",
            Self::AssignClass => "assign_class",
            Self::Annotate => "annotate",
            Self::AskProvisioner => "ask_provisioner",
            Self::VolumeAvailable => "volume_available",
            Self::VolumeReleased => "volume_released",
            Self::VolumeFailed => "volume_failed",
            Self::Unbind => "unbind",
            Self::CreatePod => "create_pod",
            Self::StartPod => "start_pod",
            Self::DeletePod => "delete_pod",
            Self::CreateVolume => "create_volume",
            Self::DeleteVolume => "delete_volume",
            Self::Reschedule => "reschedule",
        }
    }
}
