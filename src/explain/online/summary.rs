//! What waits now, from the boards of both controllers.
//!
//! In: all waits, and the rights of one who asks. Out: those that this one may see, the longest first; the others are counted. Who
//! may see all of a kind, or of a kind in a namespace, sees its waits: it is not asked about each object.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{
    Knowledge,
    access::Sight,
    answers::Trouble,
    boards::Said,
    desk::Desk,
    redact::{HIDDEN, is_of_name},
};
use crate::{
    attach_detach::{
        decide::{force::Unforced, verdict::Waiting},
        desired::{state::WhyUnresolved, volume_name::VolumeKind},
    },
    controller::diagnostics::WallClock,
    explain::{
        claim,
        page::values::{Named, WaitingNow, WaitingRow},
        report::{API_VERSION, Observed, Source, Verdict},
        subject::Subject,
        volume,
    },
    http::Rights,
    kube_api::{
        ids::{ClaimKey, PodKey},
        kinds::ObjectRef,
    },
    state::Objects,
};

/// Rows of an answer: a page of half a megabyte.
const MOST_ROWS: usize = 2_000;

/// What waits now, for one who asks.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Summary {
    /// Version of the form.
    api_version: &'static str,
    /// `Summary`.
    kind: &'static str,
    /// The rows.
    #[serde(flatten)]
    pub now: WaitingNow,
    /// How many wait for each reason, also those that are left out.
    reasons: BTreeMap<String, usize>,
    /// Rows that are left out, as there are too many.
    left_out: usize,
}

impl Summary {
    pub fn is_empty(&self) -> bool {
        self.now.rows.is_empty()
    }

    /// The same, as at another time.
    pub fn without_time(&self) -> Self {
        let mut same = self.clone();
        same.now.observed.at = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
        same.now.observed.resource_version = None;
        same
    }
}

/// What waits, for one who asks.
pub(super) async fn of(desk: &Desk, rights: &Rights) -> Result<Summary, Trouble> {
    let rows = desk.slowly(all).await?;
    let sight = Sight::of(rows.iter().map(|(object, _)| object.clone()), rights).await?;
    let knowledge = desk.knowledge();
    let (mut shown, mut redacted) = (Vec::new(), 0);
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    for (object, row) in rows {
        if sight.sees(&object) {
            *reasons.entry(row.reason.clone()).or_default() += 1;
            shown.push(row);
        } else {
            redacted += 1;
        }
    }
    let left_out = shown.len().saturating_sub(MOST_ROWS);
    shown.truncate(MOST_ROWS);
    for row in &mut shown {
        row.message = seen(&row.message, &sight, &knowledge.objects);
    }
    let now = WaitingNow {
        observed: Observed {
            resource_version: None,
            at: k8s_openapi::jiff::Timestamp::now(),
            source: Source::Daemon,
            leader: knowledge.leader(),
        },
        rows: shown,
        last_change: knowledge.history.latest(),
        redacted,
        unseen: Vec::new(),
    };
    Ok(Summary { api_version: API_VERSION, kind: "Summary", now, reasons, left_out })
}

