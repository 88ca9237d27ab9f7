//! How the health checks go, under the names of Kubernetes' components, for `/metrics/slis`.
//!
//! In: the findings of `/healthz`, `/livez` and `/readyz` each time they are made: like upstream, what is not asked
//! for is not there. In a registry of its own, as who wants these wants them more often than the rest.

use prometheus::{Error, IntCounterVec, IntGaugeVec};
use telemetry::metrics::Metrics;

/// `kubernetes_healthcheck*`.
// component-base: metrics/prometheus/slis/metrics.go; apiserver: server/healthz/healthz.go, handleRootHealth.
#[derive(Clone, Debug)]
pub struct Slis {
    metrics: Metrics,
    latest: IntGaugeVec,
    total: IntCounterVec,
}

impl Slis {
    /// None yet.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new() -> Result<Self, Error> {
        let metrics = Metrics::default();
        let help = "This metric records the result of a single healthcheck.";
        let latest = metrics.gauges("kubernetes_healthcheck", help, &["name", "type"])?;
        let help = "This metric records the results of all healthcheck.";
        let total = metrics.counters("kubernetes_healthchecks_total", help, &["name", "type", "status"])?;
        Ok(Self { metrics, latest, total })
    }

    /// Notes what a check of an endpoint has found.
    pub fn observe(&self, check: &str, endpoint: &str, healthy: bool) {
        let status = if healthy { "success" } else { "error" };
        self.latest.with_label_values(&[check, endpoint]).set(i64::from(healthy));
        self.total.with_label_values(&[check, endpoint, status]).inc();
    }

    /// Where they are registered.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }
}
