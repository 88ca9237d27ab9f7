//! Answers: what was made, and how it is sent, in pieces.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderMap, StatusCode};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

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

/// A page on its way, or what is still being made while it is sent.
#[derive(Debug)]
pub struct Sent {
    page: Arc<Page>,
    offset: usize,
    headers: HeaderMap,
    /// What is told bit by bit, for how long at most.
    stream: Option<(mpsc::Receiver<Bytes>, Duration)>,
}

impl From<Arc<Page>> for Sent {
    fn from(page: Arc<Page>) -> Self {
        Self { page, offset: 0, headers: HeaderMap::new(), stream: None }
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

    /// What is told bit by bit, until the other end of the channel is dropped, for so long at most.
    #[must_use]
    pub fn stream(content_type: &'static str, told: mpsc::Receiver<Bytes>, longest: Duration) -> Self {
        let answer = Answer { status: StatusCode::OK, content_type, body: String::new() };
        Self { stream: Some((told, longest)), ..Self::of(answer) }
    }

    /// With headers beside those that every answer has.
    #[must_use]
    pub fn with_headers(self, headers: HeaderMap) -> Self {
        Self { headers, ..self }
    }

    /// Those headers.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// How long it is told bit by bit at most; `None` for what is there whole.
    #[must_use]
    pub fn lasts(&self) -> Option<Duration> {
        self.stream.as_ref().map(|(_, longest)| *longest)
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
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some((told, _)) = &mut self.stream {
            return told.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))));
        }
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
        self.stream.is_none() && self.offset >= self.bytes().len()
    }

    fn size_hint(&self) -> SizeHint {
        if self.stream.is_some() {
            return SizeHint::default();
        }
        SizeHint::with_exact(self.bytes().len().saturating_sub(self.offset) as u64)
    }
}
