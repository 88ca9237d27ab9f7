//! OpenAPI v3: the part that `kubectl apply` and `kubectl explain` read.
//!
//! In: the schema. Out: the index and one document per group: types with their fields and merge keys, and
//! for every kind the PATCH with the media types that the server accepts.

use serde_json::{Map, Value, json};

use super::{
    discovery::groups,
    kinds::{KINDS, kind::Kind},
    schema::{Field, Shape, Types, types},
};

/// A document by its path; nothing for a path that is none of OpenAPI's.
pub fn document(path: &str) -> Option<Value> {
    let path = path.trim_matches('/');
    if path == "openapi/v3" {
        let mut paths = Map::new();
        for version in versions() {
            paths.insert(
                version.clone(),
                json!({"serverRelativeURL": format!("/openapi/v3/{version}?hash=1")}),
            );
        }
        return Some(json!({"paths": paths}));
    }
    let version = path.strip_prefix("openapi/v3/")?;
    versions().iter().any(|known| known == version).then(|| group_document(version, types()))
}

fn versions() -> Vec<String> {
    let mut versions = vec!["api/v1".to_owned()];
    for group in groups() {
        versions.push(format!("apis/{group}/v1"));
    }
    versions
}

fn group_document(version: &str, types: &Types) -> Value {
    let mut paths = Map::new();
    let mut schemas = Map::new();
    for (name, described) in types {
        let mut properties = Map::new();
        for field in &described.fields {
            properties.insert(field.name.to_owned(), property(field));
        }
        schemas.insert(schema_name(name), json!({"type": "object", "properties": properties}));
    }
    for kind in KINDS {
        let base =
            if kind.group.is_empty() { "api/v1".to_owned() } else { format!("apis/{}/v1", kind.group) };
        if base != version {
            continue;
        }
        if let Some(schema) = schemas.get_mut(&schema_name(kind.type_name)) {
            super::json::set(schema, "/x-kubernetes-group-version-kind", json!([version_kind(kind)]));
        }
        let scope = if kind.namespaced { "/namespaces/{namespace}" } else { "" };
        paths.insert(format!("/{base}{scope}/{}/{{name}}", kind.plural), operations(kind));
    }
    json!({
        "openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "embedded"},
        "paths": paths, "components": {"schemas": schemas},
    })
}

fn version_kind(kind: &Kind) -> Value {
    json!({"group": kind.group, "version": "v1", "kind": kind.kind})
}

fn operations(kind: &Kind) -> Value {
    let reference = json!({"$ref": format!("#/components/schemas/{}", schema_name(kind.type_name))});
    let answer =
        json!({"200": {"description": "OK", "content": {"application/json": {"schema": reference}}}});
    let mut content = Map::new();
    for media in [
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
    ] {
        content.insert(media.to_owned(), json!({"schema": {"type": "object"}}));
    }
    let parameter =
        |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
    json!({
        "get": {
            "x-kubernetes-action": "get", "x-kubernetes-group-version-kind": version_kind(kind),
            "responses": answer,
        },
        "patch": {
            "x-kubernetes-action": "patch", "x-kubernetes-group-version-kind": version_kind(kind),
            "parameters": [parameter("fieldManager"), parameter("fieldValidation")],
            "requestBody": {"required": true, "content": content},
            "responses": answer,
        },
    })
}

/// `core/v1.Pod` is known to clients as `io.k8s.api.core.v1.Pod`.
fn schema_name(name: &str) -> String {
    match name.strip_prefix("meta/v1.") {
        Some(name) => format!("io.k8s.apimachinery.pkg.apis.meta.v1.{name}"),
        None => format!("io.k8s.api.{}", name.replace('/', ".")),
    }
}

fn property(field: &Field) -> Value {
    let mut property = shape(&field.shape);
    if let Some(merge_key) = field.merge_key {
        let strategy = if field.retain_keys { "merge,retainKeys" } else { "merge" };
        super::json::set(&mut property, "/x-kubernetes-patch-strategy", strategy);
        if !merge_key.is_empty() {
            super::json::set(&mut property, "/x-kubernetes-patch-merge-key", merge_key);
        }
    }
    property
}

fn shape(of: &Shape) -> Value {
    match of {
        Shape::Text | Shape::Quantity => json!({"type": "string"}),
        Shape::Bytes => json!({"type": "string", "format": "byte"}),
        Shape::Time | Shape::MicroTime => json!({"type": "string", "format": "date-time"}),
        Shape::Integer(bits) => json!({"type": "integer", "format": format!("int{bits}")}),
        Shape::Float => json!({"type": "number", "format": "double"}),
        Shape::Bool => json!({"type": "boolean"}),
        Shape::IntOrString => {
            json!({"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"})
        }
        Shape::Any => json!({"type": "object"}),
        Shape::Pointer(inner) => shape(inner),
        Shape::List(inner) => json!({"type": "array", "items": shape(inner)}),
        Shape::Map(inner) => json!({"type": "object", "additionalProperties": shape(inner)}),
        Shape::Named(name) => {
            json!({"allOf": [{"$ref": format!("#/components/schemas/{}", schema_name(name))}]})
        }
    }
}
