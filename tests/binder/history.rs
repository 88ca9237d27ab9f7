//! Random histories of the binder: users, a scheduler, a provisioner and a kubelet do what they like,
//! watches lag each for itself and are cut, requests are lost before or after they took effect, or take
//! effect when nobody waits for them any more, and the daemon dies at any moment. Every write is checked against the invariants; when the trouble stops, everything must
//! come to rest, as bound as it can be.
//!
//! A failure prints its seed: `MOORING_SEED=<n> cargo test --test binder_cases -- history` repeats it,
//! `MOORING_HISTORIES` asks for more of them.

use std::{collections::BTreeMap, panic::AssertUnwindSafe, time::Duration};

use fastrand::Rng;
use libtest_mimic::{Failed, Trial};
use mooring::binder::BinderOptions;
use serde_json::json;
use tokio::time::Instant;

use crate::{
    actors::{kubelet_acts, provisioner_acts, somebody_acts, touch_any},
    daemon::{Daemon, LATE},
    invariants::settled,
    server::{CLASSES, Server},
};

/// Histories per run.
const HISTORIES: u64 = 300;
/// Steps with trouble.
pub const STEPS: usize = 120;
/// Rounds without, in which everything must have come to rest.
const ROUNDS: usize = 400;

/// Longer than any history.
const NEVER: Duration = Duration::from_hours(24 * 365);

/// Seeds beyond those that found something: the late answer to a write about a claim that a list lacked.
const FOUND: [u64; 1] = [10_820];

pub fn trial() -> Trial {
    Trial::test("history: S18 to S33 and convergence over random histories", || {
        each_seed((0..number("MOORING_HISTORIES").unwrap_or(HISTORIES)).chain(FOUND), play)
    })
}

/// What a variable of the environment says.
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Plays a history of each seed, or of that which is asked for, and names the one that fails.
pub fn each_seed(
    seeds: impl Iterator<Item = u64>,
    play: fn(u64) -> Result<(), String>,
) -> Result<(), Failed> {
    let seeds = number("MOORING_SEED").map_or_else(|| seeds.collect(), |seed| vec![seed]);
    for seed in seeds {
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| play(seed)));
        let outcome = outcome.unwrap_or_else(|panic| {
            Err(panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "panicked".to_owned()))
        });
        outcome.map_err(|error| Failed::from(format!("MOORING_SEED={seed}: {error}")))?;
    }
    Ok(())
}

fn play(seed: u64) -> Result<(), String> {
    let mut history = History { lingers: true, ..History::begin(seed) };
    for _ in 0..STEPS {
        history.step();
    }
    comes_to_rest(&mut history.server, &mut history.daemon, &mut history.rng)?;
    let told = |error| format!("{error}; it waits for {}", history.daemon.waits_for());
    settled(&history.server).map_err(told)
}

/// A world with its binder, and the steps that a seed decides.
pub struct History {
    pub server: Server,
    pub daemon: Daemon,
    pub rng: Rng,
    pub sync_period: Duration,
    bad_network: bool,
    /// Whether volumes that are deleted may go late.
    lingers: bool,
}

impl History {
    pub fn begin(seed: u64) -> Self {
        let mut server = Server::new(BTreeMap::new());
        for (name, provisioner, mode) in [
            ("gold", "d", "Immediate"),
            ("wait", "d", "WaitForFirstConsumer"),
            ("none", "kubernetes.io/no-provisioner", "WaitForFirstConsumer"),
        ] {
            let class = json!({
                "metadata": {"name": name, "uid": name},
                "provisioner": provisioner,
                "volumeBindingMode": mode,
            });
            server.put(&format!("{CLASSES}{name}"), class);
        }
        // A wake-up that is missed must not be made up for by the resync.
        let sync_period = if seed.is_multiple_of(2) { NEVER } else { BinderOptions::default().sync_period };
        let daemon = Daemon::start(&mut server, Instant::now(), sync_period);
        let (rng, bad_network) = (Rng::with_seed(seed), seed.is_multiple_of(3));
        Self { server, daemon, rng, sync_period, bad_network, lingers: false }
    }

    pub fn step(&mut self) {
        let Self { server, daemon, rng, sync_period, bad_network, lingers } = self;
        match rng.u32(0..100) {
            0..25 => somebody_acts(server, rng, *lingers),
            25..45 => daemon.watch_delivers(server, rng),
            45..50 if *bad_network => daemon.request_is_lost(server, rng),
            65..68 if *bad_network => daemon.late_request_arrives(server, rng),
            45..65 => daemon.request_arrives(server, rng),
            65..85 => daemon.reply_arrives(rng),
            85..88 => daemon.request_is_lost(server, rng),
            98..100 => daemon.late_request_arrives(server, rng),
            88..90 => daemon.watch_is_cut(server, rng),
            90..92 => touch_any(server, rng),
            92..95 => daemon.time_passes(Duration::from_millis(rng.u64(1..3_000)), server, rng),
            95..96 => daemon.time_passes(Duration::from_mins(6), server, rng),
            96..98 => {
                daemon.dies(server, rng);
                *daemon = Daemon::start(server, daemon.now, *sync_period);
            }
            _ => {}
        }
    }
}

/// Everybody does all there is to do, until nothing happens any more.
pub fn comes_to_rest(server: &mut Server, daemon: &mut Daemon, rng: &mut Rng) -> Result<(), String> {
    let mut quiet = 0;
    for _ in 0..ROUNDS {
        let before = server.revision();
        provisioner_acts(server);
        kubelet_acts(server, true);
        daemon.everything_arrives(server, rng)?;
        daemon.time_passes(LATE, server, rng);
        quiet = if server.revision() == before { quiet + 1 } else { 0 };
        // Longer than any back-off and the resync.
        if quiet > 40 {
            return Ok(());
        }
    }
    Err(format!("not at rest after {ROUNDS} rounds; it waits for {}", daemon.waits_for()))
}
