//! What the API is, as an OpenAPI document: for generators of clients, and for tests, which hold every answer against it.

use serde_json::Value;

/// Written by hand and tested: that every field of the values is in it, and that it lets every answer through.
const DOCUMENT: &str = include_str!("openapi.json");

/// The document, with this program's version.
pub(super) fn document() -> Value {
    let mut document: Value = serde_json::from_str(DOCUMENT).unwrap_or_default();
    if let Some(info) = document.get_mut("info").and_then(Value::as_object_mut) {
        info.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
    }
    document
}
