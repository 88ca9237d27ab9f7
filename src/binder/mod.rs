//! The binder: brings claims and volumes together, and takes them apart again.
//!
//! In: claims, volumes, classes and pods from the shared tables. Out: patches of claims and volumes,
//! events, metrics. [`decide`] is pure; [`controller`] owns what has to be remembered between decisions,
//! [`plan`] says which may run now, and [`requests`] sends them.
//!
//! ```text
//! tables ─▶ changes ─▶ queue ─▶ plan: a key's turn ─▶ decide (matching) ─▶ calls ─▶ requests ─▶ API server
//!              ▲                                        └▶ recorder: events, reports, measures        │
//!              └──────────────────────────────────────── answers ────────────────────────────────────┘
//! ```
//!
//! | room | what is in it |
//! |---|---|
//! | [`state`] | what decisions are made on |
//! | [`changes`], [`answers`] | what a change or an answer means for the state, and which keys are looked at again |
//! | [`plan`] | which keys are due, and the turn of each, in the order that is safe |
//! | [`matching`] | which volume a claim gets (smallest fit: [`matching::choose_volume`]), and which claim a volume |
//! | [`decide`] | what to do about one claim or volume: one step, pure (order of a bind: [`decide::binding`]) |
//! | [`crate::host_plugins`] | volumes that are recycled, made or deleted here, behind [`state::Plugins`]; off unless asked for |
//! | [`calls`], [`patches`] | a step as a request |
//! | [`reasons`], [`events`], [`failure`] | reasons, what fails, and what users hear of both: tables |
//! | [`recorder`], [`reports`] | the one memory of each key, and what is reported of it |
//! | [`metrics`], [`durations`], [`sizes`] | what is measured |
//!
//! The controller's other parts are [`queue`], [`doubt`] (writes of a bind without an answer) and [`second_writer`] (what we wrote, and what others make of it).

#![cfg_attr(
    not(feature = "host-plugins"),
    allow(dead_code, reason = "some patches, and texts of events, are the plugins' alone")
)]

pub mod annotations;
mod answers;
pub mod calls;
mod changes;
pub mod controller;
pub mod decide;
pub mod doubt;
pub mod dry_run;
pub mod durations;
pub(crate) mod events;
pub(crate) mod failure;
pub(crate) mod matching;
pub(crate) mod metrics;
pub(crate) mod patches;
mod plan;
pub mod queue;
pub(crate) mod reasons;
pub(crate) mod recorder;
pub(crate) mod reports;
pub mod requests;
pub mod second_writer;
pub(crate) mod sizes;
pub mod state;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use apiserver::{call::Caller, events::EventRecorder, leadership::Leadership, tables::Objects};
use telemetry::traces::Traces;
use tokio_util::sync::CancellationToken;

use crate::{
    controller::{Runner, report::board::Board},
    metrics::{Alarms, Metrics, Requester},
    telemetry::history::History,
};
use calls::Target;
use controller::Planner;
use doubt::Doubts;
use metrics::BinderMetrics;
use reports::BinderReason;
use requests::{Hands, Requests};
use sizes::Sizes;
use state::Plugins;

pub use state::BinderOptions;

/// The binder, ready to run.
#[derive(Debug)]
pub struct Binder {
    runner: Runner<Planner, Requests>,
}

impl Binder {
    /// Puts the binder together; it is told of changes from now on.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(
        objects: Arc<Objects>,
        caller: &Caller,
        leadership: Leadership,
        events: EventRecorder,
        options: BinderOptions,
        metrics: &Metrics,
        alarms: Alarms,
    ) -> Result<Self, prometheus::Error> {
        let mut planner = Planner::new(Arc::clone(&objects), options);
        planner.state.doubts = Doubts::lasting(caller.settle_time());
        let caller = caller.of_subsystem(Requester::Binder.label());
        let parts = (planner, Requests::new(&caller, leadership.clone(), BinderMetrics::new(metrics)?));
        let runner = Runner::new(parts, Arc::clone(&objects), leadership, events, (metrics, alarms))?;
        metrics.register(&Sizes::new(objects, runner.board())?)?;
        Ok(Self { runner })
    }

    /// The same with a trace of each bind that is sampled.
    #[must_use]
    pub fn with_traces(mut self, traces: Traces) -> Self {
        self.runner.controller_mut().recorder.durations.trace(traces);
        self
    }

    /// The same with a history in which changes are remembered.
    #[must_use]
    pub fn with_history(mut self, history: History) -> Self {
        self.runner.remember(history);
        self
    }

    /// The same with plugins that recycle, delete and make volumes.
    #[must_use]
    pub fn with_plugins(mut self, plugins: Box<dyn Plugins>, hands: Box<dyn Hands>) -> Self {
        self.runner.controller_mut().state.plugins = plugins;
        self.runner.executor_mut().hands = Some(hands);
        self
    }

    /// Why each claim and volume waits; stays readable while the binder runs.
    #[must_use]
    pub fn board(&self) -> Arc<Board<Target, BinderReason>> {
        self.runner.board()
    }

    /// See [`Runner::run`].
    pub async fn run(self, shutdown: CancellationToken) {
        self.runner.run(shutdown).await;
    }
}
