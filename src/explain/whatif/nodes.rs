//! What happens to the volumes of a node that is declared off or deleted.
//!
//! In: a snapshot and the node. Out: detaches by force, now and when the pods are gone; when time would force; pods that
//! are removed, and those that may still write.

use std::{collections::BTreeSet, sync::Arc};

use apiserver::{
    ids::{NodeName, PodKey},
    kinds::{Narrow, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, Taint, VolumeAttachment},
};

use super::story::{Story, When};
use crate::{
    attach_detach::{
        decide::{force::Unforced, verdict::Waiting},
        dry_run::Outlook,
        state::{actual::AttachmentCall, desired::volume_name::VolumeId},
    },
    explain::{
        age,
        report::{Risk, Verdict},
        snapshot::Snapshot,
        view::runs_on,
    },
};

/// KCM: pkg/util/taints, `TaintNodeOutOfService`.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Pods without such volumes are in no table.
const UNCOUNTED: &str =
    "only pods with volumes that may be attached are counted; the same happens to the others";

pub(super) fn taint(snapshot: &Snapshot, name: &NodeName) -> Result<Story, Box<Story>> {
    let node = node(snapshot, name)?;
    let mut story = Story::default();
    let before = snapshot.ask_attach_detach();
    let mut copy = snapshot.fork();
    copy.change::<Node>(name, |node| node.spec.taints.push(Taint { key: OUT_OF_SERVICE.into() }));
    let now = copy.ask_attach_detach();
    let forced_now = forced(&before, &now, name);
    for volume in &forced_now {
        story.tell(When::Now, risk(&node), "ForceDetach", handle(volume), "not wanted by any pod here");
    }
    let pods = pods(snapshot, name);
    for (pod, is_ending) in &pods {
        if node.kubelet_speaks() {
            let text = "the kubelet is alive: while the pod ends its volumes may be taken away under it";
            story.tell(When::Now, Risk::Danger, "PodStillRuns", pod, text);
        } else {
            let text =
                if *is_ending { "removed without asking its kubelet" } else { "evicted, then removed" };
            story.tell(When::Then, Risk::Care, "PodRemoved", pod, text);
        }
        copy.remove::<Pod>(pod);
    }
    let then = copy.ask_attach_detach();
    let forced_then = forced(&before, &then, name).difference(&forced_now).cloned().collect::<BTreeSet<_>>();
    for volume in &forced_then {
        story.tell(When::Then, risk(&node), "ForceDetach", handle(volume), "as soon as its pods are removed");
    }
    freed(&mut story, &before, name, forced_now.union(&forced_then));
    story.summary = taint_summary(name, forced_now.len(), forced_then.len(), pods.len());
    if let Some(alive) = alive(&node) {
        story.summary = format!("{}; {alive}: pods may still write", story.summary);
    } else {
        story.assume("the machine is off: no object shows whether it is");
    }
    story.assume(UNCOUNTED);
    story.assume("taint eviction removes pods that do not tolerate the taint (effect NoExecute)");
    story.assume(
        "pod garbage collection removes ending pods of a node that is not Ready, without its kubelet",
    );
    Ok(story)
}

/// The node, unless it is not there, or what is on it is not known: nothing is concluded from that (S42).
fn node(snapshot: &Snapshot, name: &NodeName) -> Result<Arc<Node>, Box<Story>> {
    let node = snapshot.objects.nodes.get(name);
    let node = node.ok_or_else(|| Story::missing(snapshot, &ObjectRef::Node(name.clone())))?;
    let lists = [
        (Pod::PLURAL, snapshot.is_whole::<Pod>()),
        (PersistentVolumeClaim::PLURAL, snapshot.is_whole::<PersistentVolumeClaim>()),
        (PersistentVolume::PLURAL, snapshot.is_whole::<PersistentVolume>()),
        (VolumeAttachment::PLURAL, snapshot.is_whole::<VolumeAttachment>()),
    ];
    match lists.into_iter().find(|(_, is_whole)| !is_whole) {
        Some((plural, _)) => {
            let summary = format!("what follows is not known: not all {plural} could be read");
            Err(Box::new(Story { summary, verdict: Some(Verdict::Forbidden), ..Story::default() }))
        }
        None => Ok(node),
    }
}

