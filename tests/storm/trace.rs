//! What happened, a line for each change: when, at which revision, by whom, and what of the object matters to disks; and
//! what happened to the disks.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::{judges::Timeline, play::Record};

/// The whole record as text.
pub fn text(record: &Record) -> String {
    let mut lines = Vec::new();
    for moment in &Timeline::of(record).moments {
        let (change, at) = (moment.change, moment.at.duration_since(record.began));
        let mut line = format!("{:9.3} {:>6} {:<12} ", at.as_secs_f64(), change.revision, moment.author);
        let _ = match (&change.before, &change.after) {
            (_, None) => write!(line, "deletes {} {}", change.resource, change.name),
            (None, Some(after)) => {
                write!(line, "creates {} {} {}", change.resource, change.name, brief(after))
            }
            (Some(_), Some(after)) => {
                write!(line, "writes {} {} {}", change.resource, change.name, brief(after))
            }
        };
        lines.push((moment.at, line));
    }
    for fact in &record.facts {
        let at = fact.at.duration_since(record.began);
        let line =
            format!("{:9.3} {:>6} {:?} {} {}", at.as_secs_f64(), "", fact.step, fact.disk, fact.machine);
        lines.push((fact.at, line));
    }
    for kill in &record.kills {
        let at = kill.duration_since(record.began);
        lines.push((*kill, format!("{:9.3} {:>6} kill", at.as_secs_f64(), "")));
    }
    for (begin, end) in &record.late {
        let (at, until) = (begin.duration_since(record.began), end.duration_since(record.began));
        let line = format!("{:9.3} {:>6} trouble until {:.3}", at.as_secs_f64(), "", until.as_secs_f64());
        lines.push((*begin, line));
    }
    lines.sort_by_key(|(at, _)| *at);
    lines.into_iter().map(|(_, line)| line + "\n").collect()
}

fn brief(object: &Value) -> Value {
    let (metadata, spec, status) = (&object["metadata"], &object["spec"], &object["status"]);
    let brief = json!({
        "uid": metadata["uid"],
        "deletionTimestamp": metadata["deletionTimestamp"],
        "finalizers": metadata["finalizers"],
        "annotations": metadata["annotations"],
        "nodeName": spec["nodeName"],
        "volumeName": spec["volumeName"],
        "claimRef": spec["claimRef"]["uid"],
        "handle": spec["csi"]["volumeHandle"],
        "source": spec["source"]["persistentVolumeName"],
        "phase": status["phase"],
        "attached": status["attached"],
        "attachError": status["attachError"]["message"],
        "detachError": status["detachError"]["message"],
        "lists": status["volumesAttached"],
        "uses": status["volumesInUse"],
        "about": object["involvedObject"]["name"],
        "reason": object["reason"],
        "message": object["message"],
        "count": object["count"],
    });
    let said = brief.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    said.map(|(key, value)| (key.clone(), value.clone())).collect::<serde_json::Map<_, _>>().into()
}
