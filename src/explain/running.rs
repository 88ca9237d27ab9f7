//! A pod whose volumes are all as they should be, and which does not run, or may not.
//!
//! In: the pod, its node, and the kubelet's last word. Out: the [`Link`] of what it waits for; none for a pod that runs or
//! has ended.

use apiserver::kinds::{Narrow, Node, ObjectRef, PersistentVolumeClaim, Pod, PodPhase};
use serde_json::Value;

use super::{
    age,
    attachment::{self, brought_back},
    claim::ONE_POD,
    links::Link,
    report::Verdict,
    said::last_warning,
    table::Facts,
    view::{View, claims_of, get},
};
/// What a pod on a node waits for besides its volumes.
pub(super) fn link(view: &View<'_>, pod: &Pod) -> Option<Link> {
    let node = &pod.spec.node_name;
    if node.is_empty() || pod.is_terminated() {
        return None;
    }
    if let Some(link) = ending(view, pod).or_else(|| silent(view, pod)) {
        return Some(link);
    }
    if pod.status.phase == PodPhase::Running {
        return None;
    }
    shared(view, pod).or_else(|| not_mounted(view, pod)).or_else(|| Some(not_started(view, pod)))
}

/// No kubelet is there to start the pod, to end it, or to say whether it runs.
fn silent(view: &View<'_>, pod: &Pod) -> Option<Link> {
    let name = &pod.spec.node_name;
    let node = get::<Node>(view, name).filter(|node| !node.is_ready())?;
    let since = node.ready().and_then(|ready| ready.last_transition_time);
    let what = match (pod.metadata.is_terminating(), pod.status.phase) {
        _ if node.kubelet_speaks() => "its kubelet reports that it is not well",
        (true, _) => "its kubelet, which would end the pod, does not report",
        (false, PodPhase::Running) => "whether the pod still runs is not known",
        (false, _) => "its kubelet starts no pods",
    };
    let facts: Facts<'_> = &[("node", name), ("told", &what)];
    let link = Link::told_of(&ObjectRef::Node(name.clone()), "NotReady", "pod", facts);
    let link = link.verdict(Verdict::of_wait(since, view.now())).detail("not Ready").since(since);
    Some(brought_back(link, name, Some(&node), "the pod goes on"))
}

/// A pod that is being deleted: its time may be over.
fn ending(view: &View<'_>, pod: &Pod) -> Option<Link> {
    // The time of the deletion is when the pod's grace is over.
    let over = pod.metadata.deletion_timestamp.as_deref()?;
    if let Some(link) = silent(view, pod) {
        return Some(link);
    }
    let late = view.now().as_second() - over.as_second();
    let case = if late > 0 { "Terminating late" } else { "Terminating" };
    let facts: Facts<'_> = &[("node", &pod.spec.node_name), ("age", &age::short(late))];
    let link = Link::told(&ObjectRef::Pod(pod.key()), case, facts);
    let is_overdue = late > attachment::OVERDUE;
    Some(link.verdict(if is_overdue { Verdict::Blocked } else { Verdict::Waiting }))
}

/// Another pod uses a claim that is for one pod alone.
fn shared(view: &View<'_>, pod: &Pod) -> Option<Link> {
    let own = pod.key();
    for key in claims_of(pod) {
        let Some(wanted) = get::<PersistentVolumeClaim>(view, &key) else { continue };
        if !wanted.spec.access_modes.iter().any(|mode| &**mode == ONE_POD) {
            continue;
        }
        let users = view.users_of(&key);
        let Some(other) = users.iter().find(|other| **other != own) else { continue };
        let facts: Facts<'_> = &[("pod", &own), ("other", other)];
        return Some(Link::told_of(&ObjectRef::Claim(key.clone()), "UsedByPods", "claim", facts));
    }
    None
}

/// The kubelet says that it cannot mount.
fn not_mounted(view: &View<'_>, pod: &Pod) -> Option<Link> {
    let node = &pod.spec.node_name;
    let (at, told) = last_warning(view, &pod.metadata.uid, &["FailedMount", "FailedMapVolume"])?;
    let verdict = Verdict::of_wait(Some(pod.metadata.creation_timestamp?), view.now());
    let facts: Facts<'_> = &[("node", node), ("told", &told), ("age", &age::between(at, view.now()))];
    let link = Link::told(&ObjectRef::Node(node.clone()), "MountError", facts);
    Some(link.verdict(verdict).detail(format!("on {node}")))
}

/// Nothing is wrong with its volumes.
fn not_started(view: &View<'_>, pod: &Pod) -> Link {
    let subject = ObjectRef::Pod(pod.key());
    let waiting = view.whole(&subject).and_then(waiting_container);
    let case = if waiting.is_some() { "PodNotStarted container" } else { "PodNotStarted" };
    Link::told(&subject, case, &[("node", &pod.spec.node_name), ("told", &waiting.unwrap_or_default())])
}

/// Why a container waits, as its kubelet says.
pub(super) fn waiting_container(pod: &Value) -> Option<&str> {
    ["/status/initContainerStatuses", "/status/containerStatuses"]
        .into_iter()
        .filter_map(|path| pod.pointer(path)?.as_array())
        .flatten()
        .find_map(|container| container.pointer("/state/waiting/reason")?.as_str())
}