fn taint_summary(name: &NodeName, forced_now: usize, then: usize, pods: usize) -> String {
    let volumes = |count| if count == 0 { "no volume".to_owned() } else { age::counted(count, "volume") };
    let at_once = format!("{} detached by force at once", volumes(forced_now));
    if pods == 0 {
        return format!("{at_once}; {name} has no pods");
    }
    let then = match (forced_now, then) {
        (0, then) => volumes(then),
        (_, 0) => "no more".to_owned(),
        (_, then) => format!("{then} more"),
    };
    let are = if pods == 1 { "is" } else { "are" };
    format!("{at_once}, {then} when the {} of {name} {are} removed", age::counted(pods, "pod"))
}

fn risk(node: &Node) -> Risk {
    if node.kubelet_speaks() { Risk::Danger } else { Risk::Care }
}

/// What shows that the machine of a node runs.
fn alive(node: &Node) -> Option<&'static str> {
    match (node.is_ready(), node.kubelet_speaks()) {
        (true, _) => Some("the node is READY"),
        (false, true) => Some("its kubelet REPORTS that it is not well, so that its machine runs"),
        (false, false) => None,
    }
}

pub(super) fn delete(snapshot: &Snapshot, name: &NodeName) -> Result<Story, Box<Story>> {
    let node = node(snapshot, name)?;
    let mut story = Story::default();
    let before = snapshot.ask_attach_detach();
    let mut copy = snapshot.fork();
    copy.remove::<Node>(name);
    let pods = pods(snapshot, name);
    for (pod, _) in &pods {
        let (risk, text) = if node.kubelet_speaks() {
            (Risk::Danger, "its object goes, and its containers may run on: the machine is alive")
        } else {
            (Risk::Care, "removed, as its node is gone")
        };
        story.tell(When::Then, risk, "PodRemoved", pod, text);
        copy.remove::<Pod>(pod);
    }
    let then = copy.ask_attach_detach();
    let late = forced_late(&mut story, snapshot, (&before, &then), name, risk(&node), |_| true);
    // kubelet: pkg/kubelet/kubelet_node_status.go, registerWithAPIServer: once in its life.
    let alive = alive(&node).map_or(String::new(), |alive| {
        format!("; {alive}: the machine runs on, and recreates the object only when its kubelet is restarted")
    });
    story.summary = format!(
        "{} removed, {} detached by force when time is up{alive}",
        age::counted(pods.len(), "pod"),
        age::counted(late.len(), "volume")
    );
    story.assume(UNCOUNTED);
    story.assume("pod garbage collection removes the pods of a node that is gone, after some forty seconds");
    story.assume("the time for it begins when the node is gone and no pod wants the volume there");
    Ok(story)
}

/// Volumes that time takes from a node that is gone by then, and who gets them.
pub(super) fn forced_late(
    story: &mut Story,
    snapshot: &Snapshot,
    (before, then): (&Outlook, &Outlook),
    name: &NodeName,
    risk: Risk,
    is_meant: impl Fn(&VolumeId) -> bool,
) -> BTreeSet<VolumeId> {
    let mut late = BTreeSet::new();
    let there = then.node_volumes.iter().filter(|((volume, node), _)| node == name && is_meant(volume));
    for ((volume, _), node_volume) in there {
        let waiting = node_volume.waiting.as_ref();
        if let Some(at) = waiting.and_then(Waiting::forced_at) {
            let text = "by force, unless the node comes back";
            story.tell(When::Later, risk, "ForceDetach", handle(volume), text);
            if let Some(effect) = story.effects.last_mut() {
                effect.at = Some(at);
            }
            late.insert(volume.clone());
        } else if let Some(Waiting::DetachWaitingForNode { unforced: Unforced::SwitchedOff }) = waiting {
            let text = "stays attached: time may not force a detach";
            story.tell(When::Later, Risk::Care, "StaysAttached", handle(volume), text);
        }
    }
    freed(story, before, name, late.iter());
    if !late.is_empty() {
        assume_flags(story, snapshot);
    }
    late
}

