//! A claim that waits for a provisioner of which something is known: that it is not there, says nothing, cannot, or will
//! not.
//!
//! In: the claim, its provisioner, and the binder's next write. Out: a [`Link`], or none if there is no more to say than that
//! it waits.

use k8s_openapi::{api::core::v1::Event, jiff::Timestamp};

use super::{
    actions::{care, of_absent_program, safe},
    age,
    links::{Link, program},
    report::{Action, Verdict},
    said::last_warning,
    sidecars::Sidecar,
    subject::Subject,
    view::{Missing, View, get},
    writes,
};
use crate::{
    binder::{act::write::WriteKind, annotations::SELECTED_NODE},
    kube_api::{
        ids::{NodeName, Uid},
        kinds::{Node, PersistentVolumeClaim},
    },
};

/// What is known of the provisioner that a claim waits for.
pub(super) fn link(
    view: &View<'_>,
    subject: &Subject,
    driver: &str,
    (claim, write): (&PersistentVolumeClaim, Option<WriteKind>),
) -> Option<Link> {
    if claim.spec.selector.is_some() {
        return Some(selected(subject, claim, driver));
    }
    let asked = asked(view, claim);
    let is_asked = write != Some(WriteKind::AskProvisioner);
    let link = for_gone_node(view, claim, subject)
        .or_else(|| failed_provisioner(view, subject, driver, (claim, asked)))
        .or_else(|| absent_provisioner(view, subject, driver, asked))
        .or_else(|| silent_provisioner(view, subject, driver, asked.filter(|_| is_asked)))?;
    Some(writes::of_claim(link, write))
}

/// The scheduler chose a node for the claim that is no more: no provisioner makes a volume for it.
// external-provisioner: pkg/controller/controller.go, "node not found", and rescheduling.
fn for_gone_node(view: &View<'_>, claim: &PersistentVolumeClaim, subject: &Subject) -> Option<Link> {
    let node = NodeName::from(claim.metadata.annotations.get(SELECTED_NODE)?.as_str());
    if get::<Node>(view, &node).is_some() || !matches!(view.missing::<Node>(&node), Missing::Absent) {
        return None;
    }
    let message = format!(
        "the volume is to be made for node {node}, which the scheduler chose and which does not exist"
    );
    let remove = format!("{SELECTED_NODE}-");
    let (name, namespace) = (claim.metadata.name.as_str(), claim.metadata.namespace.as_str());
    Some(
        Link::new(subject, "WaitingForProvisioner", message, Verdict::Blocked)
            .blocked_by(Subject::Node(node.clone()).json(), "does not exist")
            .next("Bind", Some("the scheduler has chosen another node, for a pod that is not on one"))
            .act(safe("see whether the node is to come back", &["kubectl", "get", "nodes"]))
            .act(care(
                "if it is not: take the annotation off, and the scheduler chooses anew (a pod that is bound to the node \
                 already has to be made anew)",
                &["kubectl", "annotate", "pvc", name, "-n", namespace, &remove],
            )),
    )
}

/// A claim that asks for a volume of certain labels, in a class whose volumes are made when they are asked for.
// external-provisioner: pkg/controller/controller.go, "claim Selector is not supported".
fn selected(subject: &Subject, claim: &PersistentVolumeClaim, driver: &str) -> Link {
    let message = format!(
        "the claim has a selector, so that it takes a volume that is there, and none fits; {driver} makes no volume for a \
         claim with a selector"
    );
    Link::new(subject, "WaitingForProvisioner", message, Verdict::Blocked)
        .blocked_by(program("Provisioner", driver), "refuses claims with a selector")
        .next("Bind", Some("a volume that the selector takes is there"))
        .act(safe(
            "make the claim anew without the selector, or create a volume with these labels",
            &[
                "kubectl",
                "get",
                "pvc",
                claim.metadata.name.as_str(),
                "-n",
                claim.metadata.namespace.as_str(),
                "-o",
                "yaml",
            ],
        ))
}

/// The provisioner says that it cannot.
fn failed_provisioner(
    view: &View<'_>,
    subject: &Subject,
    driver: &str,
    (claim, asked): (&PersistentVolumeClaim, Option<Timestamp>),
) -> Option<Link> {
    let warning = last_warning(view, &claim.metadata.uid, &["ProvisioningFailed"])?;
    let verdict = Verdict::of_wait(asked, view.now());
    let message = format!("the provisioner could not make the volume, and tries again: {}", warning.message);
    let told = format!("got an error, told {} ago", age::between(warning.at, view.now()));
    let link = Link::new(subject, "ProvisionerError", message, verdict);
    let link = link.blocked_by(program("Provisioner", driver), told).act(logs_of(view, driver));
    Some(link.next("Retry", Some("the provisioner's own pause is over: five minutes at most")))
}

/// The provisioner is there, was asked long ago, and says nothing.
fn silent_provisioner(
    view: &View<'_>,
    subject: &Subject,
    driver: &str,
    asked: Option<Timestamp>,
) -> Option<Link> {
    let asked = asked.filter(|asked| age::is_long(Some(*asked), view.now()))?;
    let age = age::between(asked, view.now());
    let message = format!(
        "provisioner {driver} was asked for a volume {age} ago, and has neither made it nor said why not"
    );
    Some(
        Link::new(subject, "WaitingForProvisioner", message, Verdict::Blocked)
            .blocked_by(program("Provisioner", driver), format!("has been asked {age} ago"))
            .next("Bind", Some("the provisioner makes a volume"))
            .act(logs_of(view, driver)),
    )
}

/// Where the provisioner says more than it tells in events.
fn logs_of(view: &View<'_>, driver: &str) -> Action {
    let text = format!("read the log of {driver}'s controller, and the storage's own console");
    match view.sidecars.holder(driver, Sidecar::Provisioner) {
        Some((namespace, pod)) => {
            safe(text, &["kubectl", "logs", "-n", namespace, pod, "--all-containers", "--tail=50"])
        }
        None => safe(text, &["kubectl", "get", "leases,pods", "-A"]),
    }
}

fn absent_provisioner(
    view: &View<'_>,
    subject: &Subject,
    driver: &str,
    asked: Option<Timestamp>,
) -> Option<Link> {
    let message = view.sidecars.absence(driver, Sidecar::Provisioner, asked)?;
    let link = Link::new(subject, "ProvisionerNotSeen", message, Verdict::Blocked);
    let link = link.blocked_by(program("Provisioner", driver), "not seen").act(of_absent_program(driver));
    Some(link.next("Bind", Some("the provisioner makes a volume")))
}

/// Since when a provisioner has been asked: since the first event that says so, or at the earliest since the claim is there.
fn asked(view: &View<'_>, claim: &PersistentVolumeClaim) -> Option<Timestamp> {
    let is_about = |event: &&Event| {
        event.involved_object.uid.as_deref().is_some_and(|uid| Uid::from(uid) == claim.metadata.uid)
            && event.reason.as_deref() == Some("ExternalProvisioning")
    };
    let told = view
        .snapshot
        .events
        .iter()
        .filter(is_about)
        .filter_map(|event| event.first_timestamp.as_ref().map(|time| time.0));
    told.min().or(claim.metadata.creation_timestamp)
}
