//! Metrics of the binder.
//!
//! The `pv_collector_*` and `retroactive_storageclass_*` families are kube-controller-manager's
//! (pv-binder §11); the sizes are counted when scraped. Ours tells how often each reason was the
//! answer.

use std::{collections::BTreeMap, sync::Arc};

use prometheus::{
    GaugeVec, IntCounter, IntCounterVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::matching::{VolumeMode, claim_class};
use crate::{
    kube_api::kinds::{ClaimPhase, PersistentVolume, VolumePhase},
    metrics::Metrics,
    state::Objects,
};

/// Counters of the binder.
#[derive(Clone, Debug)]
pub struct BinderMetrics {
    decisions: IntCounterVec,
    classes: IntCounter,
    class_errors: IntCounter,
}

impl BinderMetrics {
    /// Registers the binder's metrics.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics, objects: &Arc<Objects>) -> Result<Self, prometheus::Error> {
        let decisions = IntCounterVec::new(
            Opts::new("mooring_binder_decisions_total", "Decisions about claims and volumes, by reason"),
            &["kind", "reason"],
        )?;
        let classes = IntCounter::new(
            "retroactive_storageclass_total",
            "Total number of retroactive StorageClass assignments to persistent volume claim",
        )?;
        let class_errors = IntCounter::new(
            "retroactive_storageclass_errors_total",
            "Total number of failed retroactive StorageClass assignments to persistent volume claim",
        )?;
        metrics.register(&decisions)?;
        metrics.register(&classes)?;
        metrics.register(&class_errors)?;
        metrics.register(&Sizes::new(Arc::clone(objects))?)?;
        Ok(Self { decisions, classes, class_errors })
    }

    /// Counts decisions with one reason.
    pub fn decided(&self, kind: &'static str, reason: &'static str, count: u64) {
        self.decisions.with_label_values(&[kind, reason]).inc_by(count);
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
        for volume in self.objects.volumes.snapshot().values() {
            *totals.entry([plugin(volume), mode(volume)]).or_default() += 1.0;
            let class = volume.spec.storage_class_name.clone().unwrap_or_default();
            *volumes.entry((volume.status.phase == VolumePhase::Bound, class)).or_default() += 1.0;
        }
        for claim in self.objects.claims.snapshot().values() {
            let labels = [
                claim.metadata.namespace.to_string(),
                claim_class(claim).to_owned(),
                claim.spec.volume_attributes_class_name.clone().unwrap_or_default(),
            ];
            *claims.entry((claim.status.phase == ClaimPhase::Bound, labels)).or_default() += 1.0;
        }
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
    match &volume.spec.csi {
        Some(csi) => format!("kubernetes.io/csi:{}", csi.driver),
        None => "N/A".to_owned(),
    }
}

fn mode(volume: &PersistentVolume) -> String {
    match VolumeMode::of(volume.spec.volume_mode.as_deref()) {
        VolumeMode::Filesystem => "Filesystem".to_owned(),
        VolumeMode::Block => "Block".to_owned(),
        VolumeMode::Other(mode) => mode,
    }
}
