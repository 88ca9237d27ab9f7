//! A request that failed: what was asked for, and how it failed.

use apiserver::{
    call::CallError,
    ids::{ClassName, Uid},
    kinds::ObjectRef,
};
use strum::{IntoStaticStr, VariantNames};

use crate::binder::calls::{Answer, Call, Op, WriteKind};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    Write(WriteKind),
    /// A live read of an object.
    Read,
    /// A live read of a class.
    ReadClass(ClassName),
}

impl Task {
    pub fn label(&self) -> &'static str {
        match self {
            Self::Write(kind) => <&str>::from(kind),
            Self::Read => "read",
            Self::ReadClass(_) => "read_class",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum FailureOutcome {
    /// The server, or a webhook or policy there, said no.
    Refused,
    /// The server asks to wait.
    Throttled,
    Conflict,
    /// No answer, or one of the server's own failures.
    Unknown,
    NotSent,
    /// It was answered, and changed nothing.
    Unchanged,
}

impl FailureOutcome {
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
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// UID of the claim or volume whose request it was.
    pub uid: Option<Uid>,
    pub task: Task,
    /// The object it is about, such as `pv/v1`.
    pub object: String,
    pub outcome: FailureOutcome,
    pub words: String,
}

impl Failure {
    /// What a request came to.
    pub fn of(op: &Op, result: &Result<Answer, CallError>) -> Option<Self> {
        let task = match &op.call {
            Call::Write(write) => Task::Write(write.kind),
            Call::Directory(_) => return None,
            Call::Read { target: ObjectRef::Class(class), .. } => Task::ReadClass(class.clone()),
            Call::Read { .. } => Task::Read,
        };
        let (outcome, words) = match result {
            Err(error) => (FailureOutcome::of(error)?, error.to_string()),
            Ok(answer) if op.changed_nothing(answer) => {
                let words = "the API server answered without the change: a webhook may have taken it out";
                (FailureOutcome::Unchanged, words.to_owned())
            }
            Ok(_) => return None,
        };
        let object = op.call.target().map(ToString::to_string).unwrap_or_default();
        let failure = Self { uid: op.uid.clone(), task, object, outcome, words };
        // To which claim a volume is given back only people there may know (S41).
        let body = if let Call::Write(write) = &op.call { write.request.body.as_ref() } else { None };
        let names_owner = body.is_some_and(|body| body.pointer("/spec/claimRef/name").is_some());
        let is_back = failure.task == Task::Write(WriteKind::Unbind) && names_owner;
        Some(if is_back { failure.of_outcome() } else { failure })
    }

    /// The same without words of others.
    pub fn of_outcome(&self) -> Self {
        Self { words: <&str>::from(self.outcome).to_owned(), ..self.clone() }
    }

    /// Whether the plugin that sent it records an event of its own, in KCM's words.
    pub fn is_recorded_elsewhere(&self) -> bool {
        matches!(self.task, Task::Write(WriteKind::CreatePod | WriteKind::CreateVolume))
            && matches!(self.outcome, FailureOutcome::Refused | FailureOutcome::Conflict)
    }

    /// Whether a webhook took annotations or finalizers out of a write.
    pub fn is_stripped(&self) -> bool {
        (&self.task, self.outcome) == (&Task::Write(WriteKind::Annotate), FailureOutcome::Unchanged)
    }

    /// For people; KCM's where it has one.
    pub fn text(&self) -> String {
        let Self { object, words, .. } = self;
        match &self.task {
            // KCM: pkg/controller/volume/persistentvolume/pv_controller.go, provisionClaimOperationExternal.
            Task::Write(WriteKind::AskProvisioner) => format!("Error saving claim: {words}"),
            Task::Write(kind) => format!("could not {}, a write to {object}: {words}", kind.aim()),
            Task::Read => format!("could not read {object}: {words}"),
            Task::ReadClass(class) => {
                format!("storage class {:?} could not be read: {words}", class.as_str())
            }
        }
    }
}
