//! Protobuf as the API server writes it, into the narrow kinds. Beside each type is its table ([`message!`]) with the
//! fields that are read, under their numbers in `generated.proto` of `k8s.io/api` and `k8s.io/apimachinery`.
//!
//! A single answer is the prefix `k8s\0` and a `runtime.Unknown`, whose `raw` is the object or list. The items
//! of a list in it are plain messages. A frame of a watch is a plain `meta.v1.WatchEvent`, whose
//! `object.raw` is again prefix and `Unknown`.

mod message;

use bytes::Bytes;

use super::{
    kinds::Narrow,
    wire::{AttachmentNames, DecodeError, Head, Status, WatchEvent, WatchEventKind},
};
pub(crate) use message::{
    Fields, Message, Value, entries, enumeration, lenient, message, own, quantities, read, time,
};
pub use message::{FromProtobuf, Values};

/// What every object begins with that is not inside a list.
pub(super) const PREFIX: &[u8] = b"k8s\0";

/// `runtime.TypeMeta`.
pub(super) struct TypeMeta {
    pub(super) kind: String,
}
message!(TypeMeta { kind: 2 });

/// Takes an object out of its envelope, a `runtime.Unknown`, if it is in one. No message of ours begins like the
/// prefix (`k` would be the beginning of a group).
fn open(body: &[u8], is_kind: impl FnOnce(&str) -> Result<(), DecodeError>) -> Result<&[u8], DecodeError> {
    let Some(unknown) = body.strip_prefix(PREFIX) else { return Ok(body) };
    let unknown = Message::parse(unknown, u64::MAX)?;
    if !unknown.of(3).bytes()?.is_empty() {
        return Err(DecodeError::Envelope("it has a content encoding"));
    }
    let TypeMeta { kind } = TypeMeta::from_values(unknown.of(1))?;
    is_kind(&kind)?;
    unknown.of(2).bytes()
}

fn is_a(wanted: &'static str) -> impl FnOnce(&str) -> Result<(), DecodeError> {
    move |kind| if kind == wanted { Ok(()) } else { Err(DecodeError::Kind(wanted)) }
}

pub(super) fn watch_event(frame: &Bytes) -> Result<WatchEvent, DecodeError> {
    let event = Message::parse(frame, u64::MAX)?;
    let kind = WatchEventKind::from_values(event.of(1)).map_err(|error| error.within("type"))?;
    let object = event.of(2).message(u64::MAX)?.of(1).bytes()?;
    if !object.starts_with(PREFIX) {
        return Err(DecodeError::Envelope("there is none"));
    }
    Ok(WatchEvent { kind, object: frame.slice_ref(object) })
}

/// The message of a pod.
pub(super) fn pod(raw: &[u8]) -> Result<&[u8], DecodeError> {
    open(raw, is_a("Pod"))
}

/// Decodes an object.
pub(super) fn object<T: Narrow>(raw: &[u8]) -> Result<T, DecodeError> {
    read(open(raw, is_a(T::KIND))?)
}

/// Reads a part of an object. What is broken after it does not matter.
fn part<T: FromProtobuf>(raw: &[u8], number: u32) -> Result<Option<T>, DecodeError> {
    for field in Fields(open(raw, |_| Ok(()))?) {
        match field? {
            (of, Value::Bytes(part)) if of == number => return read(part).map(Some),
            _ => {}
        }
    }
    Ok(None)
}

/// Reads the metadata, which all objects begin with.
pub(super) fn head(raw: &[u8]) -> Result<Head, DecodeError> {
    part(raw, 1)?.ok_or_else(|| DecodeError::value("metadata", "it is missing"))
}

/// Reads the names in the spec.
pub(super) fn attachment_names(raw: &[u8]) -> Result<AttachmentNames, DecodeError> {
    part(raw, 2).map(Option::unwrap_or_default)
}

pub(super) fn status(raw: &[u8]) -> Result<Status, DecodeError> {
    read(open(raw, is_a("Status"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s42_the_names_in_an_attachment_that_cannot_be_read() {
        let field = |number: u8, value: &[u8]| {
            let size = u8::try_from(value.len()).unwrap();
            [&[number << 3 | 2, size], value].concat()
        };
        let names = |node: Option<&str>, volume: Option<&str>| AttachmentNames {
            node: node.map(Into::into),
            volume: volume.map(Into::into),
        };
        let source = field(2, &field(1, b"pv"));
        // name, the spec, the names
        let cases = [
            ("both", [source.clone(), field(3, b"n1")].concat(), names(Some("n1"), Some("pv"))),
            ("no message", [field(2, b"\x0a\x09"), field(3, b"n1")].concat(), names(Some("n1"), None)),
            ("neither", Vec::new(), names(None, None)),
        ];
        for (name, spec, expected) in cases {
            let broken = [field(1, &field(1, b"va")), field(2, &spec), vec![3 << 3 | 2, 9]].concat();
            assert_eq!(attachment_names(&broken), Ok(expected), "{name}");
        }
    }
}
