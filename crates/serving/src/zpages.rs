//! `/configz`, `/flagz`, `/statusz` and `/version`, as Kubernetes' components have them.
//!
//! In: the flags with their values, the configuration that came of them, what is running. Out: JSON, and text for people.
//!
//! Upstream: apiserver's pkg/server/flagz and pkg/server/statusz, component-base's configz.

use std::{collections::BTreeMap, fmt::Write, sync::LazyLock};

use http::StatusCode;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::{Answer, Router};

/// What is running.
#[derive(Clone, Copy, Debug)]
pub struct Component {
    /// Its name.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// What it was built from.
    pub commit: &'static str,
    /// Version of the compiler.
    pub rustc: &'static str,
    /// What it was built for, such as `x86_64-unknown-linux-gnu`.
    pub target: &'static str,
}

/// When the process started, once that was asked.
static STARTED: LazyLock<Timestamp> = LazyLock::new(Timestamp::now);

/// Adds the pages, the last of all: one of them lists the others.
pub fn add(router: Router, what: Component, flags: BTreeMap<String, String>, settings: Value) -> Router {
    let started = *STARTED;
    let router = router
        .json("/configz", move || json!({ what.name: settings }))
        .page("/flagz", move || what.flagz(&flags))
        .json("/version", move || what.version());
    let mut paths: Vec<String> = router.paths().chain(["/statusz"]).map(first_segment).collect();
    paths.sort_unstable();
    paths.dedup();
    router.page("/statusz", move || what.statusz(started, Timestamp::now(), &paths))
}

/// `/debug/watches` is below `/debug`.
fn first_segment(path: &str) -> String {
    let name = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    format!("/{name}")
}

impl Component {
    fn header(self, page: &str) -> String {
        format!(
            "\n{} {page}\nWarning: This endpoint is not meant to be machine parseable, has no formatting \
             compatibility guarantees and is for debugging purposes only.\n",
            self.name
        )
    }

    fn flagz(self, flags: &BTreeMap<String, String>) -> Answer {
        let mut text = self.header("flagz");
        for (flag, value) in flags {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{flag}={value}");
        }
        Answer::text(StatusCode::OK, text)
    }

    fn statusz(self, started: Timestamp, now: Timestamp, paths: &[String]) -> Answer {
        let up = now.as_second().saturating_sub(started.as_second()).max(0);
        let text = format!(
            "{}\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nRust version: {}\nBinary version: {}\n\n\
             Paths: {}\n",
            self.header("statusz"),
            Timestamp::from_second(started.as_second()).unwrap_or(started),
            up / 3600,
            up / 60 % 60,
            up % 60,
            self.rustc,
            self.version,
            paths.join(" "),
        );
        Answer::text(StatusCode::OK, text)
    }

    /// With the fields of apimachinery's `version.Info`. What is built from equal sources is equal, so it has no date.
    fn version(self) -> Value {
        let mut numbers = self.version.split('.');
        let platform = self.target.split('-').next().map(|architecture| match architecture {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        });
        json!({
            "major": numbers.next(),
            "minor": numbers.next(),
            "gitVersion": format!("v{}", self.version),
            "gitCommit": self.commit,
            "gitTreeState": "",
            "buildDate": "",
            "goVersion": "",
            "compiler": format!("rustc {}", self.rustc),
            "platform": format!("linux/{}", platform.unwrap_or_default()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOORING: Component = Component {
        name: "mooring",
        version: "1.2.3",
        commit: "0d2f9d0e",
        rustc: "1.95.0",
        target: "x86_64-unknown-linux-gnu",
    };

    #[test]
    fn a_page_says_since_when_the_process_runs() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let paths = ["/metrics".to_owned()];
        let page = |now| MOORING.statusz(at(10), at(now), &paths).body;
        assert!(page(3_735).contains("\nStarted: 1970-01-01T00:00:10Z\nUp: 1 hr 02 min 05 sec\n"));
        assert!(page(9).contains("\nUp: 0 hr 00 min 00 sec\n"), "a clock may be set back");
    }
}
