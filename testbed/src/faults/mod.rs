//! Faults between a program and its API server, at the places that a test or a seed selects.
//!
//! ```text
//!  daemon ──request──▶ Faulty ──▶ the embedded server, or a client of a real one
//!                        │ writes are recorded and numbered ([`record`])
//!                        │ rules of a test: the n-th write, the first write like this ([`rule`])
//!                        │ a seeded storm over all requests ([`storm`])
//!                        └ watches: cut, delayed per kind, begun from an older revision ([`watches`])
//! ```
//!
//! [`Faults`] is the handle and the tower layer, [`Faulty`] the service. With [`super::serve()`] it is a
//! proxy in front of any API server. An error of the service is a broken connection.

pub mod passed;
pub mod record;
pub mod rule;
pub mod storm;
pub mod watches;

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Bytes};
use kube::{Client, client::Body};
use serde_json::Value;
use tokio::{sync::watch, time::Instant};
use tower::{BoxError, Layer, Service, ServiceExt};

pub use record::Write;
pub use rule::{Answer, Caught, CrashPoint, Read};
pub use storm::Storm;

pub use passed::Passed;
use passed::whole;
use record::Record;
use rule::{Action, Delivery, Gate, ReadRule, Rule};
use storm::{Fault, Weather};
use watches::Watches;

/// When a write was sent, for a server in this process: an extension of the request, which may come later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent(pub Instant);

/// The handle of a test. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Number of counted writes.
    seen: watch::Sender<usize>,
    /// Number of requests that met no server.
    missed: watch::Sender<usize>,
    /// Whether requests wait before they are sent.
    is_stopped: watch::Sender<bool>,
    watches: Watches,
}

#[derive(Debug, Default)]
struct State {
    record: Record,
    rules: Vec<Rule>,
    reads: usize,
    read_rules: Vec<ReadRule>,
    weather: Option<Weather>,
    /// After a crash point nothing more gets through.
    is_frozen: bool,
    /// No server is there to answer.
    is_away: bool,
}

impl Faults {
    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All writes so far, in the order they arrived.
    pub fn all_writes(&self) -> Vec<Write> {
        self.state().record.writes.clone()
    }

    /// Those to objects: without events and leases.
    pub fn writes(&self) -> Vec<Write> {
        self.all_writes().into_iter().filter(|write| write.number.is_some()).collect()
    }

    /// How many writes to objects there were so far.
    pub fn counted(&self) -> usize {
        self.state().record.counted
    }

    /// Waits until so many writes to objects have arrived.
    pub async fn wrote(&self, count: usize) {
        let mut seen = self.shared.seen.subscribe();
        // The sender lives as long as this handle.
        let _ = seen.wait_for(|seen| *seen >= count).await;
    }

    /// Holds the first such write before it is sent, until it is released.
    pub fn hold(&self, applies: impl Fn(&Write) -> bool + Send + 'static) -> Caught {
        self.add(applies, Action::Hold)
    }

    /// Delays the first such write until it is released, as if it were lost in the network meanwhile:
    /// it is then sent even if the program that sent it is long gone.
    pub fn delay(&self, applies: impl Fn(&Write) -> bool + Send + 'static) -> Caught {
        self.add(applies, Action::Delay)
    }

    /// Breaks the connection of the first such write before it is sent.
    pub fn drop_unsent(&self, applies: impl Fn(&Write) -> bool + Send + 'static) -> Caught {
        self.add(applies, Action::DropUnsent)
    }

    /// Breaks the connection of the first such write after the server has carried it out.
    pub fn drop_answer(&self, applies: impl Fn(&Write) -> bool + Send + 'static) -> Caught {
        self.add(applies, Action::DropAnswer)
    }

    /// Answers the first such write in place of the server, which never sees it.
    pub fn answer(
        &self,
        applies: impl Fn(&Write) -> bool + Send + 'static,
        status: StatusCode,
        body: Value,
    ) -> Caught {
        self.add(applies, Action::Answer(Answer { status, body, retry_after: None }))
    }

