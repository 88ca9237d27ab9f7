//! What the daemon says that it waits for, as rows. Pure.
//!
//! In: its pages `/debug/binder` and `/debug/attach-detach`. Out: a row for each claim and each
//! volume on a node that is not settled, longest first.

use serde_json::Value;

use super::{lines::shorten, snapshot::WaitingRow};

/// The rows; `people_call` turns a volume's handle into what people call it.
pub fn rows(binder: &Value, attach_detach: &Value, people_call: impl Fn(&str) -> String) -> Vec<WaitingRow> {
    let alarms = [text(attach_detach, "/alarm"), text(binder, "/alarm")].into_iter();
    let mut rows: Vec<WaitingRow> = alarms.filter(|alarm| !alarm.is_empty()).map(of_alarm).collect();
    rows.extend(waiting(binder, "claim").map(of_claim));
    let mut pairs: Vec<&Value> = waiting(attach_detach, "attachment").collect();
    pairs.sort_by_key(|pair| text(pair, "/since"));
    rows.extend(pairs.into_iter().map(|pair| {
        let volume = text(pair, "/volume");
        let handle = volume.rsplit('^').next().unwrap_or_default();
        let subject = format!("{} on {}", people_call(handle), text(pair, "/node"));
        WaitingRow { subject, reason: reason(pair) }
    }));
    rows
}

/// That another controller does the daemon's work holds up everything.
fn of_alarm(alarm: &str) -> WaitingRow {
    WaitingRow { subject: "everything".to_owned(), reason: alarm.to_owned() }
}

fn of_claim(claim: &Value) -> WaitingRow {
    let name = text(claim, "/claim").rsplit('/').next().unwrap_or_default();
    WaitingRow { subject: name.to_owned(), reason: shorten(text(claim, "/message")) }
}

/// The code of what a pair waits for, with the fact that matters most.
fn reason(pair: &Value) -> String {
    let code = text(pair, "/reason");
    let fact = |pointer: &str| pair.pointer(pointer).and_then(Value::as_str);
    if let Some(node) = fact("/facts/conflictingNode/node") {
        return format!("{code}: {node}");
    }
    if let Some(until) = fact("/until") {
        let time = until.split_once('T').map_or(until, |(_, time)| time);
        let time = time.split(['.', 'Z']).next().unwrap_or_default();
        return format!("{code}, by force at {time} UTC");
    }
    match fact("/facts/message") {
        Some(message) => format!("{code}: {message}"),
        None => code.to_owned(),
    }
}

/// What waits and is of that kind.
fn waiting<'a>(page: &'a Value, kind: &'static str) -> impl Iterator<Item = &'a Value> {
    let rows = page.pointer("/waiting").and_then(Value::as_array).into_iter().flatten();
    rows.filter(move |row| text(row, "/kind") == kind)
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_say_what_and_why() {
        let binder = json!({ "alarm": null, "waiting": [
            { "kind": "volume", "volume": "v", "reason": "Reserved", "message": "reserved for c" },
            {
                "kind": "claim", "claim": "default/c", "reason": "ClassNotFound",
                "message": "storageclass \"gold\" not found",
            },
        ]});
        let pair = |since: &str, facts: Value| {
            let mut pair = json!({
                "kind": "attachment", "volume": "kubernetes.io/csi/d^v1", "node": "n1", "since": since,
            });
            json_patch::merge(&mut pair, &facts);
            pair
        };
        let attach_detach = json!({ "alarm": "another one is at work", "waiting": [
            pair("2026-01-01T00:00:04Z", json!({ "reason": "WaitingForAttacher" })),
            pair("2026-01-01T00:00:03Z", json!({ "reason": "AttachError", "facts": { "message": "no" } })),
            pair("2026-01-01T00:00:02Z", json!({ "reason": "HeldByNode", "facts": { "conflictingNode": { "node": "n2" } } })),
            pair("2026-01-01T00:00:01Z", json!({
                "reason": "DetachWaitingForUnmount", "until": "2026-01-01T00:06:01.5Z",
            })),
        ]});
        let rows = rows(&binder, &attach_detach, |volume| format!("data of {volume}"));
        let told: Vec<String> = rows.iter().map(|row| format!("{}: {}", row.subject, row.reason)).collect();
        assert_eq!(
            told,
            [
                "everything: another one is at work",
                "c: storageclass \"gold\" not found",
                "data of v1 on n1: DetachWaitingForUnmount, by force at 00:06:01 UTC",
                "data of v1 on n1: HeldByNode: n2",
                "data of v1 on n1: AttachError: no",
                "data of v1 on n1: WaitingForAttacher",
            ]
        );
    }
}
