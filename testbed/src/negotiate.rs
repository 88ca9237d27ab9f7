//! The form of objects in an answer: whole, as a table, or only their metadata.
//!
//! In: the Accept header. Out: a view, which converts objects and lists into that form.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    clock::Clock, json, kinds::kind::Kind, list::Page, request::Query, status::Refusal, store::Object,
};

/// What a row of a table carries besides its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Include {
    /// Nothing.
    None,
    /// The object's metadata.
    Metadata,
    /// The object.
    Object,
}

/// How objects are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Whole.
    Object,
    /// As rows of a table.
    Table(Include),
    /// Metadata only.
    Metadata,
}

impl View {
    /// Chooses the first acceptable view.
    ///
    /// # Errors
    /// None is: everything is JSON here.
    pub fn parse(accept: &str, query: &Query) -> Result<Self, Refusal> {
        if accept.is_empty() {
            return Ok(Self::Object);
        }
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            if !matches!(parts.next(), Some("application/json" | "application/*" | "*/*")) {
                continue;
            }
            let mut view = "";
            for part in parts {
                if let Some(name) = part.strip_prefix("as=") {
                    view = name;
                }
            }
            match view {
                "" => return Ok(Self::Object),
                "Table" => {
                    let include = match query.get("includeObject") {
                        "" | "Metadata" => Include::Metadata,
                        "Object" => Include::Object,
                        "None" => Include::None,
                        other => {
                            return Err(Refusal::bad_request(format!(
                                "unrecognized includeObject value: {other:?}"
                            )));
                        }
                    };
                    return Ok(Self::Table(include));
                }
                "PartialObjectMetadata" | "PartialObjectMetadataList" => return Ok(Self::Metadata),
                _ => {}
            }
        }
        Err(Refusal::plain(
            406,
            "NotAcceptable",
            "only the following media types are accepted: application/json",
        ))
    }

    /// One object.
    pub fn one(self, kind: &Kind, object: &Arc<Object>, clock: &Clock) -> Value {
        match self {
            Self::Object => typed(kind, &object.value),
            Self::Metadata => metadata(&object.value),
            Self::Table(include) => {
                let page_metadata = json!({"resourceVersion": object.revision.to_string()});
                table(kind, std::slice::from_ref(object), &page_metadata, include, clock.now())
            }
        }
    }

    /// A list.
    pub fn page(self, kind: &Kind, page: &Page, clock: &Clock) -> Vec<u8> {
        match self {
            Self::Object => {
                let mut text = format!(
                    r#"{{"kind":"{}List","apiVersion":"{}","metadata":{},"items":["#,
                    kind.kind,
                    kind.api_version(),
                    page.metadata()
                )
                .into_bytes();
                for (index, object) in page.items.iter().enumerate() {
                    if index > 0 {
                        text.push(b',');
                    }
                    text.extend_from_slice(&object.bytes());
                }
                text.extend_from_slice(b"]}");
                text
            }
            Self::Metadata => {
                let items: Vec<Value> = page.items.iter().map(|object| metadata(&object.value)).collect();
                json!({
                    "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                    "metadata": page.metadata(), "items": items,
                })
                .to_string()
                .into_bytes()
            }
            Self::Table(include) => {
                table(kind, &page.items, &page.metadata(), include, clock.now()).to_string().into_bytes()
            }
        }
    }
}

/// An object with its kind and version.
pub fn typed(kind: &Kind, object: &Value) -> Value {
    let mut object = object.clone();
    json::set(&mut object, "/kind", kind.kind);
    json::set(&mut object, "/apiVersion", kind.api_version());
    object
}

fn metadata(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object.pointer("/metadata")})
}

fn table(
    kind: &Kind,
    objects: &[Arc<Object>],
    list_metadata: &Value,
    include: Include,
    now: Timestamp,
) -> Value {
    let mut definitions = Vec::new();
    for column in kind.columns {
        definitions.push(json!({
            "name": column.name, "type": column.kind, "priority": column.priority, "description": "",
            "format": if column.name == "Name" { "name" } else { "" },
        }));
    }
    let mut rows = Vec::new();
    for object in objects {
        let cells: Vec<Value> = kind.columns.iter().map(|column| (column.cell)(&object.value, now)).collect();
        let shown = match include {
            Include::None => Value::Null,
            Include::Metadata => metadata(&object.value),
            Include::Object => typed(kind, &object.value),
        };
        rows.push(json!({"cells": cells, "object": shown}));
    }
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": list_metadata,
        "columnDefinitions": definitions, "rows": rows,
    })
}
