//! What to do about one volume (pv-binder §3).
//!
//! In: the volume, the claim its claimRef names, and what was proven about it. Out: one decision.
//! The dangerous one is Released: it hands the data to the reclaimer, so it takes a live read
//! that shows the claim's UID gone (S23).

use std::sync::Arc;

use apiserver::{
    ids::ClaimKey,
    kinds::{
        ClaimPhase, ClaimRef, Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim, ReclaimPolicy,
        VolumePhase,
    },
};

use super::{
    binding,
    decision::{Decision, VolumeDecision},
    proofs::{ClaimProof, is_elsewhere},
    reclaim, upkeep,
};
use crate::binder::{
    annotations::{self, PROVISIONED_BY},
    calls::{Call, Purpose, Write},
    events,
    matching::predicate::{modes_differ, was_bound},
    patches,
    reasons::VolumeReason,
    state::State,
};

/// What to do about a volume as things are.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, syncVolume.
pub fn sync_volume(volume: &PersistentVolume, state: &State) -> VolumeDecision {
    if let Some(write) = upkeep::of_volume(volume, state) {
        return Decision::step(VolumeReason::Annotating, Call::Write(write));
    }
    sync_upkept_volume(volume, state)
}

/// The same, but for its annotations and finalizers.
pub fn sync_upkept_volume(volume: &PersistentVolume, state: &State) -> VolumeDecision {
    if let Some(decision) = state.plugins.first(volume, state) {
        return decision;
    }
    let Some(reference) = &volume.spec.claim_ref else {
        return match &*state.owners(&volume.key()) {
            [] => Decision::rest(VolumeReason::Available).writing(phase(volume, VolumePhase::Available)),
            [owner] => Decision::rest(VolumeReason::ClaimBindsNext(owner.key())),
            _ => Decision::rest(VolumeReason::Disputed),
        };
    };
    let (key, name) = (reference.key(), volume.key());
    if reference.uid.is_empty() {
        let owners = state.owners(&name);
        if owners.iter().any(|owner| owner.key() == key) {
            return Decision::rest(VolumeReason::ClaimBindsNext(key));
        }
        // It is not handed over to a claim that does not take it (S45).
        let is_kept = keeps_parked(volume) || owners.iter().any(is_bound);
        if !owners.is_empty() && is_kept && takes_another(volume, reference, state) {
            return claim_elsewhere(volume, reference, state);
        }
        // Not written while the claim takes the volume: claims are looked at first, and a volume
        // with a write under way is left alone.
        return Decision::rest(VolumeReason::Reserved(key)).writing(phase(volume, VolumePhase::Available));
    }
    match state.objects.claims.get(&key).filter(|claim| claim.metadata.uid == reference.uid) {
        None => claim_gone(volume, reference, state),
        Some(claim) if claim.spec.volume_name == name => {
            Decision::rest(VolumeReason::Bound(key)).writing(phase(volume, VolumePhase::Bound))
        }
        Some(claim) if claim.spec.volume_name.is_empty() => claim_open(volume, &claim, key, state),
        Some(_) => claim_elsewhere(volume, reference, state),
    }
}

/// Whether the claim that a volume refers to does not take the volume, or is in no table: a look at the volume finds out
/// whether it is gone.
fn takes_another(volume: &PersistentVolume, reference: &ClaimRef, state: &State) -> bool {
    referred(reference, state).map_or(!reference.uid.is_empty(), |claim| is_elsewhere(&claim, volume))
}

/// The claim that a reference means.
fn referred(reference: &ClaimRef, state: &State) -> Option<Arc<PersistentVolumeClaim>> {
    let claim = state.objects.claims.get(&reference.key());
    claim.filter(|claim| reference.uid.is_empty() || claim.metadata.uid == reference.uid)
}

/// The claims that are Bound to a volume which refers to a claim that does not take it: none of them is Lost, as it is one's,
/// which takes it back (S45). What is Released is not given back, and what is reclaimed as its claim is gone waits for people.
pub(super) fn robbed(
    volume: &PersistentVolume,
    reference: &ClaimRef,
    state: &State,
) -> Vec<Arc<PersistentVolumeClaim>> {
    let is_gone = referred(reference, state).is_none();
    let is_kept = volume.spec.reclaim_policy == ReclaimPolicy::Retain;
    let is_left = is_kept || !is_gone || reclaim::is_left(volume, state);
    let is_let_go = if keeps_parked(volume) { is_left } else { is_kept && is_gone };
    if is_let_go || !takes_another(volume, reference, state) {
        return Vec::new();
    }
    let mut owners = state.owners(&volume.key());
    // One of the same name has another UID: nobody knows which of the two claims the volume is for.
    owners.retain(|owner| is_bound(owner) && owner.key() != reference.key());
    owners
}

fn phase(volume: &PersistentVolume, phase: VolumePhase) -> Option<Write> {
    (volume.status.phase != phase).then(|| patches::volume_phase(volume, phase, None))
}

/// The claim has not named a volume yet: it does so next, unless it cannot.
fn claim_open(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
    key: ClaimKey,
    state: &State,
) -> VolumeDecision {
    // The claim does not take it, and looks for another once it is given back; as long as it is Bound it is kept from
    // going. That the claim has not been given its name has to be certain (S21).
    if let Some(reference) = &volume.spec.claim_ref
        && volume.metadata.is_terminating()
        && state.doubts.of(claim, &state.objects).is_none()
    {
        return claim_elsewhere(volume, reference, state);
    }
    if !modes_differ(volume, claim) {
        return Decision::rest(VolumeReason::ClaimBindsNext(key));
    }
    let decision = Decision::rest(VolumeReason::ModesDiffer(key));
    events::modes_differ(volume, claim).into_iter().fold(decision, Decision::telling)
}

