//! A PersistentVolume: whose it is, and what becomes of it.
//!
//! In: the reason that the binder's decision returned. Out: a [`Link`].

use super::{
    actions::{care, never, safe},
    candidates::{modes, quantity},
    links::Link,
    report::Verdict,
    subject::Subject,
    view::{Missing, View, get},
};
use crate::{
    binder::{matching::predicate::volume_class, tell::reason::VolumeReason},
    kube_api::{
        ids::VolumeName,
        kinds::{ClaimRef, PersistentVolume, VolumePhase},
    },
};

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
        Some(reason) => of_reason(view, &subject, reason),
        None => settled(&subject, &volume),
    };
    let link = match volume.metadata.deletion_timestamp.as_deref() {
        Some(deleted) => {
            let finalizers: Vec<&str> = volume.metadata.finalizers.iter().map(|it| &**it).collect();
            let message =
                format!("{}; it is being deleted and waits for {}", link.step.message, finalizers.join(", "));
            let verdict = link.verdict.max(Verdict::Waiting);
            Link::new(&subject, "Terminating", message, verdict)
                .next("Delete", Some("the finalizers are gone"))
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

fn settled(subject: &Subject, volume: &PersistentVolume) -> Link {
    let claim = volume.spec.claim_ref.as_ref().map(ClaimRef::key);
    match (volume.status.phase, claim) {
        (VolumePhase::Bound, Some(claim)) => {
            Link::new(subject, "Bound", format!("bound to claim {claim}"), Verdict::Healthy)
        }
        (VolumePhase::Released, Some(claim)) => {
            let name = volume.metadata.name.as_str();
            let message = format!(
                "claim {claim} is gone, and the volume is kept with its data: no other claim takes it"
            );
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

/// Whether somebody has to act.
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

fn of_reason(view: &View<'_>, subject: &Subject, reason: &VolumeReason) -> Link {
    if let (VolumeReason::Proving(_), Some(what)) = (
        reason,
        view.lacks_rights(|what| what.starts_with("pvc/") || what.starts_with("persistentvolumeclaim")),
    ) {
        let message = format!("it cannot be told whether its claim is there: {what} may not be read");
        return Link::new(subject, "Forbidden", message, Verdict::Forbidden);
    }
    let mut link = Link::new(subject, reason.code(), reason.to_string(), verdict(reason));
    link = match reason {
        VolumeReason::Reserved(claim) => {
            link.blocked_by(Subject::Claim(claim.clone()).json(), "has not taken the volume")
        }
        VolumeReason::Releasing(_) => link.next("Release", None),
        VolumeReason::LeftToProvisioner => link
            .next("Delete", Some("the provisioner deletes it"))
            .act(safe("if it lasts: see what the provisioner says", &["kubectl", "get", "events", "-A"])),
        _ => link,
    };
    link
}
