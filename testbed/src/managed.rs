//! The owner of each field: `metadata.managedFields`.
//!
//! In: an object before and after a write, and its author. Out: the entries as the real server keeps them. A manager owns
//! the fields that it set or changed last, and an update removes them from all other managers. A removed field has no
//! owner, and neither has a field that admission and the kind's own rules change after that. Lists are owned as a whole,
//! and a map's own entry (`.`) is left out.
// kube-apiserver: apimachinery/pkg/util/managedfields/internal, structured-merge-diff/merge/update.go.

use serde_json::{Map, Value, json};

use super::{json, kinds::kind::Kind, request::Query};

/// Longest name of a manager that is made of a user agent.
// kube-apiserver: apimachinery/pkg/apis/meta/v1/validation, FieldManagerMaxLength.
const LONGEST_NAME: usize = 128;

/// Fields of `metadata` that no manager owns.
// kube-apiserver: apimachinery/pkg/util/managedfields/internal/stripmeta.go.
const UNOWNED: [&str; 8] = [
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "generation",
    "managedFields",
    "resourceVersion",
];

/// Objects that are owned whole, among those that are shown in tests.
const ATOMIC: [&str; 2] = ["involvedObject", "related"];

/// Who writes, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writer {
    manager: String,
    /// What is applied, if it is a server-side apply.
    applied: Option<Value>,
    subresource: String,
}

impl Writer {
    /// Who makes a request: the parameter `fieldManager`, else the first part of the user agent.
    pub fn of(query: &Query, user_agent: &str, subresource: &str) -> Self {
        let agent = || user_agent.split('/').next().unwrap_or_default();
        let named = Some(query.get("fieldManager")).filter(|name| !name.is_empty());
        let mut manager: String = named.unwrap_or_else(agent).chars().filter(|c| !c.is_control()).collect();
        if manager.is_empty() {
            "unknown".clone_into(&mut manager);
        }
        while manager.len() > LONGEST_NAME {
            manager.pop();
        }
        Self { manager, applied: None, subresource: subresource.to_owned() }
    }

    /// The same, applying this.
    #[must_use]
    pub fn applying(self, applied: Value) -> Self {
        Self { applied: Some(applied), ..self }
    }

    fn operation(&self) -> &'static str {
        if self.applied.is_some() { "Apply" } else { "Update" }
    }

    fn is_of(&self, entry: &Value) -> bool {
        json::text(entry, "/manager") == self.manager
            && json::text(entry, "/operation") == self.operation()
            && json::text(entry, "/subresource") == self.subresource
    }
}

/// Notes in an object that is about to be written who owns what. `old` is the object before, or null.
pub fn note(kind: &Kind, old: &Value, new: &mut Value, writer: &Writer, now: &str) {
    // Of what had no owner when it was made, an update does not begin to tell.
    let is_told = |object: &Value| !json::list(object, "/metadata/managedFields").is_empty();
    let begins = old.is_null() || is_told(old) || writer.applied.is_some();
    let entries = if begins { entries(kind, old, new, writer, now) } else { Vec::new() };
    if entries.is_empty() {
        json::remove(new, "/metadata/managedFields");
    } else {
        json::set(new, "/metadata/managedFields", entries);
    }
}

/// Whether two versions of an object differ in nothing but who owns what.
pub fn is_the_same(new: &Value, old: &Value) -> bool {
    let without = |object: &Value| {
        let mut object = object.clone();
        json::remove(&mut object, "/metadata/managedFields");
        object
    };
    without(new) == without(old)
}