    /// Answers the first such read in place of the server: a GET, a list or a watch.
    pub fn answer_read(&self, applies: impl Fn(&Read) -> bool + Send + 'static, answer: Answer) {
        self.state().read_rules.push(ReadRule { applies: Box::new(applies), answer });
    }

    /// Stops the world at the n-th write to an object: from then on no write gets through until
    /// [`Self::thaw`].
    pub fn crash_at(&self, number: usize, point: CrashPoint) -> Caught {
        self.add(move |write| write.number == Some(number), Action::Crash(point))
    }

    /// Lets requests through again, of a program that was started since.
    pub fn thaw(&self) {
        let mut state = self.state();
        state.is_frozen = false;
        state.rules.clear();
        drop(state);
        self.go_on();
    }

    /// From now on faults happen to all requests, as the seed says.
    pub fn begin(&self, storm: &Storm) {
        self.state().weather = Some(Weather::new(storm));
    }

    /// Ends the storm, and returns how many faults it brought.
    pub fn calm(&self) -> usize {
        self.state().weather.take().map_or(0, |weather| weather.faults())
    }

    /// Takes the whole server away: open watches break, and every request fails until it is
    /// [brought back](Self::bring_back).
    pub fn take_away(&self) {
        self.state().is_away = true;
        self.shared.watches.cut_all();
    }

    /// The server is there again, as others have seen it all the time.
    pub fn bring_back(&self) {
        self.state().is_away = false;
    }

    /// Lets all requests wait from now on for which there is no rule, as those of a program that is stopped, until it
    /// [goes on](Self::go_on).
    pub fn stop(&self) {
        self.shared.is_stopped.send_replace(true);
    }

    /// Sends what waited.
    pub fn go_on(&self) {
        self.shared.is_stopped.send_replace(false);
    }

    /// Waits until so many requests have met no server.
    pub async fn missed(&self, count: usize) {
        // The sender is never taken away.
        let _ = self.shared.missed.subscribe().wait_for(|missed| *missed >= count).await;
    }

    /// What happens to watches.
    pub fn watches(&self) -> &Watches {
        &self.shared.watches
    }

    async fn going(&self) {
        // The sender lives as long as this handle.
        let _ = self.shared.is_stopped.subscribe().wait_for(|is_stopped| !is_stopped).await;
    }

    fn add(&self, applies: impl Fn(&Write) -> bool + Send + 'static, action: Action) -> Caught {
        let gate = Arc::new(Gate::default());
        self.state().rules.push(Rule { applies: Box::new(applies), action, gate: Arc::clone(&gate) });
        Caught::new(gate)
    }

    /// Records a write and finds what is to be done with it; in a world that stopped, nothing ever.
    fn admit(&self, write: Write) -> Option<(usize, Option<Rule>)> {
        let mut state = self.state();
        if state.is_frozen {
            return None;
        }
        let write = state.record.number(write);
        let position = state.rules.iter().position(|rule| (rule.applies)(&write));
        let rule = position.map(|position| state.rules.remove(position));
        state.is_frozen |= matches!(rule, Some(Rule { action: Action::Crash(_), .. }));
        let index = state.record.add(write);
        self.shared.seen.send_replace(state.record.counted);
        Some((index, rule))
    }

    /// Numbers a read and finds how a test wants it answered.
    fn admit_read(&self, head: &http::request::Parts) -> Option<Answer> {
        let mut state = self.state();
        state.reads += 1;
        let read = Read { number: state.reads, target: head.uri.to_string() };
        let position = state.read_rules.iter().position(|rule| (rule.applies)(&read))?;
        Some(state.read_rules.remove(position).answer)
    }

    fn draw(&self, head: &http::request::Parts) -> Option<Fault> {
        self.state().weather.as_mut()?.draw(&head.method, head.uri.path())
    }

