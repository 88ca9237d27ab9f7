//! A claim: where it stands, who has to act, and what might fit.
//!
//! In: the reason that the binder's decision returned. Out: a [`Link`], and for a claim without volume its candidates.

use super::{
    actions::{care, never, of_absent_program, safe},
    candidates::{self, modes, quantity},
    links::{Link, program},
    report::{Action, Candidate, Verdict},
    sidecars::{Presence, Sidecar},
    subject::Subject,
    view::{Missing, View, get},
};
use crate::{
    binder::{matching::predicate::claim_class, tell::reason::ClaimReason},
    kube_api::{
        ids::ClaimKey,
        kinds::{PersistentVolume, PersistentVolumeClaim},
    },
};

/// The provisioner of classes that have none.
// KCM: pkg/volume/util/storageclass.go and pkg/apis/storage, NotSupportedProvisioner.
pub(super) const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// The link of a claim.
pub(super) fn link(view: &View<'_>, key: &ClaimKey) -> Link {
    let subject = Subject::Claim(key.clone());
    let Some(claim) = get::<PersistentVolumeClaim>(view, key) else {
        return match view.missing::<PersistentVolumeClaim>(key) {
            Missing::Absent => {
                Link::new(&subject, "ClaimMissing", format!("claim {key} does not exist"), Verdict::Blocked)
            }
            Missing::Unreadable(error) => Link::new(
                &subject,
                "ObjectUnreadable",
                format!("claim {key} cannot be read: {error}"),
                Verdict::Blocked,
            ),
            Missing::Unseen(why) => Link::new(
                &subject,
                "Forbidden",
                format!("claim {key} could not be read: {why}"),
                Verdict::Forbidden,
            ),
        };
    };
    let place = view.claim(key);
    let link = match place.reason.as_deref() {
        Some(reason) => of_reason(view, &claim, reason),
        None => settled(view, &claim),
    };
    let detail = [
        quantity(&claim.spec.resources.requests),
        modes(&claim.spec.access_modes),
        claim.spec.volume_mode.as_deref().unwrap_or("Filesystem").to_owned(),
        format!("class={:?}", claim_class(&claim)).replace('"', ""),
        format!("{:?}", claim.status.phase),
    ];
    let since = claim.metadata.creation_timestamp;
    link.detail(detail.join("  ")).since(since)
}

/// The chosen volume, if the next step is to bind to one.
pub(super) fn chosen(reason: Option<&ClaimReason>) -> Option<&crate::kube_api::ids::VolumeName> {
    match reason {
        Some(ClaimReason::Binding(volume, _)) => Some(volume),
        _ => None,
    }
}

/// What might fit, if that is of interest; and how many volumes are others'.
pub(super) fn candidates(view: &View<'_>, key: &ClaimKey) -> (Vec<Candidate>, usize) {
    let Some(claim) = get::<PersistentVolumeClaim>(view, key) else { return (Vec::new(), 0) };
    if !claim.spec.volume_name.is_empty() || !view.snapshot.is_listed::<PersistentVolume>() {
        return (Vec::new(), 0);
    }
    let place = view.claim(key);
    candidates::candidates(view.objects(), &claim, chosen(place.reason.as_deref()), view.now())
}

fn settled(view: &View<'_>, claim: &PersistentVolumeClaim) -> Link {
    let subject = Subject::Claim(claim_key(claim));
    let volume = &claim.spec.volume_name;
    if let Some(deleted) = claim.metadata.deletion_timestamp.as_deref() {
        let finalizers: Vec<&str> = claim.metadata.finalizers.iter().map(|it| &**it).collect();
        let users: Vec<String> = view
            .attach_detach
            .desired
            .keys()
            .filter(|pod| pod.namespace() == claim.metadata.namespace.as_str())
            .filter(|pod| uses(view, pod, claim))
            .map(ToString::to_string)
            .collect();
        let users = if users.is_empty() {
            String::new()
        } else {
            format!("; pods that use it: {}", users.join(", "))
        };
        let message = format!("it is being deleted and waits for {}{users}", finalizers.join(", "));
        return Link::new(&subject, "Terminating", message, Verdict::Waiting)
            .next("Delete", Some("the finalizers are gone"))
            .since(Some(*deleted));
    }
    Link::new(&subject, "Bound", format!("bound to {volume}"), Verdict::Healthy)
}

fn uses(view: &View<'_>, pod: &crate::kube_api::ids::PodKey, claim: &PersistentVolumeClaim) -> bool {
    use crate::kube_api::kinds::{Pod, PodVolumeSource};
    let Some(pod) = get::<Pod>(view, pod) else { return false };
    pod.spec.volumes.iter().any(|volume| match &volume.source {
        PodVolumeSource::PersistentVolumeClaim(source) => *source.claim_name == *claim.metadata.name,
        _ => false,
    })
}

