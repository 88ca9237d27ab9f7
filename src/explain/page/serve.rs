//! The page for one person, on loopback (`mooring explain --serve`).
//!
//! In: a port, and a [`PageSource`]. Out: answers over plain HTTP to whom the [`Guard`] admits, until the one who started it has
//! enough. Other users of the machine can reach the port: few connections, small heads, and little time for each.

use std::{convert::Infallible, io, net::Ipv4Addr, sync::Arc, time::Duration};

use axum::{Router, response::IntoResponse};
use http::{Request, StatusCode};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::{guard::Guard, routes::router, source::PageSource};

/// Connections at once: a browser opens six.
const PAGE_CONNECTIONS: usize = 32;
/// Bytes of a head.
const HEAD: usize = 16 * 1024;
/// How long a head may take, and a connection be idle.
const PAGE_PATIENCE: Duration = Duration::from_secs(15);
/// How long an answer may take: a large cluster is listed in ten seconds.
const ANSWER: Duration = Duration::from_mins(1);
/// Until the next try when the system gives no connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A place to serve at.
#[derive(Debug)]
pub struct PagePlace {
    listener: TcpListener,
    guard: Guard,
}

impl PagePlace {
    /// Takes a port of the loopback address; 0 is any.
    ///
    /// # Errors
    /// The port is taken, or there are no random bytes for the secret.
    pub async fn take(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let guard = Guard::new(listener.local_addr()?).map_err(io::Error::other)?;
        Ok(Self { listener, guard })
    }

    /// What is printed for the one who may read.
    #[must_use]
    pub fn url(&self) -> String {
        self.guard.url()
    }

    /// Answers until it is told to stop; what is under way then is broken off.
    pub async fn serve(self, source: impl PageSource + 'static, stop: CancellationToken) {
        let pages = router(source, self.guard);
        let places = Arc::new(Semaphore::new(PAGE_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else {
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            // One too many is closed at once.
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
            let pages = pages.clone();
            connections.spawn(async move {
                connection(stream, pages).await;
                drop(place);
            });
        }
    }
}

async fn connection(stream: TcpStream, pages: Router) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = timeout(ANSWER, pages.clone().oneshot(request));
        async move {
            Ok::<_, Infallible>(match answer.await {
                Ok(answer) => answer.into_response(),
                Err(_) => StatusCode::GATEWAY_TIMEOUT.into_response(),
            })
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PAGE_PATIENCE)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    // What a peer does wrong is its own affair.
    let _ = connection.await;
}
