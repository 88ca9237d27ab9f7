//! A pod whose volumes are all as they should be, and which does not run, or may not.
//!
//! In: the pod, its node, and the kubelet's last word. Out: the [`Link`] of what it waits for; none for a pod that runs or
//! has ended.

use serde_json::Value;

use super::{
    actions::{care, of_silent_node, safe},
    age, attachment,
    claim::ONE_POD,
    links::Link,
    report::{Action, Verdict},
    said::last_warning,
    subject::Subject,
    view::{View, get},
};
use crate::kube_api::{
    ids::{NodeName, PodKey},
    kinds::{Narrow, Node, PersistentVolumeClaim, Pod, PodPhase},
};

/// What a pod on a node waits for besides its volumes.
pub(super) fn link(view: &View<'_>, pod: &Pod) -> Option<Link> {
    let node = &pod.spec.node_name;
    if node.is_empty() || pod.is_terminated() {
        return None;
    }
    if let Some(link) = ending(view, pod).or_else(|| silent(view, pod, "its kubelet reports again")) {
        return Some(link);
    }
    if pod.status.phase == PodPhase::Running {
        return None;
    }
    shared(view, pod).or_else(|| not_mounted(view, pod)).or_else(|| Some(not_started(view, pod)))
}

/// No kubelet is there to start the pod, to end it, or to say whether it runs.
fn silent(view: &View<'_>, pod: &Pod, until: &str) -> Option<Link> {
    let name = &pod.spec.node_name;
    let node = get::<Node>(view, name).filter(|node| !node.is_ready())?;
    let since = node.ready().and_then(|ready| ready.last_transition_time);
    let what = match (pod.metadata.is_terminating(), pod.status.phase) {
        (true, _) => "its kubelet, which would end the pod, does not report",
        (false, PodPhase::Running) => "whether the pod still runs is not known",
        (false, _) => "its kubelet starts no pods",
    };
    let message = format!("node {name} is not Ready: {what}");
    let verdict = Verdict::of_wait(since, view.now());
    let link = Link::new(&Subject::Node(name.clone()), "NotReady", message, verdict)
        .detail("not Ready")
        .since(since)
        .next("Start", Some(until));
    let actions = of_silent_node(name.as_str(), Some(&node), "the pod goes on");
    Some(actions.into_iter().fold(link, Link::act))
}

/// A pod that is being deleted: its time may be over.
fn ending(view: &View<'_>, pod: &Pod) -> Option<Link> {
    // The time of the deletion is when the pod's grace is over.
    let over = pod.metadata.deletion_timestamp.as_deref()?;
    if let Some(link) = silent(view, pod, "its kubelet reports again, or the pod is removed") {
        return Some(link);
    }
    let subject = Subject::Pod(pod.key());
    let late = view.now().as_second() - over.as_second();
    let node = &pod.spec.node_name;
    if late <= 0 {
        let link = Link::new(
            &subject,
            "Terminating",
            "it is being deleted, and has the time to end",
            Verdict::Waiting,
        );
        return Some(link.next("Delete", Some("its kubelet has ended its containers")));
    }
    let message = format!(
        "it is being deleted, its time was over {} ago, and the kubelet of {node} has not ended it",
        age::short(late)
    );
    let verdict = if late > attachment::OVERDUE { Verdict::Blocked } else { Verdict::Waiting };
    let field = format!("spec.nodeName={node}");
    Some(
        Link::new(&subject, "Terminating", message, verdict)
            .next("Delete", Some("its kubelet has ended its containers"))
            .act(safe(
                "see what keeps it: a finalizer of its own, a mount that hangs, a container that does not end",
                &["kubectl", "describe", "pod", pod.metadata.name.as_str(), "-n", pod.metadata.namespace.as_str()],
            ))
            .act(see_node(node, &field))
            .act(care(
                "deleting it by force only removes the object: its containers may go on and write",
                &[],
            )),
    )
}

