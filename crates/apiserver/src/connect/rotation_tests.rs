//! A leader and a standby beside an API server whose authority and tokens are rotated.

use std::{io::Write, sync::Mutex};

use futures::FutureExt;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::watch,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{HandshakeKind, ServerConfig, crypto::ring, pki_types::PrivateKeyDer},
};

use super::*;

/// What the server is, and takes, now.
struct Identity {
    tls: TlsAcceptor,
    token: &'static str,
}

/// An API server of this machine, and a kubeconfig of it.
pub(super) struct Rotated {
    identity: Arc<Mutex<Identity>>,
    /// How many answers it has given.
    answers: watch::Receiver<usize>,
    pub(super) address: String,
    folder: tempfile::TempDir,
}

/// The server by a name that is looked up nowhere.
pub(super) const HIDDEN: &str = "api.hidden.example";

impl Rotated {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (tls, _) = authority();
        let identity = Arc::new(Mutex::new(Identity { tls, token: "none" }));
        let now = Arc::clone(&identity);
        let (answered, answers) = watch::channel(0);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                // An answer does not wait for what the client's kernel has still to acknowledge.
                stream.set_nodelay(true).unwrap();
                let (tls, token) = {
                    let now = now.lock().unwrap();
                    (now.tls.clone(), now.token)
                };
                let answered = answered.clone();
                tokio::spawn(async move {
                    let Ok(mut stream) = tls.accept(stream).await else { return };
                    let kind = stream.get_ref().1.handshake_kind();
                    assert_ne!(kind, Some(HandshakeKind::Resumed), "its certificate was not shown");
                    loop {
                        let mut head = Vec::new();
                        while !head.ends_with(b"\r\n\r\n") {
                            let Ok(byte) = stream.read_u8().await else { return };
                            head.push(byte);
                        }
                        let head = String::from_utf8(head).unwrap().to_lowercase();
                        let is_known = head.contains(&format!("authorization: bearer {token}\r\n"));
                        let status = if is_known { "200 OK" } else { "401 Unauthorized" };
                        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                        stream.write_all(answer.as_bytes()).await.unwrap();
                        answered.send_modify(|count| *count += 1);
                        if head.contains("connection: close\r\n") {
                            let _ = stream.shutdown().await;
                            return;
                        }
                    }
                });
            }
        });
        Self { identity, answers, address, folder: tempfile::tempdir().unwrap() }
    }

    /// Another authority and another token from now on. Returns a kubeconfig that has them.
    pub(super) fn rotate(&self, has_new_authority: bool, token: &'static str) -> PathBuf {
        if has_new_authority {
            let (tls, pem) = authority();
            self.identity.lock().unwrap().tls = tls;
            std::fs::write(self.folder.path().join("ca.crt"), pem).unwrap();
        }
        self.identity.lock().unwrap().token = token;
        self.kubeconfig(&serde_json::json!({ "server": format!("https://{}", self.address) }))
    }

    /// A kubeconfig with this cluster, besides the authority and the token of now.
    pub(super) fn kubeconfig(&self, cluster: &serde_json::Value) -> PathBuf {
        let mut cluster = cluster.clone();
        cluster["certificate-authority"] = self.folder.path().join("ca.crt").to_str().into();
        let token = self.identity.lock().unwrap().token;
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": cluster }],
            "users": [{ "name": "c", "user": { "token": token } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
        });
        let path = self.folder.path().join("kubeconfig");
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(kubeconfig.to_string().as_bytes()).unwrap();
        path
    }

    /// The server's certificate as it is now.
    pub(super) fn tls(&self) -> TlsAcceptor {
        self.identity.lock().unwrap().tls.clone()
    }
}

/// A certificate of this machine, and the authority that vouches for it.
fn authority() -> (TlsAcceptor, String) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let params = CertificateParams::new(["127.0.0.1".to_owned(), HIDDEN.to_owned()]).unwrap();
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

/// What is answered on a connection that is not used again.
pub(super) async fn status(client: &Client) -> Option<u16> {
    status_on(client, "close").await
}

/// The same on one that is used for ever.
async fn status_again(client: &Client) -> Option<u16> {
    status_on(client, "keep-alive").await
}

