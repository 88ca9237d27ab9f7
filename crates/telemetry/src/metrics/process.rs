//! What is running: version, memory, CPU time, open files, tasks, log lines lost.

use prometheus::{IntCounter, IntGauge};
use tokio::runtime::Handle;

use super::Metrics;
use crate::logs;

/// Registers `mooring_build_info` with these labels, `mooring_log_lines_dropped_total` and the `process_*` metrics.
///
/// Not `kubernetes_build_info`: a second version under that name raises the alert
/// KubeVersionMismatch in every cluster.
///
/// # Errors
/// See [`Metrics::register`].
pub fn register(metrics: &Metrics, build: &[(&str, &str)]) -> Result<(), prometheus::Error> {
    let help = "Always 1; the labels name the running version.";
    let (labels, values): (Vec<_>, Vec<_>) = build.iter().copied().unzip();
    metrics.gauges("mooring_build_info", help, &labels)?.with_label_values(&values).set(1);
    let help = "Log lines that were dropped because their reader is too slow.";
    metrics.register_scraped(IntCounter::new("mooring_log_lines_dropped_total", help)?, |counter| {
        counter.inc_by(logs::dropped_lines().saturating_sub(counter.get()));
    })?;
    #[cfg(target_os = "linux")]
    metrics.add(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    Ok(())
}

/// Registers `mooring_tasks` of these runtimes, which are what goroutines are to kube-controller-manager.
///
/// # Errors
/// See [`Metrics::register`].
pub fn register_tasks(metrics: &Metrics, runtimes: Vec<Handle>) -> Result<(), prometheus::Error> {
    let gauge = IntGauge::new("mooring_tasks", "Live tasks of the async runtimes")?;
    metrics.register_scraped(gauge, move |gauge| {
        let alive: usize = runtimes.iter().map(|runtime| runtime.metrics().num_alive_tasks()).sum();
        gauge.set(i64::try_from(alive).unwrap_or(i64::MAX));
    })
}
