//! Where a story plays: an empty cluster on one of the two servers, a proxy before it, the stand-ins,
//! the daemon.

use std::{
    any::Any,
    fmt::Write as _,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use futures::FutureExt;
use libtest_mimic::Failed;
use mooring::telemetry::{LoggingFormat, lines::Lines};
use test_support::{
    actors::{
        Attacher, AttacherBehaviour, KubeletBehaviour, Kubelets, Protection, Provisioner,
        ProvisionerBehaviour,
    },
    assets::Assets,
    audit,
    backend::{Backend, Proxy, Real, embedded::Embedded},
    cluster::{Cluster, DRIVER},
    control_plane::{ControlPlane, Options, User},
    daemon::{Daemon, Launch},
    history::Change,
    invariants,
    process::Log,
    wire::Wire,
    writes,
};
use testbed::faults::Write;
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, sleep},
};
use tracing_subscriber::{EnvFilter, layer::SubscriberExt};

use crate::in_process;

/// Where the daemon's account and its lease are.
pub const DAEMON_NAMESPACE: &str = "mooring-system";

/// The daemon.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_mooring");

/// What the daemon is installed with.
const MANIFESTS: [&str; 9] = [
    include_str!("../../deploy/namespace.yaml"),
    include_str!("../../deploy/rbac.yaml"),
    include_str!("../../deploy/flowschemas.yaml"),
    include_str!("../../deploy/metrics-reader.yaml"),
    include_str!("../../deploy/optional/recycler/rbac.yaml"),
    include_str!("../../deploy/optional/host-path/rbac.yaml"),
    include_str!("../../deploy/optional/vac-protection/rbac.yaml"),
    include_str!("../../deploy/optional/ephemeral-volume/rbac.yaml"),
    include_str!("../../deploy/optional/fence/rbac.yaml"),
];

/// Longer than any story takes unless it says otherwise; only ends those that wait in vain.
const DEADLINE: Duration = Duration::from_mins(20);
/// How far the audit log may be behind the answers.
const AUDIT_IS_WRITTEN_WITHIN: Duration = Duration::from_secs(5);

type Play = dyn Fn(Stage) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// Where a story plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the embedded server, and on the real one only if all stories are asked for there.
    Embedded,
    /// On the embedded server alone: there is too much of it for a server in real time.
    EmbeddedAlone,
    /// On each server.
    Both,
    /// On the real server alone.
    Real,
    /// The same, and only if all stories are asked for: it takes minutes.
    RealIfAll,
    /// On the real server, after all other stories, at what they have left.
    RealAtTheEnd,
}

/// A named story.
#[derive(Clone)]
pub struct Story {
    pub name: String,
    pub place: Place,
    /// What the embedded server cannot show, if it plays on the real one.
    why_real: &'static str,
    deadline: Duration,
    play: Arc<Play>,
}