fn entries(kind: &Kind, old: &Value, new: &Value, writer: &Writer, now: &str) -> Vec<Value> {
    let is_status = writer.subresource == "status";
    let mut changed = Map::new();
    let mut removed = Map::new();
    compare(&owned_part(kind, old, is_status), &owned_part(kind, new, is_status), &mut changed, &mut removed);
    let mut own = match &writer.applied {
        Some(applied) => {
            let mut all = Map::new();
            compare(&json!({}), &owned_part(kind, applied, is_status), &mut all, &mut Map::new());
            all
        }
        None => changed.clone(),
    };
    let mut time = now;
    let mut entries = Vec::new();
    for entry in json::list(old, "/metadata/managedFields") {
        let Some(known) = json::map(entry, "/fieldsV1") else { continue };
        let mut fields = known.clone();
        if writer.is_of(entry) {
            if writer.applied.is_none() {
                subtract(&mut fields, &removed);
                unite(&mut own, fields);
            }
            if own == *known || (writer.applied.is_none() && changed.is_empty()) {
                time = json::text(entry, "/time");
            }
            continue;
        }
        subtract(&mut fields, &changed);
        subtract(&mut fields, &removed);
        if !fields.is_empty() {
            let mut entry = entry.clone();
            json::set(&mut entry, "/fieldsV1", fields);
            entries.push(entry);
        }
    }
    if !own.is_empty() {
        let mut entry = json!({
            "manager": writer.manager,
            "operation": writer.operation(),
            "apiVersion": kind.api_version(),
            "time": time,
            "fieldsType": "FieldsV1",
            "fieldsV1": own,
        });
        if !writer.subresource.is_empty() {
            json::set(&mut entry, "/subresource", writer.subresource.clone());
        }
        entries.push(entry);
    }
    entries.sort_by(|left, right| {
        let order = |entry| ["/time", "/manager", "/subresource"].map(|field| json::text(entry, field));
        order(left).cmp(&order(right))
    });
    entries
}

/// What of an object can be owned through this way of writing.
fn owned_part(kind: &Kind, object: &Value, is_status: bool) -> Value {
    let mut part = object.clone();
    for field in ["/apiVersion", "/kind"] {
        json::remove(&mut part, field);
    }
    for field in UNOWNED {
        json::remove(&mut part, &format!("/metadata/{field}"));
    }
    if is_status {
        json::remove(&mut part, "/metadata/deletionTimestamp");
    }
    // What Go writes although it is empty has no owner.
    if let Some(fields) = part.as_object_mut() {
        fields.retain(|_, value| value.as_object().is_none_or(|fields| !fields.is_empty()) && value != "");
    }
    if is_status {
        json::remove(&mut part, "/spec");
    } else if kind.has_status {
        json::remove(&mut part, "/status");
    }
    part
}

/// Collects the fields that are new or changed, and those that are gone.
fn compare(old: &Value, new: &Value, changed: &mut Map<String, Value>, removed: &mut Map<String, Value>) {
    let empty = Map::new();
    let (old, new) = (old.as_object().unwrap_or(&empty), new.as_object().unwrap_or(&empty));
    for (name, value) in new.iter().filter(|(_, value)| !value.is_null()) {
        let before = old.get(name).unwrap_or(&Value::Null);
        if before == value {
            continue;
        }
        let key = format!("f:{name}");
        let is_empty = value.as_object().is_none_or(Map::is_empty) && !before.is_object();
        if value.is_object() && !is_empty && !ATOMIC.contains(&name.as_str()) {
            let (mut set, mut gone) = (Map::new(), Map::new());
            compare(before, value, &mut set, &mut gone);
            for (fields, into) in [(set, &mut *changed), (gone, &mut *removed)] {
                if !fields.is_empty() {
                    into.insert(key.clone(), Value::Object(fields));
                }
            }
        } else {
            changed.insert(key, json!({}));
        }
    }
    for (name, value) in old.iter().filter(|(_, value)| !value.is_null()) {
        if new.get(name).is_none_or(Value::is_null) && value.as_object().is_none_or(|map| !map.is_empty()) {
            removed.insert(format!("f:{name}"), json!({}));
        }
    }
}

