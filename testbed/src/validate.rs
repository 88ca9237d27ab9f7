//! Checks that all kinds share: names, labels, annotations, finalizers, owners, and the changes of
//! metadata that an update may make.
//!
//! In: an object in its type's shape. Out: causes for an Invalid. Fields and reasons are
//! upstream's.

use serde_json::Value;

use super::{
    json,
    kinds::kind::{Kind, NameRule, immutable},
    status::Causes,
};

const STANDARD_FINALIZERS: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];
const SUBDOMAIN_LENGTH: usize = 253;
const LABEL_LENGTH: usize = 63;
/// Keys and values of all annotations together, in bytes.
const ANNOTATIONS_SIZE: usize = 256 << 10;

/// A DNS label (RFC 1123).
pub fn is_label(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=LABEL_LENGTH).contains(&text.len())
        && text.chars().all(is_inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// A DNS subdomain (RFC 1123); its parts may be longer than labels.
pub fn is_subdomain(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    text.len() <= SUBDOMAIN_LENGTH && text.split('.').all(is_part)
}

/// The part of a qualified name after the slash, and a label's value when it is not empty.
pub fn is_name_part(text: &str) -> bool {
    let is_end = |c: char| c.is_ascii_alphanumeric();
    (1..=LABEL_LENGTH).contains(&text.len())
        && text.starts_with(is_end)
        && text.ends_with(is_end)
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// `name` or `prefix/name`.
pub fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_name_part(name),
        None => is_name_part(text),
    }
}

/// A finalizer: one of the standard ones, or a qualified name with a prefix.
pub fn is_finalizer(text: &str) -> bool {
    STANDARD_FINALIZERS.contains(&text) || (text.contains('/') && is_qualified_name(text))
}

/// Checks that a text is a DNS subdomain.
pub fn subdomain(text: &str, field: impl Into<String>, causes: &mut Causes) {
    if !is_subdomain(text) {
        causes.invalid(field, &text.into(), "a lowercase RFC 1123 subdomain is needed");
    }
}

/// Checks that a text is a qualified name.
pub fn qualified_name(text: &str, field: impl Into<String>, causes: &mut Causes) {
    if !is_qualified_name(text) {
        causes.invalid(field, &text.into(), "a qualified name is needed");
    }
}

/// Checks that a value is one of the known ones.
pub fn one_of(value: &str, known: &[&str], field: impl Into<String>, causes: &mut Causes) {
    if !known.contains(&value) {
        causes.not_supported(field, &value.into(), known);
    }
}

/// Checks metadata of a new object.
pub fn metadata(kind: &Kind, object: &Value, causes: &mut Causes) {
    let name = json::text(object, "/metadata/name");
    if name.is_empty() {
        causes.required("metadata.name", "name or generateName is required");
    } else if !is_valid_name(kind.name_rule, name) {
        causes.invalid("metadata.name", &name.into(), "not a valid name");
    }
    let prefix = json::text(object, "/metadata/generateName");
    // The end of a prefix may be what only the middle of a name may be.
    if !prefix.is_empty() && !is_valid_name(kind.name_rule, &format!("{}a", prefix.trim_end_matches('-'))) {
        causes.invalid("metadata.generateName", &prefix.into(), "not a valid prefix of names");
    }
    common_metadata(object, causes);
    finalizers(kind, object, causes);
}

/// Whether a name can be one of the kind.
pub fn is_valid_name(rule: NameRule, name: &str) -> bool {
    match rule {
        NameRule::Subdomain => is_subdomain(name),
        NameRule::Label => is_label(name),
        NameRule::PathSegment => name != "." && name != ".." && !name.contains(['/', '%']),
    }
}

