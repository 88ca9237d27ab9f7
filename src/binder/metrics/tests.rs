use std::{sync::Arc, time::Duration};

use apiserver::{
    ids::ClaimKey,
    kinds::{Narrow, PersistentVolume, PersistentVolumeClaim},
    tables::Objects,
};
use tokio::time::Instant;

use super::*;
use crate::{
    binder::{
        calls::Target,
        durations::MeasuredOperation,
        reasons::ClaimReason,
        reports::{BinderReason, Report, Why},
        sizes,
    },
    controller::report::reporter::Reporter,
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
    let reporter = Reporter::new(&metrics).unwrap();
    sizes::register(objects, reporter.board(), &metrics).unwrap();
    let waits = Why::Claim(Arc::new(ClaimReason::NoVolume));
    let claim = Target::Claim(ClaimKey::new("ns", "c"));
    let pending = BinderReason { phase: "Pending", why: waits, failure: None };
    let report = Report { is_decision: true, ..Report::of(claim, pending) };
    for _ in 0..3 {
        reporter.take(report.clone(), Instant::now(), |_, _| ());
    }
    reporter.board().lead(Instant::now());
    let binder = BinderMetrics::new(&metrics).unwrap();
    binder.observe(&Sample::Took(MeasuredOperation::Delete, "d".to_owned(), Duration::from_secs(3)));
    binder.observe(&Sample::Failed(MeasuredOperation::Provision, "d".to_owned()));
    binder.observe(&Sample::Bound(BindMode::Static, Duration::from_millis(3), None));
    binder.conflicted(WriteKind::NameVolume);
    binder.class_assigned(false);
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
        "mooring_bind_e2e_seconds_bucket{mode=\"static\",le=\"0.005\"} 1",
        "mooring_bind_e2e_seconds_count{mode=\"dynamic\"} 0",
        "mooring_write_conflicts_total{op=\"name_volume\"} 1",
        "mooring_waiting{kind=\"claim\",reason=\"NoClassAndNoMatch\"} 1",
        "mooring_decisions_total{kind=\"claim\",reason=\"NoClassAndNoMatch\"} 3",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line} is not in {text}");
    }
}
