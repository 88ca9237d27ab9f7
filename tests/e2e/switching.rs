//! A cluster that is switched: stand-ins for kubelets start and end the daemon as its Deployment says, and
//! kube-controller-manager as the manifest of its static pod says, and start again what has ended. `mooring switch` runs with the
//! rights of `deploy/switcher`.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::{
    apps::v1::Deployment,
    coordination::v1::Lease,
    core::v1::{Event, Pod},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use mooring::fence::policies::FENCES;
use serde_json::{Value, json};
use test_support::{
    audit,
    cluster::{create, patch_status},
    control_plane::User,
    daemon::{Daemon, Launch},
    invariants,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines},
    process::{Child, ChildStderr, Command},
    sync::{Mutex, watch},
    time::sleep,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    fence::{STOCK_FLAGS, stock},
    stage::{DAEMON_NAMESPACE, PROGRAM, Stage},
};

/// The pod that shows kube-controller-manager's manifest.
const MIRROR: &str = "kube-controller-manager-control-plane";

/// Processes of the daemon, each with its flags.
type Replicas = Arc<Mutex<Vec<(Daemon, Vec<String>)>>>;

/// What an installation may have otherwise.
#[derive(Clone, Debug)]
pub struct Site {
    /// The Deployment.
    pub deployment: Value,
    /// Who switches, in the daemon's namespace.
    pub account: &'static str,
    /// Whether that one may write kube-controller-manager's lease.
    pub writes_lease: bool,
    /// Where the API servers are, if not at the address of the first one.
    pub servers: Option<String>,
}

impl Default for Site {
    fn default() -> Self {
        Self { deployment: deployment(), account: "switcher", writes_lease: true, servers: None }
    }
}

/// Two nodes, the Deployment, and kube-controller-manager, which leads.
pub struct Installed {
    stage: Stage,
    pub deployments: Api<Deployment>,
    /// Of the account that switches.
    pub kubeconfig: PathBuf,
    /// The controllers in the manifest of kube-controller-manager's static pod, if there is one.
    pub manifest: watch::Sender<Option<Vec<&'static str>>>,
    replicas: Replicas,
    /// The process of kube-controller-manager that runs.
    manager: watch::Receiver<Option<u32>>,
    kubelets: [AbortOnDropHandle<()>; 2],
}

