//! The program as its operator sees it: exit codes, one line per mistake, a start without an API
//! server, an orderly end.

#![expect(clippy::disallowed_methods, reason = "time of a real process")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed test is a panic")]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use serde_json::json;
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};

fn mooring() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mooring"));
    command.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").env("HOME", "/nonexistent");
    command
}

#[test]
fn a_mistake_is_one_line_and_exit_2() {
    let cases: [(&[&str], &str); 10] = [
        (&[], "mooring: no subcommand given"),
        (&["run", "--port=10270"], "mooring: --port: is gone: --secure-port serves HTTPS"),
        (&["run", "--tls-cert-file=a"], "mooring: --tls-cert-file: needs --tls-private-key-file"),
        (&["run", "--tls-min-version=VersionTLS11"], "mooring: --tls-min-version: TLS before 1.2"),
        (
            &[
                "run",
                "--controllers=*,-persistentvolume-attach-detach-controller,-persistentvolume-binder-controller",
            ],
            "mooring: --controllers: ",
        ),
        (&["run", "--bogus"], "mooring: unexpected argument '--bogus' found"),
        (
            &["run", "--leader-elect-retry-period=soon"],
            "mooring: invalid value 'soon' for '--leader-elect-retry-period",
        ),
        (
            &["run", "--leader-elect-lease-duration=5s"],
            "mooring: --leader-elect-lease-duration: must be longer",
        ),
        (&["run", "--kubeconfig=/nonexistent/kubeconfig"], "mooring: --kubeconfig /nonexistent/kubeconfig: "),
        (&["run"], "mooring: no --kubeconfig, not in a cluster"),
    ];
    for (arguments, expected) in cases {
        let output = mooring().args(arguments).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with(expected), "{arguments:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
    }
    assert_eq!(mooring().arg("--version").output().unwrap().status.code(), Some(0));
}

#[test]
fn who_asks_gets_one_line_and_an_exit_code_of_its_own() {
    let folder = folder("asking");
    let nowhere = unreachable_api(&folder);
    let nowhere = nowhere.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 15] = [
        (&["doctor", "-A", "-n", "shop"], 4, "mooring: the argument '--all-namespaces' cannot be used with"),
        (&["doctor", "--kubeconfig", nowhere], 5, "mooring: cannot reach the API server 127.0.0.1:9: "),
        (&["node"], 4, "mooring: the following required arguments were not provided:"),
        (&["node", "pvc/a"], 4, "mooring: pvc/a is no node"),
        (&["whatif", "melt", "a"], 4, "mooring: \"melt a\": want bind -f FILE, taint NODE, "),
        (&["whatif", "bind", "-f", "/nonexistent/claim"], 4, "mooring: -f /nonexistent/claim: No such file"),
        (&["repair", "free", "pvc/a"], 4, "mooring: \"free pvc/a\": want relink pvc/NAME pv/NAME, "),
        (&["explain"], 4, "mooring: the following required arguments were not provided:"),
        (&["explain", "pvc/a", "-o", "xml"], 4, "mooring: invalid value 'xml' for '--output <FORM>'"),
        (&["explain", "job/a"], 4, "mooring: \"job\" cannot be explained"),
        (&["explain", "pvc/"], 4, "mooring: pvc: the name is missing"),
        (
            &["explain", "pvc/a", "--insecure-skip-tls-verify", "--server=https://x"],
            4,
            "mooring: --insecure-skip-",
        ),
        (
            &["explain", "pvc/a", "--kubeconfig=/nonexistent/kubeconfig"],
            5,
            "mooring: --kubeconfig /nonexistent/",
        ),
        (&["explain", "pvc/a"], 5, "mooring: no --kubeconfig, not in a cluster"),
        (
            &["explain", "pvc/a", "--kubeconfig", nowhere],
            5,
            "mooring: cannot reach the API server 127.0.0.1:9: ",
        ),
    ];
    // As a plugin of kubectl, which goes by the file's name.
    let plugin = folder.join("kubectl-mooring");
    let _ = fs::remove_file(&plugin);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_mooring"), &plugin).unwrap();
    for (arguments, code, expected) in cases {
        for program in [Path::new(env!("CARGO_BIN_EXE_mooring")), &plugin] {
            let mut command = Command::new(program);
            command
                .env_remove("KUBECONFIG")
                .env_remove("KUBERNETES_SERVICE_HOST")
                .env("HOME", "/nonexistent");
            let output = command.args(arguments).output().unwrap();
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
            assert!(stderr.starts_with(expected), "{arguments:?}: {stderr}");
            assert_eq!((stderr.lines().count(), output.stdout.len()), (1, 0), "{arguments:?}: {stderr}");
        }
    }
}

