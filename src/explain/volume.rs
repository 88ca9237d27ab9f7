//! A PersistentVolume: whose it is, and what becomes of it.
//!
//! In: the reason that the binder's decision returned. Out: a [`Link`].

use super::{
    actions::{care, never, safe},
    candidates::{modes, quantity},
    claim,
    links::Link,
    report::Verdict,
    snapshot::Snapshot,
    subject::Subject,
    view::{Missing, View, get},
    writes,
};
use crate::{
    binder::{
        act::write::WriteKind,
        annotations::{BOUND_BY_CONTROLLER, MIGRATED_TO, PROVISIONED_BY, has},
        dry_run::all_mismatches,
        matching::predicate::{Mismatch, volume_class},
        tell::reason::VolumeReason,
    },
    kube_api::{
        ids::{ClaimKey, VolumeName},
        kinds::{ClaimRef, Narrow, PersistentVolume, PersistentVolumeClaim, ReclaimPolicy, VolumePhase},
    },
};

/// The finalizer that keeps a volume as long as a claim is bound to it.
pub(super) const PROTECTION: &str = "kubernetes.io/pv-protection";

/// The link of a volume.
pub(super) fn link(view: &View<'_>, name: &VolumeName) -> Link {
    let subject = Subject::Volume(name.clone());
    let Some(volume) = get::<PersistentVolume>(view, name) else {
        return match view.missing::<PersistentVolume>(name) {
            Missing::Absent => Link::new(
                &subject,
                "VolumeMissing",
                format!("PersistentVolume {name} does not exist"),
                Verdict::Blocked,
            ),
            Missing::Unreadable(error) => Link::new(
                &subject,
                "ObjectUnreadable",
                format!("PersistentVolume {name} cannot be read: {error}"),
                Verdict::Blocked,
            ),
            Missing::Unseen(why) => Link::new(
                &subject,
                "Forbidden",
                format!("PersistentVolume {name} could not be read: {why}"),
                Verdict::Forbidden,
            ),
        };
    };
    let place = view.volume(name);
    let link = match place.reason.as_deref() {
        Some(reason) => of_reason(view, &subject, (reason, place.write)),
        None => writes::of_volume(settled(view, &subject, &volume), place.write),
    };
    let link = match volume.metadata.deletion_timestamp.as_deref() {
        Some(deleted) => {
            let finalizers: Vec<&str> = volume.metadata.finalizers.iter().map(|it| &**it).collect();
            let kept_for = volume.spec.claim_ref.as_ref().filter(|_| is_kept(&volume)).map(ClaimRef::key);
            let finalizers = finalizers.join(", ");
            let (why, until) = match kept_for {
                Some(claim) => (
                    format!("stays as long as claim {claim} is bound to it ({finalizers})"),
                    format!("claim {claim} is gone"),
                ),
                None => (format!("waits for {finalizers}"), "the finalizers are gone".to_owned()),
            };
            let message = format!("{}; volume {name} is being deleted and {why}", link.step.message);
            let verdict = link.verdict.max(Verdict::Waiting);
            Link::new(&subject, claim::TERMINATING, message, verdict)
                .next("Delete", Some(&until))
                .since(Some(*deleted))
        }
        None => link,
    };
    let detail = [
        quantity(&volume.spec.capacity),
        modes(&volume.spec.access_modes),
        format!("class={}", volume_class(&volume)),
        format!("{:?}", volume.spec.reclaim_policy),
        format!("{:?}", volume.status.phase),
    ];
    link.detail(detail.join("  "))
}

/// Whether a volume that is being deleted is kept for its claim, and serves it.
// KCM: pkg/controller/volume/pvprotection.
pub(super) fn is_kept(volume: &PersistentVolume) -> bool {
    volume.status.phase == VolumePhase::Bound
        && volume.metadata.finalizers.iter().any(|finalizer| &**finalizer == PROTECTION)
}

