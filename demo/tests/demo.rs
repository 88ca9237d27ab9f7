//! `mooring demo` as its viewer sees it: what it tells of a cluster in trouble, and how it ends.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a failed test is a panic"
)]

use std::{
    io::{BufRead, BufReader, Lines, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

/// What is told sooner or later of every script's first troubles, with any seed.
const STORY: [&str; 9] = [
    "bind    data-",
    "attach  data-",
    "detach  data-",
    "move    ",
    " is tainted for maintenance",
    " dies: its pods are told to end after 2 s",
    " is tainted out-of-service: its operator knows it to be off",
    "force   data-",
    "wait    needs-gold: ProvisioningFailed: storageclass.storage.k8s.io \"gold\" not found",
];

/// No seed takes longer than a round of troubles to tell all that, by the demo's own clock; the rest
/// is for slow machines.
const PATIENCE_SECONDS: f64 = 120.0;

/// A running demo. Killed if a test fails.
struct Demo {
    child: Child,
    /// What it says, until it is not read any more.
    lines: Option<Lines<BufReader<ChildStdout>>>,
}

impl Demo {
    fn start(flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mooring-demo"));
        command.arg("demo").args(flags).env_remove("KUBECONFIG").stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = child.stdout.take().map(|stdout| BufReader::new(stdout).lines());
        Self { child, lines }
    }

    /// Reads until all of the story was told.
    fn watch(&mut self) -> Vec<String> {
        let lines = self.lines.as_mut().unwrap();
        let mut told = Vec::new();
        let mut missing = STORY.to_vec();
        while !missing.is_empty() {
            let line = lines.next().expect("it goes on").unwrap();
            missing.retain(|part| !line.contains(part));
            let at = line.split_once("s  ").and_then(|(at, _)| at.trim().parse::<f64>().ok());
            assert!(at.is_none_or(|at| at < PATIENCE_SECONDS), "{missing:?} not in {told:#?}");
            told.push(line);
        }
        told
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Reads to the end, and returns the last line and the exit code.
    fn end(mut self) -> (String, Option<i32>) {
        let last = self.lines.take().unwrap().map(Result::unwrap).last().unwrap_or_default();
        (last, self.child.wait().unwrap().code())
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_shows_the_main_job_and_ends_when_interrupted() {
    let mut demo = Demo::start(&["--output=log", "--seed=7"]);
    let told = demo.watch();
    let kubeconfig = told.iter().find_map(|line| line.trim().strip_prefix("export KUBECONFIG=")).unwrap();
    assert!(Path::new(kubeconfig).is_file());
    demo.signal("-INT");
    let (last, code) = demo.end();
    assert_eq!(code, Some(0), "{last}");
    assert!(
        last.starts_with("mooring demo: ") && last.contains(" with seed 7; waiting at the end: needs-gold"),
        "{last}"
    );
    assert!(!Path::new(kubeconfig).exists());
}

/// The page that the demo names shows what its own lines tell. With `MOORING_BROWSER=1` in a real browser, too: without
/// script, by keyboard, and for those who cannot see it.
#[test]
fn it_names_the_address_of_its_page() {
    let mut demo = Demo::start(&["--output=log", "--seed=7", "--rate=0"]);
    let lines = demo.lines.as_mut().unwrap();
    let mut next = || lines.next().expect("it goes on").unwrap();
    let address = loop {
        let line = next();
        if line.trim().starts_with("http://127.0.0.1:") && line.ends_with("/explain/") {
            break line.trim().to_owned();
        }
    };
    while !next().contains("needs-gold: ProvisioningFailed") {}
    let page = get(&address);
    assert!(page.contains("needs-gold") && page.contains("<!DOCTYPE html>"), "{page}");
    let claim = format!("{address}o/pvc/default/needs-gold");
    let page = get(&claim);
    assert!(page.starts_with("HTTP/1.1 200 ") && page.contains("gold"), "{page}");
    if std::env::var("MOORING_BROWSER").is_ok_and(|value| value == "1") {
        let run = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/page/run");
        let node = format!("{address}node/node-1");
        let output = Command::new(run).args([&address, &claim, &node]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        println!("{said}");
    }
    demo.signal("-INT");
    demo.end();
}

/// The whole answer, head and body.
fn get(address: &str) -> String {
    let (host, path) = address.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn it_ends_by_itself_and_without_a_terminal_it_tells_lines() {
    let (last, code) = Demo::start(&["--for=100ms", "--nodes=2", "--volumes=1", "--rate=0"]).end();
    assert_eq!(code, Some(0), "{last}");
    assert!(last.starts_with("mooring demo: "), "{last}");
}

#[test]
fn lines_that_nobody_reads_end_it() {
    let mut demo = Demo::start(&["--output=log"]);
    let lines = demo.lines.take().unwrap();
    drop(lines);
    assert_eq!(demo.child.wait().unwrap().code(), Some(0));
}

#[test]
fn its_help_has_its_exit_codes() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mooring-demo"));
    let output = command.args(["demo", "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(help.contains("Exit codes: 0 ended in order; 1 a part died"), "{help}");
}

#[test]
fn flags_that_cannot_be_are_one_line_and_exit_2() {
    let cases: [(&[&str], &str); 6] = [
        (&["--output=view"], "mooring: --output=view: stdout is no terminal"),
        (&["--nodes=1"], "mooring: invalid value '1' for '--nodes <COUNT>'"),
        (&["--volumes=0"], "mooring: invalid value '0' for '--volumes <COUNT>'"),
        (&["--rate=-1"], "mooring: "),
        (&["--metrics=0"], "mooring: invalid value '0' for '--metrics[=<PORT>]'"),
        (&["--for=soon"], "mooring: invalid value 'soon' for '--for <DURATION>'"),
    ];
    for (flags, expected) in cases {
        let output =
            Command::new(env!("CARGO_BIN_EXE_mooring-demo")).arg("demo").args(flags).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {stderr}");
        assert!(stderr.starts_with(expected), "{flags:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{flags:?}: {stderr}");
    }
}