#[test]
fn completion_scripts_and_manual_pages_are_printed_or_written() {
    let run = |arguments: &[&str]| mooring().args(arguments).output().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completion", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{shell}");
        for word in ["mooring", "explain", "doctor", "leader-elect-lease-duration"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let pages = ["", "-explain", "-doctor", "-node", "-whatif", "-repair", "-run", "-completion", "-man"];
    let output = run(&["man"]);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    let folder = folder("manual").join("share/man1");
    let _ = fs::remove_dir_all(&folder);
    let output = run(&["man", folder.to_str().unwrap()]);
    assert_eq!(
        (output.status.code(), output.stdout.len(), output.stderr.len()),
        (Some(0), 0, 0),
        "{output:?}"
    );
    for page in pages {
        let written = fs::read_to_string(folder.join(format!("mooring{page}.1"))).unwrap();
        assert!(written.contains(&format!(".TH mooring{page} 1")), "{page}");
        assert!(printed.contains(&written), "{page}");
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), pages.len());

    let no_folder = folder.join("mooring.1");
    let cases: [(&[&str], i32, &str); 3] = [
        (&["completion"], 2, "mooring: the following required arguments were not provided: <SHELL>"),
        (&["completion", "tcsh"], 2, "mooring: invalid value 'tcsh' for '<SHELL>'"),
        (&["man", no_folder.to_str().unwrap()], 1, "mooring: the manual cannot be written: "),
    ];
    for (arguments, code, expected) in cases {
        let output = run(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with(expected) && stderr.lines().count() == 1, "{arguments:?}: {stderr}");
    }
}

/// An API server that has two objects of every kind. Sends the head of each request.
fn listing_api() -> (String, std::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (sent, heads) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).unwrap() > 0 {}
            let named = |name: &str| json!({ "metadata": { "name": name } });
            let list =
                json!({ "items": [named("data"), named("shop"), named("an\u{1b}[2Jodd one")] }).to_string();
            let length = list.len();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{list}"
            );
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
            if sent.send(head).is_err() {
                return;
            }
        }
    });
    (address, heads)
}

