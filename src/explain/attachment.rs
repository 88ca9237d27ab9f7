//! A volume on a node: attached, on its way, or held up, and by what.
//!
//! In: the verdict that attach/detach returned. Out: a [`Link`]; for a volume that another node holds, the link of that
//! node, too, for there is where a person has to act.

use std::collections::BTreeSet;

use apiserver::{
    ids::{AttachmentName, DriverName, NodeName, PodKey, VolumeName},
    kinds::{
        CsiDriver, Narrow, Node, ObjectRef, PersistentVolume, Pod, PodPhase, VolumeAttachment, VolumePhase,
    },
};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{
    age,
    exclusive::{ATTACHED_TWICE, Twice},
    links::{Link, missing},
    read::requests::Read,
    report::{Risk, Verdict},
    sidecars::Sidecar,
    subject::field,
    table::Facts,
    view::{MANY_NODES, View, get},
};
use crate::attach_detach::{
    decide::{force::Unforced, verdict::Waiting},
    dry_run::{NodeVolumeOutlook, volume_of},
    reasons::AttachState,
    state::{
        actual::AttachmentCall,
        desired::{
            volume_name::{VolumeId, VolumeKind},
            volume_source::Sharing,
        },
    },
};

/// A kubelet that is well kills what has not ended in its time at once, and unmounts: seconds, of which it needs no more.
pub(super) const OVERDUE: i64 = 60;

/// Looks at a volume that is wanted on these nodes: its attachments there, and, where it does not get there, who holds it, if it is
/// for one node alone; that are also pods of its claim's namespace.
pub(super) fn look(view: &View<'_>, id: &VolumeId, nodes: &BTreeSet<NodeName>, exclusive_in: Option<&str>) {
    let is_csi = id.kind() == VolumeKind::Csi;
    if !view.is_noted() {
        return;
    }
    if is_csi {
        let driver = DriverName::from(id.driver_and_handle().0);
        let object = view.read::<CsiDriver>(&driver);
        let needs_none = object.is_some_and(|it| it.spec.attach_required == Some(false));
        if needs_none || view.is_open(&ObjectRef::Driver(driver)) {
            return;
        }
        if nodes.len() > MANY_NODES {
            return holders(view, id);
        }
    }
    for node in nodes.iter().take(MANY_NODES) {
        let is_listed = view.node(node).is_none_or(|it| it.lists(id.as_str()));
        if is_listed && (!is_csi || !is_waited_for(view, id, node)) {
            let starts = |pod| get::<Pod>(view, pod).is_some_and(|it| it.status.phase != PodPhase::Running);
            let is_there = get::<VolumeAttachment>(view, &id.attachment_name(node)).is_some();
            if is_there && exclusive_in.is_some() && view.users(id, node).any(starts) {
                // Before it starts: the disk may still be on another, where no pod is left (S1).
                holders(view, id);
            }
            continue;
        }
        if let Some(namespace) = exclusive_in {
            view.want(|| Read::pods_in(namespace));
        }
        if is_csi {
            view.sidecars();
            if exclusive_in.is_some() {
                holders(view, id);
            }
        }
        // Without an attachment, only nodes tell who has it (S43).
        let first = first_user(view, id, node).map(|(made, _)| made);
        let is_there = get::<VolumeAttachment>(view, &id.attachment_name(node)).is_some();
        let is_late = !is_there && age::is_long(first, view.now());
        if exclusive_in.is_some() && (!is_csi || is_late) {
            view.list::<Node>();
        }
    }
}

/// The same of a PersistentVolume.
pub(super) fn look_at(view: &View<'_>, volume: &PersistentVolume, nodes: &BTreeSet<NodeName>) {
    let reference = volume.spec.claim_ref.as_ref().filter(|_| is_exclusive(volume));
    if let Some(id) = volume_of(view.objects(), &volume.key()).filter(|_| view.is_noted()) {
        look(view, &id, nodes, reference.map(|reference| reference.namespace.as_str()));
    }
}

/// Whether a volume may be on one node only.
pub(super) fn is_exclusive(volume: &PersistentVolume) -> bool {
    Sharing::of(volume.spec.access_modes.iter().map(|mode| &**mode)) == Sharing::Exclusive
}

