//! All parts of the cluster as processes: how each is started, killed, frozen, and started again when it ends by itself.
//!
//! The subject's two replicas lead by the same lease, whoever the subject is. Each has a host name of its own, by which the
//! lease tells the leader.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use mooring::fence::policies::FENCES;
use serde_json::{Value, json};
use test_support::{
    assets::Assets,
    cluster::{Cluster, DRIVER},
    control_plane::{AnotherApiServer, ControlPlane, Options, User, free_ports},
    process::{Process, temporary_folder},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::UnixStream,
};

use crate::{
    authority::AuthorityFile,
    balancer::{Line, Mode},
    clock::{self, Clock},
    front::Front,
    objects,
    token::TokenFile,
    webhook::SlowWebhook,
};

/// The daemon.
const PROGRAM: &str = env!("CARGO_BIN_EXE_mooring");

/// kube-controller-manager's names of what the subject does.
fn loops() -> [&'static str; 7] {
    FENCES.each_ref().map(|fence| fence.controller)
}

/// The namespace of mooring, and of the subject's lease.
const NAMESPACE: &str = "mooring-system";

/// The rights of mooring as all seven controllers.
const ROLES: [&str; 3] = [
    include_str!("../../deploy/rbac.yaml"),
    include_str!("../../deploy/optional/vac-protection/rbac.yaml"),
    include_str!("../../deploy/optional/ephemeral-volume/rbac.yaml"),
];

/// A lease that is short enough for faults to outlast it.
const LEASE: [&str; 4] = [
    "--leader-elect=true",
    "--leader-elect-lease-duration=5s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=500ms",
];

/// Failures are many here; the defaults of sidecars are for months of them.
const QUICK: [&str; 3] = ["--v=3", "--retry-interval-start=200ms", "--retry-interval-max=5s"];

/// Whose trial it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Mooring,
    KubeControllerManager,
}

impl Subject {
    pub fn parse(name: &str) -> Result<Self, String> {
        match name {
            "mooring" => Ok(Self::Mooring),
            "kube-controller-manager" => Ok(Self::KubeControllerManager),
            _ => Err(format!("there is no subject {name:?}")),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Mooring => "mooring",
            Self::KubeControllerManager => "kube-controller-manager",
        }
    }

    /// Whether this is a user of its, as the audit log names them.
    pub fn is_user(self, user: &str) -> bool {
        match self {
            Self::Mooring => user == test_support::audit::DAEMON,
            Self::KubeControllerManager => {
                let account = user.strip_prefix("system:serviceaccount:kube-system:");
                FENCES.iter().any(|fence| account == Some(fence.account))
            }
        }
    }
}

/// One program, its way to the API servers, and its process.
#[derive(Debug)]
pub struct Part {
    pub name: String,
    pub line: Line,
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
    process: Option<Process>,
    /// What it has said in former lives.
    former: Vec<String>,
    /// Whether a fault keeps it from being started again.
    is_down: bool,
    /// Whether it was asked to end.
    is_asked: bool,
    /// Without power nothing starts.
    pub has_power: bool,
    /// How often it ended by itself.
    pub ends: usize,
}

impl Part {
    fn start(name: &str, line: Line, program: PathBuf, arguments: Vec<String>) -> Self {
        let mut part = Self::new(name, line, program, arguments);
        part.revive();
        part
    }

    fn new(name: &str, line: Line, program: PathBuf, arguments: Vec<String>) -> Self {
        let (process, former) = (None, Vec::new());
        Self {
            name: name.to_owned(),
            line,
            program,
            arguments,
            environment: Vec::new(),
            process,
            former,
            is_down: false,
            is_asked: false,
            has_power: true,
            ends: 0,
        }
    }

    /// Starts it, under a host name of its own.
    pub fn revive(&mut self) {
        if !self.has_power {
            return;
        }
        (self.is_down, self.is_asked) = (false, false);
        let wrapper = ["--uts", "sh", "-c", r#"hostname "$0" && exec "$@""#, &self.name];
        let mut arguments: Vec<String> = wrapper.map(str::to_owned).to_vec();
        arguments.push(self.program.display().to_string());
        arguments.extend(self.arguments.iter().cloned());
        self.process = Some(Process::start(&self.name, Path::new("unshare"), &arguments, &self.environment));
    }

    /// Asks it to end, and starts it anew when it has, as a rolling update does.
    pub fn replace(&mut self) {
        self.is_asked = true;
        self.signal("-TERM");
    }

    /// Memory in KiB and open files, if it runs.
    pub fn usage(&self) -> Option<Usage> {
        let folder = PathBuf::from(format!("/proc/{}", self.process.as_ref()?.id()));
        let status = std::fs::read_to_string(folder.join("status")).ok()?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let memory = resident.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(Usage { memory, files: std::fs::read_dir(folder.join("fd")).ok()?.count() })
    }

    /// Kills it, and keeps it down.
    pub fn kill(&mut self) {
        self.is_down = true;
        self.bury();
    }

    fn bury(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
            self.former.extend(process.log().lines());
        }
    }