fn settled(view: &View<'_>, subject: &Subject, volume: &PersistentVolume) -> Link {
    let claim = volume.spec.claim_ref.as_ref().map(ClaimRef::key);
    match (volume.status.phase, claim) {
        (VolumePhase::Bound, Some(claim)) => {
            Link::new(subject, "Bound", format!("bound to claim {claim}"), Verdict::Healthy)
        }
        (VolumePhase::Released, Some(claim)) => {
            let name = volume.metadata.name.as_str();
            let message = if get::<PersistentVolumeClaim>(view, &claim).is_some() {
                format!(
                    "its claim {claim} is gone, and another of that name is there, which does not take it: the volume is \
                     kept with its data"
                )
            } else {
                format!(
                    "claim {claim} is gone, and the volume is kept with its data: no other claim takes it"
                )
            };
            Link::new(subject, "Retained", message, Verdict::Healthy)
                .act(care(
                    "to give it to a new claim WITH the data that is on it; the command shows the request and sends \
                     nothing without --yes",
                    &["mooring", "repair", "free", name],
                ))
                .act(never("free it for another tenant: the former claim's data is on it"))
        }
        (_, _) => Link::new(subject, "Available", "free: a claim that fits takes it", Verdict::Healthy),
    }
}

/// Whether a person has to act.
pub(super) fn verdict(reason: &VolumeReason) -> Verdict {
    match reason {
        VolumeReason::Available | VolumeReason::Bound(_) | VolumeReason::Retained => Verdict::Healthy,
        VolumeReason::Annotating
        | VolumeReason::HeldBack(_)
        | VolumeReason::Reserved(_)
        | VolumeReason::ClaimBindsNext(_)
        | VolumeReason::Undoing(_)
        | VolumeReason::Proving(_)
        | VolumeReason::Releasing(_)
        | VolumeReason::LeftToProvisioner
        | VolumeReason::UsedByPods(_)
        | VolumeReason::Recycling
        | VolumeReason::Deleting => Verdict::Waiting,
        VolumeReason::ObjectUnreadable(_)
        | VolumeReason::ModesDiffer(_)
        | VolumeReason::Unreadable(_)
        | VolumeReason::NotReclaimable(_)
        | VolumeReason::RecycleFailed(_)
        | VolumeReason::LeftoverPod(_)
        | VolumeReason::DeleteFailed(_) => Verdict::Blocked,
    }
}

fn of_reason(
    view: &View<'_>,
    subject: &Subject,
    (reason, write): (&VolumeReason, Option<WriteKind>),
) -> Link {
    if let (VolumeReason::Proving(_), Some(what)) = (
        reason,
        view.lacks_rights(|what| what.starts_with("pvc/") || what.starts_with("persistentvolumeclaim")),
    ) {
        let message = format!("it cannot be told whether its claim is there: {what} may not be read");
        return Link::new(subject, "Forbidden", message, Verdict::Forbidden);
    }
    let mut link = Link::new(subject, reason.code(), reason.to_string(), verdict(reason));
    link = match reason {
        VolumeReason::Reserved(claim) => of_reservation(view, link, subject, claim),
        VolumeReason::ClaimBindsNext(claim) | VolumeReason::Undoing(claim) => {
            of_claim_elsewhere(view, link, subject, claim)
        }
        VolumeReason::LeftToProvisioner if matches!(subject, Subject::Volume(name) if is_nobodys(view.snapshot, name)) => {
            made_by_hand(subject, &link)
        }
        VolumeReason::LeftToProvisioner => link
            .next("Delete", Some("the provisioner deletes it"))
            .act(safe("if it lasts: see what the provisioner says", &["kubectl", "get", "events", "-A"])),
        _ => link,
    };
    writes::of_volume(link, write)
}

/// Whether no provisioner takes a volume for its own.
// external-provisioner: sig-storage-lib-external-provisioner, controller/controller.go, shouldDelete.
pub(super) fn is_nobodys(snapshot: &Snapshot, name: &VolumeName) -> bool {
    snapshot.objects.volumes.get(name).is_some_and(|volume| {
        volume.spec.reclaim_policy == ReclaimPolicy::Delete
            && !has(&volume.metadata, PROVISIONED_BY)
            && !has(&volume.metadata, MIGRATED_TO)
    })
}

