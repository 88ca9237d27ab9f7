//! One request to the API server, and what became of it.
//!
//! There are three ways a write can end: the server said yes, the server said no, or the outcome is unknown.
//! The third is the reason for this module: [`CallError::is_certain`] tells a refusal (nothing was
//! written) from silence (it may have been), and the subsystems treat the latter as "may exist".
//! Nothing is retried here; who retries has to decide anew first.
//!
//! A server that is too busy for all of them pauses all callers of a client ([`pause`]). How long a request may take
//! follows from the lease ([`deadline`]); that a write of a term is over before another's may begin is made certain by
//! [`gate`]; what is not answered in time is counted ([`overdue`]).

pub mod answer;
pub mod deadline;
mod error;
pub mod gate;
mod overdue;
mod pause;
mod rate;
mod request;
mod single;
mod target;
mod wishes;

use std::{pin::pin, sync::Arc, time::Duration};

use http_body_util::BodyExt;
use kube::{Client, client::Body};
use scopeguard::guard;
use telemetry::metrics::Alarms;
use tokio::{
    sync::{Semaphore, SemaphorePermit, watch},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

pub use self::{
    error::CallError,
    rate::RateLimit,
    request::{Request, Verb},
    target::Target,
    wishes::{Wish, Wishes},
};

use self::{
    answer::{Answer, classify, retry_after},
    deadline::{ANSWER, Allowance, LONGEST_REQUEST, allowance},
    gate::{Gate, Kept},
    overdue::{Ending, Expectation, Overdue},
    pause::Pause,
    rate::Rate,
};
use super::{
    error_chain,
    ids::Uid,
    kinds::Narrow,
    leadership::{Leadership, Term},
    managed_fields::owners,
    wire::Encoding,
};
use crate::metrics::ApiMetrics;

/// Requests in flight at once. More than an API server gives one client's priority level gains
/// nothing, and a bound keeps a mass move from starving the lease.
const MAX_IN_FLIGHT: usize = 64;

/// Who ends a write that it has not begun with after so long has waited for its body.
const IN_VAIN: Duration = Duration::from_secs(1);

/// Sends requests, within the right to write and the budget.
#[derive(Clone, derive_more::Debug)]
#[debug("Caller")]
#[must_use]
pub struct Caller {
    client: Client,
    leadership: Leadership,
    in_flight: Arc<Semaphore>,
    request_timeout: Duration,
    rate: Option<Rate>,
    metrics: Arc<ApiMetrics>,
    overdue: Arc<Overdue>,
    /// `None` for a caller whose refusals say nothing about the others' requests.
    pause: Option<Arc<Pause>>,
    /// Requests of all callers in flight that matter; `None` for a caller whose own do not.
    work: Option<watch::Sender<usize>>,
    /// Whose requests these are, if they are a subsystem's.
    subsystem: Option<&'static str>,
    accept: Encoding,
    /// Which writes do no harm in the term of another leader.
    may_be_late: fn(&Request) -> bool,
    /// Where writes go in place of the API server, in a process that only observes.
    wishes: Option<Wishes>,
    /// Cancelled when the process is to end.
    ending: CancellationToken,
}

/// A request that may be sent: its place among those in flight, how long it waited for the limit on this side, and how long
/// the server may take over it.
type Admitted<'a> = (SemaphorePermit<'a>, Duration, Duration);

/// What came back for a request: the HTTP status, 0 if there was none, and what it means.
type Exchanged = (u16, Result<Answer, CallError>);

/// How a write ended that was kept back: what came back, if anything did in time, and why its body never left.
type Guarded = (Option<Exchanged>, Option<Kept>);

impl Caller {
    /// A caller for the given client. Without `rate` there is no client-side limit: the server's
    /// priority and fairness decides, and its 429 answers are honoured.
    pub fn new(
        client: Client,
        leadership: Leadership,
        rate: Option<RateLimit>,
        metrics: Arc<ApiMetrics>,
    ) -> Self {
        Self {
            client,
            leadership,
            in_flight: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            request_timeout: LONGEST_REQUEST,
            rate: rate.map(Rate::new),
            overdue: Arc::new(Overdue::new(Arc::clone(&metrics), None)),
            pause: Some(Arc::default()),
            metrics,
            work: Some(watch::Sender::new(0)),
            subsystem: None,
            accept: Encoding::default(),
            may_be_late: |_| false,
            wishes: None,
            ending: CancellationToken::new(),
        }
    }

    /// The same, which from this sign on begins nothing more, and gives up what it reads: no decision follows from that
    /// any more. The answers to writes are awaited (L14).
    pub fn until(self, ending: CancellationToken) -> Self {
        Self { ending, ..self }
    }

