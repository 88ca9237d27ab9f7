//! A claim: where it stands, who has to act, and what might fit.
//!
//! In: the reason that the binder's decision returned. Out: a [`Link`], and for a claim without volume its candidates.

use super::{
    actions::{care, never, safe},
    candidates::{self, modes, quantity},
    links::{Link, program},
    provisioner,
    remedies::{self, has_no_class, of_class, own_volumes},
    report::{Candidate, Verdict},
    resize,
    said::missing_class,
    snapshot::PODS_THERE,
    subject::Subject,
    topology,
    view::{Missing, View, get},
    writes,
};
use crate::{
    binder::{
        act::write::WriteKind, annotations::SELECTED_NODE, matching::predicate::claim_class,
        tell::reason::ClaimReason,
    },
    kube_api::{
        ids::{ClaimKey, NodeName, PodKey},
        kinds::{ClaimPhase, Narrow, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReclaimPolicy},
    },
};

/// The provisioner of classes that have none.
// KCM: pkg/volume/util/storageclass.go and pkg/apis/storage, NotSupportedProvisioner.
pub(super) const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// The access mode of a claim that one pod alone may use.
pub(super) const ONE_POD: &str = "ReadWriteOncePod";

/// An object that is being deleted.
pub(super) const TERMINATING: &str = "Terminating";

