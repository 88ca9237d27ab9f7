//! Claims and volumes that wait, by what they wait for.
//!
//! In: the binder's outlook, and which side-cars are there. Out: groups by reason and by class, provisioner or volume;
//! pods that do not start for want of their claim count with its cause.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;

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
        age,
        sidecars::{Presence, Sidecar, Sidecars},
        snapshot::Snapshot,
        subject::Subject,
        volume::is_nobodys,
    },
    kube_api::{
        ids::ClaimKey,
        kinds::{ClaimPhase, Narrow, PersistentVolumeClaim, PodPhase},
    },
};

pub(super) fn look(
    snapshot: &Snapshot,
    outlook: &Outlook,
    sidecars: &Sidecars<'_>,
    groups: &mut Groups,
    fine: &mut Vec<String>,
) {
    let (mut bound, mut first_consumer) = (0_usize, BTreeSet::new());
    let mut waiting: BTreeMap<&ClaimKey, usize> = BTreeMap::new();
    for (key, place) in &outlook.claims {
        let Some(claim) = snapshot.objects.claims.get(key) else { continue };
        // What has no reason is settled.
        let Some(reason) = place.reason.as_deref() else {
            bound += usize::from(claim.status.phase == ClaimPhase::Bound);
            continue;
        };
        match reason {
            ClaimReason::Bound(_) => bound += 1,
            ClaimReason::WaitsForFirstConsumer => {
                first_consumer.insert(key);
            }
            reason => {
                let judged = judge(reason, &claim, sidecars, groups);
                // When a claim was lost is not kept anywhere.
                let is_new = claim.status.phase == ClaimPhase::Pending;
                let since = claim.metadata.creation_timestamp.filter(|_| is_new);
                let victim =
                    Victim { subject: Subject::Claim(key.clone()), unit: "claim", since, next_at: None };
                let index = groups.note(judged.cause, victim, || judged.summary);
                // The class explains more than one of many claims does.
                if groups.count(index) == 2 && !judged.class.is_empty() {
                    groups.explained_by(index, &Subject::Class(judged.class.into()));
                }
                waiting.insert(key, index);
            }
        }
    }
    for key in placed(snapshot, &first_consumer) {
        let Some(claim) = snapshot.objects.claims.get(key) else { continue };
        first_consumer.remove(key);
        let cause = Cause {
            severity: Severity::Blocked,
            reason: ClaimReason::WaitsForFirstConsumer.code(),
            about: claim_class(&claim).to_owned(),
        };
        let since = claim.metadata.creation_timestamp;
        let victim = Victim { subject: Subject::Claim(key.clone()), unit: "claim", since, next_at: None };
        let summary =
            || "their pods are on nodes without the scheduler, which would have chosen one".to_owned();
        waiting.insert(key, groups.note(cause, victim, summary));
    }
    if !waiting.is_empty() {
        snapshot.objects.pods.for_each(|pod| {
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
    let volumes = volumes(snapshot, outlook, groups);
    let settled = [
        (bound, "claim", "bound"),
        (first_consumer.len(), "claim", "waiting for a first pod, as the class wants it"),
        (volumes, "volume", "settled"),
    ];
    for (count, thing, how) in settled.into_iter().filter(|(count, ..)| *count > 0) {
        fine.push(format!("{} {how}", age::counted(count, thing)));
    }
}

/// Of claims that wait for the scheduler, those with a pod that was put on a node without it.
fn placed<'a>(snapshot: &Snapshot, claims: &BTreeSet<&'a ClaimKey>) -> BTreeSet<&'a ClaimKey> {
    let mut placed = BTreeSet::new();
    if !claims.is_empty() {
        snapshot.objects.pods.for_each(|pod| {
            if !pod.spec.node_name.is_empty() && !pod.is_terminated() {
                let used = pod.spec.volumes.iter().filter_map(|volume| pod.claim_of(volume));
                placed.extend(used.filter_map(|claim| claims.get(&claim).copied()));
            }
        });
    }
    placed
}

struct Judged<'a> {
    cause: Cause,
    class: &'a str,
    summary: String,
}

/// How bad it is that a provisioner has not answered yet, whether it is absent, and what is said before its name.
fn of_provisioner(
    provisioner: &str,
    stuck: bool,
    sidecars: &Sidecars<'_>,
    now: Timestamp,
) -> (Severity, bool, String) {
    use Severity::{Blocked, Waiting};
    match sidecars.presence(provisioner, Sidecar::Provisioner) {
        Presence::NotSeen => {
            (Blocked, true, "is served by no provisioner: no lease, CSIDriver object or event of".to_owned())
        }
        Presence::Gone(since) => {
            let age = age::between(since, now);
            (Blocked, true, format!("waits for a provisioner that was seen last {age} ago:"))
        }
        Presence::NoLease if stuck => {
            (Blocked, true, "has waited long for a provisioner that has no lease:".to_owned())
        }
        Presence::Seen | Presence::Unknown if stuck => (Blocked, false, "has waited long for".to_owned()),
        Presence::Seen | Presence::NoLease | Presence::Unknown => (Waiting, false, "waits for".to_owned()),
    }
}

