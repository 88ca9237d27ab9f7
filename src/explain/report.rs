//! The answer, as values: what text, JSON and pages are printed from.
//!
//! The JSON form is `explain/v1`: fields are added, never renamed or removed, and reason codes keep their meaning.

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use strum::IntoStaticStr;

use super::{
    age,
    snapshot::{Snapshot, Unseen},
};

/// Version of the JSON form.
pub const API_VERSION: &str = "explain/v1";

/// How it stands with the subject; decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, IntoStaticStr)]
pub enum Verdict {
    /// As it should be.
    Healthy,
    /// It goes on by itself.
    Waiting,
    /// A person has to act.
    Blocked,
    /// There is no such object.
    NotFound,
    /// The reader may not see enough to tell.
    Forbidden,
}

impl Verdict {
    /// Of what ends by itself within minutes, unless something is wrong.
    pub(super) fn of_wait(since: Option<Timestamp>, now: Timestamp) -> Self {
        if age::is_long(since, now) { Self::Blocked } else { Self::Waiting }
    }

    /// Exit code of the commands that ask (0 healthy, 1 waiting, 2 blocked, 3 not found, 6 forbidden).
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Healthy => 0,
            Self::Waiting => 1,
            Self::Blocked => 2,
            Self::NotFound => 3,
            Self::Forbidden => 6,
        }
    }
}

/// Who looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The same, and the daemon, for its timers, pauses and history.
    Daemon,
    /// A reader with the user's own rights: what only the controller knows is given as a range.
    Offline,
}

/// What was looked at, and when.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Observed {
    /// Revision of the newest list or object, if there is one.
    pub resource_version: Option<String>,
    /// When.
    pub at: Timestamp,
    /// By whom.
    pub source: Source,
}

impl Observed {
    /// What a reader with the user's own rights has read.
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let resource_version = snapshot.revision.map(|revision| revision.to_string());
        Self { resource_version, at: snapshot.taken_at, source: Source::Offline }
    }
}

/// Something that happens next by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Next {
    /// What: `ForceDetach`, `CreateVolumeAttachment`.
    pub action: String,
    /// Not before this time.
    pub not_before: Option<Timestamp>,
    /// At this time at the latest.
    pub at: Option<Timestamp>,
    /// If this still holds then.
    pub condition: Option<String>,
}

/// What a step waits for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Blocker {
    /// Kind, name and namespace; for a program (an attacher, a provisioner), kind `Driver` and its name.
    pub object: Value,
    /// Why.
    pub why: String,
}

/// A link of the chain, from the pod to the node.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// Kind, name and namespace.
    pub object: Value,
    /// A few words beside the name: size, modes, phase.
    pub detail: String,
    /// The reason's code; for what is as it should be, the state (`Bound`, `Attached`).
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// Whether the chain is stuck here.
    pub is_blocker: bool,
    /// Since when.
    pub since: Option<Timestamp>,
    /// What happens next.
    pub next: Option<Next>,
    /// What it waits for.
    pub blocked_by: Vec<Blocker>,
    /// Page about the reason.
    pub docs: Option<String>,
}

/// One thing that is wrong with a candidate.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Fault {
    /// The code.
    pub reason: String,
    /// The facts: `10Gi < 20Gi`.
    pub detail: String,
}

/// A volume that a claim might take, or a claim that might take a volume.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// Columns beside it: size, modes, class.
    pub size: String,
    /// Access modes, short.
    pub modes: String,
    /// Class.
    pub class: String,
    /// All that is wrong with it; empty if it fits.
    pub faults: Vec<Fault>,
}

/// What it costs to do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Risk {
    /// Nothing is lost, in any state of the cluster.
    Safe,
    /// It has a price, or is right only if something is so that no object shows.
    Care,
    /// Never: data is lost or a disk written from two machines.
    Danger,
}

/// Something a person may do, or must not.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Action {
    /// What it costs.
    pub risk: Risk,
    /// A sentence.
    pub text: String,
    /// The command, as words; none if it is nothing to type.
    pub command: Vec<String>,
}

/// Who wrote what, or that a program is there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Evidence {
    /// When, if that is known.
    pub at: Option<Timestamp>,
    /// From where: `managedFields`, `event`, `lease`.
    pub from: String,
    /// A sentence.
    pub text: String,
}

/// A change of state in the past.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Happened {
    /// When.
    pub at: Timestamp,
    /// A sentence.
    pub text: String,
}

/// The answer about one object.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// [`API_VERSION`].
    #[serde(skip_deserializing)]
    pub api_version: &'static str,
    /// `Explanation`.
    #[serde(skip_deserializing)]
    pub kind: &'static str,
    /// Kind, name, namespace and UID.
    pub subject: Value,
    /// A few words beside the name: size, modes, class, phase, age.
    pub headline: String,
    /// How it stands.
    pub verdict: Verdict,
    /// The code of the reason that decides the verdict.
    pub reason: String,
    /// One sentence: who waits for whom, until when.
    pub summary: String,
    /// What was looked at.
    pub observed: Observed,
    /// The chain, from the pod to the node, as far as it goes.
    pub steps: Vec<Step>,
    /// What might fit, with all that is wrong with each, the nearest first.
    pub candidates: Vec<Candidate>,
    /// What shows it.
    pub evidence: Vec<Evidence>,
    /// What happened so far, the oldest first.
    pub timeline: Vec<Happened>,
    /// What may be done, the safest first, and what never.
    pub actions: Vec<Action>,
    /// What could not be read.
    pub unseen: Vec<Unseen>,
    /// What cannot be known, a sentence each.
    pub unknown: Vec<String>,
}
