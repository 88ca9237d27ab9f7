//! What is committed is what `dashboards/generate` makes of the Jsonnet, and the ConfigMaps and the demo have every dashboard.

use std::{fs, process::Command};

use libtest_mimic::Failed;

use crate::{panels::dashboards, repository, run};

pub fn are_committed() -> Result<(), Failed> {
    run(Command::new(repository("dashboards/generate")).arg("--check")).map(drop)
}

/// What a user sets is in what is generated: here where the runbooks are read.
pub fn take_settings() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let config = "{ runbookBase: 'https://git.example/mooring/docs/runbooks' }";
    run(Command::new(repository("dashboards/generate"))
        .arg("--into")
        .arg(folder.path())
        .args(["--config", config]))?;
    let rules = fs::read_to_string(folder.path().join("alerts/rules.yaml"))?;
    let pages: Vec<_> = rules.lines().filter(|line| line.contains("runbook_url:")).collect();
    assert!(!pages.is_empty());
    for page in pages {
        assert!(page.contains("\"https://git.example/mooring/docs/runbooks/Mooring"), "{page}");
    }
    Ok(())
}

pub fn are_installed() -> Result<(), Failed> {
    let kustomization = fs::read_to_string(repository("dashboards/grafana/kustomization.yaml"))?;
    let demo = fs::read_to_string(repository("demo/src/scraped.rs"))?;
    for (name, _) in dashboards() {
        assert!(kustomization.contains(&format!("- {name}\n")), "{name} has no ConfigMap");
        assert!(demo.contains(&format!("/dashboards/grafana/{name}\"")), "{name} is not in the demo");
    }
    Ok(())
}
