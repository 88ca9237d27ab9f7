//! Stand-in for the controllers that keep pods with claims running, as StatefulSets and Deployments
//! do: it creates the pod and the claim of a [`Seat`], and recreates them when they are gone.
//!
//! A seat is a place for one pod with one claim, `data-<seat>`. As in a StatefulSet, its pod has the
//! seat's name and is recreated when it is gone. Or, as in a Deployment, it gets a new name and is
//! recreated as soon as the last pod is terminating, so that two pods need one volume for some time. When
//! a seat ends, its pod is deleted, then its claim.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use http::Method;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Client, Resource};
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};

use super::{
    mirror::{Key, Mirror, events, key},
    objects::{claim_path, is_terminating, pod_path},
    work::{Work, Write},
};

/// Writes at once.
const WORKERS: usize = 32;
/// Label of pods and claims with the seat's name.
pub const SEAT: &str = "seat";

/// When a pod is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Succession {
    /// When the last one is gone, under the same name.
    AfterGone,
    /// When the last one is told to end, under another name.
    AtOnce,
}

/// A place for a pod with a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat {
    /// When its pod is made again.
    pub succession: Succession,
    /// Class of its claim.
    pub class: String,
    /// Size of its claim, as a Kubernetes quantity.
    pub size: String,
}

/// What the stand-in does.
#[derive(Clone, Debug, Default)]
pub struct WorkloadBehaviour {
    /// The seats by name.
    pub seats: BTreeMap<String, Seat>,
    /// How long a pod stays on a node that is not ready or cannot be reached; `None` means the API
    /// server's default.
    pub toleration: Option<Duration>,
}

/// A running stand-in; stops when dropped.
#[derive(Debug)]
pub struct Workload {
    behaviour: watch::Sender<WorkloadBehaviour>,
    task: JoinHandle<()>,
}

impl Workload {
    /// Starts filling seats in a namespace.
    pub fn start(client: Client, namespace: &str, behaviour: WorkloadBehaviour) -> Self {
        let (sender, receiver) = watch::channel(behaviour);
        let task = tokio::spawn(run(client, namespace.to_owned(), receiver));
        Self { behaviour: sender, task }
    }

    /// Changes what it does from now on.
    pub fn change(&self, change: impl FnOnce(&mut WorkloadBehaviour)) {
        self.behaviour.send_modify(change);
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug, Default)]
struct World {
    namespace: String,
    pods: Mirror<Pod>,
    claims: Mirror<PersistentVolumeClaim>,
    pods_of: BTreeMap<String, BTreeSet<Key>>,
    /// Pods seen so far by seat, for names that were never used.
    seen: BTreeMap<String, usize>,
}

async fn run(client: Client, namespace: String, mut behaviour: watch::Receiver<WorkloadBehaviour>) {
    let mut world = World { namespace, ..World::default() };
    let mut work: Work<String> = Work::new(WORKERS);
    let mut pods = std::pin::pin!(events::<Pod>(&client));
    let mut claims = std::pin::pin!(events::<PersistentVolumeClaim>(&client));
    let (mut knows_pods, mut knows_claims) = (false, false);
    behaviour.mark_changed();
    loop {
        // Before all is known, everything looks missing.
        while let Some(seat) = if knows_pods && knows_claims { work.next() } else { None } {
            let write = world.next_write(&seat, &behaviour.borrow());
            if let Some(write) = write {
                work.start(seat, write, client.clone());
            }
        }
        tokio::select! {
            Some(event) = pods.next() => {
                knows_pods |= matches!(event, kube::runtime::watcher::Event::InitDone);
                for (before, now) in world.pods.apply(event) {
                    world.index(before.as_deref(), now.as_deref());
                    if let Some(seat) = now.or(before).as_deref().and_then(seat_of) {
                        work.mark(seat.to_owned());
                    }
                }
            }
            Some(event) = claims.next() => {
                knows_claims |= matches!(event, kube::runtime::watcher::Event::InitDone);
                for (before, now) in world.claims.apply(event) {
                    if let Some(seat) = now.or(before).as_deref().and_then(seat_of) {
                        work.mark(seat.to_owned());
                    }
                }
            }
            Ok(()) = behaviour.changed() => {
                behaviour.borrow().seats.keys().for_each(|seat| work.mark(seat.clone()));
                world.claims.values().filter_map(|claim| seat_of(&**claim)).for_each(|seat| work.mark(seat.to_owned()));
            }
            () = work.finished() => {}
            else => return,
        }
    }
}

fn seat_of<K: Resource>(object: &K) -> Option<&str> {
    object.meta().labels.as_ref()?.get(SEAT).map(String::as_str)
}

/// Name of a seat's claim.
pub fn claim_name(seat: &str) -> String {
    format!("data-{seat}")
}

