//! What the daemon adds to an answer: the very reasons that its controllers acted on, since and until when, and what was before.
//!
//! In: an answer that was made of what the asker may read, and the daemon's pages about its objects. Out: the paths of those pages; and
//! the same answer with what they say. What a page does not say changes nothing. A replica that stands by decides nothing, and so
//! has nothing to add.

use std::collections::{BTreeMap, BTreeSet};

use apiserver::kinds::ObjectRef;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::{
    answer::{FLAGS, TIMER, docs, sentence},
    report::{Explanation, Happened, Next, Source, Step, Verdict},
    subject,
};
use crate::{controller::asked::Past, telemetry::history::Change};

/// Names that are asked for: the head of a request has some room.
const MOST_NAMES: usize = 64;
/// Changes of the past that are told.
const MOST_CHANGES: usize = 40;
/// What starts a forced detach, as the answer names it.
const FORCE: &str = "ForceDetach";

/// Pages, and the fields by which they are asked. Who decides what an object waits for comes before who protects or enlarges it.
const DAEMON_PAGES: [(&str, &[&str]); 7] = [
    ("/debug/attach-detach", &["attachment", "node", "pod"]),
    ("/debug/binder", &["claim", "volume"]),
    ("/debug/ephemeral-volumes", &["pod"]),
    ("/debug/expander", &["claim"]),
    ("/debug/claim-protection", &["claim"]),
    ("/debug/volume-protection", &["volume"]),
    ("/debug/vac-protection", &["vac"]),
];

/// A page of the daemon, of what was asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct DaemonBoard {
    leads: bool,
    waiting: Vec<DaemonWait>,
    history: Vec<Past>,
}

/// How something waits, as its controller says.
#[derive(Debug, Deserialize)]
struct DaemonWait {
    kind: String,
    reason: String,
    message: String,
    since: Timestamp,
    next: Option<Timestamp>,
    until: Option<Timestamp>,
    /// Its names, each under its field.
    #[serde(flatten)]
    names: BTreeMap<String, Value>,
}

