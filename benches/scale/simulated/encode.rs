//! JSON into the API server's protobuf, by the pinned release's field numbers (`tests/cases/wire/fields.txt`).
//!
//! In: an object as JSON. Out: its message, alone or in the envelope of a single answer, and the frame of a watch. Fields
//! that the file does not name are left out. [`super::objects`] checks what comes out against the bytes of the pinned
//! release's own serializers.

use std::collections::HashMap;

use k8s_openapi::jiff::Timestamp;
use prost::encoding::{WireType, encode_key, encode_varint};
use serde_json::{Value, json};

const FIELDS: &str = include_str!("../../../tests/cases/wire/fields.txt");

/// What every message begins with that is no part of another one.
const PREFIX: &[u8] = b"k8s\0";

/// Messages whose fields stand in JSON beside those of the message that they are part of.
const INLINE: [&str; 4] = ["handler", "localObjectReference", "persistentVolumeSource", "volumeSource"];

struct Field {
    name: &'static str,
    number: u32,
    of: &'static str,
}

/// The fields of each message.
pub struct Schema(HashMap<&'static str, Vec<Field>>);

impl Schema {
    /// As it is committed.
    pub fn read() -> Self {
        let mut messages: HashMap<_, Vec<Field>> = HashMap::new();
        let mut message = "";
        for line in FIELDS.lines().filter(|line| !line.starts_with('#')) {
            let begins = line.split_once(':').filter(|_| !line.starts_with(' '));
            let (name, fields) = begins.unwrap_or((message, line));
            message = name;
            let of_message = messages.entry(message).or_default();
            for field in fields.split(';').map(str::trim).filter(|field| !field.is_empty()) {
                let [name, number, of] = field.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
                let of = of.trim_start_matches("[]");
                let of = if of.starts_with("map<") { of } else { of.rsplit('.').next().unwrap() };
                of_message.push(Field { name, number: number.parse().unwrap(), of });
            }
        }
        Self(messages)
    }

    /// Whether it has a message of this name.
    pub fn has(&self, message: &str) -> bool {
        self.0.contains_key(message)
    }

    /// A message.
    pub fn message(&self, message: &str, value: &Value) -> Vec<u8> {
        let mut bytes = Vec::new();
        let fields = self.0.get(message).unwrap_or_else(|| panic!("fields.txt has no {message}"));
        for field in fields {
            match value.get(field.name) {
                None if INLINE.contains(&field.name) => self.field(&mut bytes, field, value),
                None | Some(Value::Null) => {}
                Some(Value::Array(items)) => {
                    for item in items {
                        self.field(&mut bytes, field, item);
                    }
                }
                Some(value) => self.field(&mut bytes, field, value),
            }
        }
        bytes
    }

    fn field(&self, bytes: &mut Vec<u8>, field: &Field, value: &Value) {
        let number = field.number;
        match field.of {
            "string" => put_bytes(bytes, number, text(value).as_bytes()),
            "bool" => put_number(bytes, number, u64::from(value.as_bool().unwrap_or_default())),
            "int32" | "int64" => {
                put_number(bytes, number, value.as_i64().unwrap_or_default().cast_unsigned());
            }
            "Time" => put_bytes(bytes, number, &time(text(value))),
            "Quantity" => {
                let mut quantity = Vec::new();
                put_bytes(&mut quantity, 1, text(value).as_bytes());
                put_bytes(bytes, number, &quantity);
            }
            "FieldsV1" => {
                let mut fields = Vec::new();
                put_bytes(&mut fields, 1, value.to_string().as_bytes());
                put_bytes(bytes, number, &fields);
            }
            "IntOrString" => {
                let value = match value {
                    Value::String(text) => json!({ "type": 1, "strVal": text }),
                    number => json!({ "type": 0, "intVal": number }),
                };
                put_bytes(bytes, number, &self.message(field.of, &value));
            }
            map if map.starts_with("map<") => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    let mut entry = Vec::new();
                    put_bytes(&mut entry, 1, key.as_bytes());
                    let is_text = map.ends_with(" string>");
                    let value_field =
                        Field { name: "", number: 2, of: if is_text { "string" } else { "Quantity" } };
                    self.field(&mut entry, &value_field, value);
                    put_bytes(bytes, number, &entry);
                }
            }
            message => put_bytes(bytes, number, &self.message(message, value)),
        }
    }

    /// A single answer.
    pub fn answer(&self, object: &Value) -> Vec<u8> {
        let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let raw = self.message(kind, object);
        let mut bytes = envelope(version, kind, raw.len());
        bytes.extend_from_slice(&raw);
        bytes.extend_from_slice(ENVELOPE_END);
        bytes
    }

    /// A frame of a watch, of the event in JSON.
    pub fn frame(&self, event: &Value) -> Vec<u8> {
        let mut object = Vec::new();
        put_bytes(&mut object, 1, &self.answer(&event["object"]));
        let mut bytes = Vec::new();
        put_bytes(&mut bytes, 1, text(&event["type"]).as_bytes());
        put_bytes(&mut bytes, 2, &object);
        let length = u32::try_from(bytes.len()).expect("the length of a frame");
        [&length.to_be_bytes(), &bytes[..]].concat()
    }
}

/// What follows the message in an envelope: neither an encoding nor a type of its content.
pub const ENVELOPE_END: &[u8] = &[3 << 3 | 2, 0, 4 << 3 | 2, 0];

/// The beginning of an envelope, up to the message of so many bytes.
pub fn envelope(version: &str, kind: &str, size: usize) -> Vec<u8> {
    let mut of = Vec::new();
    put_bytes(&mut of, 1, version.as_bytes());
    put_bytes(&mut of, 2, kind.as_bytes());
    let mut bytes = PREFIX.to_vec();
    put_bytes(&mut bytes, 1, &of);
    put_header(&mut bytes, 2, size);
    bytes
}

/// A field that is a text or a message.
pub fn put_bytes(bytes: &mut Vec<u8>, number: u32, value: &[u8]) {
    put_header(bytes, number, value.len());
    bytes.extend_from_slice(value);
}

/// What is before the value of such a field.
pub fn put_header(bytes: &mut Vec<u8>, number: u32, size: usize) {
    encode_key(number, WireType::LengthDelimited, bytes);
    encode_varint(size as u64, bytes);
}

fn put_number(bytes: &mut Vec<u8>, number: u32, value: u64) {
    encode_key(number, WireType::Varint, bytes);
    encode_varint(value, bytes);
}

fn time(text: &str) -> Vec<u8> {
    let time: Timestamp = text.parse().expect("a time");
    let mut bytes = Vec::new();
    put_number(&mut bytes, 1, time.as_second().cast_unsigned());
    put_number(&mut bytes, 2, i64::from(time.subsec_nanosecond()).cast_unsigned());
    bytes
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
