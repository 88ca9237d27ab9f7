//! What happens when a claim, a pod or a VolumeAttributesClass is deleted.
//!
//! In: a snapshot and the object. Out: what becomes of the data; which volumes are let go, and who gets them.

use std::{collections::BTreeSet, sync::Arc};

use apiserver::{
    ids::{AttributesClassName, ClaimKey, PodKey, VolumeName},
    kinds::{
        Narrow, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, ReclaimPolicy, VolumePhase,
    },
    tables::Stored,
};

use super::{
    nodes,
    story::{Story, When},
};
use crate::{
    attach_detach::{
        decide::{force::Unforced, verdict::Waiting},
        dry_run::volume_of,
        state::desired::volume_name::VolumeId,
    },
    binder::{calls::WriteKind, reasons::VolumeReason},
    explain::{
        age, attributes_class,
        claim::may_be_mounted,
        report::{Risk, Verdict},
        snapshot::Snapshot,
        view::{View, claims_of, runs_on, users},
    },
};

pub(super) fn delete_claim(snapshot: &Snapshot, key: &ClaimKey) -> Story {
    let Some(claim) = snapshot.objects.claims.get(key) else {
        return Story::missing(snapshot, &ObjectRef::Claim(key.clone()));
    };
    let mut story = Story::default();
    let users = users(&snapshot.objects).remove(key).unwrap_or_default();
    let sees_pods = snapshot.sees_pods();
    let is_kept = may_be_mounted(&claim);
    let when = if !is_kept || (users.is_empty() && sees_pods) { When::Now } else { When::Then };
    for pod in &users {
        let (risk, action, text) = if is_kept {
            let text = "uses the claim: it stays, deleted, until the pod is gone; no new pod may use it";
            (Risk::Care, "ClaimProtected", text)
        } else {
            let text = "uses the claim, which lacks its finalizer: it goes under the pod";
            (Risk::Danger, "ClaimUnprotected", text)
        };
        story.tell(When::Now, risk, action, pod, text);
    }
    if !sees_pods {
        story.assume("whether pods use the claim is not known: not all could be read");
    }
    let mut copy = snapshot.fork();
    copy.remove::<PersistentVolumeClaim>(key);
    for pod in &users {
        copy.remove::<Pod>(pod);
    }
    let mut kept_or_lost = "; no data is deleted";
    let before = snapshot.ask_binder();
    let after = copy.ask_binder();
    for (name, place) in &after.volumes {
        let released = matches!(place.write, Some(WriteKind::VolumeReleased | WriteKind::VolumeFailed));
        let did = before.volumes.get(name).and_then(|place| place.write);
        let Some(volume) = snapshot.objects.volumes.get(name) else { continue };
        if released && did != place.write {
            let fate = released_volume(&mut story, &copy, name, &volume, when);
            kept_or_lost = fate.unwrap_or(kept_or_lost);
        } else if place.write == Some(WriteKind::VolumeAvailable) && did != place.write {
            story.tell(when, Risk::Safe, "VolumeAvailable", name, "is free again: it was never bound");
        }
    }
    let when = match users.len() {
        _ if !is_kept => "at once".to_owned(),
        _ if !sees_pods => "when no pod uses it".to_owned(),
        0 => "at once".to_owned(),
        pods => format!("after {}", age::counted(pods, "pod")),
    };
    let volume = &claim.spec.volume_name;
    // One that names no volume may still be what a volume refers to.
    let is_unread = if volume.is_empty() {
        !snapshot.is_whole::<PersistentVolume>()
    } else {
        is_unread::<PersistentVolume>(snapshot, volume)
    };
    let fate = if is_unread {
        story.verdict = Some(Verdict::Forbidden);
        "; what becomes of its data is not known, as its volume could not be read"
    } else {
        kept_or_lost
    };
    story.summary = format!("{key} goes {when}{fate}");
    story.assume(if is_kept {
        "pvc-protection keeps the claim while a pod uses it"
    } else {
        "no other finalizer keeps the claim"
    });
    story
}

/// Whether an object may be there, and was not read: nothing is concluded from that (S42).
fn is_unread<T: Stored>(snapshot: &Snapshot, key: &T::Key) -> bool {
    snapshot.objects.get::<T>(key).is_none() && !snapshot.is_absent(&T::object_ref(key.clone()))
}

