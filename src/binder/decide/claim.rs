//! What to do about one claim (pv-binder §2).
//!
//! In: the claim and the cluster as seen. Out: one decision. Two state machines, told apart by the
//! annotation `bind-completed`: a claim that was never bound looks for a volume, one that was only
//! ever keeps the volume it has.

use std::sync::Arc;

use apiserver::{
    ids::{ClassName, PodKey, VolumeName},
    kinds::{
        BindingMode, ClaimPhase, ClaimRef, Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim,
        VolumePhase,
    },
};

use super::{
    binding::{self, NoCapacity},
    decision::{ClaimDecision, Decision},
    proofs::VolumeProof,
    provisioning, upkeep, volume,
};
use crate::binder::{
    annotations::{self, BIND_COMPLETED, BOUND_BY_CONTROLLER, SELECTED_NODE},
    calls::{Call, Purpose, WriteKind},
    events,
    matching::{
        choose_volume::Search,
        predicate::{
            Mismatch, Requirements, capacity, held_by, is_of_another, mismatch_for_named,
            mismatch_for_search, refers_to, was_bound,
        },
    },
    patches,
    reasons::ClaimReason,
    state::State,
};

/// What to do about a claim as things are.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, syncClaim.
pub fn sync_claim(claim: &PersistentVolumeClaim, state: &State) -> ClaimDecision {
    if let Some(write) = upkeep::of_claim(claim, state) {
        return Decision::step(ClaimReason::Annotating, Call::Write(write));
    }
    sync_upkept_claim(claim, state)
}

/// The same, but for its annotations.
pub fn sync_upkept_claim(claim: &PersistentVolumeClaim, state: &State) -> ClaimDecision {
    if annotations::has(&claim.metadata, BIND_COMPLETED) {
        return sync_bound(claim, state);
    }
    let requirements = match Requirements::of(claim) {
        Ok(requirements) => requirements,
        Err(unreadable) => return ClaimDecision::waiting(claim, ClaimReason::Unreadable(unreadable)),
    };
    if claim.spec.volume_name.is_empty() {
        sync_open(&requirements, state)
    } else {
        sync_named(&requirements, state)
    }
}

fn search(
    requirements: &Requirements<'_>,
    takes_none: bool,
    current: &dyn Fn(&VolumeName) -> Option<Arc<PersistentVolume>>,
    state: &State,
) -> Search {
    state.volumes.search(requirements, takes_none, current, &|name| state.is_busy(name), &state.compared)
}

/// Another free volume that is as good as one that is not to be reserved (L15), or whose reservation fails each time; but not before
/// one that people have reserved for the claim (S26). Those come first that failed for nobody, then those that the claim has not
/// tried.
fn as_good(
    first: &PersistentVolume,
    requirements: &Requirements<'_>,
    state: &State,
) -> Option<Arc<PersistentVolume>> {
    let claim = requirements.claim.key();
    let is_open = |it: &PersistentVolume| state.is_open(&claim, it);
    if first.spec.claim_ref.is_some() || (is_open(first) && !state.is_passed_over(first)) {
        return None;
    }
    let is_as_good = |it: &PersistentVolume| {
        it.spec.claim_ref.is_none()
            && capacity(it) == capacity(first)
            && it.spec.access_modes == first.spec.access_modes
            && is_open(it)
    };
    let find = |suits: &dyn Fn(&PersistentVolume) -> bool| {
        let current = |name: &VolumeName| state.unowned(name).filter(|it| is_as_good(it) && suits(it));
        match search(requirements, false, &current, state) {
            Search::Found(other) => Some(other),
            _ => None,
        }
    };
    find(&|it| !state.is_passed_over(it)).or_else(|| find(&|_| true))
}

