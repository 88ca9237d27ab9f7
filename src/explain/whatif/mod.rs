//! What would happen, before it is done: nothing is written.
//!
//! In: a snapshot, what is assumed of the controllers, and a change. Out: what both controllers would do next in a copy
//! with that change, where it differs from what they would do without it; and what is assumed of those others who have a
//! hand in it (eviction, pod garbage collection, the kubelet, provisioners), a sentence each.

mod bind;
mod nodes;
mod objects;
mod text;

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::{
    assumptions::Assumptions,
    report::{API_VERSION, Risk, Verdict},
    snapshot::{Snapshot, Unseen},
};
use crate::kube_api::{
    ids::{ClaimKey, NodeName, PodKey, ResourceVersion},
    kinds::{Narrow, ObjectRef},
};

/// What is to be tried.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A claim, as in a manifest, is created in this namespace.
    Bind(String, Box<Value>),
    /// A node is declared out of service.
    Taint(NodeName),
    /// A node's object is deleted.
    DeleteNode(NodeName),
    /// A node takes no new pods.
    Cordon(NodeName),
    /// A claim is deleted.
    DeleteClaim(ClaimKey),
    /// A pod is deleted.
    DeletePod(PodKey),
}

/// When something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum When {
    /// At once.
    Now,
    /// When others have done what is assumed of them.
    Then,
    /// Not before this.
    Later,
}

/// One thing that happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Effect {
    /// When.
    pub when: When,
    /// At what time, if there is one.
    pub at: Option<Timestamp>,
    /// What it costs.
    pub risk: Risk,
    /// What: `ForceDetach`, `DataDeleted`.
    pub action: &'static str,
    /// To what: a volume, a pod.
    pub object: String,
    /// A sentence.
    pub text: String,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Consequences {
    /// Version of the form.
    pub api_version: &'static str,
    /// `Consequences`.
    pub kind: &'static str,
    /// The change.
    pub change: String,
    /// Whether it does harm (blocked), changes something that lasts (waiting), or not (healthy).
    pub verdict: Verdict,
    /// One sentence.
    pub summary: String,
    /// What happens, the soonest first, and of those the most dangerous.
    pub effects: Vec<Effect>,
    /// What is assumed of others.
    pub assumed: Vec<String>,
    /// When it was looked at.
    pub at: Timestamp,
    /// What could not be read.
    pub unseen: Vec<Unseen>,
}

/// What a change leads to, while it is gathered.
#[derive(Debug, Default)]
struct Story {
    summary: String,
    effects: Vec<Effect>,
    assumed: Vec<String>,
    verdict: Option<Verdict>,
}

impl Story {
    fn assume(&mut self, text: impl Into<String>) {
        self.assumed.push(text.into());
    }

    fn tell(
        &mut self,
        when: When,
        risk: Risk,
        action: &'static str,
        object: &(impl ToString + ?Sized),
        text: impl Into<String>,
    ) {
        self.effects.push(Effect {
            when,
            at: None,
            risk,
            action,
            object: object.to_string(),
            text: text.into(),
        });
    }

    /// The object is not there, or was not read.
    fn missing(snapshot: &Snapshot, object: &ObjectRef) -> Self {
        let (verdict, words) = if snapshot.is_absent(object) {
            (Verdict::NotFound, "does not exist")
        } else {
            (Verdict::Forbidden, "could not be read")
        };
        Self { summary: format!("{object} {words}"), verdict: Some(verdict), ..Self::default() }
    }
}

/// Tries a change.
#[must_use]
pub fn whatif(snapshot: &Snapshot, assumptions: &Assumptions, change: &Change) -> Consequences {
    let (words, mut story) = match change {
        Change::Bind(namespace, claim) => {
            ("bind".to_owned(), bind::story(snapshot, assumptions, namespace, claim))
        }
        Change::Taint(node) => (format!("taint node/{node}"), nodes::taint(snapshot, assumptions, node)),
        Change::DeleteNode(node) => {
            (format!("delete node/{node}"), nodes::delete(snapshot, assumptions, node))
        }
        Change::Cordon(node) => (format!("cordon node/{node}"), nodes::cordon(snapshot, assumptions, node)),
        Change::DeleteClaim(claim) => {
            (format!("delete pvc/{claim}"), objects::delete_claim(snapshot, assumptions, claim))
        }
        Change::DeletePod(pod) => {
            (format!("delete pod/{pod}"), objects::delete_pod(snapshot, assumptions, pod))
        }
    };
    story.effects.sort_by(|one, other| {
        let key = |it: &Effect| (it.when, std::cmp::Reverse(it.risk), it.at);
        key(one).cmp(&key(other)).then_with(|| (one.action, &one.object).cmp(&(other.action, &other.object)))
    });
    let worst = story.effects.iter().map(|effect| effect.risk).max();
    let by_risk = match worst {
        Some(Risk::Danger) => Verdict::Blocked,
        Some(Risk::Care) => Verdict::Waiting,
        Some(Risk::Safe) | None => Verdict::Healthy,
    };
    Consequences {
        api_version: API_VERSION,
        kind: "Consequences",
        change: words,
        verdict: story.verdict.unwrap_or(by_risk),
        summary: story.summary,
        effects: story.effects,
        assumed: story.assumed,
        at: snapshot.taken_at,
        unseen: snapshot.unseen.clone(),
    }
}

/// A revision later than that of this object.
fn later<T: Narrow>(object: &T) -> ResourceVersion {
    ResourceVersion(object.metadata().resource_version.0.saturating_add(1))
}

/// The object goes from the copy, and is known to be gone.
fn remove<T: crate::state::Stored>(
    copy: &mut Snapshot,
    key: &T::Key,
    mut object: T,
    set: fn(&mut T, ResourceVersion),
) {
    let revision = later(&object);
    set(&mut object, revision);
    copy.objects.delete(object);
    copy.note_absent(T::object_ref(key.clone()));
}
