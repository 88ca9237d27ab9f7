//! The program as its operator sees it: exit codes, one line per mistake, a start without an API
//! server, an orderly end.

#![expect(clippy::disallowed_methods, reason = "time of a real process")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failed test is a panic")]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, ChildStderr, Command, Stdio},
    time::{Duration, Instant},
};

fn mooring() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mooring"));
    command.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST").env("HOME", "/nonexistent");
    command
}

#[test]
fn a_mistake_is_one_line_and_exit_2() {
    let cases: [(&[&str], &str); 7] = [
        (&[], "mooring: no subcommand given"),
        (&["run", "--controllers=*,-persistentvolume-binder-controller"], "mooring: --controllers: "),
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

/// A running daemon whose API server does not answer. Killed if a test fails.
struct Daemon {
    child: Child,
    address: String,
    kubeconfig: PathBuf,
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
        // Nothing listens on the discard port.
        let content = "{apiVersion: v1, kind: Config, current-context: x,
            clusters: [{name: c, cluster: {server: 'https://127.0.0.1:9'}}], users: [{name: u, user: {}}],
            contexts: [{name: x, context: {cluster: c, user: u}}]}";
        let kubeconfig = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(&kubeconfig, content).unwrap();
        let mut child = mooring()
            .args(["run", "--bind-address=127.0.0.1", "--port=0", "--logging-format=json", "--kubeconfig"])
            .arg(&kubeconfig)
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
        Self { child, address, kubeconfig, unread_log: Some(log) }
    }

    fn terminate(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
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
        let _ = fs::remove_file(&self.kubeconfig);
    }
}

#[test]
fn without_an_api_server_it_runs_says_why_it_is_not_ready_and_ends_in_order() {
    let mut daemon = Daemon::start("unreachable");
    let answer = daemon.wait_for("/readyz", "[-]watch-pods failed: failed to");
    assert!(answer.starts_with("HTTP/1.1 500 ") && answer.contains("Connection refused"), "{answer}");
    let answer = daemon.wait_for("/readyz", "last attempt failed: ");
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

    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn a_log_that_nobody_reads_stops_nothing_and_what_is_lost_is_counted() {
    const DROPPED: &str = "\nmooring_log_lines_dropped_total ";
    let mut daemon = Daemon::start_unread("unread", &["--log-level=trace", "--profiling"]);
    let deadline = Instant::now() + Duration::from_secs(120);
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
fn a_taken_address_is_a_mistake() {
    let daemon = Daemon::start("taken");
    let (_, port) = daemon.address.rsplit_once(':').unwrap();
    let output = mooring()
        .args(["run", "--bind-address=127.0.0.1", "--log-level=error", "--port", port, "--kubeconfig"])
        .arg(&daemon.kubeconfig)
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.starts_with(&format!("mooring: --bind-address 127.0.0.1 --port {port}: ")), "{stderr}");
}

#[test]
fn what_is_released_names_one_toolchain_and_one_version() {
    let toolchain = include_str!("../rust-toolchain.toml");
    let (_, channel) = toolchain.split_once("channel = \"").unwrap();
    let (channel, _) = channel.split_once('"').unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let dockerfile = include_str!("../Dockerfile");
    for expected in [format!("/rust:{channel}-"), format!("ARG VERSION={version}\n")] {
        assert!(dockerfile.contains(&expected), "{expected}");
    }
    assert!(channel.starts_with(env!("CARGO_PKG_RUST_VERSION")), "{channel}");
}
