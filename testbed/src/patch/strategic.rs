//! Strategic merge: like a JSON merge patch, but lists with a merge key are merged by it.
//!
//! In: the schema (which says which lists those are), an object, a patch with its directives
//! (`$patch`, `$retainKeys`, `$setElementOrder/…`, `$deleteFromPrimitiveList/…`). Out: the merged
//! object. Lists without a merge key, such as `volumesAttached`, are replaced whole.

// kube-apiserver: apimachinery/pkg/util/strategicpatch/patch.go.

use serde_json::{Map, Value};

use crate::{
    schema::{Field, Shape, Type, Types},
    status::Refusal,
};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";

/// Merges a patch into an object of the named type.
///
/// # Errors
/// A directive that is unknown or in the wrong place, or an element without its merge key.
pub fn merge(types: &Types, name: &str, object: &mut Value, patch: &Value) -> Result<(), Refusal> {
    let (Value::Object(object), Value::Object(patch)) = (object, patch) else {
        return Err(Refusal::bad_request("the patch is not an object"));
    };
    Merge { types }.maps(types.get(name), object, patch)
}

struct Merge<'a> {
    types: &'a Types,
}

impl<'a> Merge<'a> {
    fn maps(
        &self,
        described: Option<&'a Type>,
        object: &mut Map<String, Value>,
        patch: &Map<String, Value>,
    ) -> Result<(), Refusal> {
        match patch.get(PATCH).map(Value::as_str) {
            None => {}
            Some(Some("replace")) => {
                *object = without_directives(patch);
                return Ok(());
            }
            Some(Some("delete")) => {
                object.clear();
                return Ok(());
            }
            // Upstream returns an untyped error here, which becomes a 500.
            Some(_) => return Err(Refusal::plain(500, "", "unknown patch directive")),
        }
        if let Some(keep) = patch.get(RETAIN_KEYS) {
            let Some(keep) = keep.as_array() else {
                return Err(Refusal::bad_request("$retainKeys is not a list"));
            };
            object.retain(|key, _| keep.iter().any(|kept| kept == key));
        }
        for (key, value) in patch {
            if let Some(name) = key.strip_prefix(DELETE_FROM) {
                let gone = value.as_array().map(Vec::as_slice).unwrap_or_default();
                if let Some(Value::Array(list)) = object.get_mut(name) {
                    list.retain(|element| !gone.contains(element));
                }
                continue;
            }
            if let Some(name) = key.strip_prefix(ORDER) {
                if !patch.contains_key(name) {
                    let merge_key = described
                        .and_then(|described| described.field(name))
                        .and_then(|field| field.merge_key);
                    if let (Some(Value::Array(list)), Value::Array(order)) = (object.get_mut(name), value) {
                        let before = list.clone();
                        reorder(list, merge_key.unwrap_or_default(), order, &before);
                    }
                }
                continue;
            }
            if key.starts_with('$') {
                continue;
            }
            let field = described.and_then(|described| described.field(key));
            let order = patch.get(&format!("{ORDER}{key}"));
            self.field(field, object, key, value, order)?;
        }
        Ok(())
    }

    fn field(
        &self,
        field: Option<&'a Field>,
        object: &mut Map<String, Value>,
        key: &str,
        value: &Value,
        order: Option<&Value>,
    ) -> Result<(), Refusal> {
        let shape = field.map(|field| field.shape.target());
        match (value, object.get_mut(key)) {
            (Value::Null, _) => {
                object.remove(key);
            }
            (Value::Object(patch), Some(Value::Object(inner))) => {
                let described = match shape {
                    Some(Shape::Named(name)) => self.types.get(name),
                    _ => None,
                };
                self.maps(described, inner, patch)?;
            }
            (Value::Array(patch), Some(Value::Array(list))) => {
                match field.and_then(|field| field.merge_key) {
                    Some("") => union(list, patch, order),
                    Some(merge_key) => {
                        let described = match shape {
                            Some(Shape::List(element)) => match element.target() {
                                Shape::Named(name) => self.types.get(name),
                                _ => None,
                            },
                            _ => None,
                        };
                        self.lists(described, merge_key, list, patch, order)?;
                    }
                    None => list.clone_from(patch),
                }
            }
            // Upstream's rule, surprising as it is: a directive without a counterpart goes, and all beside it.
            (value, _) if value.get(PATCH).is_some() => {
                object.remove(key);
            }
            (value, _) => {
                object.insert(key.to_owned(), taken(value));
            }
        }
        Ok(())
    }

