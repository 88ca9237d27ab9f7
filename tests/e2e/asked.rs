//! What the daemon says beside the objects: rows of its pages, for who may read them, and what `mooring explain --daemon` makes of it.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex},
};

use http::StatusCode;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use test_support::{
    actors::attachment_name,
    backend::{DEBUG_READER, EXPLAIN_READER},
    cluster::{DRIVER, unique_name, within_deadline},
    daemon::{Daemon, Launch},
    process::temporary_folder,
    visitor::Authority,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines},
    net::TcpListener,
    process::{ChildStdout, Command},
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
    stage::{PROGRAM, Stage, Story, story},
};

pub fn stories() -> Vec<Story> {
    vec![
        story("asked_l18_a_wait_is_told_with_its_end_and_its_past", wait),
        story("asked_a_standby_says_that_it_does_not_decide", standby),
        story("asked_a_daemon_is_shown_a_token_only_if_it_can_be_verified", verified)
            .only_real("The program asks, with a kubeconfig and over TLS."),
        story("asked_a_certificate_that_a_daemon_made_vouches_for_it_alone", self_made)
            .only_real("The program asks, with a kubeconfig and over TLS."),
        story("asked_an_answer_that_is_followed_stands_with_and_without_a_daemon", followed)
            .only_real("The program asks, with a kubeconfig and over TLS."),
    ]
}

/// The rows that are asked for, once something is true of them.
async fn told_until(
    daemon: &Daemon,
    path: &str,
    token: &str,
    what: &str,
    is: impl Fn(&Value) -> bool,
) -> Value {
    let asking = async {
        loop {
            let (status, body) = daemon.visit(path, Some(token)).await;
            assert_eq!(status, StatusCode::OK, "{body}");
            let answer: Value = serde_json::from_str(&body).unwrap();
            if is(&answer) {
                return answer;
            }
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        }
    };
    match within_deadline(what, asking).await {
        Ok(answer) => answer,
        Err(late) => panic!("{late}: {}", daemon.visit(path, Some(token)).await.1),
    }
}

