//! A claim that is Lost because its volume, or it itself, was made anew by a restore.
//!
//! In: both, and all others that might have a say. Out: the volume refers to the claim by its UID again; a claim that is
//! said to be bound and does not say to what is taken for unbound first.

use apiserver::{
    ids::{ClaimKey, VolumeName},
    kinds::{ClaimPhase, Narrow, PersistentVolume, PersistentVolumeClaim, ReclaimPolicy},
};
use serde_json::json;

use super::proof::{Proof, Proposal, claimants, demand_alone, listed, patch, refuse_asked, suits, unmarked};
use crate::{
    binder::{
        annotations::{BETA_STORAGE_PROVISIONER, BIND_COMPLETED, STORAGE_PROVISIONER, has},
        reasons::ClaimReason,
    },
    explain::snapshot::Snapshot,
};

/// What a claim has to forget to be open, and to be the binder's alone.
const FORGOTTEN: [&str; 3] = [BIND_COMPLETED, STORAGE_PROVISIONER, BETA_STORAGE_PROVISIONER];

pub(super) fn propose(
    snapshot: &Snapshot,
    key: &ClaimKey,
    name: &VolumeName,
    proof: &mut Proof,
) -> Option<Proposal> {
    let claim = proof.demand_object::<PersistentVolumeClaim>(snapshot, key);
    let volume = proof.demand_object::<PersistentVolume>(snapshot, name);
    proof.demand_list::<PersistentVolume>(snapshot);
    proof.demand_list::<PersistentVolumeClaim>(snapshot);
    let (claim, volume) = (claim?, volume?);
    look(snapshot, &claim, &volume, proof);
    if !proof.against.is_empty() {
        return None;
    }

    let reference = json!({
        "kind": PersistentVolumeClaim::KIND, "apiVersion": "v1", "namespace": key.namespace(),
        "name": key.name(), "uid": claim.metadata.uid, "resourceVersion": null,
    });
    // Without it a claim that is bound elsewhere meanwhile leaves the volume reserved, and not free (KCM: unbindVolume).
    let request = patch(&*volume, unmarked(&volume), json!({ "spec": { "claimRef": reference } }));
    // The binder is asked what it makes of it.
    let changed = snapshot.fork();
    changed.change::<PersistentVolume>(name, |volume| volume.patch(&request.body));
    let mut requests = vec![request];
    if claim.spec.volume_name.is_empty() && has(&claim.metadata, BIND_COMPLETED) {
        // An open claim that a provisioner was asked about would get a new volume as well.
        let forgotten: serde_json::Map<String, serde_json::Value> = FORGOTTEN
            .into_iter()
            .filter(|key| has(&claim.metadata, key))
            .map(|key| (key.to_owned(), json!(null)))
            .collect();
        let request = patch(&*claim, json!({ "annotations": forgotten }), json!({}));
        changed.change::<PersistentVolumeClaim>(key, |claim| claim.patch(&request.body));
        requests.push(request);
    }
    let outlook = changed.ask_binder();
    let reason = outlook.claims.get(key).and_then(|place| place.reason.as_deref());
    let binds = match reason {
        None | Some(ClaimReason::Bound(_)) => true,
        Some(ClaimReason::Binding(chosen, _)) => chosen == name,
        Some(_) => false,
    };
    proof.demand(
        binds,
        format!("in a dry run with these changes, the binder binds {key} to {name}"),
        format!("the binder would not bind it: {}", reason.map_or("Bound", ClaimReason::code)),
    );
    Some((requests, format!("The binder then sets both to Bound. The data on {name} is not touched.")))
}

fn look(snapshot: &Snapshot, claim: &PersistentVolumeClaim, volume: &PersistentVolume, proof: &mut Proof) {
    let key = claim.key();
    let name = VolumeName::from(volume.metadata.name.clone());
    proof.refuse_if(claim.metadata.is_terminating(), format!("pvc/{} is being deleted", key.name()));
    proof.refuse_if(volume.metadata.is_terminating(), format!("pv/{name} is being deleted"));
    proof.refuse_if(
        claim.status.phase == ClaimPhase::Bound && has(&claim.metadata, BIND_COMPLETED),
        format!("pvc/{} is Bound: there is nothing to repair", key.name()),
    );
    let named = &claim.spec.volume_name;
    proof.demand(
        named.is_empty() || *named == name,
        format!("pvc/{} names no other volume", key.name()),
        format!("pvc/{} names {named}, and spec.volumeName cannot be changed", key.name()),
    );
    refuse_asked(claim, proof);
    match &volume.spec.claim_ref {
        None => proof.proven.push(format!("pv/{name} is reserved for no claim")),
        Some(reference) if reference.key() != key => {
            proof.against.push(format!("pv/{name} belongs to {}: another claim", reference.key()));
        }
        Some(reference) if reference.uid == claim.metadata.uid => {
            proof.against.push(format!("pv/{name} refers to this very claim already"));
        }
        Some(reference) => proof.proven.push(format!(
            "pv/{name} refers to {key} of UID {}, which is gone: of that name there is {}",
            reference.uid, claim.metadata.uid
        )),
    }
    proof.demand(
        volume.spec.reclaim_policy == ReclaimPolicy::Retain,
        format!("pv/{name} is kept when released (Retain)"),
        format!("pv/{name} is not kept (its reclaim policy is not Retain): it may be deleted meanwhile. Set Retain first"),
    );
    suits(claim, volume, proof);
    if proof.is_unseen {
        return;
    }
    let others = claimants(snapshot, &name, Some(&key));
    proof.demand(
        others.is_empty(),
        format!("no other claim names pv/{name}"),
        format!("pv/{name} is named by {}, too", listed(&others)),
    );
    let held = snapshot.keys(|other: &PersistentVolume| {
        let reference = other.spec.claim_ref.as_ref();
        other.key() != name && reference.is_some_and(|reference| reference.uid == claim.metadata.uid)
    });
    proof.demand(
        held.is_empty(),
        format!("pvc/{} holds no other volume", key.name()),
        format!("{} refers to this pvc/{}, and a claim holds one volume", listed(&held), key.name()),
    );
    demand_alone(snapshot, volume, proof);
}
