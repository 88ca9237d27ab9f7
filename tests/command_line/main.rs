//! The program as its operator sees it: exit codes, one line per mistake, a start without an API
//! server, an orderly end.

#![expect(clippy::disallowed_methods, reason = "time of a real process")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed test is a panic")]

mod completion;
mod daemon;
mod reviews;

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
use testbed::forward_proxy::ForwardProxy;
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};

use daemon::Daemon;

fn mooring() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mooring"));
    command.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").env("HOME", "/nonexistent");
    for variable in ["HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"] {
        command.env_remove(variable);
    }
    command
}

/// One cluster answers that there is nothing of what it is asked for; nobody listens where the other should be.
#[test]
fn preflight_of_a_fleet_answers_for_each_cluster_and_ends_with_the_worst_code() {
    let (alive, dead) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let [at, nowhere] = [&alive, &dead].map(|listener| listener.local_addr().unwrap().port());
    drop(dead);
    std::thread::spawn(move || {
        for mut stream in alive.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            let body = json!({ "kind": "Status", "status": "Failure", "code": 404 }).to_string();
            let head = "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nConnection: close";
            let _ = write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
    });
    let file = std::env::temp_dir().join(format!("mooring-fleet-{}", std::process::id()));
    let cluster = |name: &str, port: u16| json!({ "name": name, "cluster": { "server": format!("http://127.0.0.1:{port}") } });
    let context = |name: &str| json!({ "name": name, "context": { "cluster": name, "user": "u" } });
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "users": [{ "name": "u", "user": {} }],
        "clusters": [cluster("gone", nowhere), cluster("there", at)],
        "contexts": [context("gone"), context("there")],
    });
    fs::write(&file, config.to_string()).unwrap();
    let ask = |contexts: &str| {
        let file = format!("--kubeconfig={}", file.display());
        let output =
            mooring().args(["preflight", &file, "--contexts", contexts, "-o", "json"]).output().unwrap();
        let answers: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.code(), answers, String::from_utf8(output.stderr).unwrap())
    };
    let (code, answers, told) = ask("gone,there");
    assert_eq!(code, Some(5), "{told}");
    assert!(told.contains("mooring: gone: "), "{told}");
    assert_eq!(answers[0]["lines"][0]["check"], "cluster", "{answers}");
    assert_eq!((&answers[0]["context"], &answers[0]["level"]), (&json!("gone"), &json!("stop")));
    assert!(answers[1]["lines"].as_array().unwrap().len() > 10, "{answers}");
    assert_eq!(ask("there").0, Some(2), "without admission policies");
    fs::remove_file(&file).unwrap();
}

#[test]
fn a_mistake_is_one_line_and_exit_2_and_no_command_is_a_question_and_exit_4() {
    let cases: [(&[&str], &str); 11] = [
        (&[], "mooring: no subcommand given"),
        (&["docter"], "mooring: unrecognized subcommand 'docter'"),
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
        let code = if arguments.first() == Some(&"run") { 2 } else { 4 };
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
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
fn m3_the_proxy_of_the_environment_is_gone_through_unless_it_excludes_the_server() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(1).build().unwrap();
    let proxy = runtime.block_on(ForwardProxy::start(&[])).unwrap();
    let server = kubeconfig(folder("proxy").join("kubeconfig"), "https://api.hidden.invalid:6443");
    let address = format!("http://user:secret@{}", proxy.address());
    let through = format!("through the proxy {}: tunnel error: unsuccessful", proxy.address());
    // what is set besides; whether the proxy is asked
    let cases = [
        ("HTTPS_PROXY", "other.invalid", true),
        ("https_proxy", "", true),
        ("HTTPS_PROXY", ".invalid", false),
    ];
    for (variable, excluded, asks) in cases {
        let mut command = mooring();
        command.env(variable, &address).env("NO_PROXY", excluded);
        let output = command.args(["explain", "pvc/a", "--kubeconfig"]).arg(&server).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(5), "{said}");
        assert!(said.starts_with("mooring: cannot reach the API server api.hidden.invalid:6443: "), "{said}");
        assert_eq!((said.contains(&through), said.contains("secret")), (asks, false), "{said}");
        let asked = proxy.asked();
        assert_eq!(!asked.is_empty(), asks, "{asked:?}");
        assert!(asked.iter().all(|line| line == "CONNECT api.hidden.invalid:6443 Basic dXNlcjpzZWNyZXQ="));
    }
    let mut command = mooring();
    command.env("https_proxy", "ftp://user:secret@nowhere").args(["run", "--kubeconfig"]);
    let output = command.arg(&server).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let expected = format!("mooring: --kubeconfig {}: https_proxy is no URL of a proxy", server.display());
    assert!(said.contains(&expected) && !said.contains("secret"), "{said}");
    assert_eq!(output.status.code(), Some(2));
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
    assert_eq!(output.status.code(), Some(4), "{stderr}");
    assert_eq!(stderr, "mooring: unrecognized subcommand 'demo'\n");
}

#[test]
fn what_is_released_names_one_toolchain_and_one_version() {
    let toolchain = include_str!("../../rust-toolchain.toml");
    let (_, channel) = toolchain.split_once("channel = \"").unwrap();
    let (channel, _) = channel.split_once('"').unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let dockerfile = include_str!("../../Dockerfile");
    let alone = " --package mooring --bin mooring\n".to_owned();
    for expected in [format!("/rust:{channel}-"), format!("ARG VERSION={version}\n"), alone] {
        assert!(dockerfile.contains(&expected), "{expected}");
    }
    assert!(channel.starts_with(env!("CARGO_PKG_RUST_VERSION")), "{channel}");
}
