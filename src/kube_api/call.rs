//! One request to the API server, and what became of it.
//!
//! There are three ways a write can end: the server said yes, the server said no, or nobody knows.
//! The third is the reason for this module: [`CallError::is_certain`] tells a refusal (nothing was
//! written) from silence (it may have been), and the subsystems treat the latter as "may exist".
//! Nothing is retried here; who retries has to decide anew first.

use std::{sync::Arc, time::Duration};

use http_body_util::BodyExt;
use kube::{Client, client::Body, core::Status};
use serde_json::Value;
use thiserror::Error;
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, timeout},
};

use super::{error_chain, kinds::Narrow, leadership::Leadership};
use crate::metrics::ApiMetrics;

/// How long a request may take, unless [`Caller::with_request_timeout`] says less. Also sent to the
/// server, which then gives up too: a write that we no longer wait for must not land after another
/// leader has taken over, which is possible `lease duration - renew deadline` (5 s with the
/// defaults) after our last write at the earliest.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Requests in flight at once. More than an API server gives one client's priority level gains
/// nothing, and a bound keeps a mass move from starving the lease.
const MAX_IN_FLIGHT: usize = 64;

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Method and content type.
    pub verb: Verb,
    /// URL path without query.
    pub path: String,
    /// Body, for the verbs that have one.
    pub body: Option<Value>,
}

impl Request {
    /// Name of the object that the path leads to; of a create, that of the collection.
    fn object_name(&self) -> &str {
        let path = self.path.strip_suffix("/status").unwrap_or(&self.path);
        path.rsplit('/').next().unwrap_or_default()
    }
}

/// Method and content type of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Live read.
    Get,
    /// Create.
    Create,
    /// Replace; the body carries the resourceVersion.
    Update,
    /// JSON merge patch; the body carries `metadata.resourceVersion` and `metadata.uid`.
    Patch,
    /// Delete; the body carries the preconditions.
    Delete,
}

impl Verb {
    fn method(self) -> http::Method {
        match self {
            Self::Get => http::Method::GET,
            Self::Create => http::Method::POST,
            Self::Update => http::Method::PUT,
            Self::Patch => http::Method::PATCH,
            Self::Delete => http::Method::DELETE,
        }
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::Patch => "application/merge-patch+json",
            _ => "application/json",
        }
    }
}

/// Why a request has no result.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum CallError {
    /// We do not lead: nothing was sent.
    #[error("not the leader: nothing was sent")]
    NotLeader,
    /// The object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The object is no longer at the revision or UID that the request names.
    #[error("{0}")]
    Conflict(String),
    /// An object of that name exists.
    #[error("{0}")]
    AlreadyExists(String),
    /// The server is busy and names when to come back.
    #[error("the API server asks to wait {} s: {message}", after.as_secs())]
    Throttled {
        /// What the server said.
        message: String,
        /// `Retry-After`.
        after: Duration,
    },
    /// The server refuses the request as it is (validation, permission).
    #[error("{message}")]
    Refused {
        /// HTTP status.
        code: u16,
        /// What the server said.
        message: String,
    },
    /// No answer, or one that does not tell: the request may have been carried out.
    #[error("outcome unknown: {0}")]
    Unknown(String),
}

impl CallError {
    /// Whether it is certain that nothing was written.
    #[must_use]
    pub fn is_certain(&self) -> bool {
        !matches!(self, Self::Unknown(_))
    }
}

/// Sends requests, within the right to write and the budget.
#[derive(Clone)]
pub struct Caller {
    client: Client,
    leadership: Leadership,
    in_flight: Arc<Semaphore>,
    request_timeout: Duration,
    rate: Option<Arc<leaky_bucket::RateLimiter>>,
    metrics: Arc<ApiMetrics>,
    /// Requests of all callers in flight that matter; `None` for a caller whose own do not.
    work: Option<watch::Sender<usize>>,
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller").finish_non_exhaustive()
    }
}

