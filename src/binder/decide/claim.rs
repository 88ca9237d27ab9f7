//! What to do about one claim (pv-binder §2).
//!
//! In: the claim and the cluster as seen. Out: one decision. Two state machines, told apart by the
//! annotation `bind-completed`: a claim that was never bound looks for a volume, one that was only
//! ever keeps the volume it has.

use super::{
    annotations::{self, BIND_COMPLETED, BOUND_BY_CONTROLLER, SELECTED_NODE},
    binding::{self, NoCapacity, StatusChange},
    decision::{Decision, Step, Write, WriteKind, normal, warning},
    provisioning, upkeep,
    view::{View, VolumeProof},
};
use crate::{
    binder::{
        act::patches,
        matching::{
            choose_volume::Search,
            predicate::{Misfit, Wish, held_by, misfit_for_named, refers_to},
        },
        tell::reason::ClaimReason,
    },
    kube_api::{
        events::Event,
        ids::{ClassName, VolumeName},
        kinds::{BindingMode, ClaimPhase, Narrow, PersistentVolume, PersistentVolumeClaim, VolumePhase},
    },
};

/// Outcome of looking at a claim.
pub type ClaimDecision = Decision<ClaimReason>;

/// Decides about one claim.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, syncClaim.
#[must_use]
pub fn sync_claim(claim: &PersistentVolumeClaim, view: &View<'_>) -> ClaimDecision {
    if let Some(write) = upkeep::of_claim(claim) {
        return Decision::step(ClaimReason::Annotating, Step::Write(write));
    }
    if annotations::has(&claim.metadata, BIND_COMPLETED) {
        return sync_bound(claim, view);
    }
    let wish = match Wish::of(claim) {
        Ok(wish) => wish,
        Err(unreadable) => return blocked(claim, ClaimReason::Unreadable(unreadable)),
    };
    if claim.spec.volume_name.is_empty() { sync_open(&wish, view) } else { sync_named(&wish, view) }
}

/// Never bound, names no volume.
fn sync_open(wish: &Wish<'_>, view: &View<'_>) -> ClaimDecision {
    let decision = find_volume(wish, view);
    if !decision.reason.lacks_volume() {
        return decision;
    }
    let near = view.volumes.unbound().nearest(wish, 1, &|name| {
        view.compared.note();
        view.volume(name)
    });
    near.iter().fold(decision, |decision, near| {
        decision.telling(normal(wish.claim, "NearestVolume", near.to_string()))
    })
}

fn find_volume(wish: &Wish<'_>, view: &View<'_>) -> ClaimDecision {
    let claim = wish.claim;
    let class = view.class(wish.class);
    if class.is_none() && !wish.class.is_empty() {
        // A class that its watch has not delivered yet may delay the bind (S28).
        let name = ClassName::from(wish.class);
        if !view.proofs.is_without_class(&name, claim.metadata.resource_version) {
            return Decision::step(ClaimReason::ProvingClass(name.clone()), Step::ProveClass { class: name });
        }
    }
    let delayed = match class.as_ref().map(|class| class.volume_binding_mode) {
        None | Some(Some(BindingMode::Immediate)) => false,
        Some(Some(BindingMode::WaitForFirstConsumer)) => true,
        Some(None | Some(BindingMode::Unknown)) => {
            return blocked(claim, ClaimReason::UnknownBindingMode(ClassName::from(wish.class)));
        }
    };
    match view.volumes.search(wish, delayed, &|name| view.volume(name), view.busy, view.compared) {
        Search::Found(volume) => return bind(&volume, claim, view),
        Search::Busy(volume) => return Decision::rest(ClaimReason::VolumeBusy(volume)),
        Search::Held(volume, misfit) => return holds_unfit(&volume, claim, misfit),
        Search::Nothing => {}
    }
    if let Some(default) = view.default_class
        && claim.spec.storage_class_name.is_none()
        && !annotations::has(&claim.metadata, annotations::BETA_STORAGE_CLASS)
    {
        let write = Write::claim(claim, WriteKind::AssignClass, patches::assign_class(claim, default));
        return Decision::step(ClaimReason::AssigningClass(default.clone()), Step::Write(write));
    }
    if delayed && !annotations::has(&claim.metadata, SELECTED_NODE) {
        let pods = view.pods.unscheduled(&claim.key());
        let (reason, event) = if pods.is_empty() {
            (ClaimReason::WaitsForFirstConsumer, "WaitForFirstConsumer")
        } else {
            (ClaimReason::WaitsForPods(pods), "WaitForPodScheduled")
        };
        let event = normal(claim, event, reason.to_string());
        return Decision::rest(reason).telling(event).writing(pending(claim));
    }
    if !wish.class.is_empty() {
        return provisioning::provision(claim, &ClassName::from(wish.class), class.as_deref(), view);
    }
    let event = normal(claim, "FailedBinding", ClaimReason::NoVolume.to_string());
    Decision::rest(ClaimReason::NoVolume).telling(event).writing(pending(claim))
}

