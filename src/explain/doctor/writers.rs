//! Who wrote what, and when, as `managedFields` of a few objects tell: two controllers at work, and since when space is kept.
//!
//! In: the objects that were read whole, which are those that were written last. Out: a finding if both controllers wrote
//! within the last hour, with what and when; what was looked at; and that nothing can be said where a server or a proxy
//! leaves `managedFields` out.

use std::time::Duration;

use apiserver::kinds::ObjectRef;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::groups::Groups;
use crate::explain::{
    age,
    links::Link,
    snapshot::{Snapshot, Unseen},
    subject::Subject,
};

/// A program that wrote within this time is at work.
const AT_WORK: Duration = Duration::from_hours(1);

/// As the two controllers call themselves in `managedFields`.
const STOCK: &str = "kube-controller-manager";
const OUR_MANAGER: &str = "mooring";

/// What one of them wrote within that time.
struct Wrote {
    first: Timestamp,
    last: Timestamp,
    /// What it wrote last.
    subject: Subject,
}

/// Both controllers wrote within the last hour (S14). Returns what cannot be told.
pub(super) fn look(snapshot: &Snapshot, groups: &mut Groups<'_>, fine: &mut Vec<String>) -> Option<Unseen> {
    let (mut looked, mut told) = (0_usize, 0_usize);
    let mut wrote: [Option<Wrote>; 2] = [None, None];
    for (object, whole) in &snapshot.details {
        let Some((field, subject)) = of_these_loops(object) else { continue };
        looked += 1;
        told += usize::from(entries(whole).next().is_some());
        for (manager, fields, at) in entries(whole) {
            let [stock, ours] = &mut wrote;
            let wrote = match manager {
                STOCK => stock,
                OUR_MANAGER => ours,
                _ => continue,
            };
            let is_recent = at.checked_add(AT_WORK).is_ok_and(|until| until >= snapshot.taken_at);
            if is_recent && fields.pointer(field).is_some() {
                let wrote =
                    wrote.get_or_insert_with(|| Wrote { first: at, last: at, subject: subject.clone() });
                wrote.first = wrote.first.min(at);
                if at > wrote.last {
                    (wrote.last, wrote.subject) = (at, subject.clone());
                }
            }
        }
    }
    if let [Some(stock), Some(ours)] = wrote {
        let now = groups.now;
        // One after the other is a change of hands: for a while it could be either.
        let takes_turns = stock.first <= ours.last && ours.first <= stock.last;
        if takes_turns || !age::is_long(Some(stock.last.min(ours.last)), now) {
            let told = format!(
                "{STOCK} wrote {} {} ago, and {OUR_MANAGER} wrote {} {} ago",
                stock.subject,
                age::between(stock.last, now),
                ours.subject,
                age::between(ours.last, now)
            );
            let kind = if takes_turns { "in turns" } else { "after change" };
            let link = Link::told_of(&stock.subject, "ForeignWriter", kind, &[("told", &told)]);
            let victim = (stock.subject, "object", Some(stock.last));
            groups.note(&link, STOCK, victim);
        }
    }
    if told > 0 {
        fine.push(format!("{} checked for the last writer", age::counted(told, "object")));
    }
    (looked > 0 && told == 0).then(|| Unseen {
        what: "who writes".to_owned(),
        why: "the objects carry no managedFields: whether two controllers are at work is unknown".to_owned(),
        forbidden: false,
    })
}

/// Since when a volume has had its phase: as its status says, or as its last writer's time does.
pub(super) fn in_phase_since(whole: &Value) -> Option<Timestamp> {
    let said = whole.pointer("/status/lastPhaseTransitionTime").and_then(Value::as_str);
    let written = || {
        let phases = entries(whole).filter(|(_, fields, _)| fields.pointer("/f:status/f:phase").is_some());
        phases.map(|(.., at)| at).max()
    };
    said.and_then(|at| at.parse().ok()).or_else(written)
}

/// Manager, fields and time of each writer.
fn entries(whole: &Value) -> impl Iterator<Item = (&str, &Value, Timestamp)> {
    let entries = whole.pointer("/metadata/managedFields").and_then(Value::as_array);
    entries.into_iter().flatten().filter_map(|entry| {
        let manager = entry.get("manager").and_then(Value::as_str)?;
        let at = entry.get("time").and_then(Value::as_str)?.parse().ok()?;
        Some((manager, entry.get("fieldsV1")?, at))
    })
}

/// The field that one of the two loops alone writes; kube-controller-manager has other loops.
fn of_these_loops(object: &ObjectRef) -> Option<(&'static str, Subject)> {
    Some(match object {
        ObjectRef::Node(name) => ("/f:status/f:volumesAttached", Subject::Node(name.clone())),
        ObjectRef::Attachment(name) => ("/f:spec", Subject::Attachment(name.clone())),
        ObjectRef::Volume(name) => ("/f:status/f:phase", Subject::Volume(name.clone())),
        ObjectRef::Claim(key) => ("/f:status/f:phase", Subject::Claim(key.clone())),
        ObjectRef::Pod(_) | ObjectRef::Class(_) | ObjectRef::Driver(_) | ObjectRef::AttributesClass(_) => {
            return None;
        }
    })
}
