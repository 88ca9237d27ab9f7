//! The daemon under test: the real binary as its own process, or the same parts in the test's process,
//! which the test assembles.

use std::{fmt::Debug, path::Path, time::Duration};

use futures::future::BoxFuture;
use http::StatusCode;
use kube::Client;

use super::{
    cluster::within_deadline,
    control_plane::free_ports,
    process::{Log, Process},
    standstill::Standstill,
    visitor::{Authority, Credentials, ask},
};

/// How a daemon is started; the same again after a crash.
#[derive(Clone, Debug)]
pub struct Launch {
    flags: Vec<String>,
    authorities_of_the_cluster: bool,
}

impl Launch {
    /// A single replica that needs no lease.
    pub fn alone() -> Self {
        let flags = [
            "--leader-elect=false",
            // What is never answered should not be waited for long.
            "--request-timeout=5s",
        ];
        Self { flags: flags.map(str::to_owned).to_vec(), authorities_of_the_cluster: false }
    }

    /// One of several replicas, with a lease short enough for a test to wait for.
    pub fn replica(namespace: &str) -> Self {
        let flags = [
            "--leader-elect=true",
            "--leader-elect-lease-duration=5s",
            "--leader-elect-renew-deadline=3s",
            "--leader-elect-retry-period=200ms",
        ];
        let mut flags: Vec<String> = flags.map(str::to_owned).to_vec();
        flags.push(format!("--leader-elect-resource-namespace={namespace}"));
        Self { flags, authorities_of_the_cluster: false }
    }

    /// The same for stories about visitors: nobody is known but to the API server.
    #[must_use]
    pub fn with_authorities_of_the_cluster(self) -> Self {
        Self { authorities_of_the_cluster: true, ..self }
    }

    /// One of several replicas, with the lease that an operator gets who says nothing else.
    pub fn replica_by_default(namespace: &str) -> Self {
        let flags = vec![format!("--leader-elect-resource-namespace={namespace}")];
        Self { flags, authorities_of_the_cluster: false }
    }

    /// One without any flag.
    pub fn plain() -> Self {
        Self { flags: Vec::new(), authorities_of_the_cluster: false }
    }

    /// The same with one more flag.
    #[must_use]
    pub fn with(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    fn arguments(&self, port: u16) -> Vec<String> {
        let mut arguments = vec!["run".to_owned(), "--bind-address=127.0.0.1".to_owned()];
        arguments.push(format!("--secure-port={port}"));
        if !self.authorities_of_the_cluster {
            // The test reads pages without a request to the API server, which might be part of the story.
            let file = Authority::of_the_test().file();
            arguments.push(format!("--client-ca-file={}", file.display()));
        }
        arguments.extend(self.flags.iter().cloned());
        arguments
    }

    /// Starts a program with a kubeconfig.
    pub fn start_process(&self, program: &str, kubeconfig: &Path) -> Daemon {
        let [port] = free_ports();
        let mut arguments = self.arguments(port);
        arguments.push(format!("--kubeconfig={}", kubeconfig.display()));
        arguments
            .push("--log-level=debug,hyper=info,hyper_util=info,tower=info,kube=info,rustls=info".to_owned());
        Daemon { life: Life::Process(Process::start("mooring", Path::new(program), &arguments, &[])) }
    }

    /// Starts its parts in this process, with a client in place of a kubeconfig.
    pub fn start_in_process(&self, start: StartInProcess, client: Client) -> Daemon {
        Daemon { life: Life::InProcess(start(&self.arguments(0), client)) }
    }
}

/// The parts of a daemon on the test's runtime; dead when dropped.
pub trait InProcess: Debug + Send + Sync {
    /// A page, if it is answered with success.
    fn page<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Option<String>>;

    /// What a visitor is answered who shows a token, or nothing.
    fn visit<'a>(&'a self, path: &'a str, token: Option<&'a str>) -> BoxFuture<'a, (StatusCode, String)>;

    /// Whether it has ended by itself.
    fn is_over(&self) -> bool;

    /// Asks it to end and waits until it has; returns what would be its exit code.
    fn stop(self: Box<Self>) -> BoxFuture<'static, Option<i32>>;
}

/// Starts these parts: arguments without the program's name, and a client.
pub type StartInProcess = fn(&[String], Client) -> Box<dyn InProcess>;

/// A running daemon; killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    life: Life,
}

#[derive(Debug)]
enum Life {
    Process(Process),
    InProcess(Box<dyn InProcess>),
}

impl Daemon {
    /// Waits until `/readyz` says yes.
    pub async fn ready(&self) {
        let ready = async {
            // Readiness is asked for, by us as by a kubelet.
            let mut pause = tokio::time::interval(Duration::from_millis(10));
            loop {
                pause.tick().await;
                if self.answer("/readyz").await.is_some() {
                    return;
                }
            }
        };
        if let Err(late) = within_deadline("the daemon is ready", ready).await {
            panic!("{late}\n{}", self.log().map(|log| log.tail(40)).unwrap_or_default());
        }
    }

    /// Whether `/readyz` says yes now; not if it has ended.
    pub async fn is_ready(&self) -> bool {
        match &self.life {
            Life::Process(process) => match known_address(process).await {
                Some(url) => answer_at(&url, "/readyz").await.is_some(),
                None => false,
            },
            Life::InProcess(life) => life.page("/readyz").await.is_some(),
        }
    }

