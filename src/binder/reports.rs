//! Where claims and volumes stand, and why, as they are reported: the keys, and the reasons with the requests that fail.
//!
//! In: what was decided, and what failed. Out: values of [`crate::controller::report`], from which log, metrics and
//! `/debug/binder` are made.

use std::{fmt, sync::Arc};

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};
use thiserror::Error;
use tokio::time::Instant;

use super::{
    failure::Failure,
    reasons::{ClaimReason, ReasonRow, VolumeReason, WaitsFor},
};
use crate::{
    binder::calls::Target,
    controller::{
        asked::Names,
        report::{self, Reason, ReportKey, WallClock},
    },
    telemetry::transition::Named,
};

/// What is reported of one key.
pub type Report = report::Report<Target, BinderReason>;

impl ReportKey for Target {
    const KINDS: &'static [&'static str] = &["claim", "volume"];

    fn kind(&self) -> &'static str {
        match self {
            Self::Claim(_) => "claim",
            Self::Volume(_) => "volume",
        }
    }

    fn names(&self) -> Names {
        vec![(self.kind(), self.name())]
    }

    fn named(&self) -> Named {
        Named::by(self.object().kind(), &self.name())
    }
}

/// Why a claim or a volume is where it is.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Why {
    /// A claim.
    #[error("{0}")]
    Claim(Arc<ClaimReason>),
    /// A volume.
    #[error("{0}")]
    Volume(Arc<VolumeReason>),
}

impl Why {
    fn row(&self) -> ReasonRow {
        match self {
            Self::Claim(reason) => reason.row(),
            Self::Volume(reason) => reason.row(),
        }
    }

    /// Whether nothing is left to wait for.
    pub fn is_settled(&self) -> bool {
        self.row().2 == WaitsFor::Nothing
    }

    /// What only who may read the page is told.
    fn facts(&self) -> Map<String, Value> {
        match self {
            Self::Volume(reason) if let VolumeReason::UsedByPods(pods) = &**reason => {
                let pods: Vec<String> = pods.iter().map(ToString::to_string).collect();
                Map::from_iter([("pods".to_owned(), json!(pods))])
            }
            _ => Map::new(),
        }
    }

    /// When the wait ends by itself, if it does.
    fn until(&self) -> Option<Instant> {
        match self {
            Self::Claim(reason) if let ClaimReason::HeldBack(_, until) = **reason => Some(until),
            Self::Volume(reason) if let VolumeReason::HeldBack(_, until) = **reason => Some(until),
            Self::Claim(_) | Self::Volume(_) => None,
        }
    }
}

/// The phase of a claim or volume, why it is in it, and the request about it that fails, if one does: that is why it
/// waits then.
#[derive(Clone, Debug, PartialEq)]
pub struct BinderReason {
    /// Its phase.
    pub phase: &'static str,
    /// Why it is in it.
    pub why: Why,
    /// What fails.
    pub failure: Option<Failure>,
}

impl fmt::Display for BinderReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.failure {
            Some(failure) => f.write_str(&failure.text()),
            None => self.why.fmt(f),
        }
    }
}

impl Reason for BinderReason {
    fn code(&self) -> &'static str {
        if self.failure.is_some() { "RetryBackoff" } else { self.why.row().0 }
    }

    fn decided(&self) -> &'static str {
        self.why.row().0
    }

    fn state(&self) -> &'static str {
        self.phase
    }

    fn is_settled(&self) -> bool {
        self.failure.is_none() && self.why.is_settled()
    }

    fn until(&self, clock: &WallClock) -> Option<Timestamp> {
        self.why.until().filter(|_| self.failure.is_none()).map(|until| clock.at(until))
    }

    fn facts(&self) -> Map<String, Value> {
        let Some(failure) = &self.failure else { return self.why.facts() };
        let meanwhile = json!({ "reason": self.why.row().0, "message": self.why.to_string() });
        let mut facts = self.why.facts();
        facts.extend([
            ("request".to_owned(), json!(failure.task.label())),
            ("outcome".to_owned(), json!(<&str>::from(failure.outcome))),
            ("meanwhile".to_owned(), meanwhile),
        ]);
        facts
    }
}
