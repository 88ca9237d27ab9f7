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
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll},
};

use http::{
    HeaderValue, Response,
    header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS},
};
use hyper::{
    Request,
    body::{Body, Bytes, Frame, Incoming, SizeHint},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
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
    connections::{Connections, Id, Phase},
    gate::{Gate, Reply},
    pages::Sent,
    turns::Turns,
    visitor::Visitor,
};

/// For a head as it is read, and for an answer as it is written. Tokens have one or two KiB, some of them eight.
const BUFFER: usize = 32 * 1024;
/// Lines of a head.
const MAX_HEADERS: usize = 64;
/// Requests until a connection is closed, so that none is for ever.
const MAX_REQUESTS: u32 = 100;
/// Seconds until it makes sense to ask again.
const RETRY_SECONDS: &str = "5";

/// The connections as they all share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Table(Arc<Mutex<Connections>>);

impl Table {
    pub(super) fn lock(&self) -> MutexGuard<'_, Connections> {
        // Valid between any two statements, so a panic elsewhere cannot spoil it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the table; given up when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    table: Table,
    id: Id,
}

impl Seat {
    pub(super) fn new(table: Table, id: Id) -> Self {
        Self { table, id }
    }

    fn enter(&self, phase: Phase) {
        self.table.lock().enter(self.id, phase, Instant::now());
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.table.lock().ended(self.id);
    }
}

/// How a connection gets in.
#[derive(Debug)]
pub(super) struct Door {
    pub(super) config: Arc<ServerConfig>,
    pub(super) turns: Arc<Turns>,
    /// How many connections the peer has with this one, but for those on which it has shown who it is.
    pub(super) connections: usize,
}

/// Serves a stream until it ends, or until told to stop: then what is being answered is still answered.
pub(super) async fn serve<S>(
    stream: S,
    address: IpAddr,
    seat: Arc<Seat>,
    door: Door,
    gate: Arc<Gate>,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let opening = async {
        let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        door.turns.take(door.connections).await;
        hello.into_stream(door.config).await
    };
    let opening = tokio::select! {
        opening = opening => opening,
        () = stop.cancelled() => return,
    };
    let stream = match opening {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%error, "no TLS connection");
            return;
        }
    };
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificates = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
    let visitor = Arc::new(Visitor { address, certificates });
    let requests = Arc::new(AtomicU32::new(0));
    let observed = Observed { stream, seat: Arc::clone(&seat) };
    let service = service_fn(|request: Request<Incoming>| {
        seat.enter(Phase::Answering);
        let (gate, visitor, seat) = (Arc::clone(&gate), Arc::clone(&visitor), Arc::clone(&seat));
        let is_last = requests.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_REQUESTS;
        async move {
            // Whatever the body is, it is not read.
            let (head, _) = request.into_parts();
            let Reply { sent, known } = gate.answer(&visitor, &head).await;
            if known {
                seat.table.lock().known(seat.id);
            }
            Ok::<_, Infallible>(response(sent, is_last, seat))
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

fn response(page: Sent, is_last: bool, seat: Arc<Seat>) -> Response<Answering> {
    let (status, content_type) = (page.answer().status, page.answer().content_type);
    let mut response = Response::new(Answering { sent: page, seat });
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if matches!(status.as_u16(), 429 | 503) {
        headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY_SECONDS));
    }
    if is_last {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// An answer on its way. When all of it was taken, the connection waits for the next request.
struct Answering {
    sent: Sent,
    seat: Arc<Seat>,
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.seat.enter(Phase::Idle);
    }
}

impl Body for Answering {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.sent).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.sent.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.sent.size_hint()
    }
}

/// A stream that tells when something was read.
struct Observed<S> {
    stream: S,
    seat: Arc<Seat>,
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
            self.seat.table.lock().received(self.seat.id, Instant::now());
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
        Pin::new(&mut self.stream).poll_flush(context)
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
