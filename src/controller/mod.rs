//! The skeleton of a controller: everything that is not a decision, once for all controllers.
//!
//! Read this first. A controller looks at objects and sends requests until the objects are as they should be. Each
//! one here has two parts of its own, and shares the rest:
//!
//! ```text
//!    tables ──▶ changes ─┐                                   ┌─▶ log, metrics, page
//!                        ▼                                   │
//!                    Controller ─▶ Plan { calls, events, reports, …, wake_at }
//!                        ▲                    │
//!                        └──── answers ◀── Executor ─▶ API server
//! ```
//!
//! - A [`Controller`] owns what is known and decides. It is a state machine: objects that changed, answers and the time
//!   come in as values, a [`Plan`] comes out. It has no client, no task and no clock, so a test plays it in a loop.
//! - An [`Executor`] sends one request for one call, and notes what was measured. It makes no choices.
//! - The [`Runner`] joins both, and is the same for all: the one loop, leadership, and the end.
//!
//! To build a controller from: [`queue`] (keys to look at), [`retry`] (pauses after failures), [`in_doubt`] (writes
//! without an answer), [`late`] (writes that may land late), [`undone`] (writes that others undo), [`report`] (where each key
//! stands, and why: events, log, history, counters, gauges and the debug page are made of that), [`reporting`] (which joins what
//! a plan tells of these) and [`asked`] (of which
//! only a part may be asked for), [`timers`] (how long it takes, by phase, and the trace of it), [`second_writer`] (another
//! controller of the same objects), [`uses`] (which objects use which others), [`last_said`] (what objects said that are away
//! for a moment), [`in_tree`] (plugins that CSI drivers took over), [`quantity`] (sizes). One whose turn is one look has all of its
//! keys in [`keys`], and sends with [`requests`]; one that keeps a finalizer on objects is [`finalizer`].
//! What is common to all controllers changes here; what two controllers do differently stays with them.

pub(crate) mod asked;
pub(crate) mod finalizer;
pub mod in_doubt;
pub(crate) mod in_tree;
pub(crate) mod keys;
pub mod last_said;
pub mod late;
#[cfg(test)]
pub(crate) mod played;
pub(crate) mod quantity;
pub mod queue;
pub mod report;
pub mod reporting;
pub(crate) mod requests;
pub(crate) mod retry;
mod runner;
#[cfg(test)]
mod runner_tests;
pub(crate) mod second_writer;
pub(crate) mod timers;
pub(crate) mod undone;
pub(crate) mod uses;

use std::collections::BTreeSet;

use apiserver::{call::CallError, kinds::ObjectRef};
use tokio::time::Instant;

use crate::metrics::QueueCounts;
use report::{Reason, Report, ReportKey, events::EventUpdate};
use second_writer::{News, Role};

pub use runner::Runner;

/// Under which names a controller is seen.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// kube-controller-manager's name of it.
    pub name: &'static str,
    /// The source of its events.
    pub component: &'static str,
    /// Names of its work queues.
    pub queues: &'static [&'static str],
    /// What it is among second writers, if it writes what only one should.
    pub role: Option<Role>,
}

/// Knows and decides.
pub trait Controller: Send + 'static {
    /// Its names.
    const IDENTITY: Identity;
    /// What it reports on.
    type Key: ReportKey;
    /// Why that is where it is.
    type Reason: Reason;
    /// One request, complete: names, preconditions, body.
    type Call: Send + 'static;
    /// What the API server answers.
    type Answer: Send + 'static;
    /// What a plan has to say beside requests, events and reports, such as durations.
    type Measures: Send;

    /// Reads the tables whole, once, when every kind has been listed.
    fn load(&mut self, _now: Instant) {}

    /// Takes objects that changed. How they are now, the tables show.
    fn changed(&mut self, objects: BTreeSet<ObjectRef>, now: Instant);

    /// Takes the answer to a call. `jitter`, below 1, is for the pause after a failure.
    fn answered(
        &mut self,
        call: Self::Call,
        result: Result<Self::Answer, CallError>,
        now: Instant,
        jitter: f64,
    );

    /// This process leads from now on. Called once: a process that loses its lease ends.
    fn lead(&mut self, now: Instant);

    /// Decides what is due. Called after each of the above, and at the time that the last plan named. Before this
    /// process leads, a plan holds no calls and no events.
    fn plan(&mut self, now: Instant) -> Plan<Self>;

    /// What answers came to that were taken after the last plan, at the end: without calls.
    fn unplanned(&mut self) -> Option<Plan<Self>> {
        None
    }
}

/// What a controller wants done.
#[derive(Debug, educe::Educe)]
#[educe(Default(bound(C::Measures: Default)))]
pub struct Plan<C: Controller + ?Sized> {
    /// Requests, in the order of sending. None rests on the answer to another.
    pub calls: Vec<C::Call>,
    /// What users get to read of keys, in order.
    pub events: Vec<EventUpdate<C::Key>>,
    /// Where the keys stand that were looked at.
    pub reports: Vec<Report<C::Key, C::Reason>>,
    /// What others wrote that only this controller should.
    pub others: Option<News>,
    /// What each work queue counted, in the order of [`Identity::queues`]; of a standby, nothing.
    pub counts: Vec<QueueCounts>,
    /// What else to count, and to log.
    pub measures: C::Measures,
    /// When to plan again although nothing happened.
    pub wake_at: Option<Instant>,
}

/// Carries out the calls of one controller.
pub trait Executor<C: Controller>: Send + 'static {
    /// Sends a call as one request. A panic in it ends the process: the keys of the call would be held for ever.
    fn perform(
        &self,
        call: C::Call,
    ) -> impl Future<Output = (C::Call, Result<C::Answer, CallError>)> + Send + 'static;

    /// Notes what a plan reports of a key, with the reason before, of which the board knows.
    fn reported(&mut self, _before: Option<&C::Reason>, _report: &Report<C::Key, C::Reason>, _now: Instant) {}

    /// Notes what a plan measured, before its calls are sent.
    fn planned(&mut self, _controller: &C, _measures: C::Measures, _now: Instant) {}

    /// When there is more to note although nothing happens.
    fn next_due(&self) -> Option<Instant> {
        None
    }

    /// The work that a call is: the number of its queue, and its key there.
    fn work(call: &C::Call) -> Option<(usize, String)>;

    /// Notes how a call ended, before the controller takes the answer.
    fn ends(&mut self, _controller: &C, _call: &C::Call, _result: &Result<C::Answer, CallError>) {}
}
