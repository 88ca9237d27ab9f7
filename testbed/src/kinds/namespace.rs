//! Namespaces. A delete marks a namespace as terminating, and the server does not empty it, as on an API
//! server without controllers.

use serde_json::{Value, json};

use super::{
    columns::{AGE, Column, NAME, column},
    kind::{Kind, NameRule, Rules, keep_spec, keep_status},
};
use crate::{json, status::Causes, validate::is_finalizer};

/// The kind.
pub static KIND: Kind = Kind {
    group: "",
    plural: "namespaces",
    singular: "namespace",
    kind: "Namespace",
    short_names: &["ns"],
    namespaced: false,
    type_name: "core/v1.Namespace",
    has_status: true,
    create_on_update: false,
    unconditional_update: true,
    returns_deleted: true,
    name_rule: NameRule::Label,
    fields: &[("status.phase", "/status/phase"), ("name", "/metadata/name")],
    columns: COLUMNS,
    rules: &Namespace,
};

/// Namespaces that are there from the start.
pub const PRESET: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// Namespaces that cannot be deleted.
pub const IMMORTAL: [&str; 3] = ["default", "kube-public", "kube-system"];

const COLUMNS: &[Column] =
    &[NAME, column("Status", |namespace, _| json::text(namespace, "/status/phase").into()), AGE];

struct Namespace;

impl Rules for Namespace {
    fn default(&self, object: &mut Value) {
        json::set_default(object, "/status/phase", "Active");
        label(object);
    }

    fn prepare_create(&self, object: &mut Value, _: &str) {
        json::set(object, "/status", json!({"phase": "Active"}));
        let mut finalizers = json::list(object, "/spec/finalizers").to_vec();
        if !finalizers.iter().any(|finalizer| finalizer == "kubernetes") {
            finalizers.push("kubernetes".into());
        }
        json::set(object, "/spec/finalizers", finalizers);
        label(object);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value) {
        keep_spec(new, old);
        keep_status(new, old);
    }

    fn prepare_status(&self, new: &mut Value, old: &Value, _: &str) {
        keep_spec(new, old);
    }

    fn validate(&self, object: &Value, causes: &mut Causes) {
        for finalizer in json::list(object, "/spec/finalizers") {
            if !is_finalizer(finalizer.as_str().unwrap_or_default()) {
                causes.invalid("spec.finalizers", finalizer, "not a standard finalizer nor fully qualified");
            }
        }
    }

    fn validate_status(&self, new: &Value, _: &Value, causes: &mut Causes) {
        let is_going = json::is_set(new, "/metadata/deletionTimestamp");
        let wanted = if is_going { "Terminating" } else { "Active" };
        if json::text(new, "/status/phase") != wanted {
            causes.invalid(
                "status.Phase",
                &json::text(new, "/status/phase").into(),
                "does not fit `deletionTimestamp`",
            );
        }
    }
}

fn label(object: &mut Value) {
    let name = json::text(object, "/metadata/name").to_owned();
    if !name.is_empty() {
        json::set(object, "/metadata/labels/kubernetes.io~1metadata.name", name);
    }
}
