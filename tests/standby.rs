//! A replica that stands by holds what is there, and nothing of what came and went.
//!
//! The tables, the controller and the binder's planner, without a server: 20 000 volumes come and go while it stands by, and its bytes
//! are held against those of a process that never saw them.

// A failed expectation ends the test, which is what a failed expectation is for.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::unwrap_used, missing_docs)]

use std::{alloc::System, ops::Range, sync::Arc, time::Duration};

use apiserver::{
    ids::{DriverName, NodeName},
    kinds::{Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment},
    tables::{ChangeSet, Objects, Stored},
};
use k8s_openapi::jiff::Timestamp;
use mooring::{
    attach_detach::{
        AttachDetachOptions,
        clock::Clock,
        controller::AttachDetach,
        metrics::AttachDetachMetrics,
        reasons::{AttachDetachKey, AttachDetachReason},
        state::desired::volume_name::VolumeId,
    },
    binder::{BinderOptions, controller::Planner},
    controller::{Controller as _, report::reporter::Reporter},
    metrics::Metrics,
};
use serde_json::{Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tokio::time::Instant;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Volumes that are there all the time.
const LIVE: Range<u64> = 0..1_000;
/// Volumes that come and go.
const PASSING: Range<u64> = 1_000..21_000;
const PER_NODE: u64 = 100;
const SWEEP: Duration = Duration::from_mins(5);

struct Replica {
    objects: Arc<Objects>,
    changes: Arc<ChangeSet>,
    controller: AttachDetach,
    reporter: AttachDetachMetrics,
    reports: Reporter<AttachDetachKey, AttachDetachReason>,
    planner: Planner,
    revision: u64,
    now: Instant,
}

impl Replica {
    fn stands_by() -> Self {
        let (objects, now) = (Arc::new(Objects::default()), Instant::now());
        let registry = Metrics::default();
        let reporter = AttachDetachMetrics::new(&registry).unwrap();
        let options = AttachDetachOptions { sweep_period: Some(SWEEP), ..AttachDetachOptions::default() };
        let clock = Clock::new(Timestamp::UNIX_EPOCH, now);
        let mut controller = AttachDetach::new(Arc::clone(&objects), options, clock);
        let reports = Reporter::default();
        controller.load(now);
        let mut planner = Planner::new(Arc::clone(&objects), BinderOptions::default());
        planner.load(now);
        let changes = objects.subscribe();
        Self { changes, objects, controller, reporter, reports, planner, revision: 1, now }
    }

    fn looks(&mut self) {
        let changes = self.changes.take();
        for change in &changes {
            self.planner.changed(change, self.now);
        }
        self.controller.changed(changes, self.now);
        let plan = self.controller.plan(self.now);
        assert!(plan.calls.is_empty(), "it stands by");
        for report in plan.reports {
            self.reports.take(report, self.now, |_, _| ());
        }
        self.reporter.take(plan.measures.facts, self.now);
    }

    fn is_told<T: Stored>(&mut self, mut object: Value, is_there: bool) {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let object: T = serde_json::from_value(object).unwrap();
        if is_there { self.objects.apply(object) } else { self.objects.delete(object) }
    }

    /// Volumes come with all that belongs to them, are attached, published and used; or they go.
    fn see(&mut self, numbers: Range<u64>, is_there: bool) {
        for number in numbers {
            let (name, node) = (format!("v{number}"), format!("n{}", number / PER_NODE));
            let volume = VolumeId::csi(&DriverName::from("d"), &name);
            if is_there && number.is_multiple_of(PER_NODE) {
                self.is_told::<Node>(node_of(number, is_there), true);
            }
            let spec = json!({
                "accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": name},
                "claimRef": {"namespace": "ns", "name": name, "uid": name},
            });
            let pv = json!({"metadata": {"name": name, "uid": name}, "spec": spec});
            let claim = json!({
                "metadata": {"name": name, "namespace": "ns", "uid": name},
                "spec": {"volumeName": name}, "status": {"phase": "Bound"},
            });
            let pod = json!({
                "metadata": {"name": name, "namespace": "ns", "uid": name},
                "spec": {"nodeName": node, "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]},
                "status": {"phase": "Running"},
            });
            let attachment = json!({
                "metadata": {"name": volume.attachment_name(&NodeName::from(node.as_str())), "uid": name},
                "spec": {"attacher": "d", "nodeName": node, "source": {"persistentVolumeName": name}},
                "status": {"attached": true},
            });
            self.is_told::<PersistentVolume>(pv, is_there);
            self.is_told::<PersistentVolumeClaim>(claim, is_there);
            self.is_told::<Pod>(pod, is_there);
            if !is_there && number.is_multiple_of(PER_NODE) {
                // Every second node is scaled away, the others are emptied.
                let is_emptied = (number / PER_NODE).is_multiple_of(2);
                self.is_told::<Node>(node_of(number, false), is_emptied);
            }
            self.is_told::<VolumeAttachment>(attachment, is_there);
            if number.is_multiple_of(7) {
                self.looks();
            }
        }
        self.looks();
    }

    fn sweeps(&mut self) {
        for _ in 0..3 {
            self.now += SWEEP;
            self.looks();
        }
        // As the daemon does every five minutes.
        self.objects.give_back_room();
        apiserver::text::give_back_room();
    }
}

fn node_of(number: u64, is_full: bool) -> Value {
    let first = number / PER_NODE * PER_NODE;
    let volume = |number: u64| VolumeId::csi(&DriverName::from("d"), &format!("v{number}"));
    let volumes: Vec<_> = (first..first + PER_NODE).filter(|_| is_full).map(volume).collect();
    let listed: Vec<_> = volumes.iter().map(|volume| json!({"name": volume, "devicePath": ""})).collect();
    let name = format!("n{}", number / PER_NODE);
    json!({
        "metadata": {
            "name": name, "uid": name,
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
        },
        "status": {
            "volumesAttached": listed, "volumesInUse": volumes,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// Bytes that a replica keeps that has seen these volumes come and go, and how many volumes it knows of.
fn kept(passing: Range<u64>) -> (usize, usize) {
    let region = Region::new(ALLOCATOR);
    let mut replica = Replica::stands_by();
    replica.see(LIVE, true);
    replica.see(passing.clone(), true);
    replica.see(passing, false);
    replica.sweeps();
    let stats = region.change();
    replica.controller.lead(replica.now);
    let nodes = replica.objects.nodes.len();
    let knows =
        |number: &u64| replica.controller.actual().node(&format!("n{number}").as_str().into()).is_some();
    assert_eq!((0..PASSING.end / PER_NODE).filter(knows).count(), nodes, "nodes that are gone are forgotten");
    (stats.bytes_allocated - stats.bytes_deallocated, replica.controller.actual().volumes().count())
}

#[test]
fn a_standby_keeps_nothing_of_twenty_thousand_volumes_that_came_and_went() {
    let live = usize::try_from(LIVE.end).unwrap();
    let (fresh, known) = kept(PASSING.start..PASSING.start);
    assert_eq!(known, live);
    let (seen, known) = kept(PASSING);
    assert_eq!(known, live);
    assert!(seen < fresh + fresh / 10, "{seen} bytes are kept instead of {fresh}");
}
