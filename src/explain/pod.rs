//! A pod: each of its volumes, from the claim to the node.
//!
//! In: the pod's volumes as they were read. Out: the chain of links, one volume after the other.

use std::{collections::BTreeSet, sync::Arc};

use apiserver::{
    ids::{ClaimKey, NodeName, PodKey, VolumeName},
    kinds::{
        ClaimRef, InTreeSource, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, PodPhase,
        PodVolumeSource, VolumeAttachment,
    },
};
use serde::Deserialize;
use serde_json::Value;

use super::{
    attachment::{self, is_exclusive},
    claim, ephemeral,
    exclusive::ATTACHED_TWICE,
    foreign,
    links::{Link, missing, set_well},
    read::requests::Read,
    report::Verdict,
    running, subject,
    table::Facts,
    topology,
    view::{Missing, View, get},
    volume,
};
use crate::attach_detach::{
    dry_run::volume_of,
    state::desired::{
        WhyUnresolved,
        volume_source::{Storage, of_inline_volume},
    },
};

/// Reasons of claims that end when the pod has a node.
const WAITS_FOR_POD: [&str; 2] = ["WaitingForFirstConsumer", "WaitingForScheduling"];

/// Reasons of claims that keep no pod from running.
const NO_HINDRANCE: [&str; 4] = ["ExpansionUnsupported", "ModifyingAttributes", "ResizerNotSeen", "Resizing"];

/// The chain of a pod.
pub(super) fn links(view: &View<'_>, key: &PodKey) -> Vec<Link> {
    let subject = ObjectRef::Pod(key.clone());
    let Some(pod) = view.read::<Pod>(key).or_else(|| without_volumes(view, &subject)) else {
        return vec![missing::<Pod>(view, &subject, key, "NotFound")];
    };
    if !pod.spec.node_name.is_empty() {
        view.node(&pod.spec.node_name);
    }
    let mut links = vec![of_pod(view, &subject, &pod)];
    for volume in &pod.spec.volumes {
        let name: &str = &volume.name;
        if let Some(link) = ephemeral::link(view, &pod, volume) {
            links.push(link);
            continue;
        }
        let why = view.attach_detach().unresolved.get(&(key.clone(), name.to_owned()));
        let unresolved = why.and_then(|why| unresolved(view, &subject, name, why));
        if let Some(blocked) = unresolved.clone().filter(|link| link.verdict == Verdict::Blocked) {
            links.push(blocked);
            continue;
        }
        if let PodVolumeSource::InTree(source) = &volume.source {
            links.extend(inline(view, (&subject, &pod), name, source));
        }
        let Some(claim) = pod.claim_of(volume) else { continue };
        links.extend(of_claim(view, &claim, Some(&pod.spec.node_name)));
        links.extend(unresolved);
    }
    set_well(&mut links, |link| NO_HINDRANCE.contains(&link.step.reason.as_str()));
    if !pod.spec.node_name.is_empty() {
        // It is still mounted: what it waits for is the pod's end.
        set_well(&mut links, |link| is_protected(view, link));
    }
    links.extend(without_driver(view, &subject, &pod));
    if pod.spec.volumes.is_empty() {
        links.push(Link::told_of(&subject, "NotAttachable", "pod", &[]));
    }
    if links.iter().all(|link| link.verdict == Verdict::Healthy) {
        links.extend(running::link(view, &pod));
    }
    if pod.spec.node_name.is_empty() {
        // What waits for the pod to be scheduled is not what it waits for.
        set_well(&mut links, |link| WAITS_FOR_POD.contains(&link.step.reason.as_str()));
    }
    links
}

/// Drivers of volumes that live and end with the pod, which its kubelet does not know. Nothing is attached for them.
fn without_driver(view: &View<'_>, subject: &ObjectRef, pod: &Pod) -> Vec<Link> {
    let volumes = view.whole(subject).and_then(|pod| pod.pointer("/spec/volumes")?.as_array());
    let drivers = volumes.into_iter().flatten().filter_map(|volume| volume.pointer("/csi/driver")?.as_str());
    drivers.filter_map(|driver| attachment::unregistered_driver(view, driver, &pod.spec.node_name)).collect()
}

