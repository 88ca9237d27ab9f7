//! Patches: four ways to describe a change.
//!
//! In: an object and a patch. Out: the patched object, which is then brought into shape and validated
//! like the body of a PUT.

pub mod strategic;

use json_patch::{AddOperation, PatchOperation, ReplaceOperation};
use serde_json::Value;

use super::{
    kinds::kind::Kind,
    schema::types,
    status::{Causes, Refusal},
};

/// What kind of patch a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// RFC 6902.
    Json,
    /// RFC 7396.
    Merge,
    /// Kubernetes' own, which merges lists by key.
    Strategic,
    /// Server-side apply.
    Apply,
}

impl PatchType {
    /// Reads a content type.
    ///
    /// # Errors
    /// It is none of the four.
    pub fn parse(content_type: &str) -> Result<Self, Refusal> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" => Ok(Self::Strategic),
            "application/apply-patch+yaml" => Ok(Self::Apply),
            "application/apply-patch+cbor" => Err(Refusal::not_implemented("CBOR")),
            _ => Err(Refusal::plain(
                415,
                "UnsupportedMediaType",
                "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, application/apply-patch+yaml",
            )),
        }
    }
}

/// Applies a patch.
///
/// # Errors
/// The patch cannot be read, or does not fit the object.
pub fn apply(kind: &Kind, patch_type: PatchType, object: &Value, body: &[u8]) -> Result<Value, Refusal> {
    let unreadable =
        |error: serde_json::Error| Refusal::bad_request(format!("error decoding patch: {error}"));
    let mut object = object.clone();
    match patch_type {
        PatchType::Json => {
            let patch: json_patch::Patch = serde_json::from_slice(body).map_err(unreadable)?;
            for operation in patch.0 {
                let Some(operation) = lenient(&object, operation) else { continue };
                json_patch::patch(&mut object, &[operation]).map_err(|error| {
                    let message =
                        format!("the server rejected our request due to an error in our request: {error}");
                    Refusal::plain(422, "Invalid", message)
                })?;
            }
        }
        PatchType::Merge => {
            let patch: Value = serde_json::from_slice(body).map_err(unreadable)?;
            if !patch.is_object() {
                return Err(Refusal::bad_request("error decoding patch: not an object"));
            }
            json_patch::merge(&mut object, &patch);
        }
        PatchType::Strategic => {
            let patch: Value = serde_json::from_slice(body).map_err(unreadable)?;
            strategic::merge(types(), kind.type_name, &mut object, &patch)?;
        }
        PatchType::Apply => {
            let patch = applied(kind, body)?;
            strategic::merge(types(), kind.type_name, &mut object, &patch)?;
        }
    }
    Ok(object)
}

/// An operation as upstream's JSON patch means it, which is laxer than the RFC: a field that is
/// not there can be replaced, and counts as null in a test. Nothing when there is nothing to do.
fn lenient(object: &Value, operation: PatchOperation) -> Option<PatchOperation> {
    let path = operation.path().to_string();
    let parent = path.rsplit_once('/').and_then(|(parent, _)| object.pointer(parent));
    if !parent.is_some_and(Value::is_object) || object.pointer(&path).is_some() {
        return Some(operation);
    }
    match operation {
        PatchOperation::Replace(ReplaceOperation { path, value }) => {
            Some(PatchOperation::Add(AddOperation { path, value }))
        }
        PatchOperation::Test(test) if test.value.is_null() => None,
        operation => Some(operation),
    }
}

/// The object of a server-side apply.
///
/// # Errors
/// It is not one of the kinds this is supported for, or not JSON.
pub fn applied(kind: &Kind, body: &[u8]) -> Result<Value, Refusal> {
    if !matches!(kind.plural, "leases" | "events") {
        return Err(Refusal::not_implemented("server-side apply of anything but leases and events"));
    }
    serde_json::from_slice(body)
        .map_err(|_| Refusal::not_implemented("server-side apply of a body that is YAML and not JSON"))
}

/// What a patch makes of the object cannot be one.
pub fn misshapen(detail: &str) -> Refusal {
    let mut causes = Causes::default();
    causes.invalid("patch", &Value::Null, detail);
    Refusal::invalid_kind("", "", "", causes)
}
