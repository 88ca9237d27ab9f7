//! What may be done about a reason: what is safe, what has a price, and what never.
//!
//! In: a reason and the names that it is about. Out: [`Action`]s. What is called safe loses nothing in any state of
//! the world; what is right only if something is so that no object shows has that condition in its text.

use super::report::{Action, Risk};
use crate::kube_api::kinds::Node;

/// Something safe to do.
pub(super) fn safe(text: impl Into<String>, command: &[&str]) -> Action {
    action(Risk::Safe, text, command)
}

/// Something with a price or a condition.
pub(super) fn care(text: impl Into<String>, command: &[&str]) -> Action {
    action(Risk::Care, text, command)
}

/// Something never to do.
pub(super) fn never(text: impl Into<String>) -> Action {
    action(Risk::Danger, text, &[])
}

fn action(risk: Risk, text: impl Into<String>, command: &[&str]) -> Action {
    Action { risk, text: text.into(), command: command.iter().map(|&word| word.to_owned()).collect() }
}

/// What never to do where a volume may be in use on two nodes.
pub(super) fn never_by_hand() -> Action {
    never("delete the VolumeAttachment or its finalizer by hand: the disk may be written from two machines")
}

/// By which an operator says that a node is off for good.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// A node that is not Ready holds a volume, or is to; and what follows when it is back.
pub(super) fn of_silent_node(node: &str, object: Option<&Node>, then: &str) -> [Action; 3] {
    let declare = format!("{OUT_OF_SERVICE}=nodeshutdown:NoExecute");
    let declared_off = if object.is_some_and(Node::is_out_of_service) {
        safe(
            format!(
                "it has the taint {OUT_OF_SERVICE} already: its pods are removed, and its volumes are detached by force. \
                 See that both controllers run (pod garbage collection is of kube-controller-manager)"
            ),
            &["kubectl", "get", "leases", "-n", "kube-system"],
        )
    } else {
        care(
            format!(
                "only if {node} is proven off (powered down or fenced): its pods are removed, and its volumes are \
                 detached by force (first see: mooring whatif taint {node})"
            ),
            &["kubectl", "taint", "node", node, &declare],
        )
    };
    [safe(format!("bring {node} back: {then} when its kubelet reports"), &[]), declared_off, never_by_hand()]
}

/// A node is back, and is still declared off.
pub(super) fn of_declaration(node: &str) -> Action {
    let remove = format!("{OUT_OF_SERVICE}-");
    care(
        "if the node is back for good, take the taint off: pods come back, and volumes wait for its kubelet again",
        &["kubectl", "taint", "node", node, &remove],
    )
}

/// A node without an object holds a volume: there is nothing to taint.
pub(super) fn of_gone_node(node: &str) -> [Action; 2] {
    let text = format!(
        "if the machine of {node} runs, restart its kubelet, which registers only when it starts: the detach follows when \
         it reports"
    );
    [safe(text, &["kubectl", "get", "nodes"]), never_by_hand()]
}

/// The external-attacher or external-provisioner of a driver is not there.
pub(super) fn of_absent_program(driver: &str) -> Action {
    safe(
        format!("install or repair the controller of driver {driver}: its pods, their logs, their leases"),
        &["kubectl", "get", "leases,pods", "-A"],
    )
}