fn judge<'a>(
    reason: &ClaimReason,
    claim: &'a PersistentVolumeClaim,
    sidecars: &Sidecars<'_>,
    groups: &Groups,
) -> Judged<'a> {
    use Severity::{Blocked, Waiting};
    let class = claim_class(claim);
    let stuck = groups.is_stuck(claim.metadata.creation_timestamp);
    let of_class = |severity, text: String| (severity, class.to_owned(), text);
    let mut code = reason.code();
    let (severity, about, summary) = match reason {
        ClaimReason::WaitsForProvisioner(provisioner) => {
            let (severity, is_absent, text) = of_provisioner(provisioner, stuck, sidecars, groups.now);
            if is_absent {
                code = "ProvisionerNotSeen";
            }
            of_class(severity, format!("class {class:?} {text} {provisioner}"))
        }
        ClaimReason::NoVolume if class.is_empty() => {
            of_class(Blocked, "no volume without a class fits, and no class would provide one".to_owned())
        }
        ClaimReason::NoVolume => {
            of_class(Blocked, format!("no volume fits, and class {class:?} provides none"))
        }
        ClaimReason::NoProvisioner(name) if name == crate::explain::claim::NO_PROVISIONER => {
            of_class(Blocked, format!("no volume fits, and those of class {class:?} are made by hand"))
        }
        ClaimReason::NoClass(name) => of_class(Blocked, format!("class {name:?} does not exist")),
        ClaimReason::NoProvisioner(name) => of_class(Blocked, format!("there is no provisioner {name:?}")),
        ClaimReason::CannotProvision(name) => of_class(Blocked, format!("{name} makes no volumes")),
        ClaimReason::ProvisioningOff => {
            of_class(Blocked, "the binder runs with provisioning switched off".to_owned())
        }
        ClaimReason::UnknownBindingMode(name) => {
            of_class(Blocked, format!("class {name:?} does not say when to bind"))
        }
        ClaimReason::OtherProvisioner { asked, wanted } => {
            of_class(Blocked, format!("handed to {asked}, and the class now names {wanted}"))
        }
        ClaimReason::WaitsForPods(_) => {
            of_class(Waiting, "pods that use them are not scheduled yet".to_owned())
        }
        ClaimReason::NotProvisioned(_) => {
            of_class(Waiting, "the plugin made no volume; it tries again".to_owned())
        }
        ClaimReason::NamedMissing(name) => {
            (Blocked, name.to_string(), format!("the volume {name}, which the claim names, does not exist"))
        }
        ClaimReason::NamedTaken(name, other) => {
            let text = format!("the volume {name}, which the claim names, belongs to {other}");
            let own = ClaimKey::new(&claim.metadata.namespace, &claim.metadata.name);
            let text = if *other == own { format!("{text} of an earlier claim, by its UID") } else { text };
            (Blocked, name.to_string(), text)
        }
        ClaimReason::NamedMismatched(name, mismatch) | ClaimReason::HoldsMismatched(name, mismatch) => {
            (Blocked, name.to_string(), format!("the volume {name} does not suit: {}", mismatch.code()))
        }
        ClaimReason::NoCapacity(name) => {
            (Blocked, name.to_string(), format!("the volume {name} has no size"))
        }
        ClaimReason::LostReference => {
            (Blocked, String::new(), "bound once, and the claim no longer says to what".to_owned())
        }
        ClaimReason::LostVolume(name) => {
            (Blocked, name.to_string(), format!("bound to the volume {name}, which is gone"))
        }
        ClaimReason::Misbound(name, _) => {
            let text = format!("the volume {name} is bound to another claim (typical after a restore)");
            (Blocked, name.to_string(), text)
        }
        ClaimReason::Unreadable(error) => (Blocked, String::new(), error.to_string()),
        ClaimReason::ObjectUnreadable(what) => (Blocked, what.clone(), format!("{what} cannot be read")),
        ClaimReason::ProvingClass(name) => {
            of_class(Waiting, format!("whether class {name:?} exists was not looked up"))
        }
        ClaimReason::ProvingLost(name) => {
            (Waiting, name.to_string(), format!("whether the volume {name} exists was not looked up"))
        }
        ClaimReason::Binding(..)
        | ClaimReason::VolumeBusy(_)
        | ClaimReason::HoldsOther(_)
        | ClaimReason::Uncertain(_) => (
            if stuck { Blocked } else { Waiting },
            String::new(),
            if stuck { "the binder has not acted for long: is it at work?" } else { "the binder is at it" }
                .to_owned(),
        ),
        ClaimReason::Bound(_)
        | ClaimReason::Annotating
        | ClaimReason::HeldBack(_)
        | ClaimReason::AssigningClass(_)
        | ClaimReason::WaitsForFirstConsumer
        | ClaimReason::Provisioning(_) => (Waiting, String::new(), "the binder is at it".to_owned()),
    };
    Judged { cause: Cause { severity, reason: code, about }, class, summary }
}

/// Volumes that cannot be reclaimed, or whose reservation does not suit. Returns how many are settled.
fn volumes(snapshot: &Snapshot, outlook: &Outlook, groups: &mut Groups) -> usize {
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
