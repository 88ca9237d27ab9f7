//! ConfigMaps: not watched, but read and written one at a time.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Meta, api_root};

/// A ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    /// Metadata.
    pub metadata: Meta,
    /// What it holds, by key.
    pub data: BTreeMap<String, String>,
}

impl ConfigMap {
    /// Kind, as in `kind:`.
    pub const KIND: &'static str = "ConfigMap";

    /// URL path of one.
    #[must_use]
    pub fn path(namespace: &str, name: &str) -> String {
        format!("{}/namespaces/{namespace}/configmaps/{name}", api_root(""))
    }
}
