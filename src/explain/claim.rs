//! A claim: where it stands, and what might fit.
//!
//! In: the reason that the binder's decision returned. Out: the [`Link`] of its situation, and for a claim without volume its
//! candidates.

use std::{fmt::Display, sync::Arc};

use apiserver::{
    ids::{ClaimKey, PodKey, VolumeName},
    kinds::{
        BindingMode, ClaimPhase, Narrow, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod,
        ReclaimPolicy, StorageClass, VolumePhase,
    },
};

use super::{
    age,
    candidates::{self, modes, quantity},
    links::{Link, missing},
    provisioner,
    read::requests::Read,
    report::{Candidate, Verdict},
    resize,
    said::{is_held_back, last_told},
    table::Facts,
    topology,
    view::{MANY_NODES, View, finalizers, get},
    writes,
};
use crate::binder::{
    annotations::SELECTED_NODE,
    calls::WriteKind,
    matching::predicate::{claim_class, volume_class, was_bound},
    reasons::ClaimReason,
};
use crate::protection::claims::CLAIM_FINALIZER;

/// The provisioner of classes that have none.
// KCM: pkg/volume/util/storageclass.go and pkg/apis/storage, NotSupportedProvisioner.
pub(super) const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// The access mode of a claim that one pod alone may use.
pub(super) const ONE_POD: &str = "ReadWriteOncePod";

/// An object that is being deleted.
pub(super) const TERMINATING: &str = "Terminating";

/// The link of a claim.
pub(super) fn link(view: &View<'_>, key: &ClaimKey) -> Link {
    let subject = ObjectRef::Claim(key.clone());
    view.want(|| Read::events_about(&subject));
    let Some(claim) = view.read::<PersistentVolumeClaim>(key) else {
        return missing::<PersistentVolumeClaim>(view, &subject, key, "ClaimMissing");
    };
    if claim.spec.volume_name.is_empty() {
        view.list::<PersistentVolume>();
        view.list::<StorageClass>();
        view.sidecars();
    } else {
        view.read::<PersistentVolume>(&claim.spec.volume_name);
    }
    let place = view.claim(key);
    let link = match place.reason.as_deref() {
        Some(reason) => of_reason(view, &claim, (reason, place.write)),
        None => writes::next(settled(view, &claim), place.write),
    };
    let is_due = place.write.is_some() && place.reason.is_some() && link.verdict == Verdict::Waiting;
    let link = if is_due { overdue(view, link, &claim, chosen(place.reason.as_deref())) } else { link };
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
    link.detail(detail.join("  ")).since(claim.metadata.creation_timestamp)
}

/// The binder writes within seconds. Since when a write is due is not kept anywhere: at the earliest since the claim and its volume are
/// there, and something was last said of the claim.
fn overdue(view: &View<'_>, link: Link, claim: &PersistentVolumeClaim, volume: Option<&VolumeName>) -> Link {
    let volume = volume.and_then(|name| get::<PersistentVolume>(view, name)?.metadata.creation_timestamp);
    let since = claim.metadata.creation_timestamp.max(volume).max(last_told(view, &claim.metadata.uid));
    // What it holds back, or could not write, it says.
    let is_told = view.snapshot.events.iter().any(|event| is_held_back(event, &claim.metadata.uid));
    let Some(since) = since.filter(|since| age::is_long(Some(*since), view.now()) && !is_told) else {
        return link;
    };
    let mut link = link.verdict(Verdict::Blocked).and("+overdue", &[]);
    let age = age::between(since, view.now());
    link.step.message = format!("{}; this may have been due for {age}", link.step.message);
    link
}

/// The chosen volume, if the next step is to bind to one.
pub(super) fn chosen(reason: Option<&ClaimReason>) -> Option<&VolumeName> {
    match reason {
        Some(ClaimReason::Binding(volume, _)) => Some(volume),
        _ => None,
    }
}

/// What might fit, if that is of interest.
pub(super) fn candidates(view: &View<'_>, key: &ClaimKey) -> Vec<Candidate> {
    let claim = get::<PersistentVolumeClaim>(view, key).filter(|it| it.spec.volume_name.is_empty());
    let Some(claim) = claim.filter(|_| view.snapshot.is_listed::<PersistentVolume>()) else {
        return Vec::new();
    };
    look_at_reach(view, claim_class(&claim));
    let place = view.claim(key);
    let reach = |volume: &PersistentVolume| {
        let named = topology::hosts(view.snapshot.details.get(&ObjectRef::Volume(volume.key()))?)?;
        let is_gone = |name: &String| view.snapshot.is_absent(&ObjectRef::Node(name.as_str().into()));
        named
            .iter()
            .all(is_gone)
            .then(|| format!("no node fits: kubernetes.io/hostname is {}", named.join(" or ")))
    };
    candidates::candidates(view.objects(), &claim, chosen(place.reason.as_deref()), view.now(), &reach)
}

