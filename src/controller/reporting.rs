//! What users and operators see of a controller, put together: its events and reports, its work queues, and other
//! writers of its objects.
//!
//! In: the parts of a plan that tell of these, and calls as they begin and end. Out: events, log, metrics, alarm and board.

use tokio::time::Instant;

use super::{
    Controller, Identity,
    report::{
        Report,
        events::{EventUpdate, Keyed, RecordedEvents},
        reporter::Reporter,
    },
    second_writer::{News, Teller},
};
use crate::metrics::{Alarms, Metrics, QueueCounts, WorkQueueMetrics};

/// Of one controller.
#[derive(Debug)]
pub struct Reporting<C: Controller> {
    /// Where the keys stand, and what changes.
    pub reporter: Reporter<C::Key, C::Reason>,
    /// Which events were recorded.
    pub events: RecordedEvents<C::Key>,
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
        let board = self.reporter.board();
        let events = self.events.take(updates, |key| board.since(key), now);
        if let Some((news, teller)) = others.zip(self.second_writers.as_ref()) {
            board.set_second_writers(teller.tell(news));
        }
        events
    }

    /// Takes what each work queue counted.
    pub fn counted(&self, counts: &[QueueCounts]) {
        for (queue, counts) in self.queues.iter().zip(counts) {
            queue.counted(counts);
        }
    }

    /// The metrics of a work queue by its number, and the key of the work there.
    pub fn queue(&self, (queue, key): (usize, String)) -> Option<(&WorkQueueMetrics, String)> {
        Some((self.queues.get(queue)?, key))
    }
}