    fn lists(
        &self,
        described: Option<&'a Type>,
        merge_key: &str,
        list: &mut Vec<Value>,
        patch: &[Value],
        order: Option<&Value>,
    ) -> Result<(), Refusal> {
        let before = list.clone();
        if patch.iter().any(|element| element.get(PATCH).is_some_and(|directive| directive == "replace")) {
            list.clear();
        }
        let mut given = Vec::new();
        for element in patch {
            let Value::Object(element) = element else {
                return Err(Refusal::bad_request(format!(
                    "an element of a list merged by {merge_key} is not an object"
                )));
            };
            let directive = element.get(PATCH).and_then(Value::as_str).unwrap_or("merge");
            let Some(id) = element.get(merge_key) else {
                if directive == "replace" {
                    continue;
                }
                let message = format!("map: {element:?} does not contain declared merge key: {merge_key}");
                return Err(Refusal::plain(500, "", message));
            };
            if directive == "delete" {
                list.retain(|other| other.get(merge_key) != Some(id));
                continue;
            }
            given.push(Value::Object(element.clone()));
            match list.iter_mut().find(|other| other.get(merge_key) == Some(id)) {
                Some(Value::Object(other)) => self.maps(described, other, element)?,
                _ => list.push(Value::Object(without_directives(element))),
            }
        }
        reorder(list, merge_key, order.and_then(Value::as_array).unwrap_or(&given), &before);
        Ok(())
    }
}

fn union(list: &mut Vec<Value>, patch: &[Value], order: Option<&Value>) {
    let before = list.clone();
    for element in patch {
        if !list.contains(element) {
            list.push(element.clone());
        }
    }
    reorder(list, "", order.and_then(Value::as_array).map_or(patch, Vec::as_slice), &before);
}

/// Orders a merged list: elements that the patch names in the patch's order, the others in theirs.
// kube-apiserver: apimachinery/pkg/util/strategicpatch/patch.go, normalizeElementOrder.
fn reorder(list: &mut Vec<Value>, merge_key: &str, order: &[Value], before: &[Value]) {
    let id = |element: &Value| {
        if merge_key.is_empty() {
            element.clone()
        } else {
            element.get(merge_key).cloned().unwrap_or_default()
        }
    };
    let before: Vec<Value> = before.iter().map(id).collect();
    let order: Vec<Value> = order.iter().map(id).collect();
    let place = |element: &Value, ids: &[Value]| ids.iter().position(|other| *other == id(element));
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        list.drain(..).partition(|element| place(element, &order).is_some());
    named.sort_by_key(|element| place(element, &order));
    others.sort_by_key(|element| place(element, &before).unwrap_or(usize::MAX));
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let is_other_first = match (others.peek(), named.peek()) {
            (Some(other), Some(name)) => match (place(other, &before), place(name, &before)) {
                (Some(other), Some(name)) => other < name,
                _ => false,
            },
            (Some(_), None) => true,
            (None, _) => false,
        };
        let next = if is_other_first { others.next() } else { named.next() };
        match next {
            Some(element) => list.push(element),
            None => return,
        }
    }
}

/// A value that had no counterpart: nulls and directives in it mean nothing.
fn taken(value: &Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(without_directives(fields)),
        Value::Array(elements) => {
            let is_deletion = |element: &&Value| element.get(PATCH).is_some();
            Value::Array(elements.iter().filter(|element| !is_deletion(element)).map(taken).collect())
        }
        other => other.clone(),
    }
}

fn without_directives(fields: &Map<String, Value>) -> Map<String, Value> {
    let mut kept = Map::new();
    for (key, value) in fields {
        if !key.starts_with('$') && !value.is_null() && value.get(PATCH).is_none() {
            kept.insert(key.clone(), taken(value));
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::types;

    #[test]
    fn lists_merge_by_key_or_are_replaced() {
        let mut node = json!({
            "metadata": {"finalizers": ["a/x"]},
            "status": {
                "conditions": [{"type": "Ready", "status": "False", "reason": "r"}, {"type": "Disk", "status": "False"}],
                "volumesAttached": [{"name": "v1", "devicePath": ""}],
            },
        });
        let patch = json!({
            "metadata": {"finalizers": ["b/y"]},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}, {"type": "Disk", "$patch": "delete"}],
                "volumesAttached": [{"name": "v2", "devicePath": ""}],
            },
        });
        merge(types(), "core/v1.Node", &mut node, &patch).unwrap();
        let expected = json!({
            "metadata": {"finalizers": ["b/y", "a/x"]},
            "status": {
                "conditions": [{"type": "Ready", "status": "True", "reason": "r"}],
                "volumesAttached": [{"name": "v2", "devicePath": ""}],
            },
        });
        assert_eq!(node, expected);
    }

    #[test]
    fn directives_replace_retain_and_order() {
        let mut pod = json!({"spec": {
            "volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {}}],
            "nodeSelector": {"x": "1"},
        }});
        let patch = json!({"spec": {
            "$setElementOrder/volumes": [{"name": "b"}, {"name": "a"}],
            "volumes": [{"name": "a", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}],
            "nodeSelector": {"$patch": "replace", "y": "2"},
        }});
        merge(types(), "core/v1.Pod", &mut pod, &patch).unwrap();
        let expected = json!({"spec": {
            "volumes": [{"name": "b", "emptyDir": {}}, {"name": "a", "hostPath": {"path": "/"}}],
            "nodeSelector": {"y": "2"},
        }});
        assert_eq!(pod, expected);
        let nameless = json!({"spec": {"volumes": [{"emptyDir": {}}]}});
        assert_eq!(merge(types(), "core/v1.Pod", &mut pod, &nameless).unwrap_err().code(), 500);
    }
}
