//! Two volumes and two claims in every state that matters, with every fault at every write, and in the
//! full run with every second fault after it.
//!
//! A slice of the start states is enough for every day; `MOORING_EXHAUSTIVE=1` takes them all, and for
//! that slice pairs of faults. After each run: the invariants held at every write, nothing is left to write, and the
//! claims are as bound as they can be.

use std::collections::BTreeMap;

use libtest_mimic::{Failed, Trial};
use serde_json::{Map, Value, json};

use crate::{
    case::{Case, Start, Sync},
    invariants::settled,
    world::{Fault, World},
};

/// What a volume may look like. `c-1` and `c-2` are the claims; `old` has gone.
const VOLUMES: [&str; 12] = [
    "{}",
    "{phase: Pending}",
    "{size: 3Gi}",
    "{class: gold}",
    "{phase: Pending, ref: c-1}",
    "{ref: c-1@u-1, marks: [BBC]}",
    "{ref: c-1@u-1, phase: Bound}",
    "{ref: c-2@u-2, phase: Bound, marks: [BBC]}",
    "{ref: c-2@old, phase: Bound, marks: [BBC]}",
    "{ref: c-1@old, phase: Released}",
    "{ref: c-1@old, phase: Released, policy: Delete, csi: d, marks: [DYN=d]}",
    "{ref: c-1@u-1, phase: Bound, policy: Delete, csi: d, marks: [DYN=d]}",
];

/// What a claim may look like. `v-1` and `v-2` are the volumes.
const CLAIMS: [&str; 8] = [
    "{}",
    "{size: 2Gi}",
    "{vol: v-1}",
    "{vol: v-2, marks: [BBC, BC]}",
    "{vol: v-1, phase: Bound, marks: [BBC, BC]}",
    "{vol: v-1, phase: Lost, marks: [BC]}",
    "{class: gold, phase: Bound}",
    "{class: gold}",
];

/// All start states.
const STARTS: usize = VOLUMES.len() * VOLUMES.len() * CLAIMS.len() * CLAIMS.len();

/// Every so many start states are played in the short run, and with pairs of faults in the full one.
const STEP: usize = 61;

/// A trial for each look of the first volume, so that they run side by side.
pub fn trials() -> impl Iterator<Item = Trial> {
    VOLUMES.iter().enumerate().map(|(first, form)| {
        let name = format!(
            "exhaustive: two volumes, {form} and any, and two claims with every fault at every write"
        );
        Trial::test(name, move || explore_all(first))
    })
}

fn explore_all(first: usize) -> Result<(), Failed> {
    let full = std::env::var_os("MOORING_EXHAUSTIVE").is_some();
    let mut states = 0;
    let mut runs = 0;
    for (number, (start, name)) in starts().enumerate() {
        let chosen = number % STEP == 0;
        if number / (STARTS / VOLUMES.len()) != first || !(full || chosen) {
            continue;
        }
        states += 1;
        runs += explore(&start, full && chosen).map_err(|error| Failed::from(format!("{name}: {error}")))?;
    }
    if runs <= states { Err("no fault was met".into()) } else { Ok(()) }
}

fn starts() -> impl Iterator<Item = (Start, String)> {
    let all = VOLUMES.iter().flat_map(|first| VOLUMES.iter().map(move |second| (first, second)));
    all.flat_map(|volumes| {
        let pairs = CLAIMS.iter().flat_map(|first| CLAIMS.iter().map(move |second| (first, second)));
        pairs.map(move |claims| {
            let forms = [
                ("volume", 1, volumes.0),
                ("volume", 2, volumes.1),
                ("claim", 1, claims.0),
                ("claim", 2, claims.1),
            ];
            (start(&forms), format!("{forms:?}"))
        })
    })
}

fn start(forms: &[(&str, usize, &&str)]) -> Start {
    let mut volumes = Vec::new();
    let mut claims = Vec::new();
    for (kind, number, form) in forms {
        let mut form: Map<String, Value> = serde_saphyr::from_str(form).expect("a form");
        if *kind == "volume" {
            form.insert("name".to_owned(), json!(format!("v-{number}")));
            volumes.push(form);
        } else {
            form.insert("name".to_owned(), json!(format!("c-{number}")));
            form.insert("uid".to_owned(), json!(format!("u-{number}")));
            claims.push(form);
        }
    }
    let case = json!({ "id": "", "title": "", "volumes": volumes, "claims": claims });
    let case: Case = serde_json::from_value(case).expect("a case");
    case.start(&BTreeMap::new())
}

/// Plays a start state without a fault, with each, and with each and another; returns how often.
fn explore(start: &Start, pairs: bool) -> Result<usize, String> {
    let mut runs = 1;
    let writes = play(start, &[])?;
    for number in 0..writes {
        for fault in Fault::all(number) {
            runs += 1;
            let writes = play(start, &[fault])?;
            if !pairs {
                continue;
            }
            for later in number + 1..writes {
                for second in Fault::all(later) {
                    runs += 1;
                    play(start, &[fault, second])?;
                }
            }
        }
    }
    Ok(runs)
}

fn play(start: &Start, faults: &[Fault]) -> Result<usize, String> {
    let mut world = World::new(start, faults);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        world.run(Sync::All);
        let writes = world.writes;
        world.refill();
        world.run(Sync::All);
        assert_eq!(world.writes, writes, "S39: another process finds something to write");
        writes
    }));
    let writes = outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        format!("with {faults:?}: {}", text.unwrap_or_else(|| "panicked".to_owned()))
    })?;
    settled(world.server()).map_err(|error| format!("with {faults:?}: {error}"))?;
    Ok(writes)
}