/// Looks at where the volumes that a pod's scheduler might choose may be used: which nodes they name, and whether these exist.
fn look_at_reach(view: &View<'_>, class: &str) {
    let mode = get::<StorageClass>(view, &class.into()).and_then(|it| it.volume_binding_mode);
    if !view.is_noted() || mode != Some(BindingMode::WaitForFirstConsumer) {
        return;
    }
    let is_free =
        |volume: &PersistentVolume| volume.spec.claim_ref.is_none() && volume_class(volume) == class;
    for name in view.snapshot.keys(is_free).into_iter().take(MANY_NODES) {
        view.read::<PersistentVolume>(&name);
        let named = view.whole(&ObjectRef::Volume(name)).and_then(topology::hosts);
        named.into_iter().flatten().take(MANY_NODES).for_each(|node| {
            view.read::<Node>(&node.as_str().into());
        });
    }
}

/// The link of a claim of which the binder has nothing to say.
fn settled(view: &View<'_>, claim: &PersistentVolumeClaim) -> Link {
    let key = claim.key();
    let subject = ObjectRef::Claim(key.clone());
    let volume = &claim.spec.volume_name;
    let Some(deleted) = claim.metadata.deletion_timestamp.as_deref() else {
        return resize::link(view, claim)
            .unwrap_or_else(|| Link::told(&subject, "Bound", &[("volume", volume)]));
    };
    let pods = view.users_of(&key);
    let stays = |pod: &&PodKey| get::<Pod>(view, pod).is_some_and(|pod| !pod.metadata.is_terminating());
    let staying = pods.iter().find(stays);
    let is_unprotected = pods.is_empty() && view.snapshot.sees_pods() && may_be_mounted(claim);
    let verdict = match staying {
        Some(_) => Verdict::Blocked,
        None if is_unprotected => Verdict::of_wait(Some(*deleted), view.now()),
        None => Verdict::Waiting,
    };
    let case = match (pods.is_empty(), verdict) {
        (false, _) => "Terminating claim in use",
        (true, Verdict::Blocked) => "Terminating claim unprotected",
        (true, _) => "Terminating claim",
    };
    let policy = policy(view, claim);
    let is_going = policy.is_some()
        && get::<PersistentVolume>(view, volume).is_some_and(|it| it.metadata.is_terminating());
    let (fate, with_it) = match policy {
        Some(ReclaimPolicy::Retain) if is_going => {
            (format!("; {volume} is being deleted and goes, too"), ", with its volume")
        }
        Some(ReclaimPolicy::Retain) => (format!("; {volume} is kept (Retain)"), ""),
        Some(ReclaimPolicy::Delete) => {
            (format!("; its DATA GOES WITH IT: the policy of {volume} is Delete"), ", with its data")
        }
        Some(policy) => (format!("; the policy of {volume} is {policy:?}"), ""),
        None => (String::new(), ", with its data if the policy is Delete"),
    };
    let users: Vec<String> = pods.iter().map(ToString::to_string).collect();
    let (finalizers, users) = (finalizers(&claim.metadata), users.join(", "));
    let facts: Facts<'_> =
        &[("claim", &key), ("finalizers", &finalizers), ("users", &users), ("fate", &fate)];
    let mut link = Link::told(&subject, case, facts).verdict(verdict);
    if is_doomed(view, claim) {
        link = link.and("+keep data", &[("volume", volume)]);
    }
    if is_going {
        link = link.and("+save volume", &[("volume", volume)]);
    }
    match staying {
        Some(pod) => link.and("+staying pod", &[("pod", pod), ("with_it", &with_it)]),
        None => link,
    }
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
    claim.metadata.finalizers.iter().any(|finalizer| &**finalizer == CLAIM_FINALIZER)
}

/// The link of a claim that the reader may not see enough to judge, if it is such a one.
fn unseen(view: &View<'_>, claim: &PersistentVolumeClaim, reason: &ClaimReason) -> Option<Link> {
    let subject = ObjectRef::Claim(claim.key());
    let not_seen = reason.wants_volume() && !view.snapshot.is_listed::<PersistentVolume>();
    let is_proving = matches!(reason, ClaimReason::ProvingClass(_) | ClaimReason::ProvingLost(_));
    let needed = |what: &str| {
        what.starts_with("persistentvolume") || what.starts_with("storageclass") || what.starts_with("pv/")
    };
    let what = view.lacks_rights(needed).filter(|_| not_seen || is_proving)?;
    let volume = &claim.spec.volume_name;
    Some(if claim.metadata.is_terminating() {
        settled(view, claim)
    } else if claim.status.phase == ClaimPhase::Bound && !volume.is_empty() {
        Link::told(&subject, "Bound unseen", &[("volume", volume)])
    } else {
        let told = format!("why the claim waits is unknown: you may not read {what}");
        Link::told(&subject, "Forbidden", &[("told", &told)])
    })
}