/// Never bound, names a volume: a user's choice, which class and selector do not overrule once the
/// volume names the claim too.
fn sync_named(wish: &Wish<'_>, view: &View<'_>) -> ClaimDecision {
    let claim = wish.claim;
    let name = &claim.spec.volume_name;
    let Some(volume) = view.volume(name) else {
        let reason = ClaimReason::NamedMissing(name.clone());
        let event = normal(claim, "NamedVolumeMissing", reason.to_string());
        return Decision::rest(reason).telling(event).writing(pending(claim));
    };
    let Some(reference) = &volume.spec.claim_ref else {
        if let Some(misfit) = misfit_for_named(&volume, wish) {
            let reason = ClaimReason::NamedUnfit(name.clone(), misfit);
            let event = warning(claim, "VolumeMismatch", reason.to_string());
            return Decision::rest(reason).telling(event).writing(pending(claim));
        }
        return bind(&volume, claim, view);
    };
    if refers_to(reference, claim) {
        return bind(&volume, claim, view);
    }
    let reason = ClaimReason::NamedTaken(name.clone(), reference.key());
    let event = warning(claim, "FailedBinding", reason.to_string());
    let decision = Decision::rest(reason).telling(event);
    // A claim that says the binder chose this volume for it contradicts the volume: nothing is
    // written over that.
    if annotations::has(&claim.metadata, BOUND_BY_CONTROLLER) {
        return decision;
    }
    decision.writing(pending(claim))
}

/// Bound before: keeps its volume, or has lost it.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, syncBoundClaim.
fn sync_bound(claim: &PersistentVolumeClaim, view: &View<'_>) -> ClaimDecision {
    let name = &claim.spec.volume_name;
    if name.is_empty() {
        return lost(claim, ClaimReason::LostReference);
    }
    let volume = view.volume(name);
    if let Some(volume) = volume.as_deref() {
        match &volume.spec.claim_ref {
            Some(reference) if reference.uid != claim.metadata.uid => {}
            _ => return bind(volume, claim, view),
        }
    }
    // Our table may be behind; "data is lost" is only said after asking (S24).
    let seen = volume.map(|volume| volume.metadata.resource_version);
    match view.proofs.volume(&claim.key(), &claim.metadata.uid, seen) {
        Some(VolumeProof::Gone) => lost(claim, ClaimReason::LostVolume(name.clone())),
        Some(VolumeProof::OtherClaim(uid)) => lost(claim, ClaimReason::Misbound(name.clone(), uid.clone())),
        None => {
            Decision::step(ClaimReason::ProvingLost(name.clone()), Step::ProveVolume { volume: name.clone() })
        }
    }
}

/// Binds the two, as far as nothing else is in the way.
fn bind(volume: &PersistentVolume, claim: &PersistentVolumeClaim, view: &View<'_>) -> ClaimDecision {
    let name = volume.key();
    if (view.busy)(&name) {
        return Decision::rest(ClaimReason::VolumeBusy(name));
    }
    if !held_by(volume, claim)
        && let Some(other) = other_held(claim, &name, view)
    {
        return Decision::rest(ClaimReason::HoldsOther(other));
    }
    if !held_by(volume, claim)
        && let Some(other) = view.doubts.other(&claim.metadata.uid, &name)
    {
        return Decision::rest(ClaimReason::InDoubt(other.clone()));
    }
    match binding::next_write(volume, claim) {
        Ok(Some(write)) => Decision::step(ClaimReason::Binding(name, write.kind), Step::Write(write)),
        Ok(None) => Decision::rest(ClaimReason::Bound(name)),
        Err(NoCapacity) => blocked(claim, ClaimReason::NoCapacity(name)),
    }
}

