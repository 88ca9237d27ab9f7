//! Plays a script: the embedded server in paused time, the stand-ins, the whole daemon, its kills; then the calm, and a
//! last kill in it. Out: a record for the judges.

use std::{sync::Arc, time::Duration};

use test_support::{
    audit,
    backend::{Backend, Proxy, embedded::Embedded},
    cluster::{Cluster, DRIVER},
    control_plane::User,
    daemon::{Daemon, Launch},
    history::Change,
};
use testbed::{
    Server,
    actors::{
        Attacher, AttacherBehaviour, Collector, Fact, KubeletBehaviour, Kubelets, Protection, Provisioner,
        ProvisionerBehaviour, Reaction, Scheduler, Storage,
    },
    faults::{Caught, CrashPoint, Faults, Storm},
};
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    acts::{Act, Kill, Script, WATCHED},
    hands::Hands,
    in_process,
    world::{Fight, World, watched},
};

const NAMESPACE: &str = "mooring-system";
/// As long as the law's own pauses need: ten minutes after another writer, six of a force, five of the longest retry.
const CALM: Duration = Duration::from_mins(22);
/// Within this time after the last trouble a daemon ends that has lost the lease in it.
const LEASE_ENDS: Duration = Duration::from_mins(1);
/// After the last kill.
const AFTER: Duration = Duration::from_mins(3);
/// How long a kill waits for its write.
const KILL_WAITS: Duration = Duration::from_secs(2);

/// All that happened.
#[derive(Debug)]
pub struct Record {
    pub script: Script,
    pub changes: Vec<Change>,
    pub requests: Vec<audit::Entry>,
    pub facts: Vec<Fact>,
    /// When each revision was written, the last of those written at once.
    pub times: Vec<(u64, Instant)>,
    pub began: Instant,
    /// When a daemon was killed.
    pub kills: Vec<Instant>,
    /// When one was started.
    pub starts: Vec<Instant>,
    /// When one was found that had ended by itself.
    pub ended: Vec<Instant>,
    /// From when to when what one sees or does may be late.
    pub late: Vec<(Instant, Instant)>,
    /// Of which kinds a process may not be told what changes, and from when to when.
    pub blind: Vec<Blind>,
    /// From when to when requests failed.
    pub faults: Vec<(Instant, Instant)>,
    /// What stubborn writers undid each time, and until when.
    pub fights: Vec<Fight>,
    /// The revision at which the last kill came, in the calm, and when.
    pub killed: u64,
    pub killed_at: Instant,
    /// Where the last kill is among the requests.
    pub killed_request: usize,
}

/// What changes of a kind, or of any, is not told for a while.
#[derive(Clone, Copy, Debug)]
pub struct Blind {
    pub kind: Option<&'static str>,
    pub from: Instant,
    pub until: Instant,
}

/// Plays it on a runtime of its own.
pub fn play(script: &Script) -> Record {
    fastrand::seed(script.seed);
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(run(script))
}

/// The daemon, or its replicas, each behind a proxy of its own.
struct Daemons {
    server: Embedded,
    launch: Launch,
    running: Vec<(Proxy, Option<Daemon>)>,
    kills: Vec<Instant>,
    starts: Vec<Instant>,
    ended: Vec<Instant>,
    late: Vec<(Instant, Instant)>,
    blind: Vec<Blind>,
    faults: Vec<(Instant, Instant)>,
    troubles: JoinSet<()>,
    /// How many writes each had made when the last one that writes was looked for, and which it was.
    seen: Vec<usize>,
    leader: usize,
}

impl Daemons {
    async fn start(server: Embedded, launch: Launch, count: usize) -> Self {
        let (running, seen) = (Vec::new(), Vec::new());
        let (kills, starts, ended) = (Vec::new(), Vec::new(), Vec::new());
        let (late, blind, faults, troubles) = (Vec::new(), Vec::new(), Vec::new(), JoinSet::new());
        let mut daemons = Self {
            server,
            launch,
            running,
            kills,
            starts,
            ended,
            late,
            blind,
            faults,
            troubles,
            seen,
            leader: 0,
        };
        for _ in 0..count {
            let proxy = daemons.server.proxy().await;
            let daemon = daemons.server.start(&daemons.launch, &proxy);
            daemons.running.push((proxy, Some(daemon)));
        }
        daemons
    }

