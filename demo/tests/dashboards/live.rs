//! Every query on a real Prometheus that scrapes the daemon, over HTTPS with a token, while the demo's cluster binds, moves,
//! fails and heals. Both are started with the commands that `mooring demo --metrics` prints.
//!
//! `dashboards/preview` runs this with `MOORING_PREVIEW`, the file of the picture, and `MOORING_PREVIEW_SECONDS`.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use libtest_mimic::Failed;
use serde_json::Value;
use test_support::{
    control_plane::free_ports,
    process::{Process, temporary_folder},
};
use tokio::time::Instant;

use crate::{
    panels::{self, Panel},
    picture,
    prometheus::{Api, Series},
    rules,
};

/// How long what is waited for may take: a round of the demo's troubles is 40 s, its second node dies 52 s after the
/// beginning. The rest is for slow machines.
const PATIENCE: Duration = Duration::from_mins(4);

/// Between two looks at Prometheus.
const PAUSE: Duration = Duration::from_secs(1);

/// Seconds between two points of a series.
const STEP: f64 = 2.0;

/// Seconds that the picture shows: without the beginning, when everything is made at once.
const DRAWN: f64 = 180.0;

/// What the script of this seed makes happen, as queries that are above zero from then on.
const HAPPENED: [&str; 7] = [
    "sum(up)",
    r#"sum(mooring_bind_e2e_seconds_count{mode="dynamic"})"#,
    r#"sum(mooring_bind_e2e_seconds_count{mode=~"static|prebound"})"#,
    "sum(mooring_attach_overhead_seconds_count)",
    "sum(mooring_detach_overhead_seconds_count)",
    "sum(attach_detach_controller_attachdetach_controller_forced_detaches)",
    "max(max_over_time(mooring_force_detach_pending[10m]))",
];

/// What the dashboards show, of all that Prometheus watches.
const CLUSTER: &str = "demo";
const JOB: &str = "mooring";

/// Metrics that show themselves when it happens, and why it does not in the demo. No panel is empty without them.
const NOT_IN_THE_DEMO: [(&str, &str); 15] = [
    ("apiserver_validating_admission_policy_check_total", "it is the API server's"),
    ("container_memory_working_set_bytes", "it is the kubelet's"),
    ("kube_pod_container_resource_limits", "it is kube-state-metrics'"),
    ("ephemeral_volume_controller_create_failures_total", "the demo runs the two controllers"),
    ("ephemeral_volume_controller_create_total", "the demo runs the two controllers"),
    ("mooring_client_certificate_expiry_timestamp_seconds", "the demo's API server asks for no certificate"),
    (
        "mooring_detach_oldest_seconds",
        "a detach takes a fifth of a second there: a scrape sees one by chance only",
    ),
    ("mooring_fence", "the demo runs without --fence"),
    ("mooring_observe_acts_total", "it is that of mooring observe"),
    ("mooring_observe_differences_total", "it is that of mooring observe"),
    ("mooring_released_bytes", "what the demo releases is deleted, or bound again, before it is scraped"),
    ("mooring_requests_timed_out_total", "the demo's API server answers in time"),
    (
        "rest_client_rate_limiter_duration_seconds_bucket",
        "there is no client-side limit without --kube-api-qps",
    ),
    ("rest_client_request_retries_total", "nothing has to be repeated"),
    ("volume_operation_errors_total", "the provisioner does as it is asked"),
];

/// What the kubernetes-mixin's dashboard of kube-controller-manager and other people's alerts ask for
/// (user-experience §5), of our job. `go_goroutines` is not among them: there are none.
const MIXIN: [&str; 14] = [
    r#"sum(up{cluster="demo", job="mooring"})"#,
    r#"sum(rate(workqueue_adds_total{cluster="demo", job="mooring", instance=~".+"}[1m])) by (cluster, instance, name)"#,
    r#"sum(rate(workqueue_depth{cluster="demo", job="mooring", instance=~".+"}[1m])) by (cluster, instance, name)"#,
    r#"histogram_quantile(0.99, sum(rate(workqueue_queue_duration_seconds_bucket{cluster="demo", job="mooring"}[1m])) by (cluster, instance, name, le))"#,
    r#"sum(rate(rest_client_requests_total{job="mooring", code=~"2.."}[1m]))"#,
    r#"histogram_quantile(0.99, sum(rate(rest_client_request_duration_seconds_bucket{cluster="demo", job="mooring", verb="POST"}[1m])) by (verb, le))"#,
    r#"histogram_quantile(0.99, sum(rate(rest_client_request_duration_seconds_bucket{cluster="demo", job="mooring", verb="GET"}[1m])) by (verb, le))"#,
    r#"process_resident_memory_bytes{cluster="demo", job="mooring", instance=~".+"}"#,
    r#"rate(process_cpu_seconds_total{cluster="demo", job="mooring", instance=~".+"}[1m])"#,
    r#"leader_election_master_status{job="mooring"}"#,
    r#"sum by (operation_name, volume_plugin) (rate(storage_operation_duration_seconds_count{job="mooring"}[1m]))"#,
    r#"increase(storage_operation_duration_seconds_count{job="mooring", operation_name=~"volume_attach|volume_mount", status="success"}[1m])"#,
    r#"attachdetach_controller_total_volumes{job="mooring"}"#,
    r#"pv_collector_bound_pv_count{job="mooring"}"#,
];

