//! `mooring demo --metrics`: what a Prometheus and a Grafana of the viewer's own need to show the demo.
//!
//! In: the demo's folder and the port of the daemon's pages. Out, in that folder: a bearer token, Prometheus' configuration
//! with the rules of `dashboards/alerts`, Grafana's data source and the dashboards; and the two commands that use them.

use std::{fs, io, path::Path};

/// Where Prometheus listens when it is started by its command.
const PROMETHEUS: &str = "127.0.0.1:9090";

/// Recording rules and alerts, as they are installed in a cluster.
const RULES: &str = include_str!("../../dashboards/alerts/rules.yaml");

/// Dashboards, as they are installed in a Grafana.
const DASHBOARDS: [(&str, &str); 5] = [
    ("mooring-overview.json", include_str!("../../dashboards/grafana/mooring-overview.json")),
    ("mooring-attach-detach.json", include_str!("../../dashboards/grafana/mooring-attach-detach.json")),
    ("mooring-binder.json", include_str!("../../dashboards/grafana/mooring-binder.json")),
    ("mooring-api-client.json", include_str!("../../dashboards/grafana/mooring-api-client.json")),
    ("mooring-kcm-comparison.json", include_str!("../../dashboards/grafana/mooring-kcm-comparison.json")),
];

/// What the token's owner may read.
pub const PATHS: [&str; 2] = ["/metrics", "/metrics/slis"];

/// Makes a token that cannot be guessed.
///
/// # Errors
/// There are no random numbers.
pub fn token() -> io::Result<String> {
    let part = || getrandom::u64().map_err(|error| io::Error::other(error.to_string()));
    Ok(format!("{:016x}{:016x}", part()?, part()?))
}

/// Writes everything for a daemon that serves on this port of this machine.
///
/// # Errors
/// The folder cannot be written to.
pub fn write(folder: &Path, port: u16, token: &str) -> io::Result<()> {
    fs::write(folder.join("token"), token)?;
    fs::write(folder.join("rules.yaml"), RULES)?;
    fs::write(folder.join("prometheus.yml"), prometheus(port))?;
    let grafana = folder.join("grafana");
    for part in ["provisioning/datasources", "provisioning/dashboards", "dashboards"] {
        fs::create_dir_all(grafana.join(part))?;
    }
    let datasource = format!(
        "apiVersion: 1
datasources:
- {{name: Prometheus, type: prometheus, access: proxy, url: 'http://{PROMETHEUS}', isDefault: true, jsonData: {{timeInterval: 2s}}}}
"
    );
    fs::write(grafana.join("provisioning/datasources/mooring.yaml"), datasource)?;
    let provider = format!(
        "apiVersion: 1
providers:
- {{name: mooring, folder: mooring, type: file, options: {{path: {}}}}}
",
        grafana.join("dashboards").display()
    );
    fs::write(grafana.join("provisioning/dashboards/mooring.yaml"), provider)?;
    for (name, dashboard) in DASHBOARDS {
        fs::write(grafana.join("dashboards").join(name), dashboard)?;
    }
    Ok(())
}

/// Prometheus' configuration. What it names lies beside it. The daemon makes its certificate at start, so no authority
/// vouches for it.
fn prometheus(port: u16) -> String {
    format!(
        "global: {{scrape_interval: 2s, evaluation_interval: 5s}}
rule_files: [rules.yaml]
scrape_configs:
- job_name: mooring
  scheme: https
  authorization: {{credentials_file: token}}
  tls_config: {{insecure_skip_verify: true}}
  static_configs:
  - {{targets: ['127.0.0.1:{port}'], labels: {{cluster: demo, namespace: mooring-system}}}}
"
    )
}

/// How to start a Prometheus and a Grafana that are installed here, without touching their own data.
pub fn commands(folder: &Path) -> [String; 2] {
    let folder = folder.display();
    [
        format!(
            "prometheus --config.file={folder}/prometheus.yml --storage.tsdb.path={folder}/prometheus \
             --web.listen-address={PROMETHEUS}"
        ),
        format!(
            "GF_PATHS_PROVISIONING={folder}/grafana/provisioning GF_PATHS_DATA={folder}/grafana/data \
             GF_SERVER_HTTP_ADDR=127.0.0.1 GF_AUTH_ANONYMOUS_ENABLED=true grafana server --homepath=/usr/share/grafana"
        ),
    ]
}
