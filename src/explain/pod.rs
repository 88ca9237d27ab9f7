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
    exclusive::ATTACHED_TWICE,
    foreign,
    links::Link,
    report::{Action, Verdict},
    running,
    subject::Subject,
    topology,
    view::{Missing, View, get},
    volume,
};
use crate::{
    attach_detach::{
        desired::{
            state::WhyUnresolved,
            volume_source::{Sharing, Storage, of_inline_volume},
        },
        dry_run::volume_of,
    },
    kube_api::{
        ids::{ClaimKey, NodeName, PodKey, VolumeName},
        kinds::{
            InTreeSource, Node, PersistentVolume, PersistentVolumeClaim, Pod, PodPhase, PodVolumeSource,
            VolumeAttachment,
        },
    },
};

/// Reasons of claims that end when the pod has a node.
const WAITS_FOR_POD: [&str; 2] = ["WaitingForFirstConsumer", "WaitingForScheduling"];

/// Reasons of claims that keep no pod from running.
const NO_HINDRANCE: [&str; 2] = ["ModifyingAttributes", "Resizing"];

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
            PodVolumeSource::InTree(source) => {
                links.extend(inline(view, (&subject, &pod), name, source));
                None
            }
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
    links.extend(without_driver(view, &subject, &pod));
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

/// Drivers of volumes that live and end with the pod, which its kubelet does not know. Nothing is attached for them.
fn without_driver(view: &View<'_>, subject: &Subject, pod: &Pod) -> Vec<Link> {
    let volumes = view.whole(subject).and_then(|pod| pod.pointer("/spec/volumes")?.as_array());
    let drivers = volumes.into_iter().flatten().filter_map(|volume| volume.pointer("/csi/driver")?.as_str());
    drivers.filter_map(|driver| attachment::unregistered_driver(view, driver, &pod.spec.node_name)).collect()
}

/// The links of a volume that a pod names without a claim: as its CSI driver attaches it, if one has taken it over.
fn inline(view: &View<'_>, (subject, pod): (&Subject, &Pod), name: &str, source: &InTreeSource) -> Vec<Link> {
    let node = &pod.spec.node_name;
    match of_inline_volume(name, &pod.metadata.namespace, source) {
        Ok(Storage::Csi(_)) if node.is_empty() => Vec::new(),
        Ok(Storage::Csi(volume)) if view.on_node(&volume.id, node).is_none() => {
            let mut links: Vec<Link> = attachment::not_required(view, &volume.id, node).into_iter().collect();
            links.extend(attachment::unregistered(view, &volume.id, node));
            links
        }
        Ok(Storage::Csi(volume)) => attachment::links(view, &volume.id, node),
        Ok(Storage::NoOp(volume, _)) if view.on_node(&volume, node).is_some() => {
            attachment::links(view, &volume, node)
        }
        Ok(Storage::NoOp(..) | Storage::NotAttachable) => {
            let message =
                format!("volume {name}: its kubelet mounts it at once, with no program that attaches it");
            vec![Link::new(subject, "NotAttachable", message, Verdict::Healthy)]
        }
        // The pod's own reason says it.
        Ok(Storage::FlexVolume(_)) | Err(_) => Vec::new(),
    }
}

/// A pod that is in no table, as it has no volume that could have to be attached.
fn without_volumes(view: &View<'_>, subject: &Subject) -> Option<Arc<Pod>> {
    let pod: Pod = Pod::deserialize(view.whole(subject)?).ok()?;
    pod.spec.volumes.is_empty().then(|| Arc::new(pod))
}

