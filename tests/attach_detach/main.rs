//! Runs `tests/cases/attach_detach/*.yaml`. The first word of a file's name says what its cases are about
//! (`controller.yaml`, `controller.held.yaml`); their words are explained at the top of the repository's
//! file. `MOORING_CASES` adds a folder of cases (`test_support::cases`).

// A failed expectation ends the test, which is what a failed expectation is for.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, missing_docs)]

mod cost;
mod coverage;
mod desired_state;
mod fair;
mod populator;
mod said;
mod story;
mod volumes;
mod world;

use std::path::Path;

use libtest_mimic::{Arguments, Failed, Trial};
use serde::de::DeserializeOwned;
use test_support::cases::{self, comparison::Comparison};

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
            "controller" => story::trials("controller", &path),
            "desired_state" => desired_state::trials(&path),
            "in_tree_migration" => volumes::migrations(&path),
            "populator" => populator::trials(&path),
            "startup" => story::trials("start-up", &path),
            "volume_names" => volumes::names(&path),
            _ => panic!("{}: no table is called \"{table}\"", path.display()),
        });
    }
    let coverage = coverage::trial(coverage.expect("coverage.yaml"), &trials);
    trials.push(coverage);
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// One trial per case of a file, named after the table and the case. It fails with what differs from what the case expects.
fn each<C: DeserializeOwned + Send + 'static>(
    table: &'static str,
    file: &Path,
    name: impl Fn(&C) -> &str,
    run: impl Fn(&C, &mut Comparison) -> Result<(), Failed> + Copy + Send + 'static,
) -> Vec<Trial> {
    let trial = |case: C| {
        let (file, title) = (file.to_owned(), format!("{table}: {}", name(&case)));
        let mut compared = Comparison::new(name(&case));
        Trial::test(title, move || {
            let outcome = run(&case, &mut compared);
            match (outcome, compared.settle(&file)) {
                (Ok(()), settled) => Ok(settled?),
                (Err(error), Ok(())) => Err(error),
                (Err(error), Err(differs)) => {
                    Err(format!("{}\n{differs}", error.message().unwrap_or_default()).into())
                }
            }
        })
    };
    cases::read::<Vec<C>>(file).into_iter().map(trial).collect()
}

/// A run of a case that cannot fail but by what it compares.
fn always<C>(run: fn(&C, &mut Comparison)) -> impl Fn(&C, &mut Comparison) -> Result<(), Failed> + Copy {
    move |case, compared| {
        run(case, compared);
        Ok(())
    }
}
