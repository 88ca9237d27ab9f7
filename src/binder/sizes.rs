//! How many claims and volumes there are of what, counted as the tables change.
//!
//! In: the tables, and whether this process decides: like kube-controller-manager, one that stands by shows none of
//! it, so that sums over replicas are right. Out: `pv_collector_*`, and gauges of our own.
//!
//! Upstream shows a series for each namespace, class and attributes class of claims, which in a cluster of ten
//! thousand namespaces is most of a page. Here it is so many of them; the rest is shown by class alone, so that sums by
//! class are right in clusters of any size. A class that only claims name is one that their users made up, and not shown.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apiserver::{
    ids::{ClassName, DriverName},
    kinds::{ClaimPhase, FileSource, PersistentVolume, PersistentVolumeClaim, VolumePhase},
    tables::Objects,
    text::Text,
};
use prometheus::{GaugeVec, Opts};
use strum::VariantNames as _;

use super::reports::BinderReason;
use crate::{
    binder::{
        annotations::{HOST_PATH_PLUGIN, NFS_PLUGIN},
        calls::Target,
        matching::predicate::{capacity, claim_class, volume_class, volume_mode},
    },
    controller::{quantity::Quantity, report::board::Board},
    metrics::{
        CLASSES, Metrics, Tally,
        bounded::{Bounded, OTHERS},
        float, register_counted,
    },
};

/// Series of claims by namespace, bound or not: half a megabyte of a page.
const NAMESPACED: usize = 4_000;

/// The gauges, in the order of [`register`].
type Gauges = [GaugeVec; 8];

/// What they are counted from.
struct Sizes {
    objects: Arc<Objects>,
    volumes: Tally<VolumeRow>,
    claims: Tally<ClaimRow>,
    /// Classes whose released bytes are shown.
    classes: Bounded,
}

/// What is shown of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct VolumeRow {
    plugin: Plugin,
    mode: Option<Text>,
    class: Option<Text>,
    phase: VolumePhase,
    /// Of one that is Released, its class by the annotation, too, and its size.
    released: Option<(Text, Quantity)>,
}

/// What is shown of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ClaimRow {
    namespace: Text,
    class: Text,
    attributes_class: Option<Text>,
    phase: ClaimPhase,
}

/// What serves a volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Plugin {
    Csi(DriverName),
    HostPath,
    Nfs,
    Other,
}

/// Registers the gauges.
///
/// # Errors
/// See [`Metrics::register`].
pub(crate) fn register(
    objects: Arc<Objects>,
    board: Arc<Board<Target, BinderReason>>,
    metrics: &Metrics,
) -> Result<(), prometheus::Error> {
    let gauge = |name, help, labels: &[&str]| GaugeVec::new(Opts::new(name, help), labels);
    let gauges = [
        gauge(
            "pv_collector_total_pv_count",
            "Gauge measuring total number of persistent volumes",
            &["plugin_name", "volume_mode"],
        )?,
        gauge(
            "pv_collector_bound_pv_count",
            "Gauge measuring number of persistent volume currently bound",
            &["storage_class"],
        )?,
        gauge(
            "pv_collector_unbound_pv_count",
            "Gauge measuring number of persistent volume currently unbound",
            &["storage_class"],
        )?,
        gauge(
            "pv_collector_bound_pvc_count",
            "Gauge measuring number of persistent volume claim currently bound",
            &["namespace", "storage_class", "volume_attributes_class"],
        )?,
        gauge(
            "pv_collector_unbound_pvc_count",
            "Gauge measuring number of persistent volume claim currently unbound",
            &["namespace", "storage_class", "volume_attributes_class"],
        )?,
        gauge("mooring_volumes", "PersistentVolumes by phase; only on the leader", &["phase"])?,
        gauge("mooring_claims", "PersistentVolumeClaims by phase; only on the leader", &["phase"])?,
        gauge(
            "mooring_released_bytes",
            "Capacity in bytes of Released PersistentVolumes, which are not reclaimed yet; only on the leader",
            &["storage_class"],
        )?,
    ];
    let volumes = Tally::of(&objects.volumes, |volume| Some(VolumeRow::of(volume)));
    let claims = Tally::of(&objects.claims, |claim| Some(ClaimRow::of(claim)));
    let sizes = Sizes { objects, volumes, claims, classes: Bounded::new(CLASSES, OTHERS) };
    register_counted(metrics, gauges, move |gauges| {
        if board.leads() {
            let of_volumes = sizes.show_volumes(gauges);
            sizes.show_claims(gauges, &of_volumes);
        }
    })
}