    /// The same, which sends such writes at once although they may land in the term of another leader; without this it
    /// keeps each write back until the server asks for its body. That costs an API server a tenth of what the write costs.
    pub fn letting_be_late(self, may_be_late: fn(&Request) -> bool) -> Self {
        Self { may_be_late, ..self }
    }

    /// The same, which reads, and hands each write over in place of sending it. Who else has written is of no interest to it.
    pub fn observing(self, wishes: Wishes) -> Self {
        Self { wishes: Some(wishes), ..self }
    }

    /// The same, asking for such answers to reads and writes of objects.
    pub fn accepting(self, accept: Encoding) -> Self {
        Self { accept, ..self }
    }

    /// The same for the requests of a subsystem, which are counted while they are under way.
    pub fn of_subsystem(&self, subsystem: &'static str) -> Self {
        Self { subsystem: Some(subsystem), ..self.clone() }
    }

    /// The same, which raises an alarm when no `100 Continue` comes.
    pub fn with_alarms(self, alarms: Alarms) -> Self {
        let overdue = Arc::new(Overdue::new(Arc::clone(&self.metrics), Some(alarms)));
        Self { overdue, ..self }
    }

    /// The client itself, for watches.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A caller with a budget and a limit per second of its own, for traffic that must neither wait for the main traffic
    /// nor hold it up.
    pub fn with_own_budget(&self, in_flight: usize) -> Self {
        let rate = self.rate.as_ref().map(Rate::anew);
        Self { in_flight: Arc::new(Semaphore::new(in_flight)), rate, ..self.clone() }
    }

    /// A caller for traffic that others may keep waiting, one request at a time, and how many requests of
    /// those others are in flight. Its writes do no harm when they come late, so it goes on when the process is to end. The
    /// API server may limit them apart from all others (`EventRateLimit`), so no other request pauses for them, nor they for others.
    pub(crate) fn in_the_background(&self) -> (Self, watch::Receiver<usize>) {
        let work = self.work.clone().unwrap_or_default();
        let ending = CancellationToken::new();
        (Self { work: None, pause: None, ending, ..self.with_own_budget(1) }, work.subscribe())
    }

    /// Whether this process leads.
    pub(crate) fn may_write(&self) -> bool {
        self.leadership.may_write(Instant::now())
    }

    /// A caller that needs no term, for what tells of what was done in one.
    pub(crate) fn after_its_term(self) -> Self {
        Self { leadership: Leadership::new(Term::Unlimited), ..self }
    }

    /// A caller over whose requests the server may take only so long.
    pub fn with_request_timeout(self, request_timeout: Duration) -> Self {
        Self { request_timeout, ..self }
    }

    /// How long a request without an answer may still be carried out: it reaches the server at the latest
    /// when we stop waiting, if a proxy on the way holds it up, and the server then has as much time again.
    pub fn settle_time(&self) -> Duration {
        self.request_timeout.saturating_mul(2)
    }

    /// Reads an object live.
    ///
    /// # Errors
    /// [`CallError::NotFound`] proves absence; any other error proves nothing.
    pub async fn get<T: Narrow>(&self, key: &T::Key) -> Result<T, CallError> {
        let request = Request { verb: Verb::Get, path: T::path(key), body: None };
        if !T::is_possible(key) {
            return Err(CallError::NotFound("no object can have that name".to_owned()));
        }
        single::object(&self.answer(&request, self.accept).await?, &request)
    }

    /// Sends a write and returns the object of the answer.
    ///
    /// # Errors
    /// See [`CallError`]; an answer that cannot be read counts as unknown outcome.
    pub async fn write<T: Narrow>(&self, request: &Request) -> Result<T, CallError> {
        single::object(&self.answer(request, self.accept).await?, request)
    }

    /// Sends a request and returns the body of the answer, as JSON.
    ///
    /// # Errors
    /// See [`CallError`]. An answer to a delete that says neither what is left nor that nothing is counts as unknown
    /// outcome; what others say is for the caller to judge.
    pub async fn send(&self, request: &Request) -> Result<Vec<u8>, CallError> {
        let (_, body) = self.answer(request, Encoding::Json).await?;
        if request.verb == Verb::Delete {
            single::deletion(&body, request)?;
        }
        Ok(body.to_vec())
    }

