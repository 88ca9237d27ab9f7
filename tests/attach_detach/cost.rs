//! The work of one event does not grow with the cluster: what is planned for it is counted, not timed, among
//! 1 000 and among 50 000 attached volumes. What is counted is what `mooring_planned_keys_total` counts. And no turn
//! of the controller takes long, however much there is to look at.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use apiserver::{
    ids::{DriverName, NodeName},
    kinds::{Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment},
    tables::{ChangeSet, Objects, Stored},
};
use k8s_openapi::jiff::Timestamp;
use libtest_mimic::{Failed, Trial};
use mooring::{
    attach_detach::{
        AttachDetachOptions,
        calls::Call,
        clock::Clock,
        controller::AttachDetach,
        metrics::AttachDetachMetrics,
        reasons::{AttachDetachKey, AttachDetachReason},
        state::{actual::unpublishing::Sequence, desired::volume_name::VolumeId},
    },
    controller::{Controller as _, report::reporter::Reporter},
    metrics::Metrics,
};
use serde_json::{Value, json};
use tokio::time::Instant;

const SMALL: usize = 1_000;
const LARGE: usize = 50_000;
const PER_NODE: usize = 10;
const SWEEP: Duration = Duration::from_mins(5);

/// For each of so many attached volumes there is an attachment that nothing explains, on one of two nodes that
/// are gone.
const PER_UNEXPLAINED: usize = 10;

/// Pods, attachments, names of attachments, volumes, volumes on a node and nodes looked at, and pairs walked through
/// to see who holds a volume.
pub type Counts = [u64; 7];

/// No turn looks at more of anything: so many, and what the last volume or node has.
pub const A_TURN: u64 = 300 + 2 * PER_NODE as u64;

/// Turns of one cluster, above which a trial goes in circles; it fails by its name.
const ENOUGH: usize = 20_000;

/// What each event may cost.
const EVENTS: [(&str, Counts); 11] = [
    ("a pod comes", [1, 0, 2, 1, 1, 0, 0]),
    ("an attachment is attached", [0, 1, 0, 1, 1, 1, 0]),
    ("a pod goes", [1, 0, 0, 1, 1, 0, 0]),
    ("a kubelet reports one volume unmounted", [0, 0, 0, 1, 1, 1, 0]),
    ("a kubelet is alive", [0, 0, 0, 0, 0, 0, 0]),
    ("a node is no longer Ready", [0, 0, 0, PER_NODE as u64, PER_NODE as u64, 1, 0]),
    ("an attachment's annotation changes", [0, 0, 0, 0, 0, 0, 0]),
    ("a volume's label changes", [1, 0, 0, 1, 1, 0, 0]),
    ("a claim's annotation changes", [1, 0, 0, 0, 0, 0, 0]),
    ("a volume comes that an attachment names", [0, 1, 0, 1, 1, 0, 1]),
    ("an attachment comes that nothing explains", [0, 1, 0, 0, 0, 0, 0]),
];

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("cost: C-B1 C-B2 the work of an event does not grow with the cluster", run),
        Trial::test("cost: L3 L15 a sweep and a take-over are done in turns", sweep),
    ]
}

// What it says goes to the person who runs the tests.
#[allow(clippy::print_stdout)]
fn sweep() -> Result<(), Failed> {
    let size = 20_000;
    let mut cluster = full(size);
    for (name, names, nodes) in [("a take-over", 2 * size, 0), ("a sweep", 0, size / PER_NODE)] {
        let before = cluster.planned();
        let (mut turns, mut longest) = (0, (Duration::ZERO, 0));
        loop {
            let (earlier, began) = (cluster.planned(), Instant::now());
            let Some(calls) = cluster.turn() else { break };
            longest = longest.max((began.elapsed(), turns));
            let later = cluster.planned();
            // Names come by twos.
            let is_long =
                |kind: usize| later[kind] - earlier[kind] > if kind == 2 { 2 * A_TURN } else { A_TURN };
            if !calls.is_empty() || (0..later.len()).any(is_long) {
                return Err(format!("{name}, turn {turns}: {calls:?} {earlier:?} {later:?}").into());
            }
            turns += 1;
        }
        println!("{name}, {size} volumes: {turns} turns, the longest and its number {longest:?}");
        let seen = cluster.since(before);
        let expected = [0, 0, names, size, size, nodes, 0].map(|count| count as u64);
        if seen != expected {
            return Err(format!("{name}: expected {expected:?}, seen {seen:?}").into());
        }
        cluster.now += SWEEP;
    }
    Ok(())
}

