//! Stand-in for the scheduler: finds a node for every pod that has none (pv-binder §6).
//!
//! Like the real one, it binds through `pods/binding` and waits for claims of classes that bind at once.
//! For claims that wait for a consumer, it reserves an existing volume, or else writes the chosen node on
//! the claim, and waits until they are bound. It supports readiness, taints, cordons, and the node affinity of
//! volumes. It does not support resources and affinity of pods, and it knows existing volumes by class, size
//! and access modes alone. The condition `PodScheduled` of a pod states why it has no node.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use futures::StreamExt;
use http::Method;
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::task::JoinHandle;

use super::{
    mirror::{Key, Mirror, events, key},
    objects::{claim_of, claim_path, claims_of, is_ready, is_terminating, node_of, pod_path, taints},
    work::{Work, Write},
};

/// Writes at once.
const WORKERS: usize = 16;
/// How many pods more than the emptiest node a node may have and still be chosen, so that a pod
/// that is made again usually comes elsewhere.
const SLACK: usize = 2;
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// A running stand-in; stops when dropped.
#[derive(Debug)]
pub struct Scheduler {
    task: JoinHandle<()>,
}

impl Scheduler {
    /// Starts scheduling.
    pub fn start(client: Client) -> Self {
        Self { task: tokio::spawn(run(client)) }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Why a pod has no node yet.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Waiting {
    /// A claim does not exist.
    ClaimMissing(String),
    /// The volume of a claim is gone.
    ClaimLost(String),
    /// A claim is being deleted.
    ClaimTerminating(String),
    /// A claim of a class that binds at once is not bound.
    ClaimUnbound,
    /// No node of so many will do.
    NoNode(usize),
    /// There is no volume for a claim, and its class provisions none.
    NoVolume,
    /// Claims that wait for this pod are being bound.
    Binding,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClaimMissing(name) => write!(f, "persistentvolumeclaim {name:?} not found"),
            Self::ClaimLost(name) => {
                write!(f, "persistentvolumeclaim {name:?} is bound to a volume that does not exist")
            }
            Self::ClaimTerminating(name) => write!(f, "persistentvolumeclaim {name:?} is being deleted"),
            Self::ClaimUnbound => f.write_str("pod has unbound immediate PersistentVolumeClaims"),
            Self::NoNode(count) => write!(f, "0/{count} nodes are available"),
            Self::NoVolume => f.write_str("didn't find available persistent volumes to bind"),
            Self::Binding => f.write_str("waiting for its claims to be bound"),
        }
    }
}

#[derive(Debug, Default)]
struct World {
    pods: Mirror<Pod>,
    nodes: Mirror<Node>,
    claims: Mirror<PersistentVolumeClaim>,
    volumes: Mirror<PersistentVolume>,
    classes: Mirror<StorageClass>,
    /// Pods without a node, all and by claim.
    waiting: BTreeSet<Key>,
    waiting_of: BTreeMap<Key, BTreeSet<Key>>,
    /// Number of pods by node.
    load: BTreeMap<String, usize>,
}

