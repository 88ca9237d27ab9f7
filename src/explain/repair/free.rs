//! A volume that was released and kept is made available again, with the data that is on it.
//!
//! In: the volume, and all that might still use it. Out: the reference loses its UID. What is never attached is used
//! by whoever has mounted it, which pods alone show.

use apiserver::{
    ids::{ClaimKey, PodKey, VolumeName},
    kinds::{
        Narrow as _, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, ReclaimPolicy,
        VolumeAttachment, VolumePhase,
    },
};
use serde_json::json;

use super::proof::{
    Proof, Proposal, claimants, demand_alone, demand_detached, identity, listed, patch, refuse_asked, suits,
    unmarked,
};
use crate::{
    binder::{calls::WriteKind, reasons::ClaimReason},
    explain::{snapshot::Snapshot, view::claims_of},
};

pub(super) fn propose(snapshot: &Snapshot, name: &VolumeName, proof: &mut Proof) -> Option<Proposal> {
    let volume = proof.demand_object::<PersistentVolume>(snapshot, name);
    proof.demand_list::<PersistentVolume>(snapshot);
    proof.demand_list::<PersistentVolumeClaim>(snapshot);
    proof.demand_list::<VolumeAttachment>(snapshot);
    proof.demand_list::<Node>(snapshot);
    proof.demand_list::<Pod>(snapshot);
    let volume = volume?;
    proof.refuse_if(volume.metadata.is_terminating(), format!("pv/{name} is being deleted"));
    proof.demand(
        volume.status.phase == VolumePhase::Released,
        format!("pv/{name} is Released"),
        format!("pv/{name} is {}, not Released", <&str>::from(volume.status.phase)),
    );
    proof.demand(
        volume.spec.reclaim_policy == ReclaimPolicy::Retain,
        "its reclaim policy is Retain: nothing else is about to delete it",
        "its reclaim policy is not Retain: it is about to be deleted or scrubbed. Set Retain at once (see mooring explain pv)",
    );
    let Some(reference) = &volume.spec.claim_ref else {
        proof.against.push(format!("pv/{name} refers to no claim: there is nothing to free"));
        return None;
    };
    let owner = reference.key();
    match snapshot.objects.claims.get(&owner) {
        Some(claim) => proof.demand(
            !reference.uid.is_empty() && claim.metadata.uid != reference.uid,
            format!("the claim it had is gone: {owner} is another one now"),
            format!("{owner} still is the claim that it belongs to"),
        ),
        None => proof.demand(
            snapshot.is_absent(&ObjectRef::Claim(owner.clone())),
            format!("the claim it had, {owner}, is gone"),
            format!("whether {owner} is gone could not be read"),
        ),
    }
    proof.refuse_if(
        reference.uid.is_empty(),
        format!("it is reserved for {owner} by name already: the binder makes it available"),
    );
    if proof.is_unseen {
        return None;
    }
    let others = claimants(snapshot, name, None);
    proof.demand(
        others.is_empty(),
        "no claim names it",
        format!("it is named by {}: mooring repair relink is what leads a claim to it", listed(&others)),
    );
    let users = users(snapshot, &owner);
    proof.demand(
        users.is_empty(),
        format!("no pod on a node has it by {owner}"),
        format!("{owner} was that of {}, on a node and not over: it may write yet", listed(&users)),
    );
    demand_detached(snapshot, &volume, proof);
    if let Some(claim) = snapshot.objects.claims.get(&owner) {
        refuse_asked(&claim, proof);
        suits(&claim, &volume, proof);
    }
    demand_alone(snapshot, &volume, proof);
    if !proof.against.is_empty() {
        return None;
    }

    let freed = json!({ "spec": { "claimRef": { "uid": null, "resourceVersion": null } } });
    let request = patch(&*volume, unmarked(&volume), freed);

    // The binder is asked what it makes of it.
    let changed = snapshot.fork();
    changed.change::<PersistentVolume>(name, |volume| volume.patch(&request.body));
    let outlook = changed.ask_binder();
    let write = outlook.volumes.get(name).and_then(|place| place.write);
    let taken = outlook.claims.values().any(
        |place| matches!(place.reason.as_deref(), Some(ClaimReason::Binding(volume, _)) if volume == name),
    );
    proof.demand(
        taken || matches!(write, Some(WriteKind::VolumeAvailable)),
        "in a dry run with this change, the binder makes it available or gives it to a claim",
        "the binder would not make it available",
    );
    Some((vec![request], consequence(snapshot, &volume, &owner)))
}

fn consequence(snapshot: &Snapshot, volume: &PersistentVolume, owner: &ClaimKey) -> String {
    let claim = snapshot.objects.claims.get(owner);
    let whom = match claim.map(|claim| claim.spec.volume_name.clone()).filter(|other| !other.is_empty()) {
        Some(other) => {
            format!("a claim {owner} that is made anew gets it, and no other (the present one has {other})")
        }
        None => format!("a claim {owner} gets it, and no other"),
    };
    let unseen = if is_attached(snapshot, volume) {
        ""
    } else {
        " It is never attached: a pod that was deleted by force on a machine that is cut off may write to it, and is not seen."
    };
    format!("It still holds the former claim's data: {whom}, WITH that data.{unseen}")
}

/// Pods that may have mounted the volume of a claim. One that is no older than a claim that was made anew has the volume of
/// that one.
fn users(snapshot: &Snapshot, owner: &ClaimKey) -> Vec<PodKey> {
    let made_anew = snapshot.objects.claims.get(owner).and_then(|claim| claim.metadata.creation_timestamp);
    let mut users = Vec::new();
    snapshot.objects.pods.for_each(|pod: &Pod| {
        let is_later = made_anew.is_some_and(|made| pod.metadata.creation_timestamp >= Some(made));
        let runs = !pod.spec.node_name.is_empty() && !pod.is_terminated();
        if runs && !is_later && claims_of(pod).any(|claim| claim == *owner) {
            users.push(pod.key());
        }
    });
    users.sort();
    users
}

/// Whether a node that has it is known by its attachment.
fn is_attached(snapshot: &Snapshot, volume: &PersistentVolume) -> bool {
    let driver = volume.spec.csi.as_ref().and_then(|csi| snapshot.objects.drivers.get(&csi.driver));
    identity(volume).is_some() && driver.is_none_or(|driver| driver.spec.attach_required != Some(false))
}