    pub fn signal(&self, signal: &str) {
        if let Some(process) = &self.process {
            signal_to(process.id(), signal);
        }
    }

    /// Starts it again if it has ended by itself, as a kubelet does.
    pub fn tend(&mut self) {
        let has_ended = self.process.as_mut().is_some_and(|process| !process.is_running());
        if has_ended && !self.is_down {
            self.ends += usize::from(!self.is_asked);
            self.bury();
            self.revive();
        }
    }

    /// All that it has said.
    pub fn log(&self) -> String {
        let now = self.process.iter().flat_map(|process| process.log().lines());
        self.former.iter().cloned().chain(now).collect::<Vec<_>>().join("\n")
    }
}

/// What a process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// In KiB.
    pub memory: u64,
    pub files: usize,
}

pub fn signal_to(id: u32, signal: &str) {
    // It may have ended by itself in the meantime.
    let _ = std::process::Command::new("kill").args([signal, &id.to_string()]).status();
}

/// Starts parts, each with a line of its own to the API servers.
struct Starter<'a> {
    plane: &'a ControlPlane,
    servers: Arc<[u16]>,
    front: Front,
    assets: &'a Assets,
    chain: &'a Assets,
    /// In which the subject finds the API servers' authority.
    authority: &'a Path,
    /// Of the machines.
    folder: &'a Path,
}

impl Starter<'_> {
    /// A line, and the kubeconfig of a party that uses it.
    async fn line(&self, token: &str) -> (Line, String) {
        let line = Line::open(Arc::clone(&self.servers), self.front.clone()).await;
        let kubeconfig = self.plane.kubeconfig(&line.url, token).display().to_string();
        (line, kubeconfig)
    }

    /// The same of the subject.
    async fn line_of_subject(&self, user: &Value) -> (Line, String) {
        let line = Line::open(Arc::clone(&self.servers), self.front.clone()).await;
        let path = self.plane.kubeconfig_of(&line.url, user);
        let written = std::fs::read(&path).expect("read a kubeconfig");
        let mut config: Value = serde_json::from_slice(&written).expect("a kubeconfig");
        config["clusters"][0]["cluster"]["certificate-authority"] = json!(self.authority);
        std::fs::write(&path, config.to_string()).expect("write a kubeconfig");
        (line, path.display().to_string())
    }

    async fn sidecar(&self, name: &str, user: User) -> Part {
        let (line, kubeconfig) = self.line(&self.plane.token(user)).await;
        let mut flags = vec![
            format!("--kubeconfig={kubeconfig}"),
            format!("--csi-address={}", self.folder.join("csi.sock").display()),
        ];
        flags.extend(QUICK.map(str::to_owned));
        Part::start(name, line, self.chain.binary(name), flags)
    }

    async fn scheduler(&self) -> Part {
        let (line, kubeconfig) = self.line(&self.plane.token(User::Scheduler)).await;
        let flags = [&format!("--kubeconfig={kubeconfig}"), "--leader-elect=false", "--secure-port=0"];
        let flags = flags.map(str::to_owned).to_vec();
        Part::start("kube-scheduler", line, self.chain.binary("kube-scheduler"), flags)
    }

    /// kube-controller-manager with these controllers.
    fn manager(
        &self,
        name: &str,
        (line, kubeconfig): (Line, String),
        controllers: &str,
        flags: &[&str],
    ) -> Part {
        let mut all = vec![
            format!("--kubeconfig={kubeconfig}"),
            format!("--controllers={controllers}"),
            format!("--flex-volume-plugin-dir={}", temporary_folder("flex").display()),
            "--use-service-account-credentials=true".to_owned(),
            "--secure-port=0".to_owned(),
        ];
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        Part::start(name, line, self.assets.binary("kube-controller-manager"), all)
    }

    /// All but the subject's, or behind the fence all.
    async fn other_controllers(&self, has_fence: bool) -> Part {
        let flags = ["--leader-elect=false", "--node-monitor-grace-period=20s", "--node-monitor-period=2s"];
        let but = loops().map(|name| format!(",-{name}")).concat();
        let which = format!("*{}", if has_fence { "" } else { &but });
        let line = self.line(&self.plane.token(User::ControllerManager)).await;
        self.manager("kube-controller-manager", line, &which, &flags)
    }

    async fn stock_loops(&self, name: &str) -> Part {
        let namespace = format!("--leader-elect-resource-namespace={NAMESPACE}");
        let flags = [&LEASE[..], &["--leader-elect-resource-name=mooring", &namespace, "--v=2"]].concat();
        let user = json!({ "token": self.plane.token(User::ControllerManager) });
        let line = self.line_of_subject(&user).await;
        self.manager(name, line, &loops().join(","), &flags)
    }

    async fn mooring(
        &self,
        name: &str,
        token: &Path,
        has_fence: bool,
        environment: Vec<(&'static str, String)>,
    ) -> Part {
        let (line, kubeconfig) = self.line_of_subject(&json!({ "tokenFile": token })).await;
        let [port] = free_ports();
        let mut flags = vec![
            "run".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            format!("--kubeconfig={kubeconfig}"),
            "--log-level=debug,hyper=info,hyper_util=info,tower=info,kube=info,rustls=info".to_owned(),
            format!("--leader-elect-resource-namespace={NAMESPACE}"),
            "--controllers=storage".to_owned(),
        ];
        flags.extend(LEASE.map(str::to_owned));
        flags.extend(has_fence.then(|| "--fence".to_owned()));
        let mut replica = Part { environment, ..Part::new(name, line, PathBuf::from(PROGRAM), flags) };
        replica.revive();
        replica
    }

    async fn kubelet(&self, name: &str, program: &Path) -> Part {
        let (line, kubeconfig) = self.line(&self.plane.token(User::Kubelets)).await;
        let folder = self.folder.display().to_string();
        let arguments = ["kubelet", &folder, DRIVER, name, &kubeconfig].map(str::to_owned);
        Part::start(name, line, program.to_owned(), arguments.to_vec())
    }
}