    fn write_at(&self, index: usize) -> Option<Write> {
        self.state().record.writes.get(index).cloned()
    }

    fn note_status(&self, index: usize, status: StatusCode) {
        if let Some(write) = self.state().record.writes.get_mut(index) {
            write.status = Some(status);
        }
    }
}

impl<S> Layer<S> for Faults {
    type Service = Faulty<S>;

    fn layer(&self, inner: S) -> Faulty<S> {
        Faulty { faults: self.clone(), inner }
    }
}

/// An API server with faults before it.
#[derive(Clone, Debug)]
pub struct Faulty<S> {
    faults: Faults,
    inner: S,
}

impl<S, B, R> Service<Request<B>> for Faulty<S>
where
    S: Service<Request<Body>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: HttpBody + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    type Response = Passed;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Passed, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if service.faults.state().is_away {
                service.faults.shared.missed.send_modify(|missed| *missed += 1);
                return Err("nobody is there".into());
            }
            let (mut head, body) = request.into_parts();
            for name in [header::HOST, header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH]
            {
                head.headers.remove(name);
            }
            let is_write = matches!(head.method, Method::POST | Method::PUT | Method::PATCH | Method::DELETE);
            if is_write {
                let bytes = body.collect().await.map_err(Into::into)?.to_bytes();
                service.write(head, bytes).await
            } else {
                service.read(head).await
            }
        })
    }
}

impl<S, R> Faulty<S>
where
    S: Service<Request<Body>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    async fn read(self, mut head: http::request::Parts) -> Result<Passed, BoxError> {
        if let Some(answer) = self.faults.admit_read(&head) {
            return answer.response();
        }
        self.faults.going().await;
        let fault = self.faults.draw(&head);
        if let Some(fault) = &fault
            && let Some(answer) = fault.before()?
        {
            return answer.response();
        }
        tokio::time::sleep(fault.as_ref().map(Fault::delay).unwrap_or_default()).await;
        let watch = self.faults.shared.watches.begin(&mut head);
        let answer =
            self.inner.oneshot(Request::from_parts(head, Body::empty())).await.map_err(Into::into)?;
        let answer = answer.map(|body| body.map_err(Into::into).boxed_unsync());
        match watch {
            Some(watch) if answer.status().is_success() => {
                let lifetime = fault.as_ref().and_then(Fault::cuts_watch);
                Ok(answer.map(|body| watches::disturbed(body, watch, lifetime)))
            }
            _ => Ok(answer),
        }
    }

    async fn write(self, head: http::request::Parts, bytes: Bytes) -> Result<Passed, BoxError> {
        let write = Write {
            number: None,
            method: head.method.clone(),
            path: head.uri.path().to_owned(),
            body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
            status: None,
        };
        let fault = self.faults.draw(&head);
        let mut forward = Request::from_parts(head, Body::from(bytes));
        forward.extensions_mut().insert(Sent(Instant::now()));
        let Some((index, rule)) = self.faults.admit(write) else { return std::future::pending().await };
        match rule {
            Some(rule) => self.ruled(rule, index, forward).await,
            None => {
                self.faults.going().await;
                self.weathered(fault, index, forward).await
            }
        }
    }

    /// Does what a test has asked for.
    async fn ruled(self, rule: Rule, index: usize, forward: Request<Body>) -> Result<Passed, BoxError> {
        let Rule { action, gate, .. } = rule;
        let reached = || gate.reach(self.faults.write_at(index));
        match action {
            Action::Hold => {
                reached();
                gate.opened().await;
                self.pass(index, forward).await
            }
            Action::Delay => {
                reached();
                let service = self.clone();
                // A task of its own, because this future ends with the sender's connection.
                let sending = tokio::spawn(async move {
                    gate.opened().await;
                    let faults = service.faults.clone();
                    let answer = service.pass(index, forward).await;
                    gate.answer(faults.write_at(index));
                    answer
                });
                sending.await?
            }
            Action::DropUnsent => {
                reached();
                Err("dropped by the test before it was sent".into())
            }
            Action::DropAnswer => {
                self.clone().pass(index, forward).await?;
                reached();
                Err("dropped by the test after it was carried out".into())
            }
            Action::Answer(answer) => {
                self.faults.note_status(index, answer.status);
                reached();
                answer.response()
            }
            Action::Crash(CrashPoint::BeforeSending) => {
                reached();
                std::future::pending().await
            }
            Action::Crash(CrashPoint::AnswerLost) => {
                let arrival = Arrival::new(gate, self.faults.clone(), index);
                self.pass(index, forward).await?;
                drop(arrival);
                std::future::pending().await
            }
            Action::Crash(CrashPoint::AfterAnswer) => {
                let arrival = Arrival::new(gate, self.faults.clone(), index);
                let answer = self.pass(index, forward).await?;
                Ok(answer.map(|body| Delivery::new(body, arrival).boxed_unsync()))
            }
        }
    }

    /// Does what the storm brings, if anything.
    async fn weathered(
        self,
        fault: Option<Fault>,
        index: usize,
        forward: Request<Body>,
    ) -> Result<Passed, BoxError> {
        let Some(fault) = fault else { return self.pass(index, forward).await };
        if let Some(answer) = fault.before()? {
            self.faults.note_status(index, answer.status);
            return answer.response();
        }
        let delay = fault.delay();
        let answer = if delay.is_zero() {
            self.pass(index, forward).await?
        } else {
            // A task of its own, because this future ends when the sender gives up.
            let sending = tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                self.pass(index, forward).await
            });
            sending.await??
        };
        match fault.after()? {
            Some(instead) => instead.response(),
            None => Ok(answer),
        }
    }

    /// Sends a write and reads its whole answer, so that it is known to have been carried out.
    async fn pass(self, index: usize, request: Request<Body>) -> Result<Passed, BoxError> {
        let (mut head, body) = self.inner.oneshot(request).await.map_err(Into::into)?.into_parts();
        let bytes = body.collect().await.map_err(Into::into)?.to_bytes();
        self.faults.note_status(index, head.status);
        head.headers.remove(header::TRANSFER_ENCODING);
        head.headers.remove(header::CONTENT_LENGTH);
        Ok(Response::from_parts(head, whole(bytes)))
    }
}

