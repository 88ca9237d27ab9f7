//! A loopback proxy between the daemon and the API server: plain HTTP towards the daemon, TLS
//! towards the server. It passes everything through, watches as they stream, numbers the writes,
//! and lets a test hold, drop or answer one, or stop the world at write n.
//!
//! A write whose answer is lost was committed; a write that is dropped unsent was not. Which of the
//! two the daemon cannot know, which is what these tests are about.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper_util::rt::TokioIo;
use kube::{Client, client::Body};
use serde_json::Value;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// A write as the daemon sent it, and what was answered.
#[derive(Clone, Debug)]
pub struct Write {
    /// 1 for the first write to an object. Events and leases are not counted: they are sent beside
    /// the work and their place in its order says nothing.
    pub number: Option<usize>,
    pub method: Method,
    pub path: String,
    pub body: Value,
    /// HTTP status, once answered by the server or by the test.
    pub status: Option<StatusCode>,
}

impl Write {
    /// Whether it is of this method and to a path that contains this text.
    pub fn is(&self, method: &Method, path: &str) -> bool {
        self.method == *method && self.path.contains(path)
    }
}

/// Where the world stops at a numbered write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPoint {
    /// The request never reaches the server.
    BeforeSending,
    /// The server commits, its answer never reaches the daemon.
    AnswerLost,
    /// The daemon has the answer; nothing after it is sent.
    AfterAnswer,
}

impl CrashPoint {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::BeforeSending, Self::AnswerLost, Self::AfterAnswer];
}

enum Action {
    Hold,
    Delay,
    DropUnsent,
    DropAnswer,
    Answer(StatusCode, Value),
    Crash(CrashPoint),
}

struct Rule {
    applies: Box<dyn Fn(&Write) -> bool + Send>,
    action: Action,
    gate: Arc<Gate>,
}

/// Meeting point of a test and one write.
#[derive(Debug)]
struct Gate {
    reached: watch::Sender<Option<Write>>,
    /// Of a delayed write.
    answered: watch::Sender<Option<Write>>,
    open: watch::Sender<bool>,
}

/// A write that a test has asked for: wait for it, then let it go.
#[derive(Debug)]
pub struct Caught(Arc<Gate>);

impl Caught {
    /// Waits until the write has come to the point asked for.
    pub async fn reached(&self) -> Write {
        Self::met(&self.0.reached, "the daemon sends the write that the test waits for").await
    }

    /// Waits until a delayed write, after its release, was answered.
    pub async fn answered(&self) -> Write {
        Self::met(&self.0.answered, "the delayed write is answered").await
    }

    async fn met(point: &watch::Sender<Option<Write>>, what: &str) -> Write {
        let mut point = point.subscribe();
        let found = super::cluster::within_deadline(what, point.wait_for(Option::is_some)).await;
        let found = found.unwrap_or_else(|late| panic!("{late}")).expect("the gate is open");
        found.clone().expect("waited for it")
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

#[derive(Default)]
struct State {
    writes: Vec<Write>,
    counted: usize,
    rules: Vec<Rule>,
    /// After a crash point nothing more gets through.
    frozen: bool,
}

struct Shared {
    upstream: Client,
    state: Mutex<State>,
    seen: watch::Sender<usize>,
}

/// A running proxy; stops when dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Starts before a server; the client must bring no credentials of its own.
    pub async fn start(upstream: Client) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind the proxy");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared { upstream, state: Mutex::default(), seen: watch::Sender::new(0) });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, accepting }
    }

    /// Where the daemon is to connect.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All writes to objects so far, in the order they arrived.
    pub fn writes(&self) -> Vec<Write> {
        self.all_writes().into_iter().filter(|write| write.number.is_some()).collect()
    }

    /// Those that the server did not refuse as stale. A kubelet may report between the daemon's look and
    /// its write, which is then repeated.
    pub fn fresh_writes(&self) -> Vec<Write> {
        self.writes().into_iter().filter(|write| write.status != Some(StatusCode::CONFLICT)).collect()
    }

    /// Those that attach or detach: to VolumeAttachments and nodes.
    pub fn attach_detach_writes(&self) -> Vec<Write> {
        let is_one =
            |write: &Write| write.path.contains("/volumeattachments") || write.path.contains("/nodes/");
        self.fresh_writes().into_iter().filter(is_one).collect()
    }

    /// All writes so far, events and leases among them.
    pub fn all_writes(&self) -> Vec<Write> {
        self.shared.state.lock().unwrap().writes.clone()
    }

    /// Waits until so many writes to objects were made.
    pub async fn wrote(&self, count: usize) {
        let mut seen = self.shared.seen.subscribe();
        let enough = seen.wait_for(|seen| *seen >= count);
        let found = super::cluster::within_deadline("the daemon writes more", enough).await;
        found.unwrap_or_else(|late| panic!("{late}")).expect("the proxy runs");
    }

    /// Holds the first such write before it is sent, until it is released.
    pub fn hold(&self, applies: impl Fn(&Write) -> bool + Send + 'static) -> Caught {
        self.add(applies, Action::Hold)
    }

    /// Delays the first such write until it is released, as if it were lost in the network meanwhile:
    /// it is then sent even if the daemon that sent it is long gone.
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

    /// Answers the first such write itself; the server never sees it.
    pub fn answer(
        &self,
        applies: impl Fn(&Write) -> bool + Send + 'static,
        status: StatusCode,
        body: Value,
    ) -> Caught {
        self.add(applies, Action::Answer(status, body))
    }

    /// Stops the world at the n-th write to an object: from then on no write gets through until
    /// [`Self::thaw`].
    pub fn crash_at(&self, number: usize, point: CrashPoint) -> Caught {
        self.add(move |write| write.number == Some(number), Action::Crash(point))
    }

