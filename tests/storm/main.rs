//! The storm: a small world in which people, machines, the attacher, the API server and the daemon's own deaths do what a
//! seed says, on the embedded server in paused time; then calm. Judges that ask neither the daemon nor its tables say what
//! must not have happened (S43–S48, and today's promises by who wrote).
//!
//! `MOORING_STORM=1-60` plays other seeds, `MOORING_SEED=7` one, shrunk if it fails. `MOORING_TRACE=/tmp` leaves all that
//! happened in `/tmp/seed-7.txt`.

// A failed expectation ends the test, which is what a failed expectation is for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// What it says goes to the person who runs the tests.
#![allow(clippy::print_stderr, clippy::print_stdout)]

mod acts;
mod hands;
#[path = "../e2e/in_process.rs"]
mod in_process;
mod judges;
mod play;
mod shrink;
mod trace;
mod world;
mod wrongdoers;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use acts::Script;
use judges::Fault;
use libtest_mimic::{Arguments, Failed, Trial};

/// Seeds that are still convicted, and of which rules.
const KNOWN: &str = include_str!("known.yaml");

fn main() {
    let arguments = Arguments::from_args();
    let known: BTreeMap<u64, BTreeSet<String>> = serde_saphyr::from_str(KNOWN).unwrap();
    let mut trials = wrongdoers::trials();
    for seed in seeds() {
        let expected = known.get(&seed).cloned().unwrap_or_default();
        trials.push(Trial::test(format!("seed_{seed}"), move || storm(seed, &expected)));
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn seeds() -> Vec<u64> {
    let asked = std::env::var("MOORING_SEED").or_else(|_| std::env::var("MOORING_STORM"));
    let range = asked.unwrap_or_else(|_| "1-60".to_owned());
    let (first, last) = range.split_once('-').unwrap_or((&range, &range));
    (first.parse().unwrap()..=last.parse().unwrap()).collect()
}

/// Rules of what is mounted, owned and promised: one conviction is enough.
fn is_of_goods(rule: &str) -> bool {
    ["disk", "owner", "promise"].iter().any(|judge| rule.starts_with(judge))
}

/// How often a listed seed is played at most.
const PLAYS: usize = 3;

/// A seed is convicted of nothing about disks, owners and promises that is not listed, and of something that is. What is
/// told, and how often, still differs from run to run: of that, `known.yaml` lists what is seen, and no more is asked.
fn storm(seed: u64, expected: &BTreeSet<String>) -> Result<(), Failed> {
    let script = Script::of(seed);
    let record = play::play(&script);
    if let Ok(folder) = std::env::var("MOORING_TRACE") {
        std::fs::write(format!("{folder}/seed-{seed}.txt"), trace::text(&record))?;
    }
    let mut faults = judges::judge(&record);
    let is_listed = |fault: &Fault| expected.contains(fault.rule);
    let is_fair = |faults: &[Fault]| {
        faults.iter().all(|fault| is_listed(fault) || !is_of_goods(fault.rule))
            && (expected.is_empty() || faults.iter().any(is_listed))
    };
    let mut plays = 1;
    while plays < PLAYS && !faults.iter().any(is_listed) && !expected.is_empty() {
        faults.extend(judges::judge(&play::play(&script)));
        plays += 1;
    }
    let rules: BTreeSet<&'static str> = faults.iter().map(|fault| fault.rule).collect();
    if std::env::var("MOORING_STORM").is_ok() {
        for rule in &rules {
            for fault in faults.iter().filter(|fault| fault.rule == *rule).take(3) {
                println!("seed {seed}: {:.500}", fault.to_string());
            }
        }
    }
    if is_fair(&faults) {
        return Ok(());
    }
    let mut text = format!("{rules:?}, and not {expected:?}\n");
    for fault in faults.iter().take(20) {
        let _ = writeln!(text, "{:.400}", fault.to_string());
    }
    if std::env::var("MOORING_SEED").is_ok() && !rules.is_empty() {
        let shrunk = shrink::shrink(&script, &rules);
        let _ = writeln!(text, "these acts are enough:");
        for step in &shrunk.steps {
            let _ = writeln!(text, "  {step:?}");
        }
        for fault in judges::judge(&play::play(&shrunk)).iter().take(20) {
            let _ = writeln!(text, "{:.400}", fault.to_string());
        }
    }
    Err(text.into())
}