impl Caller {
    /// A caller for the given client. Without `rate` there is no client-side limit: the server's
    /// priority and fairness decides, and its 429 answers are honoured.
    #[must_use]
    pub fn new(
        client: Client,
        leadership: Leadership,
        rate: Option<leaky_bucket::RateLimiter>,
        metrics: Arc<ApiMetrics>,
    ) -> Self {
        Self {
            client,
            leadership,
            in_flight: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            request_timeout: REQUEST_TIMEOUT,
            rate: rate.map(Arc::new),
            metrics,
            work: Some(watch::Sender::new(0)),
        }
    }

    /// The client itself, for watches.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A caller with a budget of its own, for traffic that must neither wait for the main traffic
    /// nor hold it up.
    #[must_use]
    pub fn with_own_budget(&self, in_flight: usize) -> Self {
        Self { in_flight: Arc::new(Semaphore::new(in_flight)), ..self.clone() }
    }

    /// A caller for traffic that others may keep waiting, one request at a time, and how many requests of
    /// those others are in flight.
    #[must_use]
    pub fn in_the_background(&self) -> (Self, watch::Receiver<usize>) {
        let work = self.work.clone().unwrap_or_default();
        (Self { work: None, ..self.with_own_budget(1) }, work.subscribe())
    }

    /// A caller whose requests may take only so long.
    #[must_use]
    pub fn with_request_timeout(self, request_timeout: Duration) -> Self {
        Self { request_timeout, ..self }
    }

    /// Reads an object live.
    ///
    /// # Errors
    /// [`CallError::NotFound`] proves absence; any other error proves nothing.
    pub async fn get<T: Narrow>(&self, key: &T::Key) -> Result<T, CallError> {
        let request = Request { verb: Verb::Get, path: T::path(key), body: None };
        decode(&self.send(&request).await?)
    }

    /// Sends a write and returns the object of the answer.
    ///
    /// # Errors
    /// See [`CallError`]; an answer that cannot be read counts as unknown outcome.
    pub async fn write<T: Narrow>(&self, request: &Request) -> Result<T, CallError> {
        decode(&self.send(request).await?)
    }

    /// Sends a request and returns the body of the answer.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn send(&self, request: &Request) -> Result<Vec<u8>, CallError> {
        if let Some(rate) = &self.rate {
            rate.acquire_one().await;
        }
        let Ok(_permit) = self.in_flight.acquire().await else {
            return Err(CallError::Unknown("shutting down".to_owned()));
        };
        // Last thing before sending, after every wait: the term may have ended meanwhile.
        if request.verb != Verb::Get && !self.leadership.may_write(Instant::now()) {
            return Err(CallError::NotLeader);
        }
        let _working = self.work.as_ref().map(Working::begin);
        let started = Instant::now();
        let result = match timeout(self.request_timeout, self.exchange(request)).await {
            Ok(result) => result,
            Err(_) => Err((0, CallError::Unknown(format!("no answer within {:?}", self.request_timeout)))),
        };
        let code = match &result {
            Ok((code, _)) | Err((code, _)) => *code,
        };
        self.metrics.observe(&request.verb.method(), code, started.elapsed());
        result.map(|(_, body)| body).map_err(|(_, error)| error)
    }

    async fn exchange(&self, request: &Request) -> Result<(u16, Vec<u8>), (u16, CallError)> {
        let unknown = |error: &dyn std::error::Error| (0, CallError::Unknown(error_chain(error)));
        let body = match &request.body {
            Some(body) => serde_json::to_vec(body).map_err(|error| unknown(&error))?,
            None => Vec::new(),
        };
        let http_request = http::Request::builder()
            .method(request.verb.method())
            .uri(format!("{}?timeout={}ms", request.path, self.request_timeout.as_millis()))
            .header(http::header::CONTENT_TYPE, request.verb.content_type())
            .header(http::header::ACCEPT, "application/json")
            .body(Body::from(body))
            .map_err(|error| (0, CallError::Refused { code: 0, message: error.to_string() }))?;
        let response = self.client.send(http_request).await.map_err(|error| unknown(&error))?;
        let status = response.status();
        let retry_after = response
            .headers()
            .get(http::header::RETRY_AFTER)
            .and_then(|value| value.to_str().ok())
            .and_then(|text| text.parse().ok())
            .map(Duration::from_secs);
        let body = response.into_body().collect().await.map_err(|error| unknown(&error))?.to_bytes();
        if status.is_success() {
            return Ok((status.as_u16(), body.to_vec()));
        }
        Err((status.as_u16(), classify(status.as_u16(), retry_after, &body, request.object_name())))
    }
}

