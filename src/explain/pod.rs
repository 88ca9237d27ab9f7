//! A pod: each of its volumes, from the claim to the node.
//!
//! In: the pod's volumes as they were read. Out: the chain of links, one volume after the other.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::{
    actions::{care, safe},
    age, attachment, claim,
    links::Link,
    report::Verdict,
    running,
    subject::Subject,
    topology,
    view::{Missing, View, get},
    volume,
};
use crate::{
    attach_detach::{desired::state::WhyUnresolved, dry_run::volume_of},
    kube_api::{
        ids::{ClaimKey, NodeName, PodKey, VolumeName},
        kinds::{Node, PersistentVolume, PersistentVolumeClaim, Pod, PodVolumeSource},
    },
};

/// Reasons of claims that end when the pod has a node.
const WAITS_FOR_POD: [&str; 2] = ["WaitingForFirstConsumer", "WaitingForScheduling"];

/// Reasons of claims that keep no pod from running.
const NO_HINDRANCE: [&str; 2] = ["ModifyingAttributes", "Resizing"];

/// A pod that nobody has taken up or away for longer than that, in seconds, needs a person: the garbage collector looks
/// every 20 seconds.
const LONG: i64 = 5 * 60;

/// The chain of a pod.
pub(super) fn links(view: &View<'_>, key: &PodKey) -> Vec<Link> {
    let subject = Subject::Pod(key.clone());
    let Some(pod) = get::<Pod>(view, key).or_else(|| without_volumes(view, &subject)) else {
        return vec![match view.missing::<Pod>(key) {
            Missing::Absent => {
                Link::new(&subject, "NotFound", format!("pod {key} does not exist"), Verdict::NotFound)
            }
            Missing::Unreadable(error) => Link::new(
                &subject,
                "ObjectUnreadable",
                format!("pod {key} cannot be read: {error}"),
                Verdict::Blocked,
            ),
            Missing::Unseen(why) => Link::new(
                &subject,
                "Forbidden",
                format!("pod {key} could not be read: {why}"),
                Verdict::Forbidden,
            ),
        }];
    };
    let mut links = vec![of_pod(view, &subject, &pod)];
    for volume in &pod.spec.volumes {
        let name: &str = &volume.name;
        let why = view.attach_detach.unresolved.get(&(key.clone(), name.to_owned()));
        let unresolved = why.and_then(|why| unresolved(view, &subject, name, why));
        if let Some(blocked) = unresolved.clone().filter(|link| link.verdict == Verdict::Blocked) {
            links.push(blocked);
            continue;
        }
        let claim = match &volume.source {
            PodVolumeSource::PersistentVolumeClaim(source) => {
                Some(ClaimKey::new(key.namespace(), &source.claim_name))
            }
            PodVolumeSource::Ephemeral => {
                Some(ClaimKey::new(key.namespace(), &format!("{}-{name}", key.name())))
            }
            PodVolumeSource::InTree(_) => None,
        };
        let Some(claim) = claim else { continue };
        links.extend(of_claim(view, &claim, Some(&pod.spec.node_name)));
        links.extend(unresolved);
    }
    for link in links.iter_mut().filter(|link| NO_HINDRANCE.contains(&link.step.reason.as_str())) {
        link.verdict = Verdict::Healthy;
    }
    if !pod.spec.node_name.is_empty() {
        // It is still mounted: what it waits for is the pod's end.
        for link in links.iter_mut().filter(|link| is_protected(view, link)) {
            link.verdict = Verdict::Healthy;
        }
    }
    if pod.spec.volumes.is_empty() {
        let message = "it has no volume that has to be bound or attached";
        links.push(Link::new(&subject, "NotAttachable", message, Verdict::Healthy));
    }
    if links.iter().all(|link| link.verdict == Verdict::Healthy) {
        links.extend(running::link(view, &pod));
    }
    if pod.spec.node_name.is_empty() {
        // What waits for the pod to be scheduled is not what it waits for.
        for link in links.iter_mut().filter(|link| WAITS_FOR_POD.contains(&link.step.reason.as_str())) {
            link.verdict = Verdict::Healthy;
        }
    }
    links
}

