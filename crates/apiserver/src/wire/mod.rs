//! What the API server's answers look like on the wire, in either encoding: pages of lists, events of
//! watches, single objects, error answers. No I/O here: bytes come in, values go out.
//!
//! Protobuf is asked for first and JSON taken from servers that cannot speak it; each answer says which it is
//! ([`Encoding::from_content_type`]). Items of a list and objects of events are handed out undecoded, as
//! slices of the body, so that each is decoded by itself and one that cannot be read blocks itself alone
//! (S42); [`Encoding::head`] says which one it was. Errors name the field and never quote content, which
//! may be a secret.

mod encoding;
mod error;
mod json;
mod list_reader;
mod splitter;
mod status;
mod values;

use bytes::Bytes;
use k8s_openapi::jiff::Timestamp;

pub use encoding::Encoding;
pub use error::DecodeError;
pub use list_reader::ListReader;
pub(crate) use splitter::MAX_FRAME;
pub use splitter::Splitter;
pub use status::{Status, StatusDetails};
pub use values::{AttachmentNames, Head, ListPart, WatchEvent, WatchEventKind};

use crate::{kinds::Narrow, protobuf};

/// Of an answer that is no `Status`, so many bytes are shown.
const QUOTED: usize = 256;

/// A time as objects and users have it: `metav1.Time`.
pub fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Encoding {
    /// Cuts the body of a watch into frames, each to be read by [`Encoding::watch_event`].
    pub fn splitter(self) -> Splitter {
        Splitter::new(self, MAX_FRAME)
    }

    /// Takes an event of a watch apart.
    ///
    /// # Errors
    /// If the frame is no event of a known type.
    pub fn watch_event(self, frame: &Bytes) -> Result<WatchEvent, DecodeError> {
        match self {
            Self::Json => json::watch_event(frame),
            Self::Protobuf => protobuf::watch_event(frame),
        }
    }

    /// Decodes an object: an item of a list, the object of an event, or the body of a single answer. What the
    /// kind does not keep is dropped.
    ///
    /// # Errors
    /// If it is of another kind, or a field that is kept cannot be read.
    pub fn object<T: Narrow>(self, raw: &Bytes) -> Result<T, DecodeError> {
        let mut object = match self {
            Self::Json => json::decode::<T>(raw)?,
            Self::Protobuf => protobuf::object::<T>(raw)?,
        };
        object.trim();
        Ok(object)
    }

    /// Reads what identifies an object, even if all else is wrong with it.
    ///
    /// # Errors
    /// If not even namespace and name can be read.
    pub fn head(self, raw: &Bytes) -> Result<Head, DecodeError> {
        match self {
            Self::Json => json::head(raw),
            Self::Protobuf => protobuf::head(raw),
        }
    }

    /// Reads which node and PersistentVolume a VolumeAttachment names, even if all else is wrong with it.
    pub fn attachment_names(self, raw: &Bytes) -> AttachmentNames {
        match self {
            Self::Json => json::attachment_names(raw),
            Self::Protobuf => protobuf::attachment_names(raw).unwrap_or_default(),
        }
    }

    /// What an error answer of server or proxy says: a `Status`, or the beginning of what is none.
    pub fn refusal(headers: &http::HeaderMap, body: &[u8]) -> Status {
        let is_said = headers.contains_key(http::header::CONTENT_TYPE);
        let encoding = if is_said { Self::of(headers) } else { Some(Self::Json) };
        let status = encoding.and_then(|encoding| encoding.status(&Bytes::copy_from_slice(body)).ok());
        status.unwrap_or_else(|| {
            let quoted = body.get(..body.len().min(QUOTED)).unwrap_or_default();
            Status { message: String::from_utf8_lossy(quoted).trim().to_owned(), ..Status::default() }
        })
    }

    /// Decodes the body of an error answer, or the object of an error event.
    ///
    /// # Errors
    /// If it is no `Status`.
    pub fn status(self, raw: &Bytes) -> Result<Status, DecodeError> {
        match self {
            Self::Json => json::decode(raw),
            Self::Protobuf => protobuf::status(raw),
        }
    }
}
