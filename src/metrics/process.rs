//! What is running: version, memory, CPU time, open files.

use prometheus::{IntGaugeVec, Opts};

use super::Metrics;

/// Registers `mooring_build_info` and the `process_*` metrics.
///
/// Not `kubernetes_build_info`: a second version under that name raises the alert
/// KubeVersionMismatch in every cluster.
///
/// # Errors
/// See [`Metrics::register`].
pub fn register(metrics: &Metrics) -> Result<(), prometheus::Error> {
    let build = IntGaugeVec::new(
        Opts::new("mooring_build_info", "Always 1; the label says which version is running."),
        &["version"],
    )?;
    build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    metrics.register(&build)?;
    #[cfg(target_os = "linux")]
    metrics.registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    Ok(())
}
