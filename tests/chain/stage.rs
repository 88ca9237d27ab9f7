//! Where a chain story plays: an empty cluster on a real API server, the CSI driver with its three
//! sidecars, the scheduler, KCM's protection controllers, kubelets, the daemon. All but the server are
//! new for each story.

use std::{
    fmt::Write as _,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, OnceLock},
};

use futures::FutureExt;
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, Pod},
    storage::v1::CSINode,
};
use kube::api::{DeleteParams, ListParams};
use libtest_mimic::Failed;
use serde_json::json;
use test_support::{
    actors::{KubeletBehaviour, Kubelets},
    assets::Assets,
    audit::{DAEMON, Entry},
    backend::{Backend, Real},
    cluster::{Cluster, DRIVER, create, patch, patch_status, within_deadline},
    control_plane::{ControlPlane, User},
    daemon::{Daemon, Launch},
    invariants,
    process::{Log, Process, temporary_folder},
    writes,
};
use tokio::runtime::{Builder, Runtime};

/// A story is played on a stage, which outlives it for the report.
pub type Play = for<'a> fn(&'a Stage) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Failures are few and short here; the defaults of sidecars are for months of them.
pub const QUICK: [&str; 3] = ["--v=4", "--retry-interval-start=100ms", "--retry-interval-max=1s"];

/// What the daemon does here.
const CONTROLLERS: &str = "--controllers=*,persistentvolume-expander-controller";

/// The daemon.
const PROGRAM: &str = env!("CARGO_BIN_EXE_mooring");

/// What all stories share.
pub struct Theatre {
    pub runtime: Runtime,
    pub chain: Assets,
    pub real: Arc<Real>,
}

pub fn theatre() -> &'static Result<Theatre, String> {
    static THEATRE: OnceLock<Result<Theatre, String>> = OnceLock::new();
    THEATRE.get_or_init(|| {
        let (assets, chain) = (Assets::find()?, Assets::chain()?);
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (plane, token) = runtime.block_on(async {
            let plane = ControlPlane::start(&assets).await;
            let cluster = Cluster::new(plane.client(User::Admin));
            cluster.apply(include_str!("../../deploy/namespace.yaml")).await;
            cluster.apply(include_str!("../../deploy/rbac.yaml")).await;
            let token = plane.service_account_token("mooring-system", "mooring").await;
            (plane, token)
        });
        Ok(Theatre { runtime, chain, real: Arc::new(Real { program: PROGRAM, assets, plane, token }) })
    })
}

impl Theatre {
    /// A CSI driver of this name, and the flag that tells a sidecar where it is.
    pub fn driver(&self, name: &str) -> (Process, String) {
        let socket = temporary_folder("csi").join("csi.sock");
        let arguments = [socket.display().to_string(), name.to_owned()];
        let driver = Process::start("csi-driver", &self.chain.binary("csi-driver"), &arguments, &[]);
        (driver, format!("--csi-address={}", socket.display()))
    }

    /// One of the programs that act on the cluster.
    pub fn program(&self, name: &str, user: User, flags: &[&str]) -> Process {
        let plane = &self.real.plane;
        let kubeconfig = plane.kubeconfig(plane.url(), &plane.token(user));
        let mut arguments = vec![format!("--kubeconfig={}", kubeconfig.display())];
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        Process::start(name, &self.chain.binary(name), &arguments, &[])
    }
}

/// A driver of another name with its resizer.
pub fn driver_with_resizer(name: &str) -> [Process; 2] {
    let theatre = theatre().as_ref().expect("there is one");
    let (driver, address) = theatre.driver(name);
    let flags = [&[address.as_str()], &QUICK[..]].concat();
    [driver, theatre.program("csi-resizer", User::Resizer, &flags)]
}

/// Waits until a driver has been called, and has answered.
pub async fn called(driver: &Process, method: &str, volume: &str) {
    let call = format!("/csi.v1.Controller/{method}");
    let id = format!("\"volume_id\":\"{volume}\"");
    let found = driver.log().find(|line| (line.contains(&call) && line.contains(&id)).then_some(()));
    let what = format!("the driver is asked for {method} of {volume}");
    within_deadline(&what, found).await.expect("the call comes").expect("the driver runs");
}

/// Plays a story, and checks what happened against safety.md.
pub fn play(story: Play) -> Result<(), Failed> {
    let theatre = theatre().as_ref()?;
    theatre.runtime.block_on(async {
        let (start, recorded) = (theatre.real.revision().await, theatre.real.recorded());
        let stage = Stage::open(theatre).await;
        let mut report = match AssertUnwindSafe(story(&stage)).catch_unwind().await {
            Ok(()) => String::new(),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                text.unwrap_or_else(|| "the story panicked".to_owned())
            }
        };
        let (history, requests) = (theatre.real.history(start).await, theatre.real.requests(recorded));
        let mut violations = invariants::check_history(&history, |_| true);
        violations.extend(invariants::check_requests(&requests));
        violations.extend(writes::check(&history, &writes::by_daemon(&requests)));
        for violation in violations {
            let _ = write!(report, "\nviolation of {violation}");
        }
        if report.is_empty() {
            return Ok(());
        }
        for (name, log) in stage.logs() {
            let _ = writeln!(report, "\n--- log of {name}\n{}", log.tail(60));
        }
        Err(report.into())
    })
}

