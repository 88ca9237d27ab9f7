//! A bound claim whose volume is to become larger, or to get other attributes.
//!
//! In: the claim as it was read, whole: its status says how far it is. Out: a [`Link`], if something is pending.
//!
//! KEP-1790 and KEP-3751; kubernetes/api core/v1 types.go, ClaimResourceStatus and ModifyVolumeStatus.

use apiserver::kinds::{Narrow, PersistentVolumeClaim};
use serde_json::Value;

use super::{
    candidates::quantity,
    links::Link,
    subject::{Subject, field},
    view::View,
};
/// What is pending on a bound claim.
pub(super) fn link(view: &View<'_>, claim: &PersistentVolumeClaim) -> Option<Link> {
    let subject = Subject::Claim(claim.key());
    let whole = view.whole(&subject)?;
    size(&subject, claim, whole).or_else(|| attributes(&subject, whole))
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

fn size(subject: &Subject, claim: &PersistentVolumeClaim, whole: &Value) -> Option<Link> {
    let state = whole.pointer("/status/allocatedResourceStatuses/storage").and_then(Value::as_str);
    let (wanted, is) = (quantity(&claim.spec.resources.requests), quantity(&claim.status.capacity));
    let said = error(whole, &["ControllerResizeError", "NodeResizeError"]);
    let case = match state {
        Some("ControllerResizeInfeasible" | "NodeResizeInfeasible") => "Resizing infeasible",
        Some("NodeResizePending" | "NodeResizeInProgress") => "Resizing on node",
        Some(_) => "Resizing",
        None if condition(whole, &["FileSystemResizePending"]).is_some() => "Resizing on node",
        None if condition(whole, &["Resizing"]).is_some() => "Resizing",
        None => return None,
    };
    Some(Link::told(subject, case, &[("is", &is), ("wanted", &wanted), ("said", &said)]))
}

fn attributes(subject: &Subject, whole: &Value) -> Option<Link> {
    let status = whole.pointer("/status/modifyVolumeStatus")?;
    let state =
        Some(field(status, "status")).filter(|it| ["Pending", "Infeasible", "InProgress"].contains(it))?;
    let (class, said) =
        (field(status, "targetVolumeAttributesClassName"), error(whole, &["ModifyVolumeError"]));
    Some(Link::told_of(subject, "ModifyingAttributes", state, &[("class", &class), ("said", &said)]))
}
