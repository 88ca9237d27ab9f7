//! A request of the binder, with what it holds while under way, and what comes back.
//!
//! Out of the planner, through the controller, and back to the planner with its outcome.

use super::write::{Object, Target, Write, WriteKind};
use crate::kube_api::{
    ids::{ClassName, ResourceVersion, Uid, VolumeName},
    kinds::{PersistentVolume, PersistentVolumeClaim, Pod, StorageClass},
};

/// A request, and what may not be touched while it is under way.
#[derive(Clone, Debug, PartialEq)]
pub struct Op {
    /// Whose decision it was.
    pub subject: Target,
    /// UID that the subject had then, if it was there.
    pub uid: Option<Uid>,
    /// The volume of the pair, if the subject is a claim.
    pub volume: Option<VolumeName>,
    /// The request.
    pub call: Call,
    /// Revision at which the object of the request was known when it was planned.
    pub known: Option<ResourceVersion>,
}

/// What an [`Op`] asks of the API server, or of this machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// A write.
    Write(Write),
    /// A live read.
    Read {
        /// Of this object.
        target: Object,
        /// For this reason.
        purpose: Purpose,
    },
    /// A live read of who wrote the phase of the subject, if that has this UID (S14).
    ReadOwner(Uid),
    /// A live read of a class, which our tables lack.
    ReadClass(ClassName),
    /// Something to do to a directory.
    Directory(Directory),
}

/// What a plugin does to a directory of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Directory {
    /// Make it, unless it is there.
    Make(String),
    /// Remove it with all it holds, if it is there.
    Remove(String),
}

/// Why something is read live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A write to it met another revision, or its outcome is unknown; or a list lacked it.
    Refresh,
    /// To prove that a claim with this UID is gone, or bound elsewhere.
    ProveClaim(Uid),
    /// To prove that a volume is gone, or another claim's.
    ProveVolume,
    /// To prove that a volume is as released as our tables show it.
    ProveReleased,
    /// To see whose volume has the name of one that was to be made.
    SeeWhose,
}

/// What a request was answered with.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// A claim.
    Claim(PersistentVolumeClaim),
    /// A volume.
    Volume(PersistentVolume),
    /// A pod.
    Pod(Pod),
    /// A class.
    Class(StorageClass),
    /// The managers that own a field.
    Owners(Vec<String>),
    /// It is, or will be, gone; the watch tells.
    Deleted,
    /// What became of the directory; the inner error is text for people.
    Directory(Result<(), String>),
}

impl Answer {
    /// Revision of the object it shows.
    #[must_use]
    pub fn revision(&self) -> Option<ResourceVersion> {
        match self {
            Self::Claim(claim) => Some(claim.metadata.resource_version),
            Self::Volume(volume) => Some(volume.metadata.resource_version),
            Self::Pod(pod) => Some(pod.metadata.resource_version),
            Self::Class(class) => Some(class.metadata.resource_version),
            Self::Deleted | Self::Owners(_) | Self::Directory(_) => None,
        }
    }
}

impl Call {
    /// The claim, volume or pod that the request is about, if it is about one.
    #[must_use]
    pub fn target(&self) -> Option<&Object> {
        match self {
            Self::Write(write) => Some(&write.target),
            Self::Read { target, .. } => Some(target),
            Self::ReadClass(_) | Self::ReadOwner(_) | Self::Directory(_) => None,
        }
    }

    /// Destructive: skipped while another binder may be active, or shortly after a restore of etcd.
    #[must_use]
    pub fn is_destructive(&self) -> bool {
        match self {
            Self::Write(write) => write.kind.is_destructive(),
            Self::Directory(directory) => matches!(directory, Directory::Remove(_)),
            // Its proof is for the step after it, and would be old by the time that one may be made.
            Self::Read { purpose, .. } => {
                matches!(purpose, Purpose::ProveClaim(_) | Purpose::ProveVolume | Purpose::ProveReleased)
            }
            Self::ReadClass(_) | Self::ReadOwner(_) => false,
        }
    }

    /// Whether it is a step of an operation of a plugin.
    #[must_use]
    pub fn is_of_plugin(&self) -> bool {
        match self {
            Self::Write(write) => matches!(
                write.kind,
                WriteKind::CreatePod
                    | WriteKind::StartPod
                    | WriteKind::DeletePod
                    | WriteKind::CreateVolume
                    | WriteKind::DeleteVolume
                    | WriteKind::Reschedule
            ),
            Self::Read { purpose, .. } => matches!(purpose, Purpose::ProveReleased | Purpose::SeeWhose),
            Self::ReadClass(_) | Self::ReadOwner(_) => false,
            Self::Directory(_) => true,
        }
    }

    /// What a write is for.
    #[must_use]
    pub fn write_kind(&self) -> Option<WriteKind> {
        match self {
            Self::Write(write) => Some(write.kind),
            Self::Read { .. } | Self::ReadClass(_) | Self::ReadOwner(_) | Self::Directory(_) => None,
        }
    }
}

impl Op {
    /// Whether an answer shows the object as it was known when the write was planned: something on the way took the
    /// change out of it.
    #[must_use]
    pub fn changed_nothing(&self, answer: &Answer) -> bool {
        matches!(self.call, Call::Write(_)) && self.known.is_some() && answer.revision() == self.known
    }

    /// The claim and the volume about which no other request may be sent meanwhile.
    #[must_use]
    pub fn touches(&self) -> Vec<Target> {
        let volume = self.volume.clone().map(Target::Volume);
        std::iter::once(self.subject.clone()).chain(volume).collect()
    }
}
