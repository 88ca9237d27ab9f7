//! Brings a value into the shape of its type, as if it were decoded into Go's struct and encoded again.
//!
//! Unknown fields are dropped and named; a value of the wrong type is an error; empty values are
//! left out or written out as the field says; times and quantities get their canonical text.

use k8s_openapi::{ByteString, jiff::Timestamp};
use serde::Deserialize;
use serde_json::{Map, Value};
use thiserror::Error;

use super::{Field, Shape, Types, quantity};
use crate::clock::{microseconds_text, seconds_text};

/// A value that its field cannot hold.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{path}: {detail}")]
pub struct DecodeError {
    path: String,
    detail: String,
}

/// A decoded object.
#[derive(Debug)]
pub struct Decoded {
    /// The object in its type's shape.
    pub value: Value,
    /// Fields that its type does not have, by path.
    pub unknown: Vec<String>,
}

/// Decodes a value as a type of the table.
///
/// # Errors
/// The first value that its field cannot hold.
pub fn decode(types: &Types, name: &'static str, value: Value) -> Result<Decoded, DecodeError> {
    let mut decoder = Decoder { types, unknown: Vec::new() };
    let value = decoder.value(&Shape::Named(name), value, "")?;
    Ok(Decoded { value, unknown: decoder.unknown })
}

struct Decoder<'a> {
    types: &'a Types,
    unknown: Vec<String>,
}

impl Decoder<'_> {
    fn value(&mut self, shape: &Shape, value: Value, path: &str) -> Result<Value, DecodeError> {
        let wrong = |value: &Value, wanted: &str| {
            let found = match value {
                Value::Null => "null",
                Value::Bool(_) => "bool",
                Value::Number(_) => "number",
                Value::String(_) => "string",
                Value::Array(_) => "array",
                Value::Object(_) => "object",
            };
            DecodeError { path: path.to_owned(), detail: format!("cannot unmarshal {found} into {wanted}") }
        };
        Ok(match (shape, value) {
            (Shape::Named(name), Value::Null) => self.fields(name, Map::new(), path)?,
            (Shape::Named(name), Value::Object(fields)) => self.fields(name, fields, path)?,
            (
                Shape::Pointer(_) | Shape::List(_) | Shape::Map(_) | Shape::Time | Shape::MicroTime,
                Value::Null,
            ) => Value::Null,
            (Shape::Pointer(inner), value) => self.value(inner, value, path)?,
            (Shape::List(inner), Value::Array(elements)) => {
                let mut list = Vec::with_capacity(elements.len());
                for (index, element) in elements.into_iter().enumerate() {
                    list.push(self.value(inner, element, &format!("{path}[{index}]"))?);
                }
                Value::Array(list)
            }
            (Shape::Map(inner), Value::Object(entries)) => {
                let mut map = Map::new();
                for (key, entry) in entries {
                    let path = format!("{path}.{key}");
                    map.insert(key, self.value(inner, entry, &path)?);
                }
                Value::Object(map)
            }
            (Shape::Text, Value::String(text)) => Value::String(text),
            (Shape::Bytes, Value::String(text)) => {
                let value = Value::String(text);
                if ByteString::deserialize(&value).is_err() {
                    return Err(DecodeError {
                        path: path.to_owned(),
                        detail: "illegal base64 data".to_owned(),
                    });
                }
                value
            }
            (Shape::Text | Shape::Bytes, Value::Null) => Value::String(String::new()),
            (Shape::Bool, Value::Bool(flag)) => Value::Bool(flag),
            (Shape::Bool, Value::Null) => Value::Bool(false),
            (Shape::Integer(bits), Value::Number(number)) => match number.as_i64() {
                Some(value) if *bits == 64 || i32::try_from(value).is_ok() => value.into(),
                _ => return Err(wrong(&Value::Number(number), &format!("int{bits}"))),
            },
            (Shape::Integer(_) | Shape::Float | Shape::IntOrString, Value::Null) => 0.into(),
            (Shape::Float, Value::Number(number)) => Value::Number(number),
            (Shape::Any, value) | (Shape::IntOrString, value @ (Value::Number(_) | Value::String(_))) => {
                value
            }
            (Shape::Quantity, Value::Null) => "0".into(),
            (Shape::Quantity, Value::Number(number)) => quantity(&number.to_string(), path)?,
            (Shape::Quantity, Value::String(text)) => quantity(&text, path)?,
            (Shape::Time | Shape::MicroTime, Value::String(text)) => {
                // kube-apiserver: MicroTime is read with exactly six digits.
                let has_micros = text
                    .split_once('.')
                    .is_some_and(|(_, rest)| rest.bytes().take_while(u8::is_ascii_digit).count() == 6);
                let time = text.parse::<Timestamp>().ok();
                let Some(time) = time.filter(|_| *shape == Shape::Time || has_micros) else {
                    return Err(DecodeError {
                        path: path.to_owned(),
                        detail: format!("parsing time {text:?}"),
                    });
                };
                Value::String(if *shape == Shape::Time {
                    seconds_text(time)
                } else {
                    microseconds_text(time)
                })
            }
            (shape, value) => return Err(wrong(&value, &format!("{shape:?}"))),
        })
    }

    fn fields(
        &mut self,
        name: &str,
        mut given: Map<String, Value>,
        path: &str,
    ) -> Result<Value, DecodeError> {
        let types = self.types;
        let mut object = Map::new();
        let Some(described) = types.get(name) else { return Ok(Value::Object(given)) };
        for field in &described.fields {
            let value = given.remove(field.name);
            if value.is_none() && field.omit_empty {
                continue;
            }
            let path = join(path, field.name);
            let value = self.value(&field.shape, value.unwrap_or(Value::Null), &path)?;
            if field.omit_empty && is_empty(field, &value) {
                continue;
            }
            // Stored as protobuf, which cannot tell an empty list or map from none.
            let is_empty_list = value.as_array().is_some_and(Vec::is_empty);
            let is_empty_map =
                matches!(field.shape, Shape::Map(_)) && value.as_object().is_some_and(Map::is_empty);
            let value = if is_empty_list || is_empty_map { Value::Null } else { value };
            object.insert(field.name.to_owned(), value);
        }
        for name in given.keys() {
            self.unknown.push(join(path, name));
        }
        Ok(Value::Object(object))
    }
}

