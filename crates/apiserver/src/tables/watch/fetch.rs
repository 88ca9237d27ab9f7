//! The requests of a reflector: pages of lists, and watches, each with a deadline.
//!
//! In: a path with its query. Out: a [`Page`] of a list part by part, a [`Stream`] of events, or [`Trouble`].
//! Each request counts in `rest_client_*`; how long it takes to open a watch is not measured there, as with client-go.
//! Connections are the fetcher's own, so that they can be given up: a server that froze keeps those it has.

use std::{sync::Arc, time::Duration};

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Collected, Limited};
use kube::{Client, client::Body};
use thiserror::Error;
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    call::answer::retry_after,
    connect::ApiServer,
    error_chain,
    ids::ResourceVersion,
    kinds::{Narrow, api_root},
    metrics::ApiMetrics,
    tables::Regression,
    wire::{DecodeError, Encoding, ListPart, ListReader, Splitter, Status, WatchEvent},
};

/// How long one page may take. The API server gives up after as long by default.
pub(super) const PAGE_DEADLINE: Duration = Duration::from_mins(1);
/// How long a watch may take to open: the server answers before it looks for events.
const OPEN_DEADLINE: Duration = Duration::from_secs(10);
/// Most of a page that is held at once, in bytes: many objects of the largest size that etcd takes, and
/// far less than a container has.
const LARGEST_BODY: usize = 64 << 20;
/// Largest body of a refusal, in bytes: only its beginning is shown.
const LARGEST_REFUSAL: usize = 64 << 10;

