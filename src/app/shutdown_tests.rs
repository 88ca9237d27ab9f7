//! The shutdown of controllers, over a server that answers one request at a time: the answer to a write is awaited, and
//! nothing more is asked, after any answer.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};

use apiserver::{
    call::Caller,
    events::{Event, EventQueue, EventType, Involved, Novelty},
    ids::NodeName,
    kinds::{CsiDriver, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass, VolumeAttachment},
    leadership::{Leadership, Term},
    tables::{Objects, Stored},
};
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use telemetry::traces::Traces;
use tokio::{
    sync::Semaphore,
    task::{JoinHandle, yield_now},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    attach_detach::{self, AttachDetachOptions, state::desired::volume_name::VolumeId},
    binder::{self, BinderOptions},
    controller::{Runner, requests::Requests},
    metrics::{Alarms, ApiMetrics, Metrics},
    protection::claims::ClaimProtection,
    supervise::{self, Supervisor},
};

use super::{LAST_WORDS, end_events};

const HOUR: Duration = Duration::from_hours(1);

/// Which controller runs.
#[derive(Clone, Copy)]
enum Which {
    AttachDetach,
    Binder,
    ClaimProtection,
}

/// A node that lists something, or nothing.
fn node(revision: &str, list: &Value) -> Value {
    json!({
        "kind": "Node",
        "metadata": {"name": "n1", "uid": "u", "resourceVersion": revision},
        "status": {"volumesAttached": list},
    })
}

fn attachment() -> (String, Value) {
    let (volume, name) = (VolumeId::csi(&"d".into(), "h"), NodeName::from("n1"));
    let name = volume.attachment_name(&name).to_string();
    let attachment = json!({
        "metadata": {"name": name, "uid": "a", "resourceVersion": "1"},
        "spec": {
            "attacher": "d",
            "nodeName": "n1",
            "source": {"inlineVolumeSpec": {"csi": {"driver": "d", "volumeHandle": "h"}}},
        },
        "status": {"attached": true},
    });
    (name, attachment)
}

fn volume(revision: &str) -> Value {
    json!({
        "kind": "PersistentVolume",
        "metadata": {"name": "pv", "uid": "v", "resourceVersion": revision},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": "d", "volumeHandle": "h"},
        },
        "status": {"phase": "Available"},
    })
}

fn claim() -> Value {
    json!({
        "metadata": {"name": "c", "namespace": "ns", "uid": "c", "resourceVersion": "1"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "",
        },
        "status": {"phase": "Pending"},
    })
}

fn conflict() -> (u16, Value) {
    (409, json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409}))
}

/// A controller over a server that answers one request at a time, when it is let.
struct Stage {
    asked: Arc<Mutex<Vec<String>>>,
    arrived: Arc<Semaphore>,
    gate: Arc<Semaphore>,
    leads: Box<dyn Fn() -> bool>,
    shutdown: CancellationToken,
    running: JoinHandle<()>,
}