async fn run(client: Client) {
    let mut world = World::default();
    let mut work: Work<Key> = Work::new(WORKERS);
    let mut pods = std::pin::pin!(events::<Pod>(&client));
    let mut nodes = std::pin::pin!(events::<Node>(&client));
    let mut claims = std::pin::pin!(events::<PersistentVolumeClaim>(&client));
    let mut volumes = std::pin::pin!(events::<PersistentVolume>(&client));
    let mut classes = std::pin::pin!(events::<StorageClass>(&client));
    loop {
        while let Some(pod) = work.next() {
            if let Some(write) = world.next_write(&pod) {
                work.start(pod, write, client.clone());
            }
        }
        tokio::select! {
            Some(event) = pods.next() => {
                for (before, now) in world.pods.apply(event) {
                    world.index(before.as_deref(), now.as_deref());
                    if let Some(pod) = now {
                        work.mark(key(&*pod));
                    }
                }
            }
            Some(event) = nodes.next() => {
                // Most changes of nodes are of no interest: volumes in use, heartbeats.
                if world.nodes.apply(event).iter().any(|(before, now)| offer(before.as_ref()) != offer(now.as_ref())) {
                    world.waiting.iter().for_each(|pod| work.mark(pod.clone()));
                }
            }
            Some(event) = claims.next() => {
                for (before, now) in world.claims.apply(event) {
                    let Some(claim) = now.or(before) else { continue };
                    world.waiting_for(&key(&*claim)).for_each(|pod| work.mark(pod.clone()));
                }
            }
            Some(event) = volumes.next() => {
                for (before, now) in world.volumes.apply(event) {
                    match now.or(before).and_then(|volume| claim_of(&volume)) {
                        Some(claim) => world.waiting_for(&claim).for_each(|pod| work.mark(pod.clone())),
                        // Any claim may take it.
                        None => world.waiting.iter().for_each(|pod| work.mark(pod.clone())),
                    }
                }
            }
            Some(event) = classes.next() => {
                if !world.classes.apply(event).is_empty() {
                    world.waiting.iter().for_each(|pod| work.mark(pod.clone()));
                }
            }
            () = work.finished() => {}
            else => return,
        }
    }
}

fn needs_node(pod: &Pod) -> bool {
    node_of(pod).is_none() && !is_terminating(pod)
}

impl World {
    fn index(&mut self, before: Option<&Pod>, now: Option<&Pod>) {
        if let Some(pod) = before {
            if let Some(count) = node_of(pod).and_then(|node| self.load.get_mut(node)) {
                *count = count.saturating_sub(1);
            }
            self.waiting.remove(&key(pod));
            for claim in claims_of(pod) {
                if let Some(pods) = self.waiting_of.get_mut(&claim) {
                    pods.remove(&key(pod));
                }
            }
        }
        let Some(pod) = now else { return };
        if let Some(node) = node_of(pod) {
            *self.load.entry(node.to_owned()).or_default() += 1;
        } else if needs_node(pod) {
            self.waiting.insert(key(pod));
            for claim in claims_of(pod) {
                self.waiting_of.entry(claim).or_default().insert(key(pod));
            }
        }
    }

    fn waiting_for(&self, claim: &Key) -> impl Iterator<Item = &Key> {
        self.waiting_of.get(claim).into_iter().flatten()
    }

    /// What to write next for a pod, if it needs a node.
    fn next_write(&self, pod: &Key) -> Option<Write> {
        let pod = self.pods.get(&pod.0, &pod.1).filter(|pod| needs_node(pod))?;
        self.step(pod).unwrap_or_else(|waiting| explain(pod, &waiting))
    }

