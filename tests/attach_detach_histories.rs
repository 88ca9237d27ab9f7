//! Random histories of attach/detach: pods come, move and go, attachers and kubelets act when they like,
//! watches lag, requests are lost before or after they took effect or take effect late, and the daemon
//! dies at any moment. After every write the invariants S1, S2, S3, S7 and S13 must hold in the simulated
//! API server, whatever the order; and when the trouble stops, the end state must be the wanted one.
//!
//! The controller is the real one; it has no clock and no client, so a history is a loop over values.
//! A failure prints its seed: `MOORING_SEED=<n> cargo test --test attach_detach_histories` repeats it.

// A broken test should stop where it breaks.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::unwrap_used, missing_docs)]

mod histories;

use libtest_mimic::{Arguments, Failed, Trial};

/// Histories per run; `MOORING_HISTORIES` asks for more.
const HISTORIES: u64 = 1_000;

fn main() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds: Vec<u64> = match number("MOORING_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("MOORING_HISTORIES").unwrap_or(HISTORIES)).collect(),
    };
    let trial = Trial::test("S1 S2 S3 S7 S13 S17 and convergence over random histories", move || {
        for seed in &seeds {
            histories::play(*seed).map_err(|error| Failed::from(format!("MOORING_SEED={seed}: {error}")))?;
        }
        Ok(())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit();
}
