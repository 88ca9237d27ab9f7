//! A bound claim whose volume is to become larger, or to get other attributes.
//!
//! In: what the expander's decision returns; the claim as it was read, whole, whose status says how far it is; and what is
//! known of the driver's external-resizer. Out: a [`Link`], if something is pending: whom it waits for.
//!
//! KEP-1790 and KEP-3751; kubernetes/api core/v1 types.go, ClaimResourceStatus and ModifyVolumeStatus.

use apiserver::{
    ids::{ClassName, NodeName, PodKey},
    kinds::{Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, ResizeStep, StorageClass},
    tables::Objects,
};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{
    age,
    candidates::quantity,
    evidence::writers,
    links::Link,
    report::Verdict,
    said::last_warning,
    sidecars::Sidecar,
    subject::field,
    table::Facts,
    view::{View, get},
};
use crate::{
    binder::matching::predicate::claim_class,
    controller::report::Reason as _,
    expander::{
        calls::STORAGE_RESIZER,
        decide::{Resizer, expansion},
        dry_run,
        reasons::ExpansionReason,
    },
};

/// What is pending on a bound claim.
pub(super) fn link(view: &View<'_>, claim: &PersistentVolumeClaim) -> Option<Link> {
    let subject = ObjectRef::Claim(claim.key());
    size(view, claim).or_else(|| attributes(&subject, view.whole(&subject)?))
}

/// Whether the volume of a claim is to grow, as the expander says.
pub(super) fn grows(objects: &Objects, claim: &PersistentVolumeClaim) -> bool {
    let volume = objects.volumes.get(&claim.spec.volume_name);
    volume.is_some_and(|volume| !matches!(expansion(claim, Some(&volume)), Ok(None)))
}

/// The message of the first of these conditions that holds.
fn condition<'a>(whole: &'a Value, kinds: &[&str]) -> Option<&'a str> {
    let holds = |one: &&Value| field(one, "status") == "True" && kinds.contains(&field(one, "type"));
    let mut all = whole.pointer("/status/conditions").and_then(Value::as_array)?.iter();
    all.find(holds).map(|one| field(one, "message"))
}

/// What went wrong, as the end of a sentence.
fn error(whole: &Value, kinds: &[&str]) -> String {
    let error = condition(whole, kinds).filter(|it| !it.is_empty());
    error.map_or(String::new(), |error| format!(": {error}"))
}

/// Since when the size has been asked for, at the latest: when its last writer wrote. Without managed fields it is not known.
pub(super) fn requested(whole: &Value) -> Option<Timestamp> {
    let is_size = |fields: &Value| fields.pointer("/f:spec/f:resources/f:requests/f:storage").is_some();
    writers(whole).filter(|(_, fields, _)| is_size(fields)).map(|(.., at)| at).min()
}

/// The expansion of a bound claim, if one is pending.
pub(super) fn size(view: &View<'_>, claim: &PersistentVolumeClaim) -> Option<Link> {
    let subject = ObjectRef::Claim(claim.key());
    let (volume, whole) = (get::<PersistentVolume>(view, &claim.spec.volume_name), view.whole(&subject));
    let reason = volume.as_deref().map_or(ExpansionReason::Settled, |volume| dry_run(claim, volume));
    // A kubelet that is to expand to an earlier size has not begun with this one.
    let progress = claim.status.resize().filter(|step| *step != ResizeStep::Node || reason.is_settled());
    if progress.is_none() && reason.is_settled() {
        return None;
    }
    let asked = whole.and_then(requested);
    let csi = volume.as_ref().and_then(|volume| Some(volume.spec.csi.as_ref()?.driver.as_str()));
    let (plugin, driver) = match reason {
        ExpansionReason::Waits(Resizer::Migrated { plugin, driver }) => (plugin, Some(driver)),
        _ => ("", csi),
    };
    let (wanted, is) = (quantity(&claim.spec.resources.requests), quantity(&claim.status.capacity));
    let said =
        whole.map(|whole| error(whole, &["ControllerResizeError", "NodeResizeError"])).unwrap_or_default();
    let since =
        asked.map_or(String::new(), |at| format!(" (requested {} ago)", age::between(at, view.now())));
    let (told, class) = (reason.to_string(), claim_class(claim));
    let facts: Facts<'_> = &[
        ("is", &is),
        ("wanted", &wanted),
        ("said", &said),
        ("since", &since),
        ("told", &told),
        ("volume", &claim.spec.volume_name),
        ("other", &claim.spec.volume_name),
        ("plugin", &plugin),
        ("driver", &driver.unwrap_or("its driver")),
        ("annotation", &STORAGE_RESIZER),
        ("class", &class),
    ];
    let names_driver = claim.metadata.annotation(STORAGE_RESIZER) == driver;
    let by_time = || Verdict::of_wait(asked, view.now());
    let link = match (progress, &reason) {
        (Some(ResizeStep::Node), _) => return Some(on_node(view, &subject, claim, facts)),
        (Some(ResizeStep::ControllerInfeasible | ResizeStep::NodeInfeasible), _) => {
            Link::told(&subject, "Resizing infeasible", facts)
        }
        (None, ExpansionReason::Waits(Resizer::Migrated { .. })) if !names_driver => {
            Link::told(&subject, "Resizing unnamed", facts).verdict(by_time())
        }
        (None, reason) if !matches!(reason.code(), "Resizing") => {
            Link::told_of(&subject, reason.code(), "claim", facts)
        }
        (progress, _) => by_resizer(view, &subject, claim, (progress.is_some(), driver, asked), facts),
    };
    view.read::<StorageClass>(&ClassName::from(class));
    let class = ObjectRef::Class(ClassName::from(class));
    Some(if view.whole(&class).is_some_and(forbids) { link.and("+class forbids", facts) } else { link })
}