    fn step(&self, pod: &Pod) -> Result<Option<Write>, Waiting> {
        let mut volumes = Vec::new();
        let mut delayed = Vec::new();
        for (namespace, name) in claims_of(pod) {
            let claim = self.claims.get(&namespace, &name).ok_or(Waiting::ClaimMissing(name.clone()))?;
            if phase(claim) == Some("Lost") {
                return Err(Waiting::ClaimLost(name));
            }
            if is_terminating(&**claim) {
                return Err(Waiting::ClaimTerminating(name));
            }
            match claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()) {
                Some(volume) if phase(claim) == Some("Bound") => {
                    volumes.push(self.volumes.get("", volume).ok_or(Waiting::ClaimUnbound)?);
                }
                None if self.is_delayed(claim) => delayed.push(claim),
                // Which volume a claim binds that names one does not depend on the pod.
                _ => return Err(Waiting::ClaimUnbound),
            }
        }
        let fitting: Vec<&str> = self
            .nodes
            .values()
            .filter(|node| takes_pods(node) && volumes.iter().all(|volume| reaches(volume, node)))
            .filter_map(|node| node.metadata.name.as_deref())
            .collect();
        // What was chosen stays chosen while it will do.
        let chosen = delayed.iter().find_map(|claim| claim.annotations().get(SELECTED_NODE));
        let node = chosen
            .and_then(|chosen| fitting.iter().copied().find(|node| node == chosen))
            .or_else(|| self.choose(pod, &fitting))
            .ok_or_else(|| Waiting::NoNode(self.nodes.values().count()))?;
        for claim in &delayed {
            if let Some(write) = self.begin(claim, node)? {
                return Ok(Some(write));
            }
        }
        if delayed.is_empty() { Ok(Some(bind(pod, node))) } else { Err(Waiting::Binding) }
    }

    /// What makes others bind a claim that waits for its pod; nothing if that is done.
    fn begin(&self, claim: &PersistentVolumeClaim, node: &str) -> Result<Option<Write>, Waiting> {
        if claim.annotations().get(SELECTED_NODE).is_some_and(|on| on == node)
            || self.volumes.values().any(|volume| holds(volume, claim))
        {
            return Ok(None);
        }
        let reaches =
            |volume: &PersistentVolume| self.nodes.get("", node).is_some_and(|node| reaches(volume, node));
        if let Some(volume) = self.volumes.values().find(|volume| suits(volume, claim) && reaches(volume)) {
            return Ok(Some(reserve(volume, claim)));
        }
        let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
        let provisions = class
            .and_then(|class| self.classes.get("", class))
            .is_some_and(|class| class.provisioner != NO_PROVISIONER);
        if provisions { Ok(Some(select_node(claim, node))) } else { Err(Waiting::NoVolume) }
    }

    fn is_delayed(&self, claim: &PersistentVolumeClaim) -> bool {
        let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
        class
            .and_then(|class| self.classes.get("", class))
            .is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"))
    }

    /// One of the nodes with few pods. The pod's identity decides which, so that several pods
    /// decided upon at once do not all go to the same.
    fn choose<'a>(&self, pod: &Pod, fitting: &[&'a str]) -> Option<&'a str> {
        let load = |node: &str| self.load.get(node).copied().unwrap_or(0);
        let least = fitting.iter().map(|node| load(node)).min()?;
        let rank = |node: &str| {
            let mut hasher = DefaultHasher::new();
            (pod.metadata.uid.as_deref(), node).hash(&mut hasher);
            hasher.finish()
        };
        fitting.iter().copied().filter(|node| load(node) <= least + SLACK).min_by_key(|node| rank(node))
    }
}

fn phase(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.phase.as_deref()
}

/// What scheduling depends on of a node: the labels of one that takes pods.
fn offer(node: Option<&Arc<Node>>) -> Option<&BTreeMap<String, String>> {
    node.filter(|node| takes_pods(node)).map(|node| node.labels())
}

/// Whether a node takes pods that tolerate nothing.
fn takes_pods(node: &Node) -> bool {
    let is_cordoned = node.spec.as_ref().is_some_and(|spec| spec.unschedulable == Some(true));
    is_ready(node) && !is_cordoned && taints(node).all(|taint| taint.effect == "PreferNoSchedule")
}

/// Whether a node can reach a volume: one of the terms of its affinity holds.
fn reaches(volume: &PersistentVolume, node: &Node) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let Some(required) = affinity.and_then(|affinity| affinity.required.as_ref()) else { return true };
    required.node_selector_terms.iter().any(|term| {
        // What is not understood does not hold.
        let mut expressions = term.match_expressions.iter().flatten().peekable();
        expressions.peek().is_some()
            && term.match_fields.is_none()
            && expressions.all(|expression| {
                let value = node.labels().get(&expression.key);
                let is_listed =
                    value.is_some_and(|value| expression.values.iter().flatten().any(|one| one == value));
                match expression.operator.as_str() {
                    "In" => is_listed,
                    "NotIn" => !is_listed,
                    "Exists" => value.is_some(),
                    "DoesNotExist" => value.is_none(),
                    _ => false,
                }
            })
    })
}

