//! A volume on a node: attached, on its way, or held up, and by what.
//!
//! In: the verdict that attach/detach returned. Out: a [`Link`]; for a volume that another node holds, the link of that
//! node, too, for there is where a person has to act.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{
    actions::{care, never, never_by_hand, of_absent_program, of_gone_node, of_silent_node, safe},
    age,
    exclusive::{ATTACHED_TWICE, Twice},
    links::{Link, program},
    report::{Action, Verdict},
    sidecars::Sidecar,
    subject::Subject,
    view::{Missing, View, get},
    waiting,
};
use crate::{
    attach_detach::{
        decide::{force::Unforced, verdict::Waiting},
        desired::volume_name::{VolumeId, VolumeKind},
        dry_run::{Desired, NextWrite, NodeVolumeOutlook, volume_of},
        tell::state::State,
    },
    kube_api::{
        ids::{AttachmentName, ClaimKey, DriverName, NodeName, PodKey, VolumeName},
        kinds::{CsiDriver, Narrow, Node, PersistentVolumeClaim, Pod, VolumeAttachment},
    },
};

/// A kubelet that is well kills what has not ended in its time at once, and unmounts: seconds, of which it needs no more.
pub(super) const OVERDUE: i64 = 60;

/// The links of a volume on a node: the one itself, and those that it waits for.
pub(super) fn links(view: &View<'_>, volume: &VolumeId, node: &NodeName) -> Vec<Link> {
    let Some(node_volume) = view.on_node(volume, node) else { return Vec::new() };
    let mut links = vec![link(view, volume, node, node_volume)];
    if let Some(twice) = view.twice().get(volume).filter(|twice| twice.is_reached) {
        // What leads to the volume is no advice as long as another machine may write it.
        for link in &mut links {
            link.verdict = Verdict::Healthy;
            link.step.blocked_by.clear();
        }
        links.push(on_two_nodes(view, twice, node));
        return links;
    }
    if let Some(Waiting::HeldByNode { conflict }) = &node_volume.waiting
        && conflict.node != *node
    {
        let holder = holder(view, volume, &conflict.node);
        links.extend(holder.map(|link| outlasted(view, link, (volume, node), &conflict.node)));
    } else if is_for_one_node(view, volume, node) && node_volume.state != State::Attached {
        links.extend(attached_elsewhere(view, volume, node));
    }
    if view.users(volume, node).next().is_some() {
        links.extend(unregistered(view, volume, node));
    }
    if volume.kind() == VolumeKind::NoOp {
        // There is no VolumeAttachment to be warned of.
        for link in &mut links {
            link.actions.retain(|action| *action != never_by_hand());
        }
    }
    links
}

