//! Calls: the requests of the binder, with what each holds while it is under way, and what comes back.
//!
//! Out of a plan, through the executor, and back to the planner with its outcome. The bodies of writes are in
//! [`super::patches`].

use apiserver::{
    call::Request,
    events::Event,
    ids::{ClaimKey, ResourceVersion, Uid, VolumeName},
    kinds::{Narrow as _, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass},
    tables::Objects,
    with_object,
};
use derive_more::Display;
use strum::{IntoStaticStr, VariantArray};

/// A volume or a claim: what the binder decides about.
#[derive(Clone, Debug, Display, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[display("{}", self.object())]
pub enum Target {
    /// A claim.
    Claim(ClaimKey),
    /// A volume.
    Volume(VolumeName),
}

impl Target {
    /// The claim or volume as an object.
    pub fn object(&self) -> ObjectRef {
        match self {
            Self::Claim(key) => ObjectRef::Claim(key.clone()),
            Self::Volume(name) => ObjectRef::Volume(name.clone()),
        }
    }

    /// The claim or volume that an object is, if it is one.
    pub fn of(object: &ObjectRef) -> Option<Self> {
        match object {
            ObjectRef::Claim(key) => Some(Self::Claim(key.clone())),
            ObjectRef::Volume(name) => Some(Self::Volume(name.clone())),
            _ => None,
        }
    }

    /// Its name, with the namespace of a claim.
    pub fn name(&self) -> String {
        match self {
            Self::Claim(key) => key.to_string(),
            Self::Volume(name) => name.to_string(),
        }
    }

    /// UID of the claim or volume that is there now.
    pub fn uid(&self, objects: &Objects) -> Option<Uid> {
        Shown::of(self, objects).map(|shown| shown.uid)
    }
}

/// A claim or volume at one revision.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) target: Target,
    pub(crate) uid: Uid,
    pub(crate) revision: ResourceVersion,
    /// The field that only a binder changes.
    pub(crate) phase: &'static str,
    /// The volume that a claim names, or the claim to which a volume refers.
    pub(crate) other: Option<Target>,
}

impl Shown {
    /// As the tables show it, if it is there.
    pub(crate) fn of(target: &Target, objects: &Objects) -> Option<Self> {
        match target {
            Target::Claim(key) => Some((&*objects.claims.get(key)?).into()),
            Target::Volume(name) => Some((&*objects.volumes.get(name)?).into()),
        }
    }
}

impl From<&PersistentVolumeClaim> for Shown {
    fn from(claim: &PersistentVolumeClaim) -> Self {
        let named = &claim.spec.volume_name;
        Self {
            target: Target::Claim(claim.key()),
            uid: claim.metadata.uid.clone(),
            revision: claim.metadata.resource_version,
            phase: <&str>::from(claim.status.phase),
            other: (!named.is_empty()).then(|| Target::Volume(named.clone())),
        }
    }
}

impl From<&PersistentVolume> for Shown {
    fn from(volume: &PersistentVolume) -> Self {
        Self {
            target: Target::Volume(volume.key()),
            uid: volume.metadata.uid.clone(),
            revision: volume.metadata.resource_version,
            phase: <&str>::from(volume.status.phase),
            other: volume.spec.claim_ref.as_ref().map(|reference| Target::Claim(reference.key())),
        }
    }
}

/// Revision at which the tables show an object.
pub(super) fn revision(object: &ObjectRef, objects: &Objects) -> Option<ResourceVersion> {
    with_object!(object, |key: Kind| objects.get::<Kind>(key).map(|object| object.metadata.resource_version))
}

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

impl Op {
    /// A request as it is decided on objects as they are.
    pub fn new(subject: Target, volume: Option<VolumeName>, call: Call, objects: &Objects) -> Self {
        let known = call.target().and_then(|object| revision(object, objects));
        Self { uid: subject.uid(objects), subject, volume, call, known }
    }

    /// Whether an answer shows the object as it was known when the write was planned: something on the way took the
    /// change out of it.
    pub fn changed_nothing(&self, answer: &Answer) -> bool {
        matches!(self.call, Call::Write(_)) && self.known.is_some() && answer.revision() == self.known
    }

    /// The claim and the volume about which no other request may be sent meanwhile.
    pub fn touches(&self) -> Vec<Target> {
        let volume = self.volume.clone().map(Target::Volume);
        std::iter::once(self.subject.clone()).chain(volume).collect()
    }
}

