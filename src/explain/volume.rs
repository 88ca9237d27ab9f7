//! A PersistentVolume: whose it is, and what becomes of it.
//!
//! In: the reason that the binder's decision returned. Out: a [`Link`].

use std::sync::Arc;

use apiserver::{
    ids::{ClaimKey, VolumeName},
    kinds::{
        ClaimRef, CsiDriver, Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim, ReclaimPolicy,
        VolumePhase,
    },
};

use super::{
    age,
    candidates::{modes, quantity},
    claim,
    links::{Link, missing},
    report::Verdict,
    said::last_warning,
    sidecars::{Presence, Sidecar, attacher_finalizer},
    table::Facts,
    view::{Missing, View, finalizers, get},
    writes,
};
use crate::binder::{
    annotations::{BOUND_BY_CONTROLLER, MIGRATED_TO, PROVISIONED_BY, has},
    calls::WriteKind,
    dry_run::all_mismatches,
    matching::predicate::{Mismatch, volume_class, was_bound},
    reasons::VolumeReason,
};
use crate::protection::volumes::VOLUME_FINALIZER;

/// The finalizer of a volume whose disk its provisioner deletes.
const PROVISIONER_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// A volume, of which also the claim that it is for and the driver are looked at.
pub(super) fn read(view: &View<'_>, name: &VolumeName) -> Option<Arc<PersistentVolume>> {
    let volume = view.read::<PersistentVolume>(name)?;
    if let Some(reference) = &volume.spec.claim_ref {
        view.read::<PersistentVolumeClaim>(&reference.key());
    }
    if let Some(csi) = &volume.spec.csi {
        view.read::<CsiDriver>(&csi.driver);
    }
    Some(volume)
}

/// The volume of a claim.
pub(super) fn of_claim(view: &View<'_>, key: &ClaimKey) -> Option<Arc<PersistentVolume>> {
    let claim = view.read::<PersistentVolumeClaim>(key)?;
    Some(&claim.spec.volume_name).filter(|name| !name.is_empty()).and_then(|name| read(view, name))
}