/// The links of a claim, its volume, and that volume on a node, or on all where it is.
pub(super) fn of_claim(view: &View<'_>, key: &ClaimKey, node: Option<&NodeName>) -> Vec<Link> {
    let mut links = vec![claim::link(view, key)];
    let is_binding = matches!(links.first(), Some(link) if link.step.reason == "Binding");
    let bound = get::<PersistentVolumeClaim>(view, key).map(|claim| claim.spec.volume_name.clone());
    // A volume that is not there is what the claim itself waits for.
    let is_there = |name: &VolumeName| {
        !name.is_empty() && !matches!(view.missing::<PersistentVolume>(name), Missing::Absent)
    };
    if let Some(name) = bound.filter(is_there) {
        links.extend(of_volume(view, &name, node));
    }
    // What is left to be written of the volume belongs to the claim's bind.
    let is_free =
        |link: &&mut Link| ["Available", "ClaimBindsNext", "Reserved"].contains(&link.step.reason.as_str());
    for link in links.iter_mut().filter(|link| is_binding && is_free(link)) {
        link.verdict = Verdict::Healthy;
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
            for (node, node_volume) in view.nodes_of(&id) {
                let is_there = get::<VolumeAttachment>(view, &id.attachment_name(node)).is_some();
                // Where an attachment that the controller did not make is, and nothing else.
                let is_idle = node_volume.waiting.is_none() && node_volume.write.is_none();
                if is_there || !is_idle || view.users(&id, node).next().is_some() {
                    links.extend(attachment::links(view, &id, node));
                }
            }
            let is_told = |link: &Link| link.step.reason == ATTACHED_TWICE;
            if let Some(first) = links.iter().position(is_told) {
                let told = links.swap_remove(first);
                links.retain(|link| !is_told(link));
                links.push(told);
            }
            // Of a pod without a node, who has its volume elsewhere is not asked.
            if node.is_none() {
                let sharing = get::<PersistentVolume>(view, name)
                    .map(|volume| Sharing::of(volume.spec.access_modes.iter().map(|mode| &**mode)));
                let foreign = foreign::foreign_of(view, &id, sharing == Some(Sharing::Exclusive));
                // What puts it on a second node, and may be deleted.
                if foreign.iter().any(|link| link.verdict != Verdict::Healthy) {
                    links.retain(|link| !is_told(link));
                }
                links.extend(foreign);
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

/// A pod that the scheduler does not look at yet.
fn gated(subject: &Subject, whole: Option<&Value>) -> Option<Link> {
    let gates = whole?.pointer("/spec/schedulingGates")?.as_array()?;
    let gates: Vec<&str> = gates.iter().filter_map(|gate| gate.get("name")?.as_str()).collect();
    if gates.is_empty() {
        return None;
    }
    let gates = gates.join(", ");
    let message =
        format!("the scheduler does not look at the pod as long as it has scheduling gates: {gates}");
    let namespace = subject.namespace().unwrap_or_default();
    Some(
        Link::new(subject, "NoPodScheduled", message, Verdict::Waiting)
            .next("Schedule", Some("the program that set the gates takes them off"))
            .act(safe(
                "if it lasts: find the program that the gates are named after, and see what it waits for",
                &["kubectl", "get", "pod", subject.name(), "-n", namespace, "-o", "yaml"],
            )),
    )
}

fn of_pod(view: &View<'_>, subject: &Subject, pod: &Pod) -> Link {
    let whole = view.whole(subject);
    let text =
        |path: &str| whole.and_then(|pod| pod.pointer(path)).and_then(Value::as_str).unwrap_or_default();
    let since = pod.metadata.creation_timestamp;
    if pod.spec.node_name.is_empty()
        && let Some(link) = gated(subject, whole)
    {
        return link.detail("no node").since(since);
    }
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
    if pod.is_terminated() {
        let message = format!("it has ended ({phase}), and its volumes leave node {}", pod.spec.node_name);
        return Link::new(subject, "PodEnded", message, Verdict::Healthy)
            .detail(format!("on {}  {phase}", pod.spec.node_name))
            .since(since);
    }
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
        // That the data goes when the pods end, is not found out too early.
        Ok(Subject::Claim(key)) => get::<PersistentVolumeClaim>(view, &key).is_some_and(|claim| {
            claim::may_be_mounted(&claim)
                && (link.verdict != Verdict::Blocked || !claim::is_doomed(view, &claim))
        }),
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
        WhyUnresolved::NodeNotManaged(node) => {
            let link = |verdict| Link::new(pod, why.code(), format!("volume {name}: {why}"), verdict);
            let Subject::Pod(key) = pod else { return Some(link(Verdict::Healthy)) };
            let is_up = get::<Pod>(view, key).is_none_or(|pod| pod.status.phase != PodPhase::Pending);
            if is_up {
                return Some(link(Verdict::Healthy));
            }
            let blocker = Subject::Node(node.clone()).json();
            Some(
                link(Verdict::Blocked)
                    .blocked_by(
                        blocker,
                        "attaches volumes itself, which it cannot do for those of CSI drivers",
                    )
                    .next("Attach", Some("its kubelet leaves attaching to the controller"))
                    .act(leave_attaching(node)),
            )
        }
        WhyUnresolved::ClaimNotOwnedByPod(_)
        | WhyUnresolved::VolumeBoundElsewhere(_)
        | WhyUnresolved::MalformedSource(..)
        | WhyUnresolved::FlexVolumeUnsupported(_)
        | WhyUnresolved::Unreadable(..) => {
            let link = Link::new(pod, why.code(), format!("volume {name}: {why}"), Verdict::Blocked);
            Some(unresolved_actions(pod, why).into_iter().fold(link, Link::act))
        }
    }
}

/// A kubelet attaches by itself, and is not to.
pub(super) fn leave_attaching(node: &NodeName) -> Action {
    let annotation =
        r"jsonpath={.metadata.annotations.volumes\.kubernetes\.io/controller-managed-attach-detach}";
    let text = "set enableControllerAttachDetach: true (the default) in the configuration of that kubelet, and restart it: \
                the annotation has to be \"true\"";
    safe(text, &["kubectl", "get", "node", node.as_str(), "-o", annotation])
}

/// What may be done about a volume that leads nowhere.
fn unresolved_actions(pod: &Subject, why: &WhyUnresolved) -> Vec<Action> {
    let namespace = pod.namespace().unwrap_or_default();
    let template = || {
        let see = ["kubectl", "get", "pod", pod.name(), "-n", namespace, "-o", "yaml"];
        safe("mend the volume in the template that the pod was made from, and make the pod anew", &see)
    };
    match why {
        WhyUnresolved::ClaimNotOwnedByPod(claim) => vec![
            safe(
                "the pod makes a claim of its own under that name as soon as the other is gone: see whose it is",
                &["kubectl", "describe", "pvc", claim.name(), "-n", claim.namespace()],
            ),
            care(
                "only if nothing needs it: delete the claim, with its data if the policy of its volume is Delete",
                &["kubectl", "delete", "pvc", claim.name(), "-n", claim.namespace()],
            ),
        ],
        WhyUnresolved::VolumeBoundElsewhere(volume) => vec![safe(
            "see whose the volume is, and what became of the claim",
            &["mooring", "explain", "pv", volume.as_str()],
        )],
        WhyUnresolved::MalformedSource(..) | WhyUnresolved::FlexVolumeUnsupported(_) => vec![template()],
        _ => Vec::new(),
    }
}

/// The node of a pod is not there. Since when, no object says; but a pod that no kubelet has ever taken up was never on it.
fn node_gone(view: &View<'_>, pod: &Subject, name: &str, node: &NodeName) -> Link {
    let whole = view.whole(pod);
    let made = whole.and_then(|pod| pod.pointer("/metadata/creationTimestamp")).and_then(Value::as_str);
    let made: Option<Timestamp> = made.and_then(|at| at.parse().ok());
    let was_taken_up = whole.is_none_or(|pod| pod.pointer("/status/startTime").is_some());
    let come_back =
        safe("or see whether the node is to come back under that name", &["kubectl", "get", "nodes"]);
    let gone = Subject::Node(node.clone()).json();
    // The garbage collector looks every 20 seconds.
    let Some(made) = made.filter(|made| !was_taken_up && age::is_long(Some(*made), view.now())) else {
        let message = format!("volume {name}: node {node} does not exist, so nothing is attached there");
        return Link::new(pod, "NodeGone", message, Verdict::Waiting)
            .blocked_by(gone, "does not exist")
            .next("DeletePod", Some("the pod garbage collector finds the pod: within a minute as a rule"))
            .act(come_back);
    };
    let waits = age::between(made, view.now());
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
