//! Refusals that are about an object of a kind.

use super::{
    kinds::kind::Kind,
    status::{Causes, Refusal},
};

fn about(code: u16, reason: &'static str, kind: &Kind, name: &str, message: String) -> Refusal {
    Refusal::about(code, reason, (kind.group, kind.plural), name, message)
}

impl Refusal {
    /// No such object.
    pub fn not_found(kind: &Kind, name: &str) -> Self {
        about(404, "NotFound", kind, name, format!("{} {name:?} not found", kind.qualified_plural()))
    }

    /// The name is taken.
    pub fn already_exists(kind: &Kind, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", kind.qualified_plural());
        about(409, "AlreadyExists", kind, name, message)
    }

    /// The object is not in the state the request presumes.
    pub fn conflict(kind: &Kind, name: &str, detail: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} {name:?}: {detail}", kind.qualified_plural());
        about(409, "Conflict", kind, name, message)
    }

    /// The revision in the request is not the object's.
    pub fn stale(kind: &Kind, name: &str) -> Self {
        let detail =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, detail)
    }

    /// Admission says no.
    pub fn forbidden(kind: &Kind, name: &str, detail: &str) -> Self {
        let message = format!("{} {name:?} is forbidden: {detail}", kind.qualified_plural());
        about(403, "Forbidden", kind, name, message)
    }

    /// Validation says no.
    pub fn invalid(kind: &Kind, name: &str, causes: Causes) -> Self {
        Self::invalid_kind(kind.group, kind.kind, name, causes)
    }
}