/// Whether a volume is reserved for a claim, or bound to it.
fn holds(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    reference.is_some_and(|reference| reference.uid.is_some() && reference.uid == claim.metadata.uid)
}

/// Whether a volume is free for a claim, or reserved for one of its name, and what it asks for.
fn suits(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let (Some(offer), Some(wish)) = (&volume.spec, &claim.spec) else { return false };
    let is_free = offer.claim_ref.as_ref().is_none_or(|reference| {
        reference.uid.as_deref().is_none_or(str::is_empty) && claim_of(volume) == Some(key(claim))
    });
    let is_available =
        volume.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Available"));
    let modes = |modes: &Option<Vec<String>>| modes.iter().flatten().cloned().collect::<BTreeSet<_>>();
    let asked = wish.resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get("storage"));
    is_free
        && is_available
        && !is_terminating(volume)
        && offer.storage_class_name == wish.storage_class_name
        && offer.capacity.as_ref().and_then(|capacity| capacity.get("storage")) == asked
        && modes(&wish.access_modes).is_subset(&modes(&offer.access_modes))
}

/// The binder takes it from there. What somebody has reserved before stays that one's (`bound-by-controller`).
fn reserve(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Write {
    let is_ours = volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_none());
    let annotations =
        if is_ours { json!({ "pv.kubernetes.io/bound-by-controller": "yes" }) } else { json!({}) };
    let body = json!({
        "metadata": {
            "uid": volume.metadata.uid,
            "resourceVersion": volume.metadata.resource_version,
            "annotations": annotations,
        },
        "spec": { "claimRef": {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": claim.metadata.namespace, "name": claim.metadata.name, "uid": claim.metadata.uid,
            "resourceVersion": claim.metadata.resource_version,
        }},
    });
    Write::patch(format!("/api/v1/persistentvolumes/{}", volume.name_any()), body)
}

fn select_node(claim: &PersistentVolumeClaim, node: &str) -> Write {
    let body = json!({ "metadata": {
        "uid": claim.metadata.uid,
        "resourceVersion": claim.metadata.resource_version,
        "annotations": { SELECTED_NODE: node },
    }});
    Write::patch(claim_path(&key(claim)), body)
}

fn bind(pod: &Pod, node: &str) -> Write {
    let body = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": { "name": pod.name_any(), "uid": pod.metadata.uid },
        "target": { "kind": "Node", "name": node },
    });
    let path = format!("{}/binding", pod_path(&key(pod)));
    Write::new(Method::POST, path, body)
}

/// The patch that says why the pod waits, unless it is said already.
fn explain(pod: &Pod, waiting: &Waiting) -> Option<Write> {
    let message = waiting.to_string();
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let said = conditions.into_iter().flatten().find(|condition| condition.type_ == "PodScheduled");
    if said.and_then(|condition| condition.message.as_deref()) == Some(message.as_str()) {
        return None;
    }
    let body = json!({
        "metadata": { "uid": pod.metadata.uid },
        "status": { "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
        }]},
    });
    Some(Write::patch(format!("{}/status", pod_path(&key(pod))), body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actors::tests::{Case, apply, cases, expect};

    #[test]
    fn scheduler_decisions() {
        for Case { name, objects, about, then, .. } in cases("scheduler") {
            let mut world = World::default();
            for object in &objects {
                match object["kind"].as_str().unwrap() {
                    "Pod" => {
                        for (before, now) in apply(&mut world.pods, object) {
                            world.index(before.as_deref(), now.as_deref());
                        }
                    }
                    "Node" => drop(apply(&mut world.nodes, object)),
                    "PersistentVolumeClaim" => drop(apply(&mut world.claims, object)),
                    "PersistentVolume" => drop(apply(&mut world.volumes, object)),
                    "StorageClass" => drop(apply(&mut world.classes, object)),
                    other => panic!("{name}: {other}"),
                }
            }
            expect(&name, world.next_write(&("ns".to_owned(), about)).as_ref(), &then);
        }
    }
}
