//! Attach/detach: which volume is on which node.
//!
//! ```text
//! pods, claims, volumes ─▶ desired ┐                   ┌─▶ calls ─▶ requests ─▶ API server
//!                                  ├─▶ plan (decide) ──┤                             │
//! attachments, nodes ────▶ actual ─┘                   └─▶ reports, events, facts    │
//!                            ▲                                                       │
//!                            └────────────────── answers ◀───────────────────────────┘
//! ```
//!
//! * [`controller`]: the state machine: its state and its entry points
//! * `observe`: what changed objects mean for [`desired`] (from a pod to the nodes that must have a volume) and
//!   [`actual`] (where volumes are attached or may be, and what each node's status says), which mark keys of the `queue`
//! * `plan`: one key's turn, in steps whose order is safety; [`decide`] has its rules, which are pure
//! * [`calls`]: requests as values; [`dispatcher`]: how many of them at once; `requests`: the executor
//! * `answers`: what each answer means
//! * [`guard`], `stand_off`, `standby`: what holds writes back or outlives a restart: a second controller, waits for force
//! * `reports`, `announce`, `unresolved`: what is reported of keys, and which events hold of them; [`reasons`], `events`: codes
//!   and texts; [`phases`], [`metrics`], `durations`, [`backlog`]: what is measured of reports and [`facts`]
//!
//! [`AttachDetach`] is all of that at run time; [`dry_run`] asks what it would do.

pub mod actual;
mod announce;
mod answers;
pub mod backlog;
pub mod calls;
pub mod clock;
pub mod controller;
pub mod decide;
pub mod desired;
pub mod dispatcher;
pub mod dry_run;
pub mod durations;
mod events;
pub mod facts;
pub mod guard;
mod known;
pub mod metrics;
mod observe;
pub mod options;
pub mod phases;
mod plan;
mod queue;
pub mod reasons;
mod reports;
mod requests;
mod stand_off;
mod standby;
mod unresolved;

use std::sync::Arc;

use apiserver::{
    call::Caller, events::EventRecorder, leadership::Leadership, lease_note::LeaseNote, tables::Objects,
};
use k8s_openapi::jiff::Timestamp;
use telemetry::traces::Traces;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    controller::{Runner, report::board::Board},
    metrics::{Alarms, Metrics, Requester},
    telemetry::history::History,
};
use clock::Clock;
use controller::Controller;
use metrics::AttachDetachMetrics;
pub use options::AttachDetachOptions;
use reasons::{AttachDetachKey, AttachDetachReason};
use requests::Requests;

/// The attach/detach controller, ready to run.
#[derive(Debug)]
pub struct AttachDetach {
    runner: Runner<Controller, Requests>,
}

impl AttachDetach {
    /// The controller over the shared tables.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(
        objects: Arc<Objects>,
        caller: &Caller,
        leadership: Leadership,
        events: EventRecorder,
        options: AttachDetachOptions,
        metrics: &Metrics,
        alarms: Alarms,
    ) -> Result<Self, prometheus::Error> {
        let of_ours = AttachDetachMetrics::new(metrics)?;
        let clock = Clock::new(Timestamp::now(), Instant::now());
        let mut controller = Controller::new(Arc::clone(&objects), options, clock);
        controller.settle_time = caller.settle_time();
        let requests = Requests::new(&caller.of_subsystem(Requester::AttachDetach.label()), of_ours);
        let parts = (controller, requests);
        let runner = Runner::new(parts, Arc::clone(&objects), leadership, events, (metrics, alarms))?;
        backlog::register(runner.board(), objects, metrics)?;
        Ok(Self { runner })
    }

    /// The same, whose waits for force the lease carries, if there is one (S6).
    #[must_use]
    pub fn with_lease_note(mut self, note: Option<LeaseNote>) -> Self {
        if let Some(note) = note.clone() {
            self.runner.controller_mut().force_waits.follow(note);
        }
        self.runner.executor_mut().lease_note = note;
        self
    }

    /// The same with a trace of each attach and detach that is sampled.
    #[must_use]
    pub fn with_traces(mut self, traces: Traces) -> Self {
        self.runner.executor_mut().metrics.trace(traces);
        self
    }

    /// The same with a history in which changes are remembered.
    #[must_use]
    pub fn with_history(mut self, history: History) -> Self {
        self.runner.remember(history);
        self
    }

    /// What every volume waits for; stays readable while it runs.
    #[must_use]
    pub fn board(&self) -> Arc<Board<AttachDetachKey, AttachDetachReason>> {
        self.runner.board()
    }

    /// See [`Runner::run`].
    pub async fn run(self, shutdown: CancellationToken) {
        self.runner.run(shutdown).await;
    }
}
