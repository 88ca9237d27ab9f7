//! A node: what it holds, and what waits there.

use super::{
    actions::{of_declaration, of_silent_node},
    age, attachment,
    links::Link,
    report::Verdict,
    subject::Subject,
    view::{Missing, View, get},
};
use crate::{
    attach_detach::desired::volume_name::VolumeId,
    kube_api::{
        ids::NodeName,
        kinds::{Node, ObjectRef},
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
    let ready = if node.is_ready() { "Ready" } else { "not Ready" };
    let (listed, used) = (node.status.volumes_attached.len(), node.status.volumes_in_use.iter().count());
    let mut message = format!("{ready}; {} attached, {used} in use", age::counted(listed, "volume"));
    let lingering = lingering(view, name, &node);
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
            Link::new(&subject, "NodeNotManaged", message, Verdict::Healthy)
        }
        (true, true) if is_out_of_service => {
            Link::new(&subject, "OutOfServiceTaint", message, Verdict::Blocked)
                .act(of_declaration(name.as_str()))
        }
        (true, true) => Link::new(&subject, "Ready", message, Verdict::Healthy),
        (true, false) => {
            // Nothing waits there: it is told, and is no one's trouble yet.
            let link = Link::new(&subject, "NotReady", message, Verdict::Waiting)
                .next("Recheck", Some("its kubelet reports again, or a pod there is deleted"));
            let actions = of_silent_node(name.as_str(), Some(&node), "the detach follows");
            actions.into_iter().fold(link, Link::act)
        }
    };
    let since = node.ready().and_then(|ready| ready.last_transition_time);
    std::iter::once(link.detail(ready).since(since)).chain(waiting(view, name)).collect()
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
