//! What the doctor says, as values.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::explain::{
    report::{Observed, Verdict},
    snapshot::Unseen,
};

/// How bad it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Severity {
    /// A person has to act.
    #[default]
    Blocked,
    /// It goes on by itself.
    Waiting,
    /// Nothing waits for it now.
    Risk,
}

impl Severity {
    /// As an explanation says it.
    pub(super) fn of(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Blocked => Self::Blocked,
            Verdict::Waiting | Verdict::Forbidden => Self::Waiting,
            Verdict::Healthy | Verdict::NotFound => Self::Risk,
        }
    }
}

/// One cause, and what suffers from it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// The reason's code.
    pub reason: &'static str,
    /// The class, driver, node or object that is the cause; empty if there is no single one.
    pub about: String,
    /// How many objects.
    pub count: usize,
    /// Of what: `claim`.
    pub unit: &'static str,
    /// How many pods wait because of it.
    pub pods: usize,
    /// Since when the first of them has waited, as far as that is known.
    pub oldest: Option<Timestamp>,
    /// When it goes on, if the controller says so.
    pub next_at: Option<Timestamp>,
    /// A sentence.
    pub summary: String,
    /// Some of the objects.
    pub examples: Vec<Value>,
    /// The command that explains it.
    pub command: Vec<String>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Findings {
    /// Version of the form.
    pub api_version: &'static str,
    /// `Findings`.
    pub kind: &'static str,
    /// How it stands with the whole.
    pub verdict: Verdict,
    /// What was looked at.
    pub observed: Observed,
    /// The worst first.
    pub findings: Vec<Finding>,
    /// Pods that wait, by namespace.
    pub waiting_pods: BTreeMap<String, usize>,
    /// What was looked at and is as it should be, a line each.
    pub fine: Vec<String>,
    /// What was not looked at, so that nothing is said of it.
    pub unchecked: Vec<Unseen>,
}
