//! Stand-in for the two controllers that remove pods from nodes: taint eviction and the pod garbage
//! collector (attach-detach §6).
//!
//! Eviction deletes the pods of a node with a `NoExecute` taint that they do not tolerate, or no longer
//! tolerate, and their kubelet ends them. If no kubelet can, the collector marks the pods as failed and
//! removes their objects. These are pods whose node is gone, terminating pods on a node that is not Ready
//! and marked as out of service, and terminating pods that never had a node.
//!
//! KCM: pkg/controller/podgc/gc_controller.go, pkg/controller/tainteviction.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::StreamExt;
use http::Method;
use k8s_openapi::api::core::v1::{Node, Pod, Taint, Toleration};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::{task::JoinHandle, time::Instant};

use super::{
    mirror::{Key, Mirror, events, key},
    objects::{is_finished, is_ready, is_terminating, node_of, pod_path, taints},
    work::{Work, Write},
};

/// Writes at once.
const WORKERS: usize = 16;
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// What the stand-in does.
#[derive(Clone, Copy, Debug)]
pub struct PodGcBehaviour {
    /// How long a node has to be gone before its pods are removed. KCM: `quarantineTime`, 40 s.
    pub quarantine: Duration,
}

impl Default for PodGcBehaviour {
    fn default() -> Self {
        Self { quarantine: Duration::from_secs(40) }
    }
}

/// A running stand-in; stops when dropped.
#[derive(Debug)]
pub struct PodGc {
    task: JoinHandle<()>,
}

impl PodGc {
    /// Starts evicting and collecting.
    pub fn start(client: Client, behaviour: PodGcBehaviour) -> Self {
        Self { task: tokio::spawn(run(client, behaviour)) }
    }
}

impl Drop for PodGc {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What to do with a pod.
#[derive(Debug, PartialEq)]
enum Verdict {
    Keep,
    /// Look again then.
    KeepUntil(Instant),
    Write(Write),
}

#[derive(Debug, Default)]
struct World {
    pods: Mirror<Pod>,
    nodes: Mirror<Node>,
    pods_of: BTreeMap<String, BTreeSet<Key>>,
    /// Since when a node has been gone, or has had a taint that evicts.
    gone_since: BTreeMap<String, Instant>,
    tainted_since: BTreeMap<String, Instant>,
}

async fn run(client: Client, behaviour: PodGcBehaviour) {
    let mut world = World::default();
    let mut work: Work<Key> = Work::new(WORKERS);
    let mut later: BTreeSet<(Instant, Key)> = BTreeSet::new();
    let mut pods = std::pin::pin!(events::<Pod>(&client));
    let mut nodes = std::pin::pin!(events::<Node>(&client));
    loop {
        while let Some(pod) = work.next() {
            match world.verdict(&pod, &behaviour, Instant::now()) {
                Verdict::Keep => {}
                Verdict::KeepUntil(at) => drop(later.insert((at, pod))),
                Verdict::Write(write) => work.start(pod, write, client.clone()),
            }
        }
        let next = later.first().map(|(at, _)| *at);
        tokio::select! {
            Some(event) = pods.next() => {
                for (before, now) in world.pods.apply(event) {
                    world.index(before.as_deref(), now.as_deref(), Instant::now());
                    if let Some(pod) = now {
                        work.mark(key(&*pod));
                    }
                }
            }
            Some(event) = nodes.next() => {
                for (before, now) in world.nodes.apply(event) {
                    let Some(node) = now.or(before) else { continue };
                    world.look_at(&node.name_any(), Instant::now());
                    for pod in world.pods_of.get(&node.name_any()).into_iter().flatten() {
                        work.mark(pod.clone());
                    }
                }
            }
            () = tokio::time::sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                if let Some((_, pod)) = later.pop_first() {
                    work.mark(pod);
                }
            }
            () = work.finished() => {}
            else => return,
        }
    }
}

impl World {
    fn index(&mut self, before: Option<&Pod>, now: Option<&Pod>, at: Instant) {
        if let Some((pod, node)) = before.and_then(|pod| Some((pod, node_of(pod)?)))
            && let Some(pods) = self.pods_of.get_mut(node)
        {
            pods.remove(&key(pod));
        }
        if let Some((pod, node)) = now.and_then(|pod| Some((pod, node_of(pod)?))) {
            self.pods_of.entry(node.to_owned()).or_default().insert(key(pod));
            self.look_at(node, at);
        }
    }

    /// Notes since when a node has been as it is.
    fn look_at(&mut self, name: &str, at: Instant) {
        let node = self.nodes.get("", name);
        if node.is_some() {
            self.gone_since.remove(name);
        } else {
            self.gone_since.entry(name.to_owned()).or_insert(at);
        }
        if node.is_some_and(|node| evicting(node).next().is_some()) {
            self.tainted_since.entry(name.to_owned()).or_insert(at);
        } else {
            self.tainted_since.remove(name);
        }
    }

