//! Objects as rights are asked about.

use serde::Serialize;

/// An object, or all of a kind, as rights are asked about: no name means all of them, no namespace all of those.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Resource {
    /// API group; empty for core.
    pub group: &'static str,
    /// The kind's name in URLs.
    pub resource: &'static str,
    /// Namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}