impl Installed {
    pub async fn at(stage: &Stage, site: Site) -> Self {
        let cluster = &stage.cluster;
        let leases = |namespace: &str| Api::<Lease>::namespaced(cluster.client.clone(), namespace);
        leases(DAEMON_NAMESPACE).delete("mooring", &DeleteParams::default()).await.ok();
        leases(DAEMON_NAMESPACE).delete("mooring-switch", &DeleteParams::default()).await.ok();
        leases("kube-system").delete("kube-controller-manager", &DeleteParams::default()).await.ok();
        let events: Api<Event> = Api::namespaced(cluster.client.clone(), DAEMON_NAMESPACE);
        events.delete_collection(&DeleteParams::default(), &ListParams::default()).await.ok();
        let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), DAEMON_NAMESPACE);
        deployments.delete("mooring", &DeleteParams::default()).await.ok();
        create(&deployments, site.deployment.clone()).await;
        let kubeconfig = switcher(stage, &site).await;
        let (manifest, read) = watch::channel(Some(FENCES.iter().map(|fence| fence.controller).collect()));
        let (told, manager) = watch::channel(None);
        let replicas = Replicas::default();
        let of_daemon = kubelet_of_the_daemon(stage.clone(), site.servers.clone(), Arc::clone(&replicas));
        let of_manager = kubelet_of_the_manager(stage.clone(), site.servers, read, told);
        let kubelets = [tokio::spawn(of_daemon), tokio::spawn(of_manager)].map(AbortOnDropHandle::new);
        cluster.node("n1").await;
        cluster.node("n2").await;
        Self { stage: stage.clone(), deployments, kubeconfig, manifest, replicas, manager, kubelets }
    }

    /// What the program says, and how it ends.
    pub async fn switch(&self, words: &[&str]) -> (Option<i32>, String) {
        self.begin(words).ended().await
    }

    /// Starts the program.
    pub fn begin(&self, words: &[&str]) -> Switching {
        Switching::begin(&self.kubeconfig, words)
    }

    /// Kills the replica that leads (SIGKILL), or all where none does.
    pub async fn kill_daemon(&self) {
        let mut replicas = self.replicas.lock().await;
        let mut leader = None;
        for (number, (daemon, _)) in replicas.iter().enumerate() {
            if daemon.page("/metrics").await.lines().any(leads) {
                leader = Some(number);
            }
        }
        let killed = leader.map_or(0..replicas.len(), |number| number..number + 1);
        assert!(!killed.is_empty(), "no replica runs");
        replicas.drain(killed).for_each(|(daemon, _)| daemon.kill());
    }

    /// The process of kube-controller-manager that runs.
    pub fn manager(&self) -> Option<u32> {
        *self.manager.borrow()
    }

    /// Kills kube-controller-manager (SIGKILL), and waits until another process of it has begun.
    pub async fn kill_manager(&self) {
        let mut manager = self.manager.clone();
        let killed = manager.wait_for(Option::is_some).await.expect("it is run again").expect("a process");
        signal("-KILL", killed);
        let is_another = |now: &Option<u32>| now.is_some_and(|now| now != killed);
        manager.wait_for(is_another).await.expect("it is run again");
    }

    /// Its pod is not to be seen any more, as on a managed control plane, until another process has begun.
    pub async fn hide_manager(&self) {
        let pods: Api<Pod> = Api::namespaced(self.stage.cluster.client.clone(), "kube-system");
        pods.delete(MIRROR, &DeleteParams::default().grace_period(0)).await.expect("the pod was to be seen");
    }

    /// Changes the manifest of kube-controller-manager, and waits until it runs so.
    pub async fn follows_manifest(&self, controllers: Vec<&'static str>) {
        let (mut manager, before) = (self.manager.clone(), self.manager());
        self.manifest.send_replace(Some(controllers));
        manager.wait_for(|now| now.is_some() && *now != before).await.expect("it is run again");
    }

    /// Who holds kube-controller-manager's lease.
    pub async fn holder(&self) -> String {
        let leases: Api<Lease> = Api::namespaced(self.stage.cluster.client.clone(), "kube-system");
        let lease = leases.get("kube-controller-manager").await.unwrap();
        lease.spec.and_then(|spec| spec.holder_identity).unwrap()
    }

    /// No promise was broken by anybody, and nothing has gone wrong with what stands in for kubelets.
    pub async fn ends_well(self) {
        assert!(self.kubelets.iter().all(|kubelet| !kubelet.is_finished()), "a stand-in has failed");
        let cluster = self.stage.cluster.clone();
        let mut history = self.stage.history().await;
        history.retain(|change| change.resource != "events");
        drop(self);
        let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), DAEMON_NAMESPACE);
        deployments.delete("mooring", &DeleteParams::default()).await.unwrap();
        let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "kube-system");
        pods.delete(MIRROR, &DeleteParams::default().grace_period(0)).await.ok();
        assert_eq!(invariants::check_history(&history, |_| true), [""; 0]);
    }
}

/// A switch at work; killed when dropped.
pub struct Switching {
    running: Child,
    lines: Lines<BufReader<ChildStderr>>,
    said: String,
}

impl Switching {
    /// Starts the program.
    pub fn begin(kubeconfig: &Path, words: &[&str]) -> Self {
        let mut command = Command::new(PROGRAM);
        command.arg("switch").args(words).arg("--kubeconfig").arg(kubeconfig);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut running = command.spawn().unwrap();
        let lines = BufReader::new(running.stderr.take().unwrap()).lines();
        Self { running, lines, said: String::new() }
    }

    /// The next line that it says of its steps. It does not wait for the reader.
    pub async fn line(&mut self) -> Option<String> {
        let line = self.lines.next_line().await.unwrap()?;
        self.said.push_str(&line);
        self.said.push('\n');
        Some(line)
    }

    /// Waits until it ends; how it does, and what it has said.
    pub async fn ended(mut self) -> (Option<i32>, String) {
        while self.line().await.is_some() {}
        self.running.stdout.take().unwrap().read_to_string(&mut self.said).await.unwrap();
        (self.running.wait().await.unwrap().code(), self.said)
    }

    /// Kills it (SIGKILL) when it says this.
    pub async fn killed_at(mut self, at: &str) {
        while !self.line().await.expect("it says it").contains(at) {}
        self.running.kill().await.unwrap();
    }
}

/// Sends a signal to a process.
pub fn signal(signal: &str, process: u32) {
    let status = std::process::Command::new("kill").args([signal, &process.to_string()]).status();
    assert!(status.expect("run kill").success(), "kill {signal} {process}");
}

