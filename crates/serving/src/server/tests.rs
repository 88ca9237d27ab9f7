use std::sync::Arc;

use axum::routing::get;
use http::StatusCode;
use telemetry::metrics::Metrics;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::Instant,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
        client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        pki_types::{CertificateDer, ServerName, UnixTime},
    },
};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::{
    Answer, CertificateSource, DelegatedAuth, Measures, MinVersion, Options, Reviewer, Router,
    connection::{HEAD, LIFE},
    options::for_tests,
    tls::{
        server_config,
        tests::{authority, pem_of},
    },
};

/// A server whose pages need no rights.
struct Running {
    address: SocketAddr,
    connector: TlsConnector,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<io::Result<()>>,
}

fn start(router: Router) -> Running {
    let options = Options { always_allow_paths: vec!["*".to_owned()], ..for_tests() };
    let server = Server::bind(SocketAddr::new(options.address, 0)).unwrap();
    let address = server.address();
    let own = OwnCertificate::load(&CertificateSource::Memory, &["localhost".to_owned()]).unwrap();
    let own = Arc::new(own);
    let connector = connector(&own);
    let gate = gate(router, &options);
    let config = server_config(&options, Arc::clone(&own)).unwrap();
    let stop = CancellationToken::new();
    let task = tokio::spawn(server.run(gate, config, own, stop.clone()));
    Running { address, connector, stop, task }
}

/// One who trusts a server's own certificate.
fn connector(own: &OwnCertificate) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(own.current().cert.first().unwrap().clone()).unwrap();
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut client = client.unwrap().with_root_certificates(roots).with_no_client_auth();
    client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(client))
}

/// Without an API server.
fn gate(router: Router, options: &Options) -> Arc<Gate> {
    let measures = Measures::new(&Metrics::default()).unwrap();
    let nobody = || {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, _>(io::Error::other("away"))
        });
        Reviewer::new(kube::Client::new(service, "default"), measures.clone())
    };
    let auth = DelegatedAuth::new(options, nobody(), nobody()).unwrap();
    Arc::new(Gate::new(router, auth, options.clone(), measures))
}

fn router() -> Router {
    Router::default().page("/metrics", || Answer {
        status: StatusCode::OK,
        content_type: "text/plain; version=0.0.4",
        body: "up 1\n".to_owned(),
    })
}

impl Running {
    async fn connect(&self) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        self.connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap()
    }

    async fn get(&self, path: &str) -> String {
        self.ask("GET", path).await
    }

    async fn ask(&self, method: &str, path: &str) -> String {
        let mut stream = self.connect().await;
        let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn stop(self) {
        self.stop.cancel();
        timeout(Duration::from_secs(20), self.task).await.unwrap().unwrap().unwrap();
    }
}

#[tokio::test]
async fn serves_until_told_to_stop() {
    let running = start(router());
    let address = running.address;
    let taken = Server::bind(address).unwrap_err().to_string();
    assert!(
        taken.starts_with(&format!("--bind-address 127.0.0.1 --secure-port {}: ", address.port())),
        "{taken}"
    );
    let answer = running.get("/metrics").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("content-type: text/plain; version=0.0.4\r\n"), "{answer}");
    assert!(answer.contains("content-length: 5\r\n"), "{answer}");
    assert!(answer.contains("cache-control: no-cache, private\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nup 1\n"), "{answer}");
    assert!(running.get("/nowhere?x=1").await.starts_with("HTTP/1.1 404 "));
    let answer = running.ask("HEAD", "/metrics").await;
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("content-length: 5\r\n"),
        "{answer}"
    );
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
    let answer = running.ask("POST", "/metrics").await;
    assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("allow: GET, HEAD\r\n"), "{answer}");

    // Those who only hold their connections open do not hold up the shutdown, however many they are (m1).
    let mut idle = Vec::new();
    for _ in 0..super::super::connections::MAX_CONNECTIONS {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    let _kept = running.connect().await;
    running.stop().await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_connection_has_an_end_and_pipelined_requests_are_answered_in_order() {
    let running = start(router());
    let mut stream = running.connect().await;
    stream.write_all("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(150).as_bytes()).await.unwrap();
    let mut answers = String::new();
    // The server closes while requests are left unread, which may reset the connection.
    let _ = stream.read_to_string(&mut answers).await;
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 100);
    assert!(answers.contains("connection: close\r\n"));
    running.stop().await;
}

#[tokio::test]
async fn whoever_comes_is_let_in_and_the_crowd_makes_room() {
    let running = start(router());
    let mut silent = Vec::new();
    for _ in 0..3 * super::super::connections::MAX_PER_PEER {
        silent.push(TcpStream::connect(running.address).await.unwrap());
    }
    assert!(running.get("/metrics").await.starts_with("HTTP/1.1 200 "));
    // The first one was ended.
    let mut first = silent.remove(0);
    assert!(matches!(first.read(&mut [0; 1]).await, Ok(0) | Err(_)));
    running.stop().await;
}

#[tokio::test]
async fn no_plain_http_no_http_2_and_no_rubbish() {
    let running = start(router());
    let mut plain = TcpStream::connect(running.address).await.unwrap();
    plain.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.windows(4).any(|bytes| bytes == b"HTTP"), "{answer:?}");
    let mut stream = running.connect().await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"http/1.1".as_slice()));
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    running.stop().await;
}

