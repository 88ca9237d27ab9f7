//! Where a story plays: an empty cluster, a proxy before its API server, the stand-ins, the daemon.

use std::{
    fmt::Write as _,
    panic::AssertUnwindSafe,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex, OnceLock},
};

use futures::FutureExt;
use libtest_mimic::Failed;
use tokio::runtime::Runtime;

use crate::support::{
    actors::{Attacher, AttacherBehaviour, KubeletBehaviour, Kubelets, Provisioner, ProvisionerBehaviour},
    assets::Assets,
    audit,
    cluster::{Cluster, DRIVER},
    control_plane::{ControlPlane, User},
    daemon::{Daemon, Launch},
    history::{Change, History},
    invariants,
    process::Log,
    proxy::{Proxy, Write},
};

/// Where the daemon's account and its lease are.
pub const DAEMON_NAMESPACE: &str = "mooring-system";

/// What the daemon is installed with.
const MANIFESTS: [&str; 3] = [
    include_str!("../../deploy/namespace.yaml"),
    include_str!("../../deploy/rbac.yaml"),
    include_str!("../../deploy/flowschemas.yaml"),
];

type Play = dyn Fn(Stage) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// A named story.
pub struct Story {
    pub name: &'static str,
    /// Whether it looks at what all the others have left, so that it needs all of them.
    pub is_closing: bool,
    play: Box<Play>,
}

/// Makes a story of a function.
pub fn story<F>(name: &'static str, play: fn(Stage) -> F) -> Story
where
    F: Future<Output = ()> + Send + 'static,
{
    Story { name, is_closing: false, play: Box::new(move |stage| Box::pin(play(stage))) }
}

/// The same for a story that looks back at all others.
pub fn closing_story<F>(name: &'static str, play: fn(Stage) -> F) -> Story
where
    F: Future<Output = ()> + Send + 'static,
{
    Story { is_closing: true, ..story(name, play) }
}

/// What all stories share.
struct Theatre {
    assets: Assets,
    runtime: Runtime,
    plane: ControlPlane,
    token: String,
}

/// The theatre, opened for the first story. If that fails, it is not tried again for each.
fn theatre(assets: &Assets) -> Option<&'static Theatre> {
    static THEATRE: OnceLock<Option<Theatre>> = OnceLock::new();
    THEATRE.get_or_init(|| std::panic::catch_unwind(|| open(assets)).ok()).as_ref()
}

fn open(assets: &Assets) -> Theatre {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (plane, token) = runtime.block_on(async {
        let plane = ControlPlane::start(assets).await;
        let cluster = Cluster::new(plane.client(User::Admin));
        for manifest in MANIFESTS {
            cluster.apply(manifest).await;
        }
        let token = plane.service_account_token(DAEMON_NAMESPACE, "mooring").await;
        (plane, token)
    });
    Theatre { assets: assets.clone(), runtime, plane, token }
}

/// Plays a story, and checks what happened.
pub fn play(assets: &Assets, story: &Story) -> Result<(), Failed> {
    let Some(theatre) = theatre(assets) else { return Err("the control plane did not start".into()) };
    theatre.runtime.block_on(async {
        let cluster = Cluster::new(theatre.plane.client(User::Admin));
        cluster.clear().await;
        let stage = Stage {
            assets: &theatre.assets,
            plane: &theatre.plane,
            proxy: Arc::new(Proxy::start(theatre.plane.client_with_token(None)).await),
            cluster,
            token: &theatre.token,
            logs: Arc::default(),
            start: History::of(theatre.plane.etcd_url()).revision().await,
            audit_start: audit::length(&theatre.plane.audit_log()),
            expects_violations: Arc::default(),
        };
        let outcome = AssertUnwindSafe((story.play)(stage.clone())).catch_unwind().await;
        let mut report = match outcome {
            Ok(()) => String::new(),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                text.unwrap_or_else(|| "the story panicked".to_owned())
            }
        };
        if !*stage.expects_violations.lock().unwrap() {
            for violation in stage.violations().await {
                report.push_str("\nviolation of ");
                report.push_str(&violation);
            }
        }
        if report.is_empty() {
            return Ok(());
        }
        for (number, log) in stage.logs.lock().unwrap().iter().enumerate() {
            let _ = writeln!(report, "\n--- log of daemon {}\n{}", number + 1, log.tail(200));
        }
        report.push_str("\n--- writes of the daemon\n");
        for Write { number, method, path, status, body } in stage.proxy.all_writes() {
            let _ = writeln!(report, "{number:?} {method} {path} {status:?} {body}");
        }
        Err(report.into())
    })
}

/// The stage of one story.
#[derive(Clone)]
pub struct Stage {
    pub assets: &'static Assets,
    pub plane: &'static ControlPlane,
    pub cluster: Cluster,
    /// Between the API server and the daemons started here.
    pub proxy: Arc<Proxy>,
    token: &'static str,
    logs: Arc<Mutex<Vec<Log>>>,
    /// Revision at which the story began, with an empty cluster.
    start: u64,
    audit_start: usize,
    expects_violations: Arc<Mutex<bool>>,
}

impl Stage {
    /// Kubeconfig of the daemon's account, by way of a proxy.
    pub fn kubeconfig(&self, proxy: &Proxy) -> PathBuf {
        self.plane.kubeconfig(&proxy.url(), self.token)
    }

    /// Starts a daemon and waits until it is ready.
    pub async fn daemon(&self) -> Daemon {
        self.start_daemon(&Launch::alone(&self.kubeconfig(&self.proxy))).await
    }

    /// Starts a daemon in a certain way and waits until it is ready.
    pub async fn start_daemon(&self, launch: &Launch) -> Daemon {
        let daemon = launch.start();
        self.logs.lock().unwrap().push(daemon.log().clone());
        daemon.ready().await;
        daemon
    }

    /// An external-attacher that does as it is asked.
    pub fn attacher(&self) -> Attacher {
        Attacher::start(self.plane.client(User::Attacher), DRIVER, AttacherBehaviour::default())
    }

    /// An external-provisioner that does as it is asked.
    pub fn provisioner(&self) -> Provisioner {
        Provisioner::start(self.plane.client(User::Provisioner), DRIVER, ProvisionerBehaviour::default())
    }

    /// Kubelets for all nodes.
    pub fn kubelets(&self) -> Kubelets {
        Kubelets::start(self.plane.client(User::Kubelets), KubeletBehaviour::default())
    }

    /// All changes since the story began.
    pub async fn history(&self) -> Vec<Change> {
        History::of(self.plane.etcd_url()).since(self.start).await
    }

    /// The requests in the audit log since the story began.
    pub fn requests(&self) -> Vec<audit::Entry> {
        audit::read(&self.plane.audit_log(), self.audit_start)
    }

    /// What must not have happened, but did.
    pub async fn violations(&self) -> Vec<String> {
        let mut violations = invariants::check_history(&self.history().await);
        violations.extend(invariants::check_requests(&self.requests()));
        violations
    }

    /// This story does wrong on purpose and looks at the violations itself.
    pub fn expect_violations(&self) {
        *self.expects_violations.lock().unwrap() = true;
    }
}
