//! One connection: TLS, then one request after the other, each of which is seen by the [`Gate`].
//!
//! Reading stops while an answer waits to be written, so a peer that sends much and reads nothing costs one buffer.

use std::{
    convert::Infallible,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::body::Body;
use http::{HeaderValue, Request, header::CONNECTION};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, timeout},
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig, server::TlsStream};
use tokio_util::sync::CancellationToken;

use super::{auth::TlsPeer, gate::Gate, measures::End};

/// For a head as it is read, and for an answer as it is written. Tokens have one or two KiB, some of them eight.
const BUFFER: usize = 32 * 1024;
/// Lines of a head.
const MAX_HEADERS: usize = 64;
/// Requests until a connection is closed, and its age after which the next answer is the last one, so that none is for ever.
const MAX_REQUESTS: u32 = 100;
const MAX_AGE: Duration = Duration::from_secs(30);
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long the next head may take since the last answer.
pub(crate) const HEAD: Duration = Duration::from_secs(30);
/// How long a connection may last in all: a profile of a minute that is asked for last has its time, and an answer that nobody
/// reads has no more.
pub(crate) const LIFE: Duration = Duration::from_secs(150);

/// Serves a stream until it ends, its time is over, or it is told to stop: then what is being answered is still answered.
pub(super) async fn serve<S>(
    stream: S,
    address: IpAddr,
    config: Arc<ServerConfig>,
    gate: Arc<Gate>,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let opening = timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream));
    let is_overdue = match stop.run_until_cancelled(opening).await {
        None => false,
        Some(Ok(Ok(stream))) => timeout(LIFE, requests(stream, address, &gate, stop)).await.is_err(),
        Some(Ok(Err(error))) => {
            tracing::debug!(%error, "TLS handshake failed");
            false
        }
        Some(Err(_)) => true,
    };
    if is_overdue {
        gate.measures.ended(End::Overdue);
    }
}

async fn requests<S>(stream: TlsStream<S>, address: IpAddr, gate: &Gate, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificates = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
    let peer = TlsPeer::new(address, certificates);
    let (begun, requests) = (Instant::now(), AtomicU32::new(0));
    let service = service_fn(async |request: Request<Incoming>| {
        let mut response = gate.answer(&peer, request.map(Body::new)).await;
        let is_last =
            requests.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_REQUESTS || begun.elapsed() >= MAX_AGE;
        if is_last {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        // A client that sends many requests at once lets others in between.
        tokio::task::yield_now().await;
        Ok::<_, Infallible>(response)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(BUFFER)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        if error.is_timeout() {
            gate.measures.ended(End::Overdue);
        }
        tracing::debug!(%error, "connection failed");
    }
}
