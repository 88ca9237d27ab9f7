//! What a kind is: its generic properties as data, and its rules; and what the rules of several kinds need.

use std::fmt;

use serde_json::Value;

use super::columns::Column;
use crate::{
    json,
    status::{Causes, Refusal},
};

/// What may follow from other objects: admission reads them.
pub trait Neighbours {
    /// All objects of a kind.
    fn all(&self, kind: &Kind) -> Vec<&Value>;
}

/// What is particular to a kind.
///
/// Objects come in the shape of their type. The order on a create is: defaults, admission,
/// preparation, validation; on an update the same, and then admission's review.
pub trait Rules: Sync {
    /// Fills in what decoding fills in.
    fn default(&self, _object: &mut Value) {}

    /// Changes or refuses a new object as the admission plugins that are on by default do.
    ///
    /// # Errors
    /// The plugin's refusal.
    fn admit_create(&self, _object: &mut Value, _neighbours: &dyn Neighbours) -> Result<(), Refusal> {
        Ok(())
    }

    /// Changes an update as the admission plugins that are on by default do.
    fn admit_update(&self, _new: &mut Value, _old: &Value) {}

    /// Refuses a valid update as the admission plugins that are on by default do.
    ///
    /// # Errors
    /// The plugin's refusal.
    fn review_update(&self, _new: &Value, _old: &Value, _neighbours: &dyn Neighbours) -> Result<(), Refusal> {
        Ok(())
    }

    /// Resets what a create may not set.
    fn prepare_create(&self, _object: &mut Value, _now: &str) {}

    /// Resets what an update may not change.
    fn prepare_update(&self, _new: &mut Value, _old: &Value) {}

    /// Resets what an update of the status may not change.
    fn prepare_status(&self, _new: &mut Value, _old: &Value, _now: &str) {}

    /// Checks an object.
    fn validate(&self, _object: &Value, _causes: &mut Causes) {}

    /// Checks what changed. [`Rules::validate`] has run.
    fn validate_update(&self, _new: &Value, _old: &Value, _causes: &mut Causes) {}

    /// Checks a change of the status.
    fn validate_status(&self, _new: &Value, _old: &Value, _causes: &mut Causes) {}
}

/// What a name has to look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// DNS subdomain.
    Subdomain,
    /// DNS label.
    Label,
    /// Anything that fits into a path.
    PathSegment,
}

/// A kind.
#[expect(clippy::struct_excessive_bools, reason = "independent facts of the API, each read alone")]
pub struct Kind {
    /// API group; empty for core. The version is always v1.
    pub group: &'static str,
    /// Resource name.
    pub plural: &'static str,
    /// Singular resource name.
    pub singular: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// What people type.
    pub short_names: &'static [&'static str],
    /// Does it live in namespaces?
    pub namespaced: bool,
    /// Name in the schema.
    pub type_name: &'static str,
    /// Has it a status subresource?
    pub has_status: bool,
    /// PUT of a name that does not exist creates it.
    pub create_on_update: bool,
    /// PUT without a revision is allowed.
    pub unconditional_update: bool,
    /// DELETE answers with the object instead of a `Status`.
    pub returns_deleted: bool,
    /// What its names look like.
    pub name_rule: NameRule,
    /// Field selectors: label and path.
    pub fields: &'static [(&'static str, &'static str)],
    /// Columns of its tables.
    pub columns: &'static [Column],
    /// What is particular to it.
    pub rules: &'static dyn Rules,
}

impl Kind {
    /// `persistentvolumes`, `leases.coordination.k8s.io`.
    pub fn qualified_plural(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// `v1`, `storage.k8s.io/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { "v1".to_owned() } else { format!("{}/v1", self.group) }
    }

    /// Is it deleted with a grace period?
    pub fn is_graceful(&self) -> bool {
        self.plural == "pods"
    }

    /// Can many of its objects be deleted with one request?
    pub fn deletes_collections(&self) -> bool {
        self.plural != "namespaces"
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.qualified_plural())
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.plural == other.plural && self.group == other.group
    }
}

/// Names and the namespace, which every kind can be selected by.
pub const COMMON_FIELDS: [(&str, &str); 2] =
    [("metadata.name", "/metadata/name"), ("metadata.namespace", "/metadata/namespace")];

/// Refuses a change of a field that never changes, as `ValidateImmutableField` does.
pub fn immutable(new: &Value, old: &Value, path: &str, field: &str, causes: &mut Causes) {
    let (new, old) = (new.pointer(path), old.pointer(path));
    if new.unwrap_or(&Value::Null) != old.unwrap_or(&Value::Null) {
        causes.invalid(field, new.unwrap_or(&Value::Null), "field is immutable");
    }
}

/// Keeps an object's status through an update of the rest.
pub fn keep_status(new: &mut Value, old: &Value) {
    json::copy(old, new, "/status");
}

/// Keeps an object's spec through an update of its status.
pub fn keep_spec(new: &mut Value, old: &Value) {
    json::copy(old, new, "/spec");
}
