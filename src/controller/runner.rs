//! The one loop of every controller: changes → plan → send → answers.
//!
//! In: the change set of the tables, the right to write, answers. Out: requests, each in a task of its own, and
//! events. It makes no choices about objects. Four rules are kept here for all controllers:
//!
//! - The tables are read whole on a thread of its own: in a large cluster that takes seconds, in which this thread goes on
//!   to read the watches, and shows that it is alive. What changes meanwhile comes afterwards.
//! - Nothing is planned before every kind has been listed, and nothing is sent before this process leads (S36).
//! - A request that was refused because the term is over stops planning until the term goes on. It does after a
//!   machine was suspended for less than the lease lasts. If it does not, the elector ends the process: no controller
//!   has to lead twice.
//! - At shutdown the answers to writes are awaited, and nothing more is asked (L14): the caller gives reads up.

use std::{panic::resume_unwind, sync::Arc};

use apiserver::{
    call::CallError,
    events::EventRecorder,
    leadership::Leadership,
    tables::{ChangeSet, Objects},
};
use prometheus::IntGaugeVec;
use tokio::{
    task::{JoinError, JoinSet, spawn_blocking, yield_now},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{Controller, Executor, Plan, report::board::Board, reporting::Reporting};
use crate::{
    metrics::{Alarms, Metrics},
    telemetry::history::History,
};

/// So many changes take some ten milliseconds.
pub(super) const CHANGES_AT_ONCE: usize = 500;

/// A call with its answer.
type AnsweredCall<C> = (<C as Controller>::Call, Result<<C as Controller>::Answer, CallError>);

/// Whether this process may send what is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    /// Another process leads, or none.
    StandBy,
    /// This process leads.
    Lead,
    /// This process led, and a request was refused because the term is over.
    Suspended,
}

/// Runs one controller.
#[derive(Debug)]
pub struct Runner<C: Controller, E> {
    objects: Arc<Objects>,
    changes: Arc<ChangeSet>,
    controller: C,
    executor: E,
    leadership: Leadership,
    events: EventRecorder,
    reporting: Reporting<C>,
    /// A replica that has never led shows nothing here, like a kube-controller-manager that stands by.
    running: IntGaugeVec,
    under_way: JoinSet<AnsweredCall<C>>,
    right: Right,
}

