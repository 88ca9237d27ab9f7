//! Runs `tests/cases/attach_detach/*.yaml`. The first word of a file's name says what its cases are about
//! (`reconciler.yaml`, `reconciler.more.yaml`); their words are explained at the top of the repository's
//! file. `MOORING_CASES` adds a folder of cases (`test_support::cases`).

// A failed expectation ends the test, which is what a failed expectation is for.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, missing_docs)]

mod cost;
mod coverage;
mod desired_state;
mod fair;
mod populator;
mod reconciler;
mod story;
mod volumes;
mod world;

use libtest_mimic::{Arguments, Trial};
use test_support::cases;

fn main() {
    let mut trials = desired_state::properties();
    trials.extend(volumes::properties());
    trials.extend(cost::trials());
    trials.extend(fair::trials());
    let mut coverage = None;
    for path in cases::files("attach_detach") {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let table = name.split('.').next().unwrap_or_default();
        if table == "coverage" {
            coverage = Some(cases::read(&path));
            continue;
        }
        trials.extend(match table {
            "controller" => story::trials("controller", cases::read(&path)),
            "desired_state" => desired_state::trials(cases::read(&path)),
            "in_tree_migration" => volumes::migrations(cases::read(&path)),
            "populator" => populator::trials(cases::read(&path)),
            "reconciler" => reconciler::trials(cases::read(&path)),
            "startup" => story::trials("start-up", cases::read(&path)),
            "volume_names" => volumes::names(cases::read(&path)),
            _ => panic!("{}: no table is called \"{table}\"", path.display()),
        });
    }
    let coverage = coverage::trial(coverage.expect("coverage.yaml"), &trials);
    trials.push(coverage);
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// One trial per case, named after the table and the case.
fn each<C: Send + 'static>(
    table: &'static str,
    cases: Vec<C>,
    name: impl Fn(&C) -> &str,
    run: fn(&C) -> Result<(), libtest_mimic::Failed>,
) -> Vec<Trial> {
    let trial = |case: C| Trial::test(format!("{table}: {}", name(&case)), move || run(&case));
    cases.into_iter().map(trial).collect()
}