    /// The one that writes: the one with the most writes since it was last looked for, else the same as then.
    fn leader(&mut self) -> usize {
        let counts: Vec<usize> = self.running.iter().map(|(proxy, _)| proxy.counted()).collect();
        let new = |place: usize| counts[place] - self.seen.get(place).copied().unwrap_or(0);
        let most = (0..counts.len()).max_by_key(|place| new(*place)).unwrap_or(0);
        if new(most) > 0 {
            self.leader = most;
        }
        self.seen = counts;
        self.leader
    }

    /// Starts another where one has ended by itself, as a Deployment does.
    fn revive(&mut self) {
        for (proxy, daemon) in &mut self.running {
            if daemon.as_ref().is_none_or(Daemon::is_over) {
                self.ended.extend(daemon.is_some().then(Instant::now));
                proxy.thaw();
                *daemon = Some(self.server.start(&self.launch, proxy));
                self.starts.push(Instant::now());
            }
        }
    }

    /// Kills the one before this proxy, or asks it to end, and starts another in its place.
    async fn replace(&mut self, place: usize, in_order: bool, pause: Duration) {
        let (proxy, daemon) = &mut self.running[place];
        if let Some(daemon) = daemon.take() {
            self.ended.extend(daemon.is_over().then(Instant::now));
            if in_order {
                let _ = timeout(Duration::from_mins(1), daemon.terminate()).await;
            } else {
                self.kills.push(Instant::now());
                daemon.kill();
            }
        }
        proxy.thaw();
        sleep(pause).await;
        *daemon = Some(self.server.start(&self.launch, proxy));
        self.starts.push(Instant::now());
    }

    /// Kills whichever comes to a write first: before, in or after the n-th from now.
    async fn kill_at(&mut self, kill: Kill) {
        let place = self.leader();
        let (proxy, _) = &self.running[place];
        let caught = proxy.crash_at(proxy.counted() + kill.write, CrashPoint::ALL[kill.point]);
        let _ = timeout(KILL_WAITS, caught.reached()).await;
        drop(caught);
        self.replace(place, false, Duration::from_millis(100)).await;
    }

    async fn act(&mut self, act: &Act) {
        self.revive();
        self.blind.extend(Blind::by(act));
        match *act {
            Act::Faults { seed, time } => {
                self.faults.push((Instant::now(), Instant::now() + time));
                for place in 0..self.running.len() {
                    self.running[place].0.begin(&Storm::new(seed));
                    self.later(place, time, |faults| {
                        let _ = faults.calm();
                    });
                }
            }
            Act::DelayWatch { kind, time } => {
                let place = self.leader();
                let kinds = kind.map_or(0..WATCHED.len(), |kind| kind..kind + 1);
                kinds.clone().for_each(|kind| self.running[place].0.watches().delay(watched(kind)));
                self.later(place, time, |faults| {
                    kinds.for_each(|kind| faults.watches().resume(watched(kind)));
                });
            }
            Act::RewindWatch { kind, revisions } => {
                let place = self.leader();
                self.running[place].0.watches().rewind(watched(kind), revisions);
            }
            Act::Away { time } => {
                let place = self.leader();
                self.running[place].0.take_away();
                self.later(place, time, Faults::bring_back);
            }
            Act::Freeze { writes, time } => {
                let place = self.leader();
                let proxy = &self.running[place].0;
                let late: Vec<Caught> = (0..writes).map(|_| proxy.delay(|_| true)).collect();
                (0..WATCHED.len()).for_each(|kind| proxy.watches().delay(watched(kind)));
                proxy.stop();
                self.later(place, time, |faults| {
                    drop(late);
                    faults.go_on();
                    (0..WATCHED.len()).for_each(|kind| faults.watches().resume(watched(kind)));
                });
            }
            Act::Replace { in_order, pause } => {
                let place = self.leader();
                self.replace(place, in_order, pause).await;
            }
            _ => {}
        }
    }

    /// Ends a trouble of one's way to the API server after a while, in which people go on.
    fn later(&mut self, place: usize, time: Duration, end: impl FnOnce(&Faults) + Send + 'static) {
        self.late.push((Instant::now(), Instant::now() + time));
        let faults = Faults::clone(&self.running[place].0);
        self.troubles.spawn(async move {
            sleep(time).await;
            end(&faults);
        });
    }

    /// All troubles end by themselves, and every daemon runs.
    async fn calm(&mut self) {
        while self.troubles.join_next().await.is_some() {}
        self.revive();
        // Whom the last trouble costs the lease ends after it.
        sleep(LEASE_ENDS).await;
        self.revive();
        sleep(CALM.saturating_sub(LEASE_ENDS)).await;
    }
}