/// The finalizer that keeps a claim as long as a pod uses it.
pub(super) const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// The link of a claim.
pub(super) fn link(view: &View<'_>, key: &ClaimKey) -> Link {
    let subject = Subject::Claim(key.clone());
    let Some(claim) = get::<PersistentVolumeClaim>(view, key) else {
        return match view.missing::<PersistentVolumeClaim>(key) {
            Missing::Absent => {
                Link::new(&subject, "ClaimMissing", format!("claim {key} does not exist"), Verdict::Blocked)
                    .next("Recheck", Some("the claim appears"))
                    .act(safe(
                        "create the claim, or mend the name in the pod's template; see which there are",
                        &["kubectl", "get", "pvc", "-n", key.namespace()],
                    ))
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
        Some(reason) => of_reason(view, &claim, (reason, place.write)),
        None => writes::of_claim(settled(view, &claim), place.write),
    };
    let class = match claim_class(&claim) {
        "" if has_no_class(&claim) => "no class".to_owned(),
        "" => "class=\"\"".to_owned(),
        class => format!("class={class}"),
    };
    let detail = [
        quantity(&claim.spec.resources.requests),
        modes(&claim.spec.access_modes),
        claim.spec.volume_mode.as_deref().unwrap_or("Filesystem").to_owned(),
        class,
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
    let reach = |volume: &PersistentVolume| {
        let named = topology::hosts(view.whole(&Subject::Volume(volume.key()))?)?;
        let is_gone = |name: &String| {
            let name = NodeName::from(name.as_str());
            get::<Node>(view, &name).is_none() && matches!(view.missing::<Node>(&name), Missing::Absent)
        };
        named
            .iter()
            .all(is_gone)
            .then(|| format!("no node fits: kubernetes.io/hostname is {}", named.join(" or ")))
    };
    candidates::candidates(view.objects(), &claim, chosen(place.reason.as_deref()), view.now(), &reach)
}

fn settled(view: &View<'_>, claim: &PersistentVolumeClaim) -> Link {
    let key = claim.key();
    let subject = Subject::Claim(key.clone());
    let Some(deleted) = claim.metadata.deletion_timestamp.as_deref() else {
        if let Some(link) = resize::link(view, claim) {
            return link;
        }
        let message = format!("bound to {}", claim.spec.volume_name);
        return Link::new(&subject, "Bound", message, Verdict::Healthy);
    };
    let finalizers: Vec<&str> = claim.metadata.finalizers.iter().map(|it| &**it).collect();
    let pods = view.users_of(&key);
    let stays = |pod: &&PodKey| get::<Pod>(view, pod).is_some_and(|pod| !pod.metadata.is_terminating());
    let staying = pods.iter().find(stays).cloned();
    let users: Vec<String> = pods.iter().map(ToString::to_string).collect();
    let (mut told, until) = if users.is_empty() {
        (String::new(), "the finalizers are gone".to_owned())
    } else {
        let users = users.join(", ");
        (format!("; pods that use it: {users}"), format!("these pods have ended: {users}"))
    };
    let sees_pods = view.snapshot.is_listed::<Pod>() || view.snapshot.was_read(PODS_THERE);
    let verdict = match (&staying, users.is_empty() && sees_pods && may_be_mounted(claim)) {
        (Some(_), _) => Verdict::Blocked,
        (None, true) => Verdict::of_wait(Some(*deleted), view.now()),
        (None, false) => Verdict::Waiting,
    };
    if verdict == Verdict::Blocked && staying.is_none() {
        told.push_str(
            ", though no pod uses it: is kube-controller-manager's pvc-protection controller at work?",
        );
    }
    let volume = claim.spec.volume_name.as_str();
    let (fate, with_it) = match policy(view, claim) {
        Some(ReclaimPolicy::Retain) => (format!("; {volume} is kept (Retain)"), ""),
        Some(ReclaimPolicy::Delete) => {
            (format!("; its DATA GOES WITH IT: the policy of {volume} is Delete"), ", with its data")
        }
        Some(policy) => (format!("; the policy of {volume} is {policy:?}"), ""),
        None => (String::new(), ", with its data if the policy is Delete"),
    };
    let message = format!("claim {key} is being deleted and waits for {}{told}{fate}", finalizers.join(", "));
    let mut link =
        Link::new(&subject, TERMINATING, message, verdict).next("Delete", Some(&until)).since(Some(*deleted));
    if is_doomed(view, claim) {
        let retain = r#"{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}"#;
        link = link.act(safe(
            "to keep the data, which a deletion of the claim does not take back: set the policy to Retain before the claim goes",
            &["kubectl", "patch", "pv", volume, "-p", retain],
        ));
    }
    if let Some(pod) = staying {
        let text = format!(
            "no one has asked these pods to end. If the claim is to go{with_it}: end them, or scale down what owns them"
        );
        let command = ["kubectl", "describe", "pod", pod.name(), "-n", pod.namespace()];
        link = link.blocked_by(Subject::Pod(pod.clone()).json(), "uses the claim").act(care(text, &command));
    }
    link.act(never("take the finalizer off by hand: a pod may still write to the volume"))
}

/// What becomes of a bound claim's volume when the claim is gone, if both say that they belong together.
fn policy(view: &View<'_>, claim: &PersistentVolumeClaim) -> Option<ReclaimPolicy> {
    let volume = get::<PersistentVolume>(view, &claim.spec.volume_name)?;
    let is_its = volume.spec.claim_ref.as_ref().is_some_and(|reference| reference.uid == claim.metadata.uid);
    is_its.then(|| volume.spec.reclaim_policy.clone())
}

/// The same in a word.
pub(super) fn fate(view: &View<'_>, claim: &PersistentVolumeClaim) -> String {
    policy(view, claim).map(|policy| format!("policy {policy:?}")).unwrap_or_default()
}

/// Whether the data of a claim goes with it.
pub(super) fn is_doomed(view: &View<'_>, claim: &PersistentVolumeClaim) -> bool {
    policy(view, claim) == Some(ReclaimPolicy::Delete)
}

/// Whether kubelets start pods with a claim although it is being deleted.
// kubelet: pkg/kubelet/volumemanager/populator, getPVCExtractPV.
pub(super) fn may_be_mounted(claim: &PersistentVolumeClaim) -> bool {
    claim.metadata.finalizers.iter().any(|finalizer| &**finalizer == PROTECTION)
}

/// The link of a claim that waits.
fn of_reason(
    view: &View<'_>,
    claim: &PersistentVolumeClaim,
    (reason, write): (&ClaimReason, Option<WriteKind>),
) -> Link {
    let key = claim.key();
    let subject = Subject::Claim(key.clone());
    let not_seen = reason.wants_volume() && !view.snapshot.is_listed::<PersistentVolume>();
    let is_proving = matches!(reason, ClaimReason::ProvingClass(_) | ClaimReason::ProvingLost(_));
    let needed = |what: &str| {
        what.starts_with("persistentvolume") || what.starts_with("storageclass") || what.starts_with("pv/")
    };
    if let Some(what) = view.lacks_rights(needed).filter(|_| not_seen || is_proving) {
        if claim.metadata.is_terminating() {
            return settled(view, claim);
        }
        if claim.status.phase == ClaimPhase::Bound && !claim.spec.volume_name.is_empty() {
            let message = format!("bound to {}, as it says itself", claim.spec.volume_name);
            return Link::new(&subject, "Bound", message, Verdict::Healthy);
        }
        if let Some(class) = missing_class(view, &claim.metadata.uid) {
            return without_class(&subject, class);
        }
        let message = format!("why the claim waits is told by what you may not read: {what}");
        return Link::new(&subject, "Forbidden", message, Verdict::Forbidden);
    }
    if let ClaimReason::WaitsForProvisioner(driver) = reason
        && let Some(link) = provisioner::link(view, &subject, driver, (claim, write))
    {
        return link;
    }
    if let (ClaimReason::WaitsForFirstConsumer, Some(pod)) = (reason, view.users_of(&key).first()) {
        return not_scheduled(view, claim, pod);
    }
    let message = match reason {
        ClaimReason::Binding(volume, next) => {
            format!("volume {volume} suits it, and is being bound: {}", step(*next))
        }
        ClaimReason::NoVolume => no_volume(view, claim),
        ClaimReason::NoProvisioner(name) if name == NO_PROVISIONER => no_volume(view, claim),
        ClaimReason::NoClass(class) => match of_class(view, claim) {
            (0, _) => reason.to_string(),
            (count, nearest) => format!(
                "class {:?} does not exist, so that nothing makes volumes for it; {} of that class, and none suits: {nearest}",
                class.as_str(),
                if count == 1 { "1 volume is".to_owned() } else { format!("{count} volumes are") },
            ),
        },
        ClaimReason::LostVolume(name) => format!(
            "bound to volume {name}, which does not exist: its object is gone, and with it what led to the data, not \
             necessarily the data"
        ),
        ClaimReason::LostReference => {
            "bound once, and the claim no longer says to which volume; nothing was deleted by that".to_owned()
        }
        ClaimReason::Misbound(name, uid) => match remedies::owner(view, name) {
            Some(other) if other != key => {
                format!("volume {name}, which the claim was bound to, belongs to claim {other}")
            }
            _ => format!(
                "volume {name} belongs to an earlier claim of this name, by its UID {uid}: one of the two was made anew, as a \
                 restore does"
            ),
        },
        ClaimReason::WaitsForProvisioner(driver) if write == Some(WriteKind::AskProvisioner) => {
            format!("provisioner {driver} is about to be asked for a volume")
        }
        ClaimReason::WaitsForProvisioner(driver) => {
            format!("provisioner {driver} was asked for a volume, and has not made it yet")
        }
        ClaimReason::NamedMismatched(name, _) | ClaimReason::HoldsMismatched(name, _) => {
            match get::<PersistentVolume>(view, name).map(|it| candidates::unsuited(&it, claim, view.now())) {
                Some(unsuited) if !unsuited.is_empty() => {
                    let is_named = matches!(reason, ClaimReason::NamedMismatched(..));
                    let how = if is_named { "the claim names" } else { "is reserved for the claim" };
                    format!("volume {:?}, which {how}, does not suit it: {unsuited}", name.as_str())
                }
                _ => reason.to_string(),
            }
        }
        ClaimReason::NamedTaken(name, other) if *other == key => format!(
            "volume {name:?}, which the claim names, still belongs to an earlier claim of the same name that is gone",
            name = name.as_str()
        ),
        reason => reason.to_string(),
    };
    let mut link = Link::new(&subject, reason.code(), message, verdict(reason));
    if let Some((action, condition)) = next(reason) {
        link = link.next(action, condition);
    }
    if let Some((object, why)) = waits_for(&key, reason) {
        let is_asked_next = write == Some(WriteKind::AskProvisioner);
        let why = if is_asked_next { "is about to be asked for a volume".to_owned() } else { why };
        link = link.blocked_by(object, why);
    }
    // One that was bound takes no volume that is merely free for it.
    let earlier = remedies::earlier(view, claim).filter(|_| *reason != ClaimReason::LostReference);
    for action in earlier.into_iter().chain(remedies::actions(view, &key, claim, reason)) {
        link = link.act(action);
    }
    writes::of_claim(link, write)
}

/// The binder has said that the class is missing; who asks may not look.
fn without_class(subject: &Subject, class: &str) -> Link {
    let message = format!("there is no class {class:?}, as the binder has said last of the claim");
    Link::new(subject, "ClassNotFound", message, Verdict::Blocked)
        .blocked_by(Subject::Class(class.into()).json(), "does not exist")
        .next("Recheck", Some("the class appears"))
        .act(safe(
            "make the claim anew with a class that exists (its class cannot be changed), or ask for the class",
            &["kubectl", "get", "storageclass"],
        ))
}

/// A pod that uses the claim is on a node, and the scheduler, which would have chosen one for the claim, was not asked.
fn not_scheduled(view: &View<'_>, claim: &PersistentVolumeClaim, pod: &PodKey) -> Link {
    let node = get::<Pod>(view, pod).map(|pod| pod.spec.node_name.to_string()).unwrap_or_default();
    let message = format!(
        "pod {pod} is on node {node} without the scheduler, which alone chooses a node for the claim: the pod's maker set \
         spec.nodeName, or the claim is younger than the pod"
    );
    let (name, namespace) = (claim.metadata.name.as_str(), claim.metadata.namespace.as_str());
    let chosen = format!("{SELECTED_NODE}={node}");
    let link = Link::new(&Subject::Claim(claim.key()), "WaitingForFirstConsumer", message, Verdict::Blocked)
        .blocked_by(Subject::Pod(pod.clone()).json(), "is on a node without the scheduler")
        .next("Bind", Some("the claim names its node, or a pod that uses it is scheduled"))
        .act(safe(
            "make the pod anew without spec.nodeName (a nodeSelector for kubernetes.io/hostname keeps it on its node): the \
             scheduler then chooses for pod and claim",
            &["kubectl", "get", "pod", pod.name(), "-n", pod.namespace(), "-o", "yaml"],
        ));
    let by_hand = care(
        format!(
            "or, if a provisioner makes the volume, say what the scheduler would: the volume is made for {node}"
        ),
        &["kubectl", "annotate", "pvc", name, "-n", namespace, &chosen],
    );
    link.act(by_hand)
}

/// The next of the four writes of a bind.
fn step(write: WriteKind) -> &'static str {
    match write {
        WriteKind::ReserveVolume => "next, the volume is given the claim's name and UID",
        WriteKind::VolumeBound => "next, the volume is said to be Bound",
        WriteKind::NameVolume => "next, the claim is given the volume's name",
        _ => "next, the claim is said to be Bound",
    }
}

fn no_volume(view: &View<'_>, claim: &PersistentVolumeClaim) -> String {
    let message = match claim_class(claim) {
        "" if has_no_class(claim) => {
            "the claim names no class, and no class is the default; no volume without a class fits".to_owned()
        }
        "" => {
            "the claim asks for no class (storageClassName: \"\"), and no volume without one fits".to_owned()
        }
        class => format!(
            "no volume of class {class:?} fits, and the class has no provisioner: its volumes are made by hand"
        ),
    };
    match own_volumes(view, claim).into_iter().next() {
        Some(own) => {
            let unsuited = candidates::unsuited(&own, claim, view.now());
            format!(
                "{message}; volume {} is reserved for it, and does not suit: {unsuited}",
                own.metadata.name
            )
        }
        None => message,
    }
}

/// Whether a person has to act.
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
        ClaimReason::NamedTaken(..) => ("Recheck", Some("the volume changes")),
        ClaimReason::NamedMismatched(..) => {
            ("Recheck", Some("the volume suits it, or the claim is made anew"))
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
        ClaimReason::NamedTaken(name, other) if other == key => {
            (volume(name), "belongs to the earlier claim by its UID".to_owned())
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