/// Whether a volume may be attached to a second node although it is for one alone, as not all attachments were read.
pub(super) fn may_be_twice(view: &View<'_>, name: &VolumeName) -> bool {
    let volume = get::<PersistentVolume>(view, name).filter(|it| it.status.phase == VolumePhase::Bound);
    let id = volume_of(view.objects(), name).filter(|id| id.kind() == VolumeKind::Csi);
    let driver = id.map(|id| DriverName::from(id.driver_and_handle().0));
    let attaches = |driver: DriverName| {
        get::<CsiDriver>(view, &driver).is_none_or(|it| it.spec.attach_required != Some(false))
    };
    let is_listed = view.snapshot.is_listed::<VolumeAttachment>();
    !is_listed && volume.is_some_and(|it| is_exclusive(&it)) && driver.is_some_and(attaches)
}

/// Whether a volume's attachment to a node, which is wanted, is known not to be there as it should be.
fn is_waited_for(view: &View<'_>, id: &VolumeId, node: &NodeName) -> bool {
    let name = id.attachment_name(node);
    match view.read::<VolumeAttachment>(&name) {
        Some(attachment) => !is_settled(&attachment),
        None => !view.is_open(&ObjectRef::Attachment(name)),
    }
}

/// Attached, and to stay.
pub(super) fn is_settled(attachment: &VolumeAttachment) -> bool {
    attachment.status.attached && !attachment.metadata.is_terminating()
}

/// Looks at all attachments, for those of a volume: at the nodes of a few, else at those where something is under way.
pub(super) fn holders(view: &View<'_>, id: &VolumeId) {
    view.list::<VolumeAttachment>();
    let are_few = view.nodes_of(id).count() <= MANY_NODES;
    let is_under_way = |it: &NodeVolumeOutlook| it.state != AttachState::Attached || it.waiting.is_some();
    for (node, _) in view.nodes_of(id).filter(|(_, it)| are_few || is_under_way(it)).take(MANY_NODES) {
        view.node(node);
        let attachment = get::<VolumeAttachment>(view, &id.attachment_name(node));
        if attachment.is_some_and(|it| !is_settled(&it)) {
            view.sidecars();
        }
    }
}

/// The links of a volume on a node: the one itself, and those that it waits for.
pub(super) fn links(view: &View<'_>, volume: &VolumeId, node: &NodeName) -> Vec<Link> {
    let Some(node_volume) = view.on_node(volume, node) else { return Vec::new() };
    let mut links = vec![link(view, volume, node, node_volume)];
    if let Some(twice) = view.twice().get(volume) {
        // What leads to the volume is no advice as long as another machine may write it.
        for link in &mut links {
            link.verdict = Verdict::Healthy;
            link.step.blocked_by.clear();
            // But what the controller writes next it writes all the same.
            link.step.next = link.step.next.take().filter(|_| node_volume.write.is_some());
        }
        links.push(on_two_nodes(view, twice));
        return links;
    }
    if let Some(Waiting::HeldByNode { conflict }) = &node_volume.waiting
        && conflict.node != *node
    {
        let holder = holder(view, volume, &conflict.node);
        links.extend(holder.map(|link| outlasted(view, link, (volume, node), &conflict.node)));
    }
    if view.users(volume, node).next().is_some() {
        links.extend(unregistered(view, volume, node));
    }
    if volume.kind() == VolumeKind::NoOp {
        // There is no VolumeAttachment to be warned of.
        for link in &mut links {
            link.actions.retain(|action| action.risk != Risk::Danger);
        }
    }
    links
}

/// A disk that two machines may write.
pub(super) fn on_two_nodes(view: &View<'_>, twice: &Twice) -> Link {
    let of_node =
        |(name, _): &(AttachmentName, _)| Some(get::<VolumeAttachment>(view, name)?.spec.node_name.clone());
    let later = twice.in_use.clone().or_else(|| twice.attachments.iter().rev().find_map(of_node));
    let later = later.unwrap_or_default();
    let subject = twice.volume.clone().map_or_else(|| ObjectRef::Node(later.clone()), ObjectRef::Volume);
    let link = Link::told(&subject, ATTACHED_TWICE, &[("told", &twice.told), ("later", &later)]);
    link.since(twice.attachments.iter().filter_map(|(_, since)| *since).min())
}

/// A kubelet that is well and does not unmount what no pod uses there, while pods here have waited for long. Since when it
/// could have, no object says; that they waited so long for pods there is told of those pods.
fn outlasted(view: &View<'_>, link: Link, (volume, node): (&VolumeId, &NodeName), holder: &NodeName) -> Link {
    let is_well = get::<Node>(view, holder).is_some_and(|node| node.is_ready());
    if !is_well || link.step.reason != "DetachWaitingForUnmount" || link.verdict != Verdict::Waiting {
        return link;
    }
    let Some((made, pod)) = first_user(view, volume, node) else { return link };
    if !age::is_long(Some(made), view.now()) {
        return link;
    }
    let mut link = Link { verdict: Verdict::Blocked, ..link };
    let waits = age::between(made, view.now());
    link.step.message = format!("{}, and pod {pod} has been there for {waits}", link.step.message);
    link
}