/// The field of a subject's own name, and the kinds of the rows that are about it.
fn field_and_kinds(subject: &ObjectRef) -> (&'static str, &'static [&'static str]) {
    match subject {
        ObjectRef::Claim(_) => ("claim", &["claim", "expanding_claim", "protected_claim"]),
        ObjectRef::Volume(_) => ("volume", &["volume", "protected_volume"]),
        ObjectRef::Pod(_) => ("pod", &["ephemeral_volumes"]),
        ObjectRef::AttributesClass(_) => ("vac", &["protected_vac"]),
        ObjectRef::Attachment(_) => ("attachment", &["attachment"]),
        ObjectRef::Node(_) => ("node", &[]),
        ObjectRef::Class(_) | ObjectRef::Driver(_) => ("class", &[]),
    }
}

/// The pages to ask for.
pub fn paths(explanation: &Explanation) -> Vec<String> {
    let subjects = subjects(explanation).into_iter();
    let names: BTreeSet<_> = subjects.map(|it| (field_and_kinds(&it).0, subject::full_name(&it))).collect();
    let asked = DAEMON_PAGES.iter().filter_map(|(page, fields)| {
        let asked = names.iter().filter(|(field, _)| fields.contains(field)).take(MOST_NAMES);
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(asked).finish();
        (!query.is_empty()).then(|| format!("{page}?{query}"))
    });
    asked.collect()
}

/// Adds what the pages say.
pub fn add(explanation: &mut Explanation, boards: &[DaemonBoard]) {
    if boards.is_empty() {
        return;
    }
    if boards.iter().any(|board| !board.leads) {
        let text = "The daemon is a standby: only the leader knows timers, pauses and the past.";
        explanation.unknown.push(text.to_owned());
        return;
    }
    explanation.observed.source = Source::Daemon;
    let mut more = Vec::new();
    for wait in boards.iter().flat_map(|board| &board.waiting) {
        let is_own = |step: &&mut Step| subject::of(&step.object).is_some_and(|it| wait.is_of(&it));
        let mut own: Vec<&mut Step> = explanation.steps.iter_mut().filter(is_own).collect();
        match own.iter_mut().find(|step| step.reason == wait.reason) {
            Some(step) => {
                add_times(step, wait);
                if step.is_blocker {
                    explanation.summary = sentence(step);
                }
            }
            // What objects show of it stays: it may be more than the controller knows.
            None => more.extend(own.first().map(|step| wait.step(step.object.clone()))),
        }
    }
    if let (Some(step), Verdict::Healthy) = (more.first_mut(), explanation.verdict) {
        // Objects show no reason to wait, and the controller has one.
        step.is_blocker = true;
        explanation.verdict = Verdict::Waiting;
        explanation.reason.clone_from(&step.reason);
        explanation.summary = sentence(step);
    }
    explanation.steps.extend(more);
    let is_timed = |next: &Next| next.action != FORCE || next.at.is_some();
    if explanation.steps.iter().filter_map(|step| step.next.as_ref()).all(is_timed) {
        explanation.unknown.retain(|text| ![TIMER, FLAGS].contains(&text.as_str()));
    }
    past(explanation, boards);
}

impl DaemonWait {
    fn name(&self, field: &str) -> Option<&str> {
        self.names.get(field)?.as_str()
    }

    /// A step of its own.
    fn step(&self, object: Value) -> Step {
        let (reason, message) = (self.reason.clone(), format!("the controller says: {}", self.message));
        let mut step = Step { object, docs: docs(&reason), reason, message, ..Step::default() };
        add_times(&mut step, self);
        step
    }

    fn is_of(&self, subject: &ObjectRef) -> bool {
        let (field, kinds) = field_and_kinds(subject);
        kinds.contains(&&*self.kind) && self.name(field) == Some(&*subject::full_name(subject))
    }
}

/// Adds since when a step is so, and until when, as its controller says.
fn add_times(step: &mut Step, said: &DaemonWait) {
    step.since = Some(said.since);
    // What it does not time is not forced.
    step.next = step.next.take().filter(|next| said.until.is_some() || next.action != FORCE);
    // Until when it waits is a promise; when it is looked at again, merely a time.
    let Some(at) = said.until.or(said.next) else { return };
    let action = if said.until.is_some() { "Detach" } else { "LookAgain" };
    let next = step.next.get_or_insert_with(|| Next { action: action.to_owned(), ..Next::default() });
    next.at = Some(at);
    if said.until.is_some() {
        // The controller counts: what objects show of the time says no more.
        next.not_before = None;
        next.condition = None;
    }
}

/// The objects of the answer that can be asked about, each once.
fn subjects(explanation: &Explanation) -> Vec<ObjectRef> {
    let steps = explanation.steps.iter().map(|step| &step.object);
    subject::distinct(std::iter::once(&explanation.subject).chain(steps).filter_map(subject::of))
}

/// Adds what the daemon saw happen to the objects of the answer, in its order.
fn past(explanation: &mut Explanation, boards: &[DaemonBoard]) {
    for subject in subjects(explanation) {
        let (namespace, name) = subject.names();
        let named = format!("{}/{name}", subject.kind());
        let changes = boards.iter().flat_map(|board| &board.history);
        let own = changes.filter(|change| change.object == named && change.namespace.as_deref() == namespace);
        explanation.timeline.extend(own.map(|change| {
            let Change { at, from, to, reason, .. } = &change.change;
            let text = if from == to {
                format!("{subject}: {to} ({reason})")
            } else {
                format!("{subject}: {from} → {to} ({reason})")
            };
            Happened { at: *at, text }
        }));
    }
    explanation.timeline.sort_by(|one, other| (one.at, &one.text).cmp(&(other.at, &other.text)));
    // Each page tells all that happened to an object.
    explanation.timeline.dedup();
    let rest = explanation.timeline.len().saturating_sub(MOST_CHANGES);
    explanation.timeline.drain(..rest);
}

#[cfg(test)]
mod tests {
    use apiserver::{ids::NodeName, kinds::Pod};
    use serde_json::json;

    use super::*;
    use crate::{
        attach_detach::state::desired::volume_name::VolumeId,
        explain::{explain, snapshot::Snapshot},
    };

    #[test]
    fn the_role_for_those_who_ask_the_daemon_has_its_pages_and_no_others_below_debug() {
        let role = include_str!("../../deploy/optional/debug-reader/rbac.yaml");
        let words = role.split(|c: char| c.is_whitespace() || "[],".contains(c));
        let granted: BTreeSet<&str> = words.filter(|word| word.starts_with("/debug/")).collect();
        let asked = DAEMON_PAGES.iter().map(|(path, _)| *path);
        assert_eq!(granted, asked.chain(["/debug/watches"]).collect());
    }

    #[test]
    fn l18_a_detach_that_is_timed_is_told_with_the_time_of_the_controller() {
        let volume = VolumeId::csi(&"disk.example.com".into(), "h");
        let attachment = volume.attachment_name(&NodeName::from("n1"));
        let mut snapshot = Snapshot::new("2026-08-21T12:05:00Z".parse().unwrap());
        snapshot.note_listed::<Pod>();
        let metadata = |name: &str| json!({ "name": name, "uid": name, "resourceVersion": "7", "creationTimestamp": "2026-08-21T11:00:00Z" });
        let source = json!({ "driver": "disk.example.com", "volumeHandle": "h" });
        let silent =
            json!({ "type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-08-21T12:01:00Z" });
        for object in [
            json!({ "kind": "Node", "metadata": metadata("n1"), "status": {
                "conditions": [silent], "volumesInUse": [volume.as_str()],
                "volumesAttached": [{ "name": volume.as_str(), "devicePath": "" }],
            } }),
            json!({ "kind": "PersistentVolume", "metadata": metadata("v1"), "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" }, "csi": source,
            } }),
            json!({ "kind": "VolumeAttachment", "metadata": metadata(attachment.as_str()), "spec": {
                "attacher": "disk.example.com", "nodeName": "n1", "source": { "persistentVolumeName": "v1" },
            }, "status": { "attached": true } }),
        ] {
            snapshot.take(object).unwrap();
        }
        let subject = ObjectRef::Attachment(attachment.clone());
        let mut told = explain(&snapshot, &subject);
        let paths = paths(&told);
        assert!(paths[0].starts_with(&format!("/debug/attach-detach?attachment={attachment}")), "{paths:?}");
        let row = |node: &str| {
            json!({
                "kind": "attachment", "volume": volume.as_str(), "node": node,
                "attachment": volume.attachment_name(&NodeName::from(node)), "reason": "DetachWaitingForUnmount",
                "message": "it is detached by force", "since": "2026-08-21T12:02:00Z", "next": "2026-08-21T12:08:00Z",
                "until": "2026-08-21T12:08:00Z", "facts": {},
            })
        };
        let change = json!({
            "object": format!("VolumeAttachment/{attachment}"), "namespace": null, "at": "2026-08-21T12:02:00Z",
            "from": "Attached", "to": "Detaching", "reason": "DetachWaitingForUnmount", "attempt": 1,
        });
        let board = json!({ "leads": true, "waiting": [row("n2"), row("n1")], "history": [change] });
        add(&mut told, &[serde_json::from_value(board).unwrap()]);
        let step = told.steps.iter().find(|step| step.object["name"] == attachment.as_str()).unwrap();
        assert_eq!((step.reason.as_str(), told.steps.len()), ("DetachWaitingForUnmount", 1));
        let next = step.next.as_ref().unwrap();
        assert_eq!(next.at.map(|at| at.to_string()).as_deref(), Some("2026-08-21T12:08:00Z"));
        assert_eq!((next.not_before, &next.condition), (None, &None));
        assert!(!told.unknown.iter().any(|text| text == TIMER), "{:?}", told.unknown);
        let past = format!("volumeattachment/{attachment}: Attached → Detaching (DetachWaitingForUnmount)");
        assert!(told.timeline.iter().any(|happened| happened.text == past), "{:?}", told.timeline);
    }
}
