//! Explanations from the daemon: who is told what, what only the daemon knows, and answers that come again when they change.

use std::{
    path::Path,
    process::Stdio,
    sync::{Arc, Mutex},
};

use http::{StatusCode, header};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use test_support::{
    actors::attachment_name,
    cluster::{DRIVER, within_deadline},
    daemon::{Daemon, Launch},
    visitor::Authority,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines},
    net::{TcpListener, TcpStream},
    process::ChildStdout,
    task::JoinSet,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    force::{set_ready, stuck_volume},
    replicas::{leader, replica},
    stage::{PROGRAM, Place, Stage, Story, story},
};

pub fn stories() -> Vec<Story> {
    vec![
        story("online_each_is_told_what_they_may_get", each),
        story("online_l18_a_wait_is_told_with_its_end_and_its_past", wait),
        story("online_a_standby_answers_and_names_the_leader", standby),
        story("online_a_watch_tells_when_the_claim_binds", watch),
        story("online_the_page_shows_each_what_they_may_get", page),
        story("online_a_daemon_is_asked_only_if_it_can_be_verified", verified).at(Place::RealServer),
        story("online_a_published_authority_alone_vouches_for_the_daemon", published).at(Place::RealServer),
        story("online_a_daemon_is_followed_also_over_connections_that_are_cut", followed)
            .at(Place::RealServer),
    ]
}

/// What a namespace's user may get, as the ClusterRole `view` has it.
const OF_NAMESPACE: &[&str] = &["persistentvolumeclaims", "pods"];
/// All that is shown.
const ALL: &[&str] = &[
    "persistentvolumeclaims",
    "pods",
    "persistentvolumes",
    "nodes",
    "volumeattachments.storage.k8s.io",
    "storageclasses.storage.k8s.io",
];

const CLAIM: &str = "/explain/v1/namespaces/default/persistentvolumeclaims/c1";

