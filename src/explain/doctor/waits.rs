//! What waits, by what it waits for: claims, volumes, volumes on nodes, nodes, and pods that do not start.
//!
//! In: what an explanation says of each. Out: groups by reason and by class, volume, driver or node, as bad as the explanation says.
//! To a user who may read one namespace alone it is told of that; where what was read does not tell why something waits, the last
//! event's words stand for it.

use std::collections::{BTreeMap, BTreeSet};

use apiserver::{
    ids::{ClaimKey, NodeName, Uid},
    kinds::{
        ClaimPhase, Narrow as _, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, PodPhase,
        VolumeAttachment,
    },
};

use super::groups::Groups;
use crate::{
    attach_detach::{decide::verdict::Waiting, reasons::AttachState, state::desired::volume_name::VolumeId},
    binder::{
        dry_run::Outlook,
        matching::predicate::{claim_class, volume_class},
        reasons::{ClaimReason, VolumeReason},
    },
    explain::{
        age, attachment, attributes_class, claim, ephemeral,
        exclusive::ATTACHED_TWICE,
        links::{Link, deciding},
        node, pod,
        report::Verdict,
        resize,
        said::last_word,
        snapshot::PODS_THERE,
        subject,
        view::{View, claims_of, get},
        volume,
    },
};

/// What keeps a pod from starting and is no matter of volumes.
const OF_OTHERS: &str = "PodNotStarted";

pub(super) fn look(view: &View<'_>, groups: &mut Groups<'_>, fine: &mut Vec<String>) {
    let Some(outlook) = &view.binder else { return };
    let snapshot = view.snapshot;
    // Without these the controllers would be asked over a world that is not: nothing is concluded from what is missing.
    let sees_volumes = snapshot.is_listed::<PersistentVolume>();
    let sees_world = sees_volumes
        && snapshot.is_listed::<PersistentVolumeClaim>()
        && snapshot.is_listed::<VolumeAttachment>()
        && snapshot.is_listed::<Node>()
        && snapshot.is_listed::<Pod>();
    let mut settled = Vec::new();
    let waiting = claims(view, outlook, sees_volumes, groups, &mut settled);
    if sees_volumes {
        settled.push((volumes(view, outlook, groups), "volume", "settled"));
    } else {
        settled.clear();
    }
    if sees_world {
        nodes(view, groups);
        settled.push((node_volumes(view, groups), "volume", "attached where they are wanted"));
    }
    pods(view, &waiting, sees_world, groups);
    attributes_classes(view, groups);
    for (count, thing, how) in settled.into_iter().filter(|(count, ..)| *count > 0) {
        fine.push(format!("{} {how}", age::counted(count, thing)));
    }
}

/// Claims that wait, each with its group.
fn claims(
    view: &View<'_>,
    outlook: &Outlook,
    sees_volumes: bool,
    groups: &mut Groups<'_>,
    settled: &mut Vec<(usize, &'static str, &'static str)>,
) -> BTreeMap<ClaimKey, Option<usize>> {
    let (mut bound, mut first_consumer) = (0_usize, 0_usize);
    let mut waiting = BTreeMap::new();
    for (key, claim) in &view.objects().claims.snapshot() {
        let place = outlook.claims.get(key);
        let is_going = claim.metadata.is_terminating();
        let reason = place.and_then(|place| place.reason.as_deref());
        if !is_going && matches!(reason, None | Some(ClaimReason::Bound(_))) {
            bound += usize::from(claim.status.phase == ClaimPhase::Bound);
            growing(view, claim, groups);
            continue;
        }
        // Its volume may be among those that were not seen.
        if !sees_volumes && !is_going && claim.status.phase == ClaimPhase::Bound {
            continue;
        }
        let Some(link) = told(view, &claim::link(view, key), &claim.metadata.uid, sees_volumes) else {
            continue;
        };
        let waits_for_pod = matches!(reason, Some(ClaimReason::WaitsForFirstConsumer));
        if !is_going && link.verdict == Verdict::Waiting && waits_for_pod {
            first_consumer += 1;
            continue;
        }
        // When a claim was lost is not kept anywhere.
        let is_new = claim.status.phase == ClaimPhase::Pending;
        let deleted = claim.metadata.deletion_timestamp.as_deref().copied();
        let since = deleted.or(claim.metadata.creation_timestamp.filter(|_| is_new));
        let class = claim_class(claim);
        let blocker = link.step.blocked_by.first().and_then(|it| subject::of(&it.object));
        let about = match (reason, blocker) {
            (None, _) => claim::fate(view, claim),
            (_, Some(ObjectRef::Volume(name))) => name.to_string(),
            (Some(ClaimReason::LostReference), _) => String::new(),
            (Some(ClaimReason::ObjectUnreadable(what)), _) => what.clone(),
            (Some(ClaimReason::NoCapacity(name) | ClaimReason::ProvingLost(name)), _) if !is_going => {
                name.to_string()
            }
            _ => class.to_owned(),
        };
        let is_of_class = !class.is_empty() && about == class;
        let victim = (ObjectRef::Claim(key.clone()), "claim", since);
        let index = groups.note(&link, about, victim);
        // The class explains more than one of many claims does.
        if let Some(index) = index.filter(|index| is_of_class && groups.count(*index) == 2) {
            groups.explained_by(index, &ObjectRef::Class(class.into()));
        }
        // One that is going serves the pods that have it.
        if !is_going {
            waiting.insert(key.clone(), index);
        }
    }
    settled.push((bound, "claim", "bound"));
    settled.push((first_consumer, "claim", "waiting for a first pod, as the class wants it"));
    waiting
}