/// Something that somebody has to put right. Upstream only logs it.
fn blocked(claim: &PersistentVolumeClaim, reason: ClaimReason) -> ClaimDecision {
    let event = warning(claim, "FailedBinding", reason.to_string());
    Decision::rest(reason).telling(event)
}

/// Another volume that carries the claim's UID. It has to be given back before the UID is written
/// to a second one (S19); one already Released is on its way out.
fn other_held(claim: &PersistentVolumeClaim, wanted: &VolumeName, view: &View<'_>) -> Option<VolumeName> {
    view.volumes
        .referring_to(&claim.key())
        .filter(|name| *name != wanted)
        .find(|name| {
            view.volume(name).is_some_and(|volume| {
                held_by(&volume, claim)
                    && !matches!(volume.status.phase, VolumePhase::Released | VolumePhase::Failed)
            })
        })
        .cloned()
}

/// The volume with the claim's UID does not suit it. Upstream would take another and so hold two.
fn holds_unfit(volume: &PersistentVolume, claim: &PersistentVolumeClaim, misfit: Misfit) -> ClaimDecision {
    let name = volume.key();
    let text = ClaimReason::NamedUnfit(name.clone(), misfit).to_string();
    let decision = Decision::rest(ClaimReason::HoldsUnfit(name, misfit));
    // That case has events of its own on both objects, sent when the volume is looked at.
    let decision = if misfit == Misfit::VolumeMode {
        decision
    } else {
        decision.telling(warning(claim, "VolumeMismatch", text))
    };
    decision.writing(pending(claim))
}

fn pending(claim: &PersistentVolumeClaim) -> Option<Write> {
    let change = StatusChange::unbound(claim, ClaimPhase::Pending)?;
    Some(Write::claim(claim, WriteKind::ClaimPending, patches::claim_status(claim, &change)))
}

/// The texts of upstream frighten, and say neither what happened nor what can be done.
fn what_was_lost(claim: &PersistentVolumeClaim, reason: &ClaimReason) -> Event {
    let (event, text) = match reason {
        ClaimReason::LostVolume(volume) => (
            "LostVolumeMissing",
            format!(
                "There is no volume {:?} any more; nothing was deleted because of that. If it comes back with a \
                 claimRef of UID {} or without one, the claim is Bound again.",
                volume.as_str(),
                claim.metadata.uid
            ),
        ),
        ClaimReason::Misbound(volume, uid) => (
            "LostMisbound",
            format!(
                "Volume {:?} is there, but its claimRef has {}; nothing was deleted because of that. If the \
                 volume belongs to this claim, setting spec.claimRef.uid to {} makes the claim Bound again.",
                volume.as_str(),
                if uid.is_empty() { "no UID, as after a restore" } else { "the UID of another claim" },
                claim.metadata.uid
            ),
        ),
        _ => (
            "LostReference",
            "The claim was bound, but its spec.volumeName is empty; nothing was deleted because of that."
                .to_owned(),
        ),
    };
    normal(claim, event, text)
}

fn lost(claim: &PersistentVolumeClaim, reason: ClaimReason) -> ClaimDecision {
    let event = if matches!(reason, ClaimReason::Misbound(..)) { "ClaimMisbound" } else { "ClaimLost" };
    let events = [warning(claim, event, reason.to_string()), what_was_lost(claim, &reason)];
    let Some(change) = StatusChange::unbound(claim, ClaimPhase::Lost) else {
        return events.into_iter().fold(Decision::rest(reason), Decision::telling);
    };
    let mut write = Write::claim(claim, WriteKind::ClaimLost, patches::claim_status(claim, &change));
    if change.phase.is_some() {
        write = events.into_iter().fold(write, Write::then);
    }
    Decision::step(reason, Step::Write(write))
}