/// The pod that has wanted a volume on a node for longest.
pub(super) fn first_user(view: &View<'_>, volume: &VolumeId, node: &NodeName) -> Option<(Timestamp, PodKey)> {
    let made = |pod: &PodKey| Some((get::<Pod>(view, pod)?.metadata.creation_timestamp?, pod.clone()));
    view.users(volume, node).filter_map(made).min()
}

/// The link of a volume whose driver says that it needs no attachment.
pub(super) fn not_required(view: &View<'_>, volume: &VolumeId, node: &NodeName) -> Option<Link> {
    let (driver, _) = volume.driver_and_handle();
    let object = get::<CsiDriver>(view, &DriverName::from(driver))?;
    let link = || Link::told(&ObjectRef::Node(node.clone()), "AttachNotRequired", &[("driver", &driver)]);
    (object.spec.attach_required == Some(false)).then(link)
}

/// Whether the kubelet of the node knows the driver, if that was read: without it, nothing is mounted there.
pub(super) fn unregistered(view: &View<'_>, volume: &VolumeId, node: &NodeName) -> Option<Link> {
    let (driver, _) = volume.driver_and_handle();
    if driver.is_empty() { None } else { unregistered_driver(view, driver, node) }
}

/// The same of a driver.
pub(super) fn unregistered_driver(view: &View<'_>, driver: &str, node: &NodeName) -> Option<Link> {
    // Of a node that is not there, something else is to be said.
    get::<Node>(view, node)?;
    let drivers = view.snapshot.csi_node(node)?.pointer("/spec/drivers").and_then(Value::as_array);
    let is_known = drivers.into_iter().flatten().any(|one| field(one, "name") == driver);
    let link = || Link::told(&ObjectRef::Node(node.clone()), "DriverNotRegistered", &[("driver", &driver)]);
    (!is_known).then(link)
}

/// The link of the node that holds an exclusive volume.
fn holder(view: &View<'_>, volume: &VolumeId, node: &NodeName) -> Option<Link> {
    // As long as one stays, the end of the others frees nothing.
    let is_ending = |pod: &&PodKey| get::<Pod>(view, pod).is_some_and(|pod| pod.metadata.is_terminating());
    let Some(user) = view.users(volume, node).min_by_key(is_ending) else {
        return Some(link(view, volume, node, view.on_node(volume, node)?));
    };
    let over = get::<Pod>(view, user).and_then(|pod| pod.metadata.deletion_timestamp.as_deref().copied());
    let late = over.map(|over| view.now().as_second() - over.as_second());
    let silent = get::<Node>(view, node).filter(|node| !node.is_ready());
    let case = match (silent.as_ref().filter(|it| !it.kubelet_speaks()), late) {
        // No kubelet ends the pod there, or unmounts.
        (Some(_), Some(_)) => "HeldByNode by silent node and ending pod",
        (Some(_), None) => "HeldByNode by silent node",
        (None, Some(_)) => "HeldByNode by ending pod",
        (None, None) => "HeldByNode by pod",
    };
    let told = match late {
        Some(late @ 1..) => format!("is being deleted, and its grace period ended {} ago", age::short(late)),
        _ => "is being deleted, and its grace period is not over".to_owned(),
    };
    let facts: Facts<'_> =
        &[("node", node), ("pod", user), ("since", &silent_for(view, node)), ("told", &told)];
    let mut link = Link::told(&subject(volume, node), case, facts).detail(format!("on {node}"));
    if late.is_some_and(|late| late > OVERDUE) {
        link.verdict = Verdict::Blocked;
    }
    if let Some(silent) = silent {
        link = brought_back(link, node, Some(&silent), "the detach follows");
    }
    Some(link)
}

/// For how long a node has been silent, as the end of a sentence.
fn silent_for(view: &View<'_>, node: &NodeName) -> String {
    let since = get::<Node>(view, node).and_then(|node| node.ready()?.last_transition_time);
    since.map_or(String::new(), |since| format!(" for {}", age::between(since, view.now())))
}

