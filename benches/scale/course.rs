//! What a subject goes through in a large cluster, and what that costs it.
//!
//! A pod that waits for its volume is there before the subject: the first right write is the VolumeAttachment
//! for it. Work is done on the same few nodes in clusters of any size, so that what an operation costs can be
//! compared. In the end the API server is restarted after a write, so that every watch is refused and every
//! kind is listed anew.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::{core::v1::ConfigMap, storage::v1::VolumeAttachment};
use kube::{
    Api,
    runtime::wait::{Condition, await_condition},
};
use serde_json::json;
use test_support::{
    actors::{Attacher, AttacherBehaviour, attachment_name},
    assets::Assets,
    cluster::{Cluster, DRIVER, create},
    control_plane::{ControlPlane, User},
};
use tokio::time::{Instant, sleep, timeout};

use super::{
    Options,
    asking::{self, Asked},
    bare_watch,
    bout::{Bout, Measured},
    cost::{self, Requests},
    load::{Load, name},
    sightings::{Sight, Sightings},
    subject::{self, Kind, Subject},
    world,
};

/// Writes of the attacher at once: enough that it never is what one waits for.
const ATTACHER_WORKERS: usize = 64;
/// The longest that a start may take, or coming to rest.
const PATIENCE: Duration = Duration::from_mins(5);
/// Over how long a subject is looked at to tell whether it is at rest, and the CPU time it may use then: 2 %.
const LOOK: Duration = Duration::from_secs(2);
const AT_REST: Duration = Duration::from_millis(40);

/// What was measured.
#[derive(Debug)]
pub struct Outcome {
    pub kind: Kind,
    pub nodes: usize,
    /// From the start of the process to the first right write, and the CPU time it used until then.
    pub first_write: (Duration, Duration),
    /// CPU time until it was at rest after that.
    pub start_cpu: Duration,
    /// Requests of all clients from the start until then; the stand-in's are two.
    pub start_requests: Requests,
    pub start_peak: u64,
    pub resting: u64,
    pub idle_cores: f64,
    pub node_update: PerUpdate,
    pub pod_update: PerUpdate,
    /// What hearing of a node costs one who only reads.
    pub bare_update: PerUpdate,
    /// Answers of the command line, while the cluster is at rest.
    pub asked: Vec<Asked>,
    /// What the API server itself needs for one status patch of a node, of the bench's own, one after the other.
    pub bare_patches: Vec<Duration>,
    pub bind: Measured,
    pub attach: Measured,
    pub single_attach: Measured,
    pub detach: Measured,
    pub work_peak: u64,
    /// After every kind was listed anew.
    pub relist_peak: u64,
    pub relist_cpu: Duration,
}

/// What hearing of something costs.
#[derive(Clone, Copy, Debug)]
pub struct PerUpdate {
    pub cpu: Duration,
    pub instructions: Option<u64>,
}

/// Takes one subject through a cluster of so many nodes.
pub async fn run(assets: &Assets, seeder: &Assets, kind: Kind, nodes: usize, options: &Options) -> Outcome {
    eprintln!("{} with {nodes} nodes: filling etcd and starting the API server", kind.name());
    let mut plane = world::plane(assets, seeder, nodes, options).await;
    let load =
        Load { cluster: Cluster::new(plane.client(User::Admin)), nodes: options.busy_nodes.min(nodes) };
    let behaviour = AttacherBehaviour { workers: ATTACHER_WORKERS, ..Default::default() };
    let _attacher = Attacher::start(plane.client(User::Attacher), DRIVER, behaviour);
    let mut sightings = Sightings::start(&plane.client(User::Kubelets));

    let all = options.volumes + options.one_at_a_time;
    let (many, single) = (0..options.volumes, options.volumes..all);
    let (waiting, last) = (all, all + 1);
    load.bound_pairs(waiting..last + 1).await;
    load.pods(waiting..last).await;
    let there = [Sight::Listed(world::last_handle(nodes, options)), Sight::Bound(name(last))];
    sightings.all(there.into()).await.expect("the cluster is seen");
    let first = Api::<VolumeAttachment>::all(plane.client(User::Kubelets));
    let attachment = attachment_name(&name(waiting), DRIVER, &load.node(waiting));
    let requests = settled_requests(&load).await;

    eprintln!("{}: start", kind.name());
    let (begin, subject) =
        (Instant::now(), Subject::start(kind, &plane, plane.url(), options.mooring.as_deref()).await);
    let process = subject.id().expect("the subject is a process");
    let seen = timeout(PATIENCE, await_condition(first, &attachment, Exists)).await;
    assert!(matches!(seen, Ok(Ok(_))), "nothing is attached after a start:\n{}", subject.log());
    let first_write = (begin.elapsed(), cost::cpu(process));
    let mut bout = Bout { kind, plane: &plane, load: &load, subject, sightings, traffic: None };
    bout.seen([Sight::Listed(name(waiting))].into()).await;
    rest(process).await;
    let (start_cpu, start_peak) = (cost::cpu(process), cost::peak_memory(process));
    let resting = resident_memory(process);
    let start_requests = bout.requests().await.since(&requests);

    let idle = bout.idle(Duration::from_secs(options.idle), String::new()).await;
    let idle_cores = idle.cpu.as_secs_f64() / idle.wall.as_secs_f64();
    eprintln!("{}: updates that do not concern it", kind.name());
    let node_update = updates(process, options.updates, async || {
        world::node_updates(&plane, nodes, options.updates).await;
    });
    let node_update = node_update.await;
    let bare_update = bare_updates(&plane, nodes, options.updates).await;
    let pods = world::some_pods(&plane, options.updates).await;
    let pod_update = updates(process, pods.len(), async || world::pod_updates(&plane, &pods).await).await;

    let bare_patches = bare_patches(&plane, options).await;
    let asked = match kind {
        Kind::Mooring => asking::all(&plane, &load, subject::mooring(options.mooring.as_deref())).await,
        _ => Vec::new(),
    };

    forget_peak_memory(process);
    load.volumes(0..all).await;
    bout.seen((0..all).map(|number| Sight::Available(name(number))).collect()).await;
    let bound = |number| Sight::Bound(name(number));
    let bind = bout.together("bind", many.clone(), Load::claims, &bound).await;
    load.claims(single.clone()).await;
    bout.seen(single.clone().map(bound).collect()).await;
    let volumes = load.volumes_of(0..all).await;
    let listed = |number: usize| Sight::Listed(volumes[number].clone());
    let detached = |number: usize| Sight::Detached(volumes[number].clone());
    let attach = bout.together("attach", many.clone(), Load::pods, &listed).await;
    let single_attach = bout.singly("attach, one at a time", single, Load::pods, &listed).await;
    let detach = bout.together("detach", many, Load::remove_pods, &detached).await;
    let work_peak = cost::peak_memory(process);

    eprintln!("{}: every kind is listed anew", kind.name());
    let Bout { subject, mut sightings, .. } = bout;
    let (relist_peak, relist_cpu) = relist(&mut plane, &load, last, process, &mut sightings, &subject).await;
    Outcome {
        kind,
        nodes,
        first_write,
        start_cpu,
        start_requests,
        start_peak,
        resting,
        idle_cores,
        node_update,
        pod_update,
        bare_update,
        asked,
        bare_patches,
        bind,
        attach,
        single_attach,
        detach,
        work_peak,
        relist_peak,
        relist_cpu,
    }
}

