//! The floor under all subjects: the very writes of each bind, attach and detach, and nothing else.
//!
//! Who gets what is made up beforehand, from lists; nothing is searched, and of what is told only the event of an attach. What a write has to know
//! is in the answer to the one before. VolumeAttachments alone are watched, for the driver's part of an
//! attach: a node is written to once, when all that it gets is attached. So every
//! wait is for the API server. It is as fast as the machine happens to be in that minute: two subjects are comparable
//! as far as that has not changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use apiserver::{
    call::{Caller, Request, Verb},
    ids::{AttachmentName, DriverName, NodeName},
    kinds::{
        ClaimPhase, CsiDriver, Narrow, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod,
        StorageClass, VolumeAttachment, VolumePhase,
    },
    leadership::{Leadership, Term},
    wire::Encoding,
};
use futures::{StreamExt, stream};
use http_body_util::BodyExt;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client, Resource, api::ListParams, client::Body, runtime::watcher::Event};
use mooring::{
    attach_detach::{
        calls,
        state::desired::{AttachSource, volume_name::VolumeId},
    },
    binder::decide::binding::next_write,
    controller::late::may_be_late,
    metrics::{ApiMetrics, Metrics},
};
use serde_json::json;
use test_support::{
    actors::attachment_name,
    cluster::{DRIVER, NAMESPACE},
};
use tokio::{task::JoinSet, time::Instant};

use super::{sightings::events, watched::Watched};

/// Operations at once: as many as mooring sends requests.
const CONCURRENCY: usize = 64;
/// A term that ends after the benchmark.
const LONG: Duration = Duration::from_hours(24);

type Pair = (PersistentVolume, PersistentVolumeClaim);

/// What there is to do.
pub enum Work {
    /// Bind these to each other.
    Bind(Vec<Pair>),
    /// Attach volumes to nodes; their handles are their names.
    Attach(Vec<(String, String)>),
    /// Detach them.
    Detach(Vec<(String, String)>),
}

/// Who works without a thought.
pub struct Floor {
    client: Client,
    accept: Encoding,
    term: Term,
    /// They end with it.
    watches: JoinSet<()>,
    next: Mutex<Option<Work>>,
}

impl Floor {
    /// Nothing to do yet.
    pub fn new(client: Client) -> Self {
        let accept = Encoding::Protobuf;
        Self { client, accept, term: Term::Unlimited, watches: JoinSet::new(), next: Mutex::default() }
    }

    /// The same, asking for such answers.
    pub fn accepting(self, accept: Encoding) -> Self {
        Self { accept, ..self }
    }

    /// The same in a term: what mooring keeps back as leader until the API server asks for the body waits here, too.
    pub fn in_a_term(self) -> Self {
        Self { term: Term::Until(Instant::now() + LONG), ..self }
    }

    /// The same, which reads all watches that mooring has, and discards what they bring.
    pub async fn watching(mut self) -> Self {
        self.watch::<Node>().await;
        self.watch::<Pod>().await;
        self.watch::<PersistentVolume>().await;
        self.watch::<PersistentVolumeClaim>().await;
        self.watch::<VolumeAttachment>().await;
        self.watch::<StorageClass>().await;
        self.watch::<CsiDriver>().await;
        self
    }

    async fn watch<T: Narrow>(&mut self) {
        let mut body = open_watch(&self.client, &Watched::<T>::url_path(&(), None)).await;
        self.watches.spawn(async move {
            while let Some(frame) = body.frame().await {
                frame.expect("a piece of a watch");
            }
        });
    }

    /// Says what to do next.
    pub fn next(&self, work: Work) {
        *self.next.lock().unwrap() = Some(work);
    }

    /// Unless it was told what to do: gives each claim that is not bound a free volume.
    pub async fn prepare(&self) {
        if self.next.lock().unwrap().is_some() {
            return;
        }
        let volumes = self.list::<PersistentVolume>().await;
        let claims = self.list::<PersistentVolumeClaim>().await;
        let free = volumes.into_iter().filter(|volume| volume.status.phase == VolumePhase::Available);
        let open = claims.into_iter().filter(|claim| claim.status.phase != ClaimPhase::Bound);
        self.next(Work::Bind(free.zip(open).collect()));
    }

    /// Does it, from now on.
    pub fn begin(&self) {
        let leadership = Leadership::new(self.term);
        let metrics = ApiMetrics::new(&Metrics::default(), "floor").unwrap();
        let caller = Caller::new(self.client.clone(), leadership, None, Arc::new(metrics))
            .accepting(self.accept)
            .letting_be_late(may_be_late);
        let client = self.client.clone();
        let work = self.next.lock().unwrap().take();
        tokio::spawn(async move {
            match work {
                None => {}
                Some(Work::Bind(pairs)) => {
                    stream::iter(pairs).for_each_concurrent(CONCURRENCY, |pair| bind(&caller, pair)).await;
                }
                Some(Work::Attach(pairs)) => attach(&client, &caller, pairs).await,
                Some(Work::Detach(pairs)) => detach(&caller, pairs).await,
            }
        });
    }

    async fn list<T: Narrow>(&self) -> Vec<T> {
        let api: Api<Watched<T>> = Api::all_with(self.client.clone(), &());
        let list = api.list(&ListParams::default()).await.expect("list");
        list.items.into_iter().map(|watched| watched.object).collect()
    }
}