/// A request in flight that matters.
struct Working<'a>(&'a watch::Sender<usize>);

impl<'a> Working<'a> {
    fn begin(work: &'a watch::Sender<usize>) -> Self {
        work.send_modify(|count| *count += 1);
        Self(work)
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

fn decode<T: Narrow>(body: &[u8]) -> Result<T, CallError> {
    let mut object: T = serde_json::from_slice(body)
        .map_err(|error| CallError::Unknown(format!("unreadable {} in the answer: {error}", T::KIND)))?;
    object.trim();
    Ok(object)
}

/// What an answer other than success means, to a request about the object of that name. A 5xx may come
/// after the write was committed, so it proves nothing; a 4xx is sent instead of writing. That an object
/// is gone is believed only if the API server says so of that very object: a proxy on the way answers
/// 404, too, and a namespace or a kind may be what was not found (S23, S24).
fn classify(code: u16, retry_after: Option<Duration>, body: &[u8], object: &str) -> CallError {
    let status: Status = serde_json::from_slice(body).unwrap_or_else(|_| {
        Status::failure(&String::from_utf8_lossy(body.get(..body.len().min(256)).unwrap_or_default()), "")
    });
    let message =
        if status.message.is_empty() { format!("the API server answered {code}") } else { status.message };
    let missing = status.details.map(|details| details.name).unwrap_or_default();
    match (code, status.reason.as_str()) {
        (404, "NotFound") if missing == object => CallError::NotFound(message),
        // The API server always gives a reason.
        (404, "") => CallError::Unknown(message),
        (409, "AlreadyExists") => CallError::AlreadyExists(message),
        (409, _) => CallError::Conflict(message),
        (429, _) => CallError::Throttled { message, after: retry_after.unwrap_or(Duration::from_secs(1)) },
        // A patch that names another UID is an attempt to change an immutable field.
        (422, _) if message.contains("metadata.uid") => CallError::Conflict(message),
        (400..=499, _) => CallError::Refused { code, message },
        _ => CallError::Unknown(message),
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Mutex};

    use super::*;
    use crate::{kube_api::leadership::Term, metrics::Metrics};

    /// A server that says yes, and remembers what it was asked.
    #[derive(Debug, Default)]
    struct Server {
        /// Method and URI, content type, and the requests in flight.
        asked: Vec<(String, String, usize)>,
        work: Option<watch::Receiver<usize>>,
    }

    impl Server {
        fn answer(&mut self, request: &http::Request<Body>) -> http::Response<Body> {
            let media = request.headers().get(http::header::CONTENT_TYPE).unwrap().to_str().unwrap();
            let line = format!("{} {}", request.method(), request.uri());
            let in_flight = self.work.as_ref().map_or(0, |work| *work.borrow());
            self.asked.push((line, media.to_owned(), in_flight));
            http::Response::new(Body::empty())
        }
    }

    fn caller() -> (Caller, Arc<Mutex<Server>>) {
        let server = Arc::new(Mutex::new(Server::default()));
        let answering = Arc::clone(&server);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let response = answering.lock().unwrap().answer(&request);
            async { Ok::<_, Infallible>(response) }
        });
        let client = Client::new(service, "default");
        let metrics = Arc::new(ApiMetrics::new(&Metrics::default(), "test").unwrap());
        (Caller::new(client, Leadership::new(Term::Unlimited), None, metrics), server)
    }

    fn request(verb: Verb) -> Request {
        Request { verb, path: "/x".to_owned(), body: None }
    }

    #[tokio::test]
    async fn a_request_says_what_its_body_is_and_how_long_it_is_waited_for() {
        let (caller, server) = caller();
        let hurried = caller.clone().with_request_timeout(Duration::from_secs(2));
        let cases = [
            (Verb::Get, "GET", "application/json"),
            (Verb::Create, "POST", "application/json"),
            (Verb::Update, "PUT", "application/json"),
            (Verb::Patch, "PATCH", "application/merge-patch+json"),
            (Verb::Delete, "DELETE", "application/json"),
        ];
        for (verb, method, media) in cases {
            for (caller, timeout) in [(&caller, 5000), (&hurried, 2000)] {
                caller.send(&request(verb)).await.unwrap();
                let line = format!("{method} /x?timeout={timeout}ms");
                assert_eq!(server.lock().unwrap().asked.pop(), Some((line, media.to_owned(), 0)));
            }
        }
    }

