//! The embedded API server against the real one: the same requests, the same answers.
//!
//! Two sources of requests: named cases ([`case`], one per difference that was ever found) and a
//! seeded generator ([`generator`]). Both are sequences of requests ([`sequence`]) that run on each
//! server; what has to differ (uids, times, revisions, texts for people) is masked ([`mask`]) and
//! the rest has to agree: codes, reasons, the faulty fields, objects, lists, watch events.
//!
//! Named cases also say what is right, so they run on the embedded server alone as well.

// A failed expectation ends the test, which is what a failed expectation is for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// What it says goes to the person who runs the tests.
#![allow(clippy::print_stderr)]

mod case;
mod generator;
mod kubectl;
mod mask;
mod play;
mod sequence;

use std::sync::{Arc, OnceLock};

use libtest_mimic::{Arguments, Failed, Trial};
use test_support::{
    assets::Assets,
    cases,
    control_plane::{ControlPlane, Options, User},
};
use testbed::Server;

/// Sequences of one run. Another number: `MOORING_FIDELITY_SEQUENCES`.
const SEQUENCES: u64 = 2_000;
/// Where the numbers begin. Another one: `MOORING_FIDELITY_SEED`.
const SEED: u64 = 1;

/// What is done with the real server.
type Comparison = Box<dyn FnOnce(&Real) -> Result<(), Failed> + Send>;

/// The real server, started once for all trials.
struct Real {
    runtime: tokio::runtime::Runtime,
    control_plane: ControlPlane,
}

fn main() {
    let mut arguments = Arguments::from_args();
    // Trials share one control plane, and some cases change what all others would see.
    arguments.test_threads = Some(1);
    let cases = Arc::new(case::load());
    let mut trials = Vec::new();
    for index in 0..cases.len() {
        let on_embedded = Arc::clone(&cases);
        let name = format!("embedded::{}", cases[index].name);
        trials.push(Trial::test(name, move || {
            runtime().block_on(async { case::check(&on_embedded[index], &Server::default().client()).await })
        }));
    }

    let real: Arc<OnceLock<Real>> = Arc::default();
    let is_asked_for = !arguments.list;
    let assets = if is_asked_for { Assets::find() } else { Err("nothing to run".to_owned()) };
    let is_required = std::env::var("MOORING_REQUIRE_CONTROL_PLANE").is_ok_and(|value| value == "1");
    if let Err(reason) = &assets
        && is_asked_for
        && !is_required
    {
        eprintln!("The comparison with the real API server is not run: {reason}");
    }
    let kubectl = assets.as_ref().ok().map(|assets| assets.binary("kubectl")).filter(|path| path.is_file());
    let is_missing = kubectl.is_none();
    let trial = Trial::test("embedded::kubectl", move || {
        let kubectl = kubectl.ok_or_else(|| Failed::from("there is no kubectl beside the control plane"))?;
        runtime().block_on(kubectl::check(&kubectl))
    });
    trials.push(trial.with_ignored_flag(is_missing && !is_required));
    let mut compare = |name: String, run: Comparison| {
        let (real, assets) = (Arc::clone(&real), assets.clone());
        let is_ignored = assets.is_err() && !is_required;
        let trial = Trial::test(name, move || {
            let assets = assets.map_err(Failed::from)?;
            run(real.get_or_init(|| start(&assets)))
        });
        trials.push(trial.with_ignored_flag(is_ignored));
    };
    compare("real::sequences".to_owned(), Box::new(|real| real.runtime.block_on(sequences(real))));
    for index in 0..cases.len() {
        let cases = Arc::clone(&cases);
        let name = format!("real::{}", cases[index].name);
        compare(
            name,
            Box::new(move |real| {
                real.runtime.block_on(async {
                    case::compare(&cases[index], &real.control_plane.client(User::Admin)).await
                })
            }),
        );
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn start(assets: &Assets) -> Real {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let options = Options { without_records: true, ..Options::default() };
    let control_plane = runtime.block_on(ControlPlane::start_with(assets, &options));
    Real { runtime, control_plane }
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

async fn sequences(real: &Real) -> Result<(), Failed> {
    let seed = number("MOORING_FIDELITY_SEED", SEED);
    let count = number("MOORING_FIDELITY_SEQUENCES", SEQUENCES);
    let client = real.control_plane.client(User::Admin);
    let differences = play::many(&client, seed, count).await;
    if differences.is_empty() {
        return Ok(());
    }
    let total = differences.len();
    let shown: Vec<String> = differences.into_iter().take(60).collect();
    Err(format!("{total} of {count} sequences differ\n{}", shown.join("\n")).into())
}
