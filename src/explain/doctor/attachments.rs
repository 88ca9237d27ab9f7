//! Volumes on nodes that wait, pods on nodes that do not start, and nodes that are silent, by what they wait for.
//!
//! In: what an explanation says of each. Out: groups by reason and by driver or node, as bad as the explanation says.

use std::collections::BTreeSet;

use serde_json::Value;

use super::groups::{Groups, Victim};
use crate::{
    attach_detach::{decide::verdict::Waiting, desired::volume_name::VolumeId, tell::state::State},
    explain::{
        age, attachment,
        exclusive::ATTACHED_TWICE,
        links::{Link, deciding},
        node, pod,
        subject::Subject,
        view::{View, get},
    },
    kube_api::{
        ids::{NodeName, PodKey},
        kinds::{Pod, PodPhase, VolumeAttachment},
    },
};

/// What keeps a pod from starting and is no matter of volumes.
const OF_OTHERS: [&str; 2] = ["PodNotStarted", "Forbidden"];

pub(super) fn look(view: &View<'_>, groups: &mut Groups<'_>, fine: &mut Vec<String>) {
    nodes(view, groups);
    // What holds a volume is told of those that wait for it.
    let node_volumes = &view.attach_detach.node_volumes;
    let conflicts = node_volumes.iter().filter_map(|((volume, _), it)| match &it.waiting {
        Some(Waiting::HeldByNode { conflict }) => Some((volume, &conflict.node)),
        _ => None,
    });
    let held: BTreeSet<(&VolumeId, &NodeName)> = conflicts.collect();
    let mut attached = 0_usize;
    for ((volume, node), node_volume) in node_volumes {
        if node_volume.waiting.is_none() && node_volume.write.is_none() {
            attached += usize::from(node_volume.state == State::Attached);
            continue;
        }
        let mut pods = view.users(volume, node).peekable();
        if pods.peek().is_none() && held.contains(&(volume, node)) {
            continue;
        }
        let links = attachment::links(view, volume, node);
        let Some(link) = deciding(&links) else { continue };
        let index = if link.step.reason == ATTACHED_TWICE {
            groups.find(ATTACHED_TWICE, volume.driver_and_handle().1)
        } else {
            let subject = match pods.peek() {
                Some(pod) => Subject::Pod((*pod).clone()),
                None => attachment::subject(volume, node),
            };
            let since = get::<VolumeAttachment>(view, &volume.attachment_name(node))
                .and_then(|it| it.metadata.deletion_timestamp.as_deref().copied())
                .or_else(|| attachment::first_user(view, volume, node).map(|(made, _)| made));
            let (driver, _) = volume.driver_and_handle();
            let driver = if driver.is_empty() { volume.plugin() } else { driver };
            let about = about(view, link).unwrap_or_else(|| driver.to_owned());
            groups.note_link(link, about, Victim { subject, unit: "volume", since, next_at: None })
        };
        for pod in pods {
            groups.suffers(index, pod);
        }
    }
    pods(view, groups);
    if attached > 0 {
        fine.push(format!("{} attached where they are wanted", age::counted(attached, "volume")));
    }
}

/// What a link waits for, in a word: a program, the node on which a pod is, an object.
fn about(view: &View<'_>, link: &Link) -> Option<String> {
    let object = &link.step.blocked_by.first()?.object;
    let text = |field| object.get(field).and_then(Value::as_str).unwrap_or_default();
    if text("kind") == "Pod" {
        let pod = get::<Pod>(view, &PodKey::new(text("namespace"), text("name")))?;
        return Some(pod.spec.node_name.to_string());
    }
    Some(text("name").to_owned())
}

/// Nodes that hold volumes, or are to, and are silent, or keep pods waiting.
fn nodes(view: &View<'_>, groups: &mut Groups<'_>) {
    for (name, object) in view.objects().nodes.snapshot() {
        let link = node::own(view, &name, &object);
        if link.step.reason != "NotReady" || view.has_volumes(&name) {
            let victim = Victim {
                subject: Subject::Node(name.clone()),
                unit: "node",
                since: link.step.since,
                next_at: None,
            };
            groups.note_link(&link, name.to_string(), victim);
        }
    }
}

/// Pods on nodes that have not started, of which nothing has been told.
fn pods(view: &View<'_>, groups: &mut Groups<'_>) {
    for (key, pod) in view.objects().pods.snapshot() {
        let waits = pod.status.phase == PodPhase::Pending && !pod.metadata.is_terminating();
        if !waits || pod.spec.node_name.is_empty() || groups.has_told_of(&key) {
            continue;
        }
        let links = pod::links(view, &key);
        let Some(link) = deciding(&links).filter(|link| !OF_OTHERS.contains(&link.step.reason.as_str()))
        else {
            continue;
        };
        let object = &link.step.object;
        let text = |field| object.get(field).and_then(Value::as_str).unwrap_or_default();
        let of_object = || match text("kind") {
            "Node" => text("name").to_owned(),
            kind => Subject::new(kind, text("namespace"), text("name"))
                .map(|it| it.to_string())
                .unwrap_or_default(),
        };
        let about = about(view, link).unwrap_or_else(of_object);
        let since = pod.metadata.creation_timestamp;
        let victim = Victim { subject: Subject::Pod(key.clone()), unit: "pod", since, next_at: None };
        let index = groups.note_link(link, about, victim);
        groups.suffers(index, &key);
    }
}
