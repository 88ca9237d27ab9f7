//! How many claims and volumes there are of what, counted from the tables when scraped.
//!
//! In: the tables, and whether this process decides: like kube-controller-manager, one that stands by shows none of
//! it, so that sums over replicas are right. Out: `pv_collector_*`, and gauges of our own.
//!
//! Upstream shows a series for each namespace, class and attributes class of claims, which in a cluster of ten
//! thousand namespaces is most of a page. Here it is so many of them; the rest is shown by class alone, so that sums by
//! class are right in clusters of any size. A class that only claims name is one that their users made up, and not shown.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apiserver::{
    ids::ClassName,
    kinds::{ClaimPhase, FileSource, PersistentVolume, PersistentVolumeClaim, VolumePhase},
    tables::Objects,
};
use prometheus::{
    GaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::state::BinderReason;
use crate::{
    binder::{
        annotations::{HOST_PATH_PLUGIN, NFS_PLUGIN},
        calls::Target,
        matching::predicate::{capacity, claim_class, volume_class, volume_mode},
    },
    controller::report::board::Board,
    metrics::{
        CLASSES,
        bounded::{Bounded, OTHERS},
    },
};

/// Series of claims by namespace, bound or not: half a megabyte of a page.
const NAMESPACED: usize = 4_000;

/// Counts them.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    objects: Arc<Objects>,
    board: Arc<Board<Target, BinderReason>>,
    total: GaugeVec,
    bound_volumes: GaugeVec,
    unbound_volumes: GaugeVec,
    bound_claims: GaugeVec,
    unbound_claims: GaugeVec,
    volumes: GaugeVec,
    claims: GaugeVec,
    released: GaugeVec,
    /// Classes whose released bytes are shown.
    classes: Bounded,
}

/// Namespace, class and attributes class.
type ClaimLabels = [String; 3];