/// What kubectl is told under a kubeconfig; never an error.
fn completed(folder: &Path, kubeconfig: &Path, words: &[&str]) -> String {
    let program = folder.join("kubectl_complete-mooring");
    let _ = fs::remove_file(&program);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_mooring"), &program).unwrap();
    let mut command = Command::new(program);
    command.env_remove("KUBERNETES_SERVICE_HOST").env("HOME", "/nonexistent").env("KUBECONFIG", kubeconfig);
    let output = command.args(words).output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{words:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn kubectl_is_told_what_may_come_next() {
    let folder = folder("completion");
    let (address, heads) = listing_api();
    let config = kubeconfig(folder.join("listing"), &address);
    let told = |words: &[&str]| completed(&folder, &config, words);
    let commands = told(&[""]);
    for command in ["run", "explain", "doctor", "node", "whatif", "repair", "completion", "man", ":4"] {
        assert!(commands.lines().any(|line| line == command), "{command}: {commands}");
    }
    // What ends with a slash goes on without a space (ShellCompDirectiveNoSpace).
    assert_eq!(told(&["explain", "p"]), "pod/\npv/\npvc/\n:6\n");
    assert_eq!(told(&["explain", "pvc/a", "-o", "y"]), "yaml\n:4\n");
    assert!(heads.try_recv().is_err(), "nothing of it is asked of the API server");

    let asked: [(&[&str], &str, &str); 5] = [
        (
            &["explain", "-n", "shop", "pvc/d"],
            "pvc/data\n:4\n",
            "GET /api/v1/namespaces/shop/persistentvolumeclaims?limit=500 ",
        ),
        (&["explain", "-nshop", "po", ""], "data\nshop\n:4\n", "GET /api/v1/namespaces/shop/pods?limit=500 "),
        (
            &["explain", "--namespace=shop", "pv", "s"],
            "shop\n:4\n",
            "GET /api/v1/persistentvolumes?limit=500 ",
        ),
        (&["doctor", "-n", "sh"], "shop\n:4\n", "GET /api/v1/namespaces?limit=500 "),
        (&["node", "--request-timeout", "5s", ""], "data\nshop\n:4\n", "GET /api/v1/nodes?limit=500 "),
    ];
    for (words, expected, request) in asked {
        assert_eq!(told(words), expected, "{words:?}");
        let head = heads.recv().unwrap();
        assert!(head.starts_with(request), "{words:?}: {head}");
    }
    let words = ["explain", "--as", "alice", "--as-group=dev", "--token", "secret", "va/da"];
    assert_eq!(told(&words), "va/data\n:4\n");
    let head = heads.recv().unwrap().to_ascii_lowercase();
    for line in
        ["impersonate-user: alice\r\n", "impersonate-group: dev\r\n", "authorization: bearer secret\r\n"]
    {
        assert!(head.contains(line), "{head}");
    }
    assert_eq!(told(&["explain", "-n", "../../../healthz?", "pod/"]), ":4\n");
    assert!(heads.try_recv().is_err(), "no namespace has such a name");
}

#[test]
fn kubectl_is_not_kept_waiting_for_names() {
    let folder = folder("completion-late");
    let told = |config: &Path| completed(&folder, config, &["explain", "pv/"]);
    assert_eq!(told(&unreachable_api(&folder)), ":4\n");
    assert_eq!(told(Path::new("/nonexistent/kubeconfig")), ":4\n");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    assert_eq!(told(&kubeconfig(folder.join("silent"), &format!("http://{address}"))), ":4\n");
    // Credentials that take their time: when kubectl has its answer, they are not there yet.
    let ready = folder.join("ready");
    let _ = fs::remove_file(&ready);
    let config = folder.join("slow");
    let content = "{apiVersion: v1, kind: Config, current-context: x,
        clusters: [{name: c, cluster: {server: 'http://ADDRESS'}}], contexts: [{name: x, context: {cluster: c, user: u}}],
        users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never,
                 command: sh, args: [-c, 'exec >&- 2>&-; sleep 30; touch READY']}}}]}";
    let content = content.replace("ADDRESS", &address.to_string()).replace("READY", ready.to_str().unwrap());
    fs::write(&config, content).unwrap();
    assert_eq!(told(&config), ":4\n");
    assert!(!ready.exists());
}

/// A folder for a test.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn kubeconfig(file: PathBuf, server: &str) -> PathBuf {
    let content = "{apiVersion: v1, kind: Config, current-context: x,
        clusters: [{name: c, cluster: {server: 'SERVER'}}], users: [{name: u, user: {}}],
        contexts: [{name: x, context: {cluster: c, user: u}}]}";
    fs::write(&file, content.replace("SERVER", server)).unwrap();
    file
}

/// Nothing listens on the discard port.
fn unreachable_api(folder: &Path) -> PathBuf {
    kubeconfig(folder.join("kubeconfig"), "https://127.0.0.1:9")
}