/// A disk that two machines may write.
fn on_two_nodes(view: &View<'_>, twice: &Twice, node: &NodeName) -> Link {
    let subject = match &twice.volume {
        Some(volume) => Subject::Volume(volume.clone()),
        None => Subject::Node(node.clone()),
    };
    let of_node =
        |(name, _): &(AttachmentName, _)| Some(get::<VolumeAttachment>(view, name)?.spec.node_name.clone());
    let later = twice.in_use.clone().or_else(|| twice.attachments.iter().rev().find_map(of_node));
    let field = format!("spec.nodeName={}", later.unwrap_or_else(|| node.clone()));
    let message = format!("{}: two machines may write the disk", twice.told);
    Link::new(&subject, ATTACHED_TWICE, message, Verdict::Blocked)
        .since(twice.attachments.iter().filter_map(|(_, since)| *since).min())
        .act(safe(
            "see on which nodes pods use it, and scale down what runs on the one that came later: it leaves that node when \
             its kubelet has unmounted it",
            &["kubectl", "get", "pods", "-A", "-o", "wide", "--field-selector", &field],
        ))
        .act(care("if both may have written: check the file system before the data is trusted", &[]))
        .act(never("let a pod start there to see whether it works: each write may destroy what the other wrote"))
        .act(never_by_hand())
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

/// Whether a pod that wants it here has it for this node alone.
fn is_for_one_node(view: &View<'_>, volume: &VolumeId, node: &NodeName) -> bool {
    let is_it = |desired: &Desired| desired.volume == *volume && desired.node == *node && desired.exclusive;
    let mut desired =
        view.users(volume, node).filter_map(|pod| view.attach_detach.desired.get(pod)).flatten();
    desired.any(is_it)
}

/// Other nodes from which an exclusive volume has not gone, though an attachment is made here: where kube-controller-manager
/// is in doubt about a detach, it goes on.
// KCM: pkg/volume/util/operationexecutor, GenerateDetachVolumeFunc, MarkVolumeAsUncertain.
fn attached_elsewhere(view: &View<'_>, volume: &VolumeId, here: &NodeName) -> Vec<Link> {
    let is_attached = |node: &NodeName| {
        get::<VolumeAttachment>(view, &volume.attachment_name(node)).is_some_and(|it| it.status.attached)
    };
    let others = view.nodes_of(volume).filter(|(node, _)| *node != here && is_attached(node));
    others
        .map(|(node, node_volume)| {
            let mut link = link(view, volume, node, node_volume);
            let since = link.step.since.filter(|_| node_volume.waiting.is_some());
            let is_long = age::is_long(since, view.now());
            link.verdict = link.verdict.max(if is_long { Verdict::Blocked } else { Verdict::Waiting });
            let waiting = node_volume.waiting.as_ref().map(ToString::to_string);
            let message = waiting.unwrap_or_else(|| link.step.message.clone());
            link.step.message = format!(
                "the volume is for one node alone, and is still attached to {node}, which it has to leave before {here} may \
                 have it: {message}"
            );
            link.act(never_by_hand())
        })
        .collect()
}

/// The link of a volume that no driver attaches: its kubelet mounts it at once.
pub(super) fn not_attachable(name: &VolumeName) -> Link {
    let message = "nothing is attached for a volume of this kind: the kubelet mounts it at once";
    Link::new(&Subject::Volume(name.clone()), "NotAttachable", message, Verdict::Healthy)
}

/// The link of a volume whose driver says that it needs no attachment.
pub(super) fn not_required(view: &View<'_>, volume: &VolumeId, node: &NodeName) -> Option<Link> {
    let (driver, _) = volume.driver_and_handle();
    let object = get::<CsiDriver>(view, &DriverName::from(driver))?;
    let message = format!("driver {driver} needs no attachment: the kubelet mounts the volume at once");
    let link = || Link::new(&Subject::Node(node.clone()), "AttachNotRequired", message, Verdict::Healthy);
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
    let message = if view.snapshot.lacks_csi_node(node) {
        format!("node {node} has no CSINode object: its kubelet has never come up with drivers of CSI")
    } else {
        let known = view.snapshot.csi_node(node)?;
        if of_driver(known, driver).is_some() {
            return None;
        }
        format!("the kubelet of {node} does not know driver {driver}: its node plugin does not run there")
    };
    let link = Link::new(&Subject::Node(node.clone()), "DriverNotRegistered", message, Verdict::Blocked);
    let field = format!("spec.nodeName={node}");
    let command = ["kubectl", "get", "pods", "-A", "--field-selector", &field];
    Some(link.act(safe(format!("see why the node plugin of {driver} does not run on {node}"), &command)))
}

/// What a CSINode says of a driver.
fn of_driver<'a>(csi_node: &'a Value, driver: &str) -> Option<&'a Value> {
    let all = csi_node.pointer("/spec/drivers").and_then(Value::as_array)?;
    all.iter().find(|one| one.get("name").and_then(Value::as_str) == Some(driver))
}

/// The status code of gRPC by which a driver says that a node takes no more volumes.
const RESOURCE_EXHAUSTED: i64 = 8;

/// That a node has as many volumes of a driver as it takes: the driver says so, or the count that it gave.
// CSI: ControllerPublishVolume, RESOURCE_EXHAUSTED; api/storage/v1, VolumeNodeResources.count and VolumeError.errorCode.
fn full(view: &View<'_>, volume: &VolumeId, node: &NodeName) -> Option<String> {
    let (driver, _) = volume.driver_and_handle();
    let object = view.whole(&subject(volume, node));
    let code = object.and_then(|it| it.pointer("/status/attachError/errorCode")?.as_i64());
    let csi_node = view.snapshot.csi_node(node);
    let limit = csi_node.and_then(|it| of_driver(it, driver)?.pointer("/allocatable/count")?.as_u64());
    let listed = get::<Node>(view, node).map_or(0, |node| {
        let names = node.status.volumes_attached.iter().filter_map(|it| VolumeId::parse_csi(&it.name));
        names.filter(|id| id != volume && id.driver_and_handle().0 == driver).count()
    });
    match limit {
        Some(limit) if listed as u64 >= limit => {
            let limit = age::counted(usize::try_from(limit).unwrap_or(usize::MAX), "volume");
            Some(format!("takes {limit} of {driver}, and has {listed} already"))
        }
        _ if code == Some(RESOURCE_EXHAUSTED) => {
            Some(format!("takes no more volumes of {driver}, as the driver says (ResourceExhausted)"))
        }
        _ => None,
    }
}

