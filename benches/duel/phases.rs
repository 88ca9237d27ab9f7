//! The phases of a duel, each measured from the moment the subject may begin.
//!
//! Claims come after the volumes are Available, because KCM binds a claim that comes before its volume only in
//! its next sweep, and that pause says nothing about speed; it has a phase of its own.

use std::time::Duration;
use test_support::{
    actors::{Attacher, AttacherBehaviour},
    assets::Assets,
    cluster::{Cluster, DRIVER},
    control_plane::{self, ControlPlane, User},
};

use super::{
    Options,
    bout::{Bout, Idle, Measured},
    load::{Load, name},
    sightings::{Sight, Sightings},
    subject::{Kind, Subject},
    traffic::Traffic,
};

/// Writes of the attacher at once: enough that it never is what one waits for.
const ATTACHER_WORKERS: usize = 64;
const BIND_ALL: &str = "bind all";
const ATTACH_ALL: &str = "attach all";
const DETACH_ALL: &str = "detach all";

/// What a subject achieved.
#[derive(Debug)]
pub struct Outcome {
    pub kind: Kind,
    /// Version of the API server.
    pub kubernetes: String,
    pub phases: Vec<Measured>,
    pub idle: Option<Idle>,
}

/// Takes one subject through all phases.
pub async fn run(assets: &Assets, kind: Kind, options: &Options) -> Outcome {
    let plane = plane(assets, kind).await;
    let load = Load { cluster: Cluster::new(plane.client(User::Admin)), nodes: options.nodes };
    load.prepare().await;
    let behaviour = AttacherBehaviour { workers: ATTACHER_WORKERS, ..Default::default() };
    let _attacher = Attacher::start(plane.client(User::Attacher), DRIVER, behaviour);
    let sightings = Sightings::start(&plane.client(User::Kubelets));

    let all = options.volumes + options.one_at_a_time;
    let (many, single) = (0..options.volumes, options.volumes..all);
    // One volume goes all the way first: the subject is then known to be ready and connected.
    let first = all..all + 1;
    load.volumes(first.clone()).await;
    load.claims(first.clone()).await;
    load.pods(first.clone()).await;
    let (subject, traffic) = subject(kind, &plane, options).await;
    let mut bout = Bout { kind, plane: &plane, load: &load, subject, sightings, traffic };
    bout.seen([Sight::Listed(name(all))].into()).await;
    load.heartbeats().await;
    load.remove_pods(first).await;
    bout.seen([Sight::Detached(name(all))].into()).await;
    load.volumes(0..all).await;
    bout.seen((0..all).map(|number| Sight::Available(name(number))).collect()).await;

    let bound = |number| Sight::Bound(name(number));
    let mut phases = Vec::new();
    phases.push(bout.together(BIND_ALL, many.clone(), Load::claims, &bound).await);
    phases.push(bout.singly("bind, one at a time", single.clone(), Load::claims, &bound).await);
    let late = all + 1..all + 1 + options.late_volumes;
    phases.push(bout.singly("bind, volume after claim", late, Load::volumes_after_claims, &bound).await);

    let volumes = load.volumes_of(0..all).await;
    let listed = |number: usize| Sight::Listed(volumes[number].clone());
    let detached = |number: usize| Sight::Detached(volumes[number].clone());
    phases.push(bout.together(ATTACH_ALL, many.clone(), Load::pods, &listed).await);
    let idle = bout.idle(options.idle(), "all attached".to_owned()).await;
    phases.push(bout.singly("attach, one at a time", single.clone(), Load::pods, &listed).await);
    phases.push(bout.singly("detach, one at a time", single, Load::remove_pods, &detached).await);
    phases.push(bout.together(DETACH_ALL, many.clone(), Load::remove_pods, &detached).await);
    phases.push(bout.flowing("attach as pods come", many.clone(), Load::pods, &listed).await);
    phases.push(bout.flowing("detach as pods go", many, Load::remove_pods, &detached).await);

    let version = load.cluster.client.apiserver_version().await.expect("ask for the version");
    Outcome { kind, kubernetes: version.git_version, phases, idle: Some(idle) }
}

