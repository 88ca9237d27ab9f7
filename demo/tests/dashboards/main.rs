//! Dashboards, rules and runbooks: that what is committed is what its sources say ([`sources`]), that queries and units fit
//! each other ([`panels`]), that Grafana's linter has nothing to say ([`linter`]), that the rules do what they should ([`rules`]),
//! and that every query returns what really happened on a real Prometheus that scrapes the daemon ([`live`]), which is also
//! where the picture in the README comes from ([`picture`]).
//!
//! What needs Prometheus or Go is listed as not run where they are not installed, and fails with
//! `MOORING_REQUIRE_PROMETHEUS=1`.

// A failed expectation ends the test, which is what a failed expectation is for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// What it says goes to the person who runs the tests.
#![allow(clippy::print_stderr)]

mod linter;
mod live;
mod panels;
mod picture;
mod prometheus;
mod rules;
mod sources;

use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Failed, Trial};

/// A folder or file of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Runs a program to its end. What it says is returned, or is the failure.
fn run(command: &mut std::process::Command) -> Result<String, Failed> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        Ok(said)
    } else {
        Err(format!("{command:?}: {}\n{said}", output.status).into())
    }
}

/// Whether a program is installed.
fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

fn main() {
    let arguments = Arguments::from_args();
    let is_required = std::env::var("MOORING_REQUIRE_PROMETHEUS").is_ok_and(|value| value == "1");
    let needs = |program: &'static str, cure: &'static str, name: &str, test: fn() -> Result<(), Failed>| {
        if is_installed(program) {
            return Trial::test(name, test);
        }
        if !is_required && !arguments.list {
            eprintln!("{name} is not run: there is no {program} on PATH; {cure}");
        }
        let reason = format!("there is no {program} on PATH; {cure}");
        Trial::test(name, move || Err(reason.into())).with_ignored_flag(!is_required)
    };
    let go = |name, test| needs("go", "install Go", name, test);
    let debian = "apt-get install --no-install-recommends prometheus";
    let promtool = |name, test| needs("promtool", debian, name, test);
    // What is played is generated first.
    let played = |name, test| if is_installed("go") { promtool(name, test) } else { go(name, test) };
    let trials = vec![
        go("sources_are_what_is_committed", sources::are_committed),
        go("sources_take_settings", sources::take_settings),
        Trial::test("sources_of_all_dashboards_are_installed", sources::are_installed),
        Trial::test("linter_finds_nothing", linter::finds_nothing),
        Trial::test("panels_have_the_unit_of_what_they_draw", panels::have_the_unit_of_what_they_draw),
        Trial::test("panels_say_what_they_show", panels::say_what_they_show),
        Trial::test("rules_have_runbooks_and_runbooks_have_rules", rules::have_runbooks),
        Trial::test("runbooks_name_what_is_there", rules::have_runbooks_that_name_what_is_there),
        promtool("rules_are_valid", rules::are_valid),
        played("rules_fire_and_resolve", rules::fire_and_resolve),
        played("rules_burn_over_each_window", rules::have_their_windows),
        needs(
            "prometheus",
            debian,
            "live_every_query_returns_what_happened",
            live::every_query_returns_what_happened,
        ),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}
