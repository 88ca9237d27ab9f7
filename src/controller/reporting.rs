//! What users and operators see of a controller, put together: its events and reports, its work queues, and other
//! writers of its objects.
//!
//! In: the parts of a plan that tell of these, and calls as they begin and end. Out: events, log, metrics, alarm and board.

use std::sync::Arc;

use tokio::time::Instant;

use super::{
    Controller, Identity,
    report::{
        Report,
        board::Board,
        events::{EventUpdate, Keyed, RecordedEvents},
        reporter::Reporter,
    },
    second_writer::{News, Teller},
};
use crate::{
    metrics::{Alarms, Metrics, QueueCounts, WorkQueueMetrics},
    telemetry::history::History,
};

/// Of one controller.
#[derive(Debug)]
pub struct Reporting<C: Controller> {
    reporter: Reporter<C::Key, C::Reason>,
    events: RecordedEvents<C::Key>,
    second_writers: Option<Teller>,
    queues: Vec<WorkQueueMetrics>,
}

impl<C: Controller> Reporting<C> {
    /// Registers the metrics.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics, alarms: Alarms) -> Result<Self, prometheus::Error> {
        let Identity { queues, role, .. } = C::IDENTITY;
        let queues = queues.iter().map(|queue| WorkQueueMetrics::new(metrics, queue));
        Ok(Self {
            reporter: Reporter::new(metrics)?,
            events: RecordedEvents::default(),
            second_writers: role.map(|role| Teller::new(role, metrics, alarms)).transpose()?,
            queues: queues.collect::<Result<_, _>>()?,
        })
    }

    /// Remembers changes there from now on.
    pub fn remember(&mut self, history: History) {
        self.reporter.remember(history);
    }

    /// Where the keys stand.
    #[must_use]
    pub fn board(&self) -> Arc<Board<C::Key, C::Reason>> {
        self.reporter.board()
    }

    /// Takes what a plan reports; each report is `seen` with the reason before it. Returns the events to record: those that
    /// are news, and those that are due.
    pub fn take(
        &mut self,
        reports: Vec<Report<C::Key, C::Reason>>,
        updates: Vec<EventUpdate<C::Key>>,
        others: Option<&News>,
        now: Instant,
        mut seen: impl FnMut(Option<&C::Reason>, &Report<C::Key, C::Reason>),
    ) -> Vec<Keyed<C::Key>> {
        for report in reports {
            self.reporter.take(report, now, &mut seen);
        }
        let board = self.board();
        let events = self.events.take(updates, |key| board.since(key), now);
        if let Some((news, teller)) = others.zip(self.second_writers.as_ref()) {
            board.set_second_writers(teller.tell(news));
        }
        events
    }

    /// There was no room for an event.
    pub fn lost(&mut self, event: Keyed<C::Key>, now: Instant) {
        self.events.lost(event, now);
    }

    /// When there are events to record although nothing happens.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.events.next_due()
    }

    /// Takes what each work queue counted.
    pub fn counted(&self, counts: &[QueueCounts]) {
        for (queue, counts) in self.queues.iter().zip(counts) {
            queue.counted(counts);
        }
    }

    /// Work begins, by the number of its queue and its key there.
    pub fn begins(&self, work: Option<(usize, String)>, now: Instant) {
        if let Some((queue, key)) = work
            && let Some(queue) = self.queues.get(queue)
        {
            queue.begins(key, now);
        }
    }

    /// Work ends.
    pub fn ends(&self, work: Option<(usize, String)>, now: Instant) {
        if let Some((queue, key)) = work
            && let Some(queue) = self.queues.get(queue)
        {
            queue.ends(&key, now);
        }
    }
}
