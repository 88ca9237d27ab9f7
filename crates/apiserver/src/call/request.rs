//! A request as a value: method, path, body.

use std::borrow::Cow;

use serde_json::{Map, Value, json};
use strum::IntoStaticStr;

use super::Target;
use crate::kinds::Meta;

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Method and content type.
    pub verb: Verb,
    /// URL path without query.
    pub path: String,
    /// Body, for the verbs that have one.
    pub body: Option<Value>,
}

impl Request {
    /// A patch of exactly this object, as it was seen: the body is an object, and this adds UID and revision (S35).
    pub fn patch(path: String, meta: &Meta, body: Value) -> Self {
        let map = |value| if let Value::Object(map) = value { map } else { Map::new() };
        let mut body = map(body);
        let mut metadata = map(body.remove("metadata").unwrap_or_default());
        metadata.insert("uid".to_owned(), json!(meta.uid));
        metadata.insert("resourceVersion".to_owned(), json!(meta.resource_version));
        body.insert("metadata".to_owned(), Value::Object(metadata));
        Self { verb: Verb::Patch, path, body: Some(Value::Object(body)) }
    }

    /// What the path leads to.
    pub fn target(&self) -> Target<'_> {
        Target::of(&self.path)
    }

    /// The object, of which a create tells in its body.
    pub(super) fn object(&self) -> Cow<'_, str> {
        let name = self.body.as_ref().filter(|_| self.verb == Verb::Create);
        match name.and_then(|body| body.pointer("/metadata/name")?.as_str()) {
            Some(name) => Cow::Owned(format!("{}/{name}", self.path)),
            None => Cow::Borrowed(&self.path),
        }
    }
}

/// Method and content type of a request. As text it is that of the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Verb {
    /// Live read.
    Get,
    /// Create.
    Create,
    /// Replace; the body carries the resourceVersion.
    Update,
    /// JSON merge patch; the body carries `metadata.resourceVersion` and `metadata.uid`.
    Patch,
    /// Delete; the body carries the preconditions.
    Delete,
}

impl Verb {
    /// As HTTP has it.
    pub fn method(self) -> http::Method {
        match self {
            Self::Get => http::Method::GET,
            Self::Create => http::Method::POST,
            Self::Update => http::Method::PUT,
            Self::Patch => http::Method::PATCH,
            Self::Delete => http::Method::DELETE,
        }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Patch => "application/merge-patch+json",
            _ => "application/json",
        }
    }
}