/// What chance depends on: `MOORING_SEED`, or 1.
pub fn seed() -> u64 {
    std::env::var("MOORING_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Makes a story of a function.
pub fn story<F>(name: impl Into<String>, play: impl Fn(Stage) -> F + Send + Sync + 'static) -> Story
where
    F: Future<Output = ()> + Send + 'static,
{
    Story {
        name: name.into(),
        place: Place::Embedded,
        why_real: "All stories are asked for.",
        deadline: DEADLINE,
        play: Arc::new(move |stage| Box::pin(play(stage))),
    }
}

impl Story {
    /// The same on each server. The sentence says what the embedded one cannot show.
    pub fn also_real(self, why: &'static str) -> Self {
        self.at(Place::Both, why)
    }

    /// The same on the real server alone. The sentence says what the embedded one cannot show.
    pub fn only_real(self, why: &'static str) -> Self {
        self.at(Place::Real, why)
    }

    /// The same on the real server alone, and only if all stories are asked for.
    pub fn only_real_if_all(self, why: &'static str) -> Self {
        self.at(Place::RealIfAll, why)
    }

    /// The same on the real server, after all others.
    pub fn real_at_the_end(self, why: &'static str) -> Self {
        self.at(Place::RealAtTheEnd, why)
    }

    /// The same on the embedded server alone.
    pub fn only_embedded(self) -> Self {
        Self { place: Place::EmbeddedAlone, ..self }
    }

    fn at(self, place: Place, why: &'static str) -> Self {
        assert!(why.ends_with('.'), "{}: why the real server?", self.name);
        Self { place, why_real: why, ..self }
    }

    /// The same, given that long if that is more than others have.
    pub fn given(self, time: Duration) -> Self {
        Self { deadline: self.deadline.max(time), ..self }
    }
}

/// What all stories on the real server share.
struct Theatre {
    runtime: Runtime,
    real: Arc<Real>,
}

/// The theatre, opened for the first story. If that fails, it is not tried again for each.
fn theatre(assets: &Assets) -> Option<&'static Theatre> {
    static THEATRE: OnceLock<Option<Theatre>> = OnceLock::new();
    THEATRE.get_or_init(|| std::panic::catch_unwind(|| open(assets)).ok()).as_ref()
}

fn open(assets: &Assets) -> Theatre {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (plane, token) = runtime.block_on(async {
        // What owns an object, and may not go before it, takes a right on its finalizers.
        let flag = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement".to_owned();
        let options = Options { api_server_flags: vec![flag], ..Options::default() };
        let plane = ControlPlane::start_with(assets, &options).await;
        let token = install(&plane).await;
        (plane, token)
    });
    Theatre { runtime, real: Arc::new(Real { program: PROGRAM, assets: assets.clone(), plane, token }) }
}

/// Installs what the daemon needs. Returns the token of its account.
pub async fn install(plane: &ControlPlane) -> String {
    let cluster = Cluster::new(plane.client(User::Admin));
    for manifest in MANIFESTS {
        cluster.apply(manifest).await;
    }
    plane.service_account_token(DAEMON_NAMESPACE, "mooring").await
}

/// Plays a story on the real server.
pub fn play_on_real(assets: &Assets, story: &Story) -> Result<(), Failed> {
    let Some(theatre) = theatre(assets) else { return Err("the control plane did not start".into()) };
    theatre.runtime.block_on(async {
        Cluster::new(theatre.real.client(User::Admin)).clear().await;
        let played = play(theatre.real.clone(), Log::default(), story).await;
        played.map_err(|failed| {
            let report = failed.message().unwrap_or_default();
            format!("It plays on the real server, because: {}\n{report}", story.why_real).into()
        })
    })
}

/// Plays a story on an embedded server of its own, in paused time.
pub fn play_on_embedded(story: &Story) -> Result<(), Failed> {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let log = Log::default();
    let writer = log.clone();
    let lines = Lines::new(LoggingFormat::Text, false, move || writer.writer());
    let subscriber = tracing_subscriber::registry().with(EnvFilter::new("mooring=debug")).with(lines);
    // All of it runs on this thread.
    let _logging = tracing::subscriber::set_default(subscriber);
    runtime.block_on(async {
        let server = Embedded::new(in_process::start);
        Cluster::new(server.client(User::Admin)).apply(MANIFESTS[0]).await;
        play(Arc::new(server), log, story).await
    })
}

/// Plays a story on an empty cluster, and checks what happened.
async fn play(backend: Arc<dyn Backend>, log: Log, story: &Story) -> Result<(), Failed> {
    let stage = Stage {
        cluster: Cluster::new(backend.client(User::Admin)),
        proxy: Arc::new(backend.proxy().await),
        logs: Arc::new(Mutex::new(vec![log])),
        start: backend.revision().await,
        recorded: backend.recorded(),
        backend,
        expected: Arc::default(),
        told_of_history: Arc::default(),
    };
    let playing = tokio::time::timeout(story.deadline, (story.play)(stage.clone()));
    let mut report = match AssertUnwindSafe(playing).catch_unwind().await {
        Ok(Ok(())) => String::new(),
        Ok(Err(_)) => "the story waited in vain".to_owned(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            text.unwrap_or_else(|| "the story panicked".to_owned())
        }
    };
    let expected = stage.expected.lock().unwrap().clone();
    let violations = stage.violations().await;
    for (rule, _) in expected
        .iter()
        .filter(|(_, always)| *always)
        .filter(|(rule, _)| !violations.iter().any(|line| line.starts_with(*rule)))
    {
        let _ = write!(report, "\nthe daemon does not break {rule}, which the story expects");
    }
    for violation in violations.iter().filter(|line| !expected.iter().any(|(rule, _)| line.starts_with(rule)))
    {
        let _ = write!(report, "\nviolation of {violation}");
    }
    if report.is_empty() {
        return Ok(());
    }
    for log in stage.logs.lock().unwrap().iter() {
        let _ = writeln!(report, "\n--- log\n{}", log.tail(200));
    }
    report.push_str("\n--- writes of the daemon\n");
    for Write { number, method, path, status, body } in stage.proxy.all_writes() {
        let _ = writeln!(report, "{number:?} {method} {path} {status:?} {body}");
    }
    Err(report.into())
}

/// The stage of one story.
#[derive(Clone)]
pub struct Stage {
    backend: Arc<dyn Backend>,
    pub cluster: Cluster,
    /// Between the API server and the daemons started here.
    pub proxy: Arc<Proxy>,
    logs: Arc<Mutex<Vec<Log>>>,
    /// Revision at which the story began, with an empty cluster.
    start: u64,
    /// Requests recorded before.
    recorded: usize,
    /// Rules that the daemon breaks in this story.
    /// Rules, and whether the daemon breaks each in any case.
    expected: Arc<Mutex<Vec<(&'static str, bool)>>>,
    /// What was wrong in a history that is no more.
    told_of_history: Arc<Mutex<Option<Vec<String>>>>,
}

impl Stage {
    /// Whether time is real and costs some.
    pub fn is_real(&self) -> bool {
        self.backend.real().is_some()
    }

    /// The embedded server, for a story that plays only there.
    pub fn embedded(&self) -> &testbed::Server {
        self.backend.embedded().expect("this story is for the embedded server")
    }

    /// The real server, for a story that plays only there.
    pub fn real(&self) -> &Real {
        self.backend.real().expect("this story is for the real server")
    }

    /// A client that goes through the stage's proxy, in the daemon's place.
    pub fn proxied_client(&self) -> kube::Client {
        self.backend.proxied_client(&self.proxy)
    }

    /// A client with the daemon's account: what it does is held against the daemon.
    pub fn daemons_client(&self) -> kube::Client {
        self.backend.daemons_client()
    }

    /// A further proxy, for a daemon whose writes are to be told from others'.
    pub async fn another_proxy(&self) -> Proxy {
        self.backend.proxy().await
    }

    /// Starts a daemon and waits until it is ready.
    pub async fn daemon(&self) -> Daemon {
        self.start_daemon(&Launch::alone(), &self.proxy).await
    }

    /// Starts a daemon in a certain way and waits until it is ready.
    pub async fn start_daemon(&self, launch: &Launch, proxy: &Proxy) -> Daemon {
        let daemon = self.begin_daemon(launch, proxy);
        daemon.ready().await;
        daemon
    }

    /// Starts a daemon that need not become ready.
    pub fn begin_daemon(&self, launch: &Launch, proxy: &Proxy) -> Daemon {
        let daemon = self.backend.start(launch, proxy);
        self.logs.lock().unwrap().extend(daemon.log().cloned());
        daemon
    }

    /// Starts a daemon at the other end of a wire to the real server and waits until it is ready.
    pub async fn wired_daemon(&self, launch: &Launch, wire: &Wire) -> Daemon {
        let daemon = self.begin_daemon_at(launch, wire.url());
        daemon.ready().await;
        daemon
    }

    /// Starts a daemon for which the real server is at this address.
    pub fn begin_daemon_at(&self, launch: &Launch, server: &str) -> Daemon {
        let real = self.real();
        let daemon = launch.start_process(PROGRAM, &real.plane.kubeconfig(server, &real.token));
        self.logs.lock().unwrap().extend(daemon.log().cloned());
        daemon
    }

    /// What a daemon has logged; of one in this process, what everything here has.
    pub fn log_of(&self, daemon: &Daemon) -> Log {
        daemon.log().cloned().unwrap_or_else(|| self.logs.lock().unwrap()[0].clone())
    }

    /// A token of a new user, who may read `/metrics` of the daemon or not.
    pub async fn visitor(&self, name: &'static str, roles: &'static [&'static str]) -> String {
        self.backend.visitor(name, roles).await
    }

    /// An external-attacher that does as it is asked.
    pub fn attacher(&self) -> Attacher {
        Attacher::start(self.backend.client(User::Attacher), DRIVER, AttacherBehaviour::default())
    }

    /// An external-provisioner that does as it is asked.
    pub fn provisioner(&self) -> Provisioner {
        Provisioner::start(self.backend.client(User::Provisioner), DRIVER, ProvisionerBehaviour::default())
    }

    /// Kubelets for all nodes.
    pub fn kubelets(&self) -> Kubelets {
        Kubelets::start(self.backend.client(User::Kubelets), KubeletBehaviour::default())
    }

    /// The controllers that protect claims and volumes in use: the stock ones, or stand-ins.
    pub fn protection(&self) -> Box<dyn Any + Send> {
        let Some(real) = self.backend.real() else {
            return Box::new(Protection::start(self.backend.client(User::ControllerManager)));
        };
        let controllers =
            ["persistentvolumeclaim-protection-controller", "persistentvolume-protection-controller"];
        Box::new(real.plane.controller_manager(&controllers, &[]))
    }

    /// All changes since the story began.
    pub async fn history(&self) -> Vec<Change> {
        self.backend.history(self.start).await
    }

    /// The requests recorded since the story began.
    pub fn requests(&self) -> Vec<audit::Entry> {
        self.backend.requests(self.recorded)
    }

    /// What the daemon must not have done, but did.
    pub async fn violations(&self) -> Vec<String> {
        let told = self.told_of_history.lock().unwrap().clone();
        let mut violations = match told {
            Some(told) => told,
            None => self.violations_of_history().await,
        };
        violations.extend(invariants::check_requests(&self.requests()));
        violations
    }

    /// A change of an unknown author counts as the daemon's. The API server answers before it writes its audit log, so a
    /// violation has to stand.
    async fn violations_of_history(&self) -> Vec<String> {
        let deadline = Instant::now() + AUDIT_IS_WRITTEN_WITHIN;
        loop {
            let violations = self.violations_by_now().await;
            if violations.is_empty() || Instant::now() >= deadline {
                return violations;
            }
            sleep(AUDIT_IS_WRITTEN_WITHIN / 20).await;
        }
    }

    async fn violations_by_now(&self) -> Vec<String> {
        let (history, requests) = (self.history().await, self.requests());
        let authors = audit::Authors::of(&requests);
        let mut violations = invariants::check_history(&history, |change| !authors.is_by_another(change));
        violations.extend(writes::check(&history, &writes::by_daemon(&requests)));
        violations
    }

    /// The server is about to forget what was: judges it by now. Of what comes after, requests alone are judged.
    pub async fn history_ends(&self) {
        let told = self.violations_of_history().await;
        *self.told_of_history.lock().unwrap() = Some(told);
    }

    /// In this story the daemon breaks the rule that a violation begins with.
    pub fn expects(&self, rule: &'static str) {
        self.expected.lock().unwrap().push((rule, true));
    }

    /// In this story the daemon may break the rule, by the doing of others, as its requests happen to land.
    pub fn allows(&self, rule: &'static str) {
        self.expected.lock().unwrap().push((rule, false));
    }
}
