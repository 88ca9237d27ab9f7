//! Random histories of attach/detach: pods come, move and go, attachers and kubelets act when they like,
//! watches lag or begin anew, requests are lost before or after they took effect or take effect late, the daemon
//! dies at any moment and comes back or hands over to a second replica, claims, volumes and the driver change,
//! strangers attach what is ours under names of theirs, and in some histories another attach/detach controller
//! is at work. After every write the invariants S1–S5, S7–S11 and S13–S16 must hold, whatever the order; and
//! when the trouble stops, the end state must be the wanted one, also if a machine is gone for good (L9, H9), in
//! which case the wait for it is as long as it has to be, however often the leader changes (S6).
//!
//! The controller is the real one; it has no clock and no client, so a history is a loop over values.
//! A failure prints its seed: `MOORING_SEED=<n> cargo test --test attach_detach_histories` repeats it.
//!
//! Besides, a small world is explored exhaustively ([`histories::explore`]) as far as a test run allows;
//! `MOORING_EXPLORE=<steps>` goes further, and brings every state to rest instead of some.

// What it says goes to the person who runs the tests.
#![allow(clippy::print_stdout)]
// A broken test should stop where it breaks.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::unwrap_used, missing_docs)]

mod histories;

use histories::explore::{Beginning, Bounds};
use libtest_mimic::{Arguments, Failed, Trial};

/// Histories per run; `MOORING_HISTORIES` asks for more.
const HISTORIES: u64 = 1_000;

/// Seeds beyond those that found something: a doubt about a create was ended by a read that had been
/// answered before it was over, and was heard of after (S1); a deletion arrived when a node that had been gone
/// was back, which is nobody's fault; a volume was wanted and no longer before the predecessor's clock was read (S4);
/// a node that went was back, Ready, and not Ready, between two looks (S4);
/// a leader died before it could note that a volume had been wanted again, which nothing else tells; somebody
/// listed a volume again while its deletion was on its way; an attachment was deleted by somebody and its entry in the
/// list was left, before a restart (S6). The first tells whether an iSCSI volume's wait goes on (S6).
const FOUND: [u64; 8] = [1_244, 19_925, 33_415, 43_343, 52_162, 60_775, 65_042, 74_161];

fn main() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds: Vec<u64> = match number("MOORING_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("MOORING_HISTORIES").unwrap_or(HISTORIES)).chain(FOUND).collect(),
    };
    let asked_steps =
        number("MOORING_EXPLORE").map(|steps| usize::try_from(steps).expect("a number of steps"));
    let random = Trial::test("S1–S11 S13–S17 L8 L9 and convergence over random histories", move || {
        for seed in &seeds {
            histories::play(*seed).map_err(|error| Failed::from(format!("MOORING_SEED={seed}: {error}")))?;
        }
        Ok(())
    });
    let mut trials = vec![random];
    let explore = move |name: &'static str, beginning, steps, told_at_once| {
        Trial::test(format!("explored: {name}"), move || {
            let bounds = match asked_steps {
                None => Bounds { steps, told_at_once, faults: FAULTS, rest: 16 },
                Some(steps) if told_at_once => Bounds { steps: steps + 4, told_at_once, faults: 0, rest: 1 },
                Some(steps) => Bounds { steps, told_at_once, faults: FAULTS, rest: 1 },
            };
            let seen = histories::explore::explore(beginning, bounds)?;
            println!("{name}: all of {} steps, {seen:?}", bounds.steps);
            Ok(())
        })
    };
    for (name, beginning, steps) in BEGINNINGS {
        trials.push(explore(name, beginning, steps, false));
    }
    trials.push(explore("from nothing, told of everything at once", Beginning::Nothing, TOLD, true));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Faults among the steps of an exploration.
const FAULTS: usize = 2;

/// Steps of the exploration in which the daemon is told of everything at once.
const TOLD: usize = 4;

/// Where explorations begin, and how many steps they take in a test run.
const BEGINNINGS: [(&str, Beginning, usize); 6] = [
    ("from nothing", Beginning::Nothing, 3),
    ("while attaching", Beginning::Attaching, 3),
    ("while an exclusive volume is held", Beginning::Held, 4),
    ("when it is unmounted", Beginning::Unmounted, 4),
    ("while its detach is under way", Beginning::Deleting, 3),
    ("when its node has failed", Beginning::Stranded, 4),
];
