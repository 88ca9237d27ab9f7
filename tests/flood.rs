//! Strangers at the port: for all they do there, the lease is renewed, probes are answered, and memory stays
//! what it was.
//!
//! The daemon is a process, the API server is in this one. The flood is bounded, on loopback, and comes from
//! other addresses than the probes, as it would in a cluster; once also from the same address. The daemon knows the
//! probes' address as its node's, as with the manifest.
//!
//! Attackers, daemon, API server and probes share the machine's cores, so a probe waits for the attackers' own
//! work, too. `MOORING_PROBE_LIMIT` is what a probe may take in milliseconds (p99 of all). The default is what a
//! kubelet waits for, and holds for a debug build on two busy cores.

#![expect(clippy::disallowed_methods, reason = "time of a real process")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr
)]

use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::Path,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use futures::future::join_all;
use kube::Client;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair};
use serde_json::json;
use test_support::{
    control_plane::free_ports,
    process::{Process, temporary_folder},
    visitor::{Authority, Credentials, Identity, ask},
};
use testbed::Server;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpSocket,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, ClientConnection, RootCertStore, StreamOwned,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};
use tokio_util::sync::CancellationToken;

/// Begins the answers to bad tokens: 401, then 429, or 503 while too many peers show such.
const REFUSED: &str = "HTTP/1.1 ";
/// The attacker whose address is that of the probes.
const SHARED: usize = usize::MAX;
/// Claims that nothing fits, so that there is something to tell about each.
const CLAIMS: usize = 2_000;
/// More than that the daemon must not take for all of it: 150 connections with one unread answer each, of 314 KiB. How
/// many of them there are at once depends on the machine; 15 MiB to 38 MiB were seen.
const MEMORY: u64 = 64 << 20;
/// On each connection of the scrapes. A connection ends after 30 seconds, so a slow machine must serve them by then.
const SCRAPES: usize = 20;
/// Ends the head of a request.
const END: &str = "\r\n\r\n";
/// p99 of the probes in milliseconds, unless `MOORING_PROBE_LIMIT` says another one: a kubelet's `timeoutSeconds`.
const PROBE_LIMIT: u64 = 1_000;
/// Of the lease. Without a renewal for so long the daemon would have ended itself.
const RENEW_DEADLINE: Duration = Duration::from_secs(4);
/// Kubelet restarts a container after so many probes in a row that failed (`deploy/deployment.yaml`).
const FAILURES_IN_A_ROW: usize = 6;
/// Only ends a failure. What was measured is printed.
const PATIENCE: Duration = Duration::from_secs(10);

/// An API server on a thread of its own, so that nothing here keeps it from answering.
fn api_server() -> (Server, SocketAddr) {
    let server = Server::default();
    let (sender, address) = std::sync::mpsc::channel();
    let twin = server.clone();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            testbed::serve(listener, twin, CancellationToken::new()).await;
        });
    });
    (server, address.recv().unwrap())
}

async fn create(client: &Client, path: &str, object: serde_json::Value) {
    let request = http::Request::post(path).header("content-type", "application/json");
    let request = request.body(object.to_string().into_bytes()).unwrap();
    client.request::<serde_json::Value>(request).await.unwrap();
}

/// The daemon under attack.
struct Target {
    process: Process,
    server: Server,
    address: SocketAddr,
    roots: RootCertStore,
}

/// Renewals of the lease: when each was written, and by how many holders in turn.
struct Renewals {
    count: usize,
    transitions: i64,
    longest_gap: Duration,
}

