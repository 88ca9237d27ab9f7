//! What stands before the API servers, with their certificate: it answers in their place, or takes the bookmarks from their watches.
//!
//! In: a connection. Out: one status for each request but those to leases, which are forwarded, so that who leads goes on
//! leading and is refused; or what one of the servers answers to the same requests, none of which asks for bookmarks.

use std::{
    convert::Infallible,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
};

use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Collected, Either};
use hyper::{body::Incoming, client::conn::http1 as client_side, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::{Client, client::Body, core::Status};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::Mutex,
};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore, ServerConfig,
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

/// TLS to a server of this machine, for whoever trusts these authorities.
pub async fn connect<S>(authorities: &Path, server: S) -> std::io::Result<TlsStream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut roots = RootCertStore::empty();
    let trusted = CertificateDer::pem_file_iter(authorities).expect("read authorities");
    roots.add_parsable_certificates(trusted.filter_map(Result::ok));
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "127.0.0.1".try_into().expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, server).await
}

/// Answers in the place of the API servers.
#[derive(Clone)]
pub struct Front {
    /// The servers' certificate, with those that vouch for it, and its key.
    pub certificates: PathBuf,
    pub key: PathBuf,
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
        let Ok(connection) = acceptor(&self.certificates, &self.key).accept(connection).await else { return };
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

    /// Carries a connection to a server that is asked for no bookmarks, until either ends it.
    pub async fn stand_between(&self, client: impl AsyncRead + AsyncWrite + Unpin, server: TcpStream) {
        let Ok(client) = acceptor(&self.certificates, &self.key).accept(client).await else { return };
        let Ok(server) = connect(&self.certificates, server).await else { return };
        let Ok((sender, to_server)) = client_side::handshake(TokioIo::new(server)).await else { return };
        let sender = Mutex::new(sender);
        let service = service_fn(|mut request: Request<Incoming>| async {
            let Some(uri) = without_bookmarks(request.uri()) else {
                return Ok(refusal(422).map(Either::Right));
            };
            *request.uri_mut() = uri;
            let answer = sender.lock().await.send_request(request).await?;
            Ok::<_, hyper::Error>(answer.map(Either::Left))
        });
        let server_side = hyper::server::conn::http1::Builder::new();
        let mut serving = pin!(server_side.serve_connection(TokioIo::new(client), service));
        tokio::select! {
            _ = &mut serving => return,
            _ = to_server => serving.as_mut().graceful_shutdown(),
        }
        // Whoever asked may have gone.
        let _ = serving.await;
    }

    async fn forward(&self, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
        let answer = self.client.send(Request::from_parts(head, Body::from(body.to_vec()))).await;
        answer.unwrap_or_else(|_| refusal(503))
    }
}

/// A request of one who asks for no bookmarks. An API server that has none refuses a streaming list, which ends with one.
fn without_bookmarks(uri: &Uri) -> Option<Uri> {
    let parameters = || uri.query().into_iter().flat_map(|query| query.split('&'));
    if parameters().any(|parameter| parameter == "sendInitialEvents=true") {
        return None;
    }
    let kept: Vec<&str> =
        parameters().filter(|parameter| !parameter.starts_with("allowWatchBookmarks=")).collect();
    let question = if kept.is_empty() { "" } else { "?" };
    format!("{}{question}{}", uri.path(), kept.join("&")).parse().ok()
}

fn refusal(code: u16) -> Response<Body> {
    let reason = match code {
        422 => "Invalid",
        429 => "TooManyRequests",
        _ => "InternalError",
    };
    let mut status = Status::failure("refused by the trial", reason);
    status.code = code;
    let mut answer = Response::builder().status(code).header("content-type", "application/json");
    if code == 429 {
        answer = answer.header("retry-after", "1");
    }
    answer.body(Body::from(serde_json::to_vec(&status).expect("a status"))).expect("an answer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_request_only_what_asks_for_bookmarks_is_taken_away() {
        let cases = [
            ("/api/v1/pods", Some("/api/v1/pods")),
            ("/api/v1/pods?limit=100&continue=a%3D", Some("/api/v1/pods?limit=100&continue=a%3D")),
            (
                "/api/v1/pods?watch=true&allowWatchBookmarks=true&resourceVersion=7",
                Some("/api/v1/pods?watch=true&resourceVersion=7"),
            ),
            ("/api/v1/pods?allowWatchBookmarks=true", Some("/api/v1/pods")),
            ("/api/v1/pods?allowWatchBookmarks=true&sendInitialEvents=true&watch=true", None),
        ];
        for (asked, expected) in cases {
            let passed = without_bookmarks(&asked.parse().unwrap());
            assert_eq!(passed.map(|uri| uri.to_string()).as_deref(), expected, "{asked}");
        }
    }
}
