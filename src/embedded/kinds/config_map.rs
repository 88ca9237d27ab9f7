//! ConfigMaps: texts by key.

use serde_json::Value;

use super::{
    Kind, NameRule, Rules,
    columns::{AGE, Column, NAME, column},
};
use crate::embedded::{json, status::Causes};

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
                size += value.as_str().map_or(0, str::len);
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

fn is_key(key: &str) -> bool {
    !key.is_empty()
        && key.len() <= KEY_LENGTH
        && key != "."
        && !key.starts_with("..")
        && key.chars().all(|char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.'))
}
