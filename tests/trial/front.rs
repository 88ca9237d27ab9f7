//! What stands before the API servers and answers in their place, with their certificate: a burst of refusals.
//!
//! In: a connection. Out: one status for each request but those to leases, which are forwarded, so that who leads goes on
//! leading and is refused.

use std::{convert::Infallible, path::Path, sync::Arc};

use http::{Request, Response};
use http_body_util::{BodyExt, Collected};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::{Client, client::Body, core::Status};
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring::default_provider,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

/// A server's side of TLS.
pub fn acceptor(certificates: &Path, key: &Path) -> TlsAcceptor {
    let chain = CertificateDer::pem_file_iter(certificates).expect("read certificates");
    let chain = chain.collect::<Result<_, _>>().expect("certificates");
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key).expect("a key"))
        .expect("a certificate with its key");
    TlsAcceptor::from(Arc::new(config))
}

/// Answers in the place of the API servers.
#[derive(Clone)]
pub struct Front {
    pub acceptor: TlsAcceptor,
    /// Without credentials: what is forwarded brings its own.
    pub client: Client,
}

impl std::fmt::Debug for Front {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Front")
    }
}

impl Front {
    /// Serves a connection until it ends.
    pub async fn answer(&self, connection: TcpStream, code: u16) {
        let Ok(connection) = self.acceptor.accept(connection).await else { return };
        let service = service_fn(|request: Request<Incoming>| async move {
            let answer = if request.uri().path().contains("/leases") {
                self.forward(request).await
            } else {
                refusal(code)
            };
            Ok::<_, Infallible>(answer)
        });
        // Whoever asked may have gone.
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(connection), service)
            .await;
    }

    async fn forward(&self, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
        let answer = self.client.send(Request::from_parts(head, Body::from(body.to_vec()))).await;
        answer.unwrap_or_else(|_| refusal(503))
    }
}

fn refusal(code: u16) -> Response<Body> {
    let mut status = Status::failure(
        "refused by the trial",
        if code == 429 { "TooManyRequests" } else { "InternalError" },
    );
    status.code = code;
    let mut answer = Response::builder().status(code).header("content-type", "application/json");
    if code == 429 {
        answer = answer.header("retry-after", "1");
    }
    answer.body(Body::from(serde_json::to_vec(&status).expect("a status"))).expect("an answer")
}