/// A pod that is in no table, as it has no volume that could have to be attached.
fn without_volumes(view: &View<'_>, subject: &Subject) -> Option<Arc<Pod>> {
    let pod: Pod = Pod::deserialize(view.whole(subject)?).ok()?;
    pod.spec.volumes.is_empty().then(|| Arc::new(pod))
}

/// The links of a claim, its volume, and that volume on a node, or on all where it is.
pub(super) fn of_claim(view: &View<'_>, key: &ClaimKey, node: Option<&NodeName>) -> Vec<Link> {
    let mut links = vec![claim::link(view, key)];
    let bound = get::<PersistentVolumeClaim>(view, key).map(|claim| claim.spec.volume_name.clone());
    // A volume that is not there is what the claim itself waits for.
    let is_there = |name: &VolumeName| {
        !name.is_empty() && !matches!(view.missing::<PersistentVolume>(name), Missing::Absent)
    };
    if let Some(name) = bound.filter(is_there) {
        links.extend(of_volume(view, &name, node));
    }
    links
}

/// The links of a volume, and of it on a node, or on all where it is.
pub(super) fn of_volume(view: &View<'_>, name: &VolumeName, node: Option<&NodeName>) -> Vec<Link> {
    let mut links = vec![volume::link(view, name)];
    links.extend(node.and_then(|node| out_of_reach(view, name, node)));
    let Some(id) = volume_of(view.objects(), name) else {
        if get::<PersistentVolume>(view, name).is_some() && node.is_some() {
            links.push(attachment::not_attachable(name));
        }
        return links;
    };
    match node.filter(|node| !node.is_empty()) {
        Some(node) if view.on_node(&id, node).is_none() => {
            links.extend(attachment::not_required(view, &id, node));
            links.extend(attachment::unregistered(view, &id, node));
        }
        Some(node) => links.extend(attachment::links(view, &id, node)),
        None => {
            for (node, _) in view.nodes_of(&id) {
                links.extend(attachment::links(view, &id, node));
            }
        }
    }
    links
}

/// The volume's node affinity leaves the node out: its kubelet does not mount it there.
fn out_of_reach(view: &View<'_>, name: &VolumeName, node: &NodeName) -> Option<Link> {
    let subject = Subject::Volume(name.clone());
    let refusal = topology::refusal(view.whole(&subject)?, view.whole(&Subject::Node(node.clone()))?)?;
    let message = format!("the volume may be used only where {refusal}, which does not hold of node {node}");
    Some(
        Link::new(&subject, "NodeAffinityMismatch", message, Verdict::Blocked)
            .blocked_by(Subject::Node(node.clone()).json(), "is out of the volume's reach")
            .act(safe(
                "the pod has to be made anew on a node that the volume reaches: see what put it there (spec.nodeName, or \
                 labels of the node that have changed)",
                &["kubectl", "get", "nodes", "--show-labels"],
            )),
    )
}

fn of_pod(view: &View<'_>, subject: &Subject, pod: &Pod) -> Link {
    let whole = view.whole(subject);
    let text =
        |path: &str| whole.and_then(|pod| pod.pointer(path)).and_then(Value::as_str).unwrap_or_default();
    let since = pod.metadata.creation_timestamp;
    if pod.spec.node_name.is_empty() {
        let said = whole
            .and_then(|pod| pod.pointer("/status/conditions"))
            .and_then(Value::as_array)
            .and_then(|all| {
                all.iter().find(|one| one.get("type").and_then(Value::as_str) == Some("PodScheduled"))
            })
            .and_then(|scheduled| scheduled.get("message"))
            .and_then(Value::as_str)
            .map_or(String::new(), |message| format!(": {message}"));
        return Link::new(
            subject,
            "NoPodScheduled",
            format!("the scheduler has found no node for the pod{said}"),
            Verdict::Waiting,
        )
        .detail("no node")
        .next("Schedule", Some("the scheduler finds a node for it"))
        .act(safe(
            "see what the scheduler says, and whether one runs",
            &[
                "kubectl",
                "describe",
                "pod",
                pod.metadata.name.as_str(),
                "-n",
                pod.metadata.namespace.as_str(),
            ],
        ))
        .since(since);
    }
    let phase = format!("{:?}", pod.status.phase);
    let waiting = whole.and_then(running::waiting_container);
    let state = waiting.map_or(phase, str::to_owned);
    let ends = if text("/metadata/deletionTimestamp").is_empty() { "" } else { "  Terminating" };
    let message = format!("on node {}", pod.spec.node_name);
    Link::new(subject, "Scheduled", message, Verdict::Healthy)
        .detail(format!("on {}  {state}{ends}", pod.spec.node_name))
        .since(since)
}

