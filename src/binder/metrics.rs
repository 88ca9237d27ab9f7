//! Metrics of the binder.
//!
//! Those that do not begin with `mooring_` are kube-controller-manager's (pv-binder §11). What can be
//! counted from the tables is counted when scraped.

use std::{collections::BTreeMap, sync::Arc};

use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use tokio::time::Instant;

use super::{
    decision::Target,
    host_path,
    latency::Measure,
    matching::{VolumeMode, claim_class},
    queue::{Tallies, Tally},
    reclaim::NFS_PLUGIN,
    standing::Standing,
};
use crate::{
    kube_api::kinds::{ClaimPhase, FileSource, PersistentVolume, VolumePhase},
    metrics::{ForeignWrites, Metrics, STORAGE_OPERATION_BUCKETS, WorkQueueMetrics},
    state::Objects,
};

/// From a few round trips on a fast server to a bind that waits for a minute of conflicts or throttling.
const BIND_BUCKETS: [f64; 14] =
    [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Kind of the foreign writes that [`super::rivals`] sees.
const PHASE_CHANGED: &str = "phase_changed";

/// Counters of the binder.
#[derive(Clone, Debug)]
pub struct BinderMetrics {
    decisions: IntCounterVec,
    failures: IntCounterVec,
    classes: IntCounter,
    class_errors: IntCounter,
    operations: HistogramVec,
    errors: [IntCounterVec; 2],
    binds: Histogram,
    foreign: ForeignWrites,
    claims: WorkQueueMetrics,
    volumes: WorkQueueMetrics,
}

impl BinderMetrics {
    /// Registers the binder's metrics.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(
        metrics: &Metrics,
        objects: &Arc<Objects>,
        standing: &Standing,
    ) -> Result<Self, prometheus::Error> {
        let decisions = IntCounterVec::new(
            Opts::new("mooring_binder_decisions_total", "Decisions about claims and volumes, by reason"),
            &["kind", "reason"],
        )?;
        let failures = IntCounterVec::new(
            Opts::new(
                "mooring_binder_failed_requests_total",
                "Requests about claims and volumes that failed, by what they were for and how they failed",
            ),
            &["request", "outcome"],
        )?;
        metrics.register(&failures)?;
        let classes = IntCounter::new(
            "retroactive_storageclass_total",
            "Total number of retroactive StorageClass assignments to persistent volume claim",
        )?;
        let class_errors = IntCounter::new(
            "retroactive_storageclass_errors_total",
            "Total number of failed retroactive StorageClass assignments to persistent volume claim",
        )?;
        let operations = HistogramVec::new(
            HistogramOpts::new(
                "volume_operation_total_seconds",
                "Storage operation end to end duration in seconds",
            )
            .buckets(STORAGE_OPERATION_BUCKETS.to_vec()),
            &["plugin_name", "operation_name"],
        )?;
        // KCM 1.36 renamed it and hides the old name; dashboards know either.
        let errors = |name: &str| {
            let labels = &["plugin_name", "operation_name"];
            IntCounterVec::new(Opts::new(name, "Total volume operation errors"), labels)
        };
        let errors = [errors("volume_operation_errors_total")?, errors("volume_operation_total_errors")?];
        let binds = Histogram::with_opts(
            HistogramOpts::new(
                "mooring_bind_duration_seconds",
                "Time from the first write of a bind to the answer to its last",
            )
            .buckets(BIND_BUCKETS.to_vec()),
        )?;
        metrics.register(&operations)?;
        for counter in &errors {
            metrics.register(counter)?;
        }
        metrics.register(&binds)?;
        standing.register(metrics)?;
        metrics.register(&decisions)?;
        metrics.register(&classes)?;
        metrics.register(&class_errors)?;
        metrics.register(&Sizes::new(Arc::clone(objects))?)?;
        Ok(Self {
            decisions,
            failures,
            classes,
            class_errors,
            operations,
            errors,
            binds,
            foreign: ForeignWrites::new(metrics, &[PHASE_CHANGED])?,
            claims: WorkQueueMetrics::new(metrics, "claims")?,
            volumes: WorkQueueMetrics::new(metrics, "volumes")?,
        })
    }

    /// Notes what was measured.
    pub fn measured(&self, measure: &Measure) {
        match measure {
            Measure::Took(operation, plugin, took) => {
                let labels = [plugin.as_str(), operation.as_str()];
                self.operations.with_label_values(&labels).observe(took.as_secs_f64());
            }
            Measure::Failed(operation, plugin) => {
                for counter in &self.errors {
                    counter.with_label_values(&[plugin.as_str(), operation.as_str()]).inc();
                }
            }
            Measure::Bound(took) => self.binds.observe(took.as_secs_f64()),
        }
    }

    /// Notes what the queues counted.
    pub fn queued(&self, tallies: &Tallies) {
        let note = |queue: &WorkQueueMetrics, tally: &Tally| {
            queue.added(tally.adds, tally.retries);
            queue.set_depth(tally.depth);
            for wait in &tally.waits {
                queue.waited(*wait);
            }
        };
        note(&self.claims, &tallies.claims);
        note(&self.volumes, &tallies.volumes);
    }

    /// Notes that a request about a key is sent.
    pub fn begins(&self, key: &Target, now: Instant) {
        self.queue(key).begins(key.to_string(), now);
    }

    /// Notes that it is answered.
    pub fn ends(&self, key: &Target, now: Instant) {
        self.queue(key).ends(&key.to_string(), now);
    }

    fn queue(&self, key: &Target) -> &WorkQueueMetrics {
        match key {
            Target::Claim(_) => &self.claims,
            Target::Volume(_) => &self.volumes,
        }
    }

    /// Sets how often somebody else changed a phase.
    pub fn sighted(&self, total: u64) {
        self.foreign.set(PHASE_CHANGED, total);
    }

    /// Counts decisions with one reason.
    pub fn decided(&self, kind: &'static str, reason: &'static str, count: u64) {
        self.decisions.with_label_values(&[kind, reason]).inc_by(count);
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

/// `pv_collector_*`, counted from the tables when scraped.
#[derive(Clone, Debug)]
struct Sizes {
    objects: Arc<Objects>,
    total: GaugeVec,
    bound_volumes: GaugeVec,
    unbound_volumes: GaugeVec,
    bound_claims: GaugeVec,
    unbound_claims: GaugeVec,
}

impl Sizes {
    fn new(objects: Arc<Objects>) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, what: &str, labels: &[&str]| {
            GaugeVec::new(Opts::new(name, format!("Gauge measuring {what}")), labels)
        };
        let claim = ["namespace", "storage_class", "volume_attributes_class"];
        Ok(Self {
            objects,
            total: gauge(
                "pv_collector_total_pv_count",
                "total number of persistent volumes",
                &["plugin_name", "volume_mode"],
            )?,
            bound_volumes: gauge(
                "pv_collector_bound_pv_count",
                "number of persistent volume currently bound",
                &["storage_class"],
            )?,
            unbound_volumes: gauge(
                "pv_collector_unbound_pv_count",
                "number of persistent volume currently unbound",
                &["storage_class"],
            )?,
            bound_claims: gauge(
                "pv_collector_bound_pvc_count",
                "number of persistent volume claim currently bound",
                &claim,
            )?,
            unbound_claims: gauge(
                "pv_collector_unbound_pvc_count",
                "number of persistent volume claim currently unbound",
                &claim,
            )?,
        })
    }

    fn gauges(&self) -> [&GaugeVec; 5] {
        [&self.total, &self.bound_volumes, &self.unbound_volumes, &self.bound_claims, &self.unbound_claims]
    }
}

impl Collector for Sizes {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut totals: BTreeMap<[String; 2], f64> = BTreeMap::new();
        let mut volumes: BTreeMap<(bool, String), f64> = BTreeMap::new();
        let mut claims: BTreeMap<(bool, [String; 3]), f64> = BTreeMap::new();
        // In any order, and without a copy of the table: there may be 100 000 of each.
        self.objects.volumes.for_each(|volume| {
            *totals.entry([plugin(volume), mode(volume)]).or_default() += 1.0;
            let class = volume.spec.storage_class_name.as_deref().unwrap_or_default().to_owned();
            *volumes.entry((volume.status.phase == VolumePhase::Bound, class)).or_default() += 1.0;
        });
        self.objects.claims.for_each(|claim| {
            let labels = [
                claim.metadata.namespace.to_string(),
                claim_class(claim).to_owned(),
                claim.spec.volume_attributes_class_name.as_deref().unwrap_or_default().to_owned(),
            ];
            *claims.entry((claim.status.phase == ClaimPhase::Bound, labels)).or_default() += 1.0;
        });
        for gauge in self.gauges() {
            gauge.reset();
        }
        for (labels, count) in totals {
            self.total.with_label_values(&labels).set(count);
        }
        for ((bound, class), count) in volumes {
            let gauge = if bound { &self.bound_volumes } else { &self.unbound_volumes };
            gauge.with_label_values(&[class]).set(count);
        }
        for ((bound, labels), count) in claims {
            let gauge = if bound { &self.bound_claims } else { &self.unbound_claims };
            gauge.with_label_values(&labels).set(count);
        }
        self.gauges().into_iter().flat_map(Collector::collect).collect()
    }
}