fn common_metadata(object: &Value, causes: &mut Causes) {
    if json::number(object, "/metadata/generation").is_some_and(|generation| generation < 0) {
        causes.invalid("metadata.generation", &Value::Null, "must not be negative");
    }
    for (key, value) in json::map(object, "/metadata/labels").into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        if !is_qualified_name(key) {
            causes.invalid("metadata.labels", &key.as_str().into(), "a qualified name is needed");
        }
        if !value.is_empty() && !is_name_part(value) {
            causes.invalid("metadata.labels", &value.into(), "a valid label must be empty or a name");
        }
    }
    let mut size = 0;
    for (key, value) in json::map(object, "/metadata/annotations").into_iter().flatten() {
        size += key.len() + value.as_str().unwrap_or_default().len();
        qualified_name(&key.to_ascii_lowercase(), "metadata.annotations", causes);
    }
    if size > ANNOTATIONS_SIZE {
        causes.too_long("metadata.annotations", ANNOTATIONS_SIZE);
    }
    let mut controllers = 0;
    for owner in json::list(object, "/metadata/ownerReferences") {
        for part in ["apiVersion", "kind", "name", "uid"] {
            if json::text(owner, &format!("/{part}")).is_empty() {
                causes.invalid(format!("metadata.ownerReferences.{part}"), &"".into(), "must not be empty");
            }
        }
        controllers += usize::from(owner.pointer("/controller") == Some(&Value::Bool(true)));
    }
    if controllers > 1 {
        causes.invalid("metadata.ownerReferences", &Value::Null, "only one reference can be the controller");
    }
}

/// A qualified name, which is all that leases and events ask of a finalizer; other kinds also want
/// the prefix or one of the standard names.
// kube-apiserver: pkg/apis/core/validation/validation.go, ValidateObjectMeta.
pub fn finalizers(kind: &Kind, object: &Value, causes: &mut Causes) {
    let finalizers = json::list(object, "/metadata/finalizers");
    let is_lax = matches!(kind.plural, "leases" | "events");
    for finalizer in finalizers {
        let name = finalizer.as_str().unwrap_or_default();
        if !is_qualified_name(name) {
            causes.invalid("metadata.finalizers", finalizer, "a qualified name is needed");
        }
        if !is_lax && !name.contains('/') && !STANDARD_FINALIZERS.contains(&name) {
            causes.invalid("metadata.finalizers", finalizer, "not a standard finalizer nor fully qualified");
        }
    }
    let excluding = ["orphan", "foregroundDeletion"];
    if excluding.iter().all(|name| finalizers.iter().any(|value| value == name)) {
        causes.invalid(
            "metadata.finalizers",
            &Value::Null,
            "orphan and foregroundDeletion exclude each other",
        );
    }
}

/// Checks what an update changes in metadata.
// kube-apiserver: apimachinery/pkg/api/validation/objectmeta.go, ValidateObjectMetaAccessorUpdate.
pub fn metadata_update(new: &Value, old: &Value, causes: &mut Causes) {
    if json::is_set(old, "/metadata/deletionTimestamp") {
        let before = json::list(old, "/metadata/finalizers");
        for finalizer in json::list(new, "/metadata/finalizers") {
            if !before.contains(finalizer) {
                causes.forbidden(
                    "metadata.finalizers",
                    "no new finalizers can be added if the object is being deleted",
                );
                break;
            }
        }
    }
    for name in
        ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"]
    {
        immutable(new, old, &format!("/metadata/{name}"), &format!("metadata.{name}"), causes);
    }
    common_metadata(new, causes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_as_upstream_does() {
        assert!(is_subdomain("a.b-c.d") && is_subdomain(&"x".repeat(100)));
        assert!(!is_subdomain("A") && !is_subdomain("a..b") && !is_subdomain("-a") && !is_subdomain(""));
        assert!(is_label("a-1") && !is_label("a.b") && !is_label(&"x".repeat(64)));
        assert!(is_qualified_name("pv.kubernetes.io/bind-completed") && is_qualified_name("A_b"));
        assert!(!is_qualified_name("/a") && !is_qualified_name("a/b/c") && !is_qualified_name("a b"));
    }
}