/// Whether a link is that of a claim or volume which is being deleted and which kubelets mount all the same.
fn is_protected(view: &View<'_>, link: &Link) -> bool {
    let text = |field| link.step.object.get(field).and_then(Value::as_str).unwrap_or_default();
    if link.step.reason != claim::TERMINATING {
        return false;
    }
    match Subject::new(text("kind"), text("namespace"), text("name")) {
        Ok(Subject::Claim(key)) => {
            get::<PersistentVolumeClaim>(view, &key).is_some_and(|claim| claim::may_be_mounted(&claim))
        }
        Ok(Subject::Volume(name)) => {
            get::<PersistentVolume>(view, &name).is_some_and(|volume| volume::is_kept(&volume))
        }
        _ => false,
    }
}

/// A volume that cannot be attached yet; what the claim or volume says itself is left to it.
fn unresolved(view: &View<'_>, pod: &Subject, name: &str, why: &WhyUnresolved) -> Option<Link> {
    match why {
        WhyUnresolved::NodeNotManaged(node)
            if get::<Node>(view, node).is_none() && matches!(view.missing::<Node>(node), Missing::Absent) =>
        {
            Some(node_gone(view, pod, name, node))
        }
        WhyUnresolved::ClaimMissing(_)
        | WhyUnresolved::ClaimNotBound(_)
        | WhyUnresolved::VolumeMissing(_) => None,
        WhyUnresolved::NodeNotManaged(_) => {
            Some(Link::new(pod, why.code(), format!("volume {name}: {why}"), Verdict::Healthy))
        }
        WhyUnresolved::ClaimNotOwnedByPod(_)
        | WhyUnresolved::VolumeBoundElsewhere(_)
        | WhyUnresolved::MalformedSource(..)
        | WhyUnresolved::FlexVolumeUnsupported(_)
        | WhyUnresolved::Unreadable(..) => {
            Some(Link::new(pod, why.code(), format!("volume {name}: {why}"), Verdict::Blocked))
        }
    }
}

/// The node of a pod is not there. Since when, no object says; but a pod that no kubelet has ever taken up was never on it.
fn node_gone(view: &View<'_>, pod: &Subject, name: &str, node: &NodeName) -> Link {
    let whole = view.whole(pod);
    let made = whole.and_then(|pod| pod.pointer("/metadata/creationTimestamp")).and_then(Value::as_str);
    let made: Option<Timestamp> = made.and_then(|at| at.parse().ok());
    let was_taken_up = whole.is_none_or(|pod| pod.pointer("/status/startTime").is_some());
    let waits = made.map_or(0, |made| view.now().as_second() - made.as_second());
    let come_back =
        safe("or see whether the node is to come back under that name", &["kubectl", "get", "nodes"]);
    let gone = Subject::Node(node.clone()).json();
    if was_taken_up || waits <= LONG {
        let message = format!("volume {name}: node {node} does not exist, so nothing is attached there");
        return Link::new(pod, "NodeGone", message, Verdict::Waiting)
            .blocked_by(gone, "does not exist")
            .next("DeletePod", Some("the pod garbage collector finds the pod: within a minute as a rule"))
            .act(come_back);
    }
    let waits = age::short(waits);
    let message = format!(
        "volume {name}: node {node} does not exist, and no kubelet has taken the pod up for {waits}: no pod garbage \
         collector has removed it"
    );
    let namespace = pod.namespace().unwrap_or_default();
    Link::new(pod, "NodeGone", message, Verdict::Blocked)
        .blocked_by(gone, "does not exist")
        .act(safe(
            "see whether kube-controller-manager runs, with its pod-garbage-collector-controller",
            &["kubectl", "get", "leases", "-n", "kube-system", "kube-controller-manager"],
        ))
        .act(come_back)
        .act(care(
            "or, only if no machine of that name runs it, delete the pod: there is no kubelet that would end it",
            &["kubectl", "delete", "pod", pod.name(), "-n", namespace, "--grace-period=0", "--force"],
        ))
}