/// Never bound, names no volume.
fn sync_open(requirements: &Requirements<'_>, state: &State) -> ClaimDecision {
    let claim = requirements.claim;
    let class = state.class(requirements.class);
    let delayed = state.is_delayed(requirements);
    // A provisioner is asked for nothing of a class that is merely remembered.
    let waits = delayed && !annotations::has(&claim.metadata, SELECTED_NODE);
    if class.is_none() && !waits && !requirements.class.is_empty() {
        // A class that its watch has not delivered yet may delay the bind (S28).
        let name = ClassName::from(requirements.class);
        if !state.proofs.is_without_class(&name, claim.metadata.resource_version) {
            let read = Call::read(ObjectRef::Class(name.clone()), Purpose::ProveNoClass);
            return Decision::step(ClaimReason::ProvingClass(name), read);
        }
    }
    if let Some(None | Some(BindingMode::Unknown)) = class.as_ref().map(|class| class.volume_binding_mode) {
        let name = ClassName::from(requirements.class);
        return ClaimDecision::waiting(claim, ClaimReason::UnknownBindingMode(name));
    }
    // A reservation that may still be made leaves no choice (S19).
    let doubt = state.doubts.of(claim, &state.objects);
    let takes_none = delayed || doubt.is_some();
    let found = search(requirements, takes_none, &|name| state.unowned(name), state);
    match found {
        Search::Found(volume) => {
            let other = as_good(&volume, requirements, state);
            return bind(other.as_ref().unwrap_or(&volume), claim, state);
        }
        Search::Busy(volume) => return Decision::rest(ClaimReason::VolumeBusy(volume)),
        // It is given back first, and another taken then.
        Search::Held(volume, Mismatch::Terminating) => {
            return ClaimDecision::waiting(claim, ClaimReason::HoldsOther(volume.key()));
        }
        Search::Held(volume, mismatch) => {
            // Upstream would take another volume, and the claim would hold two.
            return pends(claim, ClaimReason::HoldsMismatched(volume.key(), mismatch));
        }
        Search::Nothing => {
            if let Some(name) = doubt {
                let suits = |volume: &Arc<PersistentVolume>| {
                    !delayed && mismatch_for_search(volume, requirements).is_none()
                };
                return match state.unowned(name).filter(suits) {
                    // Until it is known to be free of that one.
                    Some(volume)
                        if state.is_open(&claim.key(), &volume)
                            || as_good(&volume, requirements, state).is_none() =>
                    {
                        bind(&volume, claim, state)
                    }
                    _ => ClaimDecision::waiting(claim, ClaimReason::Uncertain(name.clone())),
                };
            }
        }
    }
    if let Some(default) = &state.default_class
        && claim.spec.storage_class_name.is_none()
        && !annotations::has(&claim.metadata, annotations::BETA_STORAGE_CLASS)
    {
        let write = patches::assign_class(claim, default);
        return Decision::step(ClaimReason::AssigningClass(default.clone()), Call::Write(write));
    }
    if waits {
        let pods: Vec<PodKey> = state.pods.of(&claim.key()).cloned().collect();
        let no_pod = pods.is_empty();
        return pends(
            claim,
            if no_pod { ClaimReason::WaitsForFirstConsumer } else { ClaimReason::WaitsForPods(pods) },
        );
    }
    if !requirements.class.is_empty() {
        return provisioning::provision(claim, &ClassName::from(requirements.class), class.as_deref(), state);
    }
    pends(claim, ClaimReason::NoVolume)
}

