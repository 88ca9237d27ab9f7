//! The simulated server as a process, and the daemons that ask it.

use std::{net::TcpListener, path::PathBuf};

use http::Request;
use kube::Client;
use serde_json::json;
use test_support::{
    plain_config::plain_config,
    process::{Process, temporary_folder},
};

use super::{
    objects::Shape,
    server::{EXPIRE, REQUESTS, SERVES},
};

/// A running server; killed when dropped.
pub struct Plane {
    _process: Process,
    /// What a subject asks.
    url: String,
    certificate: PathBuf,
    /// What was written.
    pub written: Client,
}

impl Plane {
    /// Starts it.
    pub async fn start(shape: Shape) -> Self {
        let bench = std::env::current_exe().expect("the path of this program");
        let Shape { nodes, pods, attached, claims, seed } = shape;
        let arguments = [
            format!("--serve-simulated={nodes}"),
            format!("--pods={pods}"),
            format!("--attached={attached}"),
            format!("--spare={}", claims - attached),
            format!("--seed={seed}"),
        ];
        let process = Process::start("simulated server", &bench, &arguments, &[]);
        let says = |line: &str| Some(line.strip_prefix(SERVES)?.split(' ').map(str::to_owned).collect());
        let said: Option<Vec<String>> = process.log().find(says).await;
        let said = said.unwrap_or_else(|| panic!("nothing is served:\n{}", process.log().tail(30)));
        let beside = plain_config(&format!("http://{}", said[1]));
        Self {
            _process: process,
            url: format!("https://{}", said[0]),
            certificate: said[2].clone().into(),
            written: Client::try_from(beside).expect("a client"),
        }
    }

    /// A kubeconfig for the whole cluster.
    pub fn kubeconfig(&self) -> PathBuf {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "simulated",
            "clusters": [{ "name": "simulated", "cluster": {
                "server": self.url, "certificate-authority": self.certificate.to_str(),
            }}],
            "users": [{ "name": "simulated", "user": { "token": "nobody-asks" } }],
            "contexts": [{ "name": "simulated", "context": { "cluster": "simulated", "user": "simulated" } }],
        });
        let path = temporary_folder("kubeconfig").join("kubeconfig");
        // JSON is YAML.
        std::fs::write(&path, config.to_string()).expect("write the kubeconfig");
        path
    }

    /// A client of the whole cluster.
    pub fn whole(&self) -> Client {
        let mut config = plain_config(&self.url);
        let pem = std::fs::read(&self.certificate).expect("read the certificate");
        config.root_cert = Some(vec![pem::parse(pem).expect("a certificate").into_contents()]);
        Client::try_from(config).expect("a client")
    }

    /// Lets the server forget its history, and ends every watch.
    pub async fn expire(&self) {
        self.text(EXPIRE).await;
    }

    /// What was asked so far.
    pub async fn requests(&self) -> String {
        self.text(REQUESTS).await
    }

    async fn text(&self, path: &str) -> String {
        let request = Request::get(path).body(Vec::new()).expect("a request");
        self.written.request_text(request).await.expect("an answer of the simulated server")
    }
}

/// A daemon; killed when dropped.
pub struct Daemon {
    pub process: Process,
    port: u16,
}

impl Daemon {
    /// Starts one, which leads at once unless it is to be elected.
    pub fn start(plane: &Plane, mooring: &std::path::Path, is_elected: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let arguments = [
            "run".to_owned(),
            format!("--kubeconfig={}", plane.kubeconfig().display()),
            format!("--leader-elect={is_elected}"),
            "--leader-elect-resource-namespace=default".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            "--authentication-skip-lookup=true".to_owned(),
            "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics".to_owned(),
        ];
        drop(listener);
        // As in `deploy`.
        let environment = [("MALLOC_ARENA_MAX", "1".to_owned())];
        Self { process: Process::start("mooring", mooring, &arguments, &environment), port }
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// A page of it, as soon as it is served.
    pub async fn page(&self, path: &str) -> Result<String, kube::Error> {
        let mut config = plain_config(&format!("https://127.0.0.1:{}", self.port));
        config.accept_invalid_certs = true;
        let client = Client::try_from(config).expect("a client");
        client.request_text(Request::get(path).body(Vec::new()).expect("a request")).await
    }

    /// The sum of a metric's values; not a number if the page does not come.
    pub async fn sum(&self, metric: &str) -> f64 {
        let Ok(text) = self.page("/metrics").await else { return f64::NAN };
        let of_it = |line: &&str| line.split(['{', ' ']).next() == Some(metric);
        let value = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
        text.lines().filter(of_it).filter_map(value).sum()
    }
}
