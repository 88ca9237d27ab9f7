//! S46: how often the daemon writes the same to an object, creates the same, and deletes it; and how often it is refused (S40).

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use test_support::{
    audit::{DAEMON, Entry},
    history::Change,
};
use tokio::time::Instant;

use super::{Fault, Timeline, is_terminating};
use crate::play::Record;

/// In any minute, and in any ten. A writer that undoes at once is answered some ten times in the first minute and three in
/// each that follows, and two that undo one object in turn up to eighteen times; a process that begins anew knows of none
/// of them.
const MOST: [(Duration, usize); 2] = [(Duration::from_mins(1), 18), (Duration::from_mins(10), 54)];

pub fn judge(record: &Record, timeline: &Timeline) -> Vec<Fault> {
    let mut recent: BTreeMap<(&str, &str, String), Vec<Instant>> = BTreeMap::new();
    let mut faults = BTreeMap::new();
    let mut starts = record.starts.iter().peekable();
    for moment in timeline.moments.iter().filter(|moment| moment.is_ours()) {
        let change = moment.change;
        let holder = |lease: &Option<Value>| {
            lease
                .as_ref()
                .filter(|_| change.resource == "leases")
                .map(|lease| lease["spec"]["holderIdentity"].clone())
        };
        let mut is_another = holder(&change.before) != holder(&change.after);
        while starts.next_if(|start| **start <= moment.at).is_some() {
            is_another = true;
        }
        if is_another {
            recent.clear();
        }
        if ["events", "leases"].contains(&change.resource.as_str()) {
            continue;
        }
        let writes = recent.entry((&change.resource, &change.name, content(change))).or_default();
        writes.push(moment.at);
        for (time, most) in MOST {
            let count = writes.iter().rev().take_while(|at| moment.at - **at <= time).count();
            if count > most {
                faults.entry((&change.resource, &change.name)).or_insert_with(|| Fault {
                    rule: "pace: against a writer that undoes",
                    what: format!(
                        "more than {most} times the same within {time:?} to {} {} until revision {}",
                        change.resource, change.name, change.revision
                    ),
                });
            }
        }
    }
    let mut faults: Vec<Fault> = faults.into_values().collect();
    faults.extend(refused(record));
    faults
}

/// In any minute in which requests do not fail at random.
const MOST_REFUSED: usize = 30;

/// What is refused is asked for again more and more slowly.
fn refused(record: &Record) -> Vec<Fault> {
    let mut recent: BTreeMap<(&str, &str, &str), Vec<Instant>> = BTreeMap::new();
    let mut faults = BTreeMap::new();
    let is_refused = |entry: &&Entry| entry.user == DAEMON && entry.code >= 400 && is_write(&entry.verb);
    for entry in record.requests.iter().filter(is_refused) {
        let Some(at) = entry.at else { continue };
        if record.faults.iter().any(|(begin, end)| *begin <= at && at <= *end) {
            continue;
        }
        // What is created is named in the body alone.
        let name = entry.request["metadata"]["name"].as_str().unwrap_or(&entry.name);
        let of = (entry.verb.as_str(), entry.resource.as_str(), name);
        let refusals = recent.entry(of).or_default();
        refusals.push(at);
        if refusals.iter().rev().take_while(|earlier| at - **earlier <= Duration::from_mins(1)).count()
            > MOST_REFUSED
        {
            let rule = "pace: refused and asked for again";
            faults.entry(of).or_insert_with(|| Fault {
                rule,
                what: format!("{} {} {name}, {}", entry.verb, entry.resource, entry.code),
            });
        }
    }
    faults.into_values().collect()
}

pub(super) fn is_write(verb: &str) -> bool {
    ["create", "update", "patch", "delete"].contains(&verb)
}

/// What the daemon may have written of an object, or that it deleted it.
fn content(change: &Change) -> String {
    let Some(object) = change.after.as_ref().filter(|object| !is_terminating(object)) else {
        return "deleted".to_owned();
    };
    let (metadata, spec, status) = (&object["metadata"], &object["spec"], &object["status"]);
    let parts = [
        &metadata["annotations"],
        &spec["claimRef"],
        &spec["volumeName"],
        &spec["source"],
        &status["phase"],
        &status["volumesAttached"],
    ];
    json!(parts).to_string()
}
