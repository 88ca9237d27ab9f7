//! StorageClasses: defaults, the choice of the default class, and the fields that may not change.

use serde_json::Value;

use super::{
    columns::{AGE, Column, NAME, column, flag, text_or},
    kind::{Kind, NameRule, Rules, immutable},
};
use crate::{
    json,
    status::Causes,
    validate::{one_of, qualified_name},
};

/// Paths of the annotations that mark the default, today's first.
const DEFAULT_MARKS: [&str; 2] = [
    "/metadata/annotations/storageclass.kubernetes.io~1is-default-class",
    "/metadata/annotations/storageclass.beta.kubernetes.io~1is-default-class",
];

/// The kind.
pub static KIND: Kind = Kind {
    group: "storage.k8s.io",
    plural: "storageclasses",
    singular: "storageclass",
    kind: "StorageClass",
    short_names: &["sc"],
    namespaced: false,
    type_name: "storage/v1.StorageClass",
    has_status: false,
    create_on_update: false,
    unconditional_update: true,
    returns_deleted: true,
    name_rule: NameRule::Subdomain,
    fields: &[],
    columns: COLUMNS,
    rules: &Class,
};

const COLUMNS: &[Column] = &[
    Column {
        cell: |class, _| {
            let name = json::text(class, "/metadata/name");
            if is_default(class) { format!("{name} (default)").into() } else { name.into() }
        },
        ..NAME
    },
    column("Provisioner", |class, _| json::text(class, "/provisioner").into()),
    column("ReclaimPolicy", |class, _| text_or(class, "/reclaimPolicy", "Delete")),
    column("VolumeBindingMode", |class, _| text_or(class, "/volumeBindingMode", "Immediate")),
    column("AllowVolumeExpansion", |class, _| flag(class, "/allowVolumeExpansion")),
    AGE,
];

fn is_default(class: &Value) -> bool {
    DEFAULT_MARKS.iter().any(|path| json::text(class, path) == "true")
}

/// The class of claims that name none: of all marked ones the newest, then the first by name.
pub fn default_class(classes: &[&Value]) -> Option<String> {
    let mut best: Option<(&str, &str)> = None;
    for class in classes.iter().filter(|class| is_default(class)) {
        let found = (json::text(class, "/metadata/creationTimestamp"), json::text(class, "/metadata/name"));
        let is_better = best.is_none_or(|(time, name)| found.0 > time || (found.0 == time && found.1 < name));
        if is_better {
            best = Some(found);
        }
    }
    best.map(|(_, name)| name.to_owned())
}

struct Class;

impl Rules for Class {
    fn default(&self, object: &mut Value) {
        if !json::is_set(object, "/reclaimPolicy") {
            json::set(object, "/reclaimPolicy", "Delete");
        }
        if !json::is_set(object, "/volumeBindingMode") {
            json::set(object, "/volumeBindingMode", "Immediate");
        }
    }

    fn validate(&self, object: &Value, causes: &mut Causes) {
        let provisioner = json::text(object, "/provisioner");
        if provisioner.is_empty() {
            causes.required("provisioner", "");
        } else {
            qualified_name(&provisioner.to_ascii_lowercase(), "provisioner", causes);
        }
        if json::map(object, "/parameters").is_some_and(|parameters| parameters.contains_key("")) {
            causes.invalid("parameters", &"".into(), "field can not be empty.");
        }
        let policy = json::text(object, "/reclaimPolicy");
        if !policy.is_empty() {
            one_of(policy, &["Delete", "Retain"], "reclaimPolicy", causes);
        }
        let modes = ["Immediate", "WaitForFirstConsumer"];
        one_of(json::text(object, "/volumeBindingMode"), &modes, "volumeBindingMode", causes);
    }

    fn validate_update(&self, new: &Value, old: &Value, causes: &mut Causes) {
        for field in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
            immutable(new, old, &format!("/{field}"), field, causes);
        }
    }
}
