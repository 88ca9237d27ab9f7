//! The links of a chain, each with its verdict: what the rooms of the kinds put together, and what the answer is made of.

use serde_json::{Value, json};

use super::{
    report::{Action, Blocker, Next, Step, Verdict},
    subject::Subject,
};
use k8s_openapi::jiff::Timestamp;

/// How it stands with one object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Link {
    /// As it is shown.
    pub step: Step,
    /// Whether a person has to act.
    pub verdict: Verdict,
    /// What may be done about it, and what never.
    pub actions: Vec<Action>,
}

impl Link {
    /// A link of an object that can be a subject.
    pub fn new(subject: &Subject, reason: &str, message: impl Into<String>, verdict: Verdict) -> Self {
        Self::of(subject.json(), reason, message, verdict)
    }

    /// A link of anything that has kind and name.
    pub fn of(object: Value, reason: &str, message: impl Into<String>, verdict: Verdict) -> Self {
        let step = Step {
            object,
            detail: String::new(),
            reason: reason.to_owned(),
            message: message.into(),
            is_blocker: false,
            since: None,
            next: None,
            blocked_by: Vec::new(),
            docs: None,
        };
        Self { step, verdict, actions: Vec::new() }
    }

    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.step.detail = detail.into();
        self
    }

    pub fn since(mut self, since: Option<Timestamp>) -> Self {
        self.step.since = since;
        self
    }

    pub fn next(mut self, action: &str, condition: Option<&str>) -> Self {
        let condition = condition.map(str::to_owned);
        self.step.next = Some(Next { action: action.to_owned(), not_before: None, at: None, condition });
        self
    }

    pub fn next_at(mut self, action: &str, at: Timestamp, condition: Option<&str>) -> Self {
        let condition = condition.map(str::to_owned);
        self.step.next = Some(Next { action: action.to_owned(), not_before: None, at: Some(at), condition });
        self
    }

    pub fn blocked_by(mut self, object: Value, why: impl Into<String>) -> Self {
        self.step.blocked_by.push(Blocker { object, why: why.into() });
        self
    }

    pub fn act(mut self, action: Action) -> Self {
        self.actions.push(action);
        self
    }
}

/// The link that decides: the last of those that stand worst, as what it waits for is what all before it wait for. None if all
/// is well.
pub(super) fn deciding(links: &[Link]) -> Option<&Link> {
    links.iter().filter(|link| link.verdict != Verdict::Healthy).max_by_key(|link| link.verdict)
}

/// A program of a driver as an object of the chain.
pub(super) fn program(kind: &str, driver: &str) -> Value {
    json!({ "kind": kind, "name": driver })
}