/// Another pod uses a claim that is for one pod alone.
fn shared(view: &View<'_>, pod: &Pod) -> Option<Link> {
    let own = pod.key();
    for key in pod.spec.volumes.iter().filter_map(|volume| pod.claim_of(volume)) {
        let Some(wanted) = get::<PersistentVolumeClaim>(view, &key) else { continue };
        if !wanted.spec.access_modes.iter().any(|mode| &**mode == ONE_POD) {
            continue;
        }
        let users = view.users_of(&key);
        let Some(other) = users.iter().find(|other| **other != own) else { continue };
        return Some(held_by(&own, &Subject::Claim(key.clone()), other));
    }
    None
}

fn held_by(own: &PodKey, subject: &Subject, other: &PodKey) -> Link {
    let message =
        format!("the claim is for one pod alone ({ONE_POD}), and pod {other} uses it: {own} does not start");
    Link::new(subject, "UsedByPods", message, Verdict::Blocked)
        .blocked_by(Subject::Pod(other.clone()).json(), "uses the claim")
        .next("Start", Some("that pod has ended"))
        .act(safe(
            "see whether both pods are meant to run: one of them has to go",
            &["kubectl", "describe", "pod", other.name(), "-n", other.namespace()],
        ))
}

/// The kubelet says that it cannot mount.
fn not_mounted(view: &View<'_>, pod: &Pod) -> Option<Link> {
    let node = &pod.spec.node_name;
    let warning = last_warning(view, &pod.metadata.uid, &["FailedMount", "FailedMapVolume"])?;
    let verdict = Verdict::of_wait(Some(pod.metadata.creation_timestamp?), view.now());
    let message = format!("the kubelet of {node} could not mount, and tries again: {}", warning.message);
    let told = format!("got an error, told {} ago", age::between(warning.at, view.now()));
    let field = format!("spec.nodeName={node}");
    let link = Link::new(&Subject::Node(node.clone()), "MountError", message, verdict)
        .blocked_by(Subject::Node(node.clone()).json(), told)
        .next("Mount", Some("the kubelet's own pause is over: two minutes at most"))
        .act(see_node(node, &field));
    Some(link.detail(format!("on {node}")))
}

/// Where a kubelet and the node plugins of drivers say more than they tell in events.
fn see_node(node: &NodeName, field: &str) -> Action {
    safe(
        format!(
            "see the pods of {node}, and read the log of the driver's node plugin among them; the kubelet's own is on the \
             machine (journalctl -u kubelet)"
        ),
        &["kubectl", "get", "pods", "-A", "--field-selector", field],
    )
}

/// Nothing is wrong with its volumes.
fn not_started(view: &View<'_>, pod: &Pod) -> Link {
    let subject = Subject::Pod(pod.key());
    let waiting = view.whole(&subject).and_then(waiting_container);
    let message = match waiting {
        Some(reason) => {
            format!("its volumes are ready, and what it waits for is no matter of volumes: {reason}")
        }
        None => {
            format!("its volumes are ready, and the kubelet of {} has not started it yet", pod.spec.node_name)
        }
    };
    Link::new(&subject, "PodNotStarted", message, Verdict::Waiting)
        .next("Start", Some("its kubelet starts it"))
        .act(safe(
            "see what its kubelet says",
            &[
                "kubectl",
                "describe",
                "pod",
                pod.metadata.name.as_str(),
                "-n",
                pod.metadata.namespace.as_str(),
            ],
        ))
}

/// Why a container waits, as its kubelet says.
pub(super) fn waiting_container(pod: &Value) -> Option<&str> {
    ["/status/initContainerStatuses", "/status/containerStatuses"]
        .into_iter()
        .filter_map(|path| pod.pointer(path)?.as_array())
        .flatten()
        .find_map(|container| container.pointer("/state/waiting/reason")?.as_str())
}
