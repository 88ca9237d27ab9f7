//! The rules: promtool finds them valid and plays each alert (`dashboards/alerts/tests.libsonnet`), and each alert has a
//! runbook.

use std::{collections::BTreeSet, fs, process::Command};

use libtest_mimic::Failed;
use serde_json::Value;

use crate::{repository, run};

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
    run(Command::new("promtool").args(["test", "rules"]).arg(repository("dashboards/alerts/tests.yaml")))?;
    let text = fs::read_to_string(repository("dashboards/alerts/tests.yaml"))?;
    let file: Value = serde_saphyr::from_str(&text)?;
    let played: Vec<_> = file["tests"].as_array().unwrap().iter().map(|test| test["name"].clone()).collect();
    for alert in names() {
        assert!(played.contains(&Value::from(alert.as_str())), "{alert} is not played");
    }
    Ok(())
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
        let expected =
            [title.as_str(), "## What it means", "## How to see it", "## What to do", "## What never to do"];
        assert_eq!(headings, expected, "{name}");
        pages.insert(alert.to_owned());
    }
    assert_eq!(pages, names());
    for rule in all().iter().filter(|rule| !rule["alert"].is_null()) {
        let name = rule["alert"].as_str().unwrap();
        assert_eq!(rule["annotations"]["runbook_url"], format!("docs/runbooks/{name}.md"));
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