/// A volume that is to be deleted and was made by hand.
fn made_by_hand(subject: &Subject, link: &Link) -> Link {
    let name = subject.name();
    let message = format!(
        "released, and to be deleted, but no provisioner does it: it lacks the annotation {PROVISIONED_BY}, by which one \
         knows its own"
    );
    Link::new(subject, &link.step.reason, message, Verdict::Blocked)
        .act(safe(
            "look at it, and at the storage behind it: with its data it stays until a person deletes both",
            &["kubectl", "describe", "pv", name],
        ))
        .act(care(
            "to keep its data: set the policy to Retain, and then free it for a new claim",
            &["kubectl", "patch", "pv", name, "-p", r#"{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}"#],
        ))
}

/// A volume that is reserved by name. It waits for a claim that is to come; one that is there and goes elsewhere never
/// takes it.
fn of_reservation(view: &View<'_>, link: Link, subject: &Subject, key: &ClaimKey) -> Link {
    let waits = |link: Link| link.blocked_by(Subject::Claim(key.clone()).json(), "has not taken the volume");
    if matches!(view.missing::<PersistentVolumeClaim>(key), Missing::Absent) {
        return link
            .blocked_by(Subject::Claim(key.clone()).json(), "does not exist")
            .next("Bind", Some("a claim of that name is made that the volume suits"))
            .act(safe(
                "nothing is wrong if that claim is to come; else see how claims there are called",
                &["kubectl", "get", "pvc", "-n", key.namespace()],
            ));
    }
    let (Subject::Volume(name), Some(claim)) = (subject, get::<PersistentVolumeClaim>(view, key)) else {
        return waits(link);
    };
    let mismatches = get::<PersistentVolume>(view, name)
        .and_then(|volume| all_mismatches(&volume, &claim).ok())
        .unwrap_or_default();
    let mismatches: Vec<&str> = mismatches
        .iter()
        .filter(|mismatch| **mismatch != Mismatch::Phase)
        .map(|mismatch| mismatch.code())
        .collect();
    match other_volume(view, &claim, name) {
        Some(other) => stays_reserved(&link, subject, key, format!("has {other}")),
        None if mismatches.is_empty() => waits(link),
        None => stays_reserved(
            &link,
            subject,
            key,
            format!("is not suited by it ({})", mismatches.join(", ")),
        )
        .act(safe(
            "make the claim anew with what the volume has, or put the volume's object right if that is wrong",
            &["kubectl", "get", "pvc", key.name(), "-n", key.namespace(), "-o", "yaml"],
        )),
    }
}

/// A volume that has its claim's UID, while the claim may have found another.
fn of_claim_elsewhere(view: &View<'_>, mut link: Link, subject: &Subject, key: &ClaimKey) -> Link {
    let (Subject::Volume(name), Some(claim)) = (subject, get::<PersistentVolumeClaim>(view, key)) else {
        return link;
    };
    let Some(other) = other_volume(view, &claim, name) else { return link };
    let is_made_by_binder =
        get::<PersistentVolume>(view, name).is_some_and(|volume| has(&volume.metadata, BOUND_BY_CONTROLLER));
    if !is_made_by_binder {
        return stays_reserved(&link, subject, key, format!("has {other}"));
    }
    link.step.message = format!("claim {key} has {other}: the reservation for it is undone");
    link
}

/// Which other volume a claim has, or is bound to next.
fn other_volume(view: &View<'_>, claim: &PersistentVolumeClaim, name: &VolumeName) -> Option<VolumeName> {
    let named = Some(claim.spec.volume_name.clone()).filter(|named| !named.is_empty());
    let next = || claim::chosen(view.claim(&claim.key()).reason.as_deref()).cloned();
    named.or_else(next).filter(|other| other != name)
}

/// What a person reserved for a claim that goes elsewhere.
fn stays_reserved(link: &Link, subject: &Subject, key: &ClaimKey, why: String) -> Link {
    let message =
        format!("reserved for {key}, which {why}: no claim gets it as long as the reservation stays");
    let patch = r#"[{"op":"remove","path":"/spec/claimRef"}]"#;
    Link::new(subject, &link.step.reason, message, Verdict::Blocked)
        .blocked_by(Subject::Claim(key.clone()).json(), why)
        .act(care(
            "take the reservation off; then whichever claim fits gets the volume, WITH the data that is on it",
            &["kubectl", "patch", "pv", subject.name(), "--type=json", "-p", patch],
        ))
}