#[test]
fn a_mistake_in_a_kubeconfig_of_reviews_names_its_flag_unless_nothing_is_served() {
    let folder = folder("reviews-nowhere");
    let run = |port: u16, flag: &str| {
        let mut command = mooring();
        command.args(["run", "--bind-address=127.0.0.1", "--kubeconfig"]).arg(unreachable_api(&folder));
        command.arg(format!("--secure-port={port}")).arg(format!("{flag}=/nonexistent/kubeconfig"));
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    for flag in ["--authentication-kubeconfig", "--authorization-kubeconfig"] {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let output = run(port, flag).wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        let line = stderr.lines().last().unwrap();
        assert!(line.starts_with(&format!("mooring: {flag} /nonexistent/kubeconfig: ")), "{stderr}");
        let mut daemon = run(0, flag);
        let mut log = BufReader::new(daemon.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("starting") {
            line.clear();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "it ended");
        }
        std::thread::spawn(move || log.read_to_string(&mut String::new()));
        assert!(Command::new("kill").args(["-TERM", &daemon.id().to_string()]).status().unwrap().success());
        assert_eq!(daemon.wait().unwrap().code(), Some(0));
    }
}

/// An API server that says yes to every review, and publishes authorities of client certificates.
struct Reviewer {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Reviewer {
    fn start(authorities: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let (mut head, mut length) = (String::new(), 0);
                while !head.ends_with("\r\n\r\n") {
                    let begin = head.len();
                    stream.read_line(&mut head).unwrap();
                    let line = head[begin..].to_ascii_lowercase();
                    if let Some(value) = line.strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                }
                stream.read_exact(&mut vec![0; length]).unwrap();
                let path = head.split(' ').nth(1).unwrap().to_owned();
                let answer = if path.ends_with("/tokenreviews") {
                    json!({ "status": { "authenticated": true, "user": { "username": "reader" } } })
                } else if path.ends_with("/subjectaccessreviews") {
                    json!({ "status": { "allowed": true } })
                } else {
                    json!({ "data": { "client-ca-file": fs::read_to_string(&authorities).unwrap() } })
                };
                seen.lock().unwrap().push(path);
                let answer = answer.to_string();
                let length = answer.len();
                let head =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
                stream.get_mut().write_all((head + &answer).as_bytes()).unwrap();
            }
        });
        Self { url, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

#[test]
fn reviews_are_asked_for_where_their_flags_say_and_authorities_are_looked_up_unless_told_not_to() {
    const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
    const ACCESS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    const AUTHORITIES: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    for (name, more) in [("reviews", &[][..]), ("reviews-skip", &["--authentication-skip-lookup"][..])] {
        let folder = folder(name);
        let [authentication, authorization] = [(); 2].map(|()| Reviewer::start(folder.join("ca.crt")));
        let flag = |name: &str, reviewer: &Reviewer| {
            format!("--{name}={}", kubeconfig(folder.join(name), &reviewer.url).display())
        };
        let flags = [
            flag("authentication-kubeconfig", &authentication),
            flag("authorization-kubeconfig", &authorization),
        ];
        let flags = flags.iter().map(String::as_str).chain(more.iter().copied());
        let mut daemon = Daemon::start_in(folder.clone(), flags);
        let mut log = daemon.unread_log.take().unwrap();
        std::thread::spawn(move || log.read_to_string(&mut String::new()));

        let answer = daemon.ask_with(false, "/metrics", "Authorization: Bearer a\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        for expected in [
            "\napiserver_delegated_authn_request_total{code=\"200\"} 1\n",
            "\napiserver_delegated_authz_request_total{code=\"200\"} 1\n",
            "\napiserver_delegated_authn_request_duration_seconds_bucket{code=\"200\",le=\"0.25\"} ",
            "\napiserver_delegated_authz_request_duration_seconds_count{code=\"200\"} 1\n",
        ] {
            assert!(answer.contains(expected), "{expected}: {answer}");
        }
        assert_eq!(
            (authentication.asked(), authorization.asked()),
            (vec![TOKENS.into()], vec![ACCESS.into()])
        );
        let answer = daemon.ask(true, "/metrics");
        if more.is_empty() {
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert_eq!(authentication.asked(), [TOKENS, AUTHORITIES]);
        } else {
            assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
            assert_eq!(authentication.asked(), [TOKENS]);
        }
        assert_eq!(daemon.terminate(), Some(0));
    }
}

/// A running daemon whose API server does not answer. Killed if a test fails.
struct Daemon {
    child: Child,
    address: String,
    folder: PathBuf,
    /// Of somebody who may read everything.
    master: (CertificateDer<'static>, KeyPair),
    /// Kept open, if nobody reads it.
    unread_log: Option<BufReader<ChildStderr>>,
}

impl Daemon {
    fn start(name: &str) -> Self {
        let mut daemon = Self::start_unread(name, &[]);
        // The rest of the log is read, or lines would be dropped.
        let mut log = daemon.unread_log.take().unwrap();
        std::thread::spawn(move || log.read_to_string(&mut String::new()));
        daemon
    }

    /// Of its log, only the first lines are read.
    fn start_unread(name: &str, flags: &[&str]) -> Self {
        let folder = folder(name);
        let authorities = format!("--client-ca-file={}", folder.join("ca.crt").display());
        Self::start_in(folder, flags.iter().copied().chain([authorities.as_str()]))
    }

    fn start_in<'a>(folder: PathBuf, flags: impl IntoIterator<Item = &'a str>) -> Self {
        let kubeconfig = unreachable_api(&folder);
        let master = authority(&folder.join("ca.crt"));
        // Free a moment ago.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut child = mooring()
            .args(["run", "--bind-address=127.0.0.1", "--logging-format=json"])
            .arg(format!("--secure-port={port}"))
            .arg(format!("--cert-dir={}", folder.display()))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .args(flags)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let address = loop {
            let mut line = String::new();
            log.read_line(&mut line).unwrap();
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            if let Some(address) = line["address"].as_str() {
                break address.to_owned();
            }
        };
        let daemon = Self { child, address, folder, master, unread_log: Some(log) };
        // The socket listens, but the certificate may still be in the making.
        Daemon::wait_until(|| daemon.folder.join("mooring.crt").exists());
        daemon
    }

    fn terminate(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }

    fn connect(&self, is_master: bool) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.folder.join("mooring.crt")).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        let config = if is_master {
            let (certificate, key) = &self.master;
            let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
            config.with_client_auth_cert(vec![certificate.clone()], key).unwrap()
        } else {
            config.with_no_client_auth()
        };
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        StreamOwned::new(connection, stream)
    }

    fn ask(&self, is_master: bool, path: &str) -> String {
        self.ask_with(is_master, path, "")
    }

    fn ask_with(&self, is_master: bool, path: &str, header: &str) -> String {
        let mut stream = self.connect(is_master);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The whole answer to a request with a body.
    fn send(&self, is_master: bool, method: &str, path: &str, body: &str) -> Vec<u8> {
        let mut stream = self.connect(is_master);
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    }

    fn get(&self, path: &str) -> String {
        self.ask(true, path)
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_so() && Instant::now() < deadline {
            std::thread::yield_now();
        }
    }

    /// Asks again until the answer contains the text.
    fn wait_for(&self, path: &str, text: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let answer = self.get(path);
            if answer.contains(text) || Instant::now() > deadline {
                return answer;
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Writes the certificate of a new authority, and returns whom it vouches for.
fn authority(file: &std::path::Path) -> (CertificateDer<'static>, KeyPair) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let own: &rcgen::Certificate = authority.as_ref();
    fs::write(file, pem::encode(&pem::Pem::new("CERTIFICATE", own.der().to_vec()))).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "master");
    params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, &authority).unwrap().into(), key)
}

#[test]
fn without_an_api_server_it_runs_says_why_it_is_not_ready_and_ends_in_order() {
    let mut daemon = Daemon::start("unreachable");
    let answer = daemon.wait_for("/readyz?verbose", "[-]watch-pods failed: failed to");
    assert!(answer.starts_with("HTTP/1.1 500 ") && answer.contains("Connection refused"), "{answer}");
    let answer = daemon.wait_for("/readyz?verbose", "last attempt failed: ");
    assert!(answer.contains("[+]leader-election ok: standing by"), "{answer}");
    assert!(daemon.get("/livez").ends_with("\r\n\r\nok"));
    let metrics = daemon.get("/metrics");
    for expected in [
        concat!("\",version=\"", env!("CARGO_PKG_VERSION"), "\"} 1\n"),
        "\nmooring_build_info{commit=\"",
        "\nmooring_log_lines_dropped_total 0\n",
        "\nleader_election_master_status{name=\"mooring\"} 0\n",
        "\nrest_client_requests_total{code=\"<error>\",host=\"127.0.0.1:9\",method=\"GET\"} ",
        "\nprocess_resident_memory_bytes ",
    ] {
        assert!(metrics.contains(expected), "{expected}: {metrics}");
    }
    assert!(!metrics.contains("kubernetes_build_info"));

    // A stranger learns that something is wrong, and not what.
    let answer = daemon.ask(false, "/readyz");
    assert!(answer.contains("[-]watch-pods failed: reason withheld\n"), "{answer}");
    assert!(answer.contains("[+]leader-election ok\n") && !answer.contains("127.0.0.1"), "{answer}");
    assert!(daemon.ask(false, "/livez").ends_with("\r\n\r\nok"));
    for path in ["/metrics", "/debug/binder", "/nowhere"] {
        assert!(daemon.ask(false, path).starts_with("HTTP/1.1 401 "), "{path}");
    }

    // Those who only hold their connections open do not hold up the end (m1).
    let _silent: Vec<_> = (0..64).map(|_| TcpStream::connect(&daemon.address).unwrap()).collect();
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn a_log_that_nobody_reads_stops_nothing_and_what_is_lost_is_counted() {
    const DROPPED: &str = "\nmooring_log_lines_dropped_total ";
    let mut daemon = Daemon::start_unread("unread", &["--log-level=trace", "--profiling"]);
    let deadline = Instant::now() + Duration::from_mins(2);
    let mut dropped = String::new();
    while dropped.is_empty() || dropped == "0" {
        assert!(Instant::now() < deadline, "no line was dropped");
        let metrics = daemon.get("/metrics");
        let (_, rest) = metrics.split_once(DROPPED).unwrap();
        dropped = rest.lines().next().unwrap().to_owned();
    }
    assert!(daemon.get("/livez").ends_with("\r\n\r\nok"));
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn an_operator_changes_what_is_logged_and_takes_a_profile_while_it_runs_and_nobody_else_does() {
    let daemon = Daemon::start("debugging");
    let shown = |path: &str| daemon.get(path).rsplit_once("\r\n\r\n").unwrap().1.to_owned();
    assert_eq!(shown("/debug/flags/v"), "info,kube_client=error");
    let answer = daemon.send(true, "PUT", "/debug/flags/v", "5");
    let text = String::from_utf8(answer).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    assert!(text.ends_with("\r\n\r\nsuccessfully set klog.logging.verbosity to 5"), "{text}");
    assert_eq!(shown("/debug/flags/filter"), "info,mooring=trace,kube_client=error");
    let text = String::from_utf8(daemon.send(true, "PUT", "/debug/flags/filter", "warn")).unwrap();
    assert!(text.ends_with("successfully set the filter to warn,kube_client=error"), "{text}");
    let text = String::from_utf8(daemon.send(true, "PUT", "/debug/flags/v", "loud")).unwrap();
    assert!(text.starts_with("HTTP/1.1 400 "), "{text}");
    assert_eq!(shown("/debug/flags/v"), "warn,kube_client=error");
    let text = String::from_utf8(daemon.send(false, "PUT", "/debug/flags/v", "0")).unwrap();
    assert!(text.starts_with("HTTP/1.1 401 "), "{text}");

    let path = "/debug/pprof/profile?seconds=1";
    let answer = daemon.send(true, "GET", path, "");
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let (head, body) = (String::from_utf8_lossy(&answer[..end]), &answer[end + 4..]);
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("application/octet-stream"), "{head}");
    assert_eq!(body[..2], [0x1f, 0x8b], "gzip");
    for (path, status) in [("/debug/pprof/profile?seconds=61", "400"), ("/debug/pprof/heap", "404")] {
        let text = daemon.get(path);
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
    }
    assert!(daemon.ask(false, path).starts_with("HTTP/1.1 401 "));
}

#[test]
fn without_profiling_there_is_neither() {
    let daemon = Daemon::start_unread("no-profiling", &["--profiling=false"]);
    for path in ["/debug/flags/v", "/debug/flags/filter", "/debug/pprof/profile"] {
        assert!(daemon.get(path).starts_with("HTTP/1.1 404 "), "{path}");
    }
    let answer = String::from_utf8(daemon.send(true, "PUT", "/debug/flags/v", "5")).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
}

#[test]
fn a_taken_address_is_a_mistake() {
    let daemon = Daemon::start("taken");
    let (_, port) = daemon.address.rsplit_once(':').unwrap();
    let output = mooring()
        .args(["run", "--bind-address=127.0.0.1", "--log-level=error", "--secure-port", port, "--kubeconfig"])
        .arg(daemon.folder.join("kubeconfig"))
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    let expected = format!("mooring: --bind-address 127.0.0.1 --secure-port {port}: ");
    assert!(stderr.starts_with(&expected), "{stderr}");
}

#[test]
fn the_daemons_own_program_shows_no_demo() {
    let output = mooring().arg("demo").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(stderr, "mooring: unrecognized subcommand 'demo'\n");
}

#[test]
fn what_is_released_names_one_toolchain_and_one_version() {
    let toolchain = include_str!("../rust-toolchain.toml");
    let (_, channel) = toolchain.split_once("channel = \"").unwrap();
    let (channel, _) = channel.split_once('"').unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let dockerfile = include_str!("../Dockerfile");
    let alone = " --package mooring --bin mooring\n".to_owned();
    for expected in [format!("/rust:{channel}-"), format!("ARG VERSION={version}\n"), alone] {
        assert!(dockerfile.contains(&expected), "{expected}");
    }
    assert!(channel.starts_with(env!("CARGO_PKG_RUST_VERSION")), "{channel}");
}