/// All that waits, the longest first.
fn all(knowledge: &Knowledge) -> Vec<(ObjectRef, WaitingRow)> {
    let clock = WallClock::now();
    let mut rows = Vec::new();
    let mut note = |subject: &Subject, detail: String, said: Said, verdict: Verdict| {
        if verdict == Verdict::Healthy {
            return;
        }
        let object = Named {
            kind: subject.kind().to_owned(),
            namespace: subject.namespace().unwrap_or_default().to_owned(),
            name: subject.name().to_owned(),
        };
        let row = WaitingRow {
            object,
            detail,
            reason: said.code.to_owned(),
            message: said.message,
            verdict,
            since: Some(said.since),
            until: said.until,
        };
        rows.push((subject.object(), row));
    };
    if let Some(board) = &knowledge.attach_detach {
        for (key, wait) in board.waits() {
            let subject = match key.volume.kind() {
                VolumeKind::Csi => Subject::Attachment(key.volume.attachment_name(&key.node)),
                VolumeKind::NoOp => Subject::Node(key.node.clone()),
            };
            let verdict = of_attachment(&wait.reason.waiting);
            note(&subject, format!("on {}", key.node), Said::of(&wait, &clock), verdict);
        }
        for (key, wait) in board.unresolved() {
            let (subject, verdict) = (Subject::Pod(key.pod().clone()), of_pod(&wait.reason));
            note(&subject, format!("volume {}", key.volume()), Said::of(&wait, &clock), verdict);
        }
    }
    if let Some(board) = &knowledge.binder {
        for (key, wait) in board.claims() {
            let verdict = failing(wait.reason.failure.is_some(), claim::verdict(&wait.reason.reason));
            note(&Subject::Claim(key), String::new(), Said::of(&wait, &clock), verdict);
        }
        for (name, wait) in board.volumes() {
            let verdict = failing(wait.reason.failure.is_some(), volume::verdict(&wait.reason.reason));
            note(&Subject::Volume(name), String::new(), Said::of(&wait, &clock), verdict);
        }
    }
    rows.sort_by(|(one, first), (other, second)| first.since.cmp(&second.since).then_with(|| one.cmp(other)));
    rows
}

/// A request that fails is tried again by itself.
fn failing(fails: bool, verdict: Verdict) -> Verdict {
    if fails { Verdict::Waiting } else { verdict }
}

fn of_attachment(waiting: &Waiting) -> Verdict {
    match waiting {
        Waiting::NodeGone
        | Waiting::Unreadable { .. }
        | Waiting::ForeignAttachment { .. }
        | Waiting::ClaimOrVolumeChanged
        | Waiting::DetachWaitingForUnmount { unforced: Unforced::SwitchedOff }
        | Waiting::DetachWaitingForNode { unforced: Unforced::SwitchedOff } => Verdict::Blocked,
        _ => Verdict::Waiting,
    }
}

fn of_pod(why: &WhyUnresolved) -> Verdict {
    match why {
        WhyUnresolved::NodeNotManaged(_) => Verdict::Healthy,
        WhyUnresolved::ClaimNotBound(_) => Verdict::Waiting,
        _ => Verdict::Blocked,
    }
}

/// A message without the names of objects that may not be seen. Pure but for the tables, which know what is a name.
fn seen(message: &str, sight: &Sight, objects: &Objects) -> String {
    let mut seen = String::with_capacity(message.len());
    let mut rest = message;
    while !rest.is_empty() {
        let end = rest.find(|letter| !is_of_word(letter)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let name = word.trim_end_matches('.');
        seen.push_str(if is_hidden(name, sight, objects) { HIDDEN } else { name });
        seen.push_str(word.get(name.len()..).unwrap_or_default());
        let gap = after.find(is_of_word).unwrap_or(after.len());
        let (between, next) = after.split_at(gap);
        seen.push_str(between);
        rest = next;
    }
    seen
}

fn is_of_word(letter: char) -> bool {
    is_of_name(letter) || letter == '/'
}

fn is_hidden(word: &str, sight: &Sight, objects: &Objects) -> bool {
    let mut found = Vec::new();
    if let Some((namespace, name)) = word.split_once('/') {
        let (pod, claim) = (PodKey::new(namespace, name), ClaimKey::new(namespace, name));
        found.extend(objects.pods.get(&pod).map(|_| ObjectRef::Pod(pod)));
        found.extend(objects.claims.get(&claim).map(|_| ObjectRef::Claim(claim)));
    } else {
        found.extend(objects.nodes.get(&word.into()).map(|_| ObjectRef::Node(word.into())));
        found.extend(objects.volumes.get(&word.into()).map(|_| ObjectRef::Volume(word.into())));
        found.extend(objects.attachments.get(&word.into()).map(|_| ObjectRef::Attachment(word.into())));
    }
    found.iter().any(|object| !sight.sees(object))
}
