//! Ephemeral: how soon after its pod a claim is there, beside the bare POST of the same claim; and many pods at once.
//!
//! `cargo bench --bench ephemeral -- --pods 1000 --one-at-a-time 30`
//!
//! The floor, mooring and kube-controller-manager (KCM) do the same work in this order on a fresh control plane each, with
//! nothing but their ephemeral volume controller. One at a time: from the sight of the pod (floor: from the POST) to the sight
//! of the claim. At once: the pods are created while the subject is stopped (SIGSTOP); the rate is from its resumption
//! to the sight of the last claim. It measures, it does not judge.

// A benchmark ends at the first thing that goes wrong, and says so on the terminal.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::print_stdout, clippy::print_stderr)]
// Counts become rates; they are far below 2^52.
#![allow(clippy::cast_precision_loss)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    path::Path,
    process::Command,
    time::Duration,
};

use clap::Parser;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Client, Resource, ResourceExt,
    core::NamespaceResourceScope,
    runtime::{
        WatchStreamExt,
        watcher::{self, watcher},
    },
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use test_support::{
    assets::Assets,
    cluster::{Cluster, create},
    control_plane::{ControlPlane, User},
    process::Process,
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

/// Without any claim for so long there will be none.
const PATIENCE: Duration = Duration::from_secs(90);
/// Until a subject that has just been started, or has worked, is at rest.
const REST: Duration = Duration::from_secs(2);
/// POSTs of ours at once, as many as mooring sends requests in all.
const CONCURRENCY: usize = 64;

/// Measures the ephemeral volume controllers beside bare POSTs.
#[derive(Debug, Parser)]
#[command(name = "ephemeral")]
struct Options {
    /// Pods at once.
    #[arg(long, default_value_t = 1000)]
    pods: usize,
    /// Pods one after the other.
    #[arg(long, default_value_t = 30)]
    one_at_a_time: usize,
    /// Cargo passes this to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

fn spec() -> Value {
    json!({
        "accessModes": ["ReadWriteOnce"], "storageClassName": "none", "volumeMode": "Filesystem",
        "resources": { "requests": { "storage": "1Gi" } },
    })
}

async fn make_pod(cluster: &Cluster, name: &str) {
    let template = json!({ "metadata": { "labels": { "app": "web" } }, "spec": spec() });
    let pod = json!({
        "metadata": { "name": name },
        "spec": {
            "containers": [{ "name": "main", "image": "example.com/none" }],
            "volumes": [{ "name": "data", "ephemeral": { "volumeClaimTemplate": template } }],
        },
    });
    create(&cluster.namespaced::<Pod>(), pod).await;
}

async fn make_claim(cluster: &Cluster, pod: &str) {
    let owner = json!([{
        "apiVersion": "v1", "kind": "Pod", "name": pod, "uid": "0d2f9d0e-5f0a-4d2e-9e8f-1c2d3e4f5a6b",
        "controller": true, "blockOwnerDeletion": true,
    }]);
    let metadata =
        json!({ "name": format!("{pod}-data"), "labels": { "app": "web" }, "ownerReferences": owner });
    create(&cluster.namespaced::<PersistentVolumeClaim>(), json!({ "metadata": metadata, "spec": spec() }))
        .await;
}

/// The first sights of objects of a kind, by name, until the task is dropped.
fn sights<K>(cluster: &Cluster, tasks: &mut JoinSet<()>) -> UnboundedReceiver<(String, Instant)>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    let (sender, receiver) = unbounded_channel();
    let objects =
        watcher(cluster.namespaced::<K>(), watcher::Config::default()).default_backoff().applied_objects();
    tasks.spawn(async move {
        let mut objects = std::pin::pin!(objects);
        while let Some(object) = objects.next().await {
            if let Ok(object) = object {
                let _ = sender.send((object.name_any(), Instant::now()));
            }
        }
    });
    receiver
}

/// When each of these was seen first.
async fn seen(receiver: &mut UnboundedReceiver<(String, Instant)>, names: &[String]) -> Vec<Instant> {
    let mut times = BTreeMap::new();
    // Of each sight as little as can be: this process shares the machine with the subject.
    let mut missing: BTreeSet<&String> = names.iter().collect();
    while !missing.is_empty() {
        let (name, at) = timeout(PATIENCE, receiver.recv()).await.expect("a sight in time").unwrap();
        if missing.remove(&name) {
            times.insert(name, at);
        }
    }
    names.iter().map(|name| times[name]).collect()
}

fn start(subject: &str, plane: &ControlPlane) -> Option<Process> {
    let controller = "ephemeral-volume-controller";
    match subject {
        "mooring" => {
            let token = plane.token(User::ControllerManager);
            let arguments = [
                "run".to_owned(),
                format!("--kubeconfig={}", plane.kubeconfig(plane.url(), &token).display()),
                "--leader-elect=false".to_owned(),
                "--secure-port=0".to_owned(),
                format!("--controllers={controller}"),
            ];
            Some(Process::start("mooring", Path::new(env!("CARGO_BIN_EXE_mooring")), &arguments, &[]))
        }
        "KCM" => Some(plane.controller_manager(&[controller], &["--kube-api-qps=-1", "--kube-api-burst=-1"])),
        _ => None,
    }
}

fn signal(process: Option<&Process>, signal: &str) {
    if let Some(process) = process {
        let status = Command::new("kill").arg(signal).arg(process.id().to_string()).status().unwrap();
        assert!(status.success(), "the subject ended:\n{}", process.log().tail(30));
    }
}

fn names(of: &str, count: usize) -> (Vec<String>, Vec<String>) {
    let pods: Vec<String> = (0..count).map(|number| format!("{of}{number:05}")).collect();
    let claims = pods.iter().map(|pod| format!("{pod}-data")).collect();
    (pods, claims)
}

/// Latencies one at a time, in order, and claims a second at once.
async fn measure(subject: &str, assets: &Assets, options: &Options) -> (Vec<Duration>, f64) {
    eprintln!("{subject}");
    let plane = ControlPlane::start(assets).await;
    let client: Client = plane.client(User::Admin);
    let cluster = Cluster::new(client);
    // They end with this subject: a watch whose server is gone would use the machine that the next one is measured on.
    let mut tasks = JoinSet::new();
    let mut pods_seen = sights::<Pod>(&cluster, &mut tasks);
    let mut claims_seen = sights::<PersistentVolumeClaim>(&cluster, &mut tasks);
    let process = start(subject, &plane);
    let (pods, claims) = names("first", 1);
    make_pod(&cluster, &pods[0]).await;
    if process.is_none() {
        make_claim(&cluster, &pods[0]).await;
    }
    seen(&mut claims_seen, &claims).await;
    sleep(REST).await;

    let mut latencies = Vec::new();
    let (pods, claims) = names("one", options.one_at_a_time);
    for (pod, claim) in pods.iter().zip(&claims) {
        let mut from = Instant::now();
        if process.is_none() {
            make_claim(&cluster, pod).await;
        } else {
            make_pod(&cluster, pod).await;
            from = seen(&mut pods_seen, std::slice::from_ref(pod)).await[0];
        }
        let at = seen(&mut claims_seen, std::slice::from_ref(claim)).await[0];
        latencies.push(at.saturating_duration_since(from));
    }
    latencies.sort_unstable();

    signal(process.as_ref(), "-STOP");
    let (pods, claims) = names("many", options.pods);
    stream::iter(&pods).for_each_concurrent(CONCURRENCY, |pod| make_pod(&cluster, pod)).await;
    sleep(REST).await;
    let from = Instant::now();
    signal(process.as_ref(), "-CONT");
    if process.is_none() {
        stream::iter(&pods).for_each_concurrent(CONCURRENCY, |pod| make_claim(&cluster, pod)).await;
    }
    let last = seen(&mut claims_seen, &claims).await.into_iter().max().unwrap_or(from);
    (latencies, options.pods as f64 / last.saturating_duration_since(from).as_secs_f64())
}

#[tokio::main]
async fn main() {
    let options = Options::parse();
    let assets = Assets::find().unwrap_or_else(|reason| {
        eprintln!("{reason}");
        std::process::exit(2);
    });
    println!("{:<8} {:>10} {:>10} {:>14}", "", "p50", "p90", "claims/s");
    for subject in ["floor", "mooring", "KCM"] {
        let (latencies, rate) = measure(subject, &assets, &options).await;
        let at = |part: usize| latencies[(latencies.len() - 1) * part / 100].as_secs_f64() * 1e3;
        println!("{subject:<8} {:>7.1} ms {:>7.1} ms {rate:>14.0}", at(50), at(90));
    }
}
