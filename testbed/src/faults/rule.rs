//! A rule of a test: one write, selected by its number or its content, and its fate.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Bytes, Frame};
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::BoxError;

use super::{
    passed::{Passed, whole},
    record::Write,
};

/// Where the world stops at a numbered write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPoint {
    /// The request never reaches the server.
    BeforeSending,
    /// The server commits, its answer never reaches the sender.
    AnswerLost,
    /// The sender has the answer; nothing after it is sent.
    AfterAnswer,
}

impl CrashPoint {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::BeforeSending, Self::AnswerLost, Self::AfterAnswer];
}

/// An answer that is not the server's.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// JSON body.
    pub body: Value,
    /// `Retry-After`, in whole seconds.
    pub retry_after: Option<Duration>,
}

impl Answer {
    /// A `Status` object as API servers send it.
    pub fn refusal(status: StatusCode, reason: &str) -> Self {
        let body = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "reason": reason, "code": status.as_u16(), "message": format!("injected: {reason}"),
        });
        Self { status, body, retry_after: None }
    }

    /// The same with `Retry-After`.
    #[must_use]
    pub fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after: Some(Duration::from_secs(seconds)), ..self }
    }

    pub(super) fn response(self) -> Result<Passed, BoxError> {
        let mut response =
            Response::builder().status(self.status).header(header::CONTENT_TYPE, "application/json");
        if let Some(pause) = self.retry_after {
            response = response.header(header::RETRY_AFTER, pause.as_secs());
        }
        Ok(response.body(whole(self.body.to_string().into()))?)
    }
}

pub(super) enum Action {
    Hold,
    Delay,
    DropUnsent,
    DropAnswer,
    Answer(Answer),
    Crash(CrashPoint),
}

pub(super) struct Rule {
    pub applies: Box<dyn Fn(&Write) -> bool + Send>,
    pub action: Action,
    pub gate: Arc<Gate>,
}

/// One read, as a test sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// Its number among all reads, from 1.
    pub number: usize,
    /// Path and query.
    pub target: String,
}

pub(super) struct ReadRule {
    pub applies: Box<dyn Fn(&Read) -> bool + Send>,
    pub answer: Answer,
}

impl std::fmt::Debug for ReadRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadRule").finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rule").finish_non_exhaustive()
    }
}

/// Meeting point of a test and one write.
#[derive(Debug)]
pub(super) struct Gate {
    reached: watch::Sender<Option<Write>>,
    /// Of a delayed write.
    answered: watch::Sender<Option<Write>>,
    open: watch::Sender<bool>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            reached: watch::Sender::new(None),
            answered: watch::Sender::new(None),
            open: watch::Sender::new(false),
        }
    }
}

impl Gate {
    pub fn reach(&self, write: Option<Write>) {
        self.reached.send_replace(write);
    }

    pub fn answer(&self, write: Option<Write>) {
        self.answered.send_replace(write);
    }

    /// Waits for the release. The sender is part of the gate, so that waiting cannot fail.
    pub async fn opened(&self) {
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }
}

/// A write that a test has asked for: wait for it, then let it go.
#[derive(Debug)]
pub struct Caught(Arc<Gate>);

impl Caught {
    pub(super) fn new(gate: Arc<Gate>) -> Self {
        Self(gate)
    }

    /// Waits until the write has come to the point asked for, however long that takes.
    pub async fn reached(&self) -> Write {
        Self::met(&self.0.reached).await
    }

    /// Waits until a delayed write, after its release, was answered.
    pub async fn answered(&self) -> Write {
        Self::met(&self.0.answered).await
    }

    async fn met(point: &watch::Sender<Option<Write>>) -> Write {
        let mut point = point.subscribe();
        loop {
            if let Some(write) = point.borrow_and_update().clone() {
                return write;
            }
            if point.changed().await.is_err() {
                // Not while the gate exists, which this borrows.
                return std::future::pending().await;
            }
        }
    }

    /// Whether the write has come already.
    pub fn is_reached(&self) -> bool {
        self.0.reached.borrow().is_some()
    }

    /// Lets a held write go on.
    pub fn release(&self) {
        self.0.open.send_replace(true);
    }
}

impl Drop for Caught {
    fn drop(&mut self) {
        self.release();
    }
}

/// A body that drops a guard when the sender of the request has been given all of it.
pub(super) struct Delivery<G> {
    body: UnsyncBoxBody<Bytes, BoxError>,
    guard: Option<G>,
}

impl<G> Delivery<G> {
    pub fn new(body: UnsyncBoxBody<Bytes, BoxError>, guard: G) -> Self {
        Self { body, guard: Some(guard) }
    }
}

impl<G: Unpin> Body for Delivery<G> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.guard = None;
        }
        frame
    }
}
