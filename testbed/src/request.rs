//! A request: the place that its path names and the options of its query.
//!
//! In: method, path, query, headers. Out: typed values. A feature that only upstream supports is refused
//! by name at this point.

use serde_json::Value;

use super::{
    kinds::{self, kind::Kind},
    status::{Causes, Refusal},
};

/// A request, with its body read.
#[derive(Clone, Debug)]
pub struct Request {
    /// HTTP method.
    pub method: http::Method,
    /// Path.
    pub path: String,
    /// Query.
    pub query: Query,
    /// Accept header.
    pub accept: String,
    /// Content-Type header.
    pub content_type: String,
    /// User-Agent header.
    pub user_agent: String,
    /// Body.
    pub body: hyper::body::Bytes,
}

/// A decoded query.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads a query.
    pub fn parse(text: &str) -> Self {
        Self(form_urlencoded::parse(text.as_bytes()).into_owned().collect())
    }

    /// The first value of a parameter; empty when it is not given.
    pub fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str()).unwrap_or_default()
    }

    /// A parameter that is a boolean.
    ///
    /// # Errors
    /// Anything that Go does not take for one.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, Refusal> {
        match self.get(name) {
            "" => Ok(None),
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Some(true)),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Some(false)),
            other => Err(Refusal::bad_request(format!("{name}: invalid boolean {other:?}"))),
        }
    }

    /// A parameter that is a number.
    ///
    /// # Errors
    /// Anything else.
    pub fn number(&self, name: &str) -> Result<Option<i64>, Refusal> {
        match self.get(name) {
            "" => Ok(None),
            text => match text.parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(Refusal::bad_request(format!("{name}: invalid number {text:?}"))),
            },
        }
    }
}

/// Which object, or which objects, a path names.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Kind.
    pub kind: &'static Kind,
    /// Namespace; empty for all of them and for kinds without.
    pub namespace: String,
    /// Name; empty for a collection.
    pub name: String,
    /// Subresource; empty for the object itself.
    pub subresource: String,
}

impl Place {
    /// Reads a resource path; nothing for any other.
    pub fn parse(path: &str) -> Option<Self> {
        let mut parts: Vec<String> = path.trim_matches('/').split('/').map(decode_part).collect();
        let group = match parts.first().map(String::as_str) {
            Some("api") if parts.get(1).is_some_and(|version| version == "v1") => {
                parts.drain(..2);
                String::new()
            }
            Some("apis") if parts.get(2).is_some_and(|version| version == "v1") => {
                let group = parts.get(1).cloned().unwrap_or_default();
                parts.drain(..3);
                group
            }
            _ => return None,
        };
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (namespace, rest) = match parts.as_slice() {
            ["namespaces", namespace, rest @ ..]
                if rest.first().is_some_and(|plural| !matches!(*plural, "status" | "finalize")) =>
            {
                (*namespace, rest)
            }
            rest => ("", rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, "", ""),
            [plural, name] => (*plural, *name, ""),
            [plural, name, subresource] => (*plural, *name, *subresource),
            _ => return None,
        };
        let kind = kinds::find(&group, plural)?;
        let is_placed = !kind.namespaced || !namespace.is_empty() || name.is_empty();
        if !is_placed || (!kind.namespaced && !namespace.is_empty()) {
            return None;
        }
        Some(Self {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            subresource: subresource.to_owned(),
        })
    }

    /// The key of the object.
    pub fn key(&self) -> String {
        key(self.kind, &self.namespace, &self.name)
    }

    /// What the keys of the collection begin with.
    pub fn prefix(&self) -> String {
        if self.namespace.is_empty() { String::new() } else { format!("{}/", self.namespace) }
    }
}

/// The key of an object.
pub fn key(kind: &Kind, namespace: &str, name: &str) -> String {
    if kind.namespaced { format!("{namespace}/{name}") } else { name.to_owned() }
}

fn decode_part(part: &str) -> String {
    // A plus is itself in a path; only in a query does it stand for a space.
    let part = part.replace('+', "%2B");
    form_urlencoded::parse(part.as_bytes()).next().map(|(text, _)| text.into_owned()).unwrap_or_default()
}

/// What to do about fields that the type does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValidation {
    /// Drop them.
    Ignore,
    /// Drop them and say so.
    Warn,
    /// Refuse them.
    Strict,
}

/// The options of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    /// What to do about unknown fields.
    pub validation: FieldValidation,
}

impl WriteOptions {
    /// Reads them.
    ///
    /// # Errors
    /// An option that is not known, or not supported.
    pub fn parse(query: &Query) -> Result<Self, Refusal> {
        if !query.get("dryRun").is_empty() {
            return Err(Refusal::not_implemented("dryRun"));
        }
        let validation = match query.get("fieldValidation") {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                let mut causes = Causes::default();
                let known = ["Ignore", "Strict", "Warn"];
                causes.not_supported("fieldValidation", &Value::from(other), &known);
                return Err(Refusal::invalid_kind("meta.k8s.io", "CreateOptions", "", causes));
            }
        };
        Ok(Self { validation })
    }

    /// Checks the options that only a patch has.
    ///
    /// # Errors
    /// An apply that does not say who applies, or another patch that wants to force.
    // kube-apiserver: apimachinery/pkg/apis/meta/v1/validation, ValidatePatchOptions.
    pub fn check_patch(query: &Query, is_apply: bool) -> Result<(), Refusal> {
        let mut causes = Causes::default();
        let force = query.flag("force")?;
        if is_apply && query.get("fieldManager").is_empty() {
            causes.required("fieldManager", "is required for apply patch");
        }
        if !is_apply && force.is_some() {
            causes.forbidden("force", "may not be specified for non-apply patch");
        }
        if causes.0.is_empty() {
            return Ok(());
        }
        Err(Refusal::invalid_kind("meta.k8s.io", "PatchOptions", "", causes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_places() {
        for (path, expected) in [
            ("/api/v1/pods", Some(("pods", "", "", ""))),
            ("/api/v1/namespaces/a/pods/p/status", Some(("pods", "a", "p", "status"))),
            ("/api/v1/namespaces/a", Some(("namespaces", "", "a", ""))),
            ("/api/v1/namespaces/a/status", Some(("namespaces", "", "a", "status"))),
            ("/apis/storage.k8s.io/v1/storageclasses/x", Some(("storageclasses", "", "x", ""))),
            ("/api/v1/namespaces/a/nodes/n", None),
            ("/api/v1/pods/p", None),
            ("/apis/apps/v1/deployments", None),
            ("/api/v1", None),
        ] {
            let place = Place::parse(path);
            let found = place.as_ref().map(|place| {
                (place.kind.plural, place.namespace.as_str(), place.name.as_str(), place.subresource.as_str())
            });
            assert_eq!(found, expected, "{path}");
        }
    }
}
