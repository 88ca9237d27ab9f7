//! What shows it: who wrote what when, and what was said.
//!
//! In: the objects of the chain as they were read, events. Out: [`Evidence`], and the past in its order.

use std::cmp::Reverse;

use apiserver::{ids::Uid, kinds::ObjectRef};
use k8s_openapi::{
    api::core::v1::Event,
    jiff::{SignedDuration, Timestamp},
};
use serde_json::Value;

use super::{
    report::{Evidence, Happened},
    said,
    subject::field,
    view::View,
};
/// Events that are shown of one object.
const EVENTS_SHOWN: usize = 20;

/// Who last wrote each object of the chain.
pub(super) fn evidence(view: &View<'_>, chain: &[ObjectRef]) -> Vec<Evidence> {
    let mut found = Vec::new();
    for object in chain {
        let Some(whole) = view.snapshot.details.get(object) else { continue };
        let managers = whole.pointer("/metadata/managedFields").and_then(Value::as_array);
        for entry in managers.into_iter().flatten() {
            let part = match field(entry, "subresource") {
                "" => fields(entry),
                subresource => format!("its {subresource}"),
            };
            let at = field(entry, "time").parse().ok();
            let text = format!("{} wrote {part} of {object}", field(entry, "manager"));
            found.push(Evidence { at, from: "managedFields".to_owned(), text });
        }
    }
    found.sort_by_key(|event| Reverse(event.at));
    found
}

/// Manager, fields and time of each writer of an object.
pub(super) fn writers(whole: &Value) -> impl Iterator<Item = (&str, &Value, Timestamp)> {
    let entries = whole.pointer("/metadata/managedFields").and_then(Value::as_array);
    entries.into_iter().flatten().filter_map(|entry| {
        let manager = entry.get("manager").and_then(Value::as_str)?;
        let at = entry.get("time").and_then(Value::as_str)?.parse().ok()?;
        Some((manager, entry.get("fieldsV1")?, at))
    })
}

/// The top-level fields of an entry: `spec`, `metadata`.
fn fields(entry: &Value) -> String {
    let fields = entry.pointer("/fieldsV1").and_then(Value::as_object);
    let names: Vec<&str> =
        fields.into_iter().flatten().filter_map(|(name, _)| name.strip_prefix("f:")).collect();
    if names.is_empty() { "something".to_owned() } else { names.join(" and ") }
}

/// The past of the chain, the oldest first.
pub(super) fn timeline(view: &View<'_>, chain: &[ObjectRef]) -> Vec<Happened> {
    let mut past = Vec::new();
    for object in chain {
        let Some(whole) = view.snapshot.details.get(object) else { continue };
        let time = |path: &str| -> Option<Timestamp> { whole.pointer(path)?.as_str()?.parse().ok() };
        if let Some(at) = time("/metadata/creationTimestamp") {
            past.push(Happened { at, text: format!("{object} was created") });
        }
        if let Some(over) = time("/metadata/deletionTimestamp") {
            // It is when the grace that was given is over.
            let grace = whole.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64);
            let grace = SignedDuration::from_secs(grace.unwrap_or_default());
            let at = over.checked_sub(grace).unwrap_or(over);
            past.push(Happened { at, text: format!("the deletion of {object} was requested") });
        }
        if let ObjectRef::Node(name) = object
            && let Some(ready) = view.objects().nodes.get(name).and_then(|node| node.ready().cloned())
            && let Some(at) = ready.last_transition_time
        {
            past.push(Happened { at, text: format!("{object} became Ready={}", ready.status) });
        }
    }
    let uid = |object| view.snapshot.details.get(object)?.pointer("/metadata/uid")?.as_str().map(Uid::from);
    let uids: Vec<Uid> = chain.iter().filter_map(uid).filter(|uid| !uid.is_empty()).collect();
    let is_meant = |event: &&Event| uids.iter().any(|uid| said::is_about(event, uid));
    for event in view.snapshot.events.iter().filter(is_meant) {
        let Some(at) = said::at(event) else { continue };
        let count =
            event.count.filter(|count| *count > 1).map_or(String::new(), |count| format!(" ({count} times)"));
        let reason = event.reason.as_deref().unwrap_or_default();
        let message = event.message.as_deref().unwrap_or_default();
        past.push(Happened { at, text: format!("{reason}{count}: {message}") });
    }
    past.sort_by_key(|happened| happened.at);
    let rest = past.len().saturating_sub(EVENTS_SHOWN);
    past.drain(..rest);
    past
}
