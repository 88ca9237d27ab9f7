//! Protobuf as the API server writes it, into narrow messages that name only the fields we use. Field numbers
//! are those of `generated.proto` in `k8s.io/api` and `k8s.io/apimachinery`; unknown fields are skipped by
//! their length.
//!
//! A single answer is the prefix `k8s\0` and a `runtime.Unknown`, whose `raw` is the object or list. The items
//! of a list in it are plain messages. A frame of a watch is a plain `meta.v1.WatchEvent`, whose
//! `object.raw` is again prefix and `Unknown`.

mod claim;
mod meta;
mod node;
mod pod;
mod source;
mod storage;
mod volume;

use bytes::Bytes;
use prost::Message;

use super::{
    ids::{ResourceVersion, Uid},
    kinds::Narrow,
    wire::{DecodeError, Head, Status, StatusCause, StatusDetails, WatchEvent, WatchEventKind},
};

/// What every object begins with that is not inside a list.
pub(super) const PREFIX: &[u8] = b"k8s\0";

/// `runtime.Unknown`.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, required, tag = "1")]
    type_meta: TypeMeta,
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
    #[prost(string, tag = "3")]
    content_encoding: String,
}

/// `runtime.TypeMeta`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TypeMeta {
    #[prost(string, tag = "2")]
    pub(super) kind: String,
}

/// `meta.v1.ListMeta`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ListMeta {
    #[prost(string, tag = "2")]
    pub(super) resource_version: String,
    #[prost(string, tag = "3")]
    pub(super) r#continue: String,
}

/// `meta.v1.WatchEvent`.
#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(string, tag = "1")]
    r#type: String,
    #[prost(message, required, tag = "2")]
    object: RawExtension,
}

/// `runtime.RawExtension`.
#[derive(Clone, PartialEq, Message)]
struct RawExtension {
    #[prost(bytes = "bytes", tag = "1")]
    raw: Bytes,
}

/// `meta.v1.Status`.
#[derive(Clone, PartialEq, Message)]
struct StatusMessage {
    #[prost(string, tag = "2")]
    status: String,
    #[prost(bytes = "bytes", tag = "3")]
    message: Bytes,
    #[prost(string, tag = "4")]
    reason: String,
    #[prost(message, required, tag = "5")]
    details: StatusDetailsMessage,
    #[prost(int32, tag = "6")]
    code: i32,
}

/// `meta.v1.StatusDetails`.
#[derive(Clone, PartialEq, Message)]
struct StatusDetailsMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    kind: String,
    #[prost(message, repeated, tag = "4")]
    causes: Vec<StatusCauseMessage>,
    #[prost(int32, tag = "5")]
    retry_after_seconds: i32,
    #[prost(string, tag = "6")]
    uid: String,
}

/// `meta.v1.StatusCause`.
#[derive(Clone, PartialEq, Message)]
struct StatusCauseMessage {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(bytes = "bytes", tag = "2")]
    message: Bytes,
    #[prost(string, tag = "3")]
    field: String,
}

/// What all objects have in common, and no more.
#[derive(Clone, PartialEq, Message)]
struct Headed {
    #[prost(message, optional, tag = "1")]
    metadata: Option<HeadMessage>,
}

/// `meta.v1.ObjectMeta`, for [`Head`].
#[derive(Clone, PartialEq, Message)]
struct HeadMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(bytes = "bytes", tag = "5")]
    uid: Bytes,
    #[prost(bytes = "bytes", tag = "6")]
    resource_version: Bytes,
}

/// A text for people as Go writes it: protobuf's strings are UTF-8, but Go does not check, and an error
/// message of a driver may be anything. JSON has the same replacements.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Takes an object out of its envelope, if it is in one. No message of ours begins like the prefix (`k` would
/// be the beginning of a group).
fn open(body: &Bytes, is_kind: impl FnOnce(&str) -> Result<(), DecodeError>) -> Result<Bytes, DecodeError> {
    if !body.starts_with(PREFIX) {
        return Ok(body.clone());
    }
    let unknown = Unknown::decode(body.slice(PREFIX.len()..))?;
    if !unknown.content_encoding.is_empty() {
        return Err(DecodeError::Envelope("it has a content encoding"));
    }
    is_kind(&unknown.type_meta.kind)?;
    Ok(unknown.raw)
}

fn is_a(wanted: &'static str) -> impl FnOnce(&str) -> Result<(), DecodeError> {
    move |kind| if kind == wanted { Ok(()) } else { Err(DecodeError::Kind(wanted)) }
}

pub(super) fn watch_event(frame: &Bytes) -> Result<WatchEvent, DecodeError> {
    let event = Event::decode(frame.clone())?;
    let kind = match event.r#type.as_str() {
        "ADDED" => WatchEventKind::Added,
        "MODIFIED" => WatchEventKind::Modified,
        "DELETED" => WatchEventKind::Deleted,
        "BOOKMARK" => WatchEventKind::Bookmark,
        "ERROR" => WatchEventKind::Error,
        _ => return Err(DecodeError::Value { field: "type", what: "no type of an event" }),
    };
    if !event.object.raw.starts_with(PREFIX) {
        return Err(DecodeError::Envelope("there is none"));
    }
    Ok(WatchEvent { kind, object: event.object.raw })
}

/// Decodes an object.
pub(super) fn object<T: Narrow>(raw: &Bytes) -> Result<T, DecodeError> {
    T::from_protobuf(&open(raw, is_a(T::KIND))?)
}

pub(super) fn head(raw: &Bytes) -> Result<Head, DecodeError> {
    let mut headed = Headed::default();
    // What is broken after the metadata does not matter.
    let result = headed.merge(open(raw, |_| Ok(()))?);
    let Some(metadata) = headed.metadata else {
        result?;
        return Err(DecodeError::Value { field: "metadata", what: "it is missing" });
    };
    let utf8 = |bytes: Bytes| String::from_utf8(bytes.into()).ok().filter(|text| !text.is_empty());
    Ok(Head {
        namespace: metadata.namespace.into(),
        name: metadata.name.into(),
        uid: utf8(metadata.uid).map(Uid::from),
        resource_version: utf8(metadata.resource_version)
            .and_then(|text| text.parse().ok())
            .map(ResourceVersion),
    })
}

pub(super) fn status(raw: &Bytes) -> Result<Status, DecodeError> {
    let status = StatusMessage::decode(open(raw, is_a("Status"))?)?;
    let details = status.details;
    Ok(Status {
        status: status.status,
        code: status.code,
        reason: status.reason,
        message: text(&status.message),
        details: StatusDetails {
            name: details.name,
            kind: details.kind,
            uid: details.uid,
            causes: details
                .causes
                .into_iter()
                .map(|cause| StatusCause {
                    reason: cause.reason,
                    message: text(&cause.message),
                    field: cause.field,
                })
                .collect(),
            retry_after_seconds: details.retry_after_seconds,
        },
    })
}