/// A bound claim whose volume is to grow, if that needs a person. What goes on by itself is not told.
fn growing(view: &View<'_>, claim: &PersistentVolumeClaim, groups: &mut Groups<'_>) {
    let Some(link) = resize::size(view, claim).filter(|link| link.verdict == Verdict::Blocked) else {
        return;
    };
    let about = about(view, &link).unwrap_or_else(|| claim_class(claim).to_owned());
    let subject = ObjectRef::Claim(claim.key());
    let since = view.whole(&subject).and_then(resize::requested);
    groups.note(&link, about, (subject, "claim", since));
}

/// VolumeAttributesClasses that are being deleted and that nothing takes away.
fn attributes_classes(view: &View<'_>, groups: &mut Groups<'_>) {
    for name in view.objects().attributes_classes.keys() {
        let link = attributes_class::link(view, &name);
        if link.verdict == Verdict::Blocked {
            let since = link.step.since;
            groups.note(&link, "", (ObjectRef::AttributesClass(name), "class", since));
        }
    }
}

/// A link of what waits, if it does. Where most is not seen, of what may not be read the last event's words are told, or nothing.
fn told(view: &View<'_>, link: &Link, uid: &Uid, sees_most: bool) -> Option<Link> {
    let mut link = Some(link).filter(|it| it.verdict != Verdict::Healthy)?.clone();
    if link.verdict == Verdict::Forbidden && !sees_most {
        link.step.message = last_word(view, uid)?;
        "Forbidden".clone_into(&mut link.step.reason);
    }
    Some(link)
}

/// Volumes that a person has to look after, or that are to be reclaimed. Returns how many are settled.
fn volumes(view: &View<'_>, outlook: &Outlook, groups: &mut Groups<'_>) -> usize {
    let mut settled = 0;
    for (name, volume) in &view.objects().volumes.snapshot() {
        let reason = outlook.volumes.get(name).and_then(|place| place.reason.as_deref());
        if !volume.metadata.is_terminating() && reason.is_none_or(VolumeReason::is_settled) {
            settled += 1;
            continue;
        }
        let link = volume::link(view, name);
        let is_reclaimed =
            matches!(reason, Some(VolumeReason::LeftToProvisioner | VolumeReason::UsedByPods(_)));
        if link.verdict == Verdict::Blocked || is_reclaimed {
            // When a volume was released is not kept in what is listed.
            let victim = (ObjectRef::Volume(name.clone()), "volume", link.step.since);
            groups.note(&link, volume_class(volume), victim);
        }
    }
    settled
}

/// Nodes that hold volumes, or are to, and are silent, or keep pods waiting.
fn nodes(view: &View<'_>, groups: &mut Groups<'_>) {
    for (name, object) in view.objects().nodes.snapshot() {
        let link = node::own(view, &name, &object);
        if link.verdict != Verdict::Healthy && (link.step.reason != "NotReady" || view.has_volumes(&name)) {
            let since = link.step.since;
            groups.note(&link, name.as_str(), (ObjectRef::Node(name.clone()), "node", since));
        }
    }
}

