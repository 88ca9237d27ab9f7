//! The same service over HTTP, for kubectl and other programs.
//!
//! In: a listener and any service with the server's types, so that layers around it are served
//! too. HTTP/1.1 without TLS: it is meant for loopback.

use std::convert::Infallible;

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::server::Body;

/// Serves until told to stop. Connections end with it: a watch has no other end.
pub async fn serve<S>(listener: TcpListener, service: S, stop: CancellationToken)
where
    S: tower::Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                continue;
            }
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "could not switch off delays");
        }
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service.clone()));
        let stop = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%error, "connection failed");
                },
                () = stop.cancelled() => {}
            }
        });
    }
}