impl Blind {
    /// What an act that begins now keeps from a process.
    fn by(act: &Act) -> Option<Self> {
        let (kind, time) = match *act {
            Act::DelayWatch { kind, time } => (kind, time),
            Act::Away { time } | Act::Freeze { time, .. } => (None, time),
            _ => return None,
        };
        let now = Instant::now();
        Some(Self { kind: kind.map(watched), from: now, until: now + time })
    }

    /// Whether changes of that kind are not told.
    pub fn is_to(&self, resource: &str) -> bool {
        self.kind.is_none_or(|kind| kind == resource)
    }
}

async fn run(script: &Script) -> Record {
    let began = Instant::now();
    let server = Embedded::new(in_process::start).late_by(&script.lags, script.seed);
    let times = note_times(server.embedded().unwrap().clone());
    let namespace = format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {NAMESPACE}}}}}");
    Cluster::new(server.client(User::Admin)).apply(&namespace).await;

    let storage = Storage::default();
    let short = Reaction::Succeed(Duration::from_millis(300));
    let attacher = AttacherBehaviour {
        attach: short.clone(),
        detach: short.clone(),
        storage: storage.clone(),
        ..AttacherBehaviour::default()
    };
    let attacher = Attacher::start(server.client(User::Attacher), DRIVER, attacher);
    let kubelets = KubeletBehaviour {
        report_after: script.report_after,
        storage: storage.clone(),
        ..KubeletBehaviour::default()
    };
    let kubelets = Kubelets::start(server.client(User::Kubelets), kubelets);
    let create = if script.has_crowd { Reaction::Succeed(Duration::from_secs(2)) } else { short.clone() };
    // No handle is the name of its volume.
    let handle_prefix = "disk-of-".to_owned();
    let provisioner =
        ProvisionerBehaviour { create, delete: short, handle_prefix, ..ProvisionerBehaviour::default() };
    let _provisioner = Provisioner::start(server.client(User::Provisioner), DRIVER, provisioner);
    let _scheduler = Scheduler::start(server.client(User::Scheduler));
    // Where the daemon is all of these controllers, it protects by itself.
    let _protection = (!script.has_all).then(|| Protection::start(server.client(User::ControllerManager)));
    let _collector = script.has_all.then(|| Collector::start(server.client(User::ControllerManager)));

    let launch = if script.has_replicas { Launch::replica(NAMESPACE) } else { Launch::alone() };
    let launch = if script.has_all { launch.with("--controllers=storage") } else { launch };
    let mut daemons = Daemons::start(server.clone(), launch, usize::from(script.has_replicas) + 1).await;
    let mut world = World::make(script, Hands(server.client(User::Admin)), attacher, kubelets).await;
    for step in &script.steps {
        sleep(step.pause).await;
        match step.kill {
            // The act and the death of the daemon go side by side.
            Some(kill) => {
                tokio::join!(world.act(&step.act), daemons.kill_at(kill));
            }
            None => {
                tokio::join!(world.act(&step.act), daemons.act(&step.act));
            }
        }
    }
    let fights = world.calm().await;
    daemons.calm().await;
    let (killed, killed_request) = (server.revision().await, server.recorded());
    let killed_at = Instant::now();
    let (kills, starts, late) = (daemons.kills.clone(), daemons.starts.clone(), daemons.late.clone());
    let (blind, faults) = (daemons.blind.clone(), daemons.faults.clone());
    let place = daemons.leader();
    daemons.replace(place, false, Duration::from_millis(100)).await;
    sleep(AFTER).await;
    daemons.revive();
    let ended = daemons.ended.clone();
    drop(daemons);
    let times = std::mem::take(&mut *times.lock().unwrap());
    Record {
        script: script.clone(),
        changes: server.history(0).await,
        requests: server.requests(0),
        facts: storage.facts(),
        times,
        began,
        kills,
        starts,
        ended,
        late,
        blind,
        faults,
        fights,
        killed,
        killed_at,
        killed_request,
    }
}

/// Notes when revisions were written. Time stands still while anything can run, so all that is written at once is seen.
fn note_times(server: Server) -> Arc<std::sync::Mutex<Vec<(u64, Instant)>>> {
    let times = Arc::new(std::sync::Mutex::new(Vec::new()));
    let noted = Arc::clone(&times);
    tokio::spawn(async move {
        let mut last = 0;
        let mut revisions = server.subscribe_revision();
        while revisions.changed().await.is_ok() {
            let revision = *revisions.borrow_and_update();
            if revision != last {
                noted.lock().unwrap().push((revision, Instant::now()));
                last = revision;
            }
        }
    });
    times
}