async fn told(daemon: &Daemon, path: &str, token: &str) -> (StatusCode, Value) {
    let (status, body) = daemon.visit(path, Some(token)).await;
    (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

/// An answer of which something is true by and by.
async fn told_until(
    daemon: &Daemon,
    path: &str,
    token: &str,
    what: &str,
    is: impl Fn(&Value) -> bool,
) -> Value {
    let asking = async {
        loop {
            let (_, answer) = told(daemon, path, token).await;
            if is(&answer) {
                return answer;
            }
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        }
    };
    match within_deadline(what, asking).await {
        Ok(answer) => answer,
        Err(late) => panic!("{late}: {:#}", told(daemon, path, token).await.1),
    }
}

/// A pod on n1 has the volume, and one on n2 wants it.
async fn held(stage: &Stage) {
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.node("n2").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.running("p1").await;
    cluster.pod("p2", "n2", &["c1"]).await;
}

async fn each(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let daemon = stage.daemon().await;
    let [admin, keeper, neighbour] = [
        stage.visitor("explain-admin", false).await,
        stage.visitor("explain-keeper", false).await,
        stage.visitor("explain-neighbour", false).await,
    ];
    stage.grant("explain-admin", None, ALL).await;
    stage.grant("explain-keeper", Some("default"), OF_NAMESPACE).await;
    stage.cluster.make_elsewhere().await;
    stage.grant("explain-neighbour", Some(test_support::cluster::ELSEWHERE), OF_NAMESPACE).await;
    held(&stage).await;

    assert_eq!(daemon.visit(CLAIM, None).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(daemon.visit(CLAIM, Some("made-up")).await.0, StatusCode::UNAUTHORIZED);
    let is_held = |answer: &Value| answer["reason"] == "HeldByNode";
    let whole = told_until(&daemon, CLAIM, &admin, "it is held", is_held).await;
    let text = whole.to_string();
    assert!(text.contains("\"v1\"") && text.contains("n1") && text.contains("default/p1"), "{whole:#}");
    assert_eq!((&whole["redacted"], &whole["observed"]["source"]), (&json!(0), &json!("daemon")));

    let (status, shown) = told(&daemon, CLAIM, &keeper).await;
    assert_eq!((status, &shown["reason"]), (StatusCode::OK, &json!("HeldByNode")), "{shown:#}");
    for secret in ["\"v1\"", " v1", "n1", "n2", "csi-"] {
        assert!(!shown.to_string().contains(secret), "{secret} is in {shown:#}");
    }
    assert!(shown["redacted"].as_u64().is_some_and(|count| count > 0), "{shown:#}");
    assert!(shown.to_string().contains("\"p1\""), "pods of the namespace are shown: {shown:#}");

    for path in [CLAIM, "/explain/v1/namespaces/default/persistentvolumeclaims/none"] {
        let (status, refused) = told(&daemon, path, &neighbour).await;
        assert_eq!((status, &refused["verdict"]), (StatusCode::FORBIDDEN, &json!("Forbidden")), "{path}");
    }
    assert_eq!(told(&daemon, "/explain/v1/persistentvolumes/v1", &keeper).await.0, StatusCode::FORBIDDEN);
    assert_eq!(told(&daemon, "/explain/v1/persistentvolumes/v1", &admin).await.0, StatusCode::OK);
    let none = "/explain/v1/namespaces/default/pods/none";
    assert_eq!(told(&daemon, none, &keeper).await.0, StatusCode::NOT_FOUND);
    assert_eq!(told(&daemon, "/explain/v1/reasons", &neighbour).await.0, StatusCode::OK);

    let (_, summary) = told(&daemon, "/explain/v1/summary", &admin).await;
    assert!(summary["reasons"]["HeldByNode"].as_u64() >= Some(1), "{summary:#}");
    let (_, summary) = told(&daemon, "/explain/v1/summary", &neighbour).await;
    assert!(summary["rows"] == json!([]) && summary["redacted"].as_u64() >= Some(1), "{summary:#}");

    // The same answer is not sent twice.
    let first = daemon.come(CLAIM, &keeper, &[]).await;
    let etag = first.headers[header::ETAG].to_str().unwrap().to_owned();
    let second = daemon.come(CLAIM, &keeper, &[("if-none-match", &etag)]).await;
    assert_eq!(second.status, StatusCode::NOT_MODIFIED);
    assert_eq!(second.text().await, "");
}

async fn wait(stage: Stage) {
    let _attacher = stage.attacher();
    let daemon = stage.daemon().await;
    let admin = stage.visitor("explain-waiter", false).await;
    stage.grant("explain-waiter", None, ALL).await;
    stuck_volume(&stage).await;
    set_ready(&stage, "Unknown", Timestamp::now()).await;
    stage.cluster.remove_pod("p1").await;

    let pod = "/explain/v1/namespaces/default/pods/p2";
    let is_timed = |answer: &Value| {
        let steps = answer["steps"].as_array().cloned().unwrap_or_default();
        steps.iter().any(|step| step["reason"] == "DetachWaitingForUnmount" && step["next"]["at"].is_string())
    };
    let told = told_until(&daemon, pod, &admin, "the forced detach has a time", is_timed).await;
    let step =
        told["steps"].as_array().unwrap().iter().find(|step| step["reason"] == "DetachWaitingForUnmount");
    let step = step.unwrap();
    let time = |value: &Value| value.as_str().unwrap().parse::<Timestamp>().unwrap().as_second();
    let lasts = time(&step["next"]["at"]) - time(&step["since"]);
    assert!((350..=362).contains(&lasts), "six minutes from when it is not wanted: {lasts} s in {step:#}");
    assert!(
        !told["unknown"].to_string().contains("cannot be seen from outside"),
        "the daemon counts: {told:#}"
    );
    let attachment = attachment_name("v1", DRIVER, "n1");
    let past = told["timeline"].to_string();
    assert!(past.contains(&format!("volumeattachment/{attachment}: ")), "{past}");
    assert!(past.contains("(DetachWaitingForUnmount)"), "{past}");
}

async fn standby(stage: Stage) {
    let (_proxy, _leads, holder) = leader(&stage).await;
    let (proxy, launch) = replica(&stage).await;
    let standby = stage.start_daemon(&launch, &proxy).await;
    let admin = stage.visitor("explain-second", false).await;
    stage.grant("explain-second", None, ALL).await;
    stage.cluster.bound_pair("v1", "c1").await;
    let is_bound = |answer: &Value| answer["reason"] == "Bound" && answer["observed"]["leader"].is_string();
    let told = told_until(&standby, CLAIM, &admin, "it knows the claim and the leader", is_bound).await;
    assert_eq!(told["observed"]["leader"], holder.as_str());
    assert!(told["unknown"].to_string().contains("stands by"), "{told:#}");
}

async fn watch(stage: Stage) {
    let daemon = stage.daemon().await;
    let keeper = stage.visitor("explain-watcher", false).await;
    stage.grant("explain-watcher", Some("default"), OF_NAMESPACE).await;
    stage.cluster.claim("c1").await;
    let waits = |answer: &Value| answer["reason"] == "NoClassAndNoMatch";
    told_until(&daemon, CLAIM, &keeper, "it waits", waits).await;

    let mut coming = daemon.come(&format!("{CLAIM}?watch=1"), &keeper, &[]).await;
    assert_eq!(coming.status, StatusCode::OK);
    let first = coming.event().await.unwrap();
    assert!(first.contains("\nevent: explanation\n") && first.contains("NoClassAndNoMatch"), "{first}");
    stage.cluster.volume("v1").await;
    let binds = async {
        loop {
            let event = coming.event().await.expect("the watch goes on");
            if event.contains("\"reason\":\"Bound\"") {
                return event;
            }
        }
    };
    let event = within_deadline("the watch tells that the claim is bound", binds).await.unwrap();
    assert!(event.starts_with("id: W/") && event.ends_with("}\n\n"), "{event}");
    assert!(!event.contains("\"v1\""), "{event}");

    // It ends with the daemon, which says so.
    let (stopped, last) = tokio::join!(daemon.terminate(), async {
        let mut last = String::new();
        while let Some(event) = coming.event().await {
            last = event;
        }
        last
    });
    assert_eq!(stopped, Some(0));
    assert!(last.contains("the daemon ends"), "{last}");
}

async fn page(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let daemon = stage.daemon().await;
    let keeper = stage.visitor("explain-reader", false).await;
    stage.grant("explain-reader", Some("default"), OF_NAMESPACE).await;
    held(&stage).await;
    told_until(&daemon, CLAIM, &keeper, "it is held", |answer| answer["reason"] == "HeldByNode").await;

    assert_eq!(daemon.visit("/explain/", None).await.0, StatusCode::UNAUTHORIZED);
    let object = daemon.come("/explain/o/pvc/default/c1", &keeper, &[]).await;
    assert_eq!(object.status, StatusCode::OK);
    let policy = object.headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap().to_owned();
    assert!(policy.contains("default-src 'self'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    let page = object.text().await;
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("HeldByNode"), "{page}");
    assert!(!page.contains(">v1<") && !page.contains("n2"), "{page}");
    assert_eq!(daemon.come("/explain/o/pv/v1", &keeper, &[]).await.status, StatusCode::FORBIDDEN);
    let waiting = daemon.come("/explain/", &keeper, &[]).await.text().await;
    assert!(waiting.contains("objects that you may not see"), "{waiting}");
}

/// Hands connections on to a daemon, until they are cut.
struct Relay {
    port: u16,
    open: Arc<Mutex<JoinSet<()>>>,
    _accepting: AbortOnDropHandle<()>,
}

impl Relay {
    async fn to(url: &str) -> Self {
        let daemon = url.strip_prefix("https://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let open = Arc::<Mutex<JoinSet<()>>>::default();
        let kept = Arc::clone(&open);
        let accepting = tokio::spawn(async move {
            while let Ok((mut theirs, _)) = listener.accept().await {
                let mut ours = TcpStream::connect(&daemon).await.unwrap();
                kept.lock().unwrap().spawn(async move {
                    let _ = tokio::io::copy_bidirectional(&mut theirs, &mut ours).await;
                });
            }
        });
        Self { port, open, _accepting: AbortOnDropHandle::new(accepting) }
    }

    fn url(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    /// Cuts all connections.
    async fn cut(&self) {
        let mut open = std::mem::take(&mut *self.open.lock().unwrap());
        assert!(!open.is_empty(), "one is open");
        open.shutdown().await;
    }
}

/// The next answer of a program that prints one after the other as JSON.
async fn printed(lines: &mut Lines<BufReader<ChildStdout>>) -> Value {
    let mut text = String::new();
    let printing = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            text.push_str(&line);
            if line == "}" {
                break;
            }
        }
    };
    within_deadline("an answer is printed", printing).await.unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// What a program that follows a daemon prints comes when it changes, and a cut connection loses nothing.
async fn followed(stage: Stage) {
    let authority = Authority::another();
    let server = authority.vouch_for_server();
    let launch = Launch::alone()
        .with(&format!("--tls-cert-file={}", server.certificate.display()))
        .with(&format!("--tls-private-key-file={}", server.key.display()));
    let daemon = stage.start_daemon(&launch, &stage.proxy).await;
    stage.cluster.claim("c1").await;
    let admin = stage.visitor("explain-follower", false).await;
    stage.grant("explain-follower", None, ALL).await;
    told_until(&daemon, CLAIM, &admin, "it is known", |answer| answer["reason"] == "NoClassAndNoMatch").await;
    let relay = Relay::to(&daemon.url().await).await;
    let plane = &stage.real().plane;
    let kubeconfig = plane.kubeconfig(plane.url(), &admin);
    let start = |flag: &str| {
        let mut command = tokio::process::Command::new(PROGRAM);
        command.args(["explain", "pvc/c1", "-o", "json", flag, "--daemon", &relay.url(), "--daemon-ca"]);
        command.arg(authority.file()).arg("--kubeconfig").arg(&kubeconfig);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap()
    };
    let mut watching = start("-w");
    let mut answers = BufReader::new(watching.stdout.take().unwrap()).lines();
    let first = printed(&mut answers).await;
    assert_eq!(
        (&first["reason"], &first["observed"]["source"]),
        (&json!("NoClassAndNoMatch"), &json!("daemon"))
    );
    relay.cut().await;
    let waiting = start("--wait=2m");
    stage.cluster.volume("v1").await;
    let bound = loop {
        let answer = printed(&mut answers).await;
        assert_eq!(answer["observed"]["source"], json!("daemon"), "{answer:#}");
        if answer["reason"] == "Bound" {
            break answer;
        }
    };
    assert_eq!(bound["verdict"], json!("Healthy"), "{bound:#}");
    let waited =
        within_deadline("what waits for it ends", waiting.wait_with_output()).await.unwrap().unwrap();
    let last: Value = serde_json::from_slice(&waited.stdout).unwrap();
    assert_eq!((waited.status.code(), &last["reason"]), (Some(0), &json!("Bound")), "{last:#}");
    assert_eq!(last["observed"]["source"], json!("daemon"));

    watching.start_kill().unwrap();
    let said = watching.wait_with_output().await.unwrap().stderr;
    let said = String::from_utf8(said).unwrap();
    assert_eq!(said.matches("is lost: ").count(), 1, "{said}");
    assert!(said.contains("it is opened anew") && !said.contains("the cluster is read"), "{said}");
}

/// Who answers the program, and what it says beside the answer.
async fn asked(kubeconfig: &Path, flags: &[&str]) -> (Value, String) {
    let mut command = tokio::process::Command::new(PROGRAM);
    command.args(["explain", "pvc/c1", "-o", "json", "--kubeconfig"]).arg(kubeconfig).args(flags);
    let output = command.output().await.unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (answer["observed"]["source"].clone(), String::from_utf8(output.stderr).unwrap())
}

/// A server that another authority vouches for: how many have come, and what they have shown.
struct Impostor {
    url: String,
    come: Arc<Mutex<(usize, Vec<u8>)>>,
    _serving: AbortOnDropHandle<()>,
}

impl Impostor {
    async fn start() -> Self {
        let identity = Authority::another().vouch_for_server();
        let certificate = CertificateDer::from_pem_file(&identity.certificate).unwrap();
        let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.unwrap().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
        let come = Arc::<Mutex<(usize, Vec<u8>)>>::default();
        let record = Arc::clone(&come);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                record.lock().unwrap().0 += 1;
                let mut shown = Vec::new();
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                        shown.extend_from_slice(&buffer[..count]);
                    }
                }
                record.lock().unwrap().1.extend(shown);
            }
        });
        Self { url, come, _serving: AbortOnDropHandle::new(serving) }
    }
}