    /// Lets writes through again, of a daemon that was started since.
    pub fn thaw(&self) {
        let mut state = self.shared.state.lock().unwrap();
        state.frozen = false;
        state.rules.clear();
    }

    fn add(&self, applies: impl Fn(&Write) -> bool + Send + 'static, action: Action) -> Caught {
        let gate = Arc::new(Gate {
            reached: watch::Sender::new(None),
            answered: watch::Sender::new(None),
            open: watch::Sender::new(false),
        });
        let rule = Rule { applies: Box::new(applies), action, gate: Arc::clone(&gate) };
        self.shared.state.lock().unwrap().rules.push(rule);
        Caught(gate)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Connections end with the proxy.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok((stream, _)) = listener.accept().await else { continue };
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let service = hyper::service::service_fn(move |request| serve(Arc::clone(&shared), request));
            // An error is a connection that ended, by us or by the daemon.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// An error makes hyper break the connection.
async fn serve(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Answer, BoxError> {
    let (mut head, body) = request.into_parts();
    for name in [header::HOST, header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH] {
        head.headers.remove(name);
    }
    if !matches!(head.method, Method::POST | Method::PUT | Method::PATCH | Method::DELETE) {
        let answer = shared.upstream.send(Request::from_parts(head, Body::empty())).await?;
        return Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()));
    }
    let bytes = body.collect().await?.to_bytes();
    let path = head.uri.path().to_owned();
    let write = Write {
        number: None,
        method: head.method.clone(),
        path,
        body: serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        status: None,
    };
    let forward = Request::from_parts(head, Body::from(bytes));
    let (index, rule) = record(&shared, write).await;
    let Some(Rule { action, gate, .. }) = rule else { return pass(&shared, index, forward).await };
    let reached = || {
        let write = shared.state.lock().unwrap().writes[index].clone();
        gate.reached.send_replace(Some(write));
    };
    match action {
        Action::Hold => {
            reached();
            gate.open.subscribe().wait_for(|open| *open).await?;
            pass(&shared, index, forward).await
        }
        Action::Delay => {
            reached();
            let shared = Arc::clone(&shared);
            // A task of its own, because this future ends with the daemon's connection.
            let sending = tokio::spawn(async move {
                gate.open.subscribe().wait_for(|open| *open).await?;
                let answer = pass(&shared, index, forward).await;
                let write = shared.state.lock().unwrap().writes[index].clone();
                gate.answered.send_replace(Some(write));
                answer
            });
            sending.await?
        }
        Action::DropUnsent => {
            reached();
            Err("dropped by the test before it was sent".into())
        }
        Action::DropAnswer => {
            pass(&shared, index, forward).await?;
            reached();
            Err("dropped by the test after it was carried out".into())
        }
        Action::Answer(status, body) => {
            shared.state.lock().unwrap().writes[index].status = Some(status);
            reached();
            let body = http_body_util::Full::new(Bytes::from(body.to_string()));
            let answer = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
            Ok(answer.body(body.map_err(|never: Infallible| match never {}).boxed_unsync())?)
        }
        Action::Crash(CrashPoint::BeforeSending) => {
            reached();
            std::future::pending().await
        }
        Action::Crash(CrashPoint::AnswerLost) => {
            pass(&shared, index, forward).await?;
            reached();
            std::future::pending().await
        }
        Action::Crash(CrashPoint::AfterAnswer) => {
            let answer = pass(&shared, index, forward).await?;
            let write = shared.state.lock().unwrap().writes[index].clone();
            Ok(answer.map(|body| Delivery { body, gate, write: Some(write) }.boxed_unsync()))
        }
    }
}

/// Numbers a write and finds what is to be done with it. Of a world that stopped, nothing returns.
async fn record(shared: &Shared, mut write: Write) -> (usize, Option<Rule>) {
    let recorded = {
        let mut state = shared.state.lock().unwrap();
        if state.frozen {
            None
        } else {
            if !write.path.contains("/events") && !write.path.contains("/leases") {
                state.counted += 1;
                write.number = Some(state.counted);
            }
            let position = state.rules.iter().position(|rule| (rule.applies)(&write));
            let rule = position.map(|position| state.rules.remove(position));
            state.frozen |= matches!(rule, Some(Rule { action: Action::Crash(_), .. }));
            state.writes.push(write);
            shared.seen.send_replace(state.counted);
            Some((state.writes.len() - 1, rule))
        }
    };
    match recorded {
        Some(recorded) => recorded,
        None => std::future::pending().await,
    }
}

/// Sends a write and reads its whole answer, so that it is known to have been carried out.
async fn pass(shared: &Shared, index: usize, request: Request<Body>) -> Result<Answer, BoxError> {
    let (mut head, body) = shared.upstream.send(request).await?.into_parts();
    let bytes = body.collect().await?.to_bytes();
    shared.state.lock().unwrap().writes[index].status = Some(head.status);
    head.headers.remove(header::TRANSFER_ENCODING);
    head.headers.remove(header::CONTENT_LENGTH);
    let body = http_body_util::Full::new(bytes).map_err(|never: Infallible| match never {});
    Ok(Response::from_parts(head, body.boxed_unsync()))
}

/// A body that tells when the daemon has been given all of it.
struct Delivery {
    body: UnsyncBoxBody<Bytes, BoxError>,
    gate: Arc<Gate>,
    write: Option<Write>,
}

impl hyper::body::Body for Delivery {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if (matches!(frame, Poll::Ready(None)) || self.body.is_end_stream())
            && let Some(write) = self.write.take()
        {
            self.gate.reached.send_replace(Some(write));
        }
        frame
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(write) = self.write.take() {
            self.gate.reached.send_replace(Some(write));
        }
    }
}