/// The link of a volume.
pub(super) fn link(view: &View<'_>, name: &VolumeName) -> Link {
    let subject = ObjectRef::Volume(name.clone());
    let Some(volume) = read(view, name) else {
        return missing::<PersistentVolume>(view, &subject, name, "VolumeMissing");
    };
    let place = view.volume(name);
    let link = match place.reason.as_deref() {
        Some(reason) => of_reason(view, &volume, (reason, place.write)),
        None => writes::next(settled(view, &subject, &volume), place.write),
    };
    let link = match volume.metadata.deletion_timestamp.as_deref() {
        Some(deleted) => {
            let claim = volume.spec.claim_ref.as_ref().map(ClaimRef::key);
            let claim = claim.filter(|_| is_kept(&volume)).map(|claim| claim.to_string());
            let case = if claim.is_some() { "Terminating volume kept" } else { "Terminating volume" };
            let (claim, finalizers) = (claim.unwrap_or_default(), finalizers(&volume.metadata));
            let facts: Facts<'_> =
                &[("told", &link.step.message), ("finalizers", &finalizers), ("claim", &claim)];
            let link = without_owner(view, &subject, &volume).unwrap_or_else(|| {
                Link::told(&subject, case, facts).verdict(link.verdict.max(Verdict::Waiting))
            });
            link.since(Some(*deleted))
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

/// A volume that has long been deleted, with a finalizer that nobody there takes off.
fn without_owner(view: &View<'_>, subject: &ObjectRef, volume: &PersistentVolume) -> Option<Link> {
    let deleted = volume.metadata.deletion_timestamp.as_deref().copied();
    let driver = volume.spec.csi.as_ref().map(|csi| csi.driver.as_str()).unwrap_or_default();
    let owner = |finalizer: &str| {
        let sidecar = match finalizer {
            VOLUME_FINALIZER if volume.status.phase != VolumePhase::Bound => {
                return Some("the pv-protection controller, though the volume is not Bound".to_owned());
            }
            PROVISIONER_FINALIZER => Sidecar::Provisioner,
            _ if finalizer == attacher_finalizer(driver) => Sidecar::Attacher,
            _ => return None,
        };
        let is_absent =
            matches!(view.sidecars().presence(driver, sidecar), Presence::NotSeen | Presence::Gone(_));
        is_absent.then(|| format!("the {} of {driver}, which is not there,", <&str>::from(sidecar)))
    };
    let mut finalizers = volume.metadata.finalizers.iter().filter(|_| age::is_long(deleted, view.now()));
    let (finalizer, told) = finalizers.find_map(|finalizer| Some((finalizer, owner(finalizer)?)))?;
    Some(Link::told(subject, "FinalizerWithoutOwner", &[("finalizers", finalizer), ("told", &told)]))
}

/// Whether a volume that is being deleted is kept for its claim, and serves it.
// KCM: pkg/controller/volume/pvprotection.
pub(super) fn is_kept(volume: &PersistentVolume) -> bool {
    volume.status.phase == VolumePhase::Bound
        && volume.metadata.finalizers.iter().any(|finalizer| &**finalizer == VOLUME_FINALIZER)
}

fn settled(view: &View<'_>, subject: &ObjectRef, volume: &PersistentVolume) -> Link {
    let Some(claim) = volume.spec.claim_ref.as_ref().map(ClaimRef::key) else {
        return Link::told(subject, "Available", &[]);
    };
    let case = match volume.status.phase {
        VolumePhase::Bound => "Bound volume",
        VolumePhase::Released if get::<PersistentVolumeClaim>(view, &claim).is_some() => {
            "Retained beside claim"
        }
        VolumePhase::Released => "Retained",
        _ => "Available",
    };
    Link::told(subject, case, &[("claim", &claim)])
}

fn of_reason(
    view: &View<'_>,
    volume: &PersistentVolume,
    (reason, write): (&VolumeReason, Option<WriteKind>),
) -> Link {
    let subject = &ObjectRef::Volume(volume.key());
    let claims = |what: &str| what.starts_with("pvc/") || what.starts_with("persistentvolumeclaim");
    if let (VolumeReason::Proving(_), Some(what)) = (reason, view.lacks_rights(claims)) {
        let told = format!("whether its claim exists is unknown: you may not read {what}");
        return Link::told(subject, "Forbidden", &[("told", &told)]);
    }
    let told = reason.to_string();
    let link = |case| Link::told_of(subject, case, "volume", &[("told", &told)]);
    let link = match reason {
        VolumeReason::Reserved(claim) => of_reservation(view, volume, claim, &told),
        VolumeReason::Disputed => link("Reserved disputed"),
        VolumeReason::Undoing(_, Some(owner)) => {
            Link::told(subject, "Unbinding for owner", &[("told", &told), ("claim", owner)])
        }
        VolumeReason::ClaimBindsNext(claim) | VolumeReason::Undoing(claim, None) => {
            of_claim_elsewhere(view, link(reason.code()), volume, claim)
        }
        VolumeReason::LeftToProvisioner if is_nobodys(volume) => {
            Link::told(subject, "LeftToProvisioner made by hand", &[("annotation", &PROVISIONED_BY)])
        }
        VolumeReason::LeftToProvisioner => left_to_provisioner(view, link(reason.code()), volume),
        // An event does not name them (S41).
        VolumeReason::UsedByPods(pods) => {
            let pods = pods.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            Link::told(subject, reason.code(), &[("told", &told), ("pods", &pods)])
        }
        _ => link(reason.code()),
    };
    writes::next(link, write)
}

/// A provisioner is to delete the volume: whether it is there, and what it says.
fn left_to_provisioner(view: &View<'_>, mut link: Link, volume: &PersistentVolume) -> Link {
    let driver = volume.spec.csi.as_ref().map(|csi| csi.driver.as_str());
    let absent = driver.and_then(|it| view.sidecars().absence(it, Sidecar::Provisioner, None));
    let failed = last_warning(view, &volume.metadata.uid, &["VolumeFailedDelete"]);
    if let Some(told) = absent.as_deref().or(failed.map(|(_, told)| told)) {
        link.step.message = format!("{}, but {told}", link.step.message);
    }
    if absent.is_some() { link.verdict(Verdict::Blocked) } else { link }
}

/// Whether no provisioner takes a volume for its own.
// external-provisioner: sig-storage-lib-external-provisioner, controller/controller.go, shouldDelete.
fn is_nobodys(volume: &PersistentVolume) -> bool {
    volume.spec.reclaim_policy == ReclaimPolicy::Delete
        && !has(&volume.metadata, PROVISIONED_BY)
        && !has(&volume.metadata, MIGRATED_TO)
}

/// A volume that is reserved by name. It waits for a claim that is to come; one that is there and goes elsewhere never
/// takes it.
fn of_reservation(view: &View<'_>, volume: &PersistentVolume, key: &ClaimKey, told: &str) -> Link {
    let link = |case| Link::told(&ObjectRef::Volume(volume.key()), case, &[("claim", key), ("told", &told)]);
    if matches!(view.missing::<PersistentVolumeClaim>(key), Missing::Absent) {
        return link("Reserved for claim to come");
    }
    let Some(claim) = get::<PersistentVolumeClaim>(view, key) else { return link("Reserved") };
    let all = all_mismatches(volume, &claim).unwrap_or_default();
    let mismatches: Vec<&str> = all.iter().filter(|it| **it != Mismatch::Phase).map(|it| it.code()).collect();
    match other_volume(view, &claim, &volume.key()) {
        Some(other) => stays_reserved(view, volume, "Reserved", key, &format!("has {other}")),
        None if mismatches.is_empty() => link("Reserved"),
        None => {
            let why = format!("is not suited by it ({})", mismatches.join(", "));
            let link = stays_reserved(view, volume, "Reserved", key, &why);
            link.and("+unsuited claim", &[("claim", key)])
        }
    }
}

/// A volume that has its claim's UID, while the claim may have found another.
fn of_claim_elsewhere(view: &View<'_>, mut link: Link, volume: &PersistentVolume, key: &ClaimKey) -> Link {
    let Some(claim) = get::<PersistentVolumeClaim>(view, key) else { return link };
    let Some(other) = other_volume(view, &claim, &volume.key()) else { return link };
    if !has(&volume.metadata, BOUND_BY_CONTROLLER) {
        return stays_reserved(view, volume, &link.step.reason, key, &format!("has {other}"));
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

/// What a person reserved for a claim that goes elsewhere: it may have the data of a claim that was bound to it.
fn stays_reserved(
    view: &View<'_>,
    volume: &PersistentVolume,
    reason: &str,
    key: &ClaimKey,
    why: &str,
) -> Link {
    let name = volume.key();
    let is_owner = |claim: &PersistentVolumeClaim| claim.spec.volume_name == name && was_bound(claim);
    let owners = view.snapshot.keys(is_owner);
    let is_parked = matches!(volume.status.phase, VolumePhase::Released | VolumePhase::Failed);
    let owners = owners.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let (case, named) = match (owners.as_str(), is_parked) {
        // Nothing is concluded from claims that were not read (S42).
        ("", _) if !view.snapshot.is_whole::<PersistentVolumeClaim>() => {
            ("claimed", "whether another claim names it is not known, as not all could be read".to_owned())
        }
        ("", true) => ("kept", String::new()),
        ("", false) => ("stays", String::new()),
        // That it was bound, a claim can say of itself (S45).
        (owners, _) => {
            ("claimed", format!("it is named by {owners}, which does not prove whose data it has"))
        }
    };
    let facts: Facts<'_> = &[("claim", key), ("why", &why), ("named", &named)];
    Link::told(&ObjectRef::Volume(name), &format!("{reason} {case}"), facts)
}
