//! What a daemon goes through in a simulated cluster, and what that costs it.
//!
//! A pod that waits for its volume is there before the daemon. Work is done on the same few nodes in clusters of any size,
//! so that what an operation costs can be compared. Then all is listed anew, and two other daemons start, of which one
//! stands by until the other is killed.

use std::{collections::BTreeSet, path::Path, time::Duration};

use k8s_openapi::{
    api::{
        core::v1::{Node, PersistentVolumeClaim, Pod},
        storage::v1::VolumeAttachment,
    },
    jiff::Timestamp,
};
use kube::{
    Api,
    api::{Patch, PatchParams},
    runtime::wait::await_condition,
};
use serde_json::json;
use test_support::{
    actors::attachment_name,
    cluster::{Cluster, DRIVER, NAMESPACE, create},
};
use tokio::time::{Instant, sleep, timeout};

use super::{
    objects::{Shape, claim_name, namespace, node_name},
    plane::{Daemon, Plane},
    turns::Turns,
};
use crate::{
    Options,
    asking::{Asked, LOOKING, ask},
    cost,
    course::{Exists, forget_peak_memory, resident_memory, rest},
    load::{Load, each, name},
    sightings::{Sight, Sightings},
    subject,
};

/// The longest that a start may take.
const START: Duration = Duration::from_mins(30);
/// How often it is looked whether a daemon has come as far as it should.
const LOOK: Duration = Duration::from_millis(100);

/// What something cost, one by one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub wall: Duration,
    pub cpu: Duration,
    /// Keys that were planned.
    pub planned: f64,
}

/// What was measured.
#[derive(Debug)]
pub struct Outcome {
    pub nodes: usize,
    /// From the start of the process to the VolumeAttachment of the pod that waits, and the CPU time until then.
    pub first_write: (Duration, Duration),
    /// CPU time until it was at rest.
    pub start_cpu: Duration,
    pub start_peak: u64,
    pub resting: u64,
    pub requests: String,
    pub idle_cores: f64,
    pub node_update: Cost,
    pub pod_update: Cost,
    pub bind: Cost,
    pub attach: Cost,
    pub detach: Cost,
    /// The longest turns at the start, idle, at work and during the relists, each by the clock and with a core.
    pub turns: [Vec<(Duration, Duration)>; 4],
    /// How long the metrics take, and their size in bytes, if they come.
    pub metrics: (Duration, Option<usize>),
    pub relist: (Duration, Duration),
    pub relist_peak: u64,
    /// Memory of a daemon that stands by.
    pub standby: u64,
    /// From the end of the leader to the VolumeAttachment of a pod, and the CPU time of the other until it was at rest.
    pub take_over: (Duration, Duration),
    pub asked: Vec<Asked>,
}

/// One daemon at work.
struct Work<'a> {
    daemon: Daemon,
    plane: &'a Plane,
    load: Load,
    sightings: Sightings,
}

