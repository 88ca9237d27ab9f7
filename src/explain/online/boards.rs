//! What the controllers themselves say of the objects of an answer: since when, until when, what fails, and what was before.
//!
//! In: an answer that was made from tables alone, the boards of both controllers, and the history. Out: the same answer with
//! the very reason that the controller acted on where it has one. A replica that stands by has nothing on its boards.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::Knowledge;
use crate::{
    attach_detach::{desired::volume_name::VolumeId, dry_run::volume_of},
    controller::diagnostics::{Reason, Wait, WallClock},
    explain::{
        answer::{docs, sentence},
        report::{Explanation, Happened, Next, Step, Verdict},
        snapshot::Snapshot,
        subject::Subject,
    },
    kube_api::{
        ids::{AttachmentName, NodeName},
        kinds::{
            Meta, Narrow, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment,
        },
    },
    state::{Objects, Stored},
    telemetry::transition::Named,
};

/// Volumes of a copy up to which an attachment that is not there yet is looked for by its name.
const MOST_VOLUMES: usize = 256;

/// Changes of the past that are told.
const MOST_CHANGES: usize = 40;

/// How something waits, as its controller says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub code: &'static str,
    pub message: String,
    pub since: Timestamp,
    pub next: Option<Timestamp>,
    pub until: Option<Timestamp>,
}

impl Said {
    pub fn of<R: Reason>(wait: &Wait<R>, clock: &WallClock) -> Self {
        Self {
            code: wait.reason.code(),
            message: wait.reason.message(),
            since: clock.at(wait.since),
            next: wait.next.map(|next| clock.at(next)),
            until: wait.reason.until(clock),
        }
    }
}

/// Adds what the controllers say.
pub(super) fn add(explanation: &mut Explanation, snapshot: &Snapshot, knowledge: &Knowledge) {
    let clock = WallClock::now();
    let pairs = pairs(explanation, snapshot);
    let said: Vec<Option<Said>> = explanation
        .steps
        .iter()
        .map(|step| said_of(&subject_of(&step.object)?, knowledge, &pairs, &clock))
        .collect();
    for (index, said) in said.into_iter().enumerate() {
        let Some(said) = said else { continue };
        let is_well = explanation.verdict == Verdict::Healthy;
        let Some(step) = explanation.steps.get_mut(index) else { continue };
        let node = match subject_of(&step.object) {
            Some(Subject::Attachment(name)) => pairs.get(&name).map(|(_, node)| node),
            _ => None,
        };
        let is_news = tell(step, &said, node);
        if is_well && is_news {
            // Tables show no reason to wait, and the controller has one.
            step.is_blocker = true;
            explanation.verdict = Verdict::Waiting;
        }
        if step.is_blocker {
            explanation.reason.clone_from(&step.reason);
            explanation.summary = sentence(step);
        }
    }
}

/// Puts what a controller says into a step. Returns whether the reason is another one.
fn tell(step: &mut Step, said: &Said, node: Option<&NodeName>) -> bool {
    let is_news = step.reason != said.code;
    if is_news || node.is_some() {
        step.message =
            node.map_or_else(|| said.message.clone(), |node| format!("on {node}: {}", said.message));
    }
    step.since = Some(said.since);
    if is_news {
        said.code.clone_into(&mut step.reason);
        step.docs = docs(said.code);
        step.next = None;
    }
    // Until when it waits is a promise; when it is looked at again, merely a time.
    if let Some(at) = said.until.or(said.next) {
        let action = if said.until.is_some() { "Detach" } else { "LookAgain" };
        let next = step.next.get_or_insert_with(|| Next {
            action: action.to_owned(),
            not_before: None,
            at: None,
            condition: None,
        });
        next.at = Some(at);
    }
    is_news
}

fn said_of(
    subject: &Subject,
    knowledge: &Knowledge,
    pairs: &BTreeMap<AttachmentName, (VolumeId, NodeName)>,
    clock: &WallClock,
) -> Option<Said> {
    match subject {
        Subject::Attachment(name) => {
            let (volume, node) = pairs.get(name)?;
            knowledge.attach_detach.as_ref()?.wait(volume, node).map(|wait| Said::of(&wait, clock))
        }
        Subject::Claim(key) => knowledge.binder.as_ref()?.claim_wait(key).map(|wait| Said::of(&wait, clock)),
        Subject::Volume(name) => {
            knowledge.binder.as_ref()?.volume_wait(name).map(|wait| Said::of(&wait, clock))
        }
        Subject::Pod(_) | Subject::Node(_) | Subject::Class(_) => None,
    }
}

