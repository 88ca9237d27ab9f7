//! A real API server: etcd and kube-apiserver on loopback, for one test process.
//!
//! It starts both with a temporary folder, waits until they are ready, gives out a client per user, and
//! stops both when it is dropped. etcd stores objects as JSON and never compacts, so that
//! [`super::history`] can read back the whole history. Every request of the daemon and every storage
//! write is in the audit log ([`super::audit`]).

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        LazyLock,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::{authentication::v1::TokenRequest, core::v1::Namespace};
use kube::{Api, Client, api::PostParams, config::AuthInfo};

use super::{
    assets::Assets,
    history::History,
    keys::{certificates, token, write_service_account_keys},
    plain_config::plain_config,
    process::{Process, temporary_folder},
    visitor::Authority,
};

/// The longest a start may take: a few seconds on an idle machine, many times that on a busy one.
const START_DEADLINE: Duration = Duration::from_mins(2);

/// The same with some 100 000 objects, which the API server reads before it is ready.
const SEEDED_START_DEADLINE: Duration = Duration::from_mins(10);

/// Everything that moves storage objects is recorded with bodies; of the daemon also what it reads, and of
/// kube-controller-manager's ServiceAccounts also what else they write.
const AUDIT_POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
omitManagedFields: true
rules:
- level: RequestResponse
  resources:
  - {group: "", resources: [persistentvolumes, persistentvolumes/status, persistentvolumeclaims, persistentvolumeclaims/status, nodes/status]}
  - {group: storage.k8s.io, resources: [volumeattachments, volumeattachments/status, volumeattributesclasses]}
  - {group: coordination.k8s.io, resources: [leases]}
  verbs: [create, update, patch, delete, deletecollection]
- level: RequestResponse
  userGroups: ["system:serviceaccounts:mooring-system", "system:serviceaccounts:mooring-observe"]
  resources: [{group: "", resources: [pods]}]
  verbs: [create, patch, delete]
- level: Metadata
  userGroups: ["system:serviceaccounts:mooring-system", "system:serviceaccounts:mooring-observe"]
- level: Metadata
  userGroups: ["system:serviceaccounts:kube-system"]
  verbs: [create, update, patch, delete, deletecollection]
- level: None
"#;

/// Who asks. All but the daemon may do everything: they stand in for components whose rights are
/// not what is tested here. The daemon has a ServiceAccount instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// The test itself, in the role of people.
    Admin,
    /// external-attacher.
    Attacher,
    /// external-provisioner.
    Provisioner,
    /// external-resizer.
    Resizer,
    /// The kubelets.
    Kubelets,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
}

impl User {
    const ALL: [Self; 7] = [
        Self::Admin,
        Self::Attacher,
        Self::Provisioner,
        Self::Resizer,
        Self::Kubelets,
        Self::ControllerManager,
        Self::Scheduler,
    ];

    /// User name, as the audit log shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Attacher => "external-attacher",
            Self::Provisioner => "external-provisioner",
            Self::Resizer => "external-resizer",
            Self::Kubelets => "kubelets",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
        }
    }
}

/// What may differ between control planes.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// More flags for kube-apiserver; the last one of a name wins.
    pub api_server_flags: Vec<String>,
    /// A program with its arguments that fills etcd before the API server starts; the last argument that it
    /// gets is `--etcd=` and the address.
    pub seeder: Option<Vec<String>>,
    /// Neither audit log nor JSON storage: what a benchmark wants, which reads no history.
    pub without_records: bool,
    /// The API servers' certificate with those that vouch for it, and its key; without one they sign their own.
    pub certificate: Option<(String, String)>,
}

/// A running etcd and kube-apiserver.
#[derive(Debug)]
pub struct ControlPlane {
    assets: Assets,
    folder: PathBuf,
    url: String,
    etcd_url: String,
    peer_port: u16,
    /// DER certificates that the server's own chains to.
    authorities: Vec<Vec<u8>>,
    secret: Vec<u8>,
    deadline: Duration,
    api_server_flags: Vec<String>,
    // Dropped in this order: without its store an API server only logs errors.
    api_server: Process,
    etcd: Process,
}

