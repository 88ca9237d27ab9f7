//! Names and help texts of the metrics, as Prometheus' own linter sees them.
//!
//! In: `docs/metrics.md`, which is printed from what the daemon registers, so that families are linted that have no
//! series yet. Out: what `promtool check metrics` complains of, compared with `promtool-allowed.txt`: the names that
//! kube-controller-manager gave. Without promtool the test is listed and not run, unless
//! `MOORING_REQUIRE_PROMETHEUS=1` is set.

// A failed expectation ends the test, which is what a failed expectation is for.
#![allow(clippy::unwrap_used, clippy::expect_used)]
// What it says goes to the person who runs the tests.
#![allow(clippy::print_stderr)]

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::Write as _,
    process::{Command, Stdio},
};

use libtest_mimic::{Arguments, Failed, Trial};

const PAGE: &str = include_str!("../../docs/metrics.md");
const ALLOWED: &str = include_str!("promtool-allowed.txt");
const INSTALL: &str = "promtool is missing: apt-get install -y --no-install-recommends prometheus";

fn main() {
    let arguments = Arguments::from_args();
    let is_there =
        Command::new("promtool").arg("--version").output().is_ok_and(|output| output.status.success());
    let is_required = std::env::var("MOORING_REQUIRE_PROMETHEUS").is_ok_and(|value| value == "1");
    let name = "promtool_finds_nothing_but_names_that_are_not_ours";
    let trial = if is_there {
        Trial::test(name, lint)
    } else {
        if !is_required {
            eprintln!("Not run: {INSTALL}");
        }
        Trial::test(name, || Err(INSTALL.into())).with_ignored_flag(!is_required)
    };
    libtest_mimic::run(&arguments, vec![trial]).exit();
}

/// A family of the page.
#[derive(Debug, Default)]
struct Family {
    name: String,
    kind: String,
    help: String,
    labels: Vec<String>,
}

fn families() -> Vec<Family> {
    let sections = PAGE.split("\n### `").skip(1);
    let family = |section: &str| {
        let (name, rest) = section.split_once("`\n\n").expect("a name");
        let mut lines = rest.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let kind = lines.next().and_then(|line| line.split(" · ").next()).expect("a type");
        let help = lines.next().expect("a help text");
        let labels = lines.filter_map(|line| Some(line.strip_prefix("* `")?.split_once('`')?.0.to_owned()));
        Family {
            name: name.to_owned(),
            kind: kind.to_owned(),
            help: help.to_owned(),
            labels: labels.collect(),
        }
    };
    sections.map(family).collect()
}

/// A page as the daemon would show it, with one series of each.
fn exposition(families: &[Family]) -> String {
    let mut text = String::new();
    for Family { name, kind, help, labels } in families {
        writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}").unwrap();
        let labels: Vec<String> = labels.iter().map(|label| format!("{label}=\"a\"")).collect();
        let labels = labels.join(",");
        if kind == "histogram" {
            let comma = if labels.is_empty() { "" } else { "," };
            writeln!(text, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} 1").unwrap();
            writeln!(text, "{name}_sum{{{labels}}} 1\n{name}_count{{{labels}}} 1").unwrap();
        } else {
            writeln!(text, "{name}{{{labels}}} 1").unwrap();
        }
    }
    text
}

fn lint() -> Result<(), Failed> {
    let families = families();
    assert!(families.len() > 80, "{} families", families.len());
    let mut linter = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    linter.stdin.take().expect("its input").write_all(exposition(&families).as_bytes())?;
    let output = linter.wait_with_output()?;
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    let found: BTreeSet<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let allowed: BTreeSet<&str> =
        ALLOWED.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let new: Vec<_> = found.difference(&allowed).collect();
    let gone: Vec<_> = allowed.difference(&found).collect();
    if new.is_empty() && gone.is_empty() {
        return Ok(());
    }
    Err(format!("complaints that are not allowed: {new:#?}\nallowed and not made: {gone:#?}").into())
}
