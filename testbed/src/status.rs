//! Refusals: the answers to requests that the server does not execute.
//!
//! Each refusal is one value, printed as the `Status` body that clients know. Code, reason and details
//! are upstream's, because programs depend on them. Messages follow upstream if people know them.

use serde_json::{Value, json};

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// `FieldValueRequired` and the like.
    pub reason: &'static str,
    /// Path in Go's notation, e.g. `spec.containers[0].name`.
    pub field: String,
    /// For people.
    pub message: String,
}

/// The causes of one Invalid, collected by validation.
#[derive(Debug, Default)]
pub struct Causes(pub Vec<Cause>);

impl Causes {
    fn add(&mut self, reason: &'static str, field: impl Into<String>, message: String) {
        self.0.push(Cause { reason, field: field.into(), message });
    }

    /// A field that must be there is not.
    pub fn required(&mut self, field: impl Into<String>, detail: &str) {
        let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        self.add("FieldValueRequired", field, format!("Required value{detail}"));
    }

    /// A value that is not of the right form.
    pub fn invalid(&mut self, field: impl Into<String>, value: &Value, detail: &str) {
        self.add("FieldValueInvalid", field, format!("Invalid value: {value}: {detail}"));
    }

    /// A value that may not be there, or may not change.
    pub fn forbidden(&mut self, field: impl Into<String>, detail: &str) {
        self.add("FieldValueForbidden", field, format!("Forbidden: {detail}"));
    }

    /// A value that is none of the known ones.
    pub fn not_supported(&mut self, field: impl Into<String>, value: &Value, known: &[&str]) {
        let known: Vec<String> = known.iter().map(|name| format!("{name:?}")).collect();
        let message = format!("Unsupported value: {value}: supported values: {}", known.join(", "));
        self.add("FieldValueNotSupported", field, message);
    }

    /// The same key twice.
    pub fn duplicate(&mut self, field: impl Into<String>, value: &Value) {
        self.add("FieldValueDuplicate", field, format!("Duplicate value: {value}"));
    }

    /// More than may be.
    pub fn too_long(&mut self, field: impl Into<String>, limit: usize) {
        self.add("FieldValueTooLong", field, format!("Too long: may not be more than {limit} bytes"));
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Body {
    code: u16,
    reason: &'static str,
    message: String,
    name: String,
    group: String,
    kind: String,
    uid: String,
    causes: Vec<Cause>,
    retry_after: Option<u32>,
    continue_token: Option<String>,
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(Box<Body>);

impl Refusal {
    /// A refusal that names no object.
    pub fn plain(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(Body {
            code,
            reason,
            message: message.into(),
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after: None,
            continue_token: None,
        }))
    }

    /// A refusal that names an object, by the group and the plural of its kind.
    pub fn about(
        code: u16,
        reason: &'static str,
        (group, plural): (&str, &str),
        name: &str,
        message: String,
    ) -> Self {
        let mut refusal = Self::plain(code, reason, message);
        name.clone_into(&mut refusal.0.name);
        group.clone_into(&mut refusal.0.group);
        plural.clone_into(&mut refusal.0.kind);
        refusal
    }

    /// The request makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::plain(400, "BadRequest", message)
    }

    /// A feature of the real API server that this one does not have.
    pub fn not_implemented(feature: &str) -> Self {
        Self::plain(501, "NotImplemented", format!("the embedded API server does not support {feature}"))
    }

    /// No such resource.
    pub fn no_resource() -> Self {
        Self::plain(404, "NotFound", "the server could not find the requested resource")
    }

    /// The path exists but not with this verb.
    pub fn method_not_allowed() -> Self {
        Self::plain(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    /// Validation of something that is not an object of a kind.
    pub fn invalid_kind(group: &str, kind: &str, name: &str, causes: Causes) -> Self {
        let qualified = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
        let texts: Vec<String> =
            causes.0.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        let texts = match texts.as_slice() {
            [one] => one.clone(),
            _ => format!("[{}]", texts.join(", ")),
        };
        let mut refusal = Self::plain(422, "Invalid", format!("{qualified} {name:?} is invalid: {texts}"));
        name.clone_into(&mut refusal.0.name);
        group.clone_into(&mut refusal.0.group);
        kind.clone_into(&mut refusal.0.kind);
        refusal.0.causes = causes.0;
        refusal
    }

    /// The revision asked for is compacted.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::plain(410, "Expired", message)
    }

    /// The revision asked for does not exist yet.
    pub fn revision_too_large(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let mut refusal = Self::plain(504, "Timeout", message);
        refusal.0.retry_after = Some(1);
        refusal.0.causes.push(Cause {
            reason: "ResourceVersionTooLarge",
            field: String::new(),
            message: "Too large resource version".to_owned(),
        });
        refusal
    }

    /// With a token to continue a list that cannot be continued at its own revision.
    #[must_use]
    pub fn with_continue(mut self, token: String) -> Self {
        self.0.continue_token = Some(token);
        self
    }

    /// With the kind, where upstream does not name the resource.
    #[must_use]
    pub fn naming(mut self, kind: &str) -> Self {
        kind.clone_into(&mut self.0.kind);
        self
    }

    /// With one more cause.
    #[must_use]
    pub fn with_cause(mut self, reason: &'static str, field: &str, message: &str) -> Self {
        self.0.causes.push(Cause { reason, field: field.to_owned(), message: message.to_owned() });
        self
    }

    /// HTTP status code.
    pub fn code(&self) -> u16 {
        self.0.code
    }

    /// Machine-readable reason.
    pub fn reason(&self) -> &'static str {
        self.0.reason
    }

    /// Seconds for the Retry-After header.
    pub fn retry_after(&self) -> Option<u32> {
        self.0.retry_after
    }

    /// The `Status` body.
    pub fn body(&self) -> Value {
        let body = &self.0;
        let mut details = serde_json::Map::new();
        for (name, text) in
            [("name", &body.name), ("group", &body.group), ("kind", &body.kind), ("uid", &body.uid)]
        {
            if !text.is_empty() {
                details.insert(name.to_owned(), json!(text));
            }
        }
        if let Some(seconds) = body.retry_after {
            details.insert("retryAfterSeconds".to_owned(), json!(seconds));
        }
        let mut causes = Vec::new();
        for cause in &body.causes {
            let mut entry = json!({"reason": cause.reason, "message": cause.message});
            if !cause.field.is_empty() {
                super::json::set(&mut entry, "/field", cause.field.clone());
            }
            causes.push(entry);
        }
        if !causes.is_empty() {
            details.insert("causes".to_owned(), Value::Array(causes));
        }
        let mut metadata = json!({});
        if let Some(token) = &body.continue_token {
            super::json::set(&mut metadata, "/continue", token.clone());
        }
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": metadata, "status": "Failure",
            "message": body.message, "code": body.code,
        });
        if !body.reason.is_empty() {
            super::json::set(&mut status, "/reason", body.reason);
        }
        if !details.is_empty() {
            super::json::set(&mut status, "/details", Value::Object(details));
        }
        status
    }
}

/// The body of a success that has no object to show.
pub fn success(details: Option<Value>) -> Value {
    let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    if let Some(details) = details {
        super::json::set(&mut status, "/details", details);
    }
    status
}