fn quantity(text: &str, path: &str) -> Result<Value, DecodeError> {
    match quantity::canonical(text) {
        Some(text) => Ok(Value::String(text)),
        None => Err(DecodeError { path: path.to_owned(), detail: format!("{text:?} is not a quantity") }),
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// Go's `omitempty`: a pointer is empty when nil, and only then.
fn is_empty(field: &Field, value: &Value) -> bool {
    if matches!(field.shape, Shape::Pointer(_)) {
        return value.is_null();
    }
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::types;

    #[test]
    fn empty_values_are_left_out_or_written_out_as_in_go() {
        let claim = json!({
            "metadata": {"name": "c", "labels": {}, "finalizers": []},
            "spec": {"storageClassName": "", "volumeName": "", "accessModes": [], "what": 1,
                "resources": {"requests": {"storage": "1024Mi"}}},
        });
        let decoded = decode(types(), "core/v1.PersistentVolumeClaim", claim).unwrap();
        assert_eq!(decoded.unknown, ["spec.what"]);
        let expected = json!({
            "metadata": {"name": "c"},
            "spec": {"storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}},
            "status": {},
        });
        assert_eq!(decoded.value, expected);
    }

    #[test]
    fn a_wrong_type_names_its_path() {
        let pod = json!({"spec": {"containers": [{"name": 1}]}});
        let error = decode(types(), "core/v1.Pod", pod).unwrap_err();
        assert_eq!(error.to_string(), "spec.containers[0].name: cannot unmarshal number into Text");
        let node = json!({"spec": {"unschedulable": "yes"}});
        assert!(decode(types(), "core/v1.Node", node).is_err());
    }
}