/// Takes fields out of a set.
fn subtract(set: &mut Map<String, Value>, taken: &Map<String, Value>) {
    for (name, inner) in taken {
        let Some(Value::Object(fields)) = set.get_mut(name) else { continue };
        match inner.as_object() {
            Some(inner) if !inner.is_empty() && !fields.is_empty() => {
                subtract(fields, inner);
                if fields.is_empty() {
                    set.remove(name);
                }
            }
            _ => drop(set.remove(name)),
        }
    }
}

/// Adds fields to a set.
fn unite(set: &mut Map<String, Value>, more: Map<String, Value>) {
    for (name, inner) in more {
        match (set.get_mut(&name), inner) {
            (Some(Value::Object(fields)), Value::Object(inner)) => unite(fields, inner),
            (_, inner) => drop(set.insert(name, inner)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::node;

    /// A node after writes, each `(manager, subresource, object)`, and who owns what in the end.
    fn owners(writes: &[(&str, &str, Value)]) -> Vec<String> {
        let mut old = Value::Null;
        for (manager, subresource, object) in writes {
            let by = Writer::of(&Query::parse(&format!("fieldManager={manager}")), "", subresource);
            let mut new = object.clone();
            note(&node::KIND, &old, &mut new, &by, "2026-01-01T00:00:00Z");
            old = new;
        }
        json::list(&old, "/metadata/managedFields")
            .iter()
            .map(|entry| {
                format!(
                    "{} {} {}",
                    json::text(entry, "/manager"),
                    json::text(entry, "/subresource"),
                    entry["fieldsV1"]
                )
            })
            .collect()
    }

    #[test]
    fn an_update_takes_what_it_changes_from_all_others() {
        let node =
            |spec: Value, status: Value| json!({"metadata": {"name": "n"}, "spec": spec, "status": status});
        let list = |names: &[&str]| json!({"volumesAttached": names, "phase": "x"});
        let cases = [
            (
                "created",
                vec![("a", "", node(json!({"x": 1}), list(&[])))],
                vec![r#"a  {"f:spec":{"f:x":{}}}"#],
            ),
            (
                "changed by another",
                vec![
                    ("a", "", node(json!({"x": 1, "y": 1}), json!({}))),
                    ("b", "", node(json!({"x": 2, "y": 1}), json!({}))),
                ],
                vec![r#"a  {"f:spec":{"f:y":{}}}"#, r#"b  {"f:spec":{"f:x":{}}}"#],
            ),
            (
                "its own again",
                vec![
                    ("a", "", node(json!({"x": 1}), json!({}))),
                    ("a", "", node(json!({"x": 1, "y": 1}), json!({}))),
                ],
                vec![r#"a  {"f:spec":{"f:x":{},"f:y":{}}}"#],
            ),
            (
                "taken out: nobody's",
                vec![("a", "", node(json!({"x": 1}), json!({}))), ("b", "", node(json!({}), json!({})))],
                vec![],
            ),
            (
                "the status is another entry",
                vec![
                    ("a", "status", node(json!({}), list(&["v"]))),
                    ("b", "status", node(json!({"x": 1}), list(&["v", "w"]))),
                ],
                vec![
                    r#"a status {"f:status":{"f:phase":{}}}"#,
                    r#"b status {"f:status":{"f:volumesAttached":{}}}"#,
                ],
            ),
        ];
        for (name, writes, expected) in cases {
            assert_eq!(owners(&writes), expected, "{name}");
        }
    }

    #[test]
    fn a_manager_is_named_by_the_parameter_or_by_the_user_agent() {
        let name = |query: &str, agent: &str| Writer::of(&Query::parse(query), agent, "").manager;
        assert_eq!(name("fieldManager=me", "kubectl/v1"), "me");
        assert_eq!(
            name("", "kube-controller-manager/v1.36.0 (linux/amd64) kubernetes/1/attach"),
            "kube-controller-manager"
        );
        assert_eq!(name("", ""), "unknown");
        assert_eq!(name("", &"x".repeat(300)).len(), LONGEST_NAME);
    }
}
