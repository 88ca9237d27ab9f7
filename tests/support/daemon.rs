//! The daemon under test: the real binary, as a process of its own.

use std::{path::Path, process::ExitStatus, time::Duration};

use kube::Client;

use super::{
    cluster::within_deadline,
    control_plane::plain_config,
    process::{Log, Process},
};

/// How a daemon is started; the same again after a crash.
#[derive(Clone, Debug)]
pub struct Launch {
    kubeconfig: std::path::PathBuf,
    flags: Vec<String>,
}

impl Launch {
    /// A single replica that needs no lease.
    pub fn alone(kubeconfig: &Path) -> Self {
        Self { kubeconfig: kubeconfig.to_owned(), flags: vec!["--leader-elect=false".to_owned()] }
    }

    /// One of several replicas, with a lease short enough for a test to wait for.
    pub fn replica(kubeconfig: &Path, namespace: &str) -> Self {
        let flags = [
            "--leader-elect=true",
            "--leader-elect-lease-duration=3s",
            "--leader-elect-renew-deadline=2s",
            "--leader-elect-retry-period=200ms",
        ];
        let mut flags: Vec<String> = flags.map(str::to_owned).to_vec();
        flags.push(format!("--leader-elect-resource-namespace={namespace}"));
        Self { kubeconfig: kubeconfig.to_owned(), flags }
    }

    /// The same with one more flag.
    #[must_use]
    pub fn with(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// Starts it.
    pub fn start(&self) -> Daemon {
        let mut arguments = vec![
            "run".to_owned(),
            format!("--kubeconfig={}", self.kubeconfig.display()),
            "--bind-address=127.0.0.1".to_owned(),
            "--port=0".to_owned(),
            "--log-level=debug,hyper=info,hyper_util=info,tower=info,kube=info,rustls=info".to_owned(),
        ];
        arguments.extend(self.flags.iter().cloned());
        let program = Path::new(env!("CARGO_BIN_EXE_mooring"));
        Daemon { process: Process::start("mooring", program, &arguments, &[]) }
    }
}

/// A running daemon; killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
}

impl Daemon {
    /// Waits until `/readyz` says yes, and returns the address it serves on.
    pub async fn ready(&self) -> String {
        let ready = async {
            let url = self.address().await;
            let client = Client::try_from(plain_config(&url)).expect("build a client");
            // Readiness is asked for, by us as by a kubelet.
            let mut pause = tokio::time::interval(Duration::from_millis(10));
            loop {
                pause.tick().await;
                let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
                if client.request_text(request).await.is_ok() {
                    return url;
                }
            }
        };
        match within_deadline("the daemon is ready", ready).await {
            Ok(url) => url,
            Err(late) => panic!("{late}\n{}", self.log().tail(40)),
        }
    }

    /// The address it serves on, which it logs because it chose the port.
    async fn address(&self) -> String {
        let address = self.log().find(|line| {
            let (_, rest) = line.split_once(" address=")?;
            Some(format!("http://{}", rest.split_whitespace().next()?))
        });
        address.await.unwrap_or_else(|| panic!("the daemon ended:\n{}", self.log().tail(40)))
    }

    /// One page of it.
    pub async fn page(&self, path: &str) -> String {
        let client = Client::try_from(plain_config(&self.address().await)).expect("build a client");
        client.request_text(http::Request::get(path).body(Vec::new()).unwrap()).await.expect("get the page")
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    pub fn kill(mut self) {
        self.process.kill();
    }

    /// Asks it to end (SIGTERM) and waits until it has.
    pub async fn terminate(mut self) -> ExitStatus {
        self.process.terminate().await
    }

    /// What it has logged.
    pub fn log(&self) -> &Log {
        self.process.log()
    }

    /// Process id, for a benchmark that reads its costs.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}