/// No claim of that name has this UID in our tables. A claim that was bound to the volume and names it keeps it (S45) if it
/// has this UID, or this name, or is Bound: people wrote over the name, or over the UID, or restored the claim under a new
/// one, or pointed it at a claim that is gone. Another that is Lost was handed over from, or is a copy, and keeps nothing. What
/// is kept anyway (Retain) is released.
fn claim_gone(volume: &PersistentVolume, reference: &ClaimRef, state: &State) -> VolumeDecision {
    let decision = released(volume, reference, state, ClaimProof::Gone);
    if matches!(decision.step, None | Some(Call::Read { .. })) {
        return decision;
    }
    let is_kept = volume.spec.reclaim_policy == ReclaimPolicy::Retain;
    // What is Released already is not given back, and is not reclaimed either while a claim is Bound to it.
    let is_its = |claim: &Arc<PersistentVolumeClaim>| {
        let has_it = claim.key() == reference.key() || keeps_parked(volume) && is_bound(claim);
        was_bound(claim) && (claim.metadata.uid == reference.uid || has_it && !is_kept)
    };
    if let Some(claim) = state.naming(volume.key()).find(is_its) {
        // To what is Released it is not given back.
        let is_given_back = claim.key() == reference.key() || claim.metadata.uid == reference.uid;
        return Decision::rest(if is_given_back {
            VolumeReason::ClaimBindsNext(claim.key())
        } else {
            VolumeReason::Reserved(reference.key())
        });
    }
    if !robbed(volume, reference, state).is_empty() {
        return claim_elsewhere(volume, reference, state);
    }
    // That nothing has a name which nothing can have does not show the claim gone that was meant. KCM: client-go asks for none.
    if !PersistentVolumeClaim::is_possible(&reference.key()) {
        let volume = PersistentVolume::object_ref(volume.key());
        let what = format!("{volume}: spec.claimRef: no claim can have that namespace and name");
        return Decision::rest(VolumeReason::ObjectUnreadable(what));
    }
    decision
}

/// The claim names another volume, or cannot take this one, which is being deleted. What was made for it on demand, and is no
/// other claim's, is superfluous and goes. What is Released has the data of an earlier claim: people alone free it (S25). Of
/// the rest, what is another claim's, as its phase says, is reserved by name for that one, which takes it back (S45): whoever
/// makes a claim writes its annotations, and makes it Lost if they are false; a phase is Bound only by a controller.
fn claim_elsewhere(volume: &PersistentVolume, reference: &ClaimRef, state: &State) -> VolumeDecision {
    let owners = state.owners(&volume.key());
    let bound: Vec<ClaimKey> =
        owners.iter().filter(|owner| is_bound(owner)).map(|owner| owner.key()).collect();
    let on_demand = annotations::has(&volume.metadata, PROVISIONED_BY);
    if on_demand && volume.spec.reclaim_policy == ReclaimPolicy::Delete && owners.is_empty() {
        return released(volume, reference, state, ClaimProof::BoundElsewhere);
    }
    // Its provisioner deletes it once it is released, and without UID nothing releases it: who merely says that it had it goes first.
    let is_to_go = on_demand && volume.metadata.is_terminating() && bound.is_empty();
    if keeps_parked(volume) || (is_to_go && volume.spec.reclaim_policy == ReclaimPolicy::Delete) {
        return Decision::rest(VolumeReason::Reserved(reference.key()));
    }
    if bound.len() > 1 {
        return Decision::rest(VolumeReason::Disputed);
    }
    let owner = bound.into_iter().next();
    let again = owner.as_ref().map(|owner| patches::reserve_by_name(volume, owner));
    let write = again.unwrap_or_else(|| binding::undo(volume));
    Decision::step(VolumeReason::Undoing(reference.key(), owner), Call::Write(write))
}

fn is_bound(claim: &Arc<PersistentVolumeClaim>) -> bool {
    claim.status.phase == ClaimPhase::Bound
}

/// Whether the volume stays as it is, as it has the data of an earlier claim (S25).
fn keeps_parked(volume: &PersistentVolume) -> bool {
    is_parked(volume) && !volume.metadata.is_terminating()
}

/// Whether the volume waits for its reclaim, or for an administrator.
pub(super) fn is_parked(volume: &PersistentVolume) -> bool {
    matches!(volume.status.phase, VolumePhase::Released | VolumePhase::Failed)
}

/// Releases the volume and sees to its reclaim, if a live read has shown what our tables show.
fn released(
    volume: &PersistentVolume,
    reference: &ClaimRef,
    state: &State,
    needed: ClaimProof,
) -> VolumeDecision {
    let key = reference.key();
    let decision = if is_parked(volume) {
        reclaim::reclaim(volume, reference, state)
    } else {
        let write = patches::volume_phase(volume, VolumePhase::Released, None);
        Decision::step(VolumeReason::Releasing(key.clone()), Call::Write(write))
    };
    if decision.step.is_none() {
        return decision;
    }
    // A claim proven gone is also not bound to this volume; one bound elsewhere is not gone.
    match state.proofs.claim(volume, &reference.uid) {
        Some(proof) if proof == needed || proof == ClaimProof::Gone => decision,
        _ => {
            let purpose = Purpose::ProveClaim(reference.uid.clone());
            Decision::step(VolumeReason::Proving(key.clone()), Call::read(ObjectRef::Claim(key), purpose))
        }
    }
}