impl Target {
    async fn start() -> Self {
        let (server, api) = api_server();
        let client = server.client();
        for number in 0..CLAIMS {
            let claim = json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": { "name": format!("claim-{number}"), "namespace": "default" },
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
                    "resources": { "requests": { "storage": "1Gi" } },
                },
            });
            create(&client, "/api/v1/namespaces/default/persistentvolumeclaims", claim).await;
        }
        let folder = temporary_folder("flood");
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{ "name": "x", "cluster": { "server": format!("http://{api}") } }],
            "users": [{ "name": "x", "user": {} }],
            "contexts": [{ "name": "x", "context": { "cluster": "x", "user": "x" } }],
        });
        fs::write(folder.join("kubeconfig"), kubeconfig.to_string()).unwrap();
        let [port] = free_ports();
        let arguments = [
            "run".to_owned(),
            format!("--kubeconfig={}", folder.join("kubeconfig").display()),
            "--leader-elect-resource-namespace=default".to_owned(),
            "--leader-elect-lease-duration=6s".to_owned(),
            format!("--leader-elect-renew-deadline={}s", RENEW_DEADLINE.as_secs()),
            "--leader-elect-retry-period=200ms".to_owned(),
            format!("--secure-port={port}"),
            format!("--cert-dir={}", folder.display()),
            "--node-addresses=127.0.0.1".to_owned(),
            format!("--client-ca-file={}", Authority::of_the_test().file().display()),
        ];
        let program = std::env::var_os("MOORING_PROGRAM");
        let program = program.as_ref().map_or(Path::new(env!("CARGO_BIN_EXE_mooring")), Path::new);
        // As with the manifests.
        let environment = [("MALLOC_ARENA_MAX", "1".to_owned())];
        let process = Process::start("mooring", program, &arguments, &environment);
        let leading = process.log().find(|line| line.contains(" leading").then_some(())).await;
        leading.unwrap_or_else(|| panic!("{}", process.log().tail(20)));
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(folder.join("mooring.crt")).unwrap()).unwrap();
        Self { process, server, address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)), roots }
    }

    fn tls(&self, identity: Option<&Identity>) -> Arc<ClientConfig> {
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(self.roots.clone());
        Arc::new(match identity {
            None => config.with_no_client_auth(),
            Some(identity) => {
                let chain = vec![CertificateDer::from_pem_file(&identity.certificate).unwrap()];
                config
                    .with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&identity.key).unwrap())
                    .unwrap()
            }
        })
    }

    /// The same for a client with a chain of certificates that no authority here has signed: intermediates of one
    /// name, so that each may have signed each.
    fn tls_with_chain(&self, intermediates: usize) -> Arc<ClientConfig> {
        let named = |is_ca| {
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, "hostile");
            params.is_ca = is_ca;
            params
        };
        let authorities: Vec<_> = (0..intermediates)
            .map(|_| {
                let params = named(IsCa::Ca(BasicConstraints::Unconstrained));
                CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
            })
            .collect();
        let key = KeyPair::generate().unwrap();
        let leaf = named(IsCa::NoCa).signed_by(&key, &authorities[0]).unwrap();
        let mut chain: Vec<CertificateDer<'static>> = vec![leaf.into()];
        chain.extend(authorities.iter().map(|authority| {
            let certificate: &rcgen::Certificate = authority.as_ref();
            certificate.der().clone()
        }));
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(self.roots.clone());
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        Arc::new(config.with_client_auth_cert(chain, key).unwrap())
    }

    /// A connection from one of the attackers' addresses; none if it was ended meanwhile.
    async fn connect(&self, from: usize) -> Option<tokio::net::TcpStream> {
        let socket = TcpSocket::new_v4().unwrap();
        let host = if from == SHARED { 1 } else { u8::try_from(2 + from % 100).unwrap() };
        socket.bind(SocketAddr::from(([127, 0, 0, host], 0))).ok()?;
        socket.connect(self.address).await.ok()
    }

    async fn connect_tls(
        &self,
        from: usize,
        tls: &Arc<ClientConfig>,
    ) -> Option<TlsStream<tokio::net::TcpStream>> {
        let stream = self.connect(from).await?;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::clone(tls)).connect(name, stream).await.ok()
    }

    /// A line of `/proc/<pid>/status`, in bytes.
    fn memory(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
    }

    fn renewals(&self) -> Renewals {
        let history = self.server.history(0).unwrap();
        let leases = history.iter().filter(|(kind, _)| kind.plural == "leases");
        let mut times = Vec::new();
        let mut transitions = 0;
        for (_, change) in leases {
            let lease = &change.after.value;
            let text = lease["spec"]["renewTime"].as_str().unwrap();
            times.push(text.parse::<k8s_openapi::jiff::Timestamp>().unwrap());
            transitions = lease["spec"]["leaseTransitions"].as_i64().unwrap_or_default();
        }
        let gaps = times.windows(2).map(|pair| pair[1].duration_since(pair[0]).unsigned_abs());
        Renewals { count: times.len(), transitions, longest_gap: gaps.max().unwrap_or_default() }
    }

    /// Waits for renewals after those there are.
    async fn renewed(&self, more: usize) {
        let count = self.renewals().count + more;
        let deadline = Instant::now() + PATIENCE;
        let mut pause = tokio::time::interval(Duration::from_millis(20));
        while self.renewals().count < count {
            assert!(
                Instant::now() < deadline,
                "the lease is renewed no more:\n{}",
                self.process.log().tail(20)
            );
            pause.tick().await;
        }
    }
}

