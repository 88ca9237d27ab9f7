//! What the page shows beside [`Explanation`], and who tells it.

use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::explain::{
    report::{Explanation, Observed, Verdict},
    snapshot::Unseen,
    subject::Subject,
};

/// An object by its words in a link: `pvc`, `shop`, `data`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub struct Named {
    /// Kind, as kubectl takes it.
    pub kind: String,
    /// Namespace, empty for what has none.
    #[serde(default)]
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// One thing that waits.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct WaitingRow {
    /// What: the object whose page says all.
    pub object: Named,
    /// A few words beside it: the node of an attachment, the volume of a pod.
    #[serde(default)]
    pub detail: String,
    /// The reason's code.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// How it stands.
    pub verdict: Verdict,
    /// Since when.
    #[serde(default)]
    pub since: Option<Timestamp>,
    /// When the wait ends by itself, if it does.
    #[serde(default)]
    pub until: Option<Timestamp>,
}

/// Everything that waits.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitingNow {
    /// What was looked at.
    pub observed: Observed,
    /// What waits.
    #[serde(default)]
    pub rows: Vec<WaitingRow>,
    /// What could not be read: nothing is said of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<Unseen>,
}

/// A volume that a node still has, or is to have.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Holding {
    /// The volume.
    pub volume: Named,
    /// The pod that uses it, if there is one.
    #[serde(default)]
    pub pod: Option<Named>,
    /// The reason's code, or the state of what is as it should be.
    pub reason: String,
    /// What it waits for.
    pub message: String,
    /// Since when.
    #[serde(default)]
    pub since: Option<Timestamp>,
}

/// What a node holds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct NodeNow {
    /// What was looked at.
    pub observed: Observed,
    /// The node's name.
    pub name: String,
    /// A few words: Ready, cordoned.
    pub headline: String,
    /// How it stands with a drain.
    pub verdict: Verdict,
    /// One sentence, with counts and estimate.
    pub summary: String,
    /// What it still has, that which lasts longest first.
    #[serde(default)]
    pub holdings: Vec<Holding>,
    /// What could not be read: nothing is said of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<Unseen>,
}

/// An answer, and what the command line prints of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Told<T> {
    /// The answer.
    pub value: T,
    /// The same as text, for a ticket.
    pub text: String,
}

/// Why there is no answer, for the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble(pub String);

/// An answer that takes a while.
pub type Answer<'a, T> = BoxFuture<'a, Result<Told<T>, Trouble>>;

/// Who knows what waits: a reader with the rights of the one who looks.
pub trait Source: Send + Sync {
    /// Everything that waits.
    fn waiting(&self) -> Answer<'_, WaitingNow>;
    /// One object.
    fn explain<'a>(&'a self, subject: &'a Subject) -> Answer<'a, Explanation>;
    /// What a node holds.
    fn node<'a>(&'a self, name: &'a str) -> Answer<'a, NodeNow>;
}