/// The links of a volume that a pod names without a claim: as its CSI driver attaches it, if one has taken it over.
fn inline(
    view: &View<'_>,
    (subject, pod): (&ObjectRef, &Pod),
    name: &str,
    source: &InTreeSource,
) -> Vec<Link> {
    let (node, storage) = (&pod.spec.node_name, of_inline_volume(name, &pod.metadata.namespace, source));
    if let Ok(Storage::Csi(volume)) = &storage
        && !node.is_empty()
    {
        let nodes = BTreeSet::from([node.clone()]);
        attachment::look(view, &volume.id, &nodes, Some(&pod.metadata.namespace));
    }
    match storage {
        Ok(Storage::Csi(_)) if node.is_empty() => Vec::new(),
        Ok(Storage::Csi(volume)) if view.on_node(&volume.id, node).is_none() => {
            let unregistered = attachment::unregistered(view, &volume.id, node);
            attachment::not_required(view, &volume.id, node).into_iter().chain(unregistered).collect()
        }
        Ok(Storage::Csi(volume)) => attachment::links(view, &volume.id, node),
        Ok(Storage::NoOp(volume, _)) if view.on_node(&volume, node).is_some() => {
            attachment::links(view, &volume, node)
        }
        Ok(Storage::NoOp(..) | Storage::NotAttachable) => {
            vec![Link::told_of(subject, "NotAttachable", "inline", &[("volume", &name)])]
        }
        // The pod's own reason says it.
        Ok(Storage::FlexVolume(_)) | Err(_) => Vec::new(),
    }
}

/// A pod that is in no table, as it has no volume that could have to be attached.
fn without_volumes(view: &View<'_>, subject: &ObjectRef) -> Option<Arc<Pod>> {
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
        |link: &Link| ["Available", "ClaimBindsNext", "Reserved"].contains(&link.step.reason.as_str());
    set_well(&mut links, |link| is_binding && is_free(link));
    links
}

/// The links of a volume, and of it on a node, or on all where it is.
pub(super) fn of_volume(view: &View<'_>, name: &VolumeName, node: Option<&NodeName>) -> Vec<Link> {
    let mut links = vec![volume::link(view, name)];
    let on = node.filter(|node| !node.is_empty());
    links.extend(on.and_then(|node| out_of_reach(view, name, node)));
    // Of a pod without a node, who has its volume is not asked.
    let volume = get::<PersistentVolume>(view, name).filter(|_| view.is_noted());
    if let Some(volume) = volume.filter(|_| node.is_none() == on.is_none()) {
        look(view, &volume, on);
    }
    let Some(id) = volume_of(view.objects(), name) else {
        if get::<PersistentVolume>(view, name).is_some() && node.is_some() {
            links.push(Link::told(&ObjectRef::Volume(name.clone()), "NotAttachable", &[]));
        }
        return links;
    };
    match on {
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
            } else if let Some(twice) = view.twice().get(&id) {
                links.push(attachment::on_two_nodes(view, twice));
            }
            // Of a pod without a node, who has its volume elsewhere is not asked.
            if node.is_none() {
                links.extend(foreign::foreign_of(view, &id));
            }
        }
    }
    links
}

/// Looks at where a volume is: on this node and on those of pods that use its claim, or on the latter alone.
fn look(view: &View<'_>, volume: &PersistentVolume, node: Option<&NodeName>) {
    let claim = volume.spec.claim_ref.as_ref().map(ClaimRef::key);
    let mut nodes = claim.as_ref().map(|claim| view.nodes_using(claim)).unwrap_or_default();
    if let Some(node) = node {
        if let Some(claim) = claim.filter(|_| is_exclusive(volume) || !nodes.contains(node)) {
            // It may be on another, where a pod has it, too; or other pods have it here.
            view.want(|| Read::pods_in(claim.namespace()));
        }
        nodes.insert(node.clone());
    }
    attachment::look_at(view, volume, &nodes);
}

/// The volume's node affinity leaves the node out: its kubelet does not mount it there.
fn out_of_reach(view: &View<'_>, name: &VolumeName, node: &NodeName) -> Option<Link> {
    let subject = ObjectRef::Volume(name.clone());
    let refusal = topology::refusal(view.whole(&subject)?, view.whole(&ObjectRef::Node(node.clone()))?)?;
    Some(Link::told(&subject, "NodeAffinityMismatch", &[("told", &refusal), ("node", node)]))
}