/// Probes as a kubelet does, each on a connection of its own, until told to stop. Returns how long each took that was
/// answered, and how many failed in a row at most.
fn probe(address: SocketAddr, tls: &Arc<ClientConfig>, stop: &AtomicBool) -> (Vec<Duration>, usize) {
    let (mut took, mut failed, mut most) = (Vec::new(), 0, 0);
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::clone(tls), name).unwrap();
        let stream = TcpStream::connect(address).unwrap();
        // As Go's: else the kernel holds back what comes after the handshake for 40 ms.
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut stream = StreamOwned::new(connection, stream);
        let mut answer = String::new();
        let asked = stream.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let answered = asked.and_then(|()| stream.read_to_string(&mut answer));
        if answered.is_ok() && answer.starts_with("HTTP/1.1 200 ") {
            took.push(begun.elapsed());
            failed = 0;
        } else {
            failed += 1;
            most = most.max(failed);
            println!("a probe failed after {:?}: {answered:?} {answer}", begun.elapsed());
        }
        thread::sleep(Duration::from_millis(20));
    }
    (took, most)
}

/// Probes while something else happens. Prints what it was, how long it took, and how long the probes took.
async fn while_probed<T>(target: &Target, name: &str, flood: impl Future<Output = T>) -> (T, Probed) {
    let stop = Arc::new(AtomicBool::new(false));
    let probing = thread::spawn({
        let (address, tls, stop) = (target.address, target.tls(None), Arc::clone(&stop));
        move || probe(address, &tls, &stop)
    });
    let begun = Instant::now();
    let done = flood.await;
    let spent = begun.elapsed();
    stop.store(true, Ordering::Relaxed);
    let (mut took, failed_in_a_row) = probing.join().unwrap();
    took.sort();
    println!(
        "{name}: {spent:?}; {} probes, p50 {:?}, longest {:?}, {failed_in_a_row} failed in a row",
        took.len(),
        took.get(took.len() / 2),
        took.last(),
    );
    (done, Probed { took, failed_in_a_row })
}

struct Probed {
    took: Vec<Duration>,
    failed_in_a_row: usize,
}