    fn verdict(&self, pod: &Key, behaviour: &PodGcBehaviour, now: Instant) -> Verdict {
        let Some(pod) = self.pods.get(&pod.0, &pod.1) else { return Verdict::Keep };
        let Some(name) = node_of(pod) else {
            return if is_terminating(&**pod) { remove(pod) } else { Verdict::Keep };
        };
        let Some(node) = self.nodes.get("", name) else {
            let due = self.gone_since.get(name).copied().unwrap_or(now) + behaviour.quarantine;
            return if now < due { Verdict::KeepUntil(due) } else { remove(pod) };
        };
        if is_terminating(&**pod) {
            let is_off = !is_ready(node) && taints(node).any(|taint| taint.key == OUT_OF_SERVICE);
            return if is_off { remove(pod) } else { Verdict::Keep };
        }
        let since = self.tainted_since.get(name).copied().unwrap_or(now);
        let tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
        let tolerations: Vec<&Toleration> = tolerations.collect();
        let dues = evicting(node).filter_map(|taint| match patience(taint, &tolerations) {
            Patience::Endless => None,
            Patience::For(patience) => Some(since + patience),
        });
        match dues.min() {
            None => Verdict::Keep,
            Some(due) if now < due => Verdict::KeepUntil(due),
            Some(_) => Verdict::Write(delete(pod, json!({}))),
        }
    }
}

fn evicting(node: &Node) -> impl Iterator<Item = &Taint> {
    taints(node).filter(|taint| taint.effect == "NoExecute")
}

/// How long a pod bears a taint.
enum Patience {
    Endless,
    For(Duration),
}

fn patience(taint: &Taint, tolerations: &[&Toleration]) -> Patience {
    let tolerating = tolerations.iter().filter(|toleration| {
        let key = toleration.key.as_deref().unwrap_or_default();
        let effect = toleration.effect.as_deref().unwrap_or_default();
        let exists = toleration.operator.as_deref() == Some("Exists");
        (key == taint.key || (key.is_empty() && exists))
            && (effect.is_empty() || effect == taint.effect)
            && (exists || toleration.value.as_deref().unwrap_or_default() == taint_value(taint))
    });
    let mut longest = Patience::For(Duration::ZERO);
    for toleration in tolerating {
        let Some(seconds) = toleration.toleration_seconds else { return Patience::Endless };
        let patience = Duration::from_secs(seconds.max(0).unsigned_abs());
        if matches!(longest, Patience::For(before) if before < patience) {
            longest = Patience::For(patience);
        }
    }
    longest
}

fn taint_value(taint: &Taint) -> &str {
    taint.value.as_deref().unwrap_or_default()
}

/// The pod object goes without its kubelet: failed first, then deleted without grace.
fn remove(pod: &Pod) -> Verdict {
    if is_finished(pod) {
        return Verdict::Write(delete(pod, json!({ "gracePeriodSeconds": 0 })));
    }
    let body = json!({
        "metadata": { "uid": pod.metadata.uid },
        "status": { "phase": "Failed", "conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
            "message": "PodGC: node no longer exists or does not answer",
        }]},
    });
    Verdict::Write(Write::patch(format!("{}/status", pod_path(&key(pod))), body))
}

fn delete(pod: &Pod, mut body: serde_json::Value) -> Write {
    if let Some(body) = body.as_object_mut() {
        body.insert("preconditions".to_owned(), json!({ "uid": pod.metadata.uid }));
    }
    Write::new(Method::DELETE, pod_path(&key(pod)), body)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::actors::tests::{Case, apply, cases, expect};

    #[tokio::test(start_paused = true)]
    async fn pod_gc_decisions() {
        for Case { name, objects, about, after, then } in cases("pod_gc") {
            let begin = Instant::now();
            let mut world = World::default();
            for object in &objects {
                match object["kind"].as_str().unwrap() {
                    "Pod" => {
                        for (before, now) in apply(&mut world.pods, object) {
                            world.index(before.as_deref(), now.as_deref(), begin);
                        }
                    }
                    "Node" => {
                        apply(&mut world.nodes, object);
                        world.look_at(object["metadata"]["name"].as_str().unwrap(), begin);
                    }
                    other => panic!("{name}: {other}"),
                }
            }
            let now = begin + Duration::from_secs(after);
            let verdict = world.verdict(&("ns".to_owned(), about), &PodGcBehaviour::default(), now);
            match (verdict, &then) {
                (Verdict::KeepUntil(at), Value::Object(then)) if then.contains_key("until") => {
                    assert_eq!(then["until"], (at - begin).as_secs(), "{name}");
                }
                (Verdict::KeepUntil(at), _) => panic!("{name}: waits until {:?}", at - begin),
                (Verdict::Keep, then) => expect(&name, None, then),
                (Verdict::Write(write), then) => expect(&name, Some(&write), then),
            }
        }
    }
}