/// What of a pod's node, claims and volumes could not be read.
fn unread(snapshot: &Snapshot, pod: &Pod) -> Option<ObjectRef> {
    let node = Some(&pod.spec.node_name).filter(|node| !node.is_empty() && is_unread::<Node>(snapshot, node));
    let of_claim = |key: ClaimKey| match snapshot.objects.claims.get(&key) {
        None => is_unread::<PersistentVolumeClaim>(snapshot, &key).then_some(ObjectRef::Claim(key)),
        Some(claim) => {
            let volume = claim.spec.volume_name.clone();
            let is_unread = !volume.is_empty() && is_unread::<PersistentVolume>(snapshot, &volume);
            is_unread.then_some(ObjectRef::Volume(volume))
        }
    };
    node.cloned().map(ObjectRef::Node).or_else(|| claims_of(pod).find_map(of_claim))
}

/// What becomes of a volume that is released; and what that means for its data, if it is not just kept.
fn released_volume(
    story: &mut Story,
    copy: &Snapshot,
    name: &VolumeName,
    volume: &Arc<PersistentVolume>,
    when: When,
) -> Option<&'static str> {
    copy.change::<PersistentVolume>(name, |volume| volume.status.phase = VolumePhase::Released);
    let outlook = copy.ask_binder();
    let place = outlook.volumes.get(name);
    let reason = place.and_then(|place| place.reason.as_deref());
    let (risk, action, text) = match (&volume.spec.reclaim_policy, reason) {
        // KCM: pkg/controller/volume/pvprotection, isBeingUsed: only a Bound volume is kept.
        (ReclaimPolicy::Retain, _) if volume.metadata.is_terminating() => {
            let text = "is being deleted, and its object goes with the claim: save it first, as it leads to the data";
            (Risk::Danger, "VolumeGone", text.to_owned())
        }
        (ReclaimPolicy::Retain, _) => (
            Risk::Safe,
            "VolumeReleased",
            "Released and kept with its data; no claim gets it before a person frees it".to_owned(),
        ),
        (ReclaimPolicy::Delete, Some(VolumeReason::NotReclaimable(_) | VolumeReason::DeleteFailed(_))) => {
            (Risk::Care, "VolumeFailed", "cannot be deleted here: kept, in phase Failed".to_owned())
        }
        (ReclaimPolicy::Delete, _) => {
            let who = volume.spec.csi.as_ref().map_or("its plugin", |csi| csi.driver.as_str());
            story.assume(format!("the provisioner of {who} does what its policy Delete asks for"));
            let text = format!("its DATA WOULD BE DELETED by the provisioner of {who}");
            (Risk::Danger, "DataDeleted", text)
        }
        (ReclaimPolicy::Recycle, _) => {
            (Risk::Danger, "DataDeleted", "its data would be scrubbed (Recycle)".to_owned())
        }
        (ReclaimPolicy::Other(policy), _) => {
            (Risk::Care, "VolumeFailed", format!("{policy} is no policy: kept"))
        }
    };
    story.tell(when, risk, action, name, text);
    match action {
        "DataDeleted" => Some(", and its DATA WITH IT"),
        "VolumeGone" => Some(", and with it the volume that leads to its data"),
        _ => None,
    }
}

