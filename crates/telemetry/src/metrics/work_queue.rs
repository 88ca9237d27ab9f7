//! Work queues, under client-go's names.
//!
//! A key is added when something happens to it, waits until it is looked at, and is worked on while
//! a request about it is under way.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use prometheus::{Error, Gauge, Histogram, IntCounter, IntGauge, Opts};
use tokio::time::Instant;

use super::Metrics;

/// Upper bounds of client-go's buckets: this, and so many times ten times more, in seconds.
const FIRST_BOUND: f64 = 1e-8;
/// See [`FIRST_BOUND`].
const BOUNDS: usize = 10;

/// What a queue counted since it was last asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueCounts {
    /// Keys added.
    pub adds: u64,
    /// Of them, and of those that were in, the ones that are tried again after a failure.
    pub retries: u64,
    /// How long the keys that were taken had waited.
    pub waits: Vec<Duration>,
    /// Keys that wait now.
    pub depth: usize,
}

/// Metrics of one queue. Those of several queues differ in the label `name` alone.
#[derive(Clone, Debug)]
pub struct WorkQueueMetrics {
    adds: IntCounter,
    retries: IntCounter,
    depth: IntGauge,
    waited: Histogram,
    worked: Histogram,
    running: Running,
}

impl WorkQueueMetrics {
    /// Registers the metrics of a queue.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    // client-go: component-base/metrics/prometheus/workqueue/metrics.go.
    pub fn new(metrics: &Metrics, name: &str) -> Result<Self, Error> {
        let bounds = prometheus::exponential_buckets(FIRST_BOUND, 10.0, BOUNDS)?;
        let (labels, of) = (&["name"], &[name]);
        let counter =
            |metric, help| Ok::<_, Error>(metrics.counters(metric, help, labels)?.with_label_values(of));
        let histogram = |metric, help| {
            Ok::<_, Error>(metrics.histograms(metric, help, labels, &bounds)?.with_label_values(of))
        };
        let queue = Self {
            adds: counter("workqueue_adds_total", "Total number of adds handled by workqueue")?,
            retries: counter("workqueue_retries_total", "Total number of retries handled by workqueue")?,
            depth: metrics
                .gauges("workqueue_depth", "Current depth of workqueue", labels)?
                .with_label_values(of),
            waited: histogram(
                "workqueue_queue_duration_seconds",
                "How long in seconds an item stays in workqueue before being requested.",
            )?,
            worked: histogram(
                "workqueue_work_duration_seconds",
                "How long in seconds processing an item from workqueue takes.",
            )?,
            running: Running::default(),
        };
        let opts = |metric: &str, help: &str| {
            Opts::new(format!("workqueue_{metric}"), help).const_label("name", name)
        };
        let unfinished = Gauge::with_opts(opts(
            "unfinished_work_seconds",
            "How many seconds of work has done that is in progress and hasn't been observed by \
             work_duration. Large values indicate stuck threads. One can deduce the number of stuck \
             threads by observing the rate at which this increases.",
        ))?;
        let running = queue.running.clone();
        metrics
            .register_scraped(unfinished, move |gauge| gauge.set(running.times(|sum, time| sum + time)))?;
        let longest = Gauge::with_opts(opts(
            "longest_running_processor_seconds",
            "How many seconds has the longest running processor for workqueue been running.",
        ))?;
        let running = queue.running.clone();
        metrics.register_scraped(longest, move |gauge| gauge.set(running.times(f64::max)))?;
        Ok(queue)
    }

    /// Notes what the queue counted since this was last done.
    pub fn counted(&self, counts: &QueueCounts) {
        self.adds.inc_by(counts.adds);
        self.retries.inc_by(counts.retries);
        self.depth.set(i64::try_from(counts.depth).unwrap_or(i64::MAX));
        counts.waits.iter().for_each(|wait| self.waited.observe(wait.as_secs_f64()));
    }

    /// Notes that work on a key begins.
    pub fn begins(&self, key: String, now: Instant) {
        self.running.0.lock().insert(key, now);
    }

    /// Notes that work on a key has ended.
    pub fn ends(&self, key: &str, now: Instant) {
        if let Some(since) = self.running.0.lock().remove(key) {
            self.worked.observe(now.saturating_duration_since(since).as_secs_f64());
        }
    }
}

/// Work under way, since when.
#[derive(Clone, Debug, Default)]
struct Running(Arc<Mutex<HashMap<String, Instant>>>);

impl Running {
    /// How long each has taken by now in seconds, as one number; 0 of none.
    fn times(&self, fold: fn(f64, f64) -> f64) -> f64 {
        let now = Instant::now();
        let times = self.0.lock();
        times.values().map(|since| now.saturating_duration_since(*since).as_secs_f64()).fold(0.0, fold)
    }
}
