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
//! | room | what is in it |
//! |---|---|
//! | [`controller`] | the state machine: its state and its entry points |
//! | [`state::desired`] | which volume must be on which node, from pods |
//! | [`state::actual`] | where volumes are attached or may be, and what each node's status says |
//! | `observe`, `answers` | what a changed object or an answer means for both, and which keys are looked at again |
//! | `queue`, `known` | which keys are due; what is known at one moment |
//! | `plan` | the turn of a key, in steps whose order is safety |
//! | [`decide`] | the rules of a turn, which are pure; in [`decide::verdict`] the codes of waits |
//! | [`calls`], [`dispatcher`], `requests` | requests as values, how many of them at once, and the executor |
//! | [`guard`], `stand_off`, `deletions`, `take_over` | what holds writes back or outlives a restart: another controller, waits for force, deletions that others undo |
//! | [`reasons`], `unresolved`, `reports` | where keys stand: states, volumes of pods that are not desired and why, and what is reported of all |
//! | `announce`, `events` | which events hold of a key, and their texts |
//! | [`facts`], [`phases`], [`durations`], [`backlog`], [`metrics`] | what is measured |
//! | [`options`], [`clock`] | what the operator may choose; the time |
//!
//! [`runner`] is all of that at run time; [`dry_run`] asks what it would do.

mod announce;
mod answers;
pub mod backlog;
pub mod calls;
pub mod clock;
pub mod controller;
pub mod decide;
mod deletions;
pub(crate) mod dispatcher;
pub mod dry_run;
pub(crate) mod durations;
mod events;
pub(crate) mod facts;
pub mod guard;
mod known;
pub mod metrics;
mod observe;
pub mod options;
pub(crate) mod phases;
mod plan;
mod queue;
pub mod reasons;
mod reports;
mod requests;
mod stand_off;
pub mod state;
mod take_over;
mod unresolved;

use std::sync::Arc;

use apiserver::{
    call::Caller, events::EventRecorder, leadership::Leadership, lease_note::LeaseNote, tables::Objects,
};
use k8s_openapi::jiff::Timestamp;
use telemetry::traces::Traces;
use tokio::time::Instant;

use crate::{
    controller::Runner,
    metrics::{Alarms, Metrics, Requester},
};
use clock::Clock;
use controller::AttachDetach;
use metrics::AttachDetachMetrics;
pub use options::AttachDetachOptions;
use requests::Requests;

/// The controller over the shared tables, with what runs it. The lease carries its waits for force, if there is one (S6), and
/// each attach and detach that is sampled is traced.
///
/// # Errors
/// See [`Metrics::register`].
pub fn runner(
    objects: &Arc<Objects>,
    caller: &Caller,
    leadership: Leadership,
    events: EventRecorder,
    options: AttachDetachOptions,
    (metrics, alarms): (&Metrics, Alarms),
    (lease_note, traces): (Option<LeaseNote>, Traces),
) -> Result<Runner<AttachDetach, Requests>, prometheus::Error> {
    let mut of_ours = AttachDetachMetrics::new(metrics)?;
    of_ours.durations.trace(traces);
    let clock = Clock::new(Timestamp::now(), Instant::now());
    let mut controller = AttachDetach::new(Arc::clone(objects), options, clock);
    controller.settle_time = caller.settle_time();
    if let Some(note) = lease_note.clone() {
        controller.force_waits.follow(note);
    }
    let requests =
        Requests::new(&caller.of_subsystem(<&str>::from(Requester::AttachDetach)), of_ours, lease_note);
    let parts = (controller, requests);
    let runner = Runner::new(parts, Arc::clone(objects), leadership, events, (metrics, alarms))?;
    backlog::register(runner.board(), objects, metrics)?;
    Ok(runner)
}