/// A node that is not Ready holds a volume, or is to; and what follows when it is back.
pub(super) fn brought_back(link: Link, node: &NodeName, object: Option<&Node>, then: &str) -> Link {
    let case = match object {
        Some(object) if object.kubelet_speaks() && object.is_out_of_service() => "+ailing node declared off",
        Some(object) if object.kubelet_speaks() => "+ailing node",
        Some(object) if object.is_out_of_service() => "+silent node declared off",
        _ => "+silent node",
    };
    link.and(case, &[("node", node), ("then", &then)])
}

pub(super) fn subject(volume: &VolumeId, node: &NodeName) -> ObjectRef {
    match volume.kind() {
        VolumeKind::Csi => ObjectRef::Attachment(volume.attachment_name(node)),
        // The node's list is all that there is.
        VolumeKind::NoOp => ObjectRef::Node(node.clone()),
    }
}

/// Of a volume on a node whose object or users were not read, nothing is told of what the controller makes of that (S42).
pub(super) fn unread(view: &View<'_>, volume: &VolumeId, node: &NodeName) -> Option<Link> {
    if get::<Node>(view, node).is_none() && !view.is_gone(node) {
        return Some(missing::<Node>(view, &ObjectRef::Node(node.clone()), node, "NodeGone"));
    }
    let is_known = view.snapshot.sees_pods() || view.users(volume, node).next().is_some();
    let told = format!("whether a pod uses the volume on {node} is unknown: not all pods could be read");
    let link = || Link::told(&subject(volume, node), "Forbidden", &[("told", &told)]);
    (!is_known).then(|| link().detail(format!("on {node}")))
}

/// The link of one volume on one node.
fn link(view: &View<'_>, volume: &VolumeId, node: &NodeName, node_volume: &NodeVolumeOutlook) -> Link {
    let attachment = get::<VolumeAttachment>(view, &volume.attachment_name(node));
    // One that goes goes whoever uses it.
    let is_going = attachment.as_ref().is_some_and(|it| it.metadata.is_terminating());
    if let Some(link) = unread(view, volume, node).filter(|_| !is_going) {
        return link;
    }
    let subject = subject(volume, node);
    let since = attachment.as_ref().and_then(|attachment| {
        let metadata = &attachment.metadata;
        metadata.deletion_timestamp.as_deref().copied().or(metadata.creation_timestamp)
    });
    let link = match (&node_volume.waiting, node_volume.write) {
        (_, Some(write)) => {
            let asked = since.or_else(|| first_user(view, volume, node).map(|(made, _)| made));
            written_next(&subject, write, node_volume, age::is_long(asked, view.now()))
        }
        (Some(waiting), None) => waits(view, volume, node, waiting, since),
        (None, None) => at_rest(&subject, node, node_volume.state),
    };
    let state = match attachment {
        None if volume.kind() == VolumeKind::Csi => "no VolumeAttachment",
        _ => <&str>::from(node_volume.state),
    };
    link.detail(format!("on {node}  {state}")).since(since)
}

fn written_next(
    subject: &ObjectRef,
    write: AttachmentCall,
    node_volume: &NodeVolumeOutlook,
    is_long: bool,
) -> Link {
    let case = match write {
        AttachmentCall::Create => "WaitingForVolumeAttachment next",
        AttachmentCall::Delete | AttachmentCall::Read => "DetachWaitingForAttacher next",
    };
    let mut more = node_volume.forced.map_or(String::new(), |it| format!(", by force ({})", it.label()));
    if is_long {
        more.push_str(
            "; this has been due for more than five minutes: check that the attach/detach controller runs",
        );
    }
    let verdict = if is_long { Verdict::Blocked } else { Verdict::Waiting };
    Link::told(subject, case, &[("more", &more)]).verdict(verdict)
}

fn at_rest(subject: &ObjectRef, node: &NodeName, state: AttachState) -> Link {
    let told = format!("not attached to {node}");
    Link::told(subject, <&str>::from(state), &[("node", node), ("told", &told)]).verdict(Verdict::Healthy)
}

