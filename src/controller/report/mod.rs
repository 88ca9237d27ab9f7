//! Report: what a controller says of one key that it looked at. It is the one value from which everything that operators
//! see is made.
//!
//! ```text
//!    decision ──▶ Report { key, reason, next, … } ──▶ Reporter ──┬─▶ log line of a change, history
//!                                                       │        ├─▶ mooring_decisions_total
//!                                                       │        └─▶ Executor::reported: the controller's own metrics
//!                                                       ▼
//!                                                     Board ─────┬─▶ mooring_waiting
//!                                                                └─▶ /debug/…
//! ```
//!
//! A controller brings a [`ReportKey`] for its keys and a [`Reason`] for why they are where they are. The rest is here: the
//! memory of each key ([`board`], [`gauges`], [`page`]), and what changed ([`reporter`]). Nothing that is decided rests on it.
//! Reason codes are CamelCase, and the same in events, logs, metrics and pages; once published they keep their meaning (L18).

pub(crate) mod board;
pub mod events;
pub(crate) mod gauges;
pub(crate) mod page;
pub mod reporter;
#[cfg(test)]
mod tests;

use std::fmt;

use apiserver::ids::ResourceVersion;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::asked::Names;
use crate::telemetry::transition::Named;

/// Where one key stands, and why.
#[derive(Clone, Debug)]
pub struct Report<K, R> {
    /// The key.
    pub key: K,
    /// Its state and the reason for it; `None` if there is nothing left to report on.
    pub reason: Option<R>,
    /// When it is looked at again although nothing happens.
    pub next: Option<Instant>,
    /// Which attempt the next request is, from 1.
    pub attempt: u32,
    /// The resourceVersion of the object on which it was decided, if there is one.
    pub revision: Option<ResourceVersion>,
    /// Its state before a write of ours, if that may have changed it since the last report.
    pub from: Option<&'static str>,
    /// The other object that this is about, under its kind, if the key does not name it: the volume of a claim, the claim of a
    /// volume.
    pub other: Option<(&'static str, String)>,
    /// Whether a decision came to this. If not, a request about the key has failed, or works again.
    pub is_decision: bool,
}

impl<K, R> Report<K, R> {
    /// That a key stands there, and no more.
    pub fn of(key: K, reason: R) -> Self {
        Self { reason: Some(reason), ..Self::gone(key) }
    }

    /// That a key is gone.
    pub fn gone(key: K) -> Self {
        let (reason, next, revision, from, other) = (None, None, None, None, None);
        Self { key, reason, next, attempt: 1, revision, from, other, is_decision: false }
    }
}

/// What is reported on.
pub trait ReportKey: Ord + Clone + fmt::Debug + Send + Sync + 'static {
    /// The kinds whose decisions and waits are counted: values of the label `kind`.
    const KINDS: &'static [&'static str];

    /// Its kind: the first one, unless there are several.
    fn kind(&self) -> &'static str {
        Self::KINDS.first().copied().unwrap_or_default()
    }
    /// Names by which it is found, each under its kind.
    fn names(&self) -> Names;
    /// The object as logs name it.
    fn named(&self) -> Named;
    /// The other objects that a change concerns, each under its kind, beside the one that the report names.
    fn concerns(&self) -> Names {
        Names::new()
    }
}

/// The state of a key, and why it is in it; printed, a sentence for people.
pub trait Reason: Clone + PartialEq + fmt::Debug + fmt::Display + Send + Sync + 'static {
    /// The state of a key of which nothing has been reported; without one, that of the first report.
    const INITIAL: Option<&'static str> = None;

    /// The reason's code, CamelCase.
    fn code(&self) -> &'static str;
    /// The code of what was decided, which is another one while a request about it fails.
    fn decided(&self) -> &'static str {
        self.code()
    }
    /// The state, CamelCase.
    fn state(&self) -> &'static str;
    /// Whether it waits for nothing.
    fn is_settled(&self) -> bool;
    /// Whether the page shows it also while it waits for nothing.
    fn is_shown_settled(&self) -> bool {
        false
    }
    /// Whether the log has a line for each change.
    fn is_logged(&self) -> bool {
        true
    }
    /// When the wait ends by itself, if it does.
    fn until(&self, _clock: &WallClock) -> Option<Timestamp> {
        None
    }
    /// Names by which the row is found, beside those of the key.
    fn names(&self) -> Names {
        Vec::new()
    }
    /// What the reason speaks of, by name.
    fn facts(&self) -> Map<String, Value> {
        Map::new()
    }
}

/// What time an instant is for people, by the wall clock as it stands when a page is made.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    wall: Timestamp,
    now: Instant,
}

impl WallClock {
    /// As it stands.
    pub(crate) fn now() -> Self {
        Self { wall: Timestamp::now(), now: Instant::now() }
    }

    /// The time of an instant, to the second.
    pub(crate) fn at(&self, instant: Instant) -> Timestamp {
        let time = match instant.checked_duration_since(self.now) {
            Some(ahead) => self.wall.checked_add(ahead),
            None => self.wall.checked_sub(self.now.saturating_duration_since(instant)),
        };
        let time = time.unwrap_or(Timestamp::MAX);
        Timestamp::from_second(time.as_second()).unwrap_or(time)
    }
}
