//! What a change leads to, while it is gathered.

use apiserver::kinds::ObjectRef;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::explain::{
    report::{Risk, Verdict},
    snapshot::Snapshot,
};

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

/// What a change leads to, while it is gathered.
#[derive(Debug, Default)]
pub(super) struct Story {
    pub summary: String,
    pub effects: Vec<Effect>,
    pub assumed: Vec<String>,
    pub verdict: Option<Verdict>,
}

impl Story {
    pub fn assume(&mut self, text: impl Into<String>) {
        self.assumed.push(text.into());
    }

    pub fn tell(
        &mut self,
        when: When,
        risk: Risk,
        action: &'static str,
        object: &(impl ToString + ?Sized),
        text: impl Into<String>,
    ) {
        let (object, text) = (object.to_string(), text.into());
        self.effects.push(Effect { when, at: None, risk, action, object, text });
    }

    /// The object is not there, or was not read.
    pub fn missing(snapshot: &Snapshot, object: &ObjectRef) -> Self {
        let (verdict, words) = if snapshot.is_absent(object) {
            (Verdict::NotFound, "does not exist")
        } else {
            (Verdict::Forbidden, "could not be read")
        };
        Self { summary: format!("{object} {words}"), verdict: Some(verdict), ..Self::default() }
    }
}
