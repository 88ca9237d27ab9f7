//! The phases, each measured from the moment the subject may begin.
//!
//! Together: the subject is paused while the work is created, then let go; every latency is from
//! "go" to the sighting. One at a time: from the API server's answer to our request to the
//! sighting, then the next. Claims come after the volumes are Available, because KCM binds a claim
//! that comes before its volume only in its next sweep, and that pause says nothing about speed; it has a
//! phase of its own.

use std::{collections::BTreeSet, ops::Range, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    Options,
    cost::{self, Cpu, Requests},
    instructions::Counter,
    load::{Load, name},
    sightings::{Sight, Sightings},
    subject::{Kind, Subject},
    support::{
        actors::{Attacher, AttacherBehaviour},
        assets::Assets,
        cluster::{Cluster, DRIVER},
        control_plane::{self, ControlPlane, User},
    },
};

/// Writes of the attacher at once: enough that it never is what one waits for.
const ATTACHER_WORKERS: usize = 64;
/// How long the API server must take no write until a phase is over for good.
const QUIET: Duration = Duration::from_millis(500);
/// How often to look for quiet before going on without.
const QUIET_ATTEMPTS: usize = 40;

const BIND_ALL: &str = "bind all";

/// What a subject achieved.
#[derive(Debug)]
pub struct Outcome {
    pub kind: Kind,
    /// Version of the API server.
    pub kubernetes: String,
    pub phases: Vec<Measured>,
    pub idle: Option<Idle>,
}

/// One phase.
#[derive(Debug)]
pub struct Measured {
    pub phase: &'static str,
    /// Whether all was there to be done at once.
    pub together: bool,
    pub latencies: Vec<Duration>,
    /// From the first "go" to the last sighting.
    pub wall: Duration,
    /// Within that time.
    pub cpu: Cpu,
    /// Of the subject in user mode within that time, where they can be counted.
    pub instructions: Option<u64>,
    /// What came after: mostly events about what was done.
    pub tail: Tail,
    /// From the first "go" to the end of the tail.
    pub requests: Requests,
    pub peak_memory: u64,
}

/// What a subject still does after the last sighting.
#[derive(Debug)]
pub struct Tail {
    pub wall: Duration,
    pub cpu: Duration,
}

/// Doing nothing.
#[derive(Debug)]
pub struct Idle {
    /// In which cluster.
    pub with: String,
    pub peak_memory: u64,
    pub wall: Duration,
    pub cpu: Duration,
    pub requests: Requests,
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
    let subject = Subject::start(kind, &plane);
    let mut duel = Duel { kind, plane: &plane, load: &load, subject, sightings };
    duel.seen([Sight::Listed(name(all))].into()).await;
    load.heartbeats().await;
    load.remove_pods(first).await;
    duel.seen([Sight::Detached(name(all))].into()).await;
    load.volumes(0..all).await;
    duel.seen((0..all).map(|number| Sight::Available(name(number))).collect()).await;

    let bound = |number| Sight::Bound(name(number));
    let mut phases = Vec::new();
    phases.push(duel.together(BIND_ALL, many.clone(), Load::claims, &bound).await);
    phases.push(duel.singly("bind, one at a time", single.clone(), Load::claims, &bound).await);
    let late = all + 1..all + 1 + options.late_volumes;
    phases.push(duel.singly("bind, volume after claim", late, Load::volumes_after_claims, &bound).await);

    let volumes = load.volumes_of(0..all).await;
    let listed = |number: usize| Sight::Listed(volumes[number].clone());
    let detached = |number: usize| Sight::Detached(volumes[number].clone());
    phases.push(duel.together("attach all", many.clone(), Load::pods, &listed).await);
    let idle = duel.idle(options.idle(), "all attached".to_owned()).await;
    phases.push(duel.singly("attach, one at a time", single.clone(), Load::pods, &listed).await);
    phases.push(duel.singly("detach, one at a time", single, Load::remove_pods, &detached).await);
    phases.push(duel.together("detach all", many, Load::remove_pods, &detached).await);

    let version = load.cluster.client.apiserver_version().await.expect("ask for the version");
    Outcome { kind, kubernetes: version.git_version, phases, idle: Some(idle) }
}

/// Binds all, and nothing else, by the bare writes.
pub async fn run_floor(assets: &Assets, options: &Options) -> Outcome {
    let kind = Kind::Floor;
    let plane = plane(assets, kind).await;
    let load = Load { cluster: Cluster::new(plane.client(User::Admin)), nodes: options.nodes };
    load.prepare().await;
    let sightings = Sightings::start(&plane.client(User::Kubelets));
    load.volumes(0..options.volumes).await;
    load.available(0..options.volumes).await;
    let subject = Subject::start(kind, &plane);
    let mut duel = Duel { kind, plane: &plane, load: &load, subject, sightings };
    let bound = |number| Sight::Bound(name(number));
    let measured = duel.together(BIND_ALL, 0..options.volumes, Load::claims, &bound).await;
    let version = load.cluster.client.apiserver_version().await.expect("ask for the version");
    Outcome { kind, kubernetes: version.git_version, phases: vec![measured], idle: None }
}

