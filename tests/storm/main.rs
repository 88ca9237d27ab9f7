//! The storm: a small world in which people, machines, the attacher, the API server and the daemon's own deaths do what a
//! seed says, on the embedded server in paused time; then calm. Judges that ask neither the daemon nor its tables say what
//! must not have happened (S43–S52, and today's promises by who wrote).
//!
//! `MOORING_STORM=1-60` plays other seeds, `MOORING_SEED=7` one, shrunk if it fails. `MOORING_TRACE=/tmp` leaves all that
//! happened in `/tmp/seed-7.txt`.

// A failed expectation ends the test, which is what a failed expectation is for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

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

use std::fmt::Write as _;

use acts::Script;
use judges::Fault;
use libtest_mimic::{Arguments, Failed, Trial};

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = wrongdoers::trials();
    for seed in seeds() {
        trials.push(Trial::test(format!("seed_{seed}"), move || storm(seed)));
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn seeds() -> Vec<u64> {
    let asked = std::env::var("MOORING_SEED").or_else(|_| std::env::var("MOORING_STORM"));
    let range = asked.unwrap_or_else(|_| "1-60".to_owned());
    let (first, last) = range.split_once('-').unwrap_or((&range, &range));
    (first.parse().unwrap()..=last.parse().unwrap()).collect()
}

/// No judge convicts.
fn storm(seed: u64) -> Result<(), Failed> {
    let script = Script::of(seed);
    let record = play::play(&script);
    if let Ok(folder) = std::env::var("MOORING_TRACE") {
        std::fs::write(format!("{folder}/seed-{seed}.txt"), trace::text(&record))?;
    }
    let faults = judges::judge(&record);
    if faults.is_empty() {
        return Ok(());
    }
    let mut text = list(&faults);
    if std::env::var("MOORING_SEED").is_ok() {
        let rules = faults.iter().map(|fault| fault.rule).collect();
        let shrunk = shrink::shrink(&script, &rules);
        text.push_str("these acts are enough:\n");
        for step in &shrunk.steps {
            let _ = writeln!(text, "  {step:?}");
        }
        let record = play::play(&shrunk);
        if let Ok(folder) = std::env::var("MOORING_TRACE") {
            std::fs::write(format!("{folder}/seed-{seed}-shrunk.txt"), trace::text(&record))?;
        }
        text.push_str(&list(&judges::judge(&record)));
    }
    Err(text.into())
}

fn list(faults: &[Fault]) -> String {
    faults.iter().take(20).fold(String::new(), |mut text, fault| {
        let _ = writeln!(text, "{:.400}", fault.to_string());
        text
    })
}
