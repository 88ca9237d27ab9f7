//! Requests that fail, and what is told of them (L18).
//!
//! In: requests with what became of them. Out: for each claim or volume whose request fails, the server's words: as an
//! event on the object that waits, and for the debug page. What the server refuses is told at once; what the next
//! tries may mend (a conflict, silence, a busy server), when it has failed so many times in a row.

use std::collections::BTreeMap;

use tokio::time::Instant;

use crate::{
    binder::{
        act::op::{Answer, Call, Op},
        decide::decision::{Target, WriteKind},
        planner::Planner,
    },
    kube_api::{
        call::CallError,
        events::{Event, EventType, Involved},
        ids::ClassName,
        kinds::{ClaimPhase, PersistentVolume, ReclaimPolicy},
    },
};

/// Failures in a row after which one is told that the next try may mend: within some five seconds.
const PATIENCE: u32 = 3;

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// A write.
    Write(WriteKind),
    /// A live read of an object.
    Read,
    /// A live read of a class.
    ReadClass(ClassName),
}

impl Task {
    /// Value of metric labels.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Write(kind) => kind.as_str(),
            Self::Read => "read",
            Self::ReadClass(_) => "read_class",
        }
    }
}

/// How it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The server, or a webhook or policy there, said no.
    Refused,
    /// The server asks to wait.
    Throttled,
    /// The object had changed.
    Conflict,
    /// No answer, or one of the server's own failures.
    Unknown,
    /// It never left.
    NotSent,
    /// It was answered, and changed nothing.
    Unchanged,
}

impl Outcome {
    fn of(error: &CallError) -> Option<Self> {
        match error {
            CallError::NotLeader | CallError::NotFound(_) => None,
            CallError::NotSent(_) => Some(Self::NotSent),
            CallError::Conflict(_) | CallError::AlreadyExists(_) => Some(Self::Conflict),
            // An overload of the server is told by its own metrics and the log, not by an event per claim.
            CallError::Throttled { .. } if error.is_of_all() => None,
            CallError::Throttled { .. } => Some(Self::Throttled),
            CallError::Refused { .. } => Some(Self::Refused),
            CallError::Unknown(_) => Some(Self::Unknown),
        }
    }

    /// Value of metric labels.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Throttled => "throttled",
            Self::Conflict => "conflict",
            Self::Unknown => "unknown",
            Self::NotSent => "not_sent",
            Self::Unchanged => "unchanged",
        }
    }
}

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What was asked for.
    pub task: Task,
    /// The object it is about, such as `pv/v1`.
    pub object: String,
    /// How it failed.
    pub outcome: Outcome,
    /// What the server said.
    pub words: String,
}

impl Failure {
    /// What a live read of a class came to.
    #[must_use]
    pub fn of_class(class: &ClassName, error: &CallError) -> Option<Self> {
        let object = format!("storageclass/{class}");
        let (outcome, words) = (Outcome::of(error)?, error.to_string());
        Some(Self { task: Task::ReadClass(class.clone()), object, outcome, words })
    }

    fn of(op: &Op, result: &Result<Answer, CallError>) -> Option<Self> {
        let task = match &op.call {
            Call::Write(write) => Task::Write(write.kind),
            Call::Read { .. } => Task::Read,
            Call::ReadClass(_) | Call::ReadOwner(_) | Call::Directory(_) => return None,
        };
        let (outcome, words) = match result {
            Err(error) => (Outcome::of(error)?, error.to_string()),
            Ok(answer) if op.changed_nothing(answer) => {
                let words = "the API server answered without the change: a webhook may have taken it out";
                (Outcome::Unchanged, words.to_owned())
            }
            Ok(_) => return None,
        };
        let object = op.call.target().map(ToString::to_string).unwrap_or_default();
        Some(Self { task, object, outcome, words })
    }

    /// Whether it is told by the run that it is a step of, in KCM's words.
    fn is_told_elsewhere(&self) -> bool {
        matches!(self.task, Task::Write(WriteKind::CreatePod | WriteKind::CreateVolume))
            && matches!(self.outcome, Outcome::Refused | Outcome::Conflict)
    }

    /// For people.
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

/// Reason of an event about a claim; KCM's where it has one.
fn claim_event(task: &Task) -> &'static str {
    match task {
        Task::Write(WriteKind::AskProvisioner | WriteKind::CreateVolume | WriteKind::Reschedule)
        | Task::ReadClass(_) => "ProvisioningFailed",
        Task::Write(_) | Task::Read => "FailedBinding",
    }
}

