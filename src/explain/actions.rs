//! What may be done that takes more to find out than the table can say: where a program's log is.

use super::{
    report::{Action, Risk},
    sidecars::Sidecar,
    view::View,
};

/// Where the attacher or provisioner of a driver says more than it writes into objects and events.
pub(super) fn logs_of(view: &View<'_>, driver: &str, sidecar: Sidecar) -> Action {
    let command = match view.sidecars.holder(driver, sidecar) {
        Some((namespace, pod)) => {
            vec!["kubectl", "logs", "-n", namespace, pod, "--all-containers", "--tail=50"]
        }
        None => vec!["kubectl", "get", "leases,pods", "-A"],
    };
    let text = format!("read the log of {driver}'s controller, and the storage's own console");
    Action { risk: Risk::Safe, text, command: command.into_iter().map(str::to_owned).collect() }
}