    #[tokio::test]
    async fn what_others_may_keep_waiting_has_its_own_budget_and_keeps_nobody_waiting() {
        let (caller, server) = caller();
        let (background, work) = caller.in_the_background();
        let room = |caller: &Caller| caller.in_flight.available_permits();
        assert_eq!([room(&caller), room(&background)], [MAX_IN_FLIGHT, 1]);
        server.lock().unwrap().work = Some(work.clone());
        for (caller, in_flight) in [(&caller, 1), (&background, 0), (&caller, 1)] {
            caller.send(&request(Verb::Get)).await.unwrap();
            assert_eq!(server.lock().unwrap().asked.pop().unwrap().2, in_flight);
            assert_eq!(*work.borrow(), 0, "it has ended");
        }
    }

    fn body(reason: &str, message: &str) -> Vec<u8> {
        let details = serde_json::json!({"name": "pv", "kind": "persistentvolumes"});
        let status =
            serde_json::json!({"kind": "Status", "reason": reason, "message": message, "details": details});
        status.to_string().into_bytes()
    }

    #[test]
    fn answers_are_classified_once() {
        let after = Some(Duration::from_secs(7));
        let cases: [(u16, &str, &str, CallError); 7] = [
            (404, "NotFound", "gone", CallError::NotFound("gone".into())),
            (409, "AlreadyExists", "there", CallError::AlreadyExists("there".into())),
            (409, "Conflict", "stale", CallError::Conflict("stale".into())),
            (
                422,
                "Invalid",
                "metadata.uid: field is immutable",
                CallError::Conflict("metadata.uid: field is immutable".into()),
            ),
            (422, "Invalid", "spec: no", CallError::Refused { code: 422, message: "spec: no".into() }),
            (
                429,
                "TooManyRequests",
                "busy",
                CallError::Throttled { message: "busy".into(), after: Duration::from_secs(7) },
            ),
            (504, "Timeout", "late", CallError::Unknown("late".into())),
        ];
        for (code, reason, message, expected) in cases {
            assert_eq!(classify(code, after, &body(reason, message), "pv"), expected, "{code} {reason}");
        }
    }

    #[test]
    fn only_silence_and_server_errors_leave_the_outcome_open() {
        assert!(!classify(500, None, b"boom", "pv").is_certain());
        assert!(classify(403, None, b"", "pv").is_certain());
    }

    #[test]
    fn s23_s24_only_the_api_server_proves_absence_and_only_of_the_object_asked_for() {
        let patch = |path: &str| Request { verb: Verb::Patch, path: path.to_owned(), body: None };
        let (spec, status) = ("/api/v1/persistentvolumes/pv", "/api/v1/persistentvolumes/pv/status");
        let other = "/api/v1/persistentvolumes/other";
        // name, path asked for, answer, whether it proves the object gone, and whether it is certain
        let cases = [
            ("it is gone", spec, body("NotFound", "gone"), true, true),
            ("a subresource of it", status, body("NotFound", "gone"), true, true),
            ("something else is gone", other, body("NotFound", "gone"), false, true),
            (
                "no such path",
                spec,
                br#"{"kind": "Status", "reason": "NotFound", "details": {}}"#.to_vec(),
                false,
                true,
            ),
            ("a proxy's object", spec, br#"{"message": "no route"}"#.to_vec(), false, false),
            ("a proxy's page", spec, b"404 page not found".to_vec(), false, false),
            ("nothing", spec, Vec::new(), false, false),
        ];
        for (name, path, answer, proves, is_certain) in cases {
            let error = classify(404, None, &answer, patch(path).object_name());
            assert_eq!(matches!(error, CallError::NotFound(_)), proves, "{name}: {error}");
            assert_eq!(error.is_certain(), is_certain, "{name}: {error}");
        }
    }
}