/// The link of a claim that waits.
fn of_reason(
    view: &View<'_>,
    claim: &PersistentVolumeClaim,
    (reason, write): (&ClaimReason, Option<WriteKind>),
) -> Link {
    let key = claim.key();
    let subject = ObjectRef::Claim(key.clone());
    if let Some(link) = unseen(view, claim, reason) {
        return link;
    }
    if let ClaimReason::WaitsForProvisioner(driver) = reason
        && let Some(link) = provisioner::link(view, &subject, driver, (claim, write))
    {
        return link;
    }
    if let (ClaimReason::WaitsForFirstConsumer, Some(pod)) = (reason, view.users_of(&key).first()) {
        // The pod is on a node, and the scheduler, which would have chosen one for the claim, was not asked.
        let node = get::<Pod>(view, pod).map(|pod| pod.spec.node_name.to_string()).unwrap_or_default();
        let facts: Facts<'_> = &[("pod", pod), ("node", &node), ("annotation", &SELECTED_NODE)];
        return Link::told(&subject, "WaitingForFirstConsumer without scheduler", facts);
    }
    let (case, told, about) = situation(view, claim, reason, write);
    let attributes = claim.spec.volume_attributes_class_name.as_deref().unwrap_or_default();
    let mut facts: Vec<(&'static str, &dyn Display)> = vec![("told", &told), ("claim", &key)];
    facts.extend(about.iter().map(|(name, fact)| (*name, fact as &dyn Display)));
    let mut link = Link::told(&subject, case, &facts);
    // One that was bound takes no volume that is merely free for it.
    if let Some(earlier) = earlier(view, claim).filter(|_| *reason != ClaimReason::LostReference) {
        let is_kept = earlier.spec.reclaim_policy == ReclaimPolicy::Retain;
        let case = if is_kept { "+earlier volume" } else { "+earlier volume going" };
        link = link.and(case, &[("earlier", &earlier.metadata.name)]);
    }
    let also = match reason {
        ClaimReason::NoVolume | ClaimReason::NoProvisioner(_) | ClaimReason::ProvisioningOff => {
            if has_no_class(claim) {
                "+make volume or give class"
            } else {
                "+make volume or claim"
            }
        }
        ClaimReason::WaitsForProvisioner(_) if !attributes.is_empty() => "+attributes class",
        ClaimReason::Misbound(..) | ClaimReason::LostReference => {
            return writes::next(led_back(view, link, claim), write);
        }
        _ => return writes::next(link, write),
    };
    let facts: Facts<'_> =
        &[("name", &key.name()), ("namespace", &key.namespace()), ("attributes", &attributes)];
    writes::next(link.and(also, facts), write)
}

/// The situation that a reason is, what is said of it where the table does not say it, and what it is about.
fn situation(
    view: &View<'_>,
    claim: &PersistentVolumeClaim,
    reason: &ClaimReason,
    write: Option<WriteKind>,
) -> (&'static str, String, Vec<(&'static str, String)>) {
    let (case, told) = (reason.code(), || reason.to_string());
    let volume = |name: &VolumeName| ("volume", name.to_string());
    match reason {
        ClaimReason::NoVolume => (case, no_volume(view, claim), Vec::new()),
        ClaimReason::NoProvisioner(name) if name == NO_PROVISIONER => {
            (case, no_volume(view, claim), Vec::new())
        }
        ClaimReason::NoClass(class) => (case, told(), vec![("class", class.to_string())]),
        ClaimReason::NamedMismatched(name, _) | ClaimReason::HoldsMismatched(name, _) => {
            let object = get::<PersistentVolume>(view, name);
            let unsuited = object.map(|it| candidates::unsuited(&it, claim, view.now())).unwrap_or_default();
            let is_named = matches!(reason, ClaimReason::NamedMismatched(..));
            let how = if is_named { "the claim names" } else { "is reserved for the claim" };
            let case = if is_named && was_bound(claim) { "NamedVolumeMismatch owned" } else { case };
            let told = match unsuited.as_str() {
                "" => told(),
                unsuited => format!("volume {:?}, which {how}, does not suit it: {unsuited}", name.as_str()),
            };
            (case, told, vec![volume(name)])
        }
        ClaimReason::NamedTaken(name, other) => {
            let case = if *other == claim.key() { "NamedVolumeTaken earlier" } else { case };
            (case, told(), vec![volume(name), ("other", other.to_string())])
        }
        ClaimReason::Misbound(name, uid) => {
            let other = owner(view, name);
            let is_others = other.as_ref().is_some_and(|other| *other != claim.key());
            let case = if is_others { "LostMisbound to other" } else { case };
            let other = other.map(|other| other.to_string()).unwrap_or_default();
            (case, told(), vec![volume(name), ("uid", uid.to_string()), ("other", other)])
        }
        ClaimReason::WaitsForProvisioner(driver) => {
            let is_next = write == Some(WriteKind::AskProvisioner);
            let case = if is_next { "WaitingForProvisioner next" } else { case };
            (case, told(), vec![("driver", driver.clone())])
        }
        ClaimReason::WaitsForPods(pods) => {
            let pod = pods.first().map(ToString::to_string).unwrap_or_default();
            (case, told(), vec![("pod", pod)])
        }
        ClaimReason::Binding(name, write) => {
            let step = match write {
                WriteKind::ReserveVolume => "next, the volume is given the claim's name and UID",
                WriteKind::VolumeBound => "next, the volume's phase becomes Bound",
                WriteKind::NameVolume => "next, the claim is given the volume's name",
                _ => "next, the claim's phase becomes Bound",
            };
            (case, told(), vec![volume(name), ("step", step.to_owned())])
        }
        ClaimReason::LostVolume(name) => {
            (case, told(), vec![volume(name), ("own", claim.metadata.uid.to_string())])
        }
        ClaimReason::NamedMissing(name) => (case, told(), vec![volume(name)]),
        ClaimReason::Disputed(name) => ("LostMisbound disputed", told(), vec![volume(name)]),
        _ => (case, told(), Vec::new()),
    }
}

