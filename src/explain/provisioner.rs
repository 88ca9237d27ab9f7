//! A claim that waits for a provisioner of which something is known: that it is not there, says nothing, cannot, or will
//! not.
//!
//! In: the claim, its provisioner, and the binder's next write. Out: a [`Link`], or none if there is no more to say than that
//! it waits.

use apiserver::{
    ids::NodeName,
    kinds::{Node, ObjectRef, PersistentVolumeClaim},
};
use k8s_openapi::{api::core::v1::Event, jiff::Timestamp};

use super::{
    age,
    links::Link,
    report::Verdict,
    said::{is_about, last_warning},
    sidecars::{Presence, Sidecar},
    table::Facts,
    view::View,
    writes,
};
use crate::binder::{annotations::SELECTED_NODE, calls::WriteKind};

/// What is known of the provisioner that a claim waits for.
pub(super) fn link(
    view: &View<'_>,
    subject: &ObjectRef,
    driver: &str,
    (claim, write): (&PersistentVolumeClaim, Option<WriteKind>),
) -> Option<Link> {
    if claim.spec.selector.is_some() {
        // external-provisioner: pkg/controller/controller.go, "claim Selector is not supported".
        return Some(Link::told(subject, "WaitingForProvisioner selector", &[("driver", &driver)]));
    }
    let asked = asked(view, claim);
    let is_asked = write != Some(WriteKind::AskProvisioner);
    // Without a lease, only its silence shows that it does not run.
    let presence = view.sidecars().presence(driver, Sidecar::Provisioner);
    let absent = view.sidecars().absence(driver, Sidecar::Provisioner, asked);
    let and_log = |link: Link| link.and_log(view, driver, Sidecar::Provisioner);
    let link = if let Some(link) = for_gone_node(view, claim, subject) {
        link
    } else if let Some((at, told)) = last_warning(view, &claim.metadata.uid, &["ProvisioningFailed"]) {
        let facts: Facts<'_> =
            &[("told", &told), ("driver", &driver), ("age", &age::between(at, view.now()))];
        let verdict = Verdict::of_wait(asked, view.now());
        and_log(Link::told(subject, "ProvisionerError", facts).verdict(verdict))
    } else if let Some(told) = absent.filter(|_| is_asked || presence != Presence::NoLease) {
        Link::told(subject, "ProvisionerNotSeen waiting", &[("told", &told), ("driver", &driver)])
    } else {
        // It is there, was asked long ago, and says nothing.
        let asked = asked.filter(|asked| is_asked && age::is_long(Some(*asked), view.now()))?;
        let age = age::between(asked, view.now());
        let facts: Facts<'_> = &[("driver", &driver), ("age", &age)];
        and_log(Link::told(subject, "WaitingForProvisioner silent", facts))
    };
    Some(writes::next(link, write))
}

/// The scheduler chose a node for the claim that is no more: no provisioner makes a volume for it.
// external-provisioner: pkg/controller/controller.go, "node not found", and rescheduling.
fn for_gone_node(view: &View<'_>, claim: &PersistentVolumeClaim, subject: &ObjectRef) -> Option<Link> {
    let node = NodeName::from(claim.metadata.annotations.get(SELECTED_NODE)?.as_str());
    let link = || {
        let facts: Facts<'_> = &[("node", &node), ("annotation", &SELECTED_NODE)];
        Link::told(subject, "WaitingForProvisioner gone node", facts)
    };
    view.read::<Node>(&node);
    view.is_gone(&node).then(link)
}

/// Since when a provisioner has been asked: since the first event that says so, or at the earliest since the claim is there.
fn asked(view: &View<'_>, claim: &PersistentVolumeClaim) -> Option<Timestamp> {
    let is_meant = |event: &&Event| {
        is_about(event, &claim.metadata.uid) && event.reason.as_deref() == Some("ExternalProvisioning")
    };
    let told = view.snapshot.events.iter().filter(is_meant);
    let told = told.filter_map(|event| event.first_timestamp.as_ref().map(|time| time.0));
    told.min().or(claim.metadata.creation_timestamp)
}