/// What an [`Op`] asks of the API server, or of this machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// A write.
    Write(Write),
    /// A live read.
    Read {
        /// Of this object.
        target: ObjectRef,
        /// For this reason.
        purpose: Purpose,
    },
    /// Something to do to a directory.
    Directory(Directory),
}

/// Why something is read live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A write to it met another revision, or its outcome is unknown.
    Refresh,
    /// To learn who wrote the phase of the object with this UID (S14).
    LearnOwner(Uid),
    /// To prove that a claim with this UID is gone, or bound elsewhere.
    ProveClaim(Uid),
    /// To prove that a volume is gone, or another claim's.
    ProveVolume,
    /// To prove that there is no such class, which our tables lack.
    ProveNoClass,
    /// To prove that a volume is as released as our tables show it.
    ProveReleased,
    /// To see whose volume has the name of one that was to be made.
    SeeWhose,
}

impl Call {
    /// A live read of an object.
    pub fn read(target: ObjectRef, purpose: Purpose) -> Self {
        Self::Read { target, purpose }
    }

    /// The object that the request is about, if it is about one.
    pub fn target(&self) -> Option<&ObjectRef> {
        match self {
            Self::Write(Write { target, .. }) | Self::Read { target, .. } => Some(target),
            Self::Directory(_) => None,
        }
    }

    /// Destructive: skipped while another binder may be active, or shortly after a restore of etcd.
    pub fn is_destructive(&self) -> bool {
        match self {
            Self::Write(write) => match write.kind {
                WriteKind::VolumeReleased
                | WriteKind::VolumeFailed
                | WriteKind::Unbind
                | WriteKind::ClaimLost
                | WriteKind::StartPod
                | WriteKind::DeleteVolume => true,
                // Over a phase that says that it was bound.
                WriteKind::ClaimPending => write.is_of_a_phase(),
                _ => false,
            },
            Self::Directory(directory) => matches!(directory, Directory::Remove(_)),
            // Its proof is for the step after it, and would be old by the time that one may be made.
            Self::Read { purpose, .. } => {
                matches!(purpose, Purpose::ProveClaim(_) | Purpose::ProveVolume | Purpose::ProveReleased)
            }
        }
    }

    /// What a write is for.
    pub fn write_kind(&self) -> Option<WriteKind> {
        if let Self::Write(write) = self { Some(write.kind) } else { None }
    }
}

/// What a plugin does to a directory of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Directory {
    /// Make it, unless it is there.
    Make(String),
    /// Remove it with all it holds, if it is there.
    Remove(String),
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

/// A write to one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// What it is for.
    pub kind: WriteKind,
    /// The object written to.
    pub target: ObjectRef,
    /// The request.
    pub request: Request,
    /// What to tell the user once it has been made.
    pub then: Vec<Event>,
    /// Of a volume's phase: the claim for which it is. The same phase for another claim is another write.
    pub claim: Uid,
}

impl Write {
    /// Whether it says a phase.
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

/// What a write is for. Its name is the value of log fields and of the label `op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
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
    /// Whether it is one of the four writes of a bind.
    pub fn is_bind(self) -> bool {
        matches!(self, Self::ReserveVolume | Self::VolumeBound | Self::NameVolume | Self::ClaimBound)
    }

    /// What it is to achieve, for people.
    pub fn aim(self) -> &'static str {
        match self {
            Self::ReserveVolume => "reserve the volume",
            Self::VolumeBound => "set the volume to Bound",
            Self::NameVolume => "name the volume in the claim",
            Self::ClaimBound => "set the claim to Bound",
            Self::ClaimPending => "set the claim to Pending",
            Self::ClaimLost => "set the claim to Lost",
            Self::AssignClass => "give the claim the default class",
            Self::Annotate => "put annotations and finalizers right",
            Self::AskProvisioner => "hand the claim to its provisioner",
            Self::VolumeAvailable => "set the volume to Available",
            Self::VolumeReleased => "set the volume to Released",
            Self::VolumeFailed => "set the volume to Failed",
            Self::Unbind => "take the claim off the volume",
            Self::CreatePod => "create the recycler pod",
            Self::StartPod => "start the recycler pod",
            Self::DeletePod => "delete the recycler pod",
            Self::CreateVolume => "create the volume",
            Self::DeleteVolume => "delete the volume",
            Self::Reschedule => "ask the scheduler for another node",
        }
    }
}
