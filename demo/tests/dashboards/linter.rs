//! The rules of Grafana's dashboard-linter, which is not to be had as a Go module. Each function is one of its rules or two, by
//! its name there; what PromQL can be parsed, the live test shows on a real Prometheus.

use libtest_mimic::Failed;
use serde_json::Value;

use crate::panels::{all, dashboards, selectors};

/// What a file of dashboards breaks, as `file: rule: what`.
type Complaints = Vec<String>;

pub fn finds_nothing() -> Result<(), Failed> {
    let mut complaints = Complaints::new();
    for (file, dashboard) in dashboards() {
        let mut complain = |rule: &str, what: &str| complaints.push(format!("{file}: {rule}: {what}"));
        lint_templates(&dashboard, &mut complain);
        if dashboard["editable"] != Value::Bool(false) {
            complain("uneditable-dashboard", "it can be edited");
        }
    }
    for panel in all() {
        let (file, title) = (panel.dashboard.clone(), panel.title().to_owned());
        let mut complain =
            |rule: &str, what: &str| complaints.push(format!("{file}: {title}: {rule}: {what}"));
        lint_panel(&panel.json, &mut complain);
        for (query, _) in panel.targets() {
            lint_query(&query, &mut complain);
        }
    }
    if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n").into()) }
}

/// template-datasource-rule, template-job-rule, template-instance-rule, template-label-promql-rule,
/// template-on-time-change-reload-rule.
fn lint_templates(dashboard: &Value, complain: &mut impl FnMut(&str, &str)) {
    let variables = dashboard["templating"]["list"].as_array().cloned().unwrap_or_default();
    let sources: Vec<_> = variables.iter().filter(|variable| variable["type"] == "datasource").collect();
    match sources[..] {
        [source]
            if source["name"] == "datasource"
                && source["label"] == "Data source"
                && source["query"] == "prometheus" => {}
        _ => complain("template-datasource-rule", "not one variable `datasource`, labelled `Data source`"),
    }
    // The rule wants `.+` of the job, too. That is every target of Prometheus; without it Grafana asks for the jobs listed.
    for (name, label, all) in [("job", "Job", Value::Null), ("instance", "Instance", Value::from(".+"))] {
        let is_right = |variable: &&Value| {
            variable["name"] == name
                && variable["label"] == label
                && variable["type"] == "query"
                && variable["multi"] == true
                && variable["allValue"] == all
                && variable["datasource"]["uid"] == "$datasource"
        };
        if !variables.iter().any(|variable| is_right(&variable)) {
            complain("template-job-rule, template-instance-rule", name);
        }
    }
    for variable in variables.iter().filter(|variable| variable["type"] == "query") {
        let query = variable["query"]["query"].as_str().unwrap_or_default();
        if !(query.starts_with("label_values(") && query.ends_with(')')) {
            complain("template-label-promql-rule", query);
        }
        if variable["refresh"] != 2 {
            complain("template-on-time-change-reload-rule", query);
        }
    }
}

/// Units that Grafana knows, of which these dashboards make use.
const UNITS: [&str; 7] = ["none", "s", "bytes", "Bps", "ops", "reqps", "percentunit"];

/// panel-datasource-rule, panel-title-description-rule, panel-units-rule, panel-no-targets-rule.
fn lint_panel(panel: &Value, complain: &mut impl FnMut(&str, &str)) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if panel["datasource"]["uid"] != "$datasource" {
        complain("panel-datasource-rule", &text(&panel["datasource"]["uid"]));
    }
    if text(&panel["title"]).is_empty() || text(&panel["description"]).is_empty() {
        complain("panel-title-description-rule", "one of both is missing");
    }
    let unit = text(&panel["fieldConfig"]["defaults"]["unit"]);
    if !UNITS.contains(&unit.as_str()) {
        complain("panel-units-rule", &unit);
    }
    if panel["targets"].as_array().is_none_or(Vec::is_empty) {
        complain("panel-no-targets-rule", "it draws nothing");
    }
}

/// target-job-rule, target-instance-rule, target-rate-interval-rule, target-counter-agg-rule.
fn lint_query(query: &str, complain: &mut impl FnMut(&str, &str)) {
    for (metric, matchers) in selectors(query) {
        for matcher in [r#"job=~"$job""#, r#"instance=~"$instance""#] {
            if !matchers.contains(matcher) {
                complain("target-job-rule, target-instance-rule", query);
            }
        }
        let selector = format!("{metric}{{{matchers}}}");
        let range = format!("{selector}[");
        let in_rate = |call: &str| query.contains(&format!("{call}({range}"));
        if metric.ends_with("_total") && !(in_rate("rate") || in_rate("irate") || in_rate("increase")) {
            complain("target-counter-agg-rule", query);
        }
        if (in_rate("rate") || in_rate("irate")) && !query.contains(&format!("{range}$__rate_interval]")) {
            complain("target-rate-interval-rule", query);
        }
    }
}