/// Reason of an event about a volume; KCM's where it has one.
fn volume_event(task: &Task, volume: &PersistentVolume) -> &'static str {
    let reclaims = match task {
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
    match volume.spec.reclaim_policy {
        ReclaimPolicy::Delete if reclaims => "VolumeFailedDelete",
        ReclaimPolicy::Recycle if reclaims => "VolumeFailedRecycle",
        _ => "FailedUpdate",
    }
}

/// The failures of one claim or volume in a row.
#[derive(Clone, Debug)]
struct Series {
    failure: Failure,
    /// How many since the last that was refused.
    count: u32,
    /// What is told of them. A failure that is not told of itself leaves it as it is.
    told: Option<Failure>,
}

/// What fails now.
#[derive(Debug, Default)]
pub struct Failures {
    series: BTreeMap<Target, Series>,
    counts: BTreeMap<(&'static str, &'static str), u64>,
}

impl Failures {
    fn note(&mut self, target: &Target, failure: Failure) {
        *self.counts.entry((failure.task.label(), failure.outcome.label())).or_default() += 1;
        let before = self.series.remove(target);
        let (count, told) = before.map_or((0, None), |series| (series.count, series.told));
        let is_refused = failure.outcome == Outcome::Refused;
        let count = if is_refused { 0 } else { count.saturating_add(1) };
        let told = if is_refused || count >= PATIENCE { Some(failure.clone()) } else { told };
        self.series.insert(target.clone(), Series { failure, count, told });
    }

    /// What is to be told of a claim or volume.
    #[must_use]
    pub fn told(&self, target: &Target) -> Option<&Failure> {
        self.series.get(target)?.told.as_ref()
    }

    /// Forgets what failed of a claim or volume; returns whether anything did.
    pub fn forget(&mut self, target: &Target) -> bool {
        self.series.remove(target).is_some()
    }

    /// How many failed since this was last asked, by what they were for and how they failed.
    pub fn take_counts(&mut self) -> BTreeMap<(&'static str, &'static str), u64> {
        std::mem::take(&mut self.counts)
    }
}

impl Planner {
    /// Takes in the outcome of a request.
    pub fn outcome(&mut self, op: Op, result: Result<Answer, CallError>, now: Instant, jitter: f64) {
        let failure = Failure::of(&op, &result);
        let subject = op.subject.clone();
        let works = match &op.call {
            Call::Write(_) => result.is_ok(),
            Call::Read { .. } => {
                let is_read = |series: &Series| series.failure.task == Task::Read;
                result.is_ok() && self.failures.series.get(&subject).is_some_and(is_read)
            }
            Call::ReadClass(_) | Call::ReadOwner(_) | Call::Directory(_) => false,
        };
        self.take_outcome(op, result, now, jitter);
        match failure {
            Some(failure) => self.fails(&subject, failure, now),
            None if works => self.works(&subject, now),
            None => {}
        }
    }

    /// A request about a claim or volume failed. It has its pause by now.
    pub(crate) fn fails(&mut self, subject: &Target, failure: Failure, now: Instant) {
        self.failures.note(subject, failure);
        let Some(event) = self.failure_event(subject) else { return };
        if let Some(failure) = self.failures.told(subject) {
            self.standing.set_failure(subject, Some((failure.clone(), self.retries.until(subject))), now);
        }
        self.note_failure(subject, now);
        let news = self.told.also(subject, event, now);
        self.pending_events.extend(news);
    }

    /// Nothing fails any more.
    pub(crate) fn works(&mut self, subject: &Target, now: Instant) {
        if self.failures.forget(subject) {
            self.standing.set_failure(subject, None, now);
        }
    }

    /// What is told to users: on the claim, if there is one that waits, else on the volume.
    pub(crate) fn failure_event(&self, subject: &Target) -> Option<Event> {
        let failure = self.failures.told(subject)?;
        if failure.is_told_elsewhere() {
            return None;
        }
        let (involved, reason) = match subject {
            Target::Claim(key) => {
                (Involved::object(&*self.objects.claims.get(key)?), claim_event(&failure.task))
            }
            Target::Volume(name) => {
                let volume = self.objects.volumes.get(name)?;
                let claim = volume.spec.claim_ref.as_ref().and_then(|reference| {
                    let claim = self.objects.claims.get(&reference.key())?;
                    let waits =
                        claim.metadata.uid == reference.uid && claim.status.phase != ClaimPhase::Bound;
                    waits.then_some(claim)
                });
                match claim {
                    Some(claim) => (Involved::object(&*claim), claim_event(&failure.task)),
                    None => (Involved::object(&*volume), volume_event(&failure.task, &volume)),
                }
            }
        };
        Some(Event { involved, r#type: EventType::Warning, reason, message: failure.text() })
    }
}