impl Stage {
    fn new(which: Which, answer: fn(&Method) -> (u16, Value), objects: &[(&str, Value)]) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (arrived, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let server = {
            let (asked, arrived, gate) = (Arc::clone(&asked), Arc::clone(&arrived), Arc::clone(&gate));
            tower::service_fn(move |request: Request<Body>| {
                let (asked, arrived, gate) = (Arc::clone(&asked), Arc::clone(&arrived), Arc::clone(&gate));
                async move {
                    asked.lock().unwrap().push(format!("{} {}", request.method(), request.uri().path()));
                    arrived.add_permits(1);
                    gate.acquire().await.unwrap().forget();
                    let (status, body) = answer(request.method());
                    let response =
                        Response::builder().status(status).header("content-type", "application/json");
                    Ok::<_, Infallible>(response.body(Body::from(body.to_string().into_bytes())).unwrap())
                }
            })
        };
        let metrics = Metrics::default();
        let api = Arc::new(ApiMetrics::new(&metrics, "test").unwrap());
        let leadership = Leadership::new(Term::Unlimited);
        let shutdown = CancellationToken::new();
        let caller = Caller::new(Client::new(server, "default"), leadership.clone(), None, api);
        let caller = caller.until(shutdown.clone());
        let (events, _writer) = EventQueue::new(&metrics).unwrap();
        let tables = Arc::new(Objects::default());
        let alarms = Alarms::new(&metrics).unwrap();
        let (of_tables, events) = (Arc::clone(&tables), events.for_component("test"));
        let (leads, running): (Box<dyn Fn() -> bool>, BoxFuture<'static, ()>) = match which {
            Which::AttachDetach => {
                let options = AttachDetachOptions::default();
                let (metrics, of_lease) = ((&metrics, alarms), (None, Traces::default()));
                let run = attach_detach::runner(
                    &of_tables, &caller, leadership, events, options, metrics, of_lease,
                );
                let run = run.unwrap();
                let board = run.board();
                (Box::new(move || board.leads()), Box::pin(run.run(shutdown.clone())))
            }
            Which::Binder => {
                let options = (BinderOptions::default(), None);
                let (metrics, traces) = ((&metrics, alarms), Traces::default());
                let run = binder::runner(&of_tables, &caller, leadership, events, options, metrics, traces);
                let run = run.unwrap();
                let board = run.board();
                (Box::new(move || board.leads()), Box::pin(run.run(shutdown.clone())))
            }
            Which::ClaimProtection => {
                let parts = (ClaimProtection::new(Arc::clone(&of_tables)), Requests::new(&caller));
                let run = Runner::new(parts, of_tables, leadership, events, (&metrics, alarms)).unwrap();
                let board = run.board();
                (Box::new(move || board.leads()), Box::pin(run.run(shutdown.clone())))
            }
        };
        let running = tokio::spawn(running);
        list::<Node>(&tables, objects);
        list::<Pod>(&tables, objects);
        list::<PersistentVolume>(&tables, objects);
        list::<PersistentVolumeClaim>(&tables, objects);
        list::<VolumeAttachment>(&tables, objects);
        list::<StorageClass>(&tables, objects);
        list::<CsiDriver>(&tables, objects);
        Self { asked, arrived, gate, leads, shutdown, running }
    }

    async fn request_arrives(&self) {
        timeout(HOUR, self.arrived.acquire()).await.expect("a request").unwrap().forget();
    }

    /// Shuts down while a request is in flight, which is then answered. Returns what was asked.
    async fn shut_down(self) -> Vec<String> {
        self.shutdown.cancel();
        for _turn in 0..100 {
            yield_now().await;
        }
        assert!(!self.running.is_finished(), "a request is in flight");
        self.gate.add_permits(1);
        timeout(HOUR, self.running).await.expect("it ends when that is answered").unwrap();
        let asked = self.asked.lock().unwrap();
        asked.clone()
    }
}

fn list<T: Stored>(tables: &Objects, objects: &[(&str, Value)]) {
    let of_kind = objects.iter().filter(|(kind, _)| *kind == T::KIND);
    tables.reset::<T>(of_kind.map(|(_, object)| serde_json::from_value(object.clone()).unwrap()).collect());
}

#[tokio::test(start_paused = true)]
async fn on_shutdown_the_answers_to_what_was_asked_are_awaited_and_nothing_more_is_asked() {
    let listed = json!([{"name": "kubernetes.io/csi/d^h", "devicePath": ""}]);
    let stage =
        Stage::new(Which::AttachDetach, |_| (200, node("2", &json!([]))), &[("Node", node("1", &listed))]);
    stage.request_arrives().await;
    assert!((stage.leads)());
    assert_eq!(stage.shut_down().await, ["PATCH /api/v1/nodes/n1/status"]);

    let open = [("PersistentVolume", volume("1")), ("PersistentVolumeClaim", claim())];
    let stage = Stage::new(Which::Binder, |_| (200, volume("2")), &open);
    stage.request_arrives().await;
    assert!((stage.leads)());
    assert_eq!(stage.shut_down().await, ["PATCH /api/v1/persistentvolumes/pv"]);
}

