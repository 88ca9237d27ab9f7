//! ConfigMaps: texts by key.

use serde_json::Value;

use super::{
    columns::{AGE, Column, NAME, column},
    kind::{Kind, NameRule, Rules},
};
use crate::{json, status::Causes};

/// Longest sum of all values, in bytes.
const SIZE: usize = 1 << 20;
/// Longest key.
const KEY_LENGTH: usize = 253;

/// The kind.
pub static KIND: Kind = Kind {
    group: "",
    plural: "configmaps",
    singular: "configmap",
    kind: "ConfigMap",
    short_names: &["cm"],
    namespaced: true,
    type_name: "core/v1.ConfigMap",
    has_status: false,
    create_on_update: false,
    unconditional_update: true,
    returns_deleted: false,
    name_rule: NameRule::Subdomain,
    fields: &[],
    columns: COLUMNS,
    rules: &ConfigMap,
};

const COLUMNS: &[Column] = &[
    NAME,
    Column {
        kind: "integer",
        ..column("Data", |object, _| (length(object, "/data") + length(object, "/binaryData")).into())
    },
    AGE,
];

fn length(object: &Value, path: &str) -> usize {
    json::map(object, path).map_or(0, serde_json::Map::len)
}

struct ConfigMap;

impl Rules for ConfigMap {
    // kube-apiserver: pkg/apis/core/validation/validation.go, ValidateConfigMap.
    fn validate(&self, object: &Value, causes: &mut Causes) {
        let mut size = 0;
        for field in ["data", "binaryData"] {
            for (key, value) in json::map(object, &format!("/{field}")).into_iter().flatten() {
                let path = format!("{field}[{key}]");
                if !is_key(key) {
                    let detail =
                        "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
                    causes.invalid(&path, &key.as_str().into(), detail);
                }
                let is_twice = field == "data"
                    && json::map(object, "/binaryData").is_some_and(|binary| binary.contains_key(key));
                if is_twice {
                    causes.invalid(&path, &key.as_str().into(), "duplicate of key present in binaryData");
                }
                let text = value.as_str().unwrap_or_default();
                size += if field == "data" { text.len() } else { decoded_length(text) };
            }
        }
        if size > SIZE {
            causes.too_long("", SIZE);
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, causes: &mut Causes) {
        let is_immutable = |object: &Value| object.pointer("/immutable") == Some(&Value::Bool(true));
        if !is_immutable(old) {
            return;
        }
        let detail = "field is immutable when `immutable` is set";
        if !is_immutable(new) {
            causes.forbidden("immutable", detail);
        }
        for field in ["data", "binaryData"] {
            if new.get(field) != old.get(field) {
                causes.forbidden(field, detail);
            }
        }
    }
}

/// Bytes that a base64 text stands for: three for four characters that are not padding. That it is
/// base64 has been checked when it was decoded.
fn decoded_length(text: &str) -> usize {
    text.trim_end_matches('=').len() * 3 / 4
}

fn is_key(key: &str) -> bool {
    !key.is_empty()
        && key.len() <= KEY_LENGTH
        && key != "."
        && !key.starts_with("..")
        && key.chars().all(|char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn binary_data_counts_as_what_it_stands_for() {
        for (text, bytes) in [("", 0), ("aA==", 1), ("aGU=", 2), ("aGVs", 3), ("aGVsbG8=", 5)] {
            assert_eq!(decoded_length(text), bytes, "{text}");
        }
        let is_right = |bytes: usize| {
            let mut causes = Causes::default();
            let text = "A".repeat(bytes / 3 * 4);
            ConfigMap.validate(&json!({"data": {"a": "x"}, "binaryData": {"b": text}}), &mut causes);
            causes.0.is_empty()
        };
        assert!(is_right(900 << 10));
        assert!(is_right(SIZE - 1));
        assert!(!is_right(SIZE + 2));
    }
}