/// Tells a test, when dropped, that a write has come to its point. The connection of a program that was killed ends
/// with requests in it, and the write at which the world stopped may be one of them.
struct Arrival {
    gate: Arc<Gate>,
    faults: Faults,
    index: usize,
}

impl Arrival {
    fn new(gate: Arc<Gate>, faults: Faults, index: usize) -> Self {
        Self { gate, faults, index }
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        self.gate.reach(self.faults.write_at(self.index));
    }
}

/// The server behind a client, as a service that faults can be put before.
#[derive(Clone)]
pub struct Upstream(pub Client);

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Upstream").finish_non_exhaustive()
    }
}

impl Service<Request<Body>> for Upstream {
    type Response = Response<Body>;
    type Error = kube::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, kube::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), kube::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let client = self.0.clone();
        Box::pin(async move { client.send(request).await })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use http::Request;
    use kube::client::Body;
    use tower::{Layer, ServiceExt};

    use super::*;

    #[test]
    fn the_world_stops_though_the_sender_is_gone() {
        for point in CrashPoint::ALL {
            let faults = Faults::default();
            let caught = faults.crash_at(1, point);
            let silent = faults.layer(tower::service_fn(|_: Request<Body>| {
                std::future::pending::<Result<Response<Body>, BoxError>>()
            }));
            let request = Request::post("/api/v1/nodes").body(Body::empty()).unwrap();
            assert!(silent.oneshot(request).now_or_never().is_none(), "{point:?}");
            assert!(caught.is_reached(), "{point:?}");
        }
    }
}