async fn status_on(client: &Client, connection: &str) -> Option<u16> {
    let request = Request::get("/version").header("connection", connection).body(Body::empty()).unwrap();
    client.send(request).await.ok().map(|response| response.status().as_u16())
}

#[tokio::test]
async fn m14_who_waits_with_what_was_rotated_learns_that_nothing_is_accepted_any_more() {
    let server = Rotated::start().await;
    let mut kubeconfig = server.rotate(true, "first");
    for (has_new_authority, token, answered, why) in
        [(true, "second", None, "certificate"), (false, "third", Some(401), "401 Unauthorized")]
    {
        let (leader, standby) = (
            ApiServer::find(Some(&kubeconfig)).await.unwrap(),
            ApiServer::find(Some(&kubeconfig)).await.unwrap(),
        );
        let clients = [leader.client().unwrap(), standby.client().unwrap()];
        for client in &clients {
            assert_eq!(status(client).await, Some(200));
        }
        kubeconfig = server.rotate(has_new_authority, token);
        for (api, client) in [&leader, &standby].into_iter().zip(&clients) {
            let refused = api.refusals.last(Duration::ZERO);
            timeout(Duration::from_millis(1), refused).await.expect_err("nothing was refused yet");
            assert_eq!(status(client).await, answered);
            let said = api.refusals.last(Duration::ZERO).await;
            assert!(said.contains(why), "{said}");
        }
    }
    // Started again it reads what is there now.
    let anew = ApiServer::find(Some(&kubeconfig)).await.unwrap();
    assert_eq!(status(&anew.client().unwrap()).await, Some(200));
}

/// Time that passes at once, between requests.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// A replica whose elector has a connection that it keeps.
async fn on_a_kept_connection() -> (Rotated, ApiServer, Client) {
    let server = Rotated::start().await;
    let api = ApiServer::find(Some(&server.rotate(true, "token"))).await.unwrap();
    let elector = api.client().unwrap();
    assert_eq!(status_again(&elector).await, Some(200));
    (server, api, elector)
}

#[tokio::test]
async fn m14_who_writes_and_is_refused_is_an_end_although_the_lease_is_renewed_on_an_old_connection() {
    let (server, api, elector) = on_a_kept_connection().await;
    let writer = api.apart().client().unwrap();
    server.rotate(true, "token");
    for _ in 0..=6 {
        assert_eq!(status_again(&elector).await, Some(200));
        assert_eq!(status(&writer).await, None);
        pass(LONGEST_REFUSAL / 6).await;
    }
    assert_eq!(status_again(&elector).await, Some(200));
    let said = api.out_of_date().now_or_never().expect("an end").to_string();
    assert!(said.contains("certificate"), "{said}");
}

#[tokio::test]
async fn m14_each_connection_is_shown_the_certificate_of_now() {
    let server = Rotated::start().await;
    let client = ApiServer::find(Some(&server.rotate(true, "token"))).await.unwrap().client().unwrap();
    for _ in 0..3 {
        assert_eq!(status(&client).await, Some(200));
    }
}

#[tokio::test]
async fn m2_who_cannot_connect_is_as_good_as_blind_although_its_old_connection_is_answered() {
    let (mut server, api, elector) = on_a_kept_connection().await;
    let sight = Sight::default();
    tokio::spawn(api.keep_connecting(sight.clone()));
    server.answers.wait_for(|count| *count == 2).await.unwrap();
    let before = server.tls();
    server.rotate(true, "token");
    let began = Instant::now();
    while sight.blind_since().is_none() {
        assert!(began.elapsed() < CONNECT_PAUSE * 4, "it has not noticed");
        assert_eq!(status_again(&elector).await, Some(200));
        pass(RECONNECT_PAUSE).await;
    }
    assert!(began.elapsed() >= CONNECT_PAUSE * 2 && !sight.needs_successor(Instant::now()));
    pass(CONNECT_PAUSE * 2).await;
    assert!(sight.needs_successor(Instant::now()));
    server.identity.lock().unwrap().tls = before;
    pass(RECONNECT_PAUSE).await;
    while sight.blind_since().is_some() {
        tokio::task::yield_now().await;
    }
}