impl World {
    fn index(&mut self, before: Option<&Pod>, now: Option<&Pod>) {
        let Some((pod, seat)) = now.or(before).and_then(|pod| Some((pod, seat_of(pod)?))) else { return };
        let pods = self.pods_of.entry(seat.to_owned()).or_default();
        if now.is_none() {
            pods.remove(&key(pod));
        } else if pods.insert(key(pod)) {
            *self.seen.entry(seat.to_owned()).or_default() += 1;
        }
    }

    /// What to write next for a seat.
    fn next_write(&self, name: &str, behaviour: &WorkloadBehaviour) -> Option<Write> {
        let claim_key = (self.namespace.clone(), claim_name(name));
        let claim = self.claims.get(&claim_key.0, &claim_key.1);
        let pods = self.pods_of.get(name).into_iter().flatten();
        let pods: Vec<&Pod> =
            pods.filter_map(|(namespace, pod)| self.pods.get(namespace, pod).map(Arc::as_ref)).collect();
        let staying = pods.iter().find(|pod| !is_terminating(**pod));
        let Some(seat) = behaviour.seats.get(name) else {
            if let Some(pod) = staying {
                return Some(delete(pod_path(&key(*pod)), pod.metadata.uid.as_deref()));
            }
            let claim = claim.filter(|claim| pods.is_empty() && !is_terminating(&***claim))?;
            return Some(delete(claim_path(&claim_key), claim.metadata.uid.as_deref()));
        };
        let Some(claim) = claim else { return Some(self.make_claim(name, seat)) };
        let is_full = match seat.succession {
            Succession::AfterGone => !pods.is_empty(),
            Succession::AtOnce => staying.is_some(),
        };
        // A claim that goes is made again first, or the pod would keep it.
        (!is_full && !is_terminating(&**claim)).then(|| self.make_pod(name, seat, behaviour.toleration))
    }

    fn make_claim(&self, name: &str, seat: &Seat) -> Write {
        let body = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": { "name": claim_name(name), "labels": { SEAT: name } },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": seat.class,
                "resources": { "requests": { "storage": seat.size } },
            },
        });
        self.create("persistentvolumeclaims", body)
    }

    fn make_pod(&self, name: &str, seat: &Seat, toleration: Option<Duration>) -> Write {
        let pod_name = match seat.succession {
            Succession::AfterGone => name.to_owned(),
            Succession::AtOnce => format!("{name}-{}", self.seen.get(name).copied().unwrap_or(0) + 1),
        };
        let tolerations: Vec<Value> = ["not-ready", "unreachable"]
            .into_iter()
            .filter_map(|condition| {
                Some(json!({
                    "key": format!("node.kubernetes.io/{condition}"), "operator": "Exists",
                    "effect": "NoExecute", "tolerationSeconds": toleration?.as_secs(),
                }))
            })
            .collect();
        let body = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": pod_name, "labels": { SEAT: name } },
            "spec": {
                "containers": [{
                    "name": "main", "image": "example.com/main",
                    "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                }],
                "tolerations": tolerations,
                "volumes": [
                    { "name": "data", "persistentVolumeClaim": { "claimName": claim_name(name) } },
                ],
            },
        });
        self.create("pods", body)
    }

    fn create(&self, plural: &str, body: Value) -> Write {
        let path = format!("/api/v1/namespaces/{}/{plural}", self.namespace);
        Write::new(Method::POST, path, body)
    }
}

fn delete(path: String, uid: Option<&str>) -> Write {
    let body = json!({ "preconditions": { "uid": uid } });
    Write::new(Method::DELETE, path, body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actors::tests::{Case, apply, cases, expect};

    #[test]
    fn workload_decisions() {
        let seat = |succession| Seat { succession, class: "fast".to_owned(), size: "1Gi".to_owned() };
        let behaviour = WorkloadBehaviour {
            seats: BTreeMap::from([
                ("db-0".to_owned(), seat(Succession::AfterGone)),
                ("web-0".to_owned(), seat(Succession::AtOnce)),
            ]),
            toleration: Some(Duration::from_secs(5)),
        };
        for Case { name, objects, about, then, .. } in cases("workload") {
            let mut world = World { namespace: "ns".to_owned(), ..World::default() };
            for object in &objects {
                match object["kind"].as_str().unwrap() {
                    "Pod" => {
                        for (before, now) in apply(&mut world.pods, object) {
                            world.index(before.as_deref(), now.as_deref());
                        }
                    }
                    "PersistentVolumeClaim" => drop(apply(&mut world.claims, object)),
                    other => panic!("{name}: {other}"),
                }
            }
            expect(&name, world.next_write(&about, &behaviour).as_ref(), &then);
        }
    }
}