/// What a wait comes to.
fn waits(
    view: &View<'_>,
    volume: &VolumeId,
    node: &NodeName,
    waiting: &Waiting,
    since: Option<Timestamp>,
) -> Link {
    let subject = subject(volume, node);
    let (driver, _) = volume.driver_and_handle();
    let is_of_attacher = matches!(waiting, Waiting::WaitingForAttacher | Waiting::DetachWaitingForAttacher);
    if is_of_attacher && let Some(link) = absent_attacher(view, &subject, driver, since) {
        return link;
    }
    if let Waiting::DetachWaitingForUnmount { unforced } | Waiting::DetachWaitingForNode { unforced } =
        waiting
    {
        return unmounts(view, volume, node, waiting, *unforced);
    }
    let is_long = age::is_long(since, view.now());
    let ago = |at: Timestamp| age::between(at, view.now());
    let (case, other) = match waiting {
        // A driver goes by the name of the PersistentVolume: the end of the one would take the other.
        Waiting::HeldByNode { conflict } if conflict.node == *node => ("HeldByNode here", String::new()),
        Waiting::HeldByNode { conflict } => ("HeldByNode", conflict.node.to_string()),
        Waiting::ForeignAttachment { name } => (<&str>::from(waiting), name.to_string()),
        Waiting::Unreadable { object } => (<&str>::from(waiting), object.clone()),
        _ => (<&str>::from(waiting), String::new()),
    };
    let asked = match waiting {
        Waiting::AttachError { at, .. } | Waiting::DetachError { at, .. } => {
            at.map_or(String::new(), |at| format!(" {} ago", ago(at)))
        }
        _ if is_of_attacher && is_long => {
            since.map_or(String::new(), |since| format!(" {} ago, and is there", ago(since)))
        }
        _ => since.map_or(String::new(), |since| format!(" {} ago", ago(since))),
    };
    let facts: Facts<'_> =
        &[("node", node), ("told", waiting), ("driver", &driver), ("other", &other), ("asked", &asked)];
    let mut link = Link::told_of(&subject, case, "attachment", facts);
    match waiting {
        Waiting::AttachError { .. } | Waiting::DetachError { .. } => {
            link.verdict(Verdict::of_wait(since, view.now())).and_log(view, driver, Sidecar::Attacher)
        }
        _ if is_of_attacher && is_long => {
            link.verdict(Verdict::Blocked).and_log(view, driver, Sidecar::Attacher)
        }
        _ if is_of_attacher && view.sidecars().is_limited(driver, Sidecar::Attacher) => {
            link.and("+limited", &[])
        }
        Waiting::ForeignWriter { until, .. } | Waiting::RestoreGrace { until } => {
            if let Some(next) = &mut link.step.next {
                next.at = Some(*until);
            }
            link
        }
        _ => link,
    }
}

/// A kubelet is to unmount: it will, or it is silent and time may force, or nothing does.
fn unmounts(
    view: &View<'_>,
    volume: &VolumeId,
    node: &NodeName,
    waiting: &Waiting,
    unforced: Unforced,
) -> Link {
    let (subject, code, is_gone) = (subject(volume, node), <&str>::from(waiting), view.is_gone(node));
    let state =
        if is_gone { "does not exist".to_owned() } else { format!("is not Ready{}", silent_for(view, node)) };
    let (kind, patience) = match unforced {
        // What is distrusted, objects do not show.
        Unforced::NodeReady | Unforced::Distrusted(_) => ("", None),
        Unforced::Until(at) => {
            view.want(Read::deployed);
            ("timed", Some(at.duration_since(view.now())))
        }
        Unforced::SwitchedOff => ("never forced", None),
    };
    let facts: Facts<'_> = &[
        ("node", node),
        ("told", waiting),
        ("state", &state),
        ("what", if is_gone { &"there" } else { &"Ready" }),
        ("patience", &patience.map_or(String::new(), |patience| age::short(patience.as_secs()))),
    ];
    let mut link = Link::told_of(&subject, code, kind, facts);
    let object = get::<Node>(view, node);
    if let (Some(patience), Some(next)) = (patience, &mut link.step.next) {
        // The controller counts from what it saw: of that, objects show when the node fell silent.
        let from = object.as_ref().and_then(|node| node.ready()?.last_transition_time);
        let from = from.and_then(|from| from.checked_add(patience).ok());
        next.not_before = from.filter(|from| *from > view.now());
    }
    match unforced {
        Unforced::NodeReady | Unforced::Distrusted(_) => link,
        _ if is_gone => link.and("+gone node", &[("node", node)]),
        _ => brought_back(link, node, object.as_deref(), "the detach follows"),
    }
}

/// The attacher that was asked is not there.
pub(super) fn absent_attacher(
    view: &View<'_>,
    subject: &ObjectRef,
    driver: &str,
    asked: Option<Timestamp>,
) -> Option<Link> {
    let told = view.sidecars().absence(driver, Sidecar::Attacher, asked)?;
    Some(Link::told(subject, "AttacherNotSeen", &[("told", &told), ("driver", &driver)]))
}