/// A head that never ends, on as many connections as asked for at once: those that were ended come again.
async fn slow_loris(target: &Target, connections: usize, shared: bool) {
    let tls = target.tls(None);
    let one = async |number: usize| {
        let from = if shared { SHARED } else { number };
        let Some(mut stream) = target.connect_tls(from, &tls).await else { return };
        if stream.write_all(b"GET /metrics HTTP/1.1\r\nX-Slow: ").await.is_ok() {
            for _ in 0..20 {
                if stream.write_all(b"a").await.is_err() || stream.flush().await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    };
    join_all((0..connections).map(one)).await;
}

async fn half_open_tls(target: &Target) {
    // The first bytes of a ClientHello whose rest never comes.
    let one = async |number: usize| {
        let Some(mut stream) = target.connect(number).await else { return };
        let _ = stream.write_all(&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03]).await;
        let _ = tokio::time::timeout(Duration::from_secs(2), stream.read(&mut [0; 1])).await;
    };
    join_all((0..500).map(one)).await;
}

async fn garbage(target: &Target) {
    let one = async |number: usize| {
        let Some(mut stream) = target.connect(number).await else { return };
        let mut random = fastrand::Rng::with_seed(number as u64);
        let bytes: Vec<u8> = (0..4_096).map(|_| random.u8(..)).collect();
        let _ = stream.write_all(&bytes).await;
        let _ = tokio::time::timeout(Duration::from_secs(2), stream.read_to_end(&mut Vec::new())).await;
    };
    join_all((0..500).map(one)).await;
}

/// Sends so many requests at once on each of so many connections. Returns how many were answered like that.
async fn pipelined(
    target: &Target,
    tls: &Arc<ClientConfig>,
    (connections, requests): (usize, usize),
    request: impl Fn(usize) -> String,
    expected: &str,
) -> usize {
    let one = async |number: usize| {
        let Some(mut stream) = target.connect_tls(number, tls).await else { return 0 };
        let mut all: String = (0..requests).map(|turn| request(requests * number + turn)).collect();
        // With the last one the connection ends.
        all.truncate(all.len() - END.len());
        all.push_str("\r\nConnection: close\r\n\r\n");
        if stream.write_all(all.as_bytes()).await.is_err() || stream.flush().await.is_err() {
            return 0;
        }
        let mut answers = Vec::new();
        let _ = stream.read_to_end(&mut answers).await;
        String::from_utf8_lossy(&answers).matches(expected).count()
    };
    join_all((0..connections).map(one)).await.into_iter().sum()
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")
}

fn with_token(path: &str, number: usize) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer bad{number}\r\n\r\n")
}

