//! The binder over values: its cases, `tests/cases/binder/*.yaml` (one test each, named by its id;
//! `MOORING_CASES` adds a folder, see `test_support::cases`), every fault in small worlds, random
//! histories, and what it costs.
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

use std::{collections::BTreeMap, sync::Arc};

use case::{Case, File, Sync};
use libtest_mimic::{Arguments, Trial};
use mooring::kube_api::events::EventType;
use test_support::cases;
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
            let fixtures = Arc::clone(&fixtures);
            trials.push(Trial::test(format!("binder {}: {}", case.id, case.title), move || {
                check(&case, &fixtures);
                Ok(())
            }));
        }
    }
    let coverage = coverage.expect("coverage.yaml is among the cases");
    trials.push(coverage::trial(coverage, ids));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

type Fixtures = BTreeMap<String, Vec<serde_json::Map<String, serde_json::Value>>>;

fn check(case: &Case, fixtures: &Fixtures) {
    let start = case.start(fixtures);
    if let Some(expected) = &case.chooses {
        let chosen = chosen(&mut World::new(&start, &[]));
        assert_eq!(chosen.as_deref().unwrap_or("none"), expected, "chosen volume");
        return;
    }
    let later = case.later();
    let expected = plain(&case.end(fixtures));
    let mut world = World::new(&start, &[]);
    world.play(case.sync, &later);
    assert_same(&world.end(), &expected, "at the end");
    check_events(case, &world);
    if let Some(writes) = &case.writes {
        assert_eq!(world.written, *writes, "writes");
    }
    if let Some(measures) = &case.measures {
        assert_eq!(world.samples, *measures, "measures");
    }
    for reason in &case.waited {
        assert!(world.waited.contains(reason.as_str()), "waited: {:?}, expected {reason}", world.waited);
    }
    if let Some(reason) = &case.reason {
        assert_eq!(world.reason, *reason, "reason");
    }
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

/// Reason of an event that almost every claim without a volume has besides upstream's.
const NEAREST: &str = "NearestVolume";

fn check_events(case: &Case, world: &World) {
    let lines: Vec<String> = world
        .events
        .iter()
        .filter(|event| event.reason != NEAREST)
        .map(|event| {
            let kind = if event.r#type == EventType::Normal { "Normal" } else { "Warning" };
            format!("{kind} {} {}", event.reason, event.message)
        })
        .collect();
    let matching = lines.len() == case.events.len()
        && lines.iter().zip(&case.events).all(|(line, expected)| line.starts_with(expected.as_str()));
    assert!(matching, "events {lines:#?}, expected {:#?}", case.events);
    if let Some(expected) = &case.nearest {
        let nearest = world.events.iter().rfind(|event| event.reason == NEAREST);
        assert_eq!(nearest.map_or("", |event| &event.message), expected, "the nearest volume");
    }
}