impl Sizes {
    /// Returns the classes that volumes have.
    fn show_volumes(&self, gauges: &Gauges) -> BTreeSet<Text> {
        let [total, bound, unbound, _, _, phases, _, released] = gauges;
        let mut of_volumes = BTreeSet::new();
        for phase in VolumePhase::VARIANTS {
            phases.with_label_values(&[*phase]).set(0.0);
        }
        for (row, count) in self.volumes.rows() {
            let VolumeRow { plugin, mode, class, phase, released: size } = row;
            let (count, class) = (float(count), class.unwrap_or_default());
            total.with_label_values(&[&*plugin.name(), volume_mode(mode.as_deref())]).add(count);
            let by_class = if phase == VolumePhase::Bound { bound } else { unbound };
            by_class.with_label_values(&[&*class]).add(count);
            phases.with_label_values(&[<&str>::from(phase)]).add(count);
            if let Some((class, size)) = size {
                released.with_label_values(&[self.classes.shown(&class)]).add(count * size.bytes());
            }
            of_volumes.insert(class);
        }
        of_volumes
    }

    /// The class of claims, if there is such a class, or a volume of it.
    fn class<'a>(&self, class: &'a Text, of_volumes: &BTreeSet<Text>) -> &'a str {
        let is_made = || self.objects.classes.get(&ClassName::from(class.as_str())).is_some();
        if class.is_empty() || of_volumes.contains(class) || is_made() { class } else { OTHERS }
    }

    fn show_claims(&self, gauges: &Gauges, of_volumes: &BTreeSet<Text>) {
        let [_, _, _, bound, unbound, _, phases, _] = gauges;
        for phase in ClaimPhase::VARIANTS {
            phases.with_label_values(&[*phase]).set(0.0);
        }
        let rows = self.claims.rows();
        let mut counts: BTreeMap<([&str; 3], bool), f64> = BTreeMap::new();
        for (ClaimRow { namespace, class, attributes_class, phase }, count) in &rows {
            let attributes_class = attributes_class.as_deref().unwrap_or_default();
            let labels = [namespace, self.class(class, of_volumes), attributes_class];
            *counts.entry((labels, *phase == ClaimPhase::Bound)).or_default() += float(*count);
            phases.with_label_values(&[<&str>::from(phase)]).add(float(*count));
        }
        for (index, ((mut labels, is_bound), count)) in counts.into_iter().enumerate() {
            if index >= NAMESPACED {
                let [_, class, _] = labels;
                labels = [OTHERS, class, ""];
            }
            let gauge = if is_bound { bound } else { unbound };
            gauge.with_label_values(&labels).add(count);
        }
    }
}

impl VolumeRow {
    fn of(volume: &PersistentVolume) -> Self {
        let (spec, phase) = (&volume.spec, volume.status.phase);
        let plugin = match (&spec.csi, spec.files.as_deref()) {
            (Some(csi), _) => Plugin::Csi(csi.driver.clone()),
            (None, Some(FileSource::HostPath(_))) => Plugin::HostPath,
            (None, Some(FileSource::Nfs(_))) => Plugin::Nfs,
            (None, None) => Plugin::Other,
        };
        let released = (phase == VolumePhase::Released)
            .then(|| (volume_class(volume).into(), capacity(volume).unwrap_or_default()));
        Self {
            plugin,
            mode: spec.volume_mode.clone(),
            class: spec.storage_class_name.clone(),
            phase,
            released,
        }
    }
}

impl ClaimRow {
    fn of(claim: &PersistentVolumeClaim) -> Self {
        Self {
            namespace: claim.metadata.namespace.as_str().into(),
            class: claim_class(claim).into(),
            attributes_class: claim.spec.volume_attributes_class_name.clone(),
            phase: claim.status.phase,
        }
    }
}

impl Plugin {
    /// KCM's name of it. Upstream loads no CSI plugin into the binder and so calls every CSI volume `N/A`; the name its
    /// code means to give is more use.
    fn name(&self) -> Cow<'static, str> {
        match self {
            Self::Csi(driver) => format!("kubernetes.io/csi:{driver}").into(),
            Self::HostPath => HOST_PATH_PLUGIN.into(),
            Self::Nfs => NFS_PLUGIN.into(),
            Self::Other => "N/A".into(),
        }
    }
}

#[cfg(test)]
mod tests;