fn claim_key(claim: &PersistentVolumeClaim) -> ClaimKey {
    ClaimKey::new(&claim.metadata.namespace, &claim.metadata.name)
}

/// The link of a claim that waits.
fn of_reason(view: &View<'_>, claim: &PersistentVolumeClaim, reason: &ClaimReason) -> Link {
    let key = claim_key(claim);
    let subject = Subject::Claim(key.clone());
    let not_seen = reason.wants_volume() && !view.snapshot.is_listed::<PersistentVolume>();
    let is_proving = matches!(reason, ClaimReason::ProvingClass(_) | ClaimReason::ProvingLost(_));
    if let Some(what) = view.lacks_rights().filter(|_| not_seen || is_proving) {
        let message = format!("it cannot be told why the claim waits: {what} may not be read");
        return Link::new(&subject, "Forbidden", message, Verdict::Forbidden);
    }
    if let ClaimReason::WaitsForProvisioner(driver) = reason
        && let Some(absent) = absent_provisioner(view, &subject, driver)
    {
        return absent;
    }
    let message = match reason {
        ClaimReason::NoVolume => no_volume(claim),
        ClaimReason::NoProvisioner(name) if name == NO_PROVISIONER => no_volume(claim),
        reason => reason.to_string(),
    };
    let mut link = Link::new(&subject, reason.code(), message, verdict(reason));
    if let Some((action, condition)) = next(reason) {
        link = link.next(action, condition);
    }
    if let Some((object, why)) = waits_for(&key, reason) {
        link = link.blocked_by(object, why);
    }
    for action in actions(&key, claim, reason) {
        link = link.act(action);
    }
    link
}

fn no_volume(claim: &PersistentVolumeClaim) -> String {
    match claim_class(claim) {
        "" => "no volume without a class fits, and the claim has no class that would provide one".to_owned(),
        class => format!(
            "no volume of class {class:?} fits, and the class has no provisioner: its volumes are made by hand"
        ),
    }
}

fn absent_provisioner(view: &View<'_>, subject: &Subject, driver: &str) -> Option<Link> {
    let message = match view.sidecars.presence(driver, Sidecar::Provisioner) {
        Presence::Seen | Presence::Unknown => return None,
        Presence::Gone(since) => {
            format!("provisioner {driver} was asked, and was seen last at {since}: its lease is not renewed")
        }
        Presence::NotSeen => format!(
            "provisioner {driver} was asked, and nothing of that name is there: no lease, no CSIDriver, no event"
        ),
    };
    let link = Link::new(subject, "ProvisionerNotSeen", message, Verdict::Blocked);
    let link = link.blocked_by(program("Provisioner", driver), "not seen").act(of_absent_program(driver));
    Some(link.next("Bind", Some("the provisioner makes a volume")))
}

/// Whether somebody has to act.
pub(super) fn verdict(reason: &ClaimReason) -> Verdict {
    match reason {
        ClaimReason::Bound(_) => Verdict::Healthy,
        ClaimReason::Annotating
        | ClaimReason::HeldBack(_)
        | ClaimReason::ProvingClass(_)
        | ClaimReason::Binding(..)
        | ClaimReason::VolumeBusy(_)
        | ClaimReason::HoldsOther(_)
        | ClaimReason::AssigningClass(_)
        | ClaimReason::WaitsForFirstConsumer
        | ClaimReason::WaitsForPods(_)
        | ClaimReason::WaitsForProvisioner(_)
        | ClaimReason::Provisioning(_)
        | ClaimReason::Uncertain(_)
        | ClaimReason::ProvingLost(_) => Verdict::Waiting,
        ClaimReason::ObjectUnreadable(_)
        | ClaimReason::NoCapacity(_)
        | ClaimReason::HoldsMismatched(..)
        | ClaimReason::NoVolume
        | ClaimReason::ProvisioningOff
        | ClaimReason::NoClass(_)
        | ClaimReason::NoProvisioner(_)
        | ClaimReason::CannotProvision(_)
        | ClaimReason::NotProvisioned(_)
        | ClaimReason::OtherProvisioner { .. }
        | ClaimReason::NamedMissing(_)
        | ClaimReason::NamedTaken(..)
        | ClaimReason::NamedMismatched(..)
        | ClaimReason::LostReference
        | ClaimReason::LostVolume(_)
        | ClaimReason::Misbound(..)
        | ClaimReason::Unreadable(_)
        | ClaimReason::UnknownBindingMode(_) => Verdict::Blocked,
    }
}

