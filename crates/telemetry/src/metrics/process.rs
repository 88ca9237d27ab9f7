//! What is running: version, memory, CPU time, open files, tasks, log lines lost.

use prometheus::{
    IntCounter, IntGauge, IntGaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use tokio::runtime::Handle;

use super::Metrics;
use crate::logs;

/// What a program was built from.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    /// The commit.
    pub commit: &'static str,
    /// Version of the compiler.
    pub rustc: &'static str,
    /// Version of the program.
    pub version: &'static str,
}

/// Counts elsewhere, and is read when scraped.
#[derive(Clone)]
struct Lines(IntCounter, fn() -> u64);

impl Collector for Lines {
    fn desc(&self) -> Vec<&Desc> {
        self.0.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.0.inc_by((self.1)().saturating_sub(self.0.get()));
        self.0.collect()
    }
}

/// Counts the tasks of these runtimes when scraped.
#[derive(Clone)]
struct Tasks {
    gauge: IntGauge,
    runtimes: Vec<Handle>,
}

impl Collector for Tasks {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let alive: usize = self.runtimes.iter().map(|runtime| runtime.metrics().num_alive_tasks()).sum();
        self.gauge.set(i64::try_from(alive).unwrap_or(i64::MAX));
        self.gauge.collect()
    }
}

/// Registers `mooring_build_info`, `mooring_log_lines_dropped_total`, `mooring_log_lines_left_out_total` and the
/// `process_*` metrics.
///
/// Not `kubernetes_build_info`: a second version under that name raises the alert
/// KubeVersionMismatch in every cluster.
///
/// # Errors
/// See [`Metrics::register`].
pub fn register(metrics: &Metrics, build: Build) -> Result<(), prometheus::Error> {
    let gauge = IntGaugeVec::new(
        Opts::new("mooring_build_info", "Always 1; the labels say what is running."),
        &["commit", "rustc", "version"],
    )?;
    gauge.with_label_values(&[build.commit, build.rustc, build.version]).set(1);
    metrics.register(&gauge)?;
    let dropped = IntCounter::new(
        "mooring_log_lines_dropped_total",
        "Log lines that were dropped because nobody took them as fast as they came.",
    )?;
    metrics.register(&Lines(dropped, logs::dropped_lines))?;
    let left_out = IntCounter::new(
        "mooring_log_lines_left_out_total",
        "Log lines that were left out because there were too many like them.",
    )?;
    metrics.register(&Lines(left_out, logs::lines::left_out))?;
    #[cfg(target_os = "linux")]
    metrics.add(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    Ok(())
}

/// Registers `mooring_tasks` of these runtimes, which are what goroutines are to kube-controller-manager.
///
/// # Errors
/// See [`Metrics::register`].
pub fn register_tasks(metrics: &Metrics, runtimes: Vec<Handle>) -> Result<(), prometheus::Error> {
    let gauge = IntGauge::new("mooring_tasks", "Tasks of the async runtimes that are alive")?;
    metrics.register(&Tasks { gauge, runtimes })
}