/// A further API server of a control plane.
#[derive(Debug)]
pub struct AnotherApiServer {
    pub process: Process,
    pub audit_log: PathBuf,
    pub port: u16,
    arguments: Vec<String>,
}

impl AnotherApiServer {
    /// Starts it anew at the same address.
    pub fn start(&mut self) {
        self.process.kill();
        self.process = Process::start("kube-apiserver", Path::new("unshare"), &self.arguments, &[]);
    }
}

impl ControlPlane {
    /// Starts a control plane and waits until it serves.
    pub async fn start(assets: &Assets) -> Self {
        Self::start_with(assets, &Options::default()).await
    }

    /// Starts a control plane with options and waits until it serves.
    pub async fn start_with(assets: &Assets, options: &Options) -> Self {
        let folder = temporary_folder("control-plane");
        let [client_port, peer_port, port] = free_ports();
        let etcd_url = format!("http://127.0.0.1:{client_port}");
        let etcd = start_etcd(assets, &folder, &etcd_url, peer_port);
        let deadline = match &options.seeder {
            Some(seeder) => {
                seed(seeder, &etcd_url).await;
                SEEDED_START_DEADLINE
            }
            None => START_DEADLINE,
        };

        let secret = write_service_account_keys(&folder);
        let lines = User::ALL.map(|user| {
            let (token, name) = (token(&secret, user.name()), user.name());
            format!("{token},{name},{name},system:masters\n")
        });
        std::fs::write(folder.join("tokens.csv"), lines.concat()).unwrap();
        std::fs::write(folder.join("audit-policy.yaml"), AUDIT_POLICY).unwrap();
        if let Some((chain, key)) = &options.certificate {
            write_certificate(&folder, chain, key);
        }
        let flags = api_server_flags(&folder, &etcd_url, port, options);
        let api_server = Process::start("kube-apiserver", &assets.binary("kube-apiserver"), &flags, &[]);

        let mut control_plane = Self {
            assets: assets.clone(),
            url: format!("https://127.0.0.1:{port}"),
            etcd_url,
            peer_port,
            authorities: Vec::new(),
            secret,
            folder,
            deadline,
            api_server_flags: flags,
            api_server,
            etcd,
        };
        control_plane.started().await;
        control_plane
    }

    async fn started(&mut self) {
        let ready = tokio::time::timeout(self.deadline, self.ready()).await.is_ok();
        assert!(
            ready,
            "the control plane is not ready after {} s\nkube-apiserver:\n{}\netcd:\n{}",
            self.deadline.as_secs(),
            self.api_server.log().tail(40),
            self.etcd.log().tail(20),
        );
    }

    /// Kills the API server and starts it anew, at the same address. It then knows nothing of what happened
    /// before: whoever watched from an earlier revision has to list again.
    pub async fn restart_api_server(&mut self) {
        self.api_server.kill();
        let program = self.assets.binary("kube-apiserver");
        self.api_server = Process::start("kube-apiserver", &program, &self.api_server_flags, &[]);
        self.started().await;
    }