pub fn every_query_returns_what_happened() -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(play())
}

async fn play() -> Result<(), Failed> {
    let folder = temporary_folder("demo");
    let [port, prometheus] = free_ports();
    let flags = ["demo", "--output=log", "--seed=7", "--rate=2", &format!("--metrics={port}")];
    let environment = [("TMPDIR", folder.display().to_string())];
    let mut demo = Process::start(
        "demo",
        Path::new(env!("CARGO_BIN_EXE_mooring-demo")),
        &flags.map(str::to_owned),
        &environment,
    );
    let command = demo.log().find(|line| Some(line.trim().strip_prefix("prometheus ")?.to_owned())).await;
    let command = command.ok_or_else(|| demo.log().tail(40))?;
    let address = format!("127.0.0.1:{prometheus}");
    let flags: Vec<String> =
        command.split_whitespace().map(|flag| flag.replace("127.0.0.1:9090", &address)).collect();
    let settings = flags.iter().find_map(|flag| flag.strip_prefix("--config.file=")).unwrap();
    let others = fs::read_to_string(settings)? + &others(port, prometheus);
    fs::write(settings, others)?;
    let program = Path::new("prometheus");
    let server = Process::start("prometheus", program, &flags, &[]);
    let run = Run { api: Api::at(&address), began: now(), deadline: Instant::now() + PATIENCE };
    let checked = run.check().await;
    if checked.is_err() {
        eprintln!("--- demo\n{}\n--- prometheus\n{}", demo.log().tail(20), server.log().tail(20));
    }
    checked?;
    if let Ok(file) = std::env::var("MOORING_PREVIEW") {
        run.draw(Path::new(&file)).await?;
    }
    drop(server);
    assert_eq!(demo.terminate().await.code(), Some(0));
    Ok(())
}