/// Whether the API server refuses a larger size for claims of this class.
pub(super) fn forbids(class: &Value) -> bool {
    class.get("allowVolumeExpansion").and_then(Value::as_bool) != Some(true)
}

/// The driver's external-resizer has begun, or is to begin: what is known of it.
fn by_resizer(
    view: &View<'_>,
    subject: &ObjectRef,
    claim: &PersistentVolumeClaim,
    (has_begun, driver, asked): (bool, Option<&str>, Option<Timestamp>),
    facts: Facts<'_>,
) -> Link {
    let Some(driver) = driver else { return Link::told(subject, "Resizing", facts) };
    let by_time = |link: Link| link.verdict(Verdict::of_wait(asked, view.now()));
    let and_log = |link: Link| link.and_log(view, driver, Sidecar::Resizer);
    if let Some((at, said)) = last_warning(view, &claim.metadata.uid, &["VolumeResizeFailed"]) {
        let own: Facts<'_> = &[("said", &said), ("age", &age::between(at, view.now()))];
        return and_log(by_time(Link::told(subject, "Resizing failed", &[own, facts].concat())));
    }
    // One that has begun has answered.
    let unanswered = asked.filter(|_| !has_begun);
    match view.sidecars().absence(driver, Sidecar::Resizer, unanswered) {
        Some(told) => {
            let own: Facts<'_> = &[("told", &told)];
            Link::told(subject, "ResizerNotSeen", &[own, facts].concat())
        }
        None if has_begun => Link::told(subject, "Resizing", facts),
        None => and_log(by_time(Link::told(subject, "Resizing asked", facts))),
    }
}

/// The volume is larger, and its file system follows on a node: that of a pod that uses it, if there is one.
fn on_node(view: &View<'_>, subject: &ObjectRef, claim: &PersistentVolumeClaim, facts: Facts<'_>) -> Link {
    let node = |key: &PodKey| -> Option<(PodKey, NodeName)> {
        let pod = get::<Pod>(view, key).filter(|pod| !pod.spec.node_name.is_empty())?;
        Some((key.clone(), pod.spec.node_name.clone()))
    };
    let Some((pod, node)) = view.users_of(&claim.key()).iter().find_map(node) else {
        return Link::told(subject, "Resizing on node", facts);
    };
    let own: Facts<'_> = &[("pod", &pod), ("node", &node)];
    Link::told(subject, "Resizing on kubelet", &[own, facts].concat())
}

fn attributes(subject: &ObjectRef, whole: &Value) -> Option<Link> {
    let status = whole.pointer("/status/modifyVolumeStatus")?;
    let state =
        Some(field(status, "status")).filter(|it| ["Pending", "Infeasible", "InProgress"].contains(it))?;
    let (class, said) =
        (field(status, "targetVolumeAttributesClassName"), error(whole, &["ModifyVolumeError"]));
    Some(Link::told_of(subject, "ModifyingAttributes", state, &[("class", &class), ("said", &said)]))
}
