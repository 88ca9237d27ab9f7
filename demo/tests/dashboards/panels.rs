//! The panels of the committed dashboards, and what can be said of their queries without a Prometheus.

use std::{collections::BTreeSet, fs};

use libtest_mimic::Failed;
use serde_json::Value;

use crate::repository;

/// A panel that draws something.
#[derive(Clone, Debug)]
pub struct Panel {
    pub dashboard: String,
    pub json: Value,
}

impl Panel {
    pub fn title(&self) -> &str {
        self.json["title"].as_str().unwrap_or_default()
    }

    pub fn kind(&self) -> &str {
        self.json["type"].as_str().unwrap_or_default()
    }

    pub fn unit(&self) -> &str {
        self.json["fieldConfig"]["defaults"]["unit"].as_str().unwrap_or_default()
    }

    /// Queries and how their series are called.
    pub fn targets(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let targets = self.json["targets"].as_array().into_iter().flatten();
        targets.map(|target| (text(&target["expr"]), text(&target["legendFormat"]))).collect()
    }
}

/// All dashboards by file name.
pub fn dashboards() -> Vec<(String, Value)> {
    let folder = fs::read_dir(repository("dashboards/grafana")).unwrap();
    let names = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "kustomization.yaml").collect();
    names.sort();
    assert_eq!(names.len(), 5, "{names:?}");
    let read = |name: &String| {
        let text = fs::read_to_string(repository("dashboards/grafana").join(name)).unwrap();
        (name.clone(), serde_json::from_str(&text).unwrap())
    };
    names.iter().map(read).collect()
}

/// The panels of all dashboards, without the headings of rows.
pub fn all() -> Vec<Panel> {
    let of = |(dashboard, json): (String, Value)| {
        let panels = json["panels"].as_array().cloned().unwrap();
        panels.into_iter().map(move |json| Panel { dashboard: dashboard.clone(), json })
    };
    dashboards().into_iter().flat_map(of).filter(|panel| panel.kind() != "row").collect()
}

/// The metrics that a query reads, each with its matchers.
pub fn selectors(query: &str) -> Vec<(&str, &str)> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let mut selectors = Vec::new();
    for (brace, _) in query.match_indices('{') {
        let start = query[..brace].rfind(|letter| !is_name(letter)).map_or(0, |at| at + 1);
        let end = brace + query[brace..].find('}').unwrap_or(query.len() - brace);
        if start < brace {
            selectors.push((&query[start..brace], &query[brace + 1..end]));
        }
    }
    selectors
}

/// Only their names.
pub fn metrics(query: &str) -> Vec<&str> {
    selectors(query).into_iter().map(|(name, _)| name).collect()
}

/// The units that a query's numbers may have, from the names of what it reads and what it does with them.
fn units(query: &str) -> &'static [&'static str] {
    let names = metrics(query);
    let Some(first) = names.first() else { return &[] };
    let base = |name: &str| -> &'static [&'static str] {
        let name =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        match name {
            _ if name.ends_with("_seconds") => &["s"],
            _ if name.ends_with("_bytes") => &["bytes"],
            _ => &["none"],
        }
    };
    let has = |end: &str| names.iter().any(|name| name.ends_with(end));
    let is_ratio = query.contains(" > 0) or vector(0)");
    if is_ratio {
        &["percentunit"]
    } else if query.contains("histogram_quantile(") || has("_sum") && has("_count") {
        base(first)
    } else if query.starts_with("count")
        || query.starts_with("topk")
        || query.contains("changes(")
        || *first == "process_cpu_seconds_total"
    {
        &["none"]
    } else if query.contains("rate(") && first.ends_with("_bytes_sum") {
        &["Bps"]
    } else if query.contains("rate(") && first.starts_with("rest_client_requests") {
        &["reqps"]
    } else if query.contains("rate(") {
        &["ops", "reqps"]
    } else if query.contains("increase(") {
        &["none"]
    } else {
        base(first)
    }
}

pub fn have_the_unit_of_what_they_draw() -> Result<(), Failed> {
    let mut wrong = Vec::new();
    for panel in all() {
        for (query, _) in panel.targets() {
            let expected = units(&query);
            if !expected.contains(&panel.unit()) {
                wrong.push(format!(
                    "{} / {}: {}, not {expected:?}: {query}",
                    panel.dashboard,
                    panel.title(),
                    panel.unit()
                ));
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

/// What the linter does not ask for.
#[allow(clippy::unnecessary_wraps, reason = "it is one of the tests, which may fail")]
pub fn say_what_they_show() -> Result<(), Failed> {
    let mut ids = BTreeSet::new();
    for panel in all() {
        let (title, description) = (panel.title(), panel.json["description"].as_str().unwrap_or_default());
        let place = format!("{} / {title}", panel.dashboard);
        assert!(!title.is_empty() && description.ends_with('.'), "{place}: {description}");
        assert!(
            ids.insert((panel.dashboard.clone(), panel.json["id"].as_u64())),
            "{place}: a second one has its id"
        );
        assert!(!panel.targets().is_empty(), "{place} has no query");
        for (query, _) in panel.targets() {
            assert_eq!(metrics(&query).len(), query.matches('{').count(), "{place}: {query}");
        }
        let place = &panel.json["gridPos"];
        let right = place["x"].as_u64().unwrap() + place["w"].as_u64().unwrap();
        assert!(right <= 24, "{title} ends at column {right}");
    }
    for (name, dashboard) in dashboards() {
        let variables = dashboard["templating"]["list"].as_array().unwrap();
        let names: Vec<_> = variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
        for wanted in ["datasource", "cluster", "namespace", "job", "instance", "driver"] {
            assert!(names.contains(&wanted), "{name} has no variable {wanted}");
        }
        assert_eq!(dashboard["links"].as_array().map(Vec::len), Some(1), "{name} has no links to the others");
    }
    Ok(())
}