impl Sizes {
    pub(crate) fn new(
        objects: Arc<Objects>,
        board: Arc<Board<Target, BinderReason>>,
    ) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str, labels: &[&str]| GaugeVec::new(Opts::new(name, help), labels);
        let collected = |name: &str, what: &str, labels: &[&str]| {
            gauge(&format!("pv_collector_{name}"), &format!("Gauge measuring {what}"), labels)
        };
        let claim = ["namespace", "storage_class", "volume_attributes_class"];
        Ok(Self {
            objects,
            board,
            total: collected(
                "total_pv_count",
                "total number of persistent volumes",
                &["plugin_name", "volume_mode"],
            )?,
            bound_volumes: collected(
                "bound_pv_count",
                "number of persistent volume currently bound",
                &["storage_class"],
            )?,
            unbound_volumes: collected(
                "unbound_pv_count",
                "number of persistent volume currently unbound",
                &["storage_class"],
            )?,
            bound_claims: collected(
                "bound_pvc_count",
                "number of persistent volume claim currently bound",
                &claim,
            )?,
            unbound_claims: collected(
                "unbound_pvc_count",
                "number of persistent volume claim currently unbound",
                &claim,
            )?,
            volumes: gauge("mooring_volumes", "PersistentVolumes by phase; only on the leader", &["phase"])?,
            claims: gauge(
                "mooring_claims",
                "PersistentVolumeClaims by phase; only on the leader",
                &["phase"],
            )?,
            released: gauge(
                "mooring_released_bytes",
                "Capacity in bytes of Released PersistentVolumes, which are not reclaimed yet; only on the \
                 leader",
                &["storage_class"],
            )?,
            classes: Bounded::new(CLASSES, OTHERS),
        })
    }

    fn gauges(&self) -> [&GaugeVec; 8] {
        [
            &self.total,
            &self.bound_volumes,
            &self.unbound_volumes,
            &self.bound_claims,
            &self.unbound_claims,
            &self.volumes,
            &self.claims,
            &self.released,
        ]
    }

    /// Returns the classes that volumes have.
    fn count_volumes(&self) -> BTreeSet<String> {
        let mut totals: BTreeMap<[String; 2], f64> = BTreeMap::new();
        let mut by_class: BTreeMap<(bool, String), f64> = BTreeMap::new();
        let mut phases: BTreeMap<&str, f64> = VolumePhase::ALL.map(|phase| (phase.as_str(), 0.0)).into();
        // In any order, and without a copy of the table: there may be 100 000.
        self.objects.volumes.for_each(|volume| {
            *totals.entry([plugin(volume), mode(volume)]).or_default() += 1.0;
            let class = volume.spec.storage_class_name.as_deref().unwrap_or_default().to_owned();
            *by_class.entry((volume.status.phase == VolumePhase::Bound, class)).or_default() += 1.0;
            *phases.entry(volume.status.phase.as_str()).or_default() += 1.0;
            if volume.status.phase == VolumePhase::Released {
                let class = self.classes.shown(volume_class(volume));
                let bytes = capacity(volume).unwrap_or_default().bytes();
                self.released.with_label_values(&[class]).add(bytes);
            }
        });
        for (phase, count) in phases {
            self.volumes.with_label_values(&[phase]).set(count);
        }
        for (labels, count) in totals {
            self.total.with_label_values(&labels).set(count);
        }
        for ((bound, class), count) in &by_class {
            let gauge = if *bound { &self.bound_volumes } else { &self.unbound_volumes };
            gauge.with_label_values(&[class]).set(*count);
        }
        by_class.into_keys().map(|(_, class)| class).collect()
    }

    /// The class of a claim, if there is such a class, or a volume of it.
    fn class<'a>(&self, claim: &'a PersistentVolumeClaim, of_volumes: &BTreeSet<String>) -> &'a str {
        let class = claim_class(claim);
        let is_made = || self.objects.classes.get(&ClassName::from(class)).is_some();
        if class.is_empty() || of_volumes.contains(class) || is_made() { class } else { OTHERS }
    }

    fn count_claims(&self, of_volumes: &BTreeSet<String>) {
        let mut counts: BTreeMap<(ClaimLabels, bool), f64> = BTreeMap::new();
        let mut phases: BTreeMap<&str, f64> = ClaimPhase::ALL.map(|phase| (phase.as_str(), 0.0)).into();
        self.objects.claims.for_each(|claim| {
            let bound = claim.status.phase == ClaimPhase::Bound;
            let labels = [
                claim.metadata.namespace.to_string(),
                self.class(claim, of_volumes).to_owned(),
                claim.spec.volume_attributes_class_name.as_deref().unwrap_or_default().to_owned(),
            ];
            *counts.entry((labels, bound)).or_default() += 1.0;
            *phases.entry(claim.status.phase.as_str()).or_default() += 1.0;
        });
        for (phase, count) in phases {
            self.claims.with_label_values(&[phase]).set(count);
        }
        for (index, ((mut labels, bound), count)) in counts.into_iter().enumerate() {
            if index >= NAMESPACED {
                let [namespace, _, attributes_class] = &mut labels;
                OTHERS.clone_into(namespace);
                attributes_class.clear();
            }
            let gauge = if bound { &self.bound_claims } else { &self.unbound_claims };
            gauge.with_label_values(&labels).add(count);
        }
    }
}

impl Collector for Sizes {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for gauge in self.gauges() {
            gauge.reset();
        }
        if self.board.leads() {
            self.count_claims(&self.count_volumes());
        }
        self.gauges().into_iter().flat_map(Collector::collect).collect()
    }
}

/// KCM's name of what serves the volume. Upstream loads no CSI plugin into the binder and so calls
/// every CSI volume `N/A`; the name its code means to give is more use.
fn plugin(volume: &PersistentVolume) -> String {
    match (&volume.spec.csi, volume.spec.files.as_deref()) {
        (Some(csi), _) => format!("kubernetes.io/csi:{}", csi.driver),
        (None, Some(FileSource::HostPath(_))) => HOST_PATH_PLUGIN.to_owned(),
        (None, Some(FileSource::Nfs(_))) => NFS_PLUGIN.to_owned(),
        (None, _) => "N/A".to_owned(),
    }
}

fn mode(volume: &PersistentVolume) -> String {
    volume_mode(volume.spec.volume_mode.as_deref()).to_owned()
}