// What it says goes to the person who runs the tests.
#[allow(clippy::print_stdout)]
fn run() -> Result<(), Failed> {
    let (small, large) = (measure(SMALL)?, measure(LARGE)?);
    println!(
        "planned per event, among {SMALL} and {LARGE} attached volumes: [pods, attachments, names, volumes, pairs, nodes, holders]"
    );
    for ((event, most), (small, large)) in EVENTS.iter().zip(small.iter().zip(&large)) {
        println!("  {event:40} {small:?} {large:?}");
        if small != large || small.iter().zip(most).any(|(seen, most)| seen > most) {
            return Err(format!("{event}: at most {most:?}, planned {small:?} and {large:?}").into());
        }
    }
    Ok(())
}

pub struct Cluster {
    pub objects: Arc<Objects>,
    changes: Arc<ChangeSet>,
    pub controller: AttachDetach,
    pub reporter: AttachDetachMetrics,
    pub reports: Reporter<AttachDetachKey, AttachDetachReason>,
    metrics: Metrics,
    revision: usize,
    pub now: Instant,
    /// Whether an answer has been taken.
    is_due: bool,
    turns: usize,
}

pub fn object<T: Stored>(revision: usize, value: Value) -> T {
    let mut value = value;
    value["metadata"]["resourceVersion"] = json!(revision.to_string());
    let mut object: T = serde_json::from_value(value).expect("an object of the kind");
    object.trim();
    object
}

fn node_of(index: usize) -> usize {
    index / PER_NODE
}

pub fn id(index: usize) -> VolumeId {
    VolumeId::csi(&DriverName::from("d"), &format!("v{index}"))
}

pub fn node(number: usize, ready: &str, in_use: impl Iterator<Item = usize>) -> Value {
    let listed: Vec<_> =
        volumes_of(number).map(|index| json!({"name": id(index), "devicePath": ""})).collect();
    json!({
        "metadata": {"name": format!("n{number}"), "uid": format!("n{number}"),
            "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
        "status": {"volumesAttached": listed, "volumesInUse": in_use.map(id).collect::<Vec<_>>(),
            "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
    })
}

fn volumes_of(number: usize) -> std::ops::Range<usize> {
    number * PER_NODE..(number + 1) * PER_NODE
}

fn pod(name: &str, index: usize) -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": name, "uid": name},
        "spec": {"nodeName": format!("n{}", node_of(index)), "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": format!("c{index}")}}]},
        "status": {"phase": "Running"},
    })
}

fn attachment(index: usize, attached: bool) -> Value {
    let node = NodeName::from(format!("n{}", node_of(index)).as_str());
    json!({
        "metadata": {"name": id(index).attachment_name(&node), "uid": format!("va{index}"), "finalizers": ["x"]},
        "spec": {"attacher": "d", "nodeName": node, "source": {"persistentVolumeName": format!("pv{index}")}},
        "status": {"attached": attached},
    })
}

/// An attachment whose volume is gone, on a node that is gone.
fn unexplained(index: usize) -> Value {
    let mut object = attachment(index, true);
    let (name, node) = (format!("lost{index}"), format!("gone{}", index % 2));
    object["metadata"] = json!({"name": name, "uid": name});
    object["spec"] = json!({"attacher": "d", "nodeName": node, "source": {"persistentVolumeName": name}});
    object
}

