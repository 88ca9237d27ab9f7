//! A node: what it holds, and what waits there.

use std::collections::BTreeSet;

use super::{
    actions::{of_declaration, of_silent_node},
    age, attachment,
    links::Link,
    pod,
    report::Verdict,
    subject::Subject,
    view::{Missing, View, get},
};
use crate::{
    attach_detach::desired::{state::WhyUnresolved, volume_name::VolumeId},
    kube_api::{
        ids::{NodeName, PodKey},
        kinds::{Node, ObjectRef, Pod, PodPhase},
    },
};

/// The chain of a node: itself, and each volume that waits there.
pub(super) fn links(view: &View<'_>, name: &NodeName) -> Vec<Link> {
    let subject = Subject::Node(name.clone());
    let node_volumes = || view.attach_detach.node_volumes.iter().filter(|((_, node), _)| node == name);
    let Some(node) = get::<Node>(view, name) else {
        let first = match view.missing::<Node>(name) {
            Missing::Absent if node_volumes().next().is_some() => Link::new(
                &subject,
                "NodeGone",
                format!("node {name} has no object, and volumes may be on it"),
                Verdict::Waiting,
            ),
            Missing::Absent => {
                Link::new(&subject, "NotFound", format!("node {name} does not exist"), Verdict::NotFound)
            }
            Missing::Unreadable(error) => Link::new(
                &subject,
                "ObjectUnreadable",
                format!("node {name} cannot be read: {error}"),
                Verdict::Blocked,
            ),
            Missing::Unseen(why) => Link::new(
                &subject,
                "Forbidden",
                format!("node {name} could not be read: {why}"),
                Verdict::Forbidden,
            ),
        };
        return std::iter::once(first).chain(waiting(view, name)).collect();
    };
    let waiting = waiting(view, name);
    std::iter::once(own(view, name, &node)).chain(waiting).chain(unregistered(view, name)).collect()
}

/// The link of the node itself.
pub(super) fn own(view: &View<'_>, name: &NodeName, node: &Node) -> Link {
    let subject = Subject::Node(name.clone());
    let since = node.ready().and_then(|ready| ready.last_transition_time);
    let ready = if node.is_ready() { "Ready" } else { "not Ready" };
    let (listed, used) = (node.status.volumes_attached.len(), node.status.volumes_in_use.iter().count());
    let mut message = format!("{ready}; {} attached, {used} in use", age::counted(listed, "volume"));
    let lingering = lingering(view, name, node);
    if lingering > 0 && node.is_ready() {
        message = format!("{message}, of which {lingering} without attachment and pod: see mooring doctor");
    }
    let is_out_of_service = node.is_out_of_service();
    if is_out_of_service {
        message.push_str(
            "; it has the taint out-of-service, by which its volumes are detached without its kubelet",
        );
    }
    let link = match (node.is_managed(), node.is_ready()) {
        (false, _) => {
            let message = format!("{message}; its kubelet attaches volumes itself");
            // It cannot do so for those of CSI drivers.
            let is_of_it =
                |why: &WhyUnresolved| matches!(why, WhyUnresolved::NodeNotManaged(node) if node == name);
            let waits =
                |pod: &PodKey| get::<Pod>(view, pod).is_some_and(|it| it.status.phase == PodPhase::Pending);
            let unresolved = view.attach_detach.unresolved.iter().filter(|(_, why)| is_of_it(why));
            match unresolved.map(|((pod, _), _)| pod).find(|pod| waits(pod)) {
                Some(pod) => {
                    let message =
                        format!("{message}, which it cannot do for those of CSI drivers: pod {pod} waits");
                    Link::new(&subject, "NodeNotManaged", message, Verdict::Blocked)
                        .blocked_by(
                            Subject::Pod(pod.clone()).json(),
                            "waits for a volume that no controller attaches there",
                        )
                        .act(pod::leave_attaching(name))
                }
                None => Link::new(&subject, "NodeNotManaged", message, Verdict::Healthy),
            }
        }
        (true, true) if is_out_of_service => {
            Link::new(&subject, "OutOfServiceTaint", message, Verdict::Blocked)
                .act(of_declaration(name.as_str()))
        }
        (true, true) => Link::new(&subject, "Ready", message, Verdict::Healthy),
        (true, false) => {
            // Where nothing is, or force is on its way, it is no one's trouble yet.
            let since = since.filter(|_| view.has_volumes(name) && !is_out_of_service);
            let link = Link::new(&subject, "NotReady", message, Verdict::of_wait(since, view.now()))
                .next("Recheck", Some("its kubelet reports again, or a pod there is deleted"));
            let actions = of_silent_node(name.as_str(), Some(node), "the detach follows");
            actions.into_iter().fold(link, Link::act)
        }
    };
    link.detail(ready).since(since)
}

/// Drivers that pods there wait for, and that its kubelet does not know.
fn unregistered(view: &View<'_>, name: &NodeName) -> Vec<Link> {
    let waits = |pod: &PodKey| get::<Pod>(view, pod).is_some_and(|it| it.status.phase == PodPhase::Pending);
    let desired = view.attach_detach.desired.iter().filter(|(pod, _)| waits(pod)).flat_map(|(_, all)| all);
    let drivers: BTreeSet<&str> =
        desired.filter(|it| it.node == *name).map(|it| it.volume.driver_and_handle().0).collect();
    drivers.into_iter().filter_map(|driver| attachment::unregistered_driver(view, driver, name)).collect()
}

/// Volumes that the kubelet reports in use, for which there is neither an attachment nor a pod: they may be mounted still.
fn lingering(view: &View<'_>, name: &NodeName, node: &Node) -> usize {
    let is_lingering = |id: &VolumeId| {
        view.snapshot.is_absent(&ObjectRef::Attachment(id.attachment_name(name)))
            && view.users(id, name).next().is_none()
    };
    node.status.volumes_in_use.iter().filter_map(|it| VolumeId::parse_csi(it)).filter(is_lingering).count()
}

fn waiting(view: &View<'_>, name: &NodeName) -> Vec<Link> {
    let node_volumes = view.attach_detach.node_volumes.iter().filter(|((_, node), _)| node == name);
    let waiting =
        node_volumes.filter(|(_, node_volume)| node_volume.waiting.is_some() || node_volume.write.is_some());
    waiting.flat_map(|((volume, node), _)| attachment::links(view, volume, node)).collect()
}
