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

pub(crate) mod annotations;
mod answers;
pub mod calls;
mod changes;
pub mod controller;
pub mod decide;
mod doubt;
pub mod dry_run;
pub mod durations;
pub(crate) mod events;
pub(crate) mod failure;
pub(crate) mod matching;
pub(crate) mod metrics;
pub(crate) mod patches;
mod plan;
mod queue;
pub(crate) mod reasons;
pub(crate) mod recorder;
pub(crate) mod reports;
pub(crate) mod requests;
mod second_writer;
pub(crate) mod sizes;
pub(crate) mod state;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use apiserver::{call::Caller, events::EventRecorder, leadership::Leadership, tables::Objects};
use telemetry::traces::Traces;

use crate::{
    controller::Runner,
    metrics::{Alarms, Metrics, Requester},
};
use controller::Planner;
use doubt::Doubts;
use metrics::BinderMetrics;
use requests::{Hands, Requests};
use state::Plugins;

pub use state::BinderOptions;

/// Plugins that recycle, delete and make volumes, and what they do outside of the planner.
pub type WithPlugins = (Box<dyn Plugins>, Box<dyn Hands>);

/// The controller over the shared tables, with what runs it. Each bind that is sampled is traced.
///
/// # Errors
/// See [`Metrics::register`].
pub fn runner(
    objects: &Arc<Objects>,
    caller: &Caller,
    leadership: Leadership,
    events: EventRecorder,
    (options, plugins): (BinderOptions, Option<WithPlugins>),
    (metrics, alarms): (&Metrics, Alarms),
    traces: Traces,
) -> Result<Runner<Planner, Requests>, prometheus::Error> {
    let mut planner = Planner::new(Arc::clone(objects), options);
    planner.state.doubts = Doubts::lasting(caller.settle_time());
    planner.recorder.durations.binds.traces = traces;
    let caller = caller.of_subsystem(<&str>::from(Requester::Binder));
    let mut requests = Requests::new(&caller, leadership.clone(), BinderMetrics::new(metrics)?);
    if let Some((plugins, hands)) = plugins {
        planner.state.plugins = plugins;
        requests.hands = Some(hands);
    }
    let parts = (planner, requests);
    let runner = Runner::new(parts, Arc::clone(objects), leadership, events, (metrics, alarms))?;
    sizes::register(Arc::clone(objects), runner.board(), metrics)?;
    Ok(runner)
}