/// The link of the node that holds an exclusive volume.
fn holder(view: &View<'_>, volume: &VolumeId, node: &NodeName) -> Option<Link> {
    let node_volume = view.on_node(volume, node)?;
    let mut users = view.users(volume, node).peekable();
    if node_volume.waiting.is_none() && node_volume.write.is_none() && users.peek().is_none() {
        return Some(link(view, volume, node, node_volume));
    }
    let Some(user) = users.next() else { return Some(link(view, volume, node, node_volume)) };
    if let Some(link) = silent_holder(view, volume, node, user) {
        return Some(link);
    }
    let over = get::<Pod>(view, user).and_then(|pod| pod.metadata.deletion_timestamp.as_deref().copied());
    if let Some(over) = over {
        return Some(ending_holder(view, volume, node, (user, over)));
    }
    let message = format!(
        "pod {user} uses the volume on node {node}, which is for one node alone: it stays there until that pod has ended"
    );
    let command = ["kubectl", "describe", "pod", user.name(), "-n", user.namespace()];
    let link = Link::new(&subject(volume, node), "HeldByNode", message, Verdict::Blocked)
        .blocked_by(Subject::Pod(user.clone()).json(), "uses the volume")
        .next("Detach", Some("that pod has ended and its kubelet has unmounted the volume"))
        .act(safe("see whether both pods are meant to run: one of them has to go", &command))
        .act(never_by_hand());
    Some(link.detail(format!("on {node}")))
}

/// The node that holds the volume is silent: no kubelet ends the pod there, or unmounts.
fn silent_holder(view: &View<'_>, volume: &VolumeId, node: &NodeName, user: &PodKey) -> Option<Link> {
    let object = get::<Node>(view, node).filter(|node| !node.is_ready())?;
    let since = object.ready().and_then(|ready| ready.last_transition_time);
    let silent = since.map_or(String::new(), |since| format!(" for {}", age::between(since, view.now())));
    let is_ending = get::<Pod>(view, user).is_some_and(|pod| pod.metadata.is_terminating());
    let (of_pod, until) = if is_ending {
        (
            "is being deleted, and no kubelet is there to end it",
            "its kubelet reports again, or the pod is removed",
        )
    } else {
        (
            "uses the volume there as far as is known",
            "its kubelet reports again, or the pod is evicted and removed",
        )
    };
    let message = format!(
        "node {node} holds the volume, which is for one node alone, and is not Ready{silent}: pod {user} {of_pod}"
    );
    let link = Link::new(&subject(volume, node), "HeldByNode", message, Verdict::Blocked)
        .blocked_by(Subject::Node(node.clone()).json(), format!("is not Ready{silent}"))
        .next("Detach", Some(until))
        .detail(format!("on {node}"));
    let actions = of_silent_node(node.as_str(), Some(&object), "the detach follows");
    Some(actions.into_iter().fold(link, Link::act))
}

/// The pod that uses the volume is being deleted; its time is over at that moment.
fn ending_holder(
    view: &View<'_>,
    volume: &VolumeId,
    node: &NodeName,
    (user, over): (&PodKey, Timestamp),
) -> Link {
    let late = view.now().as_second() - over.as_second();
    let (verdict, told) = if late > 0 {
        let verdict = if late > OVERDUE { Verdict::Blocked } else { Verdict::Waiting };
        (verdict, format!("is being deleted, and its time was over {} ago", age::short(late)))
    } else {
        (Verdict::Waiting, "is being deleted, and has the time to end".to_owned())
    };
    let message =
        format!("pod {user} uses the volume on node {node}, which is for one node alone: it {told}");
    Link::new(&subject(volume, node), "HeldByNode", message, verdict)
        .blocked_by(Subject::Pod(user.clone()).json(), told)
        .next("Detach", Some("it has ended and its kubelet has unmounted the volume"))
        .act(safe(
            "see what keeps the pod",
            &["kubectl", "describe", "pod", user.name(), "-n", user.namespace()],
        ))
        .act(never_by_hand())
        .detail(format!("on {node}"))
}