pub(super) fn delete_pod(snapshot: &Snapshot, key: &PodKey) -> Story {
    let Some(pod) = snapshot.objects.pods.get(key) else {
        return Story::missing(snapshot, &ObjectRef::Pod(key.clone()));
    };
    let mut story = Story::default();
    let before = snapshot.ask_attach_detach();
    let mut copy = snapshot.fork();
    copy.remove::<Pod>(key);
    let after = copy.ask_attach_detach();
    let mine = before.desired.get(key).map(Vec::as_slice).unwrap_or_default();
    let node = &pod.spec.node_name;
    let is_ended = node.is_empty()
        || pod.is_terminated()
        || snapshot.objects.nodes.get(node).is_some_and(|node| node.kubelet_speaks());
    let mut let_go = 0;
    for wanted in mine {
        let mut others = after.desired.values().flatten();
        if others.any(|other| other.volume == wanted.volume && other.node == wanted.node) {
            let text = format!("stays on {}: other pods there use it", wanted.node);
            story.tell(When::Now, Risk::Safe, "StaysAttached", nodes::handle(&wanted.volume), text);
            continue;
        }
        let on_node = after.node_volumes.get(&(wanted.volume.clone(), wanted.node.clone()));
        let waiting = on_node.and_then(|it| it.waiting.as_ref());
        if !is_ended
            && matches!(waiting, Some(Waiting::DetachWaitingForUnmount { unforced: Unforced::SwitchedOff }))
        {
            let text =
                format!("stays on {}: its kubelet is silent, and time may not force a detach", wanted.node);
            story.tell(When::Later, Risk::Care, "StaysAttached", nodes::handle(&wanted.volume), text);
            continue;
        }
        let_go += 1;
        let (when, risk, text) = if is_ended {
            (When::Then, Risk::Safe, format!("leaves {} when its kubelet has unmounted it", wanted.node))
        } else {
            (When::Later, Risk::Care, format!("leaves {} only by force: its kubelet is silent", wanted.node))
        };
        story.tell(when, risk, "Detach", nodes::handle(&wanted.volume), text);
        nodes::freed(&mut story, &before, &wanted.node, std::iter::once(&wanted.volume));
    }
    for volume in &pod.spec.volumes {
        let Some(claim) = pod.claim_of(volume).and_then(|claim| snapshot.objects.claims.get(&claim)) else {
            continue;
        };
        let claim_key = claim.key();
        if claim.metadata.is_terminating() && !users(&copy.objects).contains_key(&claim_key) {
            let text = "is deleted already, and goes with its last pod: see whatif delete pvc";
            story.tell(When::Then, Risk::Danger, "ClaimGoes", &claim_key, text);
        } else if claim.metadata.controller().is_some_and(|owner| owner.kind == Pod::KIND) {
            let text = "was made for this pod alone (ephemeral) and goes with it: see whatif delete pvc";
            story.tell(When::Then, Risk::Danger, "ClaimGoes", &claim_key, text);
        }
    }
    let is_gone = !node.is_empty() && snapshot.is_absent(&ObjectRef::Node(node.clone()));
    story.summary = if let Some(object) = unread(snapshot, &pod) {
        story.verdict = Some(Verdict::Forbidden);
        format!("{key}: which volumes leave its node is not known, as {object} could not be read")
    } else if is_gone && !pod.is_terminated() {
        let own = own_volumes(snapshot, &pod);
        let is_own = |volume: &VolumeId| own.contains(volume);
        nodes::forced_late(&mut story, snapshot, (&before, &after), node, Risk::Care, is_own);
        story.assume("the machine is off: no object shows whether it is");
        format!("{key}: only its object goes, as node {node} has none, and its containers may run on")
    } else if is_ended {
        story.assume("the kubelet ends the containers and unmounts within the pod's grace");
        format!("{key} ends; volumes that leave its node: {let_go} of {}", mine.len())
    } else {
        if let_go > 0 {
            nodes::assume_flags(&mut story, snapshot);
        }
        let until = if let_go > 0 || mine.is_empty() { " until force takes them" } else { "" };
        format!("{key} does not end: no kubelet is there to end it, and its volumes stay{until}")
    };
    story.assume(
        "what owns the pod (a StatefulSet, a Deployment) may make another, which takes the volumes again",
    );
    story
}

/// The volumes that no other pod on the node of a pod uses.
fn own_volumes(snapshot: &Snapshot, pod: &Pod) -> BTreeSet<VolumeId> {
    let others = snapshot.all(|other: &Pod| runs_on(other, &pod.spec.node_name) && other.key() != pod.key());
    let shared: BTreeSet<ClaimKey> = others.iter().flat_map(|other| claims_of(other)).collect();
    let own = claims_of(pod).filter(|claim| !shared.contains(claim));
    let bound = own.filter_map(|claim| Some(snapshot.objects.claims.get(&claim)?.spec.volume_name.clone()));
    bound.filter_map(|volume| volume_of(&snapshot.objects, &volume)).collect()
}

pub(super) fn delete_attributes_class(snapshot: &Snapshot, name: &AttributesClassName) -> Story {
    let Some(class) = snapshot.objects.attributes_classes.get(name) else {
        return Story::missing(snapshot, &ObjectRef::AttributesClass(name.clone()));
    };
    let mut story = Story::default();
    let view = View::new(snapshot);
    let is_kept = attributes_class::is_protected(&class);
    let (action, text) = if is_kept {
        ("ClassStays", "names the class: it stays until nothing does, and the deletion cannot be reverted")
    } else {
        ("ClassGone", "names the class, which is gone then")
    };
    let users: Vec<&ObjectRef> = view.naming_class(name).collect();
    for user in &users {
        story.tell(When::Now, Risk::Care, action, *user, text);
    }
    let sees_users =
        snapshot.is_listed::<PersistentVolumeClaim>() && snapshot.is_listed::<PersistentVolume>();
    story.summary = match (is_kept, users.len()) {
        (_, 0) if !sees_users => {
            story.verdict = Some(Verdict::Forbidden);
            format!("whether a claim or volume names {name} is not known: not all could be read")
        }
        (_, 0) => format!("{name} goes at once: nothing names it"),
        (true, count) => format!("{name} stays, deleted, until nothing names it; users: {count}"),
        (false, count) => format!("{name} goes at once, as it has no finalizer; users: {count}"),
    };
    if is_kept {
        story.assume("a volumeattributesclass-protection-controller runs, which takes the finalizer off");
    }
    story.assume("volumes keep the attributes that they have, and no data is deleted");
    story.assume("a claim that is to change to the class waits until there is one of that name");
    story
}