/// Who shuts down does not look why.
#[tokio::test(start_paused = true)]
async fn on_shutdown_a_write_that_is_refused_is_not_followed_by_a_read() {
    let (name, attachment) = attachment();
    let answer = |method: &Method| match *method {
        Method::DELETE => conflict(),
        _ => (200, node("1", &json!([]))),
    };
    let objects = [("Node", node("1", &json!([]))), ("VolumeAttachment", attachment)];
    let stage = Stage::new(Which::AttachDetach, answer, &objects);
    stage.request_arrives().await;
    stage.gate.add_permits(1);
    stage.request_arrives().await;
    let delete = format!("DELETE /apis/storage.k8s.io/v1/volumeattachments/{name}");
    assert_eq!(stage.shut_down().await, ["GET /api/v1/nodes/n1".to_owned(), delete]);

    let open = [("PersistentVolume", volume("1")), ("PersistentVolumeClaim", claim())];
    let stage = Stage::new(Which::Binder, |_| conflict(), &open);
    stage.request_arrives().await;
    assert_eq!(stage.shut_down().await, ["PATCH /api/v1/persistentvolumes/pv"]);
}

/// The list of a large namespace takes longer than a process has to end, and after that the lease would be left to expire.
#[tokio::test(start_paused = true)]
async fn l14_a_list_of_which_there_is_always_another_page_ends_with_the_process() {
    let page = |_: &Method| (200, json!({"kind": "PodList", "metadata": {"continue": "next"}, "items": []}));
    let mut deleted = claim();
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
    deleted["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
    let stage = Stage::new(Which::ClaimProtection, page, &[("PersistentVolumeClaim", deleted)]);
    for _ in 0..3 {
        stage.request_arrives().await;
        stage.gate.add_permits(1);
    }
    stage.request_arrives().await;
    stage.shutdown.cancel();
    timeout(Duration::from_secs(1), stage.running).await.expect("it ends at once").unwrap();
    assert_eq!(stage.asked.lock().unwrap().len(), 4);
}

/// What a leader that gives way has done is told all the same (S47).
#[tokio::test(start_paused = true)]
async fn s47_what_was_recorded_is_written_after_a_part_has_died() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let server = {
        let told = Arc::clone(&told);
        tower::service_fn(move |request: Request<Body>| {
            told.lock().unwrap().push(request.method().clone());
            async {
                Ok::<_, Infallible>(Response::builder().status(201).body(Body::from(b"{}".to_vec())).unwrap())
            }
        })
    };
    let metrics = Metrics::default();
    let api = Arc::new(ApiMetrics::new(&metrics, "test").unwrap());
    let leadership = Leadership::new(Term::Unlimited);
    let caller = Caller::new(Client::new(server, "default"), leadership.clone(), None, api);
    let (queue, writer) = EventQueue::new(&metrics).unwrap();
    let (mut tasks, end) = (Supervisor::default(), CancellationToken::new());
    tasks.spawn(supervise::Stage::Events, "events", writer.run(caller, "test".to_owned(), end.clone()));
    let record = |message: &str| {
        let node: Node = serde_json::from_value(node("1", &json!([]))).unwrap();
        let (involved, message) = (Involved::object(&node), message.to_owned());
        let (novelty, subject) = (Novelty::New, None);
        let event = Event { involved, r#type: EventType::Normal, reason: "Test", message, novelty, subject };
        queue.for_component("test").record(event);
    };
    record("while it leads");
    tokio::time::sleep(Duration::from_secs(1)).await;
    leadership.set(Term::None);
    record("just before it gave way");
    end_events(&mut tasks, &(queue.clone(), end), LAST_WORDS).await;
    assert_eq!(*told.lock().unwrap(), [Method::POST, Method::POST]);
}