/// Which volume on which node an attachment of the answer stands for, also one that is not there yet.
fn pairs(explanation: &Explanation, snapshot: &Snapshot) -> BTreeMap<AttachmentName, (VolumeId, NodeName)> {
    let objects = &snapshot.objects;
    let mut pairs = BTreeMap::new();
    let mut open = Vec::new();
    for step in &explanation.steps {
        let Some(Subject::Attachment(name)) = subject_of(&step.object) else { continue };
        let attachment = objects.attachments.get(&name);
        let volume = attachment.as_ref().and_then(|it| it.spec.source.persistent_volume_name.clone());
        let volume = volume.and_then(|volume| volume_of(objects, &volume));
        match (volume, attachment) {
            (Some(volume), Some(attachment)) => {
                pairs.insert(name, (volume, attachment.spec.node_name.clone()));
            }
            _ => open.push(name),
        }
    }
    if open.is_empty() || objects.volumes.len() > MOST_VOLUMES {
        return pairs;
    }
    let nodes = objects.nodes.keys();
    for volume in objects.volumes.keys().iter().filter_map(|name| volume_of(objects, name)) {
        for node in &nodes {
            let name = volume.attachment_name(node);
            if open.contains(&name) {
                pairs.insert(name, (volume.clone(), node.clone()));
            }
        }
    }
    pairs
}

/// The object of a step, if it is one that can be asked about.
pub(super) fn subject_of(object: &Value) -> Option<Subject> {
    let text = |field| object.get(field).and_then(Value::as_str).unwrap_or_default();
    Subject::new(text("kind"), text("namespace"), text("name")).ok()
}

/// What happened to the objects of the answer, each with the object that it is about, the oldest first.
pub(super) fn past(
    explanation: &Explanation,
    snapshot: &Snapshot,
    knowledge: &Knowledge,
) -> Vec<(ObjectRef, Happened)> {
    let mut past = Vec::new();
    let mut seen = Vec::new();
    let steps = explanation.steps.iter().map(|step| &step.object);
    for subject in std::iter::once(&explanation.subject).chain(steps).filter_map(subject_of) {
        let object = subject.object();
        if seen.contains(&object) {
            continue;
        }
        for change in knowledge.history.of(&named(&subject)) {
            let text = if change.from == change.to {
                format!("{object}: {} ({})", change.to, change.reason)
            } else {
                format!("{object}: {} → {} ({})", change.from, change.to, change.reason)
            };
            past.push((object.clone(), Happened { at: change.at, text }));
        }
        past.extend(dates(&object, snapshot).into_iter().map(|happened| (object.clone(), happened)));
        seen.push(object);
    }
    past.sort_by_key(|(_, happened)| happened.at);
    let rest = past.len().saturating_sub(MOST_CHANGES);
    past.drain(..rest);
    past
}

/// What the object itself says of its past.
fn dates(object: &ObjectRef, snapshot: &Snapshot) -> Vec<Happened> {
    fn of<T: Stored>(objects: &Objects, key: &T::Key) -> Option<Meta> {
        objects.get::<T>(key).map(|object| object.metadata().clone())
    }
    let objects = &snapshot.objects;
    let metadata = by_kind!(object, of(objects));
    let Some(metadata) = metadata else { return Vec::new() };
    let mut dates = Vec::new();
    if let Some(at) = metadata.creation_timestamp {
        dates.push(Happened { at, text: format!("{object} was created") });
    }
    // Of a pod it is when its grace ends.
    if let Some(at) = metadata.deletion_timestamp.as_deref()
        && !matches!(object, ObjectRef::Pod(_))
    {
        dates.push(Happened { at: *at, text: format!("the deletion of {object} was asked for") });
    }
    if let ObjectRef::Node(name) = object
        && let Some(ready) = objects.nodes.get(name).and_then(|node| node.ready().cloned())
        && let Some(at) = ready.last_transition_time
    {
        dates.push(Happened { at, text: format!("{object} became Ready={}", ready.status) });
    }
    dates
}

/// An object as the log names it.
pub(super) fn named(subject: &Subject) -> Named {
    match subject {
        Subject::Pod(key) => Named::in_namespace(Pod::KIND, key.namespace(), key.name()),
        Subject::Claim(key) => Named::in_namespace(PersistentVolumeClaim::KIND, key.namespace(), key.name()),
        Subject::Volume(name) => Named::in_cluster(PersistentVolume::KIND, name.as_str()),
        Subject::Attachment(name) => Named::in_cluster(VolumeAttachment::KIND, name.as_str()),
        Subject::Node(name) => Named::in_cluster(Node::KIND, name.as_str()),
        Subject::Class(name) => Named::in_cluster("StorageClass", name.as_str()),
    }
}