/// Whether a line of `/metrics` says that this replica leads.
fn leads(line: &str) -> bool {
    line.starts_with("leader_election_master_status") && line.ends_with(" 1")
}

/// Runs as many daemons as the Deployment has replicas, with its arguments, and again what has ended.
async fn kubelet_of_the_daemon(stage: Stage, servers: Option<String>, replicas: Replicas) {
    let deployments: Api<Deployment> = Api::namespaced(stage.cluster.client.clone(), DAEMON_NAMESPACE);
    let mut told = Value::Null;
    loop {
        let deployment = deployments.get("mooring").await.expect("the Deployment");
        let generation = deployment.metadata.generation;
        let spec = deployment.spec.expect("a spec");
        let template = spec.template.spec.expect("a template").containers.remove(0);
        let flags = template.args.expect("arguments").split_off(1);
        let wanted = usize::try_from(spec.replicas.unwrap_or_default()).expect("a number of replicas");
        let mut running = replicas.lock().await;
        running.retain(|(daemon, _)| !daemon.is_over());
        let (mut kept, mut ended): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *running).into_iter().partition(|(_, known)| *known == flags);
        ended.extend(kept.split_off(wanted.min(kept.len())));
        for (daemon, _) in ended {
            assert_eq!(daemon.terminate().await, Some(0));
        }
        while kept.len() < wanted {
            let launch =
                flags.iter().fold(Launch::replica(DAEMON_NAMESPACE), |launch, flag| launch.with(flag));
            let daemon = match &servers {
                Some(servers) => stage.begin_daemon_at(&launch, servers),
                None => stage.begin_daemon(&launch, &stage.proxy),
            };
            kept.push((daemon, flags.clone()));
        }
        let mut ready = 0;
        for (daemon, _) in &kept {
            ready += i32::from(daemon.is_ready().await);
        }
        let count = kept.len();
        *running = kept;
        drop(running);
        let status = json!({ "status": {
            "observedGeneration": generation,
            "replicas": count, "updatedReplicas": count, "readyReplicas": ready,
        } });
        if status != told {
            patch_status(&deployments, "mooring", status.clone()).await;
            told = status;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Runs kube-controller-manager as the manifest of its static pod says, again and again, and shows the manifest as a pod.
async fn kubelet_of_the_manager(
    stage: Stage,
    servers: Option<String>,
    mut manifest: watch::Receiver<Option<Vec<&'static str>>>,
    told: watch::Sender<Option<u32>>,
) {
    let pods: Api<Pod> = Api::namespaced(stage.cluster.client.clone(), "kube-system");
    let plane = &stage.real().plane;
    let way = servers.map(|servers| {
        let kubeconfig = plane.kubeconfig(&servers, &plane.token(User::ControllerManager));
        format!("--kubeconfig={}", kubeconfig.display())
    });
    let mut flags = vec!["--leader-elect=true"];
    flags.extend(way.as_deref());
    loop {
        pods.delete(MIRROR, &DeleteParams::default().grace_period(0)).await.ok();
        let Some(controllers) = manifest.borrow_and_update().clone() else {
            if manifest.changed().await.is_err() {
                return;
            }
            continue;
        };
        let mut arguments = vec![format!("--controllers={}", controllers.join(","))];
        arguments.extend(STOCK_FLAGS.iter().chain(&flags).map(|flag| (*flag).to_owned()));
        let container = json!({ "name": "main", "image": "kube-controller-manager", "args": arguments });
        let mirror = json!({
            "metadata": { "name": MIRROR, "labels": { "component": "kube-controller-manager" } },
            "spec": { "nodeName": "control-plane", "containers": [container] },
        });
        create(&pods, mirror).await;
        let mut process = stock(&stage, &controllers, &flags);
        told.send_replace(Some(process.id()));
        tokio::select! {
            _ = process.ended() => {}
            changed = manifest.changed() => {
                // Else the story is over.
                if changed.is_err() {
                    return;
                }
                process.terminate().await;
            }
        }
        told.send_replace(None);
    }
}

/// An account with the rights of deploy/switcher alone; its kubeconfig.
async fn switcher(stage: &Stage, site: &Site) -> PathBuf {
    let cluster = &stage.cluster;
    let rights = include_str!("../../deploy/switcher/rbac.yaml");
    cluster.apply(rights).await;
    let of_manager = if site.writes_lease {
        "mooring-switcher"
    } else {
        let documents: Vec<Value> = serde_saphyr::from_multiple(rights).unwrap();
        let mut role = documents
            .into_iter()
            .find(|document| document["metadata"]["namespace"] == "kube-system")
            .expect("a Role in kube-system");
        assert_eq!(role["rules"][0]["resourceNames"], json!(["kube-controller-manager"]));
        role["rules"][0]["verbs"] = json!(["get"]);
        role["metadata"]["name"] = "switcher-without-lease".into();
        cluster.apply(&role.to_string()).await;
        "switcher-without-lease"
    };
    let account = json!({ "kind": "ServiceAccount", "name": site.account, "namespace": DAEMON_NAMESPACE });
    let made = json!({ "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": site.account, "namespace": DAEMON_NAMESPACE } });
    cluster.apply(&made.to_string()).await;
    let binding = |kind: &str, role: (&str, &str), namespace: Option<&str>| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind,
            "metadata": { "name": site.account, "namespace": namespace },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": role.0, "name": role.1 },
            "subjects": [account],
        })
    };
    for binding in [
        binding("ClusterRoleBinding", ("ClusterRole", "mooring-switcher"), None),
        binding("RoleBinding", ("Role", of_manager), Some("kube-system")),
        binding("RoleBinding", ("Role", "mooring-switcher"), Some(DAEMON_NAMESPACE)),
    ] {
        cluster.apply(&binding.to_string()).await;
    }
    let plane = &stage.real().plane;
    let token = plane.service_account_token(DAEMON_NAMESPACE, site.account).await;
    plane.kubeconfig(site.servers.as_deref().unwrap_or(plane.url()), &token)
}