pub(super) fn subject(volume: &VolumeId, node: &NodeName) -> Subject {
    match volume.kind() {
        VolumeKind::Csi => Subject::Attachment(volume.attachment_name(node)),
        // The node's list is all that there is.
        VolumeKind::NoOp => Subject::Node(node.clone()),
    }
}

/// The link of one volume on one node.
fn link(view: &View<'_>, volume: &VolumeId, node: &NodeName, node_volume: &NodeVolumeOutlook) -> Link {
    let subject = subject(volume, node);
    let attachment = get::<VolumeAttachment>(view, &volume.attachment_name(node));
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
        _ => node_volume.state.code(),
    };
    link.detail(format!("on {node}  {state}")).since(since)
}

fn written_next(subject: &Subject, write: NextWrite, node_volume: &NodeVolumeOutlook, is_long: bool) -> Link {
    let (reason, message, action) = match write {
        NextWrite::CreateAttachment => (
            "WaitingForVolumeAttachment",
            "nothing is in the way: the controller creates the VolumeAttachment next",
            "CreateVolumeAttachment",
        ),
        NextWrite::DeleteAttachment => (
            "DetachWaitingForAttacher",
            "nothing is in the way: the controller deletes the VolumeAttachment next",
            "DeleteVolumeAttachment",
        ),
    };
    let message = match node_volume.forced {
        Some(forced) => format!("{message}, by force ({})", forced.label()),
        None => message.to_owned(),
    };
    let (message, verdict) = if is_long {
        let message = format!("{message}, and has not for long: is the attach/detach controller at work?");
        (message, Verdict::Blocked)
    } else {
        (message, Verdict::Waiting)
    };
    Link::new(subject, reason, message, verdict).next(action, None).act(safe(
        "if this lasts: see whether the attach/detach controller runs and what it says",
        &["kubectl", "get", "leases", "-n", "kube-system"],
    ))
}

fn at_rest(subject: &Subject, node: &NodeName, state: State) -> Link {
    match state {
        State::Attached => Link::new(
            subject,
            "Attached",
            format!("attached to {node}; its kubelet may mount"),
            Verdict::Healthy,
        ),
        _ => Link::new(subject, state.code(), format!("not attached to {node}"), Verdict::Healthy),
    }
}

