//! The field trial: the daemon, or the loops of kube-controller-manager that it replaces, on a real control plane with real kubelets
//! and sidecars, while actors work, parts fail, and judges that it cannot influence watch.
//!
//! It takes root, a mount namespace of its own and minutes, so `tests/trial/run` starts it; without `MOORING_REQUIRE_TRIAL=1`
//! only its judges are tested. `README.md` beside this file has the faults, and `docs/reliability.md` the runs.

// A failed expectation ends the test, which is what a failed expectation is for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// What it says goes to the person who runs the tests.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod actors;
mod authority;
mod balancer;
mod clock;
mod faults;
mod front;
mod judges;
mod objects;
mod plan;
mod record;
mod relabel;
mod report;
mod shrink;
mod stage;
mod token;
mod trial;
mod waits;
mod webhook;

use std::time::Duration;

use crate::{
    plan::{Fault, pairs},
    stage::Subject,
};

/// What is asked for by the environment.
#[derive(Clone)]
struct Request {
    subject: Subject,
    seed: u64,
    seconds: u64,
    nodes: usize,
    faults: Vec<Vec<Fault>>,
    /// Whether mooring stands behind its fence, and the whole of kube-controller-manager beside it.
    fence: bool,
    /// Where logs and records are kept.
    keep: Option<String>,
    /// When the windows begin that are played, if not all are.
    only: Option<Vec<Duration>>,
    /// Whether a failure is played again with fewer faults.
    shrink: bool,
}

impl Request {
    fn read() -> Result<Self, String> {
        let value = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let number = |name: &str, default: u64| match value(name) {
            Some(text) => text.parse::<u64>().map_err(|error| format!("{name}: {error}")),
            None => Ok(default),
        };
        let names = value("MOORING_TRIAL_FAULTS").unwrap_or_default();
        let mut faults = Vec::new();
        for name in names.split(',').filter(|name| !name.is_empty()) {
            match name {
                "pairs" => faults.extend(pairs()),
                name => faults.push(Fault::parse(name)?),
            }
        }
        let subject =
            Subject::parse(&value("MOORING_TRIAL_SUBJECT").unwrap_or_else(|| "mooring".to_owned()))?;
        let fence = value("MOORING_TRIAL_FENCE").is_some();
        if fence && subject != Subject::Mooring {
            return Err("the fence is mooring's".to_owned());
        }
        Ok(Self {
            subject,
            seed: number("MOORING_TRIAL_SEED", 1)?,
            seconds: number("MOORING_TRIAL_SECONDS", 300)?,
            nodes: usize::try_from(number("MOORING_TRIAL_NODES", 4)?).map_err(|error| error.to_string())?,
            faults,
            fence,
            keep: value("MOORING_TRIAL_KEEP"),
            only: None,
            shrink: value("MOORING_TRIAL_SHRINK").is_some(),
        })
    }
}

#[test]
fn field_trial() {
    if std::env::var("MOORING_REQUIRE_TRIAL").as_deref() != Ok("1") {
        eprintln!("The field trial is not run: tests/trial/run starts it.");
        return;
    }
    let request = Request::read().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let outcome = runtime.block_on(trial::play(&request)).unwrap();
    println!("{}", outcome.text());
    for (party, violations) in &outcome.violations {
        for line in violations {
            println!("{}: {line}", party.name());
        }
    }
    for wait in &outcome.endless {
        println!("without end: {wait:?}");
    }
    if request.shrink && !outcome.is_good() {
        shrink::play(&runtime, &request);
    }
    // What kube-controller-manager does is reported, and no failure of this repository.
    assert!(request.subject == Subject::KubeControllerManager || outcome.is_good(), "the trial has failed");
}
