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
use strum::VariantNames as _;

use super::reports::BinderReason;
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

/// Name, help and labels of each family.
const FAMILIES: [(&str, &str, &[&str]); 8] = [
    (
        "pv_collector_total_pv_count",
        "Gauge measuring total number of persistent volumes",
        &["plugin_name", "volume_mode"],
    ),
    (
        "pv_collector_bound_pv_count",
        "Gauge measuring number of persistent volume currently bound",
        &["storage_class"],
    ),
    (
        "pv_collector_unbound_pv_count",
        "Gauge measuring number of persistent volume currently unbound",
        &["storage_class"],
    ),
    (
        "pv_collector_bound_pvc_count",
        "Gauge measuring number of persistent volume claim currently bound",
        &["namespace", "storage_class", "volume_attributes_class"],
    ),
    (
        "pv_collector_unbound_pvc_count",
        "Gauge measuring number of persistent volume claim currently unbound",
        &["namespace", "storage_class", "volume_attributes_class"],
    ),
    ("mooring_volumes", "PersistentVolumes by phase; only on the leader", &["phase"]),
    ("mooring_claims", "PersistentVolumeClaims by phase; only on the leader", &["phase"]),
    (
        "mooring_released_bytes",
        "Capacity in bytes of Released PersistentVolumes, which are not reclaimed yet; only on the leader",
        &["storage_class"],
    ),
];

/// Counts them.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    objects: Arc<Objects>,
    board: Arc<Board<Target, BinderReason>>,
    /// In the order of [`FAMILIES`].
    gauges: [GaugeVec; 8],
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
        let made = FAMILIES.map(|(name, help, labels)| GaugeVec::new(Opts::new(name, help), labels));
        let [total, bound, unbound, bound_claims, unbound_claims, volumes, claims, released] = made;
        let gauges = [total?, bound?, unbound?, bound_claims?, unbound_claims?, volumes?, claims?, released?];
        Ok(Self { objects, board, gauges, classes: Bounded::new(CLASSES, OTHERS) })
    }

    /// Returns the classes that volumes have.
    fn count_volumes(&self) -> BTreeSet<String> {
        let [total, bound, unbound, _, _, phases, _, released] = &self.gauges;
        let mut of_volumes = BTreeSet::new();
        for phase in VolumePhase::VARIANTS {
            phases.with_label_values(&[*phase]).set(0.0);
        }
        // In any order, and without a copy of the table: there may be 100 000.
        self.objects.volumes.for_each(|volume| {
            let (phase, class) = (volume.status.phase, volume.spec.storage_class_name.as_deref());
            let class = class.unwrap_or_default();
            total
                .with_label_values(&[&*plugin(volume), volume_mode(volume.spec.volume_mode.as_deref())])
                .inc();
            let by_class = if phase == VolumePhase::Bound { bound } else { unbound };
            by_class.with_label_values(&[class]).inc();
            phases.with_label_values(&[phase.as_str()]).inc();
            if phase == VolumePhase::Released {
                let class = self.classes.shown(volume_class(volume));
                let bytes = capacity(volume).unwrap_or_default().bytes();
                released.with_label_values(&[class]).add(bytes);
            }
            if !of_volumes.contains(class) {
                of_volumes.insert(class.to_owned());
            }
        });
        of_volumes
    }

    /// The class of a claim, if there is such a class, or a volume of it.
    fn class<'a>(&self, claim: &'a PersistentVolumeClaim, of_volumes: &BTreeSet<String>) -> &'a str {
        let class = claim_class(claim);
        let is_made = || self.objects.classes.get(&ClassName::from(class)).is_some();
        if class.is_empty() || of_volumes.contains(class) || is_made() { class } else { OTHERS }
    }

    fn count_claims(&self, of_volumes: &BTreeSet<String>) {
        let [_, _, _, bound, unbound, _, phases, _] = &self.gauges;
        let mut counts: BTreeMap<(ClaimLabels, bool), f64> = BTreeMap::new();
        for phase in ClaimPhase::VARIANTS {
            phases.with_label_values(&[*phase]).set(0.0);
        }
        self.objects.claims.for_each(|claim| {
            let labels = [
                claim.metadata.namespace.to_string(),
                self.class(claim, of_volumes).to_owned(),
                claim.spec.volume_attributes_class_name.as_deref().unwrap_or_default().to_owned(),
            ];
            *counts.entry((labels, claim.status.phase == ClaimPhase::Bound)).or_default() += 1.0;
            phases.with_label_values(&[claim.status.phase.as_str()]).inc();
        });
        for (index, ((mut labels, is_bound), count)) in counts.into_iter().enumerate() {
            if index >= NAMESPACED {
                let [namespace, _, attributes_class] = &mut labels;
                OTHERS.clone_into(namespace);
                attributes_class.clear();
            }
            let gauge = if is_bound { bound } else { unbound };
            gauge.with_label_values(&labels).add(count);
        }
    }
}

impl Collector for Sizes {
    fn desc(&self) -> Vec<&Desc> {
        self.gauges.iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for gauge in &self.gauges {
            gauge.reset();
        }
        if self.board.leads() {
            self.count_claims(&self.count_volumes());
        }
        self.gauges.iter().flat_map(Collector::collect).collect()
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