/// Takes a daemon through a cluster of so many nodes.
pub async fn run(nodes: usize, options: &Options) -> Outcome {
    let (pods, attached) = (options.pods, options.attached);
    let shape = Shape { nodes, pods, attached, claims: attached + options.spare, seed: options.seed };
    let mooring = subject::mooring(options.mooring.as_deref());
    let plane = Plane::start(shape).await;
    let cluster = Cluster::new(plane.written.clone());
    let load = Load { cluster, nodes: options.busy_nodes.min(nodes) };
    let sightings = Sightings::start(&plane.written);
    let all = options.volumes;
    let (waiting, relisted, after_leader) = (all, all + 1, all + 2);
    load.bound_pairs(waiting..after_leader + 1).await;
    put_pods(&load, waiting..waiting + 1).await;

    eprintln!("{nodes} nodes: start");
    let begin = Instant::now();
    let daemon = Daemon::start(&plane, mooring, false);
    let process = daemon.id();
    let turns = Turns::start(process).await;
    attached_to(&plane, &load, waiting, &daemon).await;
    let first_write = (begin.elapsed(), cost::cpu(process));
    rest(process).await;
    let start_turns = longest(turns);
    let (start_cpu, start_peak) = (cost::cpu(process), cost::peak_memory(process));
    let resting = resident_memory(process);
    let requests = plane.requests().await;
    let mut work = Work { daemon, plane: &plane, load, sightings };
    work.seen([Sight::Listed(name(waiting))].into()).await;

    let turns = Turns::start(process).await;
    let before = cost::cpu(process);
    sleep(Duration::from_secs(options.idle)).await;
    let idle = cost::cpu(process).saturating_sub(before);
    let idle_turns = longest(turns);
    let idle_cores = idle.as_secs_f64() / Duration::from_secs(options.idle).as_secs_f64();
    let asked = if options.brief { Vec::new() } else { questions(&plane, mooring).await };
    let turns = Turns::start(process).await;
    let (node_update, pod_update) = work.updates(shape, options.updates).await;
    let [bind, attach, detach] = work.operations(0..all).await;
    let work_turns = longest(turns);
    let begin = Instant::now();
    let size = work.daemon.page("/metrics").await.map(|text| text.len()).ok();
    let metrics = (begin.elapsed(), size);

    eprintln!("{nodes} nodes: every kind is listed anew");
    let turns = Turns::start(process).await;
    forget_peak_memory(process);
    let (begin, before) = (Instant::now(), cost::cpu(process));
    plane.expire().await;
    put_pods(&work.load, relisted..relisted + 1).await;
    work.seen([Sight::Listed(name(relisted))].into()).await;
    rest(process).await;
    let relist = (begin.elapsed(), cost::cpu(process).saturating_sub(before));
    let relist_peak = cost::peak_memory(process);
    let relist_turns = longest(turns);

    let Work { mut daemon, load, .. } = work;
    daemon.process.kill();
    let (standby, take_over) = if options.brief {
        Default::default()
    } else {
        take_over(&plane, &load, after_leader, mooring).await
    };
    Outcome {
        nodes,
        first_write,
        start_cpu,
        start_peak,
        resting,
        requests,
        idle_cores,
        node_update,
        pod_update,
        bind,
        attach,
        detach,
        turns: [start_turns, idle_turns, work_turns, relist_turns],
        metrics,
        relist,
        relist_peak,
        standby,
        take_over,
        asked,
    }
}

fn longest(turns: Option<Turns>) -> Vec<(Duration, Duration)> {
    turns.map(|turns| turns.longest(5)).unwrap_or_default()
}

/// Creates the pods of claims, on nodes that nobody has written.
async fn put_pods(load: &Load, numbers: std::ops::Range<usize>) {
    each(numbers, async |number| {
        load.cluster.pod(&name(number), &node_name(number % load.nodes), &[&name(number)]).await;
    })
    .await;
}

/// Waits for the VolumeAttachment of a pod.
async fn attached_to(plane: &Plane, load: &Load, number: usize, daemon: &Daemon) {
    let attachments = Api::<VolumeAttachment>::all(plane.written.clone());
    let attachment = attachment_name(&name(number), DRIVER, &node_name(number % load.nodes));
    let seen = timeout(START, await_condition(attachments, &attachment, Exists)).await;
    assert!(matches!(seen, Ok(Ok(_))), "nothing is attached:\n{}", daemon.process.log().tail(30));
}