/// How long single status patches of nodes take, the shortest first.
async fn bare_patches(plane: &ControlPlane, options: &Options) -> Vec<Duration> {
    let api = Api::all(plane.client(User::Kubelets));
    let mut took = Vec::new();
    for number in 0..options.one_at_a_time {
        let begin = Instant::now();
        world::node_update(&api, number % options.busy_nodes).await;
        took.push(begin.elapsed());
    }
    took.sort_unstable();
    took
}

/// Has every kind listed anew, until another volume is attached and the subject is at rest. Returns its peak
/// memory meanwhile, and its CPU time.
async fn relist(
    plane: &mut ControlPlane,
    load: &Load,
    volume: usize,
    process: u32,
    sightings: &mut Sightings,
    subject: &Subject,
) -> (u64, Duration) {
    forget_peak_memory(process);
    let before = cost::cpu(process);
    // A revision that no watch has been told of.
    let map = json!({ "metadata": { "generateName": "later-" } });
    create(&load.cluster.namespaced::<ConfigMap>(), map).await;
    plane.restart_api_server().await;
    load.pods(volume..volume + 1).await;
    let seen = sightings.all(BTreeSet::from([Sight::Listed(name(volume))])).await;
    assert!(seen.is_ok(), "{seen:?}\n{}", subject.log());
    rest(process).await;
    (cost::peak_memory(process), cost::cpu(process).saturating_sub(before))
}

/// Whether there is one.
pub struct Exists;

impl Condition<VolumeAttachment> for Exists {
    fn matches_object(&self, object: Option<&VolumeAttachment>) -> bool {
        object.is_some()
    }
}

/// What a subject uses for updates that do not concern it.
async fn updates(process: u32, count: usize, make: impl AsyncFn()) -> PerUpdate {
    let counter = super::instructions::Counter::start(process).await;
    let before = cost::cpu(process);
    make().await;
    rest(process).await;
    let count = u32::try_from(count).expect("a number of updates");
    let instructions = counter.and_then(super::instructions::Counter::read);
    PerUpdate {
        cpu: cost::cpu(process).saturating_sub(before) / count,
        instructions: instructions.map(|counted| counted / u64::from(count)),
    }
}

/// What the updates of nodes cost one who only reads them.
async fn bare_updates(plane: &ControlPlane, nodes: usize, count: usize) -> PerUpdate {
    let watching = bare_watch::start(plane).await;
    // All nodes come first.
    rest(watching.id()).await;
    updates(watching.id(), count, async || world::node_updates(plane, nodes, count).await).await
}

/// Waits until a process does next to nothing.
pub async fn rest(process: u32) {
    let begin = Instant::now();
    loop {
        let before = cost::cpu(process);
        sleep(LOOK).await;
        if cost::cpu(process).saturating_sub(before) < AT_REST {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "the subject does not come to rest");
    }
}

/// Requests so far, once no client writes any more.
async fn settled_requests(load: &Load) -> Requests {
    loop {
        let before = Requests::read(&load.cluster.client).await;
        sleep(LOOK).await;
        let now = Requests::read(&load.cluster.client).await;
        if now.since(&before).count(|verb, _| cost::writes(verb)) == 0 {
            return now;
        }
    }
}

/// Resident set of a process now, in bytes.
pub fn resident_memory(process: u32) -> u64 {
    cost::memory(process, "VmRSS:")
}

/// Lets the largest resident set of a process be that of now.
pub fn forget_peak_memory(process: u32) {
    // Number 5 in proc_pid_clear_refs(5).
    std::fs::write(format!("/proc/{process}/clear_refs"), "5").expect("reset the peak");
}