fn volume(index: usize) -> Value {
    json!({
        "metadata": {"name": format!("pv{index}"), "uid": format!("pv{index}")},
        "spec": {"accessModes": ["ReadWriteOnce"], "csi": {"driver": "d", "volumeHandle": format!("v{index}")},
            "claimRef": {"namespace": "ns", "name": format!("c{index}"), "uid": format!("c{index}")}},
    })
}

fn claim(index: usize) -> Value {
    json!({
        "metadata": {"namespace": "ns", "name": format!("c{index}"), "uid": format!("c{index}")},
        "spec": {"volumeName": format!("pv{index}")}, "status": {"phase": "Bound"},
    })
}

/// What each event costs in a cluster of this size, in the order of [`EVENTS`].
fn measure(size: usize) -> Result<Vec<Counts>, Failed> {
    let mut cluster = full(size);
    let calls = cluster.run();
    assert!(calls.is_empty(), "everything is as it should be, and yet {calls:?}");
    let loaded = cluster.planned();
    // Every one once, and nothing is sent.
    let expected =
        [size, size + size / PER_UNEXPLAINED, 2 * size, size, size, 0, 0].map(|count| count as u64);
    if loaded != expected {
        return Err(format!("loading {size} volumes plans {loaded:?}").into());
    }
    // The volume that comes and goes is one more than the cluster has.
    let (extra, number) = (size, node_of(size));
    let mut bare = node(number, "True", std::iter::empty());
    bare["status"]["volumesAttached"] = json!([]);
    cluster.put::<Node>(bare);
    cluster.put::<PersistentVolume>(volume(extra));
    cluster.put::<PersistentVolumeClaim>(claim(extra));
    cluster.cost();
    let mut costs = Vec::new();
    cluster.put::<Pod>(pod("extra", extra));
    costs.push(cluster.cost());
    cluster.put::<VolumeAttachment>(attachment(extra, true));
    costs.push(cluster.cost());
    let used = || volumes_of(0);
    cluster.end::<Pod>(pod("p1", 1));
    costs.push(cluster.cost());
    cluster.put::<Node>(node(0, "True", used().filter(|index| *index != 1)));
    costs.push(cluster.cost());
    cluster.put::<Node>(node(1, "True", volumes_of(1)));
    costs.push(cluster.cost());
    cluster.put::<Node>(node(2, "False", volumes_of(2)));
    costs.push(cluster.cost());
    let mut annotated = attachment(30, true);
    annotated["metadata"]["annotations"] = json!({"storage.alpha.kubernetes.io/x": "y"});
    cluster.put::<VolumeAttachment>(annotated);
    costs.push(cluster.cost());
    let mut labelled = volume(31);
    labelled["metadata"]["labels"] = json!({"x": "y"});
    cluster.put::<PersistentVolume>(labelled);
    costs.push(cluster.cost());
    let mut annotated = claim(32);
    annotated["metadata"]["annotations"] = json!({"volume.kubernetes.io/selected-node": "n3"});
    cluster.put::<PersistentVolumeClaim>(annotated);
    costs.push(cluster.cost());
    let mut explaining = volume(size + 1);
    explaining["metadata"]["name"] = json!("lost0");
    cluster.put::<PersistentVolume>(explaining);
    costs.push(cluster.cost());
    cluster.put::<VolumeAttachment>(unexplained(size));
    costs.push(cluster.cost());
    Ok(costs)
}

/// A cluster with so many volumes, each attached to the node of its pod, and some attachments that nothing explains.
fn full(size: usize) -> Cluster {
    let mut cluster = Cluster::default();
    for number in 0..size / PER_NODE {
        cluster.put::<Node>(node(number, "True", volumes_of(number)));
    }
    for index in 0..size {
        cluster.put::<PersistentVolume>(volume(index));
        cluster.put::<PersistentVolumeClaim>(claim(index));
        cluster.put::<VolumeAttachment>(attachment(index, true));
        cluster.put::<Pod>(pod(&format!("p{index}"), index));
    }
    for index in 0..size / PER_UNEXPLAINED {
        cluster.put::<VolumeAttachment>(unexplained(index));
    }
    cluster.begin();
    cluster
}

