//! A bound claim whose volume is to become larger, or to get other attributes.
//!
//! In: the claim as it was read, whole: its status says how far it is. Out: a [`Link`], if something is pending.
//!
//! KEP-1790 and KEP-3751; kubernetes/api core/v1 types.go, ClaimResourceStatus and ModifyVolumeStatus.

use serde_json::Value;

use super::{
    actions::safe,
    candidates::quantity,
    links::{Link, program},
    report::Verdict,
    subject::Subject,
    view::View,
};
use crate::kube_api::kinds::{Narrow, PersistentVolumeClaim};

/// What is pending on a bound claim.
pub(super) fn link(view: &View<'_>, claim: &PersistentVolumeClaim) -> Option<Link> {
    let subject = Subject::Claim(claim.key());
    let whole = view.whole(&subject)?;
    size(&subject, claim, whole).or_else(|| attributes(&subject, whole))
}

/// The message of the first of these conditions that holds.
fn condition<'a>(whole: &'a Value, kinds: &[&str]) -> Option<&'a str> {
    let all = whole.pointer("/status/conditions").and_then(Value::as_array)?;
    let text = |one: &'a Value, field: &str| one.get(field).and_then(Value::as_str).unwrap_or_default();
    let holds = |one: &&Value| {
        one.get("status").and_then(Value::as_str) == Some("True")
            && one.get("type").and_then(Value::as_str).is_some_and(|it| kinds.contains(&it))
    };
    all.iter().find(holds).map(|one| text(one, "message"))
}

fn size(subject: &Subject, claim: &PersistentVolumeClaim, whole: &Value) -> Option<Link> {
    let state = whole.pointer("/status/allocatedResourceStatuses/storage").and_then(Value::as_str);
    let (wanted, is) = (quantity(&claim.spec.resources.requests), quantity(&claim.status.capacity));
    let error = condition(whole, &["ControllerResizeError", "NodeResizeError"]).filter(|it| !it.is_empty());
    let said = error.map_or(String::new(), |error| format!(": {error}"));
    let link = |message: String, verdict| Link::new(subject, "Resizing", message, verdict);
    Some(match state {
        Some("ControllerResizeInfeasible" | "NodeResizeInfeasible") => {
            link(format!("the volume has {is} and cannot become {wanted}{said}"), Verdict::Blocked)
                .next("Resize", Some("another size is asked for, or the storage allows this one"))
                .act(safe(
                    "ask for a size that the storage allows, not below what it has; or mend what the message names, such as a \
                     quota",
                    &["kubectl", "describe", "pvc", subject.name(), "-n", subject.namespace().unwrap_or_default()],
                ))
        }
        Some("NodeResizePending" | "NodeResizeInProgress") => on_node(link, &wanted, &said),
        Some(_) => by_resizer(link, &wanted, &said),
        None if condition(whole, &["FileSystemResizePending"]).is_some() => on_node(link, &wanted, &said),
        None if condition(whole, &["Resizing"]).is_some() => by_resizer(link, &wanted, &said),
        None => return None,
    })
}

fn on_node(link: impl Fn(String, Verdict) -> Link, wanted: &str, said: &str) -> Link {
    let message = format!(
        "the volume has been enlarged to {wanted}, and its file system follows where a pod has it mounted{said}"
    );
    link(message, Verdict::Waiting)
        .next("Resize", Some("a kubelet has the volume mounted: a pod that uses the claim runs"))
}

fn by_resizer(link: impl Fn(String, Verdict) -> Link, wanted: &str, said: &str) -> Link {
    let message = format!("the driver's external-resizer is to enlarge the volume to {wanted}{said}");
    link(message, Verdict::Waiting)
        .blocked_by(program("Resizer", "external-resizer"), "has been asked")
        .next("Resize", Some("the external-resizer has enlarged it"))
}

fn attributes(subject: &Subject, whole: &Value) -> Option<Link> {
    let status = whole.pointer("/status/modifyVolumeStatus")?;
    let text = |field: &str| status.get(field).and_then(Value::as_str).unwrap_or_default();
    let class = text("targetVolumeAttributesClassName");
    let error = condition(whole, &["ModifyVolumeError"]).filter(|it| !it.is_empty());
    let said = error.map_or(String::new(), |error| format!(": {error}"));
    let look = |link: Link| {
        link.act(safe(
            "see whether the class exists and what the driver says of it",
            &["kubectl", "get", "volumeattributesclass", class],
        ))
    };
    let link = |message: String, verdict| Link::new(subject, "ModifyingAttributes", message, verdict);
    Some(match text("status") {
        "Pending" => look(link(
            format!("its volume cannot get the attributes of class {class:?} yet: the class is missing, or not ready{said}"),
            Verdict::Blocked,
        ))
        .next("Modify", Some("the class is there")),
        "Infeasible" => look(link(
            format!("the driver refuses the attributes of class {class:?} for the volume{said}"),
            Verdict::Blocked,
        ))
        .next("Modify", Some("another class is asked for")),
        "InProgress" => link(format!("its volume gets the attributes of class {class:?}{said}"), Verdict::Waiting)
            .blocked_by(program("Resizer", "external-resizer"), "has been asked")
            .next("Modify", Some("the external-resizer has changed it")),
        _ => return None,
    })
}