/// `--tls-cert-file` and `--client-ca-file` are read again without a restart.
#[tokio::test(start_paused = true)]
async fn files_are_read_again_while_serving() {
    let folder = std::env::temp_dir().join(format!("mooring-serving-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (first, second) = (authority("first"), authority("second"));
    let file = folder.join("ca.crt");
    std::fs::write(&file, pem_of(&first)).unwrap();
    let options = Options { client_ca_file: Some(file.clone()), ..for_tests() };
    let names = ["localhost".to_owned()];
    let own = Arc::new(OwnCertificate::load(&CertificateSource::Folder(folder.clone()), &names).unwrap());
    let gate = gate(router(), &options);
    let _reloading = AbortOnDropHandle::new(tokio::spawn(reload(Arc::clone(&gate), Arc::clone(&own))));
    let before = own.current();
    let remove = || {
        for name in ["mooring.crt", "mooring.key"] {
            std::fs::remove_file(folder.join(name)).unwrap();
        }
    };
    remove();
    // Makes another pair in the folder.
    OwnCertificate::load(&CertificateSource::Folder(folder.clone()), &names).unwrap();
    std::fs::write(&file, pem_of(&second)).unwrap();
    for _ in 0..10 {
        sleep(RELOAD).await;
    }
    assert_ne!(own.current().cert, before.cert);
    assert!(!gate.auth.certificates.reload().unwrap(), "both were read again");

    // One that is broken keeps no client from the other: an authority that was taken back must not be trusted on.
    let current = own.current();
    std::fs::write(folder.join("mooring.crt"), "rubbish").unwrap();
    std::fs::write(&file, pem_of(&first)).unwrap();
    let [(_, certificate), (_, authorities)] = reload_once(&gate, &own);
    assert!(certificate.unwrap_err().contains("mooring.crt: "));
    assert!(authorities.unwrap());
    assert_eq!(own.current().cert, current.cert);
    std::fs::write(&file, "rubbish").unwrap();
    remove();
    OwnCertificate::load(&CertificateSource::Folder(folder.clone()), &names).unwrap();
    let [(_, certificate), (_, authorities)] = reload_once(&gate, &own);
    assert!(certificate.unwrap());
    assert!(authorities.unwrap_err().contains("ca.crt: "));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A head that dribbles, an answer that lasts, and a peer that says nothing.
#[tokio::test(start_paused = true)]
async fn a_connection_ends_when_its_time_is_over() {
    let lasts = async || std::future::pending::<()>().await;
    let options = Options { always_allow_paths: vec!["/lasts".to_owned()], ..for_tests() };
    let own = OwnCertificate::load(&CertificateSource::Memory, &["localhost".to_owned()]).unwrap();
    let own = Arc::new(own);
    let gate = gate(Router::default().route("/lasts", get(lasts)), &options);
    let config = Arc::new(server_config(&options, Arc::clone(&own)).unwrap());
    for (sent, limit) in
        [("", HEAD), ("GET /lasts HTTP/1.1\r\nHost", HEAD), ("GET /lasts HTTP/1.1\r\nHost: x\r\n\r\n", LIFE)]
    {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let stop = CancellationToken::new();
        let serving = serve(theirs, options.address, Arc::clone(&config), Arc::clone(&gate), stop);
        let serving = AbortOnDropHandle::new(tokio::spawn(serving));
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = connector(&own).connect(name, ours).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let begun = Instant::now();
        serving.await.unwrap();
        assert_eq!(begun.elapsed().as_secs(), limit.as_secs(), "{sent}");
    }
    // Without a handshake.
    let (_silent, theirs) = tokio::io::duplex(64);
    let begun = Instant::now();
    serve(theirs, options.address, config, gate, CancellationToken::new()).await;
    assert_eq!(begun.elapsed().as_secs(), 5);
}

/// M10: what `::` and `0.0.0.0` mean to Go.
#[test]
fn an_unspecified_address_is_all_of_both_families() {
    let has_ipv6 = TcpListener::bind("[::1]:0").is_ok();
    for address in ["[::]:0", "0.0.0.0:0"] {
        let server = Server::bind(address.parse().unwrap()).unwrap();
        let port = server.address().port();
        std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        if has_ipv6 {
            std::net::TcpStream::connect(("::1", port)).unwrap();
        }
        let taken = Server::bind(SocketAddr::new("::".parse().unwrap(), port)).unwrap_err().to_string();
        assert!(taken.starts_with(&format!("--bind-address :: --secure-port {port}: ")), "{taken}");
    }
}

/// What is not read waits in the kernel, which charges the process for it.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_kernel_holds_little_of_what_nobody_reads() {
    let server = Server::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let _client = std::net::TcpStream::connect(server.address()).unwrap();
    let listener = tokio::net::TcpListener::from_std(server.listener).unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    // The kernel doubles it for its own use.
    assert_eq!(socket2::SockRef::from(&stream).send_buffer_size().unwrap(), 2 * SEND_BUFFER);
}

/// A new handshake shows the certificate that was read last.
#[tokio::test]
async fn a_reloaded_certificate_is_shown_to_who_connects_next() {
    let folder = std::env::temp_dir().join(format!("mooring-shown-{}", std::process::id()));
    std::fs::remove_dir_all(&folder).ok();
    let source = CertificateSource::Folder(folder.clone());
    let names = ["localhost".to_owned()];
    let own = Arc::new(OwnCertificate::load(&source, &names).unwrap());
    let config = Arc::new(server_config(&for_tests(), Arc::clone(&own)).unwrap());
    assert_eq!(shown(&config, None).await.unwrap(), own.current().cert[0]);
    let before = own.current();
    for name in ["mooring.crt", "mooring.key"] {
        std::fs::remove_file(folder.join(name)).unwrap();
    }
    OwnCertificate::load(&source, &names).unwrap();
    assert!(own.reload().unwrap());
    let now = shown(&config, None).await.unwrap();
    assert_eq!(now, own.current().cert[0]);
    assert_ne!(now, before.cert[0]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn tls_1_2_is_spoken_unless_1_3_is_the_least() {
    let own = OwnCertificate::load(&CertificateSource::Memory, &["localhost".to_owned()]).unwrap();
    let own = Arc::new(own);
    let tls12 = Some(&tokio_rustls::rustls::version::TLS12);
    let config = |min_version| {
        let options = Options { min_version, ..for_tests() };
        Arc::new(server_config(&options, Arc::clone(&own)).unwrap())
    };
    shown(&config(MinVersion::Tls12), tls12).await.unwrap();
    shown(&config(MinVersion::Tls13), None).await.unwrap();
    let refused = shown(&config(MinVersion::Tls13), tls12).await.unwrap_err().to_string();
    assert!(refused.contains("ProtocolVersion"), "{refused}");
}

/// The certificate that a client is shown who speaks this version.
async fn shown(
    config: &Arc<ServerConfig>,
    version: Option<&'static tokio_rustls::rustls::SupportedProtocolVersion>,
) -> io::Result<CertificateDer<'static>> {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let accepting = tokio_rustls::TlsAcceptor::from(Arc::clone(config)).accept(theirs);
    let _accepting = AbortOnDropHandle::new(tokio::spawn(async move { accepting.await.map(drop) }));
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let versions = version.map_or(tokio_rustls::rustls::ALL_VERSIONS.to_vec(), |version| vec![version]);
    let client = ClientConfig::builder_with_provider(provider).with_protocol_versions(&versions).unwrap();
    let client = client.dangerous().with_custom_certificate_verifier(Arc::new(Anybody));
    let connector = TlsConnector::from(Arc::new(client.with_no_client_auth()));
    let stream = connector.connect(ServerName::try_from("localhost").unwrap(), ours).await?;
    Ok(stream.get_ref().1.peer_certificates().unwrap()[0].clone())
}

/// Believes every client.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, tokio_rustls::rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, tokio_rustls::rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, tokio_rustls::rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        tokio_rustls::rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