impl Default for Cluster {
    fn default() -> Self {
        let objects = Arc::new(Objects::default());
        let metrics = Metrics::default();
        let of_ours = AttachDetachMetrics::new(&metrics).unwrap();
        let now = Instant::now();
        let clock = Clock::new(Timestamp::from_second(2_000_000_000).unwrap(), now);
        let options = AttachDetachOptions { sweep_period: Some(SWEEP), ..AttachDetachOptions::default() };
        let controller = AttachDetach::new(Arc::clone(&objects), options, clock);
        Self {
            changes: objects.subscribe(),
            objects,
            controller,
            reporter: of_ours,
            reports: Reporter::default(),
            metrics,
            revision: 1,
            now,
            is_due: true,
            turns: 0,
        }
    }
}

impl Cluster {
    /// The controller begins, and leads. What it reports of that is no turn of its own.
    pub fn begin(&mut self) {
        let _listed = self.changes.take();
        self.controller.load(self.now);
        self.controller.lead(self.now);
        let learnt = self.controller.unplanned().unwrap();
        for report in learnt.reports {
            self.reports.take(report, self.now, |_, _| ());
        }
        self.reporter.take(learnt.measures.facts, self.now);
    }

    /// What is sent in one turn of the controller; `None` if there was none to make.
    pub fn turn(&mut self) -> Option<Vec<(Sequence, Call)>> {
        let changed = self.changes.take();
        let is_time = self.controller.wake_at().is_some_and(|at| at <= self.now);
        if changed.is_empty() && !is_time && !std::mem::take(&mut self.is_due) {
            return None;
        }
        self.turns += 1;
        assert!(
            self.turns < ENOUGH,
            "S39: turns without end; in flight {}",
            self.controller.dispatcher().in_flight()
        );
        self.controller.changed(changed, self.now);
        let plan = self.controller.plan(self.now);
        for report in plan.reports {
            self.reports.take(report, self.now, |_, _| ());
        }
        self.reporter.take(plan.measures.facts, self.now);
        Some(plan.calls)
    }

    /// Plans what is to be planned now, and leaves requests without answer.
    pub fn run(&mut self) -> Vec<Call> {
        let mut sent = Vec::new();
        while let Some(calls) = self.turn() {
            sent.extend(calls.into_iter().map(|(_, call)| call));
        }
        sent
    }

    /// A revision that is newer than all.
    pub fn next_revision(&mut self) -> usize {
        self.is_due = true;
        self.revision += 1;
        self.revision
    }

    pub fn put<T: Stored>(&mut self, value: Value) {
        self.revision += 1;
        self.objects.apply::<T>(object(self.revision, value));
    }

    pub fn end<T: Stored>(&mut self, value: Value) {
        self.revision += 1;
        self.objects.delete::<T>(object(self.revision, value));
    }

    /// What the changes so far have had planned. Requests are left without answer.
    pub fn cost(&mut self) -> Counts {
        let before = self.planned();
        self.run();
        self.since(before)
    }

    fn since(&self, before: Counts) -> Counts {
        let after = self.planned();
        std::array::from_fn(|index| after[index] - before[index])
    }

    pub fn planned(&self) -> Counts {
        let text = self.metrics.text().unwrap();
        let counts: BTreeMap<&str, u64> = text
            .lines()
            .filter_map(|line| line.strip_prefix("mooring_planned_keys_total{kind=\"")?.split_once("\"} "))
            .map(|(kind, count)| (kind, count.parse().unwrap()))
            .collect();
        ["pod", "attachment", "name", "volume", "node_volume", "node", "holder"].map(|kind| counts[kind])
    }
}