/// Never bound, names a volume: a user's choice, which class and selector do not overrule once the
/// volume names the claim too.
fn sync_named(requirements: &Requirements<'_>, state: &State) -> ClaimDecision {
    let claim = requirements.claim;
    let name = &claim.spec.volume_name;
    let Some(volume) = state.volume(name) else {
        // Nothing is written over a phase before it is asked for (S24).
        return match state.proofs.volume(&claim.key(), &claim.metadata.uid, None) {
            None if was_bound(claim) => prove_volume(name),
            _ if was_bound(claim) => lost(claim, ClaimReason::LostVolume(name.clone()), None),
            _ => pends(claim, ClaimReason::NamedMissing(name.clone())),
        };
    };
    let Some(reference) = &volume.spec.claim_ref else {
        let owners = state.owners(name);
        match &*owners {
            [] => {}
            [owner] if owner.key() == claim.key() => {}
            // Nor is anything written over the phase of one of several.
            [_, _, ..] if was_bound(claim) => {
                return ClaimDecision::waiting(claim, ClaimReason::Disputed(name.clone()));
            }
            [owner, ..] => {
                return pends_unless_bound(claim, ClaimReason::NamedTaken(name.clone(), owner.key()));
            }
        }
        // What it was bound to it takes back as it is, where the volume's phase says that, too: of one made anew nobody knows.
        let is_its = claim.status.phase == ClaimPhase::Bound && volume.status.phase == VolumePhase::Bound;
        if let Some(mismatch) = mismatch_for_named(&volume, requirements).filter(|_| !is_its) {
            return pends_unless_bound(claim, ClaimReason::NamedMismatched(name.clone(), mismatch));
        }
        return bind(&volume, claim, state);
    };
    if refers_to(reference, claim) || (was_bound(claim) && !is_of_another(reference, claim)) {
        return bind(&volume, claim, state);
    }
    let reason = ClaimReason::NamedTaken(name.clone(), reference.key());
    // A claim that says the binder chose this volume for it contradicts the volume: nothing is
    // written over that. Nor over the phase, which says that the volume was its own, where the volume names it still, or is
    // given back to it (S45).
    if let Some(decision) = robbed(claim, &volume, reference, state) {
        return decision;
    }
    let is_its = was_bound(claim) && reference.key() == claim.key();
    if annotations::has(&claim.metadata, BOUND_BY_CONTROLLER) || is_its {
        return ClaimDecision::waiting(claim, reason);
    }
    pends(claim, reason)
}

/// Bound before: keeps its volume, or has lost it.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, syncBoundClaim.
fn sync_bound(claim: &PersistentVolumeClaim, state: &State) -> ClaimDecision {
    let name = &claim.spec.volume_name;
    if name.is_empty() {
        return lost(claim, ClaimReason::LostReference, None);
    }
    let volume = state.volume(name);
    if let Some(volume) = volume.as_deref() {
        match &volume.spec.claim_ref {
            Some(reference) if !is_of_another(reference, claim) => return bind(volume, claim, state),
            Some(reference) => {
                if let Some(decision) = robbed(claim, volume, reference, state) {
                    return decision;
                }
            }
            // Cleared, and taken back by its owner alone (S45).
            None => match &*state.owners(name) {
                [_, _, ..] => return ClaimDecision::waiting(claim, ClaimReason::Disputed(name.clone())),
                [owner] if owner.key() != claim.key() => {
                    return Decision::rest(ClaimReason::NamedTaken(name.clone(), owner.key()));
                }
                _ => return bind(volume, claim, state),
            },
        }
    }
    // Our table may be behind; "data is lost" is only said after asking (S24).
    let seen = volume.as_deref().map(|volume| volume.metadata.resource_version);
    let proof = state.proofs.volume(&claim.key(), &claim.metadata.uid, seen).cloned();
    // Of one that is Lost, and shows it, nothing is written any more, whatever becomes of the other claim's volume.
    let is_shown =
        claim.status.phase == ClaimPhase::Lost && binding::unbound_status(claim, ClaimPhase::Lost).is_none();
    let shown = || VolumeProof::of(Some(volume.as_deref().filter(|_| is_shown)?), claim);
    match proof.or_else(shown) {
        Some(VolumeProof::Gone) => lost(claim, ClaimReason::LostVolume(name.clone()), None),
        Some(VolumeProof::OtherClaim(uid)) => {
            let refers = volume.as_deref().and_then(|volume| volume.spec.claim_ref.as_ref());
            lost(claim, ClaimReason::Misbound(name.clone(), uid.clone()), refers)
        }
        None => prove_volume(name),
    }
}