    /// Starts another API server on the same etcd, with an audit log of its own. It has the first one's certificate, so both may
    /// be behind one address. By its host name it is another machine, which takes root: each has a lease that tells it from others.
    pub fn another_api_server(&self) -> AnotherApiServer {
        let [port] = free_ports();
        let audit_log = self.folder.join("audit-of-another.log");
        let mut flags = self.api_server_flags.clone();
        flags.push(format!("--secure-port={port}"));
        flags.push(format!("--audit-log-path={}", audit_log.display()));
        let program = self.assets.binary("kube-apiserver").display().to_string();
        let wrapper = ["--uts", "sh", "-c", r#"hostname another && exec "$0" "$@""#, &program];
        let arguments: Vec<String> = wrapper.map(str::to_owned).into_iter().chain(flags).collect();
        let process = Process::start("kube-apiserver", Path::new("unshare"), &arguments, &[]);
        AnotherApiServer { process, audit_log, port, arguments }
    }

    /// Kills etcd and starts it anew with its data.
    pub fn crash_etcd(&mut self) {
        self.etcd.kill();
        self.start_etcd();
    }

    /// Starts the API server anew with a certificate of another authority, which kubeconfigs of before find in its place.
    pub async fn rotate_authority(&mut self) {
        std::fs::remove_dir_all(self.folder.join("certs")).unwrap();
        self.authorities.clear();
        self.restart_api_server().await;
    }

    /// Stops both servers, copies etcd's data, and starts them again.
    pub async fn back_up(&mut self) -> PathBuf {
        let backup = temporary_folder("etcd-backup");
        self.stop().await;
        copy(&self.folder.join("etcd"), &backup.join("etcd"));
        self.go_on().await;
        backup
    }

    /// Copies etcd's data while it serves. It stands still meanwhile, so the copy is what it would find after a crash.
    pub fn snapshot(&self) -> PathBuf {
        let backup = temporary_folder("etcd-backup");
        let signal = |signal: &str| {
            let id = self.etcd.id().to_string();
            Command::new("kill").args([signal, &id]).status().expect("signal etcd");
        };
        let stat = format!("/proc/{}/stat", self.etcd.id());
        signal("-STOP");
        while !std::fs::read_to_string(&stat).unwrap().contains(") T ") {
            std::thread::yield_now();
        }
        copy(&self.folder.join("etcd"), &backup.join("etcd"));
        signal("-CONT");
        backup
    }

    /// Kills the API server. [`Self::restart_api_server`] and [`Self::restore`] start it anew.
    pub fn kill_api_server(&mut self) {
        self.api_server.kill();
    }

    /// Puts etcd's data back as they were. With `bumped` the revisions go on above those that were seen, and
    /// all before is compacted, as etcd's makers recommend; else they go back. Returns the revision from which they go on then.
    pub async fn restore(&mut self, backup: &Path, bumped: bool) -> u64 {
        let goes_on = History::of(&self.etcd_url).revision().await + 1_000;
        self.stop().await;
        std::fs::remove_dir_all(self.folder.join("etcd")).unwrap();
        copy(&backup.join("etcd"), &self.folder.join("etcd"));
        self.start_etcd();
        if bumped {
            let etcd = History::of(&self.etcd_url);
            // It serves when it answers.
            while !etcd.is_there().await {
                tokio::task::yield_now().await;
            }
            etcd.bump(goes_on).await;
        }
        self.restart_api_server().await;
        goes_on
    }

    async fn stop(&mut self) {
        self.api_server.kill();
        self.etcd.terminate().await;
    }

    fn start_etcd(&mut self) {
        self.etcd = start_etcd(&self.assets, &self.folder, &self.etcd_url, self.peer_port);
    }

    async fn go_on(&mut self) {
        self.start_etcd();
        self.restart_api_server().await;
    }

    /// Nothing announces that a server has come up, so this asks; it is the only place that does.
    async fn ready(&mut self) {
        let mut pause = tokio::time::interval(Duration::from_millis(25));
        loop {
            pause.tick().await;
            for process in [&mut self.api_server, &mut self.etcd] {
                assert!(process.is_running(), "the control plane ended:\n{}", process.log().tail(40));
            }
            if self.authorities.is_empty() {
                // The server signs its own certificate when it starts; the file ends with the authority.
                let Ok(pem) = std::fs::read_to_string(self.folder.join("certs/apiserver.crt")) else {
                    continue;
                };
                self.authorities = certificates(&pem);
                continue;
            }
            let client = self.client(User::Admin);
            let readyz = http::Request::get("/readyz").body(Vec::new()).unwrap();
            if client.request_text(readyz).await.is_ok()
                && matches!(Api::<Namespace>::all(client).get_opt("default").await, Ok(Some(_)))
            {
                return;
            }
        }
    }

    /// Address of the API server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Address of etcd.
    pub fn etcd_url(&self) -> &str {
        &self.etcd_url
    }

    /// The API servers' certificate with those that it chains to, and its key.
    pub fn certificate(&self) -> (PathBuf, PathBuf) {
        let certs = self.folder.join("certs");
        (certs.join("apiserver.crt"), certs.join("apiserver.key"))
    }

    /// Gives the API servers another certificate while they run, and kubeconfigs of before another authority.
    pub fn replace_certificate(&self, chain: &str, key: &str) {
        write_certificate(&self.folder, chain, key);
    }

    /// Path of the audit log.
    pub fn audit_log(&self) -> PathBuf {
        self.folder.join("audit.log")
    }

    /// Process id of the API server, whose costs a benchmark reports.
    pub fn api_server_id(&self) -> u32 {
        self.api_server.id()
    }

    /// Process id of etcd.
    pub fn etcd_id(&self) -> u32 {
        self.etcd.id()
    }

    /// Token of a user.
    pub fn token(&self, user: User) -> String {
        token(&self.secret, user.name())
    }

    /// A client that acts as the given user.
    pub fn client(&self, user: User) -> Client {
        self.client_with_token(Some(&self.token(user)))
    }

    /// A client with any token, or with none (what it forwards brings its own).
    pub fn client_with_token(&self, token: Option<&str>) -> Client {
        self.client_at(&self.url, token)
    }

    /// A client of a server that need not be this one (a proxy before it).
    pub fn client_at(&self, url: &str, token: Option<&str>) -> Client {
        let mut config = plain_config(url);
        config.root_cert = Some(self.authorities.clone());
        config.auth_info =
            AuthInfo { token: token.map(|token| token.to_owned().into()), ..AuthInfo::default() };
        Client::try_from(config).expect("build a client")
    }

    /// A token of a ServiceAccount, valid for the length of any test.
    pub async fn service_account_token(&self, namespace: &str, name: &str) -> String {
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
            Api::namespaced(self.client(User::Admin), namespace);
        let request: TokenRequest = serde_json::from_value(
            serde_json::json!({ "spec": { "audiences": [], "expirationSeconds": 86_400 } }),
        )
        .unwrap();
        let answer = accounts.create_token_request(name, &PostParams::default(), &request).await;
        answer.expect("request a token").status.expect("a token request is answered in its status").token
    }

    /// Writes a kubeconfig for a server that need not be this one (a proxy before it).
    pub fn kubeconfig(&self, server: &str, token: &str) -> PathBuf {
        self.kubeconfig_of(server, &serde_json::json!({ "token": token }))
    }

    /// The same with any way to say who one is.
    pub fn kubeconfig_of(&self, server: &str, user: &serde_json::Value) -> PathBuf {
        let mut cluster = serde_json::json!({ "server": server });
        if server.starts_with("https:") {
            cluster["certificate-authority"] = self.folder.join("certs/apiserver.crt").to_str().into();
        }
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{ "name": "test", "cluster": cluster }],
            "users": [{ "name": "test", "user": user }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": "test" } }],
        });
        let path = temporary_folder("kubeconfig").join("kubeconfig");
        // JSON is YAML.
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// Runs kube-controller-manager with nothing but the named controllers.
    pub fn controller_manager(&self, controllers: &[&str], flags: &[&str]) -> Process {
        let kubeconfig = self.kubeconfig(&self.url, &token(&self.secret, User::ControllerManager.name()));
        let folder = temporary_folder("controller-manager");
        let mut arguments = vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--controllers={}", controllers.join(",")),
            // Its default is a system folder, which the controllers create and watch.
            format!("--flex-volume-plugin-dir={}", folder.display()),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            "--use-service-account-credentials=false".to_owned(),
        ];
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let program = self.assets.binary("kube-controller-manager");
        Process::start("kube-controller-manager", &program, &arguments, &[])
    }
}