/// How a claim that was bound comes to its volume again.
fn led_back(view: &View<'_>, link: Link, claim: &PersistentVolumeClaim) -> Link {
    let key = claim.key();
    let named = &claim.spec.volume_name;
    let own = own_volumes(view, claim).into_iter().find(|it| named.is_empty() || it.key() == *named);
    let is_its_own = own
        .as_ref()
        .and_then(|own| own.spec.claim_ref.as_ref())
        .is_some_and(|reference| reference.uid == claim.metadata.uid && named.is_empty());
    let owned = own.map(|own| own.metadata.name.to_string()).unwrap_or_default();
    let case = match (owned.is_empty(), is_its_own) {
        (true, _) => "+whose",
        (false, true) => "+name again",
        (false, false) => "+relink",
    };
    link.and(case, &[("name", &key.name()), ("namespace", &key.namespace()), ("owned", &owned)])
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

/// The volume of an earlier claim of the same name that is still there: who made the claim anew may want what is on it.
fn earlier(view: &View<'_>, claim: &PersistentVolumeClaim) -> Option<Arc<PersistentVolume>> {
    if !claim.spec.volume_name.is_empty() {
        return None;
    }
    let is_of_earlier = |volume: &Arc<PersistentVolume>| {
        let reference = volume.spec.claim_ref.as_ref();
        volume.status.phase == VolumePhase::Released
            && reference.is_some_and(|it| !it.uid.is_empty() && it.uid != claim.metadata.uid)
    };
    let key = claim.key();
    let kept = view.volumes_naming(&key).filter(is_of_earlier);
    kept.min_by(|one, other| one.metadata.name.cmp(&other.metadata.name))
}

/// Volumes that name a claim of this name, those that name this very claim first.
fn own_volumes(view: &View<'_>, claim: &PersistentVolumeClaim) -> Vec<Arc<PersistentVolume>> {
    let mut own: Vec<Arc<PersistentVolume>> = view.volumes_naming(&claim.key()).collect();
    own.sort_by_key(|volume| {
        let uid = volume.spec.claim_ref.as_ref().map(|reference| reference.uid.clone());
        (uid.as_ref() != Some(&claim.metadata.uid), volume.metadata.name.to_string())
    });
    own
}

/// Whether a claim says nothing of a class, so that it gets one that becomes the default, or may be given one, once.
fn has_no_class(claim: &PersistentVolumeClaim) -> bool {
    claim.spec.storage_class_name.is_none() && claim_class(claim).is_empty()
}

/// The claim that a volume names.
fn owner(view: &View<'_>, name: &VolumeName) -> Option<ClaimKey> {
    Some(get::<PersistentVolume>(view, name)?.spec.claim_ref.as_ref()?.key())
}