/// Asks for the volume that a claim was bound to.
fn prove_volume(name: &VolumeName) -> ClaimDecision {
    let read = Call::read(ObjectRef::Volume(name.clone()), Purpose::ProveVolume);
    Decision::step(ClaimReason::ProvingLost(name.clone()), read)
}

/// What becomes of a claim that is Bound to a volume which refers to a claim that does not take it: it keeps its phase, and
/// the volume is given back to it (S45). If another claim is Bound to it, too, or it is Released, people decide.
fn robbed(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
    reference: &ClaimRef,
    state: &State,
) -> Option<ClaimDecision> {
    let owners = volume::robbed(volume, reference, state);
    owners.iter().find(|owner| owner.key() == claim.key())?;
    let taken = ClaimReason::NamedTaken(volume.key(), reference.key());
    Some(if owners.len() > 1 {
        ClaimDecision::waiting(claim, ClaimReason::Disputed(volume.key()))
    } else if volume::is_parked(volume) {
        ClaimDecision::waiting(claim, taken)
    } else {
        Decision::rest(taken)
    })
}

/// Binds the two, as far as nothing else is in the way.
fn bind(volume: &PersistentVolume, claim: &PersistentVolumeClaim, state: &State) -> ClaimDecision {
    let name = volume.key();
    if state.is_busy(&name) {
        return Decision::rest(ClaimReason::VolumeBusy(name));
    }
    if !held_by(volume, claim)
        && let Some(other) = other_held(claim, &name, state)
    {
        return ClaimDecision::waiting(claim, ClaimReason::HoldsOther(other));
    }
    if !held_by(volume, claim)
        && let Some(other) = state.doubts.of(claim, &state.objects).filter(|other| **other != name)
    {
        return ClaimDecision::waiting(claim, ClaimReason::Uncertain(other.clone()));
    }
    match binding::next_write(volume, claim) {
        Ok(Some(write)) => Decision::step(ClaimReason::Binding(name, write.kind), Call::Write(write)),
        Ok(None) => Decision::rest(ClaimReason::Bound(name)),
        Err(NoCapacity) => ClaimDecision::waiting(claim, ClaimReason::NoCapacity(name)),
    }
}

/// Another volume that carries the claim's UID. It has to be given back before the UID is written
/// to a second one (S19); one already Released is on its way out.
fn other_held(claim: &PersistentVolumeClaim, wanted: &VolumeName, state: &State) -> Option<VolumeName> {
    state
        .volumes
        .referring_to(&claim.key())
        .filter(|name| *name != wanted)
        .find(|name| {
            state.volume(name).is_some_and(|volume| {
                held_by(&volume, claim)
                    && !matches!(volume.status.phase, VolumePhase::Released | VolumePhase::Failed)
            })
        })
        .cloned()
}

/// The claim is Pending, and users are told why.
fn pends(claim: &PersistentVolumeClaim, reason: ClaimReason) -> ClaimDecision {
    let change = binding::unbound_status(claim, ClaimPhase::Pending);
    let write = change.map(|change| patches::claim_status(WriteKind::ClaimPending, claim, &change));
    ClaimDecision::waiting(claim, reason).writing(write)
}

/// The same, but of a claim that was bound nothing else than its phase may say whose the volume is (S45).
fn pends_unless_bound(claim: &PersistentVolumeClaim, reason: ClaimReason) -> ClaimDecision {
    if was_bound(claim) { ClaimDecision::waiting(claim, reason) } else { pends(claim, reason) }
}

fn lost(claim: &PersistentVolumeClaim, reason: ClaimReason, refers: Option<&ClaimRef>) -> ClaimDecision {
    let events = events::lost(claim, &reason, refers);
    let Some(change) = binding::unbound_status(claim, ClaimPhase::Lost) else {
        return events.into_iter().fold(Decision::rest(reason), Decision::telling);
    };
    let mut write = patches::claim_status(WriteKind::ClaimLost, claim, &change);
    if change.contains_key("phase") {
        write.then.extend(events);
    }
    Decision::step(reason, Call::Write(write))
}