/// What is assumed where the flags of who rules are not to be seen.
pub(super) fn assume_flags(story: &mut Story, snapshot: &Snapshot) {
    if snapshot.ruler_flags().is_none() {
        story.assume(
            "the controller that rules runs without --disable-force-detach-on-timeout: its flags were not seen",
        );
    }
}

/// Volumes that would be taken from a node, and would not be without the change. The first step is to take them off the
/// node's status; where the dry run ends, as nothing answers.
fn forced(before: &Outlook, after: &Outlook, name: &NodeName) -> BTreeSet<VolumeId> {
    let is_taken = |outlook: &Outlook, key: &(VolumeId, NodeName)| {
        outlook.node_volumes.get(key).is_some_and(|node_volume| {
            node_volume.forced.is_some()
                || node_volume.write == Some(AttachmentCall::Delete)
                || matches!(
                    node_volume.waiting,
                    Some(Waiting::DetachWaitingForUnpublish | Waiting::DetachWaitingForSettlement)
                )
        })
    };
    let changed = after.node_volumes.keys().filter(|key| key.1 == *name);
    let taken = changed.filter(|key| is_taken(after, key) && !is_taken(before, key));
    taken.map(|(volume, _)| volume.clone()).collect()
}

/// Pods elsewhere that wait for these volumes.
pub(super) fn freed<'a>(
    story: &mut Story,
    before: &Outlook,
    name: &NodeName,
    volumes: impl Iterator<Item = &'a VolumeId>,
) {
    let volumes: BTreeSet<&VolumeId> = volumes.collect();
    for (pod, desired) in &before.desired {
        for wanted in desired.iter().filter(|wanted| wanted.node != *name && volumes.contains(&wanted.volume))
        {
            let key = (wanted.volume.clone(), wanted.node.clone());
            let waiting = before.node_volumes.get(&key).and_then(|node_volume| node_volume.waiting.as_ref());
            if matches!(waiting, Some(Waiting::HeldByNode { .. })) {
                let text =
                    format!("gets {} on {} when it is gone from {name}", handle(&wanted.volume), wanted.node);
                story.tell(When::Later, Risk::Safe, "PodGetsVolume", pod, text);
            }
        }
    }
}

/// Pods of a node that have volumes, and whether they are ending.
fn pods(snapshot: &Snapshot, name: &NodeName) -> Vec<(PodKey, bool)> {
    let pods = snapshot.all(|pod| runs_on(pod, name));
    pods.iter().map(|pod| (pod.key(), pod.metadata.is_terminating())).collect()
}

/// As people know a volume.
pub(super) fn handle(volume: &VolumeId) -> &str {
    match volume.driver_and_handle() {
        ("", _) => volume.as_str(),
        (_, handle) => handle,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_taint_does_is_one_sentence_without_riddles() {
        let node = NodeName::from("n");
        for (at_once, then, pods, expected) in [
            (0, 3, 6, "no volume detached by force at once, 3 volumes when the 6 pods of n are removed"),
            (1, 0, 1, "1 volume detached by force at once, no more when the 1 pod of n is removed"),
            (1, 2, 2, "1 volume detached by force at once, 2 more when the 2 pods of n are removed"),
            (2, 0, 0, "2 volumes detached by force at once; n has no pods"),
        ] {
            assert_eq!(taint_summary(&node, at_once, then, pods), expected);
        }
    }
}
