//! How the simulated server is reached: over TLS, with a certificate made at start, and beside it without.

use std::{convert::Infallible, net::SocketAddr, path::PathBuf, sync::Arc};

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::rt::{TokioIo, TokioTimer};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use test_support::process::temporary_folder;
use testbed::Body;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

/// Serves over TLS. Returns the address, and the file with the certificate of its authority.
pub async fn serve<F>(
    answer: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
) -> (SocketAddr, PathBuf)
where
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let (acceptor, pem) = identity();
    let certificate = temporary_folder("simulated").join("ca.crt");
    std::fs::write(&certificate, pem).expect("write the certificate");
    let address = accept(move |stream| {
        let (acceptor, answer) = (acceptor.clone(), answer.clone());
        async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                connection(TokioIo::new(stream), answer).await;
            }
        }
    });
    (address.await, certificate)
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

/// A certificate of this machine, and the authority that vouches for it.
fn identity() -> (TlsAcceptor, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    let own: &rcgen::Certificate = authority.as_ref();
    let pem = pem::encode(&pem::Pem::new("CERTIFICATE", own.der().to_vec()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.into()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
        .unwrap();
    (TlsAcceptor::from(Arc::new(config)), pem)
}