/// What a wait comes to, with who has to act.
fn waits(
    view: &View<'_>,
    volume: &VolumeId,
    node: &NodeName,
    waiting: &Waiting,
    since: Option<Timestamp>,
) -> Link {
    let subject = subject(volume, node);
    let code = waiting.code();
    let told = waiting::told(node, waiting);
    let link = |verdict| Link::new(&subject, code, format!("on {node}: {told}"), verdict);
    let node_object = || Subject::Node(node.clone()).json();
    let (driver, _) = volume.driver_and_handle();
    match waiting {
        Waiting::WaitingForAttacher | Waiting::DetachWaitingForAttacher => {
            let asked_for = if matches!(waiting, Waiting::WaitingForAttacher) { "Attach" } else { "Detach" };
            absent_attacher(view, &subject, driver, since).unwrap_or_else(|| {
                let asked = since.map_or(String::new(), |since| format!(" {} ago", age::between(since, view.now())));
                if age::is_long(since, view.now()) {
                    return link(Verdict::Blocked)
                        .blocked_by(program("Attacher", driver), format!("has been asked{asked}, and is there"))
                        .next(asked_for, Some("the attacher answers: within seconds as a rule"))
                        .act(logs_of(view, driver))
                        .act(never_by_hand());
                }
                let link = link(Verdict::Waiting)
                    .blocked_by(program("Attacher", driver), format!("has been asked{asked}"))
                    .next(asked_for, Some("the attacher answers: within seconds as a rule"));
                let link = if view.sidecars.is_limited(driver, Sidecar::Attacher) {
                    link.act(safe(
                        "many volumes at once wait for its --kube-api-qps=5, the default: raise it in the driver's controller",
                        &[],
                    ))
                } else {
                    link
                };
                link.act(never_by_hand())
            })
        }
        Waiting::AttachError { at, .. } | Waiting::DetachError { at, .. } => {
            let verdict = Verdict::of_wait(since, view.now());
            let told = at.map_or(String::new(), |at| format!(", told {} ago", age::between(at, view.now())));
            let is_attach = matches!(waiting, Waiting::AttachError { .. });
            let link = match full(view, volume, node).filter(|_| is_attach) {
                Some(full) => link(Verdict::Blocked).blocked_by(node_object(), full).act(safe(
                    "the node is full: see who put the pod there. The scheduler counts volumes, but for pods with \
                     spec.nodeName, and by what the driver says of the node; another pod there has to go, or this one",
                    &["kubectl", "get", "csinode", node.as_str(), "-o", "yaml"],
                )),
                None => link(verdict),
            };
            link.blocked_by(program("Attacher", driver), format!("gets an error{told}"))
                .next("Retry", Some("the attacher's own pause is over: five minutes at most"))
                .act(logs_of(view, driver))
                .act(never_by_hand())
        }
        Waiting::HeldByNode { conflict } if conflict.node == *node => link(Verdict::Waiting),
        Waiting::HeldByNode { conflict } => link(Verdict::Waiting)
            .blocked_by(Subject::Node(conflict.node.clone()).json(), "holds the volume, or comes first")
            .next("Attach", Some("the volume is detached there")),
        Waiting::DetachWaitingForUnmount { unforced } | Waiting::DetachWaitingForNode { unforced } => {
            let link = link(Verdict::Waiting);
            let is_guess = matches!(view.missing::<Node>(node), Missing::Absent);
            match last_user(view, volume, node).filter(|_| is_guess) {
                Some(pod) => outlived(link, node, &pod),
                None => unmounts(view, link, node, *unforced, node_object()),
            }
        }
        Waiting::NodeGone => link(Verdict::Blocked).blocked_by(node_object(), "has no object").act(safe(
            "see why the node object is gone, or let the pod's controller make a pod on another",
            &[],
        )),
        Waiting::Unreadable { object } => link(Verdict::Blocked)
            .act(safe(format!("mend {object}: what is wrong with it is in the message"), &[])),
        Waiting::ForeignAttachment { name } => link(Verdict::Blocked)
            .blocked_by(Subject::Attachment(name.clone()).json(), "has the name and is for something else")
            .act(safe(
                "find out who made it",
                &["kubectl", "get", "volumeattachment", name.as_str(), "-o", "yaml"],
            )),
        Waiting::ForeignWriter { until, .. } | Waiting::RestoreGrace { until } => {
            link(Verdict::Waiting).next_at("Detach", *until, None)
        }
        Waiting::ClaimOrVolumeChanged => {
            link(Verdict::Blocked).act(safe("see why claim and volume do not belong together any more", &[]))
        }
        Waiting::Publishing | Waiting::DetachWaitingForUnpublish => {
            link(Verdict::Waiting).next("WriteNodeStatus", None)
        }
        Waiting::WaitingForVolumeAttachment => link(Verdict::Waiting).next("CreateVolumeAttachment", None),
        Waiting::WaitingForDeletion
        | Waiting::DetachWaitingForSettlement
        | Waiting::Uncertain
        | Waiting::RetryBackoff { .. }
        | Waiting::NodeStatusRefused { .. } => link(Verdict::Waiting),
        Waiting::WriteUndone { .. } => link(Verdict::Blocked)
            .act(safe("find out who undoes it, and end that: it is in the message", &[])),
    }
}

/// A pod that is not gone and uses a volume on a node that is: of such a node the controller no longer counts it.
fn last_user(view: &View<'_>, volume: &VolumeId, node: &NodeName) -> Option<PodKey> {
    let is_bound_to_it = |key: &ClaimKey| {
        let claim = get::<PersistentVolumeClaim>(view, key)?;
        volume_of(view.objects(), &claim.spec.volume_name)
    };
    let mut users = BTreeSet::new();
    view.objects().pods.for_each(|pod| {
        let mut claims = pod.spec.volumes.iter().filter_map(|volume| pod.claim_of(volume));
        if pod.spec.node_name == *node
            && !pod.is_terminated()
            && claims.any(|key| is_bound_to_it(&key).as_ref() == Some(volume))
        {
            users.insert(pod.key());
        }
    });
    users.pop_first()
}