/// Why a list or a watch has no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Trouble {
    /// The server said no.
    #[error("{code} {reason}: {message}")]
    Refused {
        /// HTTP status, or that of a watch's error event.
        code: u16,
        /// Reason in one word; empty if it was not the API server that answered.
        reason: String,
        /// What people read.
        message: String,
        /// When the server asks to come back.
        retry_after: Option<Duration>,
    },
    /// The revision or the token of the next page is too old.
    #[error("expired: {0}")]
    Expired(String),
    /// No answer in time.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// The answer is larger than is read: fewer objects are to be asked for.
    #[error("the answer has more than {0} bytes")]
    TooLarge(usize),
    /// No answer, or one that broke off.
    #[error("{0}")]
    Broken(String),
    /// An answer that cannot be read.
    #[error("the answer cannot be read: {0}")]
    Unreadable(#[from] DecodeError),
    /// What is answered proves that etcd was restored.
    #[error(transparent)]
    Restored(#[from] Regression),
    /// Pages that do not show one revision.
    #[error("a page shows revision {page}, the list began at {list}")]
    TwoRevisions {
        /// Revision of the first page.
        list: u64,
        /// Revision of a later one.
        page: u64,
    },
}

impl Trouble {
    /// When the server asks to come back.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// What the server's refusal means.
    fn of(status: Status, retry_after: Option<Duration>) -> Self {
        if status.is_expired() {
            return Self::Expired(status.message);
        }
        let retry_after = retry_after.or_else(|| status.retry_after());
        let code = u16::try_from(status.code).unwrap_or_default();
        Self::Refused { code, reason: status.reason, message: status.message, retry_after }
    }
}

/// The page of a list, by the token that the page before had.
pub(super) fn list_uri<T: Narrow>(limit: usize, next: Option<&str>) -> String {
    page_uri(&format!("{}/{}", api_root(T::GROUP), T::PLURAL), limit, next)
}

/// The same of a list whose path has a `?` or not.
pub fn page_uri(path: &str, limit: usize, next: Option<&str>) -> String {
    let mut uri = format!("{path}{}limit={limit}", if path.contains('?') { '&' } else { '?' });
    if let Some(token) = next {
        uri.push_str("&continue=");
        uri.extend(form_urlencoded::byte_serialize(token.as_bytes()));
    }
    uri
}

/// Sends a reflector's requests.
#[derive(Clone)]
pub struct Fetcher {
    api: ApiServer,
    client: Client,
    accept: Encoding,
    metrics: Arc<ApiMetrics>,
}

impl Fetcher {
    /// A fetcher with connections of its own.
    ///
    /// # Errors
    /// See [`ApiServer::client`].
    pub fn new(api: &ApiServer, metrics: Arc<ApiMetrics>) -> Result<Self, crate::connect::ConnectError> {
        Ok(Self { api: api.clone(), client: api.client()?, accept: Encoding::default(), metrics })
    }

    /// The same, asking for such answers.
    #[must_use]
    pub fn accepting(self, accept: Encoding) -> Self {
        Self { accept, ..self }
    }

    /// The same with new connections: what is asked next does not go to a server that does not answer.
    pub(crate) fn reconnect(&mut self) {
        match self.api.client() {
            Ok(client) => self.client = client,
            Err(error) => {
                tracing::warn!(error = %error_chain(&error), "could not open new connections: keeping the old ones");
            }
        }
    }

    /// Asks for a page of a list, to be read while it arrives. The answer is to begin in that time.
    ///
    /// # Errors
    /// See [`Trouble`].
    pub async fn list(&self, uri: &str, patience: Duration) -> Result<Page, Trouble> {
        let started = Instant::now();
        let result = timeout(patience.min(PAGE_DEADLINE), async {
            let response = self.send(uri, self.accept.single()).await?;
            let encoding = encoding(&response)?;
            let (body, reader) = (response.into_body(), ListReader::new(encoding));
            let metrics = Arc::clone(&self.metrics);
            Ok::<_, Trouble>(Page { encoding, body, reader, has_ended: false, size: 0, started, metrics })
        });
        let result = result.await.unwrap_or(Err(Trouble::Late(patience)));
        if let Err(trouble) = &result {
            count(&self.metrics, Err(trouble), started);
        }
        result
    }

    /// Asks for the revision of now, at a quorum.
    ///
    /// # Errors
    /// See [`Trouble`]: one that is below what was observed proves a restore.
    pub(super) async fn revision_of_now<T: Narrow>(
        &self,
        observed: ResourceVersion,
        limit: Duration,
    ) -> Result<ResourceVersion, Trouble> {
        let mut page = self.list(&list_uri::<T>(1, None), limit).await?;
        let mut revision = None;
        while let Some(part) = page.next(limit).await? {
            if let ListPart::Meta { revision: listed, .. } = part {
                revision = Some(listed);
            }
        }
        let listed = revision.ok_or_else(|| DecodeError::value("metadata", "it is missing"))?;
        if listed < observed {
            return Err(Regression::List { kind: T::PLURAL, listed, observed }.into());
        }
        Ok(listed)
    }

    /// Opens a watch.
    ///
    /// # Errors
    /// See [`Trouble`].
    pub async fn open(&self, uri: &str) -> Result<Stream, Trouble> {
        let result = timeout(OPEN_DEADLINE, async {
            let response = self.send(uri, self.accept.watch()).await?;
            let encoding = encoding(&response)?;
            Ok::<_, Trouble>(Stream { encoding, body: response.into_body(), splitter: encoding.splitter() })
        });
        let result = result.await.unwrap_or(Err(Trouble::Late(OPEN_DEADLINE)));
        self.metrics.answered(&Method::GET, code(result.as_ref().map(|_| ())));
        result
    }

    async fn send(&self, uri: &str, accept: &str) -> Result<Response<Body>, Trouble> {
        let request = Request::get(uri)
            .header(header::ACCEPT, accept)
            .body(Body::empty())
            .map_err(|error| Trouble::Broken(error.to_string()))?;
        let response =
            self.client.send(request).await.map_err(|error| Trouble::Broken(error_chain(&error)))?;
        let status = response.status();
        if status == StatusCode::OK {
            return Ok(response);
        }
        let headers = response.headers().clone();
        let body = Limited::new(response.into_body(), LARGEST_REFUSAL).collect().await;
        let said = Encoding::refusal(&headers, &body.map(Collected::to_bytes).unwrap_or_default());
        let retry_after = retry_after(&headers);
        Err(Trouble::of(Status { code: status.as_u16().into(), ..said }, retry_after))
    }
}

/// Counts a list: its answer with so many bytes, or why there is none.
fn count(metrics: &ApiMetrics, result: Result<usize, &Trouble>, started: Instant) {
    let code = code(result.map(|_| ()));
    metrics.sent(&Method::GET, 0);
    if let Ok(bytes) = result {
        metrics.received(&Method::GET, bytes);
    }
    if result.is_err_and(|trouble| trouble.retry_after().is_some()) {
        metrics.retried(&Method::GET, code);
    }
    metrics.observe(&Method::GET, code, started.elapsed());
}

/// Status of an answer; 0 if there was none.
fn code(result: Result<(), &Trouble>) -> u16 {
    match result {
        Ok(()) => 200,
        Err(Trouble::Refused { code, .. }) => *code,
        Err(Trouble::Expired(_)) => 410,
        Err(_) => 0,
    }
}

fn encoding(response: &Response<Body>) -> Result<Encoding, Trouble> {
    let other = || response.headers().get(header::CONTENT_TYPE).cloned();
    Encoding::of(response.headers())
        .ok_or_else(|| Trouble::Broken(format!("the answer is neither protobuf nor JSON but {:?}", other())))
}

/// A page of a list that is being read.
pub struct Page {
    encoding: Encoding,
    body: Body,
    reader: ListReader,
    has_ended: bool,
    size: usize,
    started: Instant,
    metrics: Arc<ApiMetrics>,
}

impl Page {
    /// How its objects are encoded.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// How much of it has arrived, in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Its next part; none at its end. No longer than that is waited for a part, nor longer than a page may take for
    /// all of them.
    ///
    /// # Errors
    /// See [`Trouble`].
    pub async fn next(&mut self, patience: Duration) -> Result<Option<ListPart>, Trouble> {
        let deadline = (Instant::now() + patience).min(self.started + PAGE_DEADLINE);
        let late = Err(Trouble::Late(patience.min(PAGE_DEADLINE)));
        let part = timeout_at(deadline, self.part()).await.unwrap_or(late);
        match &part {
            Ok(Some(_)) => {}
            Ok(None) => count(&self.metrics, Ok(self.size), self.started),
            Err(trouble) => count(&self.metrics, Err(trouble), self.started),
        }
        part
    }

    async fn part(&mut self) -> Result<Option<ListPart>, Trouble> {
        loop {
            if let Some(part) = self.reader.next_part()? {
                return Ok(Some(part));
            }
            if self.has_ended {
                return Ok(None);
            }
            match self.body.frame().await {
                None => {
                    self.reader.end()?;
                    self.has_ended = true;
                }
                Some(Err(error)) => return Err(Trouble::Broken(error_chain(&error))),
                Some(Ok(frame)) => {
                    let Some(data) = frame.data_ref() else { continue };
                    self.size += data.len();
                    if self.reader.held() + data.len() > LARGEST_BODY {
                        return Err(Trouble::TooLarge(LARGEST_BODY));
                    }
                    self.reader.push(data);
                }
            }
        }
    }
}

/// An open watch.
pub struct Stream {
    encoding: Encoding,
    body: Body,
    splitter: Splitter,
}

impl Stream {
    /// How its objects are encoded.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// The next event; none when the server ended the watch. Cancel safe.
    ///
    /// # Errors
    /// A stream that broke off or cannot be cut into events, and what the server says in an error event.
    pub async fn next(&mut self) -> Result<Option<WatchEvent>, Trouble> {
        loop {
            if let Some(frame) = self.splitter.next_frame()? {
                return Ok(Some(self.encoding.watch_event(&frame)?));
            }
            match self.body.frame().await {
                None => {
                    self.splitter.finish()?;
                    return Ok(None);
                }
                Some(Err(error)) => return Err(Trouble::Broken(error_chain(&error))),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.splitter.push(data);
                    }
                }
            }
        }
    }

    /// What an error event says.
    pub fn trouble(&self, event: &WatchEvent) -> Trouble {
        let status = self.encoding.status(&event.object);
        status.map_or_else(Trouble::Unreadable, |status| Trouble::of(status, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_asked_for_with_the_token_of_the_last() {
        assert_eq!(page_uri("/api/v1/pods", 5, None), "/api/v1/pods?limit=5");
        let next = page_uri("/api/v1/pods?x=1", 5, Some("t&/"));
        assert_eq!(next, "/api/v1/pods?x=1&limit=5&continue=t%26%2F");
    }
}