/// The Deployment, with one replica.
pub fn deployment() -> Value {
    let labels = json!({ "app": "mooring" });
    let container = json!({ "name": "mooring", "image": "mooring", "args": ["run", "--fence"] });
    json!({
        "metadata": { "name": "mooring" },
        "spec": {
            "replicas": 1, "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [container] } },
        },
    })
}

/// Pods come with their volumes, move, and go.
pub async fn churn(stage: &Stage, round: usize) {
    let cluster = &stage.cluster;
    for number in 0..3 {
        let name = |kind: &str| format!("{kind}{round}-{number}");
        let (volume, claim, pod) = (name("v"), name("c"), name("p"));
        cluster.bound_pair(&volume, &claim).await;
        for node in ["n1", "n2"] {
            cluster.pod(&pod, node, &[&claim]).await;
            cluster.running(&pod).await;
            cluster.delete_pod(&pod).await;
            cluster.pod_gone(&pod).await;
            cluster.detached(&volume, node).await;
        }
    }
}

/// Pods that go to the other node as they are told, without waiting for anything.
pub struct Movers<'a> {
    stage: &'a Stage,
    /// How often each has moved.
    turn: usize,
}

impl<'a> Movers<'a> {
    const CLAIMS: [&'static str; 3] = ["m1", "m2", "m3"];

    /// They run.
    pub async fn start(stage: &'a Stage) -> Self {
        let movers = Self { stage, turn: 0 };
        for claim in Self::CLAIMS {
            stage.cluster.bound_pair(&format!("v-{claim}"), claim).await;
        }
        movers.come().await;
        movers.arrive().await;
        movers
    }

    fn pod(&self, claim: &str) -> String {
        format!("{claim}-{}", self.turn)
    }

    async fn come(&self) {
        let node = ["n1", "n2"][self.turn % 2];
        for claim in Self::CLAIMS {
            self.stage.cluster.pod(&self.pod(claim), node, &[claim]).await;
        }
    }

    /// Each is deleted, and one comes on the other node.
    pub async fn go(&mut self) {
        for claim in Self::CLAIMS {
            self.stage.cluster.delete_pod(&self.pod(claim)).await;
        }
        self.turn += 1;
        self.come().await;
    }

    /// Those that came last run.
    pub async fn arrive(&self) {
        for claim in Self::CLAIMS {
            self.stage.cluster.running(&self.pod(claim)).await;
        }
    }
}

/// Users and verbs of an account, for what it was not refused.
pub fn rights_used(stage: &Stage, account: &str) -> BTreeSet<(String, String)> {
    let user = format!("system:serviceaccount:{DAEMON_NAMESPACE}:{account}");
    let mut requests = stage.requests();
    requests.extend(audit::dry_runs(&stage.real().plane.audit_log()));
    let allowed =
        requests.iter().filter(|entry| entry.user == user && !entry.resource.is_empty() && entry.code != 403);
    allowed.map(|entry| (entry.resource.clone(), entry.verb.clone())).collect()
}
