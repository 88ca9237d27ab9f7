//! What is running: version, memory, CPU time, open files, log lines lost.

use prometheus::{
    IntCounter, IntGaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::Metrics;
use crate::telemetry;

/// The commit that was built, if the build said so (`MOORING_COMMIT` in its environment).
const COMMIT: &str = match option_env!("MOORING_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

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

/// Registers `mooring_build_info`, `mooring_log_lines_dropped_total`, `mooring_log_lines_left_out_total` and the `process_*` metrics.
///
/// Not `kubernetes_build_info`: a second version under that name raises the alert
/// KubeVersionMismatch in every cluster.
///
/// # Errors
/// See [`Metrics::register`].
pub fn register(metrics: &Metrics) -> Result<(), prometheus::Error> {
    let build = IntGaugeVec::new(
        Opts::new("mooring_build_info", "Always 1; the labels say what is running."),
        &["commit", "version"],
    )?;
    build.with_label_values(&[COMMIT, env!("CARGO_PKG_VERSION")]).set(1);
    metrics.register(&build)?;
    let dropped = IntCounter::new(
        "mooring_log_lines_dropped_total",
        "Log lines that were dropped because nobody took them as fast as they came.",
    )?;
    metrics.register(&Lines(dropped, telemetry::dropped_lines))?;
    let left_out = IntCounter::new(
        "mooring_log_lines_left_out_total",
        "Log lines that were left out because there were too many like them.",
    )?;
    metrics.register(&Lines(left_out, telemetry::lines::left_out))?;
    #[cfg(target_os = "linux")]
    metrics.registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    Ok(())
}