#[cfg(test)]
mod tests {
    use apiserver::kinds::{Narrow, StorageClass};
    use tokio::time::Instant;

    use super::*;
    use crate::metrics::Metrics;

    fn decode<T: Narrow>(text: &str) -> T {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_leader_counts_phases_and_what_nobody_can_use() {
        let (objects, page) = (Arc::new(Objects::default()), Arc::new(Board::default()));
        for (name, phase, class, size) in [
            ("a", "Released", "gold", "1Gi"),
            ("b", "Released", "gold", "512Mi"),
            ("c", "Bound", "gold", "1Ti"),
        ] {
            objects.apply(decode::<PersistentVolume>(&format!(
                r#"{{"metadata": {{"name": "{name}"}}, "spec": {{"storageClassName": "{class}",
                    "capacity": {{"storage": "{size}"}}}}, "status": {{"phase": "{phase}"}}}}"#
            )));
        }
        let metrics = Metrics::default();
        metrics.register(&Sizes::new(Arc::clone(&objects), Arc::clone(&page)).unwrap()).unwrap();
        assert_eq!(metrics.text().unwrap(), "", "a standby counts nothing");
        page.lead(Instant::now());
        let text = metrics.text().unwrap();
        for line in [
            "mooring_volumes{phase=\"Released\"} 2",
            "mooring_volumes{phase=\"Failed\"} 0",
            "mooring_claims{phase=\"Lost\"} 0",
            "mooring_released_bytes{storage_class=\"gold\"} 1610612736",
            "pv_collector_unbound_pv_count{storage_class=\"gold\"} 2",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in {text}");
        }
    }

    #[test]
    fn a_class_that_only_claims_name_is_not_a_label() {
        let (objects, page) = (Arc::new(Objects::default()), Arc::new(Board::default()));
        page.lead(Instant::now());
        for class in ["static", "made-up", ""] {
            objects.apply(decode::<PersistentVolumeClaim>(&format!(
                r#"{{"metadata": {{"name": "c-{class}", "namespace": "ns"}},
                    "spec": {{"storageClassName": "{class}"}}}}"#
            )));
        }
        objects.apply(decode::<PersistentVolume>(
            r#"{"metadata": {"name": "v"}, "spec": {"storageClassName": "static"}}"#,
        ));
        let metrics = Metrics::default();
        metrics.register(&Sizes::new(objects, page).unwrap()).unwrap();
        let text = metrics.text().unwrap();
        for class in ["static", "_other", ""] {
            let line = format!(
                "pv_collector_unbound_pvc_count{{namespace=\"ns\",storage_class=\"{class}\",volume_attributes_class=\"\"}} 1"
            );
            assert!(text.lines().any(|shown| shown == line), "{line} is not in {text}");
        }
    }

    #[test]
    fn of_more_namespaces_than_are_shown_the_rest_is_counted_by_class() {
        let (objects, page) = (Arc::new(Objects::default()), Arc::new(Board::default()));
        page.lead(Instant::now());
        for class in ["class0", "class1"] {
            objects.apply(decode::<StorageClass>(&format!(
                r#"{{"metadata": {{"name": "{class}"}}, "provisioner": "p"}}"#
            )));
        }
        for number in 0..NAMESPACED + 30 {
            let class = number % 2;
            objects.apply(decode::<PersistentVolumeClaim>(&format!(
                r#"{{"metadata": {{"name": "c", "namespace": "ns{number:05}"}},
                    "spec": {{"storageClassName": "class{class}"}}}}"#
            )));
        }
        let metrics = Metrics::default();
        metrics.register(&Sizes::new(objects, page).unwrap()).unwrap();
        let text = metrics.text().unwrap();
        let series = text.lines().filter(|line| line.starts_with("pv_collector_unbound_pvc_count{")).count();
        assert_eq!(series, NAMESPACED + 2);
        for class in ["class0", "class1"] {
            let line = format!(
                "pv_collector_unbound_pvc_count{{namespace=\"_other\",storage_class=\"{class}\",volume_attributes_class=\"\"}} 15"
            );
            assert!(text.lines().any(|shown| shown == line), "{line}");
        }
    }
}