async fn plane(assets: &Assets, kind: Kind) -> ControlPlane {
    eprintln!("{}: starting a control plane", kind.name());
    let plane_options = control_plane::Options { without_records: true, ..Default::default() };
    ControlPlane::start_with(assets, &plane_options).await
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
    let subject = Subject::start(kind, &plane);
    let mut duel = Duel { kind, plane: &plane, load: &load, subject, sightings };
    // Once a pair that came last is bound, the subject has looked at everything.
    let last = options.idle_bound..options.idle_bound + 1;
    load.volumes(last.clone()).await;
    duel.seen([Sight::Available(name(last.start))].into()).await;
    load.claims(last.clone()).await;
    duel.seen([Sight::Bound(name(last.start))].into()).await;
    duel.quiet().await;
    let idle = duel.idle(Duration::from_secs(options.idle_for), with).await;
    let version = load.cluster.client.apiserver_version().await.expect("ask for the version");
    Outcome { kind, kubernetes: version.git_version, phases: Vec::new(), idle: Some(idle) }
}

struct Duel<'a> {
    kind: Kind,
    plane: &'a ControlPlane,
    load: &'a Load,
    subject: Subject,
    sightings: Sightings,
}

impl Duel<'_> {
    /// Piles the work up before the paused subject, then lets it go.
    async fn together(
        &mut self,
        phase: &'static str,
        numbers: Range<usize>,
        make: impl AsyncFn(&Load, Range<usize>),
        sight: &dyn Fn(usize) -> Sight,
    ) -> Measured {
        eprintln!("{}: {phase}", self.kind.name());
        self.load.heartbeats().await;
        self.quiet().await;
        self.subject.pause().await;
        make(self.load, numbers.clone()).await;
        self.subject.prepare().await;
        let counter = match self.subject.id() {
            Some(process) => Counter::start(process).await,
            None => None,
        };
        let (requests, cpu) = (self.requests().await, self.cpu());
        let go = Instant::now();
        self.subject.resume();
        let times = self.seen(numbers.map(sight).collect()).await;
        let instructions = counter.and_then(Counter::read);
        let latencies = times.iter().map(|at| at.saturating_duration_since(go)).collect();
        let wall = times.iter().max().map(|last| last.saturating_duration_since(go)).unwrap_or_default();
        let measured = self.measured(phase, true, latencies, wall, cpu, &requests).await;
        Measured { instructions, ..measured }
    }

    /// Does one thing, sees it done, and does the next.
    async fn singly(
        &mut self,
        phase: &'static str,
        numbers: Range<usize>,
        make: impl AsyncFn(&Load, Range<usize>),
        sight: &dyn Fn(usize) -> Sight,
    ) -> Measured {
        eprintln!("{}: {phase}", self.kind.name());
        self.load.heartbeats().await;
        self.quiet().await;
        let (requests, cpu, begin) = (self.requests().await, self.cpu(), Instant::now());
        let mut latencies = Vec::new();
        for number in numbers {
            make(self.load, number..number + 1).await;
            let answered = Instant::now();
            for at in self.seen([sight(number)].into()).await {
                latencies.push(at.saturating_duration_since(answered));
            }
        }
        self.measured(phase, false, latencies, begin.elapsed(), cpu, &requests).await
    }

    async fn measured(
        &mut self,
        phase: &'static str,
        together: bool,
        mut latencies: Vec<Duration>,
        wall: Duration,
        cpu_before: Cpu,
        requests_before: &Requests,
    ) -> Measured {
        let cpu = self.cpu().since(cpu_before);
        latencies.sort_unstable();
        let (tail_begin, tail_cpu) = (Instant::now(), self.cpu());
        let requests = self.quiet().await.since(requests_before);
        let tail = Tail {
            // Quiet is noticed after it has lasted.
            wall: tail_begin.elapsed().saturating_sub(QUIET),
            cpu: self.cpu().since(tail_cpu).subject,
        };
        let peak_memory = self.subject.id().map_or(0, cost::peak_memory);
        Measured { phase, together, latencies, wall, cpu, instructions: None, tail, requests, peak_memory }
    }

    async fn idle(&mut self, length: Duration, with: String) -> Idle {
        eprintln!("{}: idle", self.kind.name());
        let (requests, cpu, begin) = (self.requests().await, self.cpu(), Instant::now());
        sleep(length).await;
        let (wall, cpu) = (begin.elapsed(), self.cpu().since(cpu).subject);
        let peak_memory = self.subject.id().map_or(0, cost::peak_memory);
        Idle { with, peak_memory, wall, cpu, requests: self.requests().await.since(&requests) }
    }

    /// Waits until nothing is written any more.
    async fn quiet(&self) -> Requests {
        let mut before = self.requests().await;
        for _ in 0..QUIET_ATTEMPTS {
            sleep(QUIET).await;
            let now = self.requests().await;
            if now.since(&before).count(|verb, _| cost::writes(verb)) == 0 {
                return now;
            }
            before = now;
        }
        before
    }

    async fn seen(&mut self, expected: BTreeSet<Sight>) -> Vec<Instant> {
        match self.sightings.all(expected).await {
            Ok(times) => times,
            Err(reason) => panic!("{}: {reason}\n{}", self.kind.name(), self.subject.log()),
        }
    }

    async fn requests(&self) -> Requests {
        Requests::read(&self.load.cluster.client).await
    }

    fn cpu(&self) -> Cpu {
        Cpu::read(
            self.subject.id().unwrap_or_default(),
            self.plane.api_server_id(),
            cost::child("etcd").unwrap_or_default(),
        )
    }
}