/// Without `--daemon-ca` the authority that the deployment has published counts, and no other.
async fn published(stage: Stage) {
    let authority = Authority::another();
    let server = authority.vouch_for_server();
    let launch = Launch::alone()
        .with(&format!("--tls-cert-file={}", server.certificate.display()))
        .with(&format!("--tls-private-key-file={}", server.key.display()));
    let daemon = stage.start_daemon(&launch, &stage.proxy).await;
    stage.cluster.claim("c1").await;
    let admin = stage.visitor("explain-finder", false).await;
    stage.grant("explain-finder", None, ALL).await;
    told_until(&daemon, CLAIM, &admin, "it is known", |answer| answer["reason"] == "NoClassAndNoMatch").await;
    let plane = &stage.real().plane;
    let kubeconfig = plane.kubeconfig(plane.url(), &admin);
    let url = daemon.url().await;
    let asks = async |url: &str| asked(&kubeconfig, &["--daemon", url]).await;
    let maps: kube::Api<k8s_openapi::api::core::v1::ConfigMap> =
        kube::Api::namespaced(stage.cluster.client.clone(), "mooring-system");
    let withdraw = async || maps.delete("mooring-explain-ca", &kube::api::DeleteParams::default()).await;
    let publish = async |authority: &Authority| {
        let pem = std::fs::read_to_string(authority.file()).unwrap();
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "mooring-explain-ca", "namespace": "mooring-system" },
            "data": { "ca.crt": pem },
        });
        stage.cluster.apply(&map.to_string()).await;
    };

    let (source, said) = asks(&url).await;
    assert!(
        source == json!("offline") && said.contains("mooring-explain-ca, which cannot be read"),
        "{said}"
    );
    // The rights that the component brings, for all.
    stage.cluster.apply(include_str!("../../deploy/optional/explain-ca/rbac.yaml")).await;
    let (source, said) = asks(&url).await;
    assert!(source == json!("offline") && said.contains("which is not there"), "{said}");
    assert!(said.contains("the cluster is read instead"), "{said}");

    publish(&authority).await;
    let (source, said) = asks(&url).await;
    assert_eq!((source, said.as_str()), (json!("daemon"), ""));
    // A server that the published authority does not vouch for learns nothing.
    let impostor = Impostor::start().await;
    let (source, said) = asks(&impostor.url).await;
    assert!(source == json!("offline") && said.contains("the cluster is read instead"), "{said}");
    withdraw().await.unwrap();
    publish(&Authority::another()).await;
    let (source, said) = asks(&url).await;
    assert!(source == json!("offline") && said.contains("the cluster is read instead"), "{said}");
    // A file goes before it.
    let (source, said) =
        asked(&kubeconfig, &["--daemon", &url, "--daemon-ca", &authority.file().display().to_string()]).await;
    assert_eq!(source, json!("daemon"), "{said}");
    let (come, shown) = impostor.come.lock().unwrap().clone();
    assert!(come > 0 && shown.is_empty(), "{come} have shown {:?}", String::from_utf8_lossy(&shown));
    withdraw().await.unwrap();
}