/// The gates for which the scheduler does not look at a pod yet.
fn gates(whole: Option<&Value>) -> String {
    let gates = whole.and_then(|pod| pod.pointer("/spec/schedulingGates")?.as_array());
    let names = gates.into_iter().flatten().filter_map(|gate| gate.get("name")?.as_str());
    names.collect::<Vec<_>>().join(", ")
}

/// What the scheduler says of a pod for which it has found no node, as the end of a sentence.
fn unscheduled(whole: Option<&Value>) -> String {
    let all = whole.and_then(|pod| pod.pointer("/status/conditions")?.as_array());
    let mut all = all.into_iter().flatten();
    let scheduled = all.find(|one| one.get("type").and_then(Value::as_str) == Some("PodScheduled"));
    let message = scheduled.and_then(|it| it.get("message")?.as_str());
    message.map_or(String::new(), |message| format!(": {message}"))
}

fn of_pod(view: &View<'_>, subject: &ObjectRef, pod: &Pod) -> Link {
    let whole = view.whole(subject);
    let node = &pod.spec.node_name;
    let (case, told, detail) = match gates(whole) {
        gates if node.is_empty() && !gates.is_empty() => {
            ("NoPodScheduled gated", gates, "no node".to_owned())
        }
        _ if node.is_empty() => ("NoPodScheduled", unscheduled(whole), "no node".to_owned()),
        _ => {
            let phase = format!("{:?}", pod.status.phase);
            let waiting = whole.and_then(running::waiting_container).filter(|_| !pod.is_terminated());
            let state = waiting.map_or_else(|| phase.clone(), str::to_owned);
            let is_ending = pod.metadata.is_terminating() && !pod.is_terminated();
            let ends = if is_ending { "  Terminating" } else { "" };
            let case = if pod.is_terminated() { "PodEnded" } else { "Scheduled" };
            (case, phase, format!("on {node}  {state}{ends}"))
        }
    };
    let link = Link::told(subject, case, &[("node", node), ("told", &told)]);
    link.detail(detail).since(pod.metadata.creation_timestamp)
}

/// Whether a link is that of a claim or volume which is being deleted and which kubelets mount all the same.
fn is_protected(view: &View<'_>, link: &Link) -> bool {
    if link.step.reason != claim::TERMINATING {
        return false;
    }
    match subject::of(&link.step.object) {
        // That the data goes when the pods end, is not found out too early.
        Some(ObjectRef::Claim(key)) => get::<PersistentVolumeClaim>(view, &key).is_some_and(|claim| {
            claim::may_be_mounted(&claim)
                && (link.verdict != Verdict::Blocked || !claim::is_doomed(view, &claim))
        }),
        Some(ObjectRef::Volume(name)) => {
            get::<PersistentVolume>(view, &name).is_some_and(|volume| volume::is_kept(&volume))
        }
        _ => false,
    }
}

/// A volume that cannot be attached yet; what the claim or volume says itself is left to it.
fn unresolved(view: &View<'_>, pod: &ObjectRef, name: &str, why: &WhyUnresolved) -> Option<Link> {
    let other = why.object().map(|object| object.to_string()).unwrap_or_default();
    // Its name, behind its kind.
    let other = other.split_once('/').map(|(_, name)| name).unwrap_or_default();
    let facts: Facts<'_> = &[("volume", &name), ("told", why), ("other", &other), ("node", &other)];
    match why {
        // Whether it is gone, only a list of nodes or a read of this one tells.
        WhyUnresolved::NodeGone(node) => {
            view.is_gone(node).then(|| Link::told_of(pod, "NodeGone", "pod", facts))
        }
        WhyUnresolved::ClaimMissing(_)
        | WhyUnresolved::ClaimNotBound(_)
        | WhyUnresolved::VolumeMissing(_) => None,
        WhyUnresolved::NodeNotManaged(_) => {
            let ObjectRef::Pod(key) = pod else { return None };
            let is_up = get::<Pod>(view, key).is_none_or(|pod| pod.status.phase != PodPhase::Pending);
            Some(Link::told_of(pod, <&str>::from(why), if is_up { "pod" } else { "pending pod" }, facts))
        }
        _ => Some(Link::told_of(pod, <&str>::from(why), "pod", facts)),
    }
}
