//! The listening socket and its connections.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use http::{HeaderValue, header::CONTENT_TYPE};
use http_body_util::Full;
use hyper::{Request, Response, body::Bytes, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use thiserror::Error;
use tokio::{net::TcpListener, sync::Semaphore, time::timeout};
use tokio_util::sync::CancellationToken;

use super::Router;

/// Connections at once. Probes and a few scrapers need a handful; the rest waits in the backlog.
const MAX_CONNECTIONS: usize = 64;

/// How long a client may take to send its request's head, so that idle ones cannot hold all
/// connections. Longer than the usual interval between scrapes, which reuse a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(65);

/// How long answers that are under way at shutdown may take.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause after a failed accept, which is usually a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The address cannot be served on.
#[derive(Debug, Error)]
#[error("--bind-address {} --port {}: {error}", address.ip(), address.port())]
pub struct BindError {
    address: SocketAddr,
    error: io::Error,
}

/// A bound socket.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Binds the socket. Port 0 is any free one.
    ///
    /// # Errors
    /// See [`BindError`].
    pub async fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let failed = |error| BindError { address, error };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until told to stop.
    pub async fn run(self, router: Arc<Router>, stop: CancellationToken) {
        let graceful = GracefulShutdown::new();
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { break };
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = stop.cancelled() => break,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let router = Arc::clone(&router);
            let service = service_fn(move |request| {
                let response = respond(&router, &request);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            let watched = graceful.watch(connection);
            tokio::spawn(async move {
                if let Err(error) = watched.await {
                    tracing::debug!(%error, "connection failed");
                }
                drop(permit);
            });
        }
        drop(self.listener);
        if timeout(DRAIN_TIMEOUT, graceful.shutdown()).await.is_err() {
            tracing::debug!("connections still open after shutdown");
        }
    }
}

fn respond(router: &Router, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let answer = router.answer(request.method(), request.uri().path(), request.uri().query());
    let mut response = Response::new(Full::from(answer.body));
    *response.status_mut() = answer.status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    response
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::http::Answer;

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn serves_until_told_to_stop() {
        let server = Server::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = server.address();
        let taken = Server::bind(address).await.unwrap_err().to_string();
        assert!(
            taken.starts_with(&format!("--bind-address 127.0.0.1 --port {}: ", address.port())),
            "{taken}"
        );

        let router = Router::default().route("/metrics", |_| Answer {
            status: StatusCode::OK,
            content_type: "text/plain; version=0.0.4",
            body: "up 1\n".to_owned(),
        });
        let stop = CancellationToken::new();
        let running = tokio::spawn(server.run(Arc::new(router), stop.clone()));
        let answer = get(address, "/metrics").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("content-type: text/plain; version=0.0.4\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nup 1\n"), "{answer}");
        assert!(get(address, "/nowhere?x=1").await.starts_with("HTTP/1.1 404 "));

        // A client that only holds its connection open does not hold up the shutdown.
        let _idle = tokio::net::TcpStream::connect(address).await.unwrap();
        stop.cancel();
        timeout(Duration::from_secs(5), running).await.unwrap().unwrap();
        assert!(tokio::net::TcpStream::connect(address).await.is_err());
    }
}