/// Volumes on nodes that wait. Returns how many are attached.
fn node_volumes(view: &View<'_>, groups: &mut Groups<'_>) -> usize {
    // What holds a volume is told of those that wait for it.
    let node_volumes = &view.attach_detach().node_volumes;
    let conflicts = node_volumes.iter().filter_map(|((volume, _), it)| match &it.waiting {
        Some(Waiting::HeldByNode { conflict }) => Some((volume, &conflict.node)),
        _ => None,
    });
    let held: BTreeSet<(&VolumeId, &NodeName)> = conflicts.collect();
    let mut attached = 0_usize;
    for ((volume, node), node_volume) in node_volumes {
        if node_volume.waiting.is_none() && node_volume.write.is_none() {
            attached += usize::from(node_volume.state == AttachState::Attached);
            continue;
        }
        let mut pods = view.users(volume, node).peekable();
        if pods.peek().is_none() && held.contains(&(volume, node)) {
            continue;
        }
        let links = attachment::links(view, volume, node);
        let Some(link) = deciding(&links) else { continue };
        let (driver, handle) = volume.driver_and_handle();
        let index = if link.step.reason == ATTACHED_TWICE {
            groups.find(ATTACHED_TWICE, handle)
        } else {
            let subject = match pods.peek() {
                Some(pod) => ObjectRef::Pod((*pod).clone()),
                None => attachment::subject(volume, node),
            };
            let since = get::<VolumeAttachment>(view, &volume.attachment_name(node))
                .and_then(|it| it.metadata.deletion_timestamp.as_deref().copied())
                .or_else(|| attachment::first_user(view, volume, node).map(|(made, _)| made));
            let driver = if driver.is_empty() { volume.plugin() } else { driver };
            let about = about(view, link).unwrap_or_else(|| driver.to_owned());
            groups.note(link, about, (subject, "volume", since))
        };
        for pod in pods {
            groups.suffers(index, pod);
        }
    }
    attached
}

/// Pods that have not started: those that wait for a claim count with its cause; others, if nothing has been told of them.
fn pods(
    view: &View<'_>,
    waiting: &BTreeMap<ClaimKey, Option<usize>>,
    sees_world: bool,
    groups: &mut Groups<'_>,
) {
    for (key, pod) in view.objects().pods.snapshot() {
        if pod.status.phase != PodPhase::Pending || pod.metadata.is_terminating() {
            continue;
        }
        // One without a claim of its own waits for that, and not for what the claim of that name waits for.
        let lacks_claim = pod.spec.volumes.iter().any(|it| ephemeral::link(view, &pod, it).is_some());
        for claim in claims_of(&pod).filter(|_| !lacks_claim) {
            if let Some(index) = waiting.get(&claim) {
                groups.suffers(*index, &key);
            }
        }
        // Of another that no node was found for the scheduler tells.
        let is_of_scheduler = sees_world && pod.spec.node_name.is_empty() && !lacks_claim;
        if is_of_scheduler || groups.told.contains(&key) || groups.is_elsewhere(Some(key.namespace())) {
            continue;
        }
        // Without nodes and attachments nothing can be concluded of a pod's volumes, but where its namespace was asked for.
        if !sees_world && !view.snapshot.was_read(PODS_THERE) {
            continue;
        }
        let links = pod::links(view, &key);
        let of_volumes = links.get(1..).unwrap_or_default();
        let is_of_others =
            |link: &Link| link.step.reason == OF_OTHERS || (sees_world && link.verdict == Verdict::Forbidden);
        let link = deciding(of_volumes).filter(|link| !is_of_others(link));
        let link = link.and_then(|link| told(view, link, &pod.metadata.uid, sees_world));
        let Some(link) = link else { continue };
        let about = about(view, &link).unwrap_or_else(|| match subject::of(&link.step.object) {
            Some(ObjectRef::Node(name)) => name.to_string(),
            object => object.map(|it| subject::typed(&it)).unwrap_or_default(),
        });
        let since = pod.metadata.creation_timestamp;
        let index = groups.note(&link, about, (ObjectRef::Pod(key.clone()), "pod", since));
        groups.suffers(index, &key);
    }
}

/// What a link waits for, in a word: a program, the node on which a pod is, an object.
fn about(view: &View<'_>, link: &Link) -> Option<String> {
    let object = &link.step.blocked_by.first()?.object;
    match subject::of(object) {
        Some(ObjectRef::Pod(key)) => Some(get::<Pod>(view, &key)?.spec.node_name.to_string()),
        _ => Some(object.get("name")?.as_str()?.to_owned()),
    }
}