/// Binds, attaches and detaches all, by the bare writes.
pub async fn run_floor(assets: &Assets, kind: Kind, options: &Options) -> Outcome {
    let plane = plane(assets, kind).await;
    let load = Load { cluster: Cluster::new(plane.client(User::Admin)), nodes: options.nodes };
    load.prepare().await;
    let behaviour = AttacherBehaviour { workers: ATTACHER_WORKERS, ..Default::default() };
    let _attacher = Attacher::start(plane.client(User::Attacher), DRIVER, behaviour);
    let sightings = Sightings::start(&plane.client(User::Kubelets));
    let many = 0..options.volumes;
    load.volumes(many.clone()).await;
    load.available(many.clone()).await;
    let (subject, traffic) = subject(kind, &plane, options).await;
    let mut bout = Bout { kind, plane: &plane, load: &load, subject, sightings, traffic };
    let bound = |number| Sight::Bound(name(number));
    let mut phases = vec![bout.together(BIND_ALL, many.clone(), Load::claims, &bound).await];
    let volumes = load.volumes_of(many.clone()).await;
    let listed = |number: usize| Sight::Listed(volumes[number].clone());
    let detached = |number: usize| Sight::Detached(volumes[number].clone());
    let pairs: Vec<_> = many.clone().map(|number| (volumes[number].clone(), load.node(number))).collect();
    bout.subject.attach_next(pairs.clone());
    phases.push(bout.together(ATTACH_ALL, many.clone(), Load::pods, &listed).await);
    bout.subject.detach_next(pairs);
    phases.push(bout.together(DETACH_ALL, many, Load::remove_pods, &detached).await);
    let version = load.cluster.client.apiserver_version().await.expect("ask for the version");
    Outcome { kind, kubernetes: version.git_version, phases, idle: None }
}

async fn plane(assets: &Assets, kind: Kind) -> ControlPlane {
    eprintln!("{}: starting a control plane", kind.name());
    let plane_options = control_plane::Options { without_records: true, ..Default::default() };
    ControlPlane::start_with(assets, &plane_options).await
}

/// Starts a subject, with a proxy before it if bytes are to be counted.
async fn subject(kind: Kind, plane: &ControlPlane, options: &Options) -> (Subject, Option<Traffic>) {
    let traffic = if options.traffic { Some(Traffic::start(plane.url()).await) } else { None };
    let url = traffic.as_ref().map_or_else(|| plane.url().to_owned(), Traffic::url);
    (Subject::start(kind, plane, &url, options.mooring.as_deref()).await, traffic)
}

/// Shows one subject a cluster in which nothing happens.
pub async fn run_at_rest(assets: &Assets, kind: Kind, options: &Options) -> Outcome {
    let plane = plane(assets, kind).await;
    let load = Load { cluster: Cluster::new(plane.client(User::Admin)), nodes: options.nodes };
    let with = format!("{} bound pairs and {} Released volumes", options.idle_bound, options.idle_released);
    eprintln!("{}: making {with}", kind.name());
    load.bound_pairs(0..options.idle_bound).await;
    load.released(0..options.idle_released, options.idle_bound).await;
    let sightings = Sightings::start(&plane.client(User::Kubelets));
    let (subject, traffic) = subject(kind, &plane, options).await;
    let mut bout = Bout { kind, plane: &plane, load: &load, subject, sightings, traffic };
    // Once a pair that came last is bound, the subject has looked at everything.
    let last = options.idle_bound..options.idle_bound + 1;
    load.volumes(last.clone()).await;
    bout.seen([Sight::Available(name(last.start))].into()).await;
    load.claims(last.clone()).await;
    bout.seen([Sight::Bound(name(last.start))].into()).await;
    bout.quiet().await;
    let idle = bout.idle(Duration::from_secs(options.idle_for), with).await;
    let version = load.cluster.client.apiserver_version().await.expect("ask for the version");
    Outcome { kind, kubernetes: version.git_version, phases: Vec::new(), idle: Some(idle) }
}