impl<C: Controller, E: Executor<C>> Runner<C, E> {
    /// Joins a controller and its executor. It is told of changes from now on.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(
        (controller, executor): (C, E),
        objects: Arc<Objects>,
        leadership: Leadership,
        events: EventRecorder,
        (metrics, alarms): (&Metrics, Alarms),
    ) -> Result<Self, prometheus::Error> {
        // component-base: metrics/prometheus/controllers/metrics.go. KCM shows only the controllers of clouds and nodes in
        // it, none of ours.
        let running = metrics.gauges(
            "running_managed_controllers",
            "Indicates where instances of a controller are currently running",
            &["name", "manager"],
        )?;
        Ok(Self {
            changes: objects.subscribe(),
            objects,
            controller,
            executor,
            leadership,
            events,
            reporting: Reporting::new(metrics, alarms)?,
            running,
            under_way: JoinSet::new(),
            right: Right::StandBy,
        })
    }

    /// Remembers changes there from now on.
    pub fn remember(&mut self, history: History) {
        self.reporting.reporter.remember(history);
    }

    /// Where its keys stand; stays readable while it runs.
    pub fn board(&self) -> Arc<Board<C::Key, C::Reason>> {
        self.reporting.reporter.board()
    }

    /// Runs until shutdown, then waits for the requests in flight.
    pub async fn run(mut self, shutdown: CancellationToken) {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = self.objects.synced() => {}
        }
        // Nothing is under way yet, so there is nothing to wait for.
        self.controller = tokio::select! {
            () = shutdown.cancelled() => return,
            controller = apart(self.controller, C::load) => controller,
        };
        self.catch_up().await;
        let mut wake_at = self.plan();
        loop {
            if wake_at.is_some_and(|at| at <= Instant::now()) {
                // There is much to plan: other tasks have their turn, too.
                yield_now().await;
            }
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = self.leadership.acquired(), if self.right == Right::StandBy => {
                    self.right = Right::Lead;
                    self.running.with_label_values(&[C::IDENTITY.name, "mooring"]).set(1);
                    // What the take-over barrier has read is to be known before anything is planned.
                    self.take_changes();
                    self.controller = tokio::select! {
                        () = shutdown.cancelled() => return,
                        controller = apart(self.controller, C::lead) => controller,
                    };
                    self.reporting.reporter.board().lead(Instant::now());
                }
                () = self.leadership.regained(), if self.right == Right::Suspended => self.right = Right::Lead,
                () = self.changes.changed() => {}
                Some(joined) = self.under_way.join_next() => self.answered(joined),
                () = sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => {}
            }
            // Answers that have arrived together are planned together.
            while let Some(joined) = self.under_way.try_join_next() {
                self.answered(joined);
            }
            self.catch_up().await;
            wake_at = if self.right == Right::Suspended { None } else { self.plan() };
        }
        while let Some(joined) = self.under_way.join_next().await {
            self.answered(joined);
        }
        if let Some(plan) = self.controller.unplanned() {
            self.carry_out(plan, Instant::now());
        }
        // The writer still has time, and a successor does not tell what has happened.
        let lost = self.reporting.events.take_lost();
        let count = lost.filter_map(|event| self.events.offer(event).err()).count();
        if count > 0 {
            self.events.count_lost(count);
            tracing::warn!(count, reason = "their queue is full", "events were left unwritten");
        }
    }

    /// Looks at what has changed. If that is much, as after the tables were read, or after an outage, others have their turn
    /// in between; what changes meanwhile is looked at in the end.
    async fn catch_up(&mut self) {
        for _ in 0..self.changes.count() / CHANGES_AT_ONCE {
            self.controller.changed(self.changes.take_some(CHANGES_AT_ONCE), Instant::now());
            yield_now().await;
        }
        self.take_changes();
    }

    fn take_changes(&mut self) {
        let changed = self.changes.take();
        if !changed.is_empty() {
            self.controller.changed(changed, Instant::now());
        }
    }

    /// Plans, and sends. Returns when to plan again. What the tables show is decided upon, not what they showed a moment ago
    /// (S19): what has changed was taken without a wait since.
    fn plan(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let plan = self.controller.plan(now);
        self.carry_out(plan, now)
    }

    /// Reports, counts and sends. Returns when to plan again.
    fn carry_out(&mut self, plan: Plan<C>, now: Instant) -> Option<Instant> {
        let Plan { calls, events, reports, others, counts, measures, wake_at } = plan;
        let executor = &mut self.executor;
        let seen = |before: Option<&C::Reason>, report: &_| executor.reported(before, report, now);
        let events = self.reporting.take(reports, events, others.as_ref(), now, seen);
        self.reporting.counted(&counts);
        self.executor.planned(&self.controller, measures, now);
        for call in calls {
            if let Some((queue, key)) = E::work(&call).and_then(|work| self.reporting.queue(work)) {
                queue.begins(key, now);
            }
            self.under_way.spawn(self.executor.perform(call));
        }
        for (key, event) in events {
            if let Err(lost) = self.events.offer(event) {
                let given_up = self.reporting.events.lost((key, lost), now);
                self.events.count_lost(given_up.into());
            }
        }
        wake_at.into_iter().chain(self.reporting.events.next_due()).chain(self.executor.next_due()).min()
    }

    fn answered(&mut self, joined: Result<AnsweredCall<C>, JoinError>) {
        let (call, result) = match joined {
            Ok(answered) => answered,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                // Aborted, which only the end of the process does.
                Err(_) => return,
            },
        };
        if matches!(result, Err(CallError::NotLeader)) {
            self.right = Right::Suspended;
        }
        let now = Instant::now();
        self.executor.ends(&self.controller, &call, &result);
        if let Some((queue, key)) = E::work(&call).and_then(|work| self.reporting.queue(work)) {
            queue.ends(&key, now);
        }
        self.controller.answered(call, result, now, fastrand::f64());
    }
}

/// Lets a controller read the tables on a thread of its own. Cancelled only with the runtime.
async fn apart<C: Controller>(mut controller: C, read: fn(&mut C, Instant)) -> C {
    let now = Instant::now();
    let reading = spawn_blocking(move || {
        read(&mut controller, now);
        controller
    });
    match reading.await.map_err(JoinError::try_into_panic) {
        Ok(controller) => controller,
        Err(Ok(panic)) => resume_unwind(panic),
        Err(Err(_)) => std::future::pending().await,
    }
}
