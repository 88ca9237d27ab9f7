//! A webhook that allows everything, late.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use http::{Request, Response};
use http_body_util::{BodyExt, Collected, Full};
use hyper::{
    body::{Bytes, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use test_support::visitor::Authority;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::front::acceptor;

/// Less than the API server waits, and more than a lease lasts.
const PAUSE: Duration = Duration::from_secs(8);

/// A server whose certificate the tests' authority has signed.
#[derive(Debug)]
pub struct SlowWebhook {
    pub address: SocketAddr,
    _serving: AbortOnDropHandle<()>,
}

impl SlowWebhook {
    pub async fn open() -> Self {
        let identity = Authority::of_the_test().vouch_for_server();
        let acceptor = acceptor(&identity.certificate, &identity.key);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind a webhook");
        let address = listener.local_addr().expect("a bound socket has an address");
        let serving = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(connection) = acceptor.accept(connection).await else { return };
                    let server = hyper::server::conn::http1::Builder::new();
                    // The API server may have given up.
                    let _ = server.serve_connection(TokioIo::new(connection), service_fn(allow)).await;
                });
            }
        });
        Self { address, _serving: AbortOnDropHandle::new(serving) }
    }
}

async fn allow(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.map(Collected::to_bytes).unwrap_or_default();
    let review: Value = serde_json::from_slice(&body).unwrap_or_default();
    tokio::time::sleep(PAUSE).await;
    let answer = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": { "uid": review["request"]["uid"], "allowed": true },
    });
    Ok(Response::builder()
        .header("content-type", "application/json")
        .body(Full::from(answer.to_string()))
        .expect("an answer"))
}