async fn wait(stage: Stage) {
    let _attacher = stage.attacher();
    let daemon = stage.daemon().await;
    let reader = stage.visitor("asked-reader", &[DEBUG_READER]).await;
    let stranger = stage.visitor("asked-stranger", &[]).await;
    stuck_volume(&stage).await;
    set_ready(&stage, "Unknown", Timestamp::now()).await;
    stage.cluster.remove_pod("p1").await;

    let attachment = attachment_name("v1", DRIVER, "n1");
    let volume: String = form_urlencoded::byte_serialize(unique_name("v1").as_bytes()).collect();
    let path = format!("/debug/attach-detach?attachment={attachment}&volume={volume}");
    assert_eq!(daemon.visit(&path, None).await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(daemon.visit(&path, Some(&stranger)).await.0, StatusCode::FORBIDDEN);
    let row = |answer: &Value| {
        let rows = answer["waiting"].as_array().cloned().unwrap_or_default();
        rows.into_iter().find(|row| row["reason"] == "DetachWaitingForUnmount" && row["until"].is_string())
    };
    let is_timed = |answer: &Value| row(answer).is_some();
    let told = told_until(&daemon, &path, &reader, "the forced detach has a time", is_timed).await;
    let row = row(&told).unwrap();
    let time = |value: &Value| value.as_str().unwrap().parse::<Timestamp>().unwrap().as_second();
    let lasts = time(&row["until"]) - time(&row["since"]);
    assert!((350..=362).contains(&lasts), "six minutes from when it is not wanted: {lasts} s in {row:#}");
    let is_past = |change: &Value| {
        change["object"] == format!("VolumeAttachment/{attachment}")
            && change["reason"] == "DetachWaitingForUnmount"
    };
    assert!(told["history"].as_array().unwrap().iter().any(is_past), "{told:#}");
    // Of others nothing is said.
    let none = told_until(&daemon, "/debug/attach-detach?volume=none", &reader, "it answers", |_| true).await;
    assert_eq!((&none["waiting"], &none["settled"], &none["history"]), (&json!([]), &json!([]), &json!([])));
}

async fn standby(stage: Stage) {
    let (_proxy, leads, _holder) = leader(&stage).await;
    let (proxy, launch) = replica(&stage).await;
    let standby = stage.start_daemon(&launch, &proxy).await;
    let reader = stage.visitor("asked-second", &[DEBUG_READER]).await;
    stage.cluster.claim("c1").await;
    let path = "/debug/binder?claim=default/c1";
    let reason = |told: &Value| told["waiting"][0]["reason"].as_str().map(str::to_owned);
    let knows = |told: &Value| reason(told).is_some_and(|reason| reason == "NoClassAndNoMatch");
    let told = told_until(&leads, path, &reader, "the leader knows the claim", knows).await;
    assert_eq!(told["leads"], json!(true));
    standby.shows("mooring_watch_events_total{resource=\"persistentvolumeclaims\",type=\"added\"} 1").await;
    let told = told_until(&standby, path, &reader, "the standby answers", |_| true).await;
    assert_eq!((&told["leads"], &told["waiting"]), (&json!(false), &json!([])));
}

/// A daemon whose certificate an authority vouches for, and which knows the claim c1.
async fn vouched_for(stage: &Stage, authority: &Authority) -> Daemon {
    let server = authority.vouch_for_server();
    let launch = Launch::alone()
        .with(&format!("--tls-cert-file={}", server.certificate.display()))
        .with(&format!("--tls-private-key-file={}", server.key.display()));
    let daemon = stage.start_daemon(&launch, &stage.proxy).await;
    stage.cluster.claim("c1").await;
    daemon.page_says("/debug/binder", "NoClassAndNoMatch").await;
    daemon
}

/// The kubeconfig of one who may ask.
fn kubeconfig(stage: &Stage, token: &str) -> PathBuf {
    let plane = &stage.real().plane;
    plane.kubeconfig(plane.url(), token)
}

/// Who looked, and what is not known.
async fn asked(kubeconfig: &Path, flags: &[&str]) -> (Value, String) {
    let mut command = Command::new(PROGRAM);
    command.args(["explain", "pvc/c1", "-o", "json", "--kubeconfig"]).arg(kubeconfig).args(flags);
    let output = command.output().await.unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    assert_eq!(answer["kind"], json!("Explanation"), "{output:?}");
    (answer["observed"]["source"].clone(), answer["unknown"].to_string())
}

/// The program asks a daemon: it is shown the token only if the authority that was given vouches for it, and it says something only
/// to who may read its pages. If not, the answer stands without it, and says so.
async fn verified(stage: Stage) {
    let authority = Authority::another();
    let daemon = vouched_for(&stage, &authority).await;
    let admin = stage.visitor("asked-verified", &[EXPLAIN_READER, DEBUG_READER]).await;
    let person = stage.visitor("asked-without-right", &[EXPLAIN_READER]).await;
    let (admin, person) = (kubeconfig(&stage, &admin), kubeconfig(&stage, &person));
    let url = daemon.url().await;
    let known = authority.file().display().to_string();
    let stranger = Authority::another().file().display().to_string();
    let plain = url.replace("https://", "http://");
    let without = "What only the daemon knows (its timers, the past) is missing: ";
    let rows: [(&Path, &[&str], &str, &str); 4] = [
        (&admin, &["--daemon", &url, "--daemon-ca", &known], "daemon", ""),
        (&person, &["--daemon", &url, "--daemon-ca", &known], "offline", "/debug/binder: 403 Forbidden"),
        (&admin, &["--daemon", &url, "--daemon-ca", &stranger], "offline", "certificate"),
        (&admin, &["--daemon", &plain, "--daemon-ca", &known], "offline", "credentials go over HTTPS alone"),
    ];
    for (who, flags, source, why) in rows {
        let (looked, unknown) = asked(who, flags).await;
        assert_eq!(looked, json!(source), "{flags:?}: {unknown}");
        assert!(unknown.contains(why), "{flags:?}: {unknown}");
        assert_eq!(unknown.contains(without), source == "offline", "{flags:?}: {unknown}");
    }
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

/// The certificate that a daemon makes for itself is its own authority, for who has a copy of it.
async fn self_made(stage: Stage) {
    let folder = temporary_folder("self-made");
    let launch = Launch::alone().with(&format!("--cert-dir={}", folder.display()));
    let daemon = stage.start_daemon(&launch, &stage.proxy).await;
    stage.cluster.claim("c1").await;
    daemon.page_says("/debug/binder", "NoClassAndNoMatch").await;
    let admin = stage.visitor("asked-finder", &[EXPLAIN_READER, DEBUG_READER]).await;
    let kubeconfig = kubeconfig(&stage, &admin);
    let copy = folder.join("mooring.crt").display().to_string();
    let asks = async |url: &str| asked(&kubeconfig, &["--daemon", url, "--daemon-ca", &copy]).await;

    let (source, why) = asks(&daemon.url().await).await;
    assert_eq!(source, json!("daemon"), "{why}");
    // Another server learns nothing.
    let impostor = Impostor::start().await;
    let (source, why) = asks(&impostor.url).await;
    assert!(source == json!("offline") && why.contains("is missing: "), "{why}");
    let (come, shown) = impostor.come.lock().unwrap().clone();
    assert!(come > 0 && shown.is_empty(), "{come} have shown {:?}", String::from_utf8_lossy(&shown));
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

async fn followed(stage: Stage) {
    let authority = Authority::another();
    let daemon = vouched_for(&stage, &authority).await;
    let admin = stage.visitor("asked-follower", &[EXPLAIN_READER, DEBUG_READER]).await;
    let (kubeconfig, url) = (kubeconfig(&stage, &admin), daemon.url().await);
    let start = |flag: &str| {
        let mut command = Command::new(PROGRAM);
        command.args(["explain", "pvc/c1", "-o", "json", flag, "--daemon", &url, "--daemon-ca"]);
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
    let waiting = start("--wait=2m");
    stage.cluster.volume("v1").await;
    let bound = loop {
        let answer = printed(&mut answers).await;
        // A page is the same for a second.
        if answer["reason"] == "Bound" && answer["timeline"].to_string().contains("→ Bound") {
            break answer;
        }
    };
    assert_eq!((&bound["verdict"], &bound["observed"]["source"]), (&json!("Healthy"), &json!("daemon")));
    let waited =
        within_deadline("what waits for it ends", waiting.wait_with_output()).await.unwrap().unwrap();
    let last: Value = serde_json::from_slice(&waited.stdout).unwrap();
    assert_eq!((waited.status.code(), &last["reason"]), (Some(0), &json!("Bound")), "{last:#}");

    assert_eq!(daemon.terminate().await, Some(0));
    let alone = loop {
        let answer = printed(&mut answers).await;
        if answer["observed"]["source"] == "offline" {
            break answer;
        }
    };
    assert_eq!((&alone["reason"], &alone["verdict"]), (&json!("Bound"), &json!("Healthy")), "{alone:#}");
    assert!(alone["unknown"].to_string().contains("is missing: "), "{alone:#}");
    watching.start_kill().unwrap();
}
