//! A generic ephemeral volume whose claim is not there, or is not the pod's.
//!
//! In: what the ephemeral volume controller's decision returns for that volume, and the controller's last word. Out: the
//! [`Link`] of what the pod waits for; none if the claim is the pod's, whose own link says the rest.

use apiserver::{
    ids::ClaimKey,
    kinds::{Narrow, ObjectRef, PersistentVolumeClaim, Pod, PodVolume},
};

use super::{
    age,
    links::Link,
    report::Verdict,
    said::last_warning,
    table::Facts,
    view::{Missing, View, finalizers, get},
};
use crate::ephemeral::{
    decide::{ClaimStep, known, step_of},
    reasons::EphemeralReason,
};

/// See the module.
pub(super) fn link(view: &View<'_>, pod: &Pod, volume: &PodVolume) -> Option<Link> {
    if pod.metadata.is_terminating() {
        return None;
    }
    match step_of(pod, volume, |claim| known(view.objects(), claim)) {
        ClaimStep::Create(volume, claim) => to_create(view, pod, &volume, &claim),
        ClaimStep::NotOwned(volume, claim) => {
            let told = EphemeralReason::NotOwned(volume.clone(), claim.clone()).to_string();
            Some(not_owned(view, pod, &claim, &[("volume", &volume), ("told", &told), ("other", &claim)]))
        }
        ClaimStep::Nothing | ClaimStep::Unreadable(_) => None,
    }
}

/// The claim does not exist, as far as that is known.
fn to_create(view: &View<'_>, pod: &Pod, volume: &str, claim: &ClaimKey) -> Option<Link> {
    if !matches!(view.missing::<PersistentVolumeClaim>(claim), Missing::Absent) {
        return None;
    }
    let warning = last_warning(view, &pod.metadata.uid, &["FailedBinding"]);
    let told = warning.map_or_else(
        || "no event tells why not".to_owned(),
        |(at, said)| format!("it said {} ago: {said}", age::between(at, view.now())),
    );
    let facts: Facts<'_> = &[("volume", &volume), ("claim", claim), ("told", &told)];
    let link = Link::told_of(&ObjectRef::Pod(pod.key()), "ClaimMissing", "ephemeral", facts);
    Some(link.verdict(Verdict::of_wait(pod.metadata.creation_timestamp, view.now())))
}

/// The claim is another's: of an earlier pod of this name, with which it goes, or of somebody.
fn not_owned(view: &View<'_>, pod: &Pod, claim: &ClaimKey, facts: Facts<'_>) -> Link {
    let subject = ObjectRef::Pod(pod.key());
    let other = get::<PersistentVolumeClaim>(view, claim);
    let owner = other.as_deref().and_then(|other| other.metadata.controller());
    let earlier = owner.filter(|owner| &*owner.kind == Pod::KIND && *owner.name == *pod.metadata.name);
    let (Some(other), Some(earlier)) = (&other, earlier) else {
        return Link::told_of(&subject, "ClaimNotOwnedByPod", "pod", facts);
    };
    let going = match finalizers(&other.metadata) {
        kept if other.metadata.is_terminating() => format!("it is being deleted and waits for {kept}"),
        _ => "the garbage collector has not deleted it yet".to_owned(),
    };
    let own: Facts<'_> = &[("uid", &earlier.uid), ("going", &going)];
    let link = Link::told_of(&subject, "ClaimNotOwnedByPod", "earlier pod", &[own, facts].concat());
    link.verdict(Verdict::of_wait(pod.metadata.creation_timestamp, view.now()))
}
