//! Answers: what was made, and how it is sent, in pieces.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::StatusCode;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

/// What is written at once. The rest of the page stays in one place for all its readers.
pub(super) const PIECE: usize = 32 * 1024;

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
    #[must_use]
    pub fn text(status: StatusCode, body: String) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body }
    }

    /// A JSON document, in the form that takes the least memory: its readers have `jq`. It is made while it is
    /// written, so a page of many rows holds one of them at a time beside its text.
    #[must_use]
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

/// A page, for all its readers.
#[derive(Debug)]
pub struct Page {
    answer: Answer,
    /// What is sent in place of the answer's text, if that is none.
    binary: Option<Bytes>,
    #[expect(dead_code, reason = "given back when the last reader is done")]
    permit: Option<OwnedSemaphorePermit>,
}

impl Page {
    /// A page of text; the permit is given back when its last reader is done.
    pub(super) fn new(answer: Answer, permit: Option<OwnedSemaphorePermit>) -> Self {
        Self { answer, binary: None, permit }
    }
}

/// An answer, and whether it was given to a known user.
#[derive(Debug)]
pub struct Reply {
    /// The answer.
    pub sent: Sent,
    /// Whether the peer has shown that it may read this.
    pub known: bool,
}

/// A page on its way.
#[derive(Debug)]
pub struct Sent {
    page: Arc<Page>,
    offset: usize,
}

impl From<Arc<Page>> for Sent {
    fn from(page: Arc<Page>) -> Self {
        Self { page, offset: 0 }
    }
}

impl Sent {
    /// An answer that was made at once.
    #[must_use]
    pub fn of(answer: Answer) -> Self {
        Self::from(Arc::new(Page { answer, binary: None, permit: None }))
    }

    /// An answer that is no text.
    #[must_use]
    pub fn binary(content_type: &'static str, body: Vec<u8>) -> Self {
        let answer = Answer { status: StatusCode::OK, content_type, body: String::new() };
        Self::from(Arc::new(Page { answer, binary: Some(body.into()), permit: None }))
    }

    fn bytes(&self) -> &[u8] {
        self.page.binary.as_deref().unwrap_or(self.page.answer.body.as_bytes())
    }

    /// The answer.
    #[must_use]
    pub fn answer(&self) -> &Answer {
        &self.page.answer
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let rest = self.bytes().get(self.offset..).unwrap_or_default();
        if rest.is_empty() {
            return Poll::Ready(None);
        }
        // A copy: what waits to be written must not hold on to the whole page.
        let piece = Bytes::copy_from_slice(rest.get(..PIECE).unwrap_or(rest));
        self.offset += piece.len();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.offset >= self.bytes().len()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes().len().saturating_sub(self.offset) as u64)
    }
}
