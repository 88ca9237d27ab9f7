//! A node: what it holds, and what waits there.

use std::{collections::BTreeSet, sync::Arc};

use apiserver::{
    ids::{NodeName, PodKey},
    kinds::{Node, ObjectRef, PersistentVolume, Pod, PodPhase, VolumeAttachment},
};

use super::{
    age,
    attachment::{self, brought_back},
    foreign,
    links::{Link, missing},
    read::requests::Read,
    report::Verdict,
    view::{View, claims_of, get, runs_on},
    volume,
};
use crate::attach_detach::state::desired::WhyUnresolved;

/// The chain of a node: itself, and each volume that waits there.
pub(super) fn links(view: &View<'_>, name: &NodeName) -> Vec<Link> {
    let subject = ObjectRef::Node(name.clone());
    if view.is_noted() {
        for volume in on_node(view, name) {
            attachment::look_at(view, &volume, &BTreeSet::from([name.clone()]));
        }
    }
    let node = view.node(name);
    let mut first =
        node.map_or_else(|| missing::<Node>(view, &subject, name, "NotFound"), |node| own(view, name, &node));
    if first.verdict == Verdict::NotFound && view.has_volumes(name) {
        let told = format!("node {name} has no object, and volumes may be on it");
        first = Link::told(&subject, "NodeGone", &[("told", &told)]);
    }
    let foreign = view.attach_detach().foreign.iter().filter(|(_, (_, node))| node == name);
    let foreign: Vec<Link> = foreign.filter_map(|(name, _)| foreign::foreign(view, name)).collect();
    // Of a node without object, nothing is known to be registered or not.
    let links = std::iter::once(first).chain(foreign).chain(waiting(view, name));
    links.chain(unregistered(view, name)).collect()
}

/// What is known to be on a node: its pods with their claims, and its attachments with their volumes. Returns the volumes that the
/// pods use.
pub(super) fn on_node(view: &View<'_>, name: &NodeName) -> Vec<Arc<PersistentVolume>> {
    view.read::<Node>(name);
    view.want(|| Read::pods_on(name));
    view.list::<VolumeAttachment>();
    for attachment in view.snapshot.all(|it: &VolumeAttachment| it.spec.node_name == *name) {
        attachment.spec.source.persistent_volume_name.iter().for_each(|it| drop(volume::read(view, it)));
    }
    let pods = view.snapshot.all(|pod| runs_on(pod, name));
    let claims = pods.iter().flat_map(|pod| claims_of(pod));
    claims.filter_map(|claim| volume::of_claim(view, &claim)).collect()
}

/// The link of the node itself.
pub(super) fn own(view: &View<'_>, name: &NodeName, node: &Node) -> Link {
    let subject = ObjectRef::Node(name.clone());
    let since = node.ready().and_then(|ready| ready.last_transition_time);
    let ready = if node.is_ready() { "Ready" } else { "not Ready" };
    let (listed, used) = (node.status.volumes_attached.len(), node.status.volumes_in_use.len());
    let mut message = format!("{ready}; {} attached, {used} in use", age::counted(listed, "volume"));
    let is_out_of_service = node.is_out_of_service();
    if is_out_of_service {
        message.push_str(
            "; it has the taint out-of-service, by which its volumes are detached without its kubelet",
        );
    }
    let link = |case, pod: &PodKey| Link::told(&subject, case, &[("told", &message), ("pod", pod)]);
    let no_pod = PodKey::new("", "");
    let link = match (node.is_managed(), node.is_ready()) {
        (false, _) => match left_waiting(view, name) {
            Some(pod) => link("NodeNotManaged but needed", pod).and("+leave attaching", &[("node", name)]),
            None => link("NodeNotManaged", &no_pod),
        },
        (true, true) if is_out_of_service => link("OutOfServiceTaint", &no_pod),
        (true, true) => link("Ready", &no_pod),
        (true, false) => {
            // Where nothing is, or force is on its way, it is no one's trouble yet.
            let since =
                since.filter(|_| view.has_volumes(name) && (!is_out_of_service || node.kubelet_speaks()));
            let link = link("NotReady", &no_pod).verdict(Verdict::of_wait(since, view.now()));
            // What a pod there uses is not detached.
            if view.snapshot.sees_pods() {
                brought_back(link, name, Some(node), "the detach follows")
            } else {
                link
            }
        }
    };
    link.detail(ready).since(since)
}

fn waits(view: &View<'_>, pod: &PodKey) -> bool {
    get::<Pod>(view, pod).is_some_and(|pod| pod.status.phase == PodPhase::Pending)
}

/// A pod that waits for a node's kubelet, which attaches volumes itself, and cannot do so for those of CSI drivers.
fn left_waiting<'a>(view: &'a View<'_>, name: &NodeName) -> Option<&'a PodKey> {
    let is_of_it = |why: &WhyUnresolved| matches!(why, WhyUnresolved::NodeNotManaged(node) if node == name);
    let unresolved = view.attach_detach().unresolved.iter().filter(|(_, why)| is_of_it(why));
    unresolved.map(|((pod, _), _)| pod).find(|pod| waits(view, pod))
}

/// Drivers that pods there wait for, and that its kubelet does not know.
fn unregistered(view: &View<'_>, name: &NodeName) -> Vec<Link> {
    let desired = view.attach_detach().desired.iter().filter(|(pod, _)| waits(view, pod));
    let desired = desired.flat_map(|(_, all)| all);
    let drivers: BTreeSet<&str> =
        desired.filter(|it| it.node == *name).map(|it| it.volume.driver_and_handle().0).collect();
    drivers.into_iter().filter_map(|driver| attachment::unregistered_driver(view, driver, name)).collect()
}

fn waiting(view: &View<'_>, name: &NodeName) -> Vec<Link> {
    let node_volumes = view.attach_detach().node_volumes.iter().filter(|((_, node), _)| node == name);
    let waiting =
        node_volumes.filter(|(_, node_volume)| node_volume.waiting.is_some() || node_volume.write.is_some());
    waiting.flat_map(|((volume, node), _)| attachment::links(view, volume, node)).collect()
}
