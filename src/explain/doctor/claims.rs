//! Claims and volumes that wait, by what they wait for.
//!
//! In: what an explanation says of each claim, and the binder of each volume. Out: groups by reason and by class or volume;
//! pods that do not start for want of their claim count with its cause.

use std::collections::BTreeMap;

use super::{
    Severity,
    groups::{Cause, Groups, Victim},
};
use crate::{
    binder::{
        dry_run::Outlook,
        matching::predicate::{claim_class, volume_class},
        tell::reason::{ClaimReason, VolumeReason},
    },
    explain::{
        age, claim, report::Verdict, snapshot::Snapshot, subject::Subject, view::View, volume::is_nobodys,
    },
    kube_api::{
        ids::ClaimKey,
        kinds::{ClaimPhase, Narrow, PersistentVolumeClaim, PodPhase},
    },
};

pub(super) fn look(view: &View<'_>, groups: &mut Groups<'_>, fine: &mut Vec<String>) {
    let Some(outlook) = &view.binder else { return };
    let (mut bound, mut first_consumer) = (0_usize, 0_usize);
    let mut waiting: BTreeMap<&ClaimKey, Option<usize>> = BTreeMap::new();
    for (key, place) in &outlook.claims {
        let Some(claim) = view.objects().claims.get(key) else { continue };
        let is_going = claim.metadata.is_terminating();
        let reason = place.reason.as_deref();
        if !is_going && matches!(reason, None | Some(ClaimReason::Bound(_))) {
            bound += usize::from(claim.status.phase == ClaimPhase::Bound);
            continue;
        }
        let link = claim::link(view, key);
        if !is_going
            && link.verdict == Verdict::Waiting
            && matches!(reason, Some(ClaimReason::WaitsForFirstConsumer))
        {
            first_consumer += 1;
            continue;
        }
        // When a claim was lost is not kept anywhere.
        let is_new = claim.status.phase == ClaimPhase::Pending;
        let deleted = claim.metadata.deletion_timestamp.as_deref().copied();
        let since = deleted.or(claim.metadata.creation_timestamp.filter(|_| is_new));
        let victim = Victim { subject: Subject::Claim(key.clone()), unit: "claim", since, next_at: None };
        let (about, class) = match reason {
            None => (claim::fate(view, &claim), None),
            Some(reason) => (about(reason, &claim), Some(claim_class(&claim)).filter(|it| !it.is_empty())),
        };
        let is_of_class = class.is_some_and(|class| class == about);
        let index = groups.note_link(&link, about, victim);
        // The class explains more than one of many claims does.
        if let (Some(index), Some(class), true) = (index, class, is_of_class)
            && groups.count(index) == 2
        {
            groups.explained_by(index, &Subject::Class(class.into()));
        }
        // One that is going serves the pods that have it.
        if !is_going {
            waiting.insert(key, index);
        }
    }
    if !waiting.is_empty() {
        view.objects().pods.for_each(|pod| {
            if pod.status.phase != PodPhase::Pending || pod.metadata.is_terminating() {
                return;
            }
            for volume in &pod.spec.volumes {
                if let Some(index) = pod.claim_of(volume).and_then(|claim| waiting.get(&claim)) {
                    groups.suffers(*index, &pod.key());
                }
            }
        });
    }
    let volumes = volumes(view.snapshot, outlook, groups);
    let settled = [
        (bound, "claim", "bound"),
        (first_consumer, "claim", "waiting for a first pod, as the class wants it"),
        (volumes, "volume", "settled"),
    ];
    for (count, thing, how) in settled.into_iter().filter(|(count, ..)| *count > 0) {
        fine.push(format!("{} {how}", age::counted(count, thing)));
    }
}

/// What claims that wait for the same have in common: a volume, or their class.
fn about(reason: &ClaimReason, claim: &PersistentVolumeClaim) -> String {
    match reason {
        ClaimReason::NamedMissing(name)
        | ClaimReason::NamedTaken(name, _)
        | ClaimReason::NamedMismatched(name, _)
        | ClaimReason::HoldsMismatched(name, _)
        | ClaimReason::NoCapacity(name)
        | ClaimReason::LostVolume(name)
        | ClaimReason::Misbound(name, _)
        | ClaimReason::ProvingLost(name) => name.to_string(),
        ClaimReason::ObjectUnreadable(what) => what.clone(),
        ClaimReason::LostReference | ClaimReason::Unreadable(_) => String::new(),
        _ => claim_class(claim).to_owned(),
    }
}

/// Volumes that cannot be reclaimed, or whose reservation does not suit. Returns how many are settled.
fn volumes(snapshot: &Snapshot, outlook: &Outlook, groups: &mut Groups<'_>) -> usize {
    let mut settled = 0;
    for (name, place) in &outlook.volumes {
        let Some(reason) = place.reason.as_deref() else {
            settled += 1;
            continue;
        };
        let (severity, summary) = match reason {
            VolumeReason::NotReclaimable(_) => {
                (Severity::Blocked, "Released, and nothing here can reclaim them".to_owned())
            }
            VolumeReason::DeleteFailed(error) | VolumeReason::RecycleFailed(error) => {
                (Severity::Blocked, error.clone())
            }
            VolumeReason::ModesDiffer(claim) => (
                Severity::Blocked,
                format!("file system and block device are confused: reserved for {claim}"),
            ),
            VolumeReason::Unreadable(what) => {
                (Severity::Blocked, format!("what holds the data cannot be read: {}", what.error))
            }
            VolumeReason::ObjectUnreadable(what) => (Severity::Blocked, format!("{what} cannot be read")),
            VolumeReason::LeftToProvisioner if is_nobodys(snapshot, name) => (
                Severity::Blocked,
                "Released and to be deleted, and made by hand: no provisioner takes them for its own"
                    .to_owned(),
            ),
            VolumeReason::LeftToProvisioner => {
                (Severity::Waiting, "Released; the provisioner that made them deletes them".to_owned())
            }
            VolumeReason::UsedByPods(pods) => (
                Severity::Waiting,
                format!("Released, and not recycled while {} use them", age::counted(pods.len(), "pod")),
            ),
            _ => {
                settled += usize::from(reason.is_settled());
                continue;
            }
        };
        let Some(volume) = snapshot.objects.volumes.get(name) else { continue };
        let about = volume_class(&volume).to_owned();
        // When a volume was released is not kept in what is listed.
        let victim =
            Victim { subject: Subject::Volume(name.clone()), unit: "volume", since: None, next_at: None };
        groups.note(Cause { severity, reason: reason.code(), about }, victim, || summary);
    }
    settled
}
