//! Requests and events as cases say them: of events the most frequent ones in a short form, every other whole.
//!
//! In: a request or an event. Out: a line. A short form stands for type, reason and the whole message, to the letter: it is the pod or
//! node, a word, and what the message has where its template has `{}`.

use std::{collections::BTreeMap, time::Duration};

use apiserver::{
    events::{Event, EventType, Novelty},
    ids::Uid,
};
use mooring::attach_detach::{
    calls::{AttachmentRequest, Call},
    guard::second_writer_role::ActTarget,
    reasons::{AttachDetachKey, NodeVolumeKey},
};
use tokio::time::Instant;

use super::world::word;

/// Metrics that are not shown before something was counted.
const SHOWN_WITH_A_SERIES: [&str; 2] =
    ["attachdetach_controller_total_volumes", "storage_operation_duration_seconds_count"];

/// How long an event of another process stands and is not told again (`apiserver::events`).
const STANDS: Duration = Duration::from_mins(45);

/// Type, reason, template of the message, and the word.
const SHORT: [(EventType, &str, &str, &str); 11] = [
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
    (EventType::Warning, "HeldByNode", "Volume \"{}\" is attached to node \"{}\": {}", "HeldByNode"),
    (EventType::Warning, "HeldByNode", "Volume \"{}\" is in use on node \"{}\": {}", "UsedOnNode"),
    (
        EventType::Warning,
        "FailedDetachVolume",
        "DetachVolume.Detach failed for volume \"{}\" on node \"{}\" : {}",
        "FailedDetachVolume",
    ),
    (
        EventType::Warning,
        "NodeStatusRefused",
        "Volume \"{}\" waits: the node's status could not be written and is tried again after a pause: {}",
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

/// The events on the server: about which object, reason and message; of which process, and since when.
#[derive(Default)]
pub struct Written(BTreeMap<Words, (usize, Instant)>);

type Words = (Uid, &'static str, String);

impl Written {
    /// Whether people read of it now. What an earlier process wrote stands, unless this one saw it come about anew.
    pub fn is_new(&mut self, event: &Event, process: usize, now: Instant) -> bool {
        let earlier = self.0.get(&of(event));
        let is_other = |by| by != process || event.novelty == Novelty::Standing;
        let stands = earlier.is_some_and(|(by, at)| is_other(*by) && now < *at + STANDS);
        if stands && event.novelty != Novelty::New {
            return false;
        }
        self.0.insert(of(event), (process, now));
        true
    }

    pub fn lose(&mut self, event: &Event) {
        self.0.remove(&of(event));
    }
}

fn of(event: &Event) -> Words {
    (event.involved.uid.clone(), event.reason, event.message.clone())
}

/// A volume on a node as a line of `waits`.
pub fn pair(NodeVolumeKey { volume, node }: &NodeVolumeKey) -> String {
    format!("{} on {node}", word(volume.as_str()))
}

/// The same of what is reported, if it is about a volume on a node.
pub fn pair_of(key: &AttachDetachKey) -> Option<String> {
    if let AttachDetachKey::NodeVolume(key) = key { Some(pair(key)) } else { None }
}

/// A request as a line of `sends`.
pub fn words(call: &Call) -> String {
    let verb = match call {
        Call::Attachment(_, _, AttachmentRequest::Create(_)) => "create",
        Call::Attachment(_, _, AttachmentRequest::Delete(..)) => "delete",
        Call::Attachment(_, _, AttachmentRequest::Read(_)) | Call::ReadNode(_) => "read",
        Call::ReadOwner(..) => "who wrote",
        Call::PatchNode(..) => "list",
    };
    match call {
        Call::Attachment(volume, node, _) => format!("{verb} {} on {node}", word(volume.as_str())),
        Call::ReadNode(node) | Call::ReadOwner(ActTarget::Node(node), _) => format!("{verb} {node}"),
        Call::ReadOwner(ActTarget::Attachment(..), _) => format!("{verb} an attachment"),
        Call::PatchNode(node, _, request) => {
            let body = request.body.clone().unwrap_or_default();
            let list = body["status"]["volumesAttached"].as_array().cloned().unwrap_or_default();
            let names: Vec<&str> = list.iter().filter_map(|entry| entry["name"].as_str()).map(word).collect();
            format!("{verb} on {node}: [{}]", names.join(" "))
        }
    }
}

/// The sum of a metric in the text of all, over the series whose labels include these.
pub fn sum(text: &str, name: &str, labels: &str) -> f64 {
    let is_known = SHOWN_WITH_A_SERIES.contains(&name) || text.contains(&format!("\n{name}"));
    assert!(is_known, "there is no metric {name}");
    let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    let of_ours = lines.filter(|(series, _)| {
        let (found, with) = series.split_once('{').unwrap_or((series, ""));
        found == name && labels.split(',').all(|label| with.contains(label))
    });
    of_ours.map(|(_, value)| value.parse::<f64>().unwrap()).sum()
}
