//! What two servers cannot have in common, taken out: uids, times, revisions, tokens, generated
//! names, texts for people, all of the managed fields but who owns which. What is left of an answer has to agree.

use serde_json::{Value, json};

use super::sequence::Answer;

/// The comparable part of an answer.
pub fn answer(answer: &Answer, id: &str) -> Value {
    let body = &answer.body;
    if body["kind"] == "Status" {
        let details = &body["details"];
        let mut causes: Vec<String> = Vec::new();
        for cause in details["causes"].as_array().into_iter().flatten() {
            // Which of several faults of one field is named is upstream's inner order.
            let field = cause["field"].as_str().unwrap_or_default().replace(id, "$id");
            let field =
                field.trim_end_matches(|c: char| c.is_ascii_digit() || c == '[' || c == ']').to_owned();
            causes.push(field);
        }
        causes.sort();
        causes.dedup();
        return json!({
            "code": answer.code, "status": body["status"], "reason": body["reason"],
            "name": details["name"].as_str().map(|name| name.replace(id, "$id")),
            "kind": details["kind"], "group": details["group"], "fields": causes,
        });
    }
    let mut masked = value(body, id);
    // The embedded server keeps no owners of what is not kept itself.
    if body["kind"].as_str().is_some_and(|kind| kind.ends_with("Review"))
        && let Some(metadata) = masked["metadata"].as_object_mut()
    {
        metadata.remove("managedFields");
    }
    json!({"code": answer.code, "body": masked})
}

/// The comparable part of a watch event.
pub fn event(event: &Value, id: &str) -> Value {
    json!({"type": event["type"], "object": value(&event["object"], id)})
}

fn value(whole: &Value, id: &str) -> Value {
    match whole {
        Value::Object(fields) => {
            let mut kept = serde_json::Map::new();
            for (name, inner) in fields {
                let masked = match (name.as_str(), inner) {
                    ("managedFields", entries) => match owners(entries) {
                        Value::Null => continue,
                        owners => owners,
                    },
                    ("resourceVersion" | "uid" | "continue", Value::String(text)) if !text.is_empty() => {
                        format!("<{name}>").into()
                    }
                    _ => value(inner, id),
                };
                kept.insert(name.clone(), masked);
            }
            if let Some(prefix) = fields.get("generateName").and_then(Value::as_str)
                && fields.get("name").and_then(Value::as_str).is_some_and(|name| name.starts_with(prefix))
            {
                kept.insert("name".to_owned(), "<generated>".into());
            }
            Value::Object(kept)
        }
        // Whether an empty list is kept or stored as none depends on the encoding of the real server's
        // storage, and on whether the answer comes from there.
        Value::Array(elements) if elements.is_empty() => Value::Null,
        Value::Array(elements) => Value::Array(elements.iter().map(|element| value(element, id)).collect()),
        Value::String(text) if is_recent(text) => "<time>".into(),
        Value::String(text) => text.replace(id, "$id").into(),
        other => other.clone(),
    }
}

/// What the real server owns to its sender although it was empty or is not kept, and the embedded one never sees.
const SENT_EMPTY: [&str; 6] = [
    "f:reportingComponent",
    "f:reportingInstance",
    "f:spec/f:drivers",
    "f:spec/f:finalizers",
    "f:spec/f:preferredHolder",
    "f:spec/f:strategy",
];

/// Who owns what, as far as both servers know: lists are owned whole by the embedded one.
fn owners(entries: &Value) -> Value {
    let mut owners: Vec<String> = entries
        .as_array()
        .into_iter()
        .flatten()
        .map(|entry| {
            let mut fields: Vec<String> = Vec::new();
            for (name, inner) in entry["fieldsV1"].as_object().into_iter().flatten() {
                let inner = inner.as_object().into_iter().flatten().map(|(inner, _)| inner);
                let inner: Vec<String> =
                    inner.filter(|inner| *inner != ".").map(|inner| format!("{name}/{inner}")).collect();
                fields.extend(if inner.is_empty() { vec![name.clone()] } else { inner });
            }
            fields.retain(|field| !SENT_EMPTY.contains(&field.as_str()));
            fields.sort();
            if fields.is_empty() {
                return String::new();
            }
            let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
            format!("{} {} {}: {}", text("manager"), text("operation"), text("subresource"), fields.join(" "))
        })
        .collect();
    owners.retain(|owner| !owner.is_empty());
    owners.sort();
    if owners.is_empty() { Value::Null } else { owners.into() }
}

/// Times that a sequence itself writes are from long ago.
fn is_recent(text: &str) -> bool {
    text.len() >= 20
        && text.ends_with('Z')
        && text.starts_with("20")
        && &text[4..5] == "-"
        && &text[..4] >= "2024"
}