/// What a Prometheus watches besides: mooring in another cluster, which is the same one again, and a program that is not mooring.
fn others(port: u16, prometheus: u16) -> String {
    format!(
        "- job_name: another cluster
  scheme: https
  authorization: {{credentials_file: token}}
  tls_config: {{insecure_skip_verify: true}}
  relabel_configs: [{{target_label: job, replacement: mooring}}]
  static_configs:
  - {{targets: ['127.0.0.1:{port}'], labels: {{cluster: other, namespace: mooring-system}}}}
- job_name: stranger
  static_configs:
  - {{targets: ['127.0.0.1:{prometheus}'], labels: {{cluster: demo, namespace: monitoring}}}}
"
    )
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// A Prometheus at work.
struct Run {
    api: Api,
    /// Seconds since 1970.
    began: f64,
    deadline: Instant,
}

impl Run {
    async fn check(&self) -> Result<(), Failed> {
        while !self.api.is_ready().await {
            self.pause("Prometheus is ready").await?;
        }
        for happened in HAPPENED {
            while self.api.value(happened).await.is_none_or(|value| value <= 0.0) {
                self.pause(happened).await?;
            }
        }
        self.names_exist().await?;
        self.panels_are_of_one_mooring().await?;
        self.panels_show_something().await?;
        self.rules_work().await?;
        for query in MIXIN {
            while self.series(query).await?.is_empty() {
                self.pause(&format!("there is something of {query}")).await?;
            }
        }
        Ok(())
    }

    /// Waits for the next look, unless it has been long enough.
    async fn pause(&self, wanted: &str) -> Result<(), Failed> {
        if Instant::now() > self.deadline {
            return Err(format!("waited {} s in vain until {wanted}", PATIENCE.as_secs()).into());
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    /// What a query returned since the beginning, with the variables as the dashboard opens with.
    async fn series(&self, query: &str) -> Result<Vec<Series>, Failed> {
        self.series_from(query, self.began, now()).await
    }

    async fn series_from(&self, query: &str, from: f64, to: f64) -> Result<Vec<Series>, Failed> {
        let query = substitute(query, to - from);
        let series = self.api.range(&query, from, to, STEP).await;
        series.map_err(|error| format!("{query}\n{error}").into())
    }

    /// No query asks for what no exporter shows.
    async fn names_exist(&self) -> Result<(), Failed> {
        let panels = panels::all();
        let panels = panels.iter().flat_map(Panel::targets).map(|(query, _)| query);
        let rules = rules::all().into_iter().map(|rule| rule["expr"].as_str().unwrap().to_owned());
        let queries: Vec<String> = panels.chain(rules).collect();
        loop {
            let known = self.api.data("/api/v1/label/__name__/values").await;
            let known: BTreeSet<&str> = known.as_array().unwrap().iter().filter_map(Value::as_str).collect();
            let asked = queries.iter().flat_map(|query| panels::metrics(query));
            let unknown: BTreeSet<&str> =
                asked.filter(|name| !is_excused(name) && !known.contains(name)).collect();
            if unknown.is_empty() {
                return Ok(());
            }
            self.pause(&format!("somebody shows {unknown:#?}")).await?;
        }
    }

    /// As they open, dashboards ask for mooring alone, and for that of one cluster.
    async fn panels_are_of_one_mooring(&self) -> Result<(), Failed> {
        for seen in [r#"sum(up{job="stranger"})"#, r#"sum(up{cluster="other", job="mooring"})"#] {
            while self.api.value(seen).await.is_none_or(|value| value < 1.0) {
                self.pause(seen).await?;
            }
        }
        for (dashboard, json) in panels::dashboards() {
            let variables = json["templating"]["list"].as_array().unwrap();
            let variable = |name: &str| variables.iter().find(|variable| variable["name"] == name).unwrap();
            assert_eq!(variable("cluster")["includeAll"], false, "{dashboard}");
            assert_eq!(variable("job")["allValue"], Value::Null, "{dashboard}");
            let query = variable("job")["query"]["query"].as_str().unwrap();
            let of = query.trim_start_matches("label_values(").trim_end_matches(", job)");
            let series = self.series(&format!("count by (job) ({of})")).await?;
            let jobs: Vec<_> = series.iter().filter_map(|series| series.labels["job"].as_str()).collect();
            assert_eq!(jobs, [JOB], "{dashboard}");
        }
        let panels = panels::all();
        let replicas = panels.iter().find(|panel| panel.title() == "Replicas up").unwrap();
        let (query, _) = replicas.targets().remove(0);
        assert_eq!(self.api.value(&substitute(&query, 60.0)).await, Some(1.0), "{query}");
        Ok(())
    }

    /// No panel is empty, and each label that names a series is one of its labels.
    async fn panels_show_something(&self) -> Result<(), Failed> {
        let mut targets: Vec<(String, String, String)> = Vec::new();
        for panel in panels::all() {
            let place = format!("{} / {}", panel.dashboard, panel.title());
            targets.extend(panel.targets().into_iter().map(|(query, legend)| (place.clone(), query, legend)));
        }
        for (dashboard, json) in panels::dashboards() {
            for variable in json["templating"]["list"].as_array().unwrap() {
                let Some(values) = variable["query"]["query"].as_str() else { continue };
                let (selector, label) = values
                    .trim_start_matches("label_values(")
                    .trim_end_matches(')')
                    .rsplit_once(", ")
                    .unwrap();
                let place = format!("{dashboard} / variable {}", variable["name"]);
                targets.push((place, format!("count by ({label}) ({selector})"), format!("{{{{{label}}}}}")));
            }
            for annotation in json["annotations"]["list"].as_array().unwrap() {
                self.series(annotation["expr"].as_str().unwrap()).await?;
            }
        }
        loop {
            let mut empty = Vec::new();
            for target in targets {
                let (place, query, legend) = &target;
                let series = self.series(query).await?;
                let names_are_labels = |series: &Series| {
                    let mut names = legend.split("{{").skip(1).filter_map(|part| part.split("}}").next());
                    names.all(|name| series.labels.contains_key(name))
                };
                if !series.iter().any(names_are_labels) {
                    let seen =
                        series.first().map_or("nothing".to_owned(), |series| format!("{:?}", series.labels));
                    empty.push((format!("{place}: {legend}: {seen}: {query}"), target));
                }
            }
            if empty.is_empty() {
                return Ok(());
            }
            let (said, left): (Vec<_>, Vec<_>) = empty.into_iter().unzip();
            self.pause(&format!("these show something:\n{}", said.join("\n"))).await?;
            targets = left;
        }
    }

    /// Each rule is evaluated without an error, what is recorded is there, and the alerts are those that the script
    /// deserves.
    async fn rules_work(&self) -> Result<(), Failed> {
        for slo in ["attach", "bind", "detach", "api-writes"] {
            let recorded = format!(r#"mooring_slo:errors:ratio_rate30m{{slo="{slo}"}}"#);
            while self.api.value(&recorded).await.is_none() {
                self.pause(&format!("{recorded} is recorded")).await?;
            }
        }
        let fired = |alert: &str| {
            format!(r#"max_over_time(ALERTS{{alertname="{alert}", alertstate="firing"}}[10m])"#)
        };
        let alert = "MooringForceDetached";
        while self.api.value(&fired(alert)).await.is_none() {
            self.pause(&format!("{alert} fires")).await?;
        }
        let woken = r#"max_over_time(ALERTS{severity="critical", alertstate="firing"}[10m])"#;
        assert_eq!(
            self.api.value(woken).await,
            None,
            "somebody is woken: {:?}",
            self.api.data("/api/v1/alerts").await
        );
        let mut evaluated = 0;
        while evaluated < rules::all().len() {
            evaluated = 0;
            for group in self.api.data("/api/v1/rules").await["groups"].as_array().unwrap() {
                for rule in group["rules"].as_array().unwrap() {
                    assert_ne!(rule["health"], "err", "{rule}");
                    evaluated += usize::from(rule["health"] == "ok");
                    let text = rule["alerts"].to_string();
                    assert!(!text.contains("error expanding") && !text.contains("<no value>"), "{text}");
                }
            }
            if evaluated < rules::all().len() {
                self.pause("every rule has been evaluated").await?;
            }
        }
        Ok(())
    }

    /// Lets it go on until there is enough to see, and draws the overview.
    async fn draw(&self, file: &Path) -> Result<(), Failed> {
        let seconds = std::env::var("MOORING_PREVIEW_SECONDS").ok().and_then(|text| text.parse().ok());
        let end = self.began + seconds.unwrap_or(DRAWN + 60.0);
        while now() < end {
            tokio::time::sleep(PAUSE).await;
        }
        let (_, dashboard) =
            panels::dashboards().into_iter().find(|(name, _)| name == "mooring-overview.json").unwrap();
        let (from, to) = (now() - DRAWN, now());
        let mut drawn = Vec::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            let panel = Panel { dashboard: String::new(), json: panel.clone() };
            let mut data = Vec::new();
            for (query, legend) in panel.targets() {
                let series = self.series_from(&query, from, to).await?;
                data.extend(series.into_iter().map(|series| (name_of(&legend, &series), series.points)));
            }
            drawn.push((panel, data));
        }
        fs::write(file, picture::draw("mooring / Overview", &drawn, from, to))?;
        eprintln!("{} is drawn", file.display());
        Ok(())
    }
}

fn is_excused(metric: &str) -> bool {
    NOT_IN_THE_DEMO.iter().any(|(name, _)| *name == metric)
}

/// The variables as the dashboard opens with: the first cluster, the jobs listed, and everything of them. The rate interval is what Grafana makes of a scrape every two
/// seconds in a window of some minutes, but not below what a burst of the script needs to be seen.
fn substitute(query: &str, range: f64) -> String {
    let mut query =
        query.replace("$__rate_interval", "20s").replace("$__range", &format!("{:.0}s", range.max(10.0)));
    for (name, value) in [("cluster", CLUSTER), ("job", JOB), ("instance", ".+")] {
        query = query.replace(&format!("${name}"), value);
    }
    for name in ["namespace", "driver", "node"] {
        query = query.replace(&format!("${name}"), ".*");
    }
    assert!(!query.contains('$'), "{query}");
    query
}

/// What Grafana would call a series.
fn name_of(legend: &str, series: &Series) -> String {
    let mut name = legend.to_owned();
    for (label, value) in &series.labels {
        name = name.replace(&format!("{{{{{label}}}}}"), value.as_str().unwrap_or_default());
    }
    name
}