/// Opens a watch as mooring does, from what there is now.
pub async fn open_watch(client: &Client, path: &str) -> Body {
    let request = http::Request::get(format!("{path}?watch=true&allowWatchBookmarks=true&resourceVersion=0"));
    let request = request.header(http::header::ACCEPT, Encoding::Protobuf.watch()).body(Body::empty());
    let answer = client.send(request.expect("a request")).await.expect("an answer");
    assert!(answer.status().is_success(), "{path}: {}", answer.status());
    answer.into_body()
}

async fn bind(caller: &Caller, (mut volume, mut claim): Pair) {
    while let Some(write) = next_write(&volume, &claim).expect("a volume with a size") {
        match write.target {
            ObjectRef::Volume(_) => volume = caller.write(&write.request).await.expect("write a volume"),
            ObjectRef::Claim(_) => claim = caller.write(&write.request).await.expect("write a claim"),
            _ => unreachable!("a bind writes no pod"),
        }
    }
}

async fn attach(client: &Client, caller: &Caller, pairs: Vec<(String, String)>) {
    // What there is on each node, and what of it is not attached yet.
    let mut nodes: BTreeMap<String, (Vec<VolumeId>, BTreeSet<AttachmentName>)> = BTreeMap::new();
    for (volume, node) in &pairs {
        let (all, open) = nodes.entry(node.clone()).or_default();
        let id = VolumeId::csi(&DriverName::from(DRIVER), volume);
        open.insert(id.attachment_name(&NodeName::from(node.as_str())));
        all.push(id);
    }
    let mut attachments = events::<VolumeAttachment>(client);
    let publishing = async {
        while !nodes.is_empty()
            && let Some((event, _)) = attachments.next().await
        {
            let (Event::InitApply(Watched { object, .. }) | Event::Apply(Watched { object, .. })) = event
            else {
                continue;
            };
            let node = object.spec.node_name.as_str();
            if object.status.attached
                && let Some((_, open)) = nodes.get_mut(node)
                && open.remove(&object.key())
                && open.is_empty()
                && let Some((mut volumes, _)) = nodes.remove(node)
            {
                volumes.sort();
                tokio::spawn(publish_and_tell(caller.clone(), node.to_owned(), volumes));
            }
        }
    };
    let creating = stream::iter(pairs)
        .for_each_concurrent(CONCURRENCY, |(volume, node)| create_attachment(caller.clone(), volume, node));
    futures::join!(creating, publishing);
}

async fn detach(caller: &Caller, pairs: Vec<(String, String)>) {
    let mut nodes: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (volume, node) in pairs {
        let name = attachment_name(&volume, DRIVER, &node);
        nodes.entry(node).or_default().push(name);
    }
    let withdrawals = nodes.into_iter().map(|(node, names)| withdraw(caller.clone(), node, names));
    let names = stream::iter(withdrawals).buffer_unordered(CONCURRENCY).flat_map(stream::iter);
    names.for_each_concurrent(CONCURRENCY, |name| delete_attachment(caller.clone(), name)).await;
}

async fn create_attachment(caller: Caller, volume: String, node: String) {
    let id = VolumeId::csi(&DriverName::from(DRIVER), &volume);
    let source = AttachSource::PersistentVolume(volume.as_str().into());
    let request = calls::create(&id, &NodeName::from(node.as_str()), &source);
    let _: VolumeAttachment = caller.write(&request).await.expect("create a VolumeAttachment");
}

/// Takes everything off the node's list. Returns the attachments that may be deleted then.
async fn withdraw(caller: Caller, node: String, attachments: Vec<String>) -> Vec<String> {
    publish(caller, node, Vec::new()).await;
    attachments
}

async fn delete_attachment(caller: Caller, name: String) {
    let path = VolumeAttachment::path(&name.as_str().into());
    let request = Request { verb: Verb::Delete, path, body: Some(json!({})) };
    caller.send(&request).await.expect("delete a VolumeAttachment");
}

/// Lists them as attached, and says so of each.
async fn publish_and_tell(caller: Caller, node: String, volumes: Vec<VolumeId>) {
    publish(caller.clone(), node, volumes.clone()).await;
    for volume in volumes {
        tell(&caller, &volume).await;
    }
}

/// The event about the pod that an attach is for.
async fn tell(caller: &Caller, volume: &VolumeId) {
    let ((_, name), now) =
        (volume.driver_and_handle(), Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    let event = json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": { "name": format!("{name}.0123456789abcdef"), "namespace": NAMESPACE },
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "namespace": NAMESPACE, "name": name,
            "uid": "00000000-0000-0000-0000-000000000000", "resourceVersion": "1",
        },
        "type": "Normal", "reason": "SuccessfulAttachVolume",
        "message": format!("AttachVolume.Attach succeeded for volume \"{name}\" "),
        "source": { "component": "attachdetach-controller" },
        "reportingComponent": "attachdetach-controller", "reportingInstance": "floor",
        "count": 1, "firstTimestamp": now, "lastTimestamp": now,
    });
    let path = format!("/api/v1/namespaces/{NAMESPACE}/events");
    caller.send(&Request { verb: Verb::Create, path, body: Some(event) }).await.expect("create an event");
}

/// Lists these volumes as attached to the node, and no others.
async fn publish(caller: Caller, node: String, volumes: Vec<VolumeId>) {
    let list: Vec<_> = volumes.iter().map(|id| json!({ "name": id, "devicePath": "" })).collect();
    let request = Request {
        verb: Verb::Patch,
        path: format!("{}/status", Node::path(&node.as_str().into())),
        body: Some(json!({ "status": { "volumesAttached": list } })),
    };
    let _: Node = caller.write(&request).await.expect("patch the status of a node");
}
