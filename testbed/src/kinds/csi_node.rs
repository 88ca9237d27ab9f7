//! CSINodes: the drivers that a node's kubelet has registered.

use serde_json::Value;

use super::{
    columns::{AGE, Column, NAME, column},
    kind::{Kind, NameRule, Rules},
    volume::driver_name,
};
use crate::{json, status::Causes, validate::qualified_name};

/// Longest node ID of a driver.
const NODE_ID_LENGTH: usize = 256;

/// The kind.
pub static KIND: Kind = Kind {
    group: "storage.k8s.io",
    plural: "csinodes",
    singular: "csinode",
    kind: "CSINode",
    short_names: &[],
    namespaced: false,
    type_name: "storage/v1.CSINode",
    has_status: false,
    create_on_update: false,
    unconditional_update: false,
    returns_deleted: true,
    name_rule: NameRule::Subdomain,
    fields: &[],
    columns: COLUMNS,
    rules: &Node,
};

const COLUMNS: &[Column] = &[
    NAME,
    Column { kind: "integer", ..column("Drivers", |node, _| json::list(node, "/spec/drivers").len().into()) },
    AGE,
];

struct Node;

impl Rules for Node {
    fn validate(&self, object: &Value, causes: &mut Causes) {
        let mut names = Vec::new();
        for (index, driver) in json::list(object, "/spec/drivers").iter().enumerate() {
            let field = format!("spec.drivers[{index}]");
            let name = json::text(driver, "/name");
            driver_name(name, &format!("{field}.name"), causes);
            let id = json::text(driver, "/nodeID");
            if id.is_empty() {
                causes.required(format!("{field}.nodeID"), "");
            }
            if id.len() > NODE_ID_LENGTH {
                causes.invalid(format!("{field}.nodeID"), &id.into(), "must be 256 characters or less");
            }
            if let Some(count) = json::number(driver, "/allocatable/count").filter(|count| *count < 0) {
                causes.invalid(format!("{field}.allocatable.count"), &count.into(), "must not be negative");
            }
            if names.contains(&name) {
                causes.duplicate(format!("{field}.name"), &name.into());
            }
            names.push(name);
            let mut keys = Vec::new();
            for key in json::list(driver, "/topologyKeys") {
                if key == "" {
                    causes.required(&field, "");
                }
                if keys.contains(&key) {
                    causes.duplicate(&field, key);
                }
                keys.push(key);
                qualified_name(key.as_str().unwrap_or_default(), &field, causes);
            }
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, causes: &mut Causes) {
        for before in json::list(old, "/spec/drivers") {
            for after in json::list(new, "/spec/drivers") {
                let (mut before, mut after) = (before.clone(), after.clone());
                json::remove(&mut before, "/allocatable");
                json::remove(&mut after, "/allocatable");
                if before.get("name") == after.get("name") && before != after {
                    causes.invalid("spec.drivers", &after, "field is immutable");
                }
            }
        }
    }
}
