//! Reading and writing single fields of an object that is a [`Value`].
//!
//! Paths are JSON pointers (`/spec/nodeName`). Objects already have the schema's shape, so a field of the
//! wrong type does not occur and reads as absent.

use serde_json::{Map, Value};

/// The text at a path; empty when there is none.
pub fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// The number at a path.
pub fn number(object: &Value, path: &str) -> Option<i64> {
    object.pointer(path).and_then(Value::as_i64)
}

/// The list at a path; empty when there is none.
pub fn list<'a>(object: &'a Value, path: &str) -> &'a [Value] {
    object.pointer(path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The map at a path.
pub fn map<'a>(object: &'a Value, path: &str) -> Option<&'a Map<String, Value>> {
    object.pointer(path).and_then(Value::as_object)
}

/// Whether something other than null is at the path.
pub fn is_set(object: &Value, path: &str) -> bool {
    object.pointer(path).is_some_and(|value| !value.is_null())
}

/// Writes a field, with the maps that lead to it.
pub fn set(object: &mut Value, path: &str, value: impl Into<Value>) {
    let mut place = object;
    for name in path.split('/').skip(1) {
        if !place.is_object() {
            *place = Value::Object(Map::new());
        }
        let Value::Object(fields) = place else { return };
        place = fields.entry(name.replace("~1", "/").replace("~0", "~")).or_insert(Value::Null);
    }
    *place = value.into();
}

/// Writes a field where there is none, an empty text or null.
pub fn set_default(object: &mut Value, path: &str, value: impl Into<Value>) {
    let is_missing = match object.pointer(path) {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    if is_missing {
        set(object, path, value);
    }
}

/// Writes a field where there is none or null; an empty text stays.
pub fn set_missing(object: &mut Value, path: &str, value: impl Into<Value>) {
    if !is_set(object, path) {
        set(object, path, value);
    }
}

/// Keeps an old field and the list that replaced it alike: the field is the list's first element,
/// or a part of it. Where both are given, the field is right.
pub fn pair_first(object: &mut Value, one: &str, all: &str, part: &str) {
    let single = text(object, one).to_owned();
    let first = list(object, all).first().map(|first| text(first, part).to_owned());
    if single.is_empty() {
        if let Some(first) = first {
            set(object, one, first);
        }
    } else if first.as_ref() != Some(&single) {
        let mut element = Value::Null;
        set(&mut element, part, single);
        set(object, all, vec![element]);
    }
}

/// Takes a field away.
pub fn remove(object: &mut Value, path: &str) -> Option<Value> {
    let (parent, name) = path.rsplit_once('/')?;
    object.pointer_mut(parent)?.as_object_mut()?.remove(&name.replace("~1", "/").replace("~0", "~"))
}

/// Makes a field what it is in another object, absent included.
pub fn copy(from: &Value, to: &mut Value, path: &str) {
    match from.pointer(path) {
        Some(value) => set(to, path, value.clone()),
        None => drop(remove(to, path)),
    }
}

/// Every element of the list at a path, to be changed.
pub fn elements_mut<'a>(object: &'a mut Value, path: &str) -> impl Iterator<Item = &'a mut Value> + use<'a> {
    object.pointer_mut(path).and_then(Value::as_array_mut).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_is_written_with_the_maps_that_lead_to_it() {
        let mut object = json!({"spec": null});
        set(&mut object, "/spec/csi/driver", "d");
        set_default(&mut object, "/spec/csi/driver", "other");
        assert_eq!(object, json!({"spec": {"csi": {"driver": "d"}}}));
        assert_eq!(remove(&mut object, "/spec/csi"), Some(json!({"driver": "d"})));
        copy(&json!({"status": 1}), &mut object, "/status");
        copy(&json!({}), &mut object, "/spec");
        assert_eq!(object, json!({"status": 1}));
    }
}