/// The whole cluster.
pub struct Stage {
    pub plane: ControlPlane,
    pub other_server: AnotherApiServer,
    pub cluster: Cluster,
    /// The subject's replicas, kubelets, sidecars, the scheduler and the other controllers.
    pub replicas: Vec<Part>,
    pub kubelets: Vec<Part>,
    pub attacher: Part,
    pub provisioner: Part,
    pub resizer: Part,
    others: Vec<Part>,
    /// The stock loops beside the subject, if a fault has started them.
    pub second: Option<Process>,
    /// Of mooring's replicas.
    pub clocks: Vec<Clock>,
    pub slow_webhook: SlowWebhook,
    /// etcd's data, if they are to be put back.
    pub backup: Option<PathBuf>,
    token: TokenFile,
    pub authority: AuthorityFile,
    ports: [u16; 2],
    folder: PathBuf,
    _machines: Process,
}

impl Stage {
    pub async fn open(subject: Subject, nodes: usize, seed: u64, has_fence: bool) -> Result<Self, String> {
        let (assets, chain, trial) = (Assets::find()?, Assets::chain()?, Assets::trial()?);
        let api_server_flags = [
            // Pods leave a node that does not answer within this trial.
            "--default-not-ready-toleration-seconds=10",
            "--default-unreachable-toleration-seconds=10",
        ];
        let api_server_flags = api_server_flags.map(str::to_owned).to_vec();
        let authority = AuthorityFile::write();
        let certificate = Some(authority.vouch());
        let options = Options { api_server_flags, certificate, ..Options::default() };
        let plane = ControlPlane::start_with(&assets, &options).await;
        let other_server = plane.another_api_server();
        let cluster = Cluster::new(plane.client(User::Admin));
        cluster.apply(include_str!("../../deploy/namespace.yaml")).await;
        for roles in ROLES {
            cluster.apply(roles).await;
        }
        let token = TokenFile::write(&cluster, NAMESPACE, "mooring").await;
        if has_fence {
            cluster.apply(include_str!("../../deploy/optional/fence/rbac.yaml")).await;
            objects::make(&cluster.client, &objects::fence()).await;
        }

        // Short: sockets are below it.
        let folder = temporary_folder("m");
        let names: Vec<String> = (1..=nodes).map(|number| format!("n{number}")).collect();
        let mut arguments: Vec<String> =
            vec!["machines".to_owned(), folder.display().to_string(), DRIVER.to_owned(), seed.to_string()];
        arguments.extend(names.iter().cloned());
        let parts = trial.binary("trial-parts");
        let machines = Process::start("machines", &parts, &arguments, &[]);
        let ready = machines.log().find(|line| (line == "ready").then_some(())).await;
        ready.ok_or_else(|| format!("the machines do not start: {}", machines.log().tail(5)))?;

        let port_of = |url: &str| url.rsplit(':').next().and_then(|port| port.parse::<u16>().ok());
        let both = [port_of(plane.url()).expect("a port"), other_server.port];
        let servers = both.into();
        let (certificates, key) = plane.certificate();
        let front = Front { certificates, key, client: plane.client_with_token(None) };
        let starter = Starter {
            plane: &plane,
            servers,
            front,
            assets: &assets,
            chain: &chain,
            authority: authority.path(),
            folder: &folder,
        };
        let attacher = starter.sidecar("csi-attacher", User::Attacher).await;
        let provisioner = starter.sidecar("csi-provisioner", User::Provisioner).await;
        let resizer = starter.sidecar("csi-resizer", User::Resizer).await;
        let scheduler = starter.scheduler().await;
        let controllers = starter.other_controllers(has_fence).await;
        let clocks = vec![Clock::new(), Clock::new()];
        let library = clock::library();
        let mut replicas = Vec::new();
        for (name, clock) in ["replica-a", "replica-b"].into_iter().zip(&clocks) {
            replicas.push(match subject {
                Subject::Mooring => {
                    starter.mooring(name, token.path(), has_fence, clock.environment(&library)).await
                }
                Subject::KubeControllerManager => starter.stock_loops(name).await,
            });
        }
        let mut kubelets = Vec::new();
        for name in &names {
            kubelets.push(starter.kubelet(name, &parts).await);
        }
        let others = vec![scheduler, controllers];
        Ok(Self {
            plane,
            other_server,
            cluster,
            replicas,
            kubelets,
            attacher,
            provisioner,
            resizer,
            others,
            second: None,
            clocks,
            slow_webhook: SlowWebhook::open().await,
            backup: None,
            token,
            authority,
            ports: both,
            folder,
            _machines: machines,
        })
    }