/// KCM's name of what serves the volume. Upstream loads no CSI plugin into the binder and so calls
/// every CSI volume `N/A`; the name its code means to give is more use.
fn plugin(volume: &PersistentVolume) -> String {
    match (&volume.spec.csi, volume.spec.files.as_deref()) {
        (Some(csi), _) => format!("kubernetes.io/csi:{}", csi.driver),
        (None, Some(FileSource::HostPath(_))) => host_path::PLUGIN.to_owned(),
        (None, Some(FileSource::Nfs(_))) => NFS_PLUGIN.to_owned(),
        (None, _) => "N/A".to_owned(),
    }
}

fn mode(volume: &PersistentVolume) -> String {
    match VolumeMode::of(volume.spec.volume_mode.as_deref()) {
        VolumeMode::Filesystem => "Filesystem".to_owned(),
        VolumeMode::Block => "Block".to_owned(),
        VolumeMode::Other(mode) => mode,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        binder::{latency::Operation, reason::ClaimReason},
        kube_api::{
            ids::{ClaimKey, VolumeName},
            kinds::{Narrow, PersistentVolumeClaim},
        },
    };

    fn decode<T: Narrow>(text: &str) -> T {
        serde_json::from_str(text).unwrap()
    }

    /// pv-binder §11: dashboards look for exactly these.
    #[test]
    fn names_and_labels_are_those_of_kube_controller_manager() {
        let objects = Arc::new(Objects::default());
        let volume: PersistentVolume = decode(
            r#"{"metadata": {"name": "v"}, "spec": {"storageClassName": "gold", "csi": {"driver": "d"}},
                "status": {"phase": "Bound"}}"#,
        );
        objects.apply(volume);
        objects.apply(decode::<PersistentVolumeClaim>(
            r#"{"metadata": {"name": "c", "namespace": "ns"}, "spec": {"volumeAttributesClassName": "fast"}}"#,
        ));
        objects.apply(decode::<PersistentVolume>(
            r#"{"metadata": {"name": "h"}, "spec": {"hostPath": {"path": "/tmp/h"}}}"#,
        ));
        objects.apply(decode::<PersistentVolume>(
            r#"{"metadata": {"name": "n"}, "spec": {"volumeMode": "Block", "nfs": {"server": "s", "path": "/"}}}"#,
        ));
        let metrics = Metrics::default();
        let standing = Standing::default();
        standing.set_claim(&ClaimKey::new("ns", "c"), ClaimReason::NoVolume, Instant::now());
        standing.lead(Instant::now());
        let binder = BinderMetrics::new(&metrics, &objects, &standing).unwrap();
        binder.decided("claim", "NoClassAndNoMatch", 3);
        binder.measured(&Measure::Took(Operation::Delete, "d".to_owned(), Duration::from_secs(3)));
        binder.measured(&Measure::Failed(Operation::Provision, "d".to_owned()));
        binder.measured(&Measure::Bound(Duration::from_millis(3)));
        binder.class_assigned(false);
        let waits = vec![Duration::from_secs(1)];
        binder.queued(&Tallies {
            claims: Tally { adds: 4, retries: 1, waits, depth: 2 },
            volumes: Tally::default(),
        });
        let (claim, volume) =
            (Target::Claim(ClaimKey::new("ns", "c")), Target::Volume(VolumeName::from("v")));
        let now = Instant::now();
        binder.begins(&claim, now);
        binder.begins(&volume, now);
        binder.ends(&claim, now + Duration::from_secs(5));
        binder.sighted(2);
        binder.sighted(2);
        let text = metrics.text().unwrap();
        for line in [
            "pv_collector_total_pv_count{plugin_name=\"kubernetes.io/csi:d\",volume_mode=\"Filesystem\"} 1",
            "pv_collector_total_pv_count{plugin_name=\"kubernetes.io/host-path\",volume_mode=\"Filesystem\"} 1",
            "pv_collector_total_pv_count{plugin_name=\"kubernetes.io/nfs\",volume_mode=\"Block\"} 1",
            "pv_collector_bound_pv_count{storage_class=\"gold\"} 1",
            "pv_collector_unbound_pvc_count{namespace=\"ns\",storage_class=\"\",volume_attributes_class=\"fast\"} 1",
            "volume_operation_total_seconds_bucket{operation_name=\"delete\",plugin_name=\"d\",le=\"5\"} 1",
            "volume_operation_total_seconds_bucket{operation_name=\"delete\",plugin_name=\"d\",le=\"2.5\"} 0",
            "volume_operation_errors_total{operation_name=\"provision\",plugin_name=\"d\"} 1",
            "volume_operation_total_errors{operation_name=\"provision\",plugin_name=\"d\"} 1",
            "retroactive_storageclass_total 1",
            "retroactive_storageclass_errors_total 1",
            "workqueue_adds_total{name=\"claims\"} 4",
            "workqueue_retries_total{name=\"claims\"} 1",
            "workqueue_depth{name=\"claims\"} 2",
            "workqueue_queue_duration_seconds_sum{name=\"claims\"} 1",
            "workqueue_work_duration_seconds_sum{name=\"claims\"} 5",
            "workqueue_unfinished_work_seconds{name=\"claims\"} 0",
            "workqueue_adds_total{name=\"volumes\"} 0",
            "mooring_bind_duration_seconds_bucket{le=\"0.005\"} 1",
            "mooring_foreign_writes_total{kind=\"phase_changed\"} 2",
            "mooring_waiting{kind=\"claim\",reason=\"NoClassAndNoMatch\"} 1",
            "mooring_binder_decisions_total{kind=\"claim\",reason=\"NoClassAndNoMatch\"} 3",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line} is not in {text}");
        }
        assert!(text.contains("workqueue_longest_running_processor_seconds{name=\"volumes\"}"), "{text}");
    }
}