/// What happens next, and on which condition.
fn next(reason: &ClaimReason) -> Option<(&'static str, Option<&'static str>)> {
    Some(match reason {
        ClaimReason::Binding(..) | ClaimReason::VolumeBusy(_) => ("Bind", None),
        ClaimReason::Annotating | ClaimReason::AssigningClass(_) => ("WriteClaim", None),
        ClaimReason::WaitsForFirstConsumer => ("Bind", Some("a pod that uses the claim is scheduled")),
        ClaimReason::WaitsForPods(_) => ("Bind", Some("the scheduler finds a node for the pod")),
        ClaimReason::WaitsForProvisioner(_) => ("Bind", Some("the provisioner makes a volume")),
        ClaimReason::NoVolume | ClaimReason::NoProvisioner(_) | ClaimReason::ProvisioningOff => {
            ("Recheck", Some("a volume of this class appears or changes; no timer runs"))
        }
        ClaimReason::NoClass(_) => ("Recheck", Some("the class appears")),
        ClaimReason::NamedMissing(_) => ("Recheck", Some("a volume of that name appears")),
        ClaimReason::NamedTaken(..) | ClaimReason::NamedMismatched(..) => {
            ("Recheck", Some("the volume changes"))
        }
        ClaimReason::NotProvisioned(_) => ("Provision", Some("after a pause that grows with each try")),
        _ => return None,
    })
}

fn waits_for(key: &ClaimKey, reason: &ClaimReason) -> Option<(serde_json::Value, String)> {
    let volume = |name: &crate::kube_api::ids::VolumeName| Subject::Volume(name.clone()).json();
    Some(match reason {
        ClaimReason::WaitsForProvisioner(driver) => {
            (program("Provisioner", driver), "has been asked for a volume".to_owned())
        }
        ClaimReason::WaitsForPods(pods) => {
            let pod = pods.first()?;
            (Subject::Pod(pod.clone()).json(), "is not scheduled".to_owned())
        }
        ClaimReason::NoClass(class) => (Subject::Class(class.clone()).json(), "does not exist".to_owned()),
        ClaimReason::NamedMissing(name) | ClaimReason::LostVolume(name) => {
            (volume(name), "does not exist".to_owned())
        }
        ClaimReason::NamedTaken(name, other) => (volume(name), format!("belongs to claim {other}")),
        ClaimReason::Misbound(name, uid) => {
            (volume(name), format!("names a claim of uid {uid}, and {key} has another"))
        }
        ClaimReason::NamedMismatched(name, _) | ClaimReason::HoldsMismatched(name, _) => {
            (volume(name), "does not suit the claim".to_owned())
        }
        _ => return None,
    })
}

fn actions(key: &ClaimKey, claim: &PersistentVolumeClaim, reason: &ClaimReason) -> Vec<Action> {
    let (namespace, name) = (key.namespace(), key.name());
    let explain = |kind: &str, name: &str| ["mooring", "explain", kind, name].map(str::to_owned);
    match reason {
        ClaimReason::WaitsForFirstConsumer => {
            vec![safe("nothing is wrong: create the pod that uses the claim", &[])]
        }
        ClaimReason::WaitsForPods(pods) => pods
            .first()
            .map(|pod| {
                let command = ["kubectl", "describe", "pod", pod.name(), "-n", pod.namespace()];
                safe("see why the pod is not scheduled", &command)
            })
            .into_iter()
            .collect(),
        ClaimReason::NoVolume | ClaimReason::NoProvisioner(_) | ClaimReason::ProvisioningOff => vec![
            safe("create a volume that fits, or change one that nearly does (see the candidates)", &[]),
            safe(
                "or make a new claim of a class that has a provisioner: a claim's class cannot be changed",
                &["kubectl", "get", "storageclass"],
            ),
        ],
        ClaimReason::NoClass(class) => vec![safe(
            format!(
                "create the class {class:?}, or make a new claim of one that exists",
                class = class.as_str()
            ),
            &["kubectl", "get", "storageclass"],
        )],
        ClaimReason::WaitsForProvisioner(driver) => vec![safe(
            format!("if it lasts: see what provisioner {driver} says"),
            &["kubectl", "describe", "pvc", name, "-n", namespace],
        )],
        ClaimReason::NamedMissing(volume) => vec![safe(
            format!("create the volume {volume}, or make a new claim that names one that exists"),
            &["kubectl", "get", "pv"],
        )],
        ClaimReason::NamedTaken(volume, _) | ClaimReason::NamedMismatched(volume, _) => {
            let command = explain("pv", volume.as_str());
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            vec![safe("see what the volume is, and for whom", &command)]
        }
        ClaimReason::LostVolume(_) | ClaimReason::Misbound(..) | ClaimReason::LostReference => {
            let volume = claim.spec.volume_name.as_str();
            vec![
                care(
                    "nothing was deleted by this. If the volume holds this claim's data, link them again; the command \
                     shows the requests and sends nothing without --yes",
                    &["mooring", "repair", "relink", name, volume, "-n", namespace],
                ),
                never("delete the claim before the data is safe: its volume may be deleted with it"),
            ]
        }
        _ => Vec::new(),
    }
}
