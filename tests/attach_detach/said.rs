//! Events as cases say them: the most frequent ones in a short form, every other whole.
//!
//! In: an event. Out: a line. A short form stands for type, reason and the whole message, to the letter: it is the pod or
//! node, a word, and what the message has where its template has `{}`.

use mooring::kube_api::events::{Event, EventType};

/// Type, reason, template of the message, and the word.
const SHORT: [(EventType, &str, &str, &str); 10] = [
    (
        EventType::Normal,
        "SuccessfulAttachVolume",
        "AttachVolume.Attach succeeded for volume \"{}\" ",
        "SuccessfulAttachVolume",
    ),
    (
        EventType::Warning,
        "FailedAttachVolume",
        "AttachVolume.Attach failed for volume \"{}\" : {}",
        "FailedAttachVolume",
    ),
    (
        EventType::Warning,
        "FailedAttachVolume",
        "Multi-Attach error for volume \"{}\" Volume is already exclusively attached to one node and can't be attached \
         to another",
        "Multi-Attach",
    ),
    (
        EventType::Warning,
        "FailedAttachVolume",
        "Multi-Attach error for volume \"{}\" Volume is already used by pod(s) {}",
        "Multi-Attach",
    ),
    (
        EventType::Normal,
        "MultiAttachResolved",
        "Volume \"{}\" is no longer attached elsewhere, after {} s",
        "MultiAttachResolved",
    ),
    (EventType::Warning, "HeldByNode", "Volume \"{}\" is attached to node \"{}\", {}", "HeldByNode"),
    (
        EventType::Warning,
        "FailedDetachVolume",
        "DetachVolume.Detach failed for volume \"{}\" on node \"{}\" : {}",
        "FailedDetachVolume",
    ),
    (
        EventType::Warning,
        "NodeStatusRefused",
        "Volume \"{}\" is attached, but the status of node \"{}\", for which the kubelet waits, cannot be written: {}",
        "NodeStatusRefused",
    ),
    (
        EventType::Warning,
        "ForcedDetach",
        "Volume \"{}\" is detached from node \"{}\" by force: {}",
        "ForcedDetach",
    ),
    (
        EventType::Warning,
        "ForcedDetachDone",
        "Volume \"{}\" was detached from node \"{}\" by force: {}",
        "ForcedDetachDone",
    ),
];

/// An event as a line of `says`.
pub fn line(event: &Event) -> String {
    let (about, reason, message) = (&event.involved.name, event.reason, &event.message);
    for (r#type, of, template, word) in SHORT {
        if (event.r#type, reason) != (r#type, of) {
            continue;
        }
        if let Some(fields) = fields(template, message) {
            return format!("{about} {word} {}", fields.join(" "));
        }
    }
    let kind = if event.r#type == EventType::Normal { "Normal" } else { "Warning" };
    format!("{about} {kind} {reason} {message}")
}

/// What a message has in the places of a template; `None` if it is not of that template.
fn fields<'a>(template: &str, message: &'a str) -> Option<Vec<&'a str>> {
    let mut parts = template.split("{}");
    let mut rest = message.strip_prefix(parts.next()?)?;
    let mut fields = Vec::new();
    for part in parts {
        let (field, after) = if part.is_empty() { (rest, "") } else { rest.split_once(part)? };
        fields.push(field);
        rest = after;
    }
    rest.is_empty().then_some(fields)
}
