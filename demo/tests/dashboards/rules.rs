//! The rules: promtool finds them valid and plays each alert (`dashboards/alerts/tests.libsonnet`) and each window of the
//! burn-rate alerts (`windows.libsonnet` beside it), and each alert has a runbook.

use std::{collections::BTreeSet, fs, process::Command};

use libtest_mimic::Failed;
use serde_json::Value;

use crate::{panels, repository, run};

/// The rules of the plain file, without their groups.
pub fn all() -> Vec<Value> {
    let text = fs::read_to_string(repository("dashboards/alerts/rules.yaml")).unwrap();
    let file: Value = serde_saphyr::from_str(&text).unwrap();
    let groups = file["groups"].as_array().unwrap();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).cloned().collect()
}

pub fn are_valid() -> Result<(), Failed> {
    let said = run(Command::new("promtool")
        .args(["check", "rules"])
        .arg(repository("dashboards/alerts/rules.yaml")))?;
    assert!(said.contains(&format!("SUCCESS: {} rules found", all().len())), "{said}");
    Ok(())
}

pub fn fire_and_resolve() -> Result<(), Failed> {
    let played = play("tests.yaml")?;
    for alert in names() {
        assert!(played.contains(&alert), "{alert} is not played");
        let is_near = |name: &String| {
            let near = name.strip_prefix("not ").and_then(|rest| rest.split_once(": "));
            near.is_some_and(|(near, _)| near.split(" nor ").any(|other| other == alert))
        };
        assert!(played.iter().any(is_near), "no ordinary event in which {alert} might fire is played");
    }
    Ok(())
}

/// A burn-rate alert's windows: each of them for one service level, and the first of them for each.
pub fn have_their_windows() -> Result<(), Failed> {
    let played = play("windows.yaml")?;
    for rule in all().iter().filter(|rule| !rule["labels"]["long"].is_null()) {
        let (alert, long) = (rule["alert"].as_str().unwrap(), rule["labels"]["long"].as_str().unwrap());
        let is_played = played.contains(&format!("{alert} over {long}"));
        assert!(is_played || long != "6h", "{alert} is not played over {long}");
        let is_played_of_one = played.iter().any(|name| name.ends_with(&format!(" over {long}")));
        assert!(is_played_of_one, "no alert is played over {long}");
    }
    Ok(())
}

/// Has promtool play a file of `dashboards/generate --tests`, and returns the names of its tests.
fn play(file: &str) -> Result<Vec<String>, Failed> {
    let folder = tempfile::tempdir()?;
    run(Command::new(repository("dashboards/generate")).arg("--tests").arg(folder.path()))?;
    let path = folder.path().join(file);
    run(Command::new("promtool").args(["test", "rules"]).arg(&path))?;
    let file: Value = serde_saphyr::from_str(&fs::read_to_string(path)?)?;
    let tests = file["tests"].as_array().unwrap();
    Ok(tests.iter().filter_map(|test| test["name"].as_str().map(str::to_owned)).collect())
}

fn names() -> BTreeSet<String> {
    all().iter().filter_map(|rule| rule["alert"].as_str().map(str::to_owned)).collect()
}

pub fn have_runbooks() -> Result<(), Failed> {
    let mut pages = BTreeSet::new();
    for entry in fs::read_dir(repository("docs/runbooks"))? {
        let name = entry?.file_name().into_string().unwrap();
        let Some(alert) = name.strip_suffix(".md").filter(|name| *name != "README") else { continue };
        let text = fs::read_to_string(repository("docs/runbooks").join(&name))?;
        let headings: Vec<_> = text.lines().filter(|line| line.starts_with('#')).collect();
        let title = format!("# {alert}");
        let expected = [
            title.as_str(),
            "## What it means",
            "## How to see it",
            "## What to do",
            "## What never to do",
            "## How to see that it is over",
        ];
        assert_eq!(headings, expected, "{name}");
        // What works whether or not the daemon does, and with the reader's own rights, comes first.
        let first = text.lines().find_map(|line| line.trim_start().strip_prefix("$ ")).unwrap_or_default();
        assert!(
            first.starts_with("mooring doctor") || first.starts_with("mooring explain"),
            "{name}: {first}"
        );
        pages.insert(alert.to_owned());
    }
    assert_eq!(pages, names());
    for rule in all().iter().filter(|rule| !rule["alert"].is_null()) {
        let name = rule["alert"].as_str().unwrap();
        let page = rule["annotations"]["runbook_url"].as_str().unwrap();
        assert!(page.ends_with(&format!("docs/runbooks/{name}.md")), "{name}: {page}");
        for annotation in ["summary", "description"] {
            assert!(
                rule["annotations"][annotation].as_str().is_some_and(|text| text.ends_with('.')),
                "{name}"
            );
        }
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning", "info"].contains(&severity), "{name}: {severity}");
    }
    Ok(())
}

/// Dashboards, rows, panels and metrics that a runbook names are there.
pub fn have_runbooks_that_name_what_is_there() -> Result<(), Failed> {
    // A page of Prometheus.
    let mut titles = BTreeSet::from(["Targets".to_owned()]);
    for (_, dashboard) in panels::dashboards() {
        let of = |json: &Value| json["title"].as_str().unwrap_or_default().replace("mooring / ", "");
        titles.insert(of(&dashboard));
        titles.extend(dashboard["panels"].as_array().unwrap().iter().map(of));
    }
    let recorded =
        all().iter().filter_map(|rule| rule["record"].as_str().map(str::to_owned)).collect::<String>();
    let known = fs::read_to_string(repository("docs/metrics.md"))? + &recorded;
    let (mut named, mut wrong) = (0, Vec::new());
    for alert in names() {
        let text = fs::read_to_string(repository(&format!("docs/runbooks/{alert}.md")))?.replace("**", "");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        // What begins with a capital between asterisks is a title; the others are stressed.
        let named_so = text.split('*').filter(|part| part.chars().next().is_some_and(char::is_uppercase));
        let named_so: Vec<&str> = named_so.filter(|part| text.contains(&format!("*{part}*"))).collect();
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let metrics: BTreeSet<&str> = words.filter(|word| word.starts_with("mooring_")).collect();
        named += named_so.len() + metrics.len();
        let unknown = named_so.iter().filter(|title| !titles.contains(**title));
        let unknown = unknown.chain(metrics.iter().filter(|metric| !known.contains(**metric)));
        wrong.extend(unknown.map(|name| format!("{alert}: {name}")));
    }
    assert!(named > 50, "{named}");
    assert!(wrong.is_empty(), "not there: {wrong:#?}");
    Ok(())
}
