//! What may be done about a reason: what is safe, what has a price, and what never.
//!
//! In: a reason and the names that it is about. Out: [`Action`]s. What is called safe loses nothing whatever the state of
//! the world; what is right only if something is so that no object shows has that condition in its text.

use super::report::{Action, Risk};

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

/// A node that is not Ready holds a volume, or is to; and what follows when it is back.
pub(super) fn of_silent_node(node: &str, then: &str) -> [Action; 3] {
    let taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";
    [
        safe(format!("bring {node} back: {then} when its kubelet reports"), &[]),
        care(
            format!(
                "only if {node} is proven off (powered down or fenced): its pods are removed, and its volumes are \
                 detached by force (first see: mooring whatif taint {node})"
            ),
            &["kubectl", "taint", "node", node, taint],
        ),
        never_by_hand(),
    ]
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
