//! How large `/metrics` becomes in a large cluster.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use apiserver::{
    ids::{DriverName, NodeName},
    kinds::{Narrow, PersistentVolume, PersistentVolumeClaim},
    tables::Objects,
};
use test_support::openmetrics;
use tokio::time::Instant;

use super::{ApiMetrics, DRIVERS, Metrics};
use crate::{
    attach_detach::{
        metrics::AttachDetachMetrics,
        phases::{Phase, Progress},
        reasons::{AttachDetachKey, AttachDetachReason, AttachState, NodeVolumeKey, Report},
        state::{actual::Operation, desired::volume_name::VolumeId},
    },
    binder::{
        durations::{self, BindMode, Sample},
        metrics::BinderMetrics,
        sizes,
    },
    controller::report::board::Board,
};

const NODES: usize = 5_000;
const MANY_DRIVERS: usize = 100;
const MANY_CLASSES: usize = 1_000;
const NAMESPACES: usize = 10_000;

/// KCM shows a series for each node and plugin; so do we, and nothing else by node.
const BY_NODE: &str = "storage_count_attachable_volumes_in_use{";

fn decode<T: Narrow>(text: &str) -> T {
    serde_json::from_str(text).unwrap()
}

/// Each namespace with a bound claim and one that is not, of some class; and a released volume of each class.
fn objects() -> Arc<Objects> {
    let objects = Arc::new(Objects::default());
    for number in 0..NAMESPACES {
        let class = number % MANY_CLASSES;
        for (claim, phase) in [("a", "Bound"), ("b", "Pending")] {
            objects.apply(decode::<PersistentVolumeClaim>(&format!(
                r#"{{"metadata": {{"name": "{claim}", "namespace": "namespace-{number:05}"}},
                    "spec": {{"storageClassName": "class-{class:04}"}}, "status": {{"phase": "{phase}"}}}}"#
            )));
        }
        let (driver, phase) =
            (number % MANY_DRIVERS, if number < MANY_CLASSES { "Released" } else { "Bound" });
        objects.apply(decode::<PersistentVolume>(&format!(
            r#"{{"metadata": {{"name": "pvc-{number:05}"}}, "spec": {{"storageClassName": "class-{class:04}",
                "capacity": {{"storage": "1Gi"}}, "csi": {{"driver": "csi-{driver:03}.example.com",
                "volumeHandle": "{number}"}}}}, "status": {{"phase": "{phase}"}}}}"#
        )));
    }
    objects
}

/// An attach of which the API server is asked for one pod.
const BEGINS: Progress = Progress {
    operation: Operation::Attach,
    stands: Some((Phase::Api, true)),
    may_begin: true,
    forced: false,
    is_done: false,
    is_migrated: false,
    is_attached: true,
    users: 1,
};

/// Every driver attaches and detaches, forced and not, in all phases, and fails.
fn attach_and_detach(metrics: &mut AttachDetachMetrics) {
    let (node, now) = (NodeName::from("n"), Instant::now());
    for number in 0..MANY_DRIVERS {
        let driver = DriverName::from(format!("csi-{number:03}.example.com").as_str());
        let key = NodeVolumeKey::new(&VolumeId::csi(&driver, "h"), &node);
        for operation in [Operation::Attach, Operation::Detach] {
            for forced in [false, true] {
                for stands in Phase::of(operation).map(|phase| Some((phase, true))).into_iter().chain([None])
                {
                    let progress =
                        Progress { operation, stands, forced, is_done: stands.is_none(), ..BEGINS };
                    metrics.durations.follow(&key, &progress, 1, now);
                    metrics.durations.failed(&key, operation, now);
                }
            }
        }
    }
    for number in 0..NODES {
        let driver = DriverName::from(format!("csi-{:03}.example.com", number % MANY_DRIVERS).as_str());
        let node = NodeName::from(format!("node-{number:05}").as_str());
        let key = NodeVolumeKey::new(&VolumeId::csi(&driver, &number.to_string()), &node);
        let reason =
            AttachDetachReason::NodeVolume(AttachState::Attached, None, Progress { stands: None, ..BEGINS });
        metrics.reported(None, &Report::of(AttachDetachKey::NodeVolume(key), reason), now);
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "how long it took is measured, not asserted")]
fn a_page_of_a_large_cluster_has_at_most_two_mebibytes_but_for_what_is_by_node() {
    let metrics = Metrics::default();
    let mut of_attachments = AttachDetachMetrics::new(&metrics).unwrap();
    attach_and_detach(&mut of_attachments);
    let board = Arc::new(Board::default());
    board.lead(Instant::now());
    sizes::register(objects(), board, &metrics).unwrap();
    let binder = BinderMetrics::new(&metrics).unwrap();
    for number in 0..MANY_DRIVERS {
        let plugin = format!("csi-{number:03}.example.com");
        for operation in [durations::MeasuredOperation::Provision, durations::MeasuredOperation::Delete] {
            binder.observe(&Sample::Took(operation, plugin.clone(), Duration::from_secs(3)));
            binder.observe(&Sample::Failed(operation, plugin.clone()));
        }
    }
    binder.observe(&Sample::Bound(BindMode::Static, Duration::from_millis(3), None));
    let api = ApiMetrics::new(&metrics, "10.0.0.1:6443").unwrap();
    for method in [http::Method::GET, http::Method::POST, http::Method::PATCH, http::Method::DELETE] {
        for code in [0, 200, 201, 404, 409, 422, 429, 500, 503, 504] {
            api.observe(&method, code, Duration::from_millis(3));
            api.retried(&method, code);
        }
        api.sent(&method, 500);
        api.received(&method, 5_000);
        api.throttled(&method, Duration::from_millis(3));
    }
    metrics.text().unwrap();
    let begun = Instant::now();
    let text = metrics.text().unwrap();
    let took = begun.elapsed();
    let by_node: usize =
        text.lines().filter(|line| line.starts_with(BY_NODE)).map(|line| line.len() + 1).sum();
    let rest = text.len() - by_node;
    eprintln!("{rest} bytes, {by_node} by node, {} lines, in {took:?}", text.lines().count());
    let mut families: BTreeMap<&str, usize> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        *families.entry(line.split(['{', ' ']).next().unwrap()).or_default() += line.len() + 1;
    }
    let mut families: Vec<_> = families.into_iter().filter(|(_, size)| *size > 30_000).collect();
    families.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
    assert!(rest <= 2 << 20, "{rest} bytes: {families:?}");
    let drivers = text.lines().filter(|line| line.starts_with("mooring_attach_overhead_seconds_count{"));
    assert_eq!(drivers.count(), DRIVERS + 1, "and all others as one");
    assert!(metrics.openmetrics().unwrap().len() <= 1 << 20);
    let (families, _) = openmetrics::read(&metrics.openmetrics().unwrap()).unwrap();
    assert!(families["mooring_detach_e2e_seconds"] > 1_000, "{families:?}");
}
