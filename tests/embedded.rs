//! The embedded API server as the daemon uses a server: our own watches, single requests with
//! preconditions, paused time.

// A failed expectation ends the test, which is what a failed expectation is for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use apiserver::{
    connect::ApiServer,
    kinds,
    tables::{
        Objects,
        watch::{CatchUps, Fetcher, watch},
    },
};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::{
    core::v1::{Namespace, Node, PersistentVolume, Pod},
    storage::v1::{CSIDriver, StorageClass},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions, WatchEvent, WatchParams},
};
use mooring::{
    app::Life,
    cli::{self, Command},
    config::Config,
    metrics::{ApiMetrics, Metrics, WatchMetrics},
    supervise::Threads,
};
use serde_json::json;
use serving::Gate;
use testbed::Server;

fn object<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn volume(name: &str) -> PersistentVolume {
    object(json!({
        "metadata": {"name": name},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "d.io", "volumeHandle": name}},
    }))
}

async fn code(result: impl Future<Output = Result<impl Sized, kube::Error>>) -> (u16, String) {
    match result.await {
        Ok(_) => (200, String::new()),
        Err(kube::Error::Api(status)) => (status.code, status.reason.clone()),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(start_paused = true)]
async fn our_watches_follow_it() {
    let server = Server::default();
    let client = server.client();
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &object(json!({"metadata": {"name": "n1"}}))).await.unwrap();

    let objects = Arc::new(Objects::default());
    let metrics = Metrics::default();
    let requests = Arc::new(ApiMetrics::new(&metrics, "test").unwrap());
    let fetcher = Fetcher::new(&ApiServer::in_process(client), requests).unwrap();
    let counted = WatchMetrics::new(&metrics).unwrap().of("nodes", || 0);
    let catch_up = CatchUps::default().of::<kinds::Node>();
    let watching = tokio::spawn(watch::<kinds::Node>(fetcher, Arc::clone(&objects), counted, catch_up));
    let seen = async |wanted: usize| {
        tokio::time::timeout(Duration::from_secs(30), async {
            while objects.nodes.len() != wanted {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .expect("the table follows");
    };
    seen(1).await;
    nodes.create(&PostParams::default(), &object(json!({"metadata": {"name": "n2"}}))).await.unwrap();
    seen(2).await;
    // A gap too long to resume: the list comes again.
    server.compact();
    nodes.delete("n1", &DeleteParams::default()).await.unwrap();
    seen(1).await;
    watching.abort();
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_a_forgotten_revision_says_so_in_band_and_ends() {
    let server = Server::default();
    let volumes: Api<PersistentVolume> = Api::all(server.client());
    volumes.create(&PostParams::default(), &volume("v")).await.unwrap();
    let begin = server.revision().to_string();
    volumes.create(&PostParams::default(), &volume("w")).await.unwrap();
    server.compact();
    let events = volumes.watch(&WatchParams::default(), &begin).await.unwrap();
    let events: Vec<_> = events.try_collect().await.unwrap();
    let [WatchEvent::Error(status)] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
}

#[tokio::test]
async fn preconditions_are_kept() {
    let client = Server::default().client();
    let volumes: Api<PersistentVolume> = Api::all(client);
    let created = volumes.create(&PostParams::default(), &volume("v")).await.unwrap();
    let patch = |metadata: serde_json::Value| {
        let patch = Patch::Merge(json!({"metadata": metadata, "status": {"phase": "Available"}}));
        let volumes = volumes.clone();
        async move { volumes.patch_status("v", &PatchParams::default(), &patch).await }
    };
    assert_eq!(
        code(volumes.create(&PostParams::default(), &volume("v"))).await,
        (409, "AlreadyExists".into())
    );
    assert_eq!(code(patch(json!({"resourceVersion": "1"}))).await, (409, "Conflict".into()));
    assert_eq!(code(patch(json!({"uid": "another"}))).await, (422, "Invalid".into()));
    let right = json!({"uid": created.metadata.uid, "resourceVersion": created.metadata.resource_version});
    assert_eq!(code(patch(right)).await.0, 200);
    assert_eq!(code(volumes.get("w")).await, (404, "NotFound".into()));
}

/// kubernetes#77988: what the real server does to a finalizer that is put on while an object is deleted.
#[tokio::test(start_paused = true)]
async fn s7_a_delete_without_a_revision_loses_a_finalizer_that_lands_meanwhile() {
    let drivers: Api<CSIDriver> = Api::all(Server::default().client());
    let finalizer = Patch::Merge(json!({"metadata": {"finalizers": ["a.io/b"]}}));
    for (names_revision, expected) in [(false, (200, 404)), (true, (409, 200))] {
        let driver = serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": {}})).unwrap();
        let created = drivers.create(&PostParams::default(), &driver).await.unwrap().metadata;
        let preconditions = Preconditions {
            uid: created.uid,
            resource_version: created.resource_version.filter(|_| names_revision),
        };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let delete = async { drivers.delete("d", &parameters).await.map(|_| ()) };
        let patch = async { drivers.patch("d", &PatchParams::default(), &finalizer).await };
        let (deleted, patched) = tokio::join!(biased; code(delete), code(patch));
        assert_eq!(patched.0, 200, "the finalizer is accepted");
        assert_eq!(
            (deleted.0, code(drivers.get("d")).await.0),
            expected,
            "names a revision: {names_revision}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_bookmarks_and_ends_in_time() {
    let server = Server::default();
    let client = server.client();
    let namespaces: Api<Namespace> = Api::all(client);
    let parameters = WatchParams { send_initial_events: true, timeout: Some(100), ..WatchParams::default() };
    let mut events = namespaces.watch(&parameters, "0").await.unwrap().boxed();
    let mut kinds = Vec::new();
    let begin = tokio::time::Instant::now();
    while let Some(event) = events.try_next().await.unwrap() {
        kinds.push(match event {
            WatchEvent::Added(_) => "added",
            WatchEvent::Bookmark(_) => "bookmark",
            _ => "other",
        });
    }
    // The end of what there was, after a minute, and before the end.
    assert_eq!(kinds, ["added", "added", "added", "added", "bookmark", "bookmark", "bookmark"]);
    assert_eq!(begin.elapsed(), Duration::from_secs(100));
}

#[tokio::test]
async fn pages_show_one_revision_or_are_gone() {
    let server = Server::default();
    let volumes: Api<PersistentVolume> = Api::all(server.client());
    for name in ["a", "b", "c", "d"] {
        volumes.create(&PostParams::default(), &volume(name)).await.unwrap();
    }
    let page = volumes.list(&ListParams::default().limit(2)).await.unwrap();
    let token = page.metadata.continue_.unwrap();
    assert_eq!(page.metadata.remaining_item_count, Some(2));
    volumes.create(&PostParams::default(), &volume("bb")).await.unwrap();
    let rest = volumes.list(&ListParams::default().limit(5).continue_token(&token)).await.unwrap();
    let names: Vec<_> = rest.items.iter().filter_map(|volume| volume.metadata.name.as_deref()).collect();
    assert_eq!(names, ["c", "d"]);
    volumes.create(&PostParams::default(), &volume("e")).await.unwrap();
    server.compact();
    let parameters = ListParams::default().limit(5).continue_token(&token);
    assert_eq!(code(volumes.list(&parameters)).await, (410, "Expired".into()));
}

#[tokio::test(start_paused = true)]
async fn a_pod_has_its_grace() {
    let client: Client = Server::default().client();
    let pods: Api<Pod> = Api::default_namespaced(client);
    let pod = |name: &str, node: &str| -> Pod {
        object(
            json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}}),
        )
    };
    pods.create(&PostParams::default(), &pod("placed", "n")).await.unwrap();
    pods.create(&PostParams::default(), &pod("waiting", "")).await.unwrap();
    pods.delete("placed", &DeleteParams::default()).await.unwrap();
    pods.delete("waiting", &DeleteParams::default()).await.unwrap();
    let going = pods.get("placed").await.unwrap();
    assert_eq!(going.metadata.deletion_grace_period_seconds, Some(30));
    assert_eq!(code(pods.get("waiting")).await.0, 404);
    pods.delete("placed", &DeleteParams::default().grace_period(0)).await.unwrap();
    assert_eq!(code(pods.get("placed")).await.0, 404);
}

#[tokio::test]
async fn claims_get_the_default_class() {
    let client: Client = Server::default().client();
    let classes: Api<StorageClass> = Api::all(client.clone());
    let class = json!({
        "metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "d.io",
    });
    classes.create(&PostParams::default(), &object(class)).await.unwrap();
    let claims: Api<k8s_openapi::api::core::v1::PersistentVolumeClaim> = Api::default_namespaced(client);
    let claim = json!({
        "metadata": {"generateName": "c-"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1024Mi"}}},
    });
    let claim = claims.create(&PostParams::default(), &object(claim)).await.unwrap();
    assert_eq!(claim.spec.unwrap().storage_class_name.as_deref(), Some("fast"));
    assert_eq!(claim.metadata.finalizers.unwrap(), ["kubernetes.io/pvc-protection"]);
}

/// A replica with a thread that watches and decides, and others for the election and the port, as in a process.
struct Replica {
    decides: tokio::runtime::Handle,
    pages: tokio::sync::watch::Receiver<Option<Arc<Gate>>>,
    end: tokio::sync::oneshot::Receiver<String>,
}

fn config() -> Config {
    let flags = ["lease-duration=6s", "renew-deadline=4s", "retry-period=1s"];
    let flags = flags.map(|flag| format!("--leader-elect-{flag}"));
    let words = ["mooring", "run", "--secure-port=0"].map(str::to_owned);
    let parsed = cli::parse(words.into_iter().chain(flags)).unwrap();
    let Command::Run(arguments) = parsed.command else { panic!("it is run") };
    Config::try_from(*arguments).unwrap()
}

impl Replica {
    fn start(client: Client) -> Self {
        let config = config();
        let (pages_sender, pages) = tokio::sync::watch::channel(None);
        let (ended, end) = tokio::sync::oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let decides = runtime.handle().clone();
        thread::spawn(move || {
            let failure = runtime.block_on(async move {
                let api = ApiServer::in_process(client);
                let life = Life::start(config, &api, Threads::Apart, pages_sender).await;
                life.unwrap().failure().await
            });
            runtime.shutdown_background();
            let _ = ended.send(format!("{failure:#}"));
        });
        Self { decides, pages, end }
    }

    fn leads(&self) -> bool {
        let Some(gate) = self.pages.borrow().clone() else { return false };
        gate.router().here("/readyz?verbose").1.contains("[+]leader-election ok: leading\n")
    }
}

/// The election has a thread of its own, which would renew the lease for ever. The server is apart from both replicas: each
/// request of a client goes through the runtime on which it was made.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn l14_a_leader_whose_deciding_thread_blocks_or_spins_is_succeeded_and_ends() {
    let wait_until = async |is_so: &dyn Fn() -> bool| {
        let waiting = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), waiting).await.expect("it comes to that");
    };
    for spins in [false, true] {
        let server = Server::default();
        let mut replicas = [(); 2].map(|()| Replica::start(server.client()));
        wait_until(&|| replicas.iter().any(Replica::leads)).await;
        let first = usize::from(replicas[1].leads());
        let is_over = Arc::new(AtomicBool::new(false));
        let (release, released) = mpsc::channel::<()>();
        let until = Arc::clone(&is_over);
        replicas[first].decides.spawn(async move {
            if !spins {
                let _ = released.recv();
            }
            while !until.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        wait_until(&|| replicas[1 - first].leads()).await;
        is_over.store(true, Ordering::Relaxed);
        drop(release);
        let end = tokio::time::timeout(Duration::from_mins(1), &mut replicas[first].end);
        let said = end.await.expect("it ends").unwrap();
        let expected = "given back: the thread that watches and decides has stood still for ";
        assert!(said.contains(expected), "{said}");
    }
}

/// A standby never gives up otherwise: it would ask with what was rotated for ever.
#[tokio::test(start_paused = true)]
async fn m14_a_daemon_whose_credentials_are_refused_for_minutes_ends_and_one_without_rights_does_not() {
    for (code, ends) in [(401, true), (403, false)] {
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| async move {
            let status = json!({ "kind": "Status", "status": "Failure", "code": code, "reason": "Refused" });
            let body = kube::client::Body::from(status.to_string().into_bytes());
            let response = http::Response::builder().status(code).header("content-type", "application/json");
            Ok::<_, std::io::Error>(response.body(body).unwrap())
        });
        let api = ApiServer::in_process(Client::new(service, "default"));
        let pages = tokio::sync::watch::Sender::default();
        let mut life = Life::start(config(), &api, Threads::Shared, pages).await.unwrap();
        match tokio::time::timeout(Duration::from_mins(30), life.failure()).await {
            Ok(failure) => {
                let said = format!("{failure:#}");
                assert!(
                    ends && said.contains("the API server has refused the credentials of in process"),
                    "{said}"
                );
            }
            Err(_) => assert!(!ends, "{code}"),
        }
    }
}