impl Work<'_> {
    async fn seen(&mut self, expected: BTreeSet<Sight>) {
        if let Err(reason) = self.sightings.all(expected).await {
            panic!("{reason}\n{}", self.daemon.process.log().tail(30));
        }
    }

    async fn planned(&self) -> f64 {
        self.daemon.sum("mooring_planned_keys_total").await
    }

    /// What something costs that is made so many times, until the daemon is at rest.
    async fn each(&mut self, count: usize, make: impl AsyncFnOnce(&mut Self)) -> Cost {
        let process = self.daemon.id();
        // The metrics of a large cluster cost something, too.
        let planned = self.planned().await;
        rest(process).await;
        let (begin, cpu) = (Instant::now(), cost::cpu(process));
        make(self).await;
        let wall = begin.elapsed();
        rest(process).await;
        let cpu = cost::cpu(process).saturating_sub(cpu);
        let one = u32::try_from(count).expect("a number of operations");
        Cost { wall: wall / one, cpu: cpu / one, planned: (self.planned().await - planned) / count as f64 }
    }

    /// Heartbeats of nodes, and changes of a condition of pods, all over the cluster.
    async fn updates(&mut self, shape: Shape, count: usize) -> (Cost, Cost) {
        let client = self.plane.whole();
        let status = || {
            json!({ "status": { "conditions": [
                { "type": "Ready", "status": "True", "lastHeartbeatTime": Timestamp::now().to_string() },
            ]}})
        };
        let nodes = Api::<Node>::all(client.clone());
        eprintln!("{} nodes: updates that do not concern it", shape.nodes);
        let node = async |_: &mut Self| {
            each(0..count, async |number| {
                let name = node_name(number * 7919 % shape.nodes);
                let patch = Patch::Strategic(status());
                nodes.patch_status(&name, &PatchParams::default(), &patch).await.expect("patch a node");
            })
            .await;
        };
        let pod = async |_: &mut Self| {
            each(0..count, async |number| {
                let node = number * 7919 % shape.nodes;
                let volume = node * shape.claims + number % shape.attached;
                let pods = Api::<Pod>::namespaced(client.clone(), &namespace(volume));
                let name = claim_name(volume).replacen("data-", "", 1);
                let patch = Patch::Strategic(json!({ "status": { "conditions": [
                    { "type": "Ready", "status": "True", "lastTransitionTime": Timestamp::now().to_string() },
                ]}}));
                pods.patch_status(&name, &PatchParams::default(), &patch).await.expect("patch a pod");
            })
            .await;
        };
        (self.each(count, node).await, self.each(count, pod).await)
    }

    /// Binds, attaches and detaches volumes, all at once each.
    async fn operations(&mut self, numbers: std::ops::Range<usize>) -> [Cost; 3] {
        let count = numbers.len();
        self.load.volumes(numbers.clone()).await;
        self.seen(numbers.clone().map(|number| Sight::Available(name(number))).collect()).await;
        eprintln!("bind");
        let bind = self.each(count, async |work| {
            work.load.claims(numbers.clone()).await;
            work.seen(numbers.clone().map(|number| Sight::Bound(name(number))).collect()).await;
        });
        let bind = bind.await;
        let volumes = self.load.volumes_of(numbers.clone()).await;
        eprintln!("attach");
        let attach = self.each(count, async |work| {
            put_pods(&work.load, numbers.clone()).await;
            work.seen(volumes.iter().cloned().map(Sight::Listed).collect()).await;
        });
        let attach = attach.await;
        eprintln!("detach");
        let detach = self.each(count, async |work| {
            work.load.remove_pods(numbers.clone()).await;
            work.seen(volumes.iter().cloned().map(Sight::Detached).collect()).await;
        });
        [bind, attach, detach.await]
    }
}

/// Starts two daemons, kills the one that leads, and waits until the other has attached a volume.
async fn take_over(plane: &Plane, load: &Load, number: usize, mooring: &Path) -> (u64, (Duration, Duration)) {
    eprintln!("two daemons: one stands by");
    let mut leader = Daemon::start(plane, mooring, true);
    while !leads(&leader).await {
        sleep(LOOK).await;
    }
    let other = Daemon::start(plane, mooring, true);
    while other.page("/readyz").await.is_err() {
        sleep(LOOK).await;
    }
    rest(other.id()).await;
    let (standby, before) = (resident_memory(other.id()), cost::cpu(other.id()));
    put_pods(load, number..number + 1).await;
    let begin = Instant::now();
    leader.process.kill();
    attached_to(plane, load, number, &other).await;
    let wall = begin.elapsed();
    rest(other.id()).await;
    (standby, (wall, cost::cpu(other.id()).saturating_sub(before)))
}

async fn leads(daemon: &Daemon) -> bool {
    daemon.page("/metrics").await.is_ok_and(|text| {
        let is_leader =
            |line: &str| line.starts_with("leader_election_master_status") && line.ends_with(" 1");
        text.lines().any(is_leader)
    })
}

/// Asks on the command line of the first claim and of everything.
async fn questions(plane: &Plane, mooring: &Path) -> Vec<Asked> {
    let cluster = Cluster::new(plane.written.clone());
    let claim = json!({
        "metadata": { "name": LOOKING },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "resources": { "requests": { "storage": "100Ti" } },
        },
    });
    create(&cluster.namespaced::<PersistentVolumeClaim>(), claim).await;
    let kubeconfig = plane.kubeconfig();
    let mut answers = Vec::new();
    for question in [
        format!("explain pvc {} -n {}", claim_name(0), namespace(0)),
        format!("explain node {}", node_name(0)),
        format!("explain pvc {LOOKING} -n {NAMESPACE}"),
        "doctor".to_owned(),
    ] {
        eprintln!("mooring {question}");
        answers.push(ask(mooring, &kubeconfig, question).await);
    }
    answers
}
