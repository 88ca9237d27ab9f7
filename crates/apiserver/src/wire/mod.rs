//! What the API server's answers look like on the wire, in either encoding: pages of lists, events of
//! watches, single objects, error answers. No I/O here: bytes come in, values go out.
//!
//! Protobuf is asked for first and JSON taken from servers that cannot speak it; each answer says which it is
//! ([`Encoding::from_content_type`]). Items of a list and objects of events are handed out undecoded, as
//! slices of the body, so that each is decoded by itself and one that cannot be read blocks itself alone
//! (S42); [`Encoding::head`] says which one it was. Errors name the field and never quote content, which
//! may be a secret.

mod error;
mod json;
mod list_reader;
mod splitter;
mod status;

use arcstr::ArcStr;
use bytes::Bytes;
use serde::Deserialize;

pub use error::DecodeError;
pub use list_reader::{ListPart, ListReader};
pub(crate) use splitter::MAX_FRAME;
pub use splitter::Splitter;
pub use status::{Status, StatusCause, StatusDetails};

use super::{
    ids::{ResourceVersion, Uid},
    kinds::{Meta, Narrow},
    protobuf,
};

/// Media type of protobuf.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Of an answer that is no `Status`, so many bytes are shown.
const QUOTED: usize = 256;

/// Media type of JSON.
const JSON: &str = "application/json";

/// What answers we ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accept {
    /// Protobuf, and JSON from servers that cannot speak it.
    #[default]
    Protobuf,
    /// JSON alone.
    Json,
}

impl Accept {
    /// `Accept` of a list, a read or a write. (client-go sends the same for its built-in types.)
    #[must_use]
    pub fn single(self) -> &'static str {
        match self {
            Self::Protobuf => "application/vnd.kubernetes.protobuf,application/json",
            Self::Json => JSON,
        }
    }

    /// `Accept` of a watch. The API server adds `stream=watch` to its answer in any case; naming it is what its
    /// documentation asks for.
    #[must_use]
    pub fn watch(self) -> &'static str {
        match self {
            Self::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch,application/json",
            Self::Json => JSON,
        }
    }
}

/// How an answer is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// JSON; a watch is one document a line.
    Json,
    /// Protobuf; single answers and objects of events are in an envelope, a watch is length-delimited.
    Protobuf,
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPage {
    /// Revision of the list, the same on all its pages.
    pub revision: ResourceVersion,
    /// Token by which the next page is asked for; `None` on the last page.
    pub next: Option<String>,
    /// The items, undecoded.
    pub items: Vec<Bytes>,
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// What happened.
    pub kind: WatchEventKind,
    /// To which object, undecoded: a slice of the frame. For [`WatchEventKind::Error`] a [`Status`]; of a
    /// bookmark only the revision means anything ([`Encoding::head`]).
    pub object: Bytes,
}

/// `type` of a watch event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum WatchEventKind {
    /// The object is new to the watch.
    Added,
    /// The object changed.
    Modified,
    /// The object is gone; it is shown as it was last, at the revision of the deletion.
    Deleted,
    /// Nothing happened up to this revision.
    Bookmark,
    /// The watch ends; the object is a [`Status`].
    Error,
}

/// What identifies an object whose whole may be unreadable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Namespace, empty for cluster-scoped kinds.
    pub namespace: ArcStr,
    /// Name; empty in a bookmark.
    pub name: ArcStr,
    /// UID, if it can be read.
    pub uid: Option<Uid>,
    /// Revision, if it can be read.
    pub resource_version: Option<ResourceVersion>,
}

impl Head {
    /// The key of the object, as one of that kind.
    #[must_use]
    pub fn key<T: Narrow>(&self) -> T::Key {
        T::key_of(&Meta { namespace: self.namespace.clone(), name: self.name.clone(), ..Meta::default() })
    }
}

impl Encoding {
    /// The encoding of an answer by its headers.
    #[must_use]
    pub fn of(headers: &http::HeaderMap) -> Option<Self> {
        Self::from_content_type(headers.get(http::header::CONTENT_TYPE)?.to_str().ok()?)
    }

    /// The encoding of an answer by its `Content-Type`; `None` for any other (a page of a proxy).
    #[must_use]
    pub(crate) fn from_content_type(value: &str) -> Option<Self> {
        let media = value.split(';').next().unwrap_or_default().trim();
        if media.eq_ignore_ascii_case(PROTOBUF) {
            Some(Self::Protobuf)
        } else if media.eq_ignore_ascii_case(JSON) {
            Some(Self::Json)
        } else {
            None
        }
    }

    /// Takes a page of a list apart that is there as a whole.
    ///
    /// # Errors
    /// See [`ListReader::next_part`].
    pub fn list_page(self, body: &[u8]) -> Result<ListPage, DecodeError> {
        let mut reader = ListReader::new(self);
        reader.push(body);
        let (mut said, mut items) = (None, Vec::new());
        let mut take = |part| match part {
            ListPart::Meta { revision, next } => said = Some((revision, next)),
            ListPart::Item(item) => items.push(item),
        };
        while let Some(part) = reader.next_part()? {
            take(part);
        }
        reader.end()?;
        while let Some(part) = reader.next_part()? {
            take(part);
        }
        let missing = DecodeError::Value { field: "metadata", what: "it is missing" };
        let (revision, next) = said.ok_or(missing)?;
        Ok(ListPage { revision, next, items })
    }

    /// Cuts the body of a watch into frames, each to be read by [`Encoding::watch_event`].
    #[must_use]
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

    /// What an error answer of server or proxy says: a `Status`, or the beginning of what is none.
    #[must_use]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_says_how_it_is_encoded() {
        let cases = [
            ("application/json", Some(Encoding::Json)),
            ("Application/JSON; charset=utf-8", Some(Encoding::Json)),
            ("application/vnd.kubernetes.protobuf", Some(Encoding::Protobuf)),
            ("application/vnd.kubernetes.protobuf;stream=watch", Some(Encoding::Protobuf)),
            ("application/json;stream=watch", Some(Encoding::Json)),
            ("application/apply-patch+yaml", None),
            ("text/plain; charset=utf-8", None),
            ("application/vnd.kubernetes.protobuffer", None),
            ("", None),
        ];
        for (value, expected) in cases {
            assert_eq!(Encoding::from_content_type(value), expected, "{value}");
        }
    }
}