/// The node is gone, and its pod is not: the six minutes begin when it is.
// KCM: pkg/controller/volume/attachdetach/reconciler, SetDetachRequestTime.
fn outlived(mut link: Link, node: &NodeName, pod: &PodKey) -> Link {
    link.step.message = format!(
        "on {node}: the node has no object, and may still use the volume; kube-controller-manager detaches it by force six \
         minutes after pod {pod} is gone, which has outlived the node"
    );
    let condition = format!("six minutes have passed since {pod} went, and {node} has not come back");
    let link = link
        .blocked_by(Subject::Pod(pod.clone()).json(), "is still there")
        .next("ForceDetach", Some(&condition));
    of_gone_node(node.as_str()).into_iter().fold(link, Link::act)
}

/// A kubelet is to unmount: it will, or it is silent and time may force, or nothing does.
fn unmounts(view: &View<'_>, link: Link, node: &NodeName, unforced: Unforced, object: Value) -> Link {
    let silent = get::<Node>(view, node).and_then(|node| node.ready()?.last_transition_time);
    let since = silent.map_or(String::new(), |since| format!(" for {}", age::between(since, view.now())));
    let is_gone = matches!(view.missing::<Node>(node), Missing::Absent) && get::<Node>(view, node).is_none();
    let state = if is_gone { "does not exist".to_owned() } else { format!("is not Ready{since}") };
    let act = |link: Link| {
        if is_gone {
            of_gone_node(node.as_str()).into_iter().fold(link, Link::act)
        } else {
            let object = get::<Node>(view, node);
            let actions = of_silent_node(node.as_str(), object.as_deref(), "the detach follows");
            actions.into_iter().fold(link, Link::act)
        }
    };
    match unforced {
        Unforced::NodeReady => link
            .blocked_by(object, "its kubelet has not unmounted the volume")
            .next(
                "Detach",
                Some("the kubelet reports that it has unmounted the volume: within seconds as a rule"),
            )
            .act(safe(
                "if it lasts: see what the kubelet says, and whether a container of the old pod still runs",
                &["kubectl", "get", "pods", "-A", "--field-selector", &format!("spec.nodeName={node}")],
            ))
            .act(never_by_hand()),
        Unforced::Until(at) => {
            // The controller counts from what it saw: of that, objects show when the node fell silent.
            let patience = at.duration_since(view.now());
            let from = get::<Node>(view, node).and_then(|node| node.ready()?.last_transition_time);
            let from =
                from.and_then(|from| from.checked_add(patience).ok()).filter(|from| *from > view.now());
            let what = if is_gone { "there" } else { "Ready" };
            let condition = format!(
                "{} have passed since {node} was last {what} and a pod there last had the volume",
                age::short(patience.as_secs())
            );
            let mut link = link.blocked_by(object, state).next("ForceDetach", Some(&condition));
            if let Some(next) = &mut link.step.next {
                next.not_before = from;
            }
            act(link)
        }
        Unforced::SwitchedOff => {
            let mut link = link.blocked_by(object, state);
            link.verdict = Verdict::Blocked;
            act(link)
        }
    }
}

/// Where the attacher says more than it writes into the object.
pub(super) fn logs_of(view: &View<'_>, driver: &str) -> Action {
    let text = format!("read the log of {driver}'s controller, and the storage's own console");
    match view.sidecars.holder(driver, Sidecar::Attacher) {
        Some((namespace, pod)) => {
            safe(text, &["kubectl", "logs", "-n", namespace, pod, "--all-containers", "--tail=50"])
        }
        None => safe(text, &["kubectl", "get", "leases,pods", "-A"]),
    }
}

pub(super) fn absent_attacher(
    view: &View<'_>,
    subject: &Subject,
    driver: &str,
    asked: Option<Timestamp>,
) -> Option<Link> {
    let message = view.sidecars.absence(driver, Sidecar::Attacher, asked)?;
    let link = Link::new(subject, "AttacherNotSeen", message, Verdict::Blocked);
    let link = link.blocked_by(program("Attacher", driver), "not seen").act(of_absent_program(driver));
    Some(link.act(never_by_hand()))
}
