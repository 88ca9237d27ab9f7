//! The same service over HTTP, for kubectl and other programs.
//!
//! In: a listener and any service that answers like a server, also one with layers around it. An error
//! of the service breaks its connection. It uses HTTP/1.1 without TLS, because it is for loopback.

use http::{Request, Response};
use hyper::{
    body::{Body, Bytes, Incoming},
    server::conn::http1,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::BoxError;

/// Serves until told to stop. Connections end with it: a watch has no other end.
pub async fn serve<S, B>(listener: TcpListener, service: S, stop: CancellationToken)
where
    S: tower::Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
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
            tracing::debug!(%error, "could not set TCP_NODELAY");
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
