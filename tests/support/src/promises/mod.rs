//! The promises of safety.md as functions of values: one checker for each, for every writer.
//!
//! Cases and histories of the binder, cases of attach/detach and the stories on an API server ask the same functions; what
//! they know of the world differs, and comes in as a value. Out: the promises that are broken, each with its id. Nothing
//! here knows the daemon. The random histories of attach/detach ask [`requests`] alone: they hold typed objects, which they
//! clone by the hundred thousand, and check those where they are kept (`tests/histories`).
//!
//! [`requests`]: what a single request must have. [`bindings`]: what a write to a volume or claim may change.
//! [`attachments`]: who may have a volume, and when it may be taken away. [`telling`]: who may read whose names.

pub mod attachments;
pub mod bindings;
mod quantity;
pub mod requests;
pub mod telling;

use serde_json::Value;

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][key].as_str()
}
