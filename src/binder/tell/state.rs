//! Where claims and volumes stand, and why, as they are reported: the keys, and the reasons with the requests that fail.
//!
//! In: what was decided, and what failed. Out: values of [`crate::controller::report`], from which log, metrics and
//! `/debug/binder` are made.

use std::sync::Arc;

use apiserver::kinds::{Narrow, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{
    failure::Failure,
    reason::{ClaimReason, VolumeReason},
};
use crate::{
    binder::calls::Target,
    controller::{
        asked::Names,
        report::{self, Concerns, Reason, ReportKey, WallClock},
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
        let name = match self {
            Self::Claim(key) => key.to_string(),
            Self::Volume(name) => name.to_string(),
        };
        vec![(self.kind(), name)]
    }

    fn named(&self) -> Named {
        match self {
            Self::Claim(key) => Named::in_namespace(PersistentVolumeClaim::KIND, key.namespace(), key.name()),
            Self::Volume(name) => Named::in_cluster(PersistentVolume::KIND, name.as_str()),
        }
    }

    fn concerns(&self, other: Option<String>) -> Concerns {
        match self {
            Self::Claim(_) => Concerns { volume: other, ..Concerns::default() },
            Self::Volume(_) => Concerns { claim: other, ..Concerns::default() },
        }
    }
}

/// Why a claim or a volume is where it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// A claim.
    Claim(Arc<ClaimReason>),
    /// A volume.
    Volume(Arc<VolumeReason>),
}

impl Why {
    /// The code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Claim(reason) => reason.code(),
            Self::Volume(reason) => reason.code(),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Claim(reason) => reason.to_string(),
            Self::Volume(reason) => reason.to_string(),
        }
    }

    fn is_settled(&self) -> bool {
        match self {
            Self::Claim(reason) => reason.is_settled(),
            Self::Volume(reason) => reason.is_settled(),
        }
    }

    /// When the wait ends by itself, if it does.
    fn until(&self) -> Option<Instant> {
        match self {
            Self::Claim(reason) if let ClaimReason::HeldBack(why) = &**reason => Some(why.until()),
            Self::Volume(reason) if let VolumeReason::HeldBack(why) = &**reason => Some(why.until()),
            Self::Claim(_) | Self::Volume(_) => None,
        }
    }
}

/// A request that fails, and when the next is sent, if that has been settled.
pub(crate) type Failing = (Failure, Option<Instant>);

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

impl Reason for BinderReason {
    fn code(&self) -> &'static str {
        if self.failure.is_some() { "RetryBackoff" } else { self.why.code() }
    }

    fn decided(&self) -> &'static str {
        self.why.code()
    }

    fn state(&self) -> &'static str {
        self.phase
    }

    fn is_settled(&self) -> bool {
        self.failure.is_none() && self.why.is_settled()
    }

    fn message(&self) -> String {
        self.failure.as_ref().map_or_else(|| self.why.text(), Failure::text)
    }

    fn until(&self, clock: &WallClock) -> Option<Timestamp> {
        self.why.until().filter(|_| self.failure.is_none()).map(|until| clock.at(until))
    }

    fn facts(&self) -> Map<String, Value> {
        let Some(failure) = &self.failure else { return Map::new() };
        let meanwhile = json!({ "reason": self.why.code(), "message": self.why.text() });
        Map::from_iter([
            ("request".to_owned(), json!(failure.task.label())),
            ("outcome".to_owned(), json!(failure.outcome.label())),
            ("meanwhile".to_owned(), meanwhile),
        ])
    }
}

/// The report of a claim or volume in that phase, with the request about it that fails.
#[must_use]
pub(crate) fn report(
    (target, phase, why): (Target, &'static str, Why),
    failing: Option<&Failing>,
    (attempt, is_decision): (u32, bool),
) -> Report {
    let (failure, next) = failing.cloned().unzip();
    let report = Report::of(target, BinderReason { phase, why, failure });
    Report { next: next.flatten(), attempt, is_decision, ..report }
}
