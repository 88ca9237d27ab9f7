//! What Prometheus would have: the metrics of both replicas each minute; and promtool, which says what fires.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    process::Command,
};

use libtest_mimic::Failed;
use test_support::process::temporary_folder;

use crate::scene::{self, Certificate};

const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/dashboards/alerts/rules.yaml");

/// Series, by their names with labels.
pub struct Samples {
    names: BTreeSet<String>,
    series: BTreeMap<String, Vec<Option<f64>>>,
    /// Seconds since 1970 of the first sample; promtool takes that for 1970.
    epoch: f64,
    minutes: usize,
}

impl Samples {
    /// None yet. Only what the rules ask for is kept.
    pub fn since(epoch: f64) -> Self {
        let rules = fs::read_to_string(RULES).unwrap();
        let names = scene::names(&rules).into_iter().map(str::to_owned).collect();
        Self { names, series: BTreeMap::new(), epoch, minutes: 0 }
    }

    /// How many minutes were looked at.
    pub fn minutes(&self) -> usize {
        self.minutes
    }

    /// A minute begins.
    pub fn begin(&mut self) {
        self.minutes += 1;
    }

    /// What a replica shows that was started at this second; nothing if it does not run.
    pub fn take(&mut self, instance: &str, page: Option<&str>, started: f64) {
        let labels = format!("cluster=\"c\",instance=\"{instance}\",job=\"mooring\"");
        let is_up = if page.is_some() { 1.0 } else { 0.0 };
        self.add(format!("up{{{labels},metrics_path=\"/metrics\"}}"), is_up);
        let Some(page) = page else { return };
        // The page has that of the test.
        self.add(format!("process_start_time_seconds{{{labels}}}"), started);
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let (name, own) = series.split_once('{').unwrap_or((series, "}"));
            if name == "process_start_time_seconds" || !self.names.contains(name) {
                continue;
            }
            let mut value: f64 = value.parse().unwrap();
            if name.ends_with("_timestamp_seconds") {
                value -= self.epoch;
            }
            let comma = if own == "}" { "" } else { "," };
            self.add(format!("{name}{{{labels}{comma}{own}"), value);
        }
    }

    /// What the API server shows of policies: a denial each minute, if there are any.
    pub fn denied(&mut self, are_denied: bool) {
        #[expect(clippy::cast_precision_loss, reason = "minutes")]
        let count = self.minutes as f64;
        if are_denied {
            let policy = "policy=\"mooring-fence-attachdetach-controller\",enforcement_action=\"deny\"";
            let name = "apiserver_validating_admission_policy_check_total";
            self.add(format!("{name}{{cluster=\"c\",job=\"apiserver\",{policy}}}"), count);
        }
    }

    /// What the kubelet and kube-state-metrics show of a replica's memory.
    pub fn memory(&mut self, pod: &str, percent: u32) {
        let labels =
            format!("cluster=\"c\",namespace=\"mooring-system\",pod=\"{pod}\",container=\"mooring\"");
        self.add(format!("container_memory_working_set_bytes{{{labels}}}"), f64::from(percent));
        self.add(format!("kube_pod_container_resource_limits{{{labels},resource=\"memory\"}}"), 100.0);
    }

    /// The certificates of a replica, and when each expires in seconds of the scene.
    pub fn certificates(&mut self, instance: &str, expiries: &BTreeMap<Certificate, f64>) {
        for (certificate, expires) in expiries {
            let name = match certificate {
                Certificate::Serving => "mooring_serving_certificate_expiry_timestamp_seconds",
                Certificate::Client => "mooring_client_certificate_expiry_timestamp_seconds",
            };
            self.add(format!("{name}{{cluster=\"c\",instance=\"{instance}\",job=\"mooring\"}}"), *expires);
        }
    }

    /// A minute ends: what was not shown is not there.
    pub fn end(&mut self) {
        for values in self.series.values_mut() {
            values.resize(self.minutes, None);
        }
    }

    fn add(&mut self, series: String, value: f64) {
        let values = self.series.entry(series).or_default();
        values.resize(self.minutes - 1, None);
        values.push(value.is_finite().then_some(value));
    }

    /// What an alert asks for and is not 0, for a report.
    pub fn shown(&self, alert: &str) -> String {
        let rules: serde_json::Value = serde_saphyr::from_str(&fs::read_to_string(RULES).unwrap()).unwrap();
        let rules =
            rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
        let asked: Vec<&str> =
            rules.filter(|rule| rule["alert"] == alert).filter_map(|rule| rule["expr"].as_str()).collect();
        let asked: BTreeSet<&str> = asked.into_iter().flat_map(scene::names).collect();
        let mut shown = String::new();
        for (series, values) in &self.series {
            let is_asked = series.split('{').next().is_some_and(|name| asked.contains(name));
            if is_asked && values.iter().any(|value| value.is_some_and(|value| value != 0.0)) {
                let _ = writeln!(shown, "{series} {}", printed(values));
            }
        }
        shown
    }

    /// The alerts that fire at these minutes.
    pub fn firing(&self, minutes: &[usize]) -> Result<Vec<BTreeSet<String>>, Failed> {
        minutes.iter().map(|minute| self.ask("ALERTS{alertstate=\"firing\"}", *minute)).collect()
    }

    /// The alerts that have fired at any minute.
    pub fn fired(&self) -> Result<BTreeSet<String>, Failed> {
        let ever = format!("count_over_time(ALERTS{{alertstate=\"firing\"}}[{}m])", self.minutes);
        self.ask(&ever, self.minutes - 1)
    }

    /// The alerts of which a query returns something.
    fn ask(&self, query: &str, minute: usize) -> Result<BTreeSet<String>, Failed> {
        let mut test = format!(
            "rule_files: ['{RULES}']\nevaluation_interval: 1m\ntests:\n- interval: 1m\n  input_series:\n"
        );
        for (series, values) in &self.series {
            let _ = writeln!(test, "  - series: '{series}'\n    values: '{}'", printed(values));
        }
        // promtool tells nothing but where it was expected otherwise.
        let _ = writeln!(
            test,
            "  promql_expr_test:\n  - expr: 'count by (alertname) ({query}) or vector(-1)'\n    eval_time: {minute}m\n    \
             exp_samples: []"
        );
        let path = temporary_folder("promtool").join("test.yaml");
        fs::write(&path, test)?;
        let output = Command::new("promtool").args(["test", "rules"]).arg(&path).output()?;
        let said =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let Some((_, got)) = said.split_once("got:") else { return Err(said.into()) };
        let alerts = crate::page::alerts().into_iter();
        Ok(alerts.filter(|alert| got.contains(&format!("alertname=\"{alert}\""))).collect())
    }
}

/// In promtool's notation.
fn printed(values: &[Option<f64>]) -> String {
    let values: Vec<String> =
        values.iter().map(|value| value.map_or_else(|| "_".to_owned(), |value| value.to_string())).collect();
    values.join(" ")
}
