//! VolumeAttributesClasses: a driver and its parameters, of which nothing may change.

use serde_json::Value;

use super::{
    columns::{AGE, Column, NAME, column},
    kind::{Kind, NameRule, Neighbours, Rules},
    volume::add_finalizer,
};
use crate::{
    json,
    status::{Causes, Refusal},
    validate::qualified_name,
};

/// kube-apiserver: plugin/pkg/admission/storage/storageobjectinuseprotection.
const PROTECTION: &str = "kubernetes.io/vac-protection";

/// The kind.
pub static KIND: Kind = Kind {
    group: "storage.k8s.io",
    plural: "volumeattributesclasses",
    singular: "volumeattributesclass",
    kind: "VolumeAttributesClass",
    short_names: &["vac"],
    namespaced: false,
    type_name: "storage/v1.VolumeAttributesClass",
    has_status: false,
    create_on_update: false,
    unconditional_update: true,
    returns_deleted: true,
    name_rule: NameRule::Subdomain,
    fields: &[],
    columns: COLUMNS,
    rules: &AttributesClass,
};

const COLUMNS: &[Column] =
    &[NAME, column("DriverName", |class, _| json::text(class, "/driverName").into()), AGE];

struct AttributesClass;

impl Rules for AttributesClass {
    fn admit_create(&self, object: &mut Value, _: &dyn Neighbours) -> Result<(), Refusal> {
        add_finalizer(object, PROTECTION);
        Ok(())
    }

    fn validate(&self, object: &Value, causes: &mut Causes) {
        let driver = json::text(object, "/driverName");
        if driver.is_empty() {
            causes.required("driverName", "");
        } else {
            qualified_name(&driver.to_ascii_lowercase(), "driverName", causes);
        }
        let parameters = json::map(object, "/parameters");
        if parameters.is_some_and(|parameters| parameters.contains_key("")) {
            causes.invalid("parameters", &"".into(), "field can not be empty.");
        }
        if parameters.is_none_or(serde_json::Map::is_empty) {
            causes.required("parameters", "must contain at least one key/value pair");
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, causes: &mut Causes) {
        for field in ["driverName", "parameters"] {
            if new.get(field) != old.get(field) {
                causes.forbidden(field, &format!("updates to {field} are forbidden."));
            }
        }
    }
}
