//! What a page or a check says: made as a value, so that a test reads it.

use axum::response::{IntoResponse, Response};
use http::{StatusCode, header::CONTENT_TYPE};
use serde::Serialize;

/// An answer with its status and content type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// `Content-Type`.
    pub content_type: &'static str,
    /// Body.
    pub body: String,
}

impl Answer {
    /// An answer in plain text.
    pub fn text(status: StatusCode, body: String) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body }
    }

    /// A JSON document, in the form that takes the least memory: its readers have `jq`. It is made while it is
    /// written, so a page of many rows holds one of them at a time beside its text.
    pub fn json(document: &impl Serialize) -> Self {
        match serde_json::to_string(document) {
            Ok(mut body) => {
                body.push('\n');
                Self { status: StatusCode::OK, content_type: "application/json", body }
            }
            Err(error) => Self::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        }
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        (self.status, [(CONTENT_TYPE, self.content_type)], self.body).into_response()
    }
}