fn write_certificate(folder: &Path, chain: &str, key: &str) {
    let certs = folder.join("certs");
    std::fs::create_dir_all(&certs).unwrap();
    for (name, text) in [("apiserver.key", key), ("apiserver.crt", chain)] {
        let written = certs.join("new");
        std::fs::write(&written, text).unwrap();
        std::fs::rename(&written, certs.join(name)).unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn start_etcd(assets: &Assets, folder: &Path, url: &str, peer_port: u16) -> Process {
    let peer = format!("http://127.0.0.1:{peer_port}");
    let flags = [
        "--name=default".to_owned(),
        format!("--data-dir={}", folder.join("etcd").display()),
        // The data need not survive a crash of the machine.
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
        // Its default of 2 GiB is too little for a large cluster.
        "--quota-backend-bytes=8589934592".to_owned(),
        format!("--listen-client-urls={url}"),
        format!("--advertise-client-urls={url}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        // A single member elects itself when these have passed.
        "--heartbeat-interval=10".to_owned(),
        "--election-timeout=100".to_owned(),
    ];
    Process::start("etcd", &assets.binary("etcd"), &flags, &[])
}

async fn seed(command: &[String], etcd_url: &str) {
    let [program, arguments @ ..] = command else { panic!("no program is named") };
    let arguments = [arguments, &[format!("--etcd={etcd_url}")]].concat();
    let mut seeder = Process::start("seed", Path::new(program), &arguments, &[]);
    let status = seeder.ended().await;
    assert!(status.success(), "etcd was not filled:\n{}", seeder.log().tail(20));
}

fn api_server_flags(folder: &Path, etcd_url: &str, port: u16, options: &Options) -> Vec<String> {
    let file = |name: &str| folder.join(name).display().to_string();
    let mut flags = vec![
        format!("--etcd-servers={etcd_url}"),
        // Compaction would take the beginning of the history.
        "--etcd-compaction-interval=0".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        format!("--cert-dir={}", file("certs")),
        "--authorization-mode=RBAC".to_owned(),
        format!("--token-auth-file={}", file("tokens.csv")),
        // Published for those who delegate authentication, in kube-system/extension-apiserver-authentication.
        format!("--client-ca-file={}", Authority::of_the_test().file().display()),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--service-account-key-file={}", file("service-account.pub")),
        format!("--service-account-signing-key-file={}", file("service-account.key")),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        // Nobody here connects through the `kubernetes` Service, and it refuses loopback addresses.
        "--endpoint-reconciler-type=none".to_owned(),
        // It refuses pods until a controller that does not run here has made an account for them.
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        "--profiling=false".to_owned(),
    ];
    if !options.without_records {
        flags.push("--storage-media-type=application/json".to_owned());
        flags.push(format!("--audit-policy-file={}", file("audit-policy.yaml")));
        flags.push(format!("--audit-log-path={}", file("audit.log")));
    }
    flags.extend(options.api_server_flags.iter().cloned());
    flags
}

/// The next port to try. Below the ranges that systems take ports of outgoing connections from, so that none takes one of these
/// before its server listens; processes that run beside each other begin at different ones.
static NEXT_PORT: LazyLock<AtomicU16> =
    LazyLock::new(|| AtomicU16::new(u16::try_from(std::process::id() * 61 % 20_000).expect("below 20 000")));

/// Ports that were free a moment ago, none twice.
pub fn free_ports<const N: usize>() -> [u16; N] {
    let mut ports = std::iter::repeat_with(|| 10_000 + NEXT_PORT.fetch_add(1, Ordering::Relaxed) % 20_000);
    let mut is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::array::from_fn(|_| ports.find(&mut is_free).expect("a free port"))
}