/// The program asks a daemon: it is shown the token only if the authority that was given vouches for it. If not, the cluster
/// is read, and that is said.
async fn verified(stage: Stage) {
    let authority = Authority::another();
    let server = authority.vouch_for_server();
    let launch = Launch::alone()
        .with(&format!("--tls-cert-file={}", server.certificate.display()))
        .with(&format!("--tls-private-key-file={}", server.key.display()));
    let daemon = stage.start_daemon(&launch, &stage.proxy).await;
    stage.cluster.claim("c1").await;
    let admin = stage.visitor("explain-asker", false).await;
    stage.grant("explain-asker", None, ALL).await;
    let plane = &stage.real().plane;
    let kubeconfig = plane.kubeconfig(plane.url(), &admin);
    let url = daemon.url().await;
    let asked = async |flags: &[&str]| asked(&kubeconfig, flags).await;
    let known = authority.file().display().to_string();
    let stranger = Authority::another().file().display().to_string();
    told_until(&daemon, CLAIM, &admin, "it is known", |answer| answer["reason"] == "NoClassAndNoMatch").await;

    let (source, said) = asked(&["--daemon", &url, "--daemon-ca", &known]).await;
    assert_eq!(source, json!("daemon"), "{said}");
    let (source, said) = asked(&["--daemon", &url, "--daemon-ca", &stranger]).await;
    assert!(source == json!("offline") && said.contains("the cluster is read instead"), "{source} {said}");
    let (source, said) = asked(&["--daemon", &url]).await;
    assert!(
        source == json!("offline") && said.contains("--daemon-ca says who vouches for it"),
        "{source} {said}"
    );
    let plain = url.replace("https://", "http://");
    let (source, said) = asked(&["--daemon", &plain, "--daemon-ca", &known]).await;
    assert!(
        source == json!("offline") && said.contains("credentials go over HTTPS alone"),
        "{source} {said}"
    );
}
