//! The binder over values: its cases, `tests/cases/binder/*.yaml` (one test each, named by its id;
//! `MOORING_CASES` adds a folder, see `test_support::cases`), every fault in small worlds, random histories, and what it
//! costs.
//!
//! Every case is decided, applied and decided again until nothing is left to write, then compared
//! whole. Then the same objects go through the planner with one fault at each write in turn, and
//! must end as without it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(unreachable_pub)]

mod actors;
mod case;
mod cost;
mod coverage;
mod daemon;
mod exhaustive;
mod explained;
mod form;
mod history;
mod invariants;
mod server;
mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apiserver::events::{Event, EventType};
use case::{Case, File, Sync};
use libtest_mimic::{Arguments, Trial};

use test_support::cases::{self, comparison::Comparison};
use world::{Fault, World, chosen, plain};

fn main() {
    let mut trials: Vec<Trial> = exhaustive::trials().collect();
    trials.push(history::trial());
    trials.push(explained::trial());
    trials.extend(cost::trials());
    let mut coverage = None;
    let mut ids = Vec::new();
    for path in cases::files("binder") {
        if path.file_stem().is_some_and(|stem| stem == "coverage") {
            coverage = Some(cases::read(&path));
            continue;
        }
        let file: File = cases::read(&path);
        if path.starts_with(test_support::repository()) {
            ids.extend(file.cases.iter().map(|case| case.id.clone()));
        }
        let fixtures = Arc::new(file.fixtures);
        for case in file.cases {
            let (fixtures, file) = (Arc::clone(&fixtures), path.clone());
            trials.push(Trial::test(format!("binder {}: {}", case.id, case.title), move || {
                let compared = compare(&case, &fixtures);
                if compared.found().is_empty() {
                    check_faults(&case, &fixtures);
                }
                Ok(compared.settle(&file)?)
            }));
        }
    }
    let coverage = coverage.expect("coverage.yaml is among the cases");
    trials.push(coverage::trial(coverage, ids));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

type Fixtures = BTreeMap<String, Vec<serde_json::Map<String, serde_json::Value>>>;

/// What a case expects beside what is seen without a fault.
fn compare(case: &Case, fixtures: &Fixtures) -> Comparison {
    let mut compared = Comparison::new(&case.id);
    let mut world = World::new(&case.start(fixtures), &[]);
    if let Some(expected) = &case.chooses {
        compared.same(&["chooses"], expected, &chosen(&mut world).as_deref().unwrap_or("none"));
        return compared;
    }
    world.play(case.sync, &case.later());
    let (found, expected) = (world.end(), plain(&case.end(fixtures)));
    for path in found.keys().chain(expected.keys()).collect::<BTreeSet<_>>() {
        let (expected, found) = (expected.get(path), found.get(path));
        // Of some objects a case says only that they are there.
        let is_there = expected.is_some_and(serde_json::Value::is_null) && found.is_some();
        if !is_there {
            compared.same(&["then", path], &expected, &found);
        }
    }
    compare_events(case, &world, &mut compared);
    if let Some(writes) = &case.writes {
        compared.same(&["writes"], writes, &world.written);
    }
    if let Some(measures) = &case.measures {
        compared.same(&["measures"], measures, &world.samples);
    }
    if case.waited.iter().any(|reason| !world.waited.contains(reason)) {
        compared.same(&["waited"], &case.waited, &world.waited);
    }
    if let Some(reason) = &case.reason {
        compared.same(&["reason"], reason, &world.reason);
    }
    compared
}

/// Looking again changes nothing, and with any fault the end is the same.
fn check_faults(case: &Case, fixtures: &Fixtures) {
    if case.chooses.is_some() {
        return;
    }
    let (start, later) = (case.start(fixtures), case.later());
    let expected = plain(&case.end(fixtures));
    let mut world = World::new(&start, &[]);
    world.play(case.sync, &later);
    let writes = world.writes;
    world.run(case.sync);
    assert_eq!(world.writes, writes, "looking again writes again");

    for number in 0..writes {
        let mut crashed = World::new(&start, &[Fault::Crash(number)]);
        crashed.play(case.sync, &later);
        if case.racing {
            continue;
        }
        assert_same(&crashed.end(), &expected, &format!("after a crash at write {number}"));
    }

    let mut whole = World::new(&start, &[]);
    whole.play(Sync::All, &later);
    let (expected, writes) = (whole.end(), whole.writes);
    if !case.unfinished {
        whole.refill();
        whole.run(Sync::All);
        assert_eq!(whole.writes, writes, "S39: another process finds something to write");
    }
    for number in 0..writes {
        for fault in Fault::all(number) {
            let mut faulty = World::new(&start, &[fault]);
            faulty.play(Sync::All, &later);
            // The invariants hold in every world; who wins a race need not be the same.
            if !case.racing {
                assert_same(&faulty.end(), &expected, &format!("with {fault:?}"));
            }
        }
    }
}

fn assert_same(
    found: &BTreeMap<String, serde_json::Value>,
    expected: &BTreeMap<String, serde_json::Value>,
    when: &str,
) {
    for (path, object) in expected {
        if object.is_null() {
            assert!(found.contains_key(path), "{path} {when}");
            continue;
        }
        assert_eq!(
            serde_json::to_string_pretty(&found.get(path)).unwrap(),
            serde_json::to_string_pretty(&Some(object)).unwrap(),
            "{path} {when}"
        );
    }
    assert_eq!(found.len(), expected.len(), "number of objects {when}");
}

fn compare_events(case: &Case, world: &World, compared: &mut Comparison) {
    let begins = |(number, event): (usize, &Event)| {
        let kind = if event.r#type == EventType::Normal { "Normal" } else { "Warning" };
        let line = format!("{kind} {} {}", event.reason, event.message);
        // A case says how a line begins.
        case.events.get(number).filter(|begin| line.starts_with(begin.as_str())).cloned().unwrap_or(line)
    };
    let lines: Vec<String> = world.events.iter().enumerate().map(begins).collect();
    compared.same(&["events"], &case.events, &lines);
}
