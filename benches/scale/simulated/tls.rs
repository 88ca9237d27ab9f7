//! How the simulated server is reached: over TLS, with a certificate made at start, and beside it without.

use std::{convert::Infallible, net::SocketAddr, path::PathBuf, sync::Arc};

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::rt::{TokioIo, TokioTimer};
use test_support::visitor::Authority;
use testbed::Body;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};

/// Serves over TLS. Returns the address, and the file with the certificate of its authority.
pub async fn serve<F>(
    answer: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
) -> (SocketAddr, PathBuf)
where
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let acceptor = acceptor();
    let address = accept(move |stream| {
        let (acceptor, answer) = (acceptor.clone(), answer.clone());
        async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                connection(TokioIo::new(stream), answer).await;
            }
        }
    });
    (address.await, Authority::of_the_test().file())
}

/// Serves without TLS. Returns the address.
pub async fn serve_plain<F>(
    answer: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
) -> SocketAddr
where
    F: Future<Output = Response<Body>> + Send + 'static,
{
    accept(move |stream| connection(TokioIo::new(stream), answer.clone())).await
}

async fn accept<F>(connection: impl Fn(TcpStream) -> F + Send + Sync + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            tokio::spawn(connection(stream));
        }
    });
    address
}

async fn connection<F>(
    stream: impl hyper::rt::Read + hyper::rt::Write + Unpin,
    answer: impl Fn(Request<Incoming>) -> F,
) where
    F: Future<Output = Response<Body>>,
{
    let service = hyper::service::service_fn(move |request| {
        let answer = answer(request);
        async { Ok::<_, Infallible>(answer.await) }
    });
    // A client that goes away breaks its connection.
    let _ = http1::Builder::new().timer(TokioTimer::new()).serve_connection(stream, service).await;
}

/// With a certificate of this machine.
fn acceptor() -> TlsAcceptor {
    let own = Authority::of_the_test().vouch_for_server();
    let certificate = CertificateDer::from_pem_file(own.certificate).unwrap();
    let key = PrivateKeyDer::from_pem_file(own.key).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}