    /// One page of it.
    pub async fn page(&self, path: &str) -> String {
        self.answer(path).await.unwrap_or_else(|| panic!("{path} is not answered"))
    }

    /// Waits until a page contains this text.
    pub async fn page_says(&self, path: &str, text: &str) {
        let says = async {
            let mut pause = tokio::time::interval(Duration::from_millis(10));
            loop {
                pause.tick().await;
                if self.answer(path).await.is_some_and(|page| page.contains(text)) {
                    return;
                }
            }
        };
        if let Err(late) = within_deadline(&format!("{path} says {text}"), says).await {
            panic!("{late}\n{}", self.page(path).await);
        }
    }

    /// Waits until a scrape of `/metrics` shows this line.
    pub async fn shows(&self, line: &str) {
        self.shows_one(&format!("/metrics shows {line}"), |shown| shown == line).await;
    }

    /// Waits until a counter of `/metrics` is more than zero.
    pub async fn has_counted(&self, series: &str) {
        let is_counted = |shown: &str| {
            let value = shown.strip_prefix(series).and_then(|rest| rest.trim().parse::<f64>().ok());
            value.is_some_and(|value| value > 0.0)
        };
        self.shows_one(&format!("{series} is more than zero"), is_counted).await;
    }

    async fn shows_one(&self, awaited: &str, is_right: impl Fn(&str) -> bool) {
        let shown = async {
            let mut pause = tokio::time::interval(Duration::from_millis(10));
            loop {
                pause.tick().await;
                let page = self.answer("/metrics").await;
                if page.is_some_and(|page| page.lines().any(&is_right)) {
                    return;
                }
            }
        };
        if let Err(late) = within_deadline(awaited, shown).await {
            panic!("{late}\n{}", self.page("/metrics").await);
        }
    }

    /// A page, if it is answered with success.
    async fn answer(&self, path: &str) -> Option<String> {
        match &self.life {
            Life::Process(process) => answer_at(&address(process).await, path).await,
            Life::InProcess(life) => life.page(path).await,
        }
    }

    /// What a visitor is answered who shows a token, or nothing.
    pub async fn visit(&self, path: &str, token: Option<&str>) -> (StatusCode, String) {
        match &self.life {
            Life::Process(process) => {
                let credentials = Credentials { identity: None, token: token.map(str::to_owned) };
                let client = credentials.client(&address(process).await);
                ask(&client, path).await.expect("an answer")
            }
            Life::InProcess(life) => life.visit(path, token).await,
        }
    }

    /// Where a process serves.
    pub async fn url(&self) -> String {
        match &self.life {
            Life::Process(process) => address(process).await,
            Life::InProcess(_) => panic!("this daemon listens nowhere"),
        }
    }

    /// Its process id, if it is one.
    pub fn id(&self) -> Option<u32> {
        match &self.life {
            Life::Process(process) => Some(process.id()),
            Life::InProcess(_) => None,
        }
    }

    /// Stops the process in its tracks (SIGSTOP), as a machine that is suspended does.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on (SIGCONT).
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    /// Stops the thread that watches and decides, which is the first of its process, and no other.
    pub fn stand_still(&self) -> Standstill {
        Standstill::of(self.id().expect("a process"))
    }

    fn signal(&self, signal: &str) {
        let id = self.id().expect("a process").to_string();
        let status = std::process::Command::new("kill").args([signal, &id]).status().expect("run kill");
        assert!(status.success(), "kill {signal} {id}");
    }

    /// Waits until it has ended by itself; returns its exit code.
    pub async fn ended(self) -> Option<i32> {
        match self.life {
            Life::Process(mut process) => process.ended().await.code(),
            Life::InProcess(_) => panic!("it is no process"),
        }
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        match &self.life {
            Life::Process(process) => process.log().is_closed(),
            Life::InProcess(life) => life.is_over(),
        }
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(self) {
        match self.life {
            Life::Process(mut process) => process.kill(),
            Life::InProcess(life) => drop(life),
        }
    }

    /// Asks it to end (SIGTERM) and waits until it has; returns its exit code.
    pub async fn terminate(self) -> Option<i32> {
        match self.life {
            Life::Process(mut process) => process.terminate().await.code(),
            Life::InProcess(life) => life.stop().await,
        }
    }

    /// What it has logged, when that is known apart from what others log.
    pub fn log(&self) -> Option<&Log> {
        match &self.life {
            Life::Process(process) => Some(process.log()),
            Life::InProcess(_) => None,
        }
    }
}

/// A page of a process, if it is answered with success.
async fn answer_at(url: &str, path: &str) -> Option<String> {
    let client = Credentials::from(Authority::master()).client(url);
    let (status, page) = ask(&client, path).await?;
    (status == StatusCode::OK).then_some(page)
}

/// The address a process serves on, which it logs.
async fn address(process: &Process) -> String {
    let address = known_address(process).await;
    address.unwrap_or_else(|| panic!("the daemon ended:\n{}", process.log().tail(40)))
}

/// The same; `None` if it ended before.
async fn known_address(process: &Process) -> Option<String> {
    let address = process.log().find(|line| {
        let (_, rest) = line.split_once(" address=")?;
        Some(format!("https://{}", rest.split_whitespace().next()?))
    });
    address.await
}