/// Large pages that are asked for again and again, and never read.
async fn unread_answers(target: &Target, identity: &Identity) {
    let tls = target.tls(Some(identity));
    let one = async |number: usize| {
        let Some(mut stream) = target.connect_tls(number, &tls).await else { return };
        let all = "GET /debug/binder HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100);
        let _ = stream.write_all(all.as_bytes()).await;
        let _ = tokio::time::timeout(Duration::from_secs(2), stream.flush()).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    };
    join_all((0..150).map(one)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_strangers_do_the_daemon_leads_on() {
    let target = Target::start().await;
    let master = Authority::master();
    // Everything has been made once.
    let client = Credentials::from(master.clone()).client(&format!("https://{}", target.address));
    for path in ["/metrics", "/debug/binder", "/readyz?verbose"] {
        let (status, page) = ask(&client, path).await.unwrap();
        assert_eq!(status, 200, "{path}: {page}");
        println!("{path}: {} KiB", page.len() / 1024);
    }
    target.renewed(3).await;
    let (before, first) = (target.memory("VmRSS"), target.renewals());

    let (nobody, known) = (target.tls(None), target.tls(Some(&master)));
    let (bad_chain, short_chain) = (target.tls_with_chain(10), target.tls_with_chain(3));
    let excluding = format!("/livez?verbose{}", "&exclude".repeat(3_000));
    let mut probed = Vec::new();
    let mut flood = async |name: &'static str, attack: Pin<Box<dyn Future<Output = usize> + '_>>| {
        let (answered, measured) = while_probed(&target, name, attack).await;
        let peak = target.memory("VmHWM") / 1024;
        println!("{name}: {answered} answered as expected, {peak} KiB at most until now");
        probed.push((name, measured));
        answered
    };
    let done = async |attack: Pin<Box<dyn Future<Output = ()> + '_>>| {
        attack.await;
        0
    };
    flood("slow loris", Box::pin(done(Box::pin(slow_loris(&target, 1_000, false))))).await;
    flood("half-open TLS", Box::pin(done(Box::pin(half_open_tls(&target))))).await;
    flood("garbage", Box::pin(done(Box::pin(garbage(&target))))).await;
    let ok = "HTTP/1.1 200 OK";
    let scrapes = pipelined(&target, &known, (50, SCRAPES), |_| get("/metrics"), ok);
    let scrapes = flood("scrapes", Box::pin(scrapes)).await;
    let refused = pipelined(&target, &nobody, (50, 100), |_| get("/metrics"), "HTTP/1.1 401 Unauthorized");
    let refused = flood("scrapes of strangers", Box::pin(refused)).await;
    let open = pipelined(&target, &nobody, (50, 100), |_| get("/livez?verbose"), ok);
    let open = flood("open paths", Box::pin(open)).await;
    let excluded = pipelined(&target, &nobody, (50, 100), |_| get(&excluding), "HTTP/1.1 414 ");
    let excluded = flood("long queries", Box::pin(excluded)).await;
    let hostile = pipelined(&target, &bad_chain, (10, 100), |_| get("/livez"), ok);
    let hostile = flood("hostile chains", Box::pin(hostile)).await;
    let short = pipelined(&target, &short_chain, (50, 100), |_| get("/metrics"), "HTTP/1.1 401 Unauthorized");
    let short = flood("short hostile chains", Box::pin(short)).await;
    let tokens = pipelined(&target, &nobody, (50, 100), |number| with_token("/metrics", number), REFUSED);
    let tokens = flood("bad tokens", Box::pin(tokens)).await;
    flood("unread answers", Box::pin(done(Box::pin(unread_answers(&target, &master))))).await;
    flood("lease", Box::pin(done(Box::pin(target.renewed(3))))).await;
    let (peak, last) = (target.memory("VmHWM"), target.renewals());
    println!(
        "RSS {} KiB before, {} KiB at most; {} renewals, longest pause {:?}",
        before / 1024,
        peak / 1024,
        last.count - first.count,
        last.longest_gap,
    );

    let mut took: Vec<Duration> = Vec::new();
    for (name, measured) in &probed {
        assert_eq!(measured.failed_in_a_row, 0, "{name}: a probe was not answered");
        took.extend(&measured.took);
    }
    took.sort();
    let p99 = took[(took.len() - 1) * 99 / 100];
    println!("{} probes in all, p99 {p99:?}", took.len());
    let limit = std::env::var("MOORING_PROBE_LIMIT").map_or(PROBE_LIMIT, |text| text.parse().unwrap());
    assert!(p99 <= Duration::from_millis(limit), "{p99:?}");
    assert_eq!(last.transitions, first.transitions, "the lease changed hands");
    assert!(last.longest_gap < RENEW_DEADLINE, "{:?}", last.longest_gap);
    assert!(peak.saturating_sub(before) <= MEMORY, "{} KiB more", (peak - before) / 1024);
    // Clients that keep to the limits are all served; a connection may have been lost to another client's.
    for (name, answered, of) in [
        ("scrapes", scrapes, 50 * SCRAPES),
        ("refused", refused, 5_000),
        ("open", open, 5_000),
        ("excluded", excluded, 5_000),
        ("tokens", tokens, 5_000),
        ("short chains", short, 5_000),
    ] {
        assert!(10 * answered >= 9 * of, "{name}: {answered} of {of}");
    }
    assert_eq!(hostile, 0, "more certificates than a chain has are refused with the handshake");

    // Behind one address with the probes. There a kubelet's patience has to be enough.
    let ((), last) =
        while_probed(&target, "slow loris behind the same address", slow_loris(&target, 300, true)).await;
    assert!(last.failed_in_a_row < FAILURES_IN_A_ROW, "{} probes in a row", last.failed_in_a_row);

    let mut process = target.process;
    assert_eq!(process.terminate().await.code(), Some(0), "{}", process.log().tail(20));
}
