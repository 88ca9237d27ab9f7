//! The promises of safety.md as functions of values: one checker for each, for every writer.
//!
//! Cases and histories of the binder, cases of attach/detach and the stories on an API server use the same functions. Their
//! knowledge of the world differs, and is an argument. Out: the broken promises, each with its id. This module does not
//! depend on the daemon. The random histories of attach/detach use only [`requests`]: they hold typed objects, which they
//! clone by the hundred thousand and check in place (`tests/histories`).
//!
//! [`requests`] checks a single request, [`bindings`] a change of a volume or claim, [`attachments`] the nodes that may have
//! a volume and the time of its removal, [`classes`] the end of a VolumeAttributesClass, [`ephemeral`] a new claim, and
//! [`telling`] the readers of names.

pub mod attachments;
pub mod bindings;
pub mod classes;
pub mod ephemeral;
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