/// The stage of one story. Everything on it ends when it is dropped.
pub struct Stage {
    pub cluster: Cluster,
    real: Arc<Real>,
    driver: Process,
    others: Vec<(&'static str, Process)>,
    daemon: Daemon,
    _kubelets: Kubelets,
}

impl Stage {
    async fn open(theatre: &Theatre) -> Self {
        let plane = &theatre.real.plane;
        let cluster = Cluster::new(plane.client(User::Admin));
        cluster.clear().await;
        let (no_options, everything) = (DeleteParams::default(), ListParams::default());
        cluster
            .all::<CSINode>()
            .delete_collection(&no_options, &everything)
            .await
            .expect("clear the CSINodes");
        cluster.driver().await;

        let (driver, address) = theatre.driver(DRIVER);
        let start = |name, user, flags: &[&str]| (name, theatre.program(name, user, flags));
        let sidecar = [&[address.as_str()], &QUICK[..]].concat();
        let protection =
            ["persistentvolumeclaim-protection-controller", "persistentvolume-protection-controller"];
        let others = vec![
            start("csi-attacher", User::Attacher, &sidecar),
            start("csi-provisioner", User::Provisioner, &sidecar),
            start("csi-resizer", User::Resizer, &sidecar),
            start("kube-scheduler", User::Scheduler, &["--leader-elect=false", "--secure-port=0", "--v=3"]),
            ("kube-controller-manager", plane.controller_manager(&protection, &[])),
        ];
        let kubeconfig = plane.kubeconfig(plane.url(), &theatre.real.token);
        let daemon = Launch::alone().with(CONTROLLERS).start_process(PROGRAM, &kubeconfig);
        daemon.ready().await;
        let kubelets = Kubelets::start(plane.client(User::Kubelets), KubeletBehaviour::default());
        Self { cluster, real: Arc::clone(&theatre.real), driver, others, daemon, _kubelets: kubelets }
    }

    fn logs(&self) -> impl Iterator<Item = (&'static str, &Log)> {
        let daemon = self.daemon.log().map(|log| ("mooring", log));
        let others = self.others.iter().map(|(name, process)| (*name, process.log()));
        others.chain([("csi-driver", self.driver.log())]).chain(daemon)
    }

    /// A node with room for pods, on which the driver is registered.
    pub async fn node(&self, name: &str) {
        self.node_without_driver(name).await;
        self.register_driver(name).await;
    }

    /// A node with room for pods, on which the driver has not registered yet.
    pub async fn node_without_driver(&self, name: &str) {
        self.cluster.node(name).await;
        let nodes = self.cluster.all::<Node>();
        // Admission taints new nodes until a controller that does not run here finds them ready.
        let labels = json!({ "kubernetes.io/hostname": name });
        patch(&nodes, name, json!({ "metadata": { "labels": labels }, "spec": { "taints": null } })).await;
        let room = json!({ "cpu": "8", "memory": "16Gi", "pods": "110" });
        patch_status(&nodes, name, json!({ "status": { "capacity": room, "allocatable": room } })).await;
        let empty = json!({ "metadata": { "name": name }, "spec": { "drivers": [] } });
        create(&self.cluster.all::<CSINode>(), empty).await;
    }

    /// What the kubelet does when the driver has told it the node's ID.
    pub async fn register_driver(&self, node: &str) {
        let drivers = json!([{ "name": DRIVER, "nodeID": DRIVER, "topologyKeys": [] }]);
        patch(&self.cluster.all::<CSINode>(), node, json!({ "spec": { "drivers": drivers } })).await;
    }

    /// A pod for the scheduler to place.
    pub async fn unscheduled_pod(&self, name: &str, claim: &str) -> Pod {
        let pod = json!({
            "metadata": { "name": name },
            "spec": {
                "containers": [{ "name": "main", "image": "example.com/none" }],
                "volumes": [{ "name": claim, "persistentVolumeClaim": { "claimName": claim } }],
            },
        });
        create(&self.cluster.namespaced(), pod).await
    }

    /// Waits until the driver has been called, and has answered.
    pub async fn called(&self, method: &str, volume: &str) {
        called(&self.driver, method, volume).await;
    }

    /// The length of the record of requests.
    pub fn recorded(&self) -> usize {
        self.real.recorded()
    }

    /// What the daemon has written since then, but events: verbs and resources.
    pub fn written(&self, since: usize) -> Vec<String> {
        let reads = ["get", "list", "watch"];
        let is_write = |entry: &&Entry| {
            entry.user == DAEMON && entry.resource != "events" && !reads.contains(&entry.verb.as_str())
        };
        let requests = self.real.requests(since);
        requests.iter().filter(is_write).map(|entry| format!("{} {}", entry.verb, entry.resource)).collect()
    }

    /// Name and handle of the volume that a bound claim names.
    pub async fn volume_of(&self, claim: &str) -> (String, String) {
        let claim = self.cluster.claim_phase(claim, "Bound").await;
        let name = claim.spec.unwrap().volume_name.expect("a bound claim names its volume");
        let volume = self.cluster.all::<PersistentVolume>().get(&name).await.expect("the volume is there");
        (name, volume.spec.unwrap().csi.expect("a CSI volume").volume_handle)
    }
}
