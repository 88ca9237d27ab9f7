//! Work queues, under client-go's names.
//!
//! A key is added when something happens to it, waits until it is looked at, and is worked on while
//! a request about it is under way.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntGauge, Opts,
    core::{Collector, Desc},
    exponential_buckets,
    proto::MetricFamily,
};
use tokio::time::Instant;

use super::Metrics;

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
    pub fn new(metrics: &Metrics, name: &str) -> Result<Self, prometheus::Error> {
        let opts = |metric: &str, help: &str| {
            Opts::new(format!("workqueue_{metric}"), help).const_label("name", name)
        };
        let histogram = |metric: &str, help: &str| {
            let opts = HistogramOpts::from(opts(metric, help)).buckets(exponential_buckets(1e-8, 10.0, 10)?);
            Histogram::with_opts(opts)
        };
        let queue = Self {
            adds: IntCounter::with_opts(opts("adds_total", "Total number of adds handled by workqueue"))?,
            retries: IntCounter::with_opts(opts(
                "retries_total",
                "Total number of retries handled by workqueue",
            ))?,
            depth: IntGauge::with_opts(opts("depth", "Current depth of workqueue"))?,
            waited: histogram(
                "queue_duration_seconds",
                "How long in seconds an item stays in workqueue before being requested.",
            )?,
            worked: histogram(
                "work_duration_seconds",
                "How long in seconds processing an item from workqueue takes.",
            )?,
            running: Running {
                since: Arc::default(),
                unfinished: Gauge::with_opts(opts(
                    "unfinished_work_seconds",
                    "How many seconds of work has done that is in progress and hasn't been observed by \
                     work_duration. Large values indicate stuck threads. One can deduce the number of stuck \
                     threads by observing the rate at which this increases.",
                ))?,
                longest: Gauge::with_opts(opts(
                    "longest_running_processor_seconds",
                    "How many seconds has the longest running processor for workqueue been running.",
                ))?,
            },
        };
        metrics.register(&queue.adds)?;
        metrics.register(&queue.retries)?;
        metrics.register(&queue.depth)?;
        metrics.register(&queue.waited)?;
        metrics.register(&queue.worked)?;
        metrics.register(&queue.running)?;
        Ok(queue)
    }

    /// Counts additions, and those that were repetitions after a failure.
    pub fn added(&self, adds: u64, retries: u64) {
        self.adds.inc_by(adds);
        self.retries.inc_by(retries);
    }

    /// Sets how many keys wait.
    pub fn set_depth(&self, depth: usize) {
        self.depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
    }

    /// Notes how long a key waited.
    pub fn waited(&self, time: Duration) {
        self.waited.observe(time.as_secs_f64());
    }

    /// Notes that work on a key begins.
    pub fn begins(&self, key: String, now: Instant) {
        self.running.lock().insert(key, now);
    }

    /// Notes that work on a key has ended.
    pub fn ends(&self, key: &str, now: Instant) {
        if let Some(since) = self.running.lock().remove(key) {
            self.worked.observe(now.saturating_duration_since(since).as_secs_f64());
        }
    }
}

/// Work under way, measured when scraped.
#[derive(Clone, Debug)]
struct Running {
    since: Arc<Mutex<HashMap<String, Instant>>>,
    unfinished: Gauge,
    longest: Gauge,
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        // The map is valid between any two statements, so a panic elsewhere cannot spoil it.
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for Running {
    fn desc(&self) -> Vec<&Desc> {
        self.unfinished.desc().into_iter().chain(self.longest.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = Instant::now();
        let times: Vec<f64> =
            self.lock().values().map(|since| now.saturating_duration_since(*since).as_secs_f64()).collect();
        self.unfinished.set(times.iter().fold(0.0, |sum, time| sum + time));
        self.longest.set(times.into_iter().fold(0.0, f64::max));
        self.unfinished.collect().into_iter().chain(self.longest.collect()).collect()
    }
}