    pub fn driver_log(&self) -> PathBuf {
        self.folder.join("driver.log")
    }

    pub fn parts(&mut self) -> impl Iterator<Item = &mut Part> {
        let alone = [&mut self.attacher, &mut self.provisioner, &mut self.resizer];
        self.replicas.iter_mut().chain(&mut self.kubelets).chain(alone).chain(&mut self.others)
    }

    /// Starts again what has ended by itself.
    pub fn tend(&mut self) {
        self.parts().for_each(Part::tend);
    }

    /// The most that a replica of the subject holds.
    pub fn usage(&self) -> Usage {
        let all = self.replicas.iter().filter_map(Part::usage);
        all.fold(Usage::default(), |most, usage| Usage {
            memory: most.memory.max(usage.memory),
            files: most.files.max(usage.files),
        })
    }

    /// What the lines of the subject do.
    pub fn set_lines(&self, mode: Mode) {
        self.replicas.iter().for_each(|replica| replica.line.set(mode));
    }

    /// Gives mooring another token. The former is good for something until [`Self::forget_former_token`].
    pub async fn renew_token(&mut self) {
        self.token.renew(&self.cluster).await;
    }

    /// Takes the former token out of service.
    pub async fn forget_former_token(&mut self) {
        self.token.forget_former(&self.cluster).await;
    }

    /// Gives the API servers, which run on, a certificate of another authority, and ends the connections of the subject.
    pub async fn renew_certificate(&mut self) {
        self.authority.rotate(&self.plane, self.ports).await;
        self.replicas.iter().for_each(|replica| replica.line.cut());
    }

    /// The replica that leads, by the host name in the lease.
    pub async fn leader(&self) -> Option<usize> {
        let leases: Api<Lease> = Api::namespaced(self.cluster.client.clone(), NAMESPACE);
        let holder = leases.get("mooring").await.ok()?.spec?.holder_identity?;
        self.replicas.iter().position(|replica| holder.starts_with(&replica.name))
    }

    /// Cuts the power of a machine, or gives it back.
    pub async fn order(&self, order: &str, node: &str) {
        let mut stream =
            UnixStream::connect(self.folder.join("orders.sock")).await.expect("the machines listen");
        stream.write_all(format!("{order} {node}\n").as_bytes()).await.expect("order a machine");
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).await.expect("the machines answer");
        assert_eq!(answer, "done\n");
    }

    /// The stock loops beside the subject.
    pub fn start_second_controller(&mut self) {
        let flags = ["--use-service-account-credentials=true"];
        self.second = Some(self.plane.controller_manager(&loops(), &flags));
    }
}
