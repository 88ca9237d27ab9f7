//! Metrics of the binder.
//!
//! Those that do not begin with `mooring_` are kube-controller-manager's (pv-binder §11). What can be
//! counted from the tables is counted when scraped.

use prometheus::{HistogramVec, IntCounter, IntCounterVec};
use strum::VariantArray as _;

use super::durations::{BindMode, Sample};
use crate::{
    binder::calls::WriteKind,
    metrics::{
        Metrics, PLUGINS, STORAGE_OPERATION_BUCKETS,
        bounded::{Bounded, OTHER},
        exemplar::TracedHistogram,
        write_conflicts,
    },
};

/// From a few round trips on a fast server to a bind that waits for a minute of conflicts or throttling.
const BIND_BUCKETS: [f64; 14] =
    [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

#[derive(Clone, Debug)]
pub struct BinderMetrics {
    conflicts: IntCounterVec,
    failures: IntCounterVec,
    classes: IntCounter,
    class_errors: IntCounter,
    operations: HistogramVec,
    plugins: Bounded,
    errors: [IntCounterVec; 2],
    binds: TracedHistogram,
}

impl BinderMetrics {
    /// Registers the binder's metrics.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let plugin = &["plugin_name", "operation_name"];
        let errors = |name: &str| metrics.counters(name, "Total volume operation errors", plugin);
        let binds = TracedHistogram::new(
            "mooring_bind_e2e_seconds",
            "Time in seconds from when a claim and a volume that fits both exist to the answer to the last \
             write of the bind, by mode",
            &["mode"],
            &BIND_BUCKETS,
        )?;
        for mode in BindMode::VARIANTS {
            binds.expect(&[<&str>::from(mode)]);
        }
        metrics.register_traced(&binds)?;
        let writes: Vec<&str> = WriteKind::VARIANTS.iter().map(<&str>::from).collect();
        Ok(Self {
            conflicts: write_conflicts(metrics, &writes)?,
            failures: metrics.counters(
                "mooring_binder_failed_requests_total",
                "Failed requests about claims and volumes, by purpose and by kind of failure",
                &["request", "outcome"],
            )?,
            classes: metrics.counter(
                "retroactive_storageclass_total",
                "Total number of retroactive StorageClass assignments to persistent volume claim",
            )?,
            class_errors: metrics.counter(
                "retroactive_storageclass_errors_total",
                "Total number of failed retroactive StorageClass assignments to persistent volume claim",
            )?,
            operations: metrics.histograms(
                "volume_operation_total_seconds",
                "Storage operation end to end duration in seconds",
                plugin,
                &STORAGE_OPERATION_BUCKETS,
            )?,
            plugins: Bounded::new(PLUGINS, OTHER),
            // KCM 1.36 renamed it and hides the old name; dashboards know either.
            errors: [errors("volume_operation_errors_total")?, errors("volume_operation_total_errors")?],
            binds,
        })
    }

    /// Notes what was measured, during that trace.
    pub fn observe(&self, sample: &Sample) {
        match sample {
            Sample::Took(operation, plugin, took) => {
                let labels = [self.plugins.shown(plugin), <&str>::from(operation)];
                self.operations.with_label_values(&labels).observe(took.as_secs_f64());
            }
            Sample::Failed(operation, plugin) => {
                for counter in &self.errors {
                    counter.with_label_values(&[self.plugins.shown(plugin), <&str>::from(operation)]).inc();
                }
            }
            Sample::Bound(mode, took, trace) => {
                self.binds.observe(&[<&str>::from(mode)], took.as_secs_f64(), *trace);
            }
        }
    }

    /// Counts a write whose object had changed meanwhile.
    pub fn conflicted(&self, kind: WriteKind) {
        self.conflicts.with_label_values(&[<&str>::from(kind)]).inc();
    }

    /// Counts requests that failed.
    pub fn failed(&self, request: &'static str, outcome: &'static str, count: u64) {
        self.failures.with_label_values(&[request, outcome]).inc_by(count);
    }

    /// Counts an attempt to give a claim the default class.
    pub fn class_assigned(&self, succeeded: bool) {
        self.classes.inc();
        if !succeeded {
            self.class_errors.inc();
        }
    }
}

#[cfg(test)]
mod tests;