    /// Reads live which managers own a field of the object with this UID, which is named as [`owners`] has it. Always as
    /// JSON: it is asked rarely.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn owners(&self, path: String, uid: &Uid, field: &str) -> Result<Vec<String>, CallError> {
        if self.wishes.is_some() {
            // All writes are another's there.
            return Ok(Vec::new());
        }
        let body = self.send(&Request { verb: Verb::Get, path, body: None }).await?;
        owners(&body, uid, field).map_err(|error| CallError::Unknown(error.to_string()))
    }

    async fn answer(&self, request: &Request, accept: Encoding) -> Result<Answer, CallError> {
        if let Some(wishes) = self.wishes.as_ref().filter(|_| request.verb != Verb::Get) {
            return Err(wishes.hold(request).await);
        }
        tokio::select! {
            biased;
            () = self.ending.cancelled(), if request.verb == Verb::Get => Err(CallError::NotLeader),
            answer = self.admit_and_exchange(request, accept) => answer,
        }
    }

    /// Waits until the request may be sent, for the limit on this side, its place, a pause and the lease.
    async fn admission(&self, request: &Request) -> Result<Admitted<'_>, CallError> {
        let mut throttled = Duration::ZERO;
        if let Some(rate) = &self.rate {
            let asked = Instant::now();
            let is_admitted = rate.admits(request).await;
            throttled = asked.elapsed();
            self.metrics.throttled(&request.verb.method(), throttled);
            if !is_admitted {
                return Err(pause::refusal(Instant::now(), 0.0));
            }
        }
        let Ok(permit) = self.in_flight.acquire().await else {
            return Err(CallError::Unknown("shutting down".to_owned()));
        };
        // Each that was let through may have met what makes the others wait on.
        if let Some(pause) = &self.pause {
            while let Some(until) = pause.until(Instant::now()) {
                // What a write was decided from may not hold any more by then: it is decided anew (S15).
                if request.verb != Verb::Get {
                    return Err(pause::refusal(until, fastrand::f64()));
                }
                sleep_until(until).await;
            }
        }
        // Last thing before sending, after every wait: the term may have ended meanwhile.
        let server_time = self.allowed(request.verb).await?;
        Ok((permit, throttled, server_time))
    }

    async fn admit_and_exchange(&self, request: &Request, accept: Encoding) -> Result<Answer, CallError> {
        let (_permit, throttled, server_time) = tokio::select! {
            biased;
            () = self.ending.cancelled() => return Err(CallError::NotLeader),
            admitted = self.admission(request) => admitted?,
        };
        let method = request.verb.method();
        let _working = self.work.as_ref().map(|work| {
            work.send_modify(|count| *count += 1);
            guard(work, |work| work.send_modify(|count| *count -= 1))
        });
        let _in_flight = self.subsystem.map(|subsystem| {
            let gauge = self.metrics.in_flight(subsystem);
            gauge.inc();
            guard(gauge, |gauge| gauge.dec())
        });
        let started = Instant::now();
        // Also one whose term has ended since it was allowed.
        let is_of_a_term = self.leadership.term() != Term::Unlimited && self.work.is_some();
        let (exchanged, kept) = if is_of_a_term && request.verb != Verb::Get && !(self.may_be_late)(request) {
            self.guarded(request, accept, server_time).await
        } else {
            let exchange = self.exchange(request, accept, server_time, None);
            (timeout(server_time + ANSWER, exchange).await.ok(), None)
        };
        let is_over = server_time <= started.elapsed();
        let ending = match (&exchanged, kept) {
            // The server (server/filters/timeout.go), or something before it, waited for the body in vain. A server that
            // sheds load answers at once.
            (Some((408 | 504, _)) | None, Some(Kept::NotBegun)) => Ending::NotBegun,
            (Some((500.., _)), Some(Kept::NotBegun)) if started.elapsed() >= IN_VAIN => Ending::NotBegun,
            (Some((code, result)), _) => Ending::of(*code, result.as_ref().err(), is_over),
            (None, None) => Ending::TimedOut,
            (None, Some(Kept::ForTheLease)) => Ending::Unsaid,
        };
        self.overdue.note(request, ending, kept.is_some(), Instant::now());
        let waited = started.elapsed().as_secs();
        let is_lost = || !self.leadership.may_write(Instant::now());
        let (code, result) = match (exchanged, kept) {
            // What the connection makes of a body that never came does not matter.
            (Some((0, _)) | None, Some(_)) if is_lost() => (0, Err(CallError::NotLeader)),
            (Some((code, Err(CallError::Unknown(reason)))), Some(_)) => {
                (code, Err(CallError::NotSent(reason)))
            }
            (Some(exchanged), _) => exchanged,
            (None, Some(Kept::NotBegun)) => {
                let reason = format!(
                    "no 100 Continue within {waited} s, neither from the API server nor past a proxy"
                );
                (0, Err(CallError::NotSent(reason)))
            }
            (None, Some(Kept::ForTheLease)) => {
                (0, Err(CallError::NotSent(format!("the lease was not renewed within {waited} s"))))
            }
            (None, None) => (0, Err(CallError::Unknown(format!("no answer within {waited} s")))),
        };
        match (&self.pause, &result) {
            (Some(pause), Err(CallError::Throttled { after, .. })) => {
                pause.throttled(&request.object(), *after, Instant::now(), fastrand::f64());
            }
            // Silence says nothing about who is heard.
            (Some(pause), _) if code != 0 => pause.answered(),
            _ => {}
        }
        if let Err(CallError::Throttled { .. }) = &result {
            self.metrics.retried(&method, code);
        }
        // client-go: rest/request.go, request: the wait for its own limit counts.
        self.metrics.observe(&method, code, throttled + started.elapsed());
        result
    }

    /// Waits until the request may be sent. Returns how long the server may take over it. A write that had to wait for a
    /// renewal is decided anew, as after a pause (S15).
    async fn allowed(&self, verb: Verb) -> Result<Duration, CallError> {
        if verb == Verb::Get {
            return Ok(self.request_timeout);
        }
        let mut terms = self.leadership.terms();
        let mut has_waited = false;
        loop {
            let (term, now) = (self.leadership.term(), Instant::now());
            match allowance(term, self.leadership.reserve(), self.request_timeout, now) {
                Allowance::Send(_) if has_waited && self.work.is_some() => {
                    return Err(pause::refusal(now, 0.0));
                }
                Allowance::Send(server_time) => return Ok(server_time),
                Allowance::NotLeader => return Err(CallError::NotLeader),
                Allowance::AfterRenewal => has_waited = true,
            }
            let end = if let Term::Until(end) = term { end } else { Instant::now() };
            tokio::select! {
                _ = terms.changed() => {}
                () = sleep_until(end) => {}
            }
        }
    }

    /// Sends a write that must be over before another leader's may begin.
    async fn guarded(&self, request: &Request, accept: Encoding, server_time: Duration) -> Guarded {
        let expectation = self.overdue.expectation(Instant::now());
        let gate = Gate::new(self.leadership.clone(), server_time, expectation == Expectation::Waits);
        let asks = (expectation != Expectation::None).then_some(&gate);
        let mut exchange = pin!(self.exchange(request, accept, server_time, asks));
        let exchanged = tokio::select! {
            biased;
            exchanged = &mut exchange => Some(exchanged),
            () = gate.decide() => timeout(server_time + ANSWER, exchange).await.ok(),
            () = sleep(server_time + ANSWER) => None,
        };
        if gate.has_begun() {
            self.overdue.begun();
        }
        let kept = gate.shut();
        let is_certain = |(_, result): &Exchanged| result.as_ref().err().is_none_or(CallError::is_certain);
        let is_known = exchanged.as_ref().is_some_and(is_certain);
        if is_known || kept.is_some() {
            gate.landed();
        }
        (exchanged, kept)
    }

    async fn exchange(
        &self,
        request: &Request,
        accept: Encoding,
        server_time: Duration,
        gate: Option<&Arc<Gate>>,
    ) -> Exchanged {
        let unknown =
            |error: &(dyn std::error::Error + 'static)| (0, Err(CallError::Unknown(error_chain(error))));
        let body = match request.body.as_ref().map(serde_json::to_vec).transpose() {
            Ok(body) => body.unwrap_or_default(),
            Err(error) => return unknown(&error),
        };
        let size = body.len();
        // The pages of a list have a query of their own.
        let joint = if request.path.contains('?') { '&' } else { '?' };
        let http_request = http::Request::builder()
            .method(request.verb.method())
            .uri(format!("{}{joint}timeout={}ms", request.path, server_time.as_millis()))
            .header(http::header::CONTENT_TYPE, request.verb.content_type())
            .header(http::header::ACCEPT, accept.single())
            .body(Body::from(body));
        let mut http_request = match http_request {
            Ok(request) => request,
            Err(error) => return (0, Err(CallError::Refused { code: 0, message: error.to_string() })),
        };
        let method = request.verb.method();
        self.metrics.sent(&method, size);
        if let Some(gate) = gate {
            gate.guard(&mut http_request);
        }
        let response = match self.client.send(http_request).await {
            Ok(response) => response,
            Err(error) => return unknown(&error),
        };
        let (head, body) = response.into_parts();
        let body = match body.collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => return unknown(&error),
        };
        self.metrics.received(&method, body.len());
        let code = head.status.as_u16();
        if head.status.is_success() {
            return (code, Ok((Encoding::of(&head.headers), body)));
        }
        let status = Encoding::refusal(&head.headers, &body);
        (code, Err(classify(code, retry_after(&head.headers), &status, request.target().name)))
    }
}

#[cfg(test)]
mod tests;
