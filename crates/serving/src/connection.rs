//! One connection: TLS, then one request after the other, each of which is seen by the [`Gate`].
//!
//! In: a stream. Out: what it is at, told to the table of [`Connections`], which ends it when its time
//! is over or its place is needed. Reading stops while an answer waits to be written, so a peer that
//! sends much and reads nothing costs one buffer.

use std::{
    convert::Infallible,
    io,
    net::IpAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use http::{HeaderValue, Request, Response, header::CONNECTION};
use http_body_util::{BodyExt, combinators::MapErr};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};
use tokio_rustls::{
    LazyConfigAcceptor,
    rustls::{ServerConfig, server::Acceptor},
};
use tokio_util::sync::CancellationToken;

use super::{
    answer::Known,
    auth::TlsPeer,
    connections::{Connections, Id, Phase},
    gate::Gate,
    handshakes::HandshakeQueue,
};

/// For a head as it is read, and for an answer as it is written. Tokens have one or two KiB, some of them eight.
const BUFFER: usize = 32 * 1024;
/// Lines of a head.
const MAX_HEADERS: usize = 64;
/// Requests until a connection is closed, so that none is for ever.
const MAX_REQUESTS: u32 = 100;

/// The connections as they all share them.
#[derive(Clone, Debug)]
pub(super) struct Table(Arc<Mutex<Connections>>);

impl Table {
    pub(super) fn new(connections: Connections) -> Self {
        Self(Arc::new(Mutex::new(connections)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Connections> {
        // Valid between any two statements, so a panic elsewhere cannot spoil it.
        self.0.lock()
    }
}

/// A place in the table; given up when dropped.
#[derive(Debug)]
pub(super) struct Registration {
    table: Table,
    id: Id,
    /// Whether all of an answer was handed over, but perhaps not written yet.
    writing: AtomicBool,
}

impl Registration {
    pub(super) fn new(table: Table, id: Id) -> Self {
        Self { table, id, writing: AtomicBool::new(false) }
    }

    /// A request has come.
    fn requested(&self) {
        self.writing.store(false, Ordering::Relaxed);
        self.enter(Phase::Answering);
    }

    /// All of its answer was handed over.
    fn answered(&self) {
        self.writing.store(true, Ordering::Relaxed);
    }

    /// What was handed over is on its way.
    fn flushed(&self) {
        if self.writing.swap(false, Ordering::Relaxed) {
            self.enter(Phase::Idle);
        }
    }

    fn enter(&self, phase: Phase) {
        self.table.lock().enter(self.id, phase, Instant::now());
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.table.lock().ended(self.id);
    }
}

/// How a connection gets in.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) config: Arc<ServerConfig>,
    pub(super) queue: Arc<HandshakeQueue>,
    /// Place in the queue.
    pub(super) rank: usize,
}

/// Serves a stream until it ends, or until told to stop: then what is being answered is still answered.
pub(super) async fn serve<S>(
    stream: S,
    address: IpAddr,
    registration: Arc<Registration>,
    handshake: Opening,
    gate: Arc<Gate>,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let opening = async {
        let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        handshake.queue.take(handshake.rank).await;
        hello.into_stream(handshake.config).await
    };
    let opening = tokio::select! {
        opening = opening => opening,
        () = stop.cancelled() => return,
    };
    let stream = match opening {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%error, "TLS handshake failed");
            return;
        }
    };
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificates = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
    let peer = Arc::new(TlsPeer::new(address, certificates));
    let requests = Arc::new(AtomicU32::new(0));
    let observed = Observed { stream, registration: Arc::clone(&registration) };
    let service = service_fn(|request: Request<Incoming>| {
        registration.requested();
        let (gate, peer, registration) = (Arc::clone(&gate), Arc::clone(&peer), Arc::clone(&registration));
        let is_last = requests.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_REQUESTS;
        async move {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(Lasting(Arc::clone(&registration)));
            let mut response = gate.answer(&peer, request).await;
            if response.extensions().get::<Known>().is_some() {
                registration.table.lock().known(registration.id);
            }
            if is_last {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            // A client that sends many requests at once lets others in between.
            tokio::task::yield_now().await;
            Ok::<_, Infallible>(answering(response, registration))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // The table watches the time.
        .header_read_timeout(None)
        .max_buf_size(BUFFER)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(observed), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection failed");
    }
}

/// For an answer that takes longer than others.
#[derive(Clone, Debug)]
pub struct Lasting(Arc<Registration>);

impl Lasting {
    /// From now on, so much longer than any other.
    pub fn longer(&self, by: Duration) {
        self.0.table.lock().enter(self.0.id, Phase::Answering, Instant::now() + by);
    }
}

/// Notes when all of an answer was taken.
fn answering(
    response: Response<Body>,
    registration: Arc<Registration>,
) -> Response<MapErr<Body, impl FnMut(axum::Error) -> axum::Error>> {
    let taken = Taken(registration);
    response.map(|body| {
        body.map_err(move |error| {
            let _ = &taken;
            error
        })
    })
}

/// Dropped when all of an answer was taken. Once it is written, too, the connection waits for the next request.
struct Taken(Arc<Registration>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.answered();
    }
}

/// A stream that tells when something was read, and when all is written.
struct Observed<S> {
    stream: S,
    registration: Arc<Registration>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Observed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.registration.table.lock().received(self.registration.id, Instant::now());
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Observed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        if let Poll::Ready(Ok(())) = polled {
            self.registration.flushed();
        }
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::connections::{ANSWER_DEADLINE, IDLE_DEADLINE, Peer},
        *,
    };

    /// Takes what is written, and has room for it when it says so.
    struct Wire(bool);

    impl AsyncWrite for Wire {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            if self.0 { Poll::Ready(Ok(())) } else { Poll::Pending }
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_reads_is_being_answered_however_small_it_is() {
        let table = Table::new(Connections::default());
        let (id, _) = table.lock().admit(Peer::from(IpAddr::from([10, 0, 0, 1])), Instant::now());
        let registration = Arc::new(Registration::new(table.clone(), id));
        let mut stream = Observed { stream: Wire(false), registration: Arc::clone(&registration) };
        let overdue = |after: Duration| table.lock().overdue(Instant::now() + after);
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut flush = |stream: &mut Observed<Wire>| Pin::new(stream).poll_flush(&mut context);

        registration.requested();
        let answer = answering(Response::new(Body::from("ok")), Arc::clone(&registration)).into_body();
        assert!(!registration.writing.load(Ordering::Relaxed), "nothing of it was taken yet");
        assert_eq!(answer.collect().await.unwrap().to_bytes(), "ok");
        assert!(flush(&mut stream).is_pending());
        assert_eq!(overdue(Duration::ZERO), []);
        stream.stream = Wire(true);
        assert!(flush(&mut stream).is_ready());
        assert_eq!(overdue(ANSWER_DEADLINE), [], "it is idle");

        registration.requested();
        registration.answered();
        stream.stream = Wire(false);
        assert!(flush(&mut stream).is_pending());
        assert!(ANSWER_DEADLINE < IDLE_DEADLINE);
        assert_eq!(overdue(ANSWER_DEADLINE), [(id, Phase::Answering)]);
    }
}
