//! Random histories of attach/detach: pods come, move and go, attachers and kubelets act when they like,
//! watches lag or begin anew, requests are lost before or after they took effect or take effect late, the daemon
//! dies at any moment and comes back or hands over to a second replica, claims, volumes and the driver change,
//! strangers attach what is ours under names of theirs, and in some histories another attach/detach controller
//! is at work, or people delete attachments by hand. Every machine has a clock of its own, up to an hour off, which
//! steps; each process has another, that also goes too fast or too slow, and only the checks know the time. After every
//! write the invariants S1–S5, S7–S11 and S13–S16 must hold, in any order; and when the trouble stops, the end state
//! must be the wanted one, also if a machine is gone for good (L9, H9), in which case the wait for it is as long as it
//! has to be, however often the leader changes (S6).
//!
//! The controller is the real one; it has no clock and no client, so a history is a loop over values.
//! A failure prints its seed: `MOORING_SEED=<n> cargo test --test attach_detach_histories` repeats it.

// A broken test should stop where it breaks.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::unwrap_used, missing_docs)]

mod histories;

use libtest_mimic::{Arguments, Failed, Trial};

/// Histories per run; `MOORING_HISTORIES` asks for more.
const HISTORIES: u64 = 1_000;

/// Seeds up to this one are played, too, if people or a rival take away in them what is in use ([`histories::play`]).
const MEDDLED: u64 = 8_000;

/// Histories about whose states explanations are asked for.
const EXPLAINED: u64 = 100;

/// Seeds beyond those that found something: a doubt about a create was ended by a read that had been
/// answered before it was over, and was heard of after (S1); a deletion arrived when a node that had been gone
/// was back, for which no process is to blame; a volume was wanted and no longer before the predecessor's timers were
/// read (S4); a node that went was back, Ready, and not Ready, between two looks (S4);
/// a leader died before it could note that a volume had been wanted again, which nothing else tells; another client
/// listed a volume again while its deletion was on its way; another client deleted an attachment, whose entry in the
/// list was left, before a restart (S6); another client listed a volume again after its deletion was asked for, and its
/// entry was left when that client had ceased (S14). The first tells whether an iSCSI volume's wait goes on (S6).
const FOUND: [u64; 9] = [1_244, 11_107, 19_925, 33_415, 43_343, 52_162, 60_775, 65_042, 74_161];

fn main() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds: Vec<u64> = match number("MOORING_SEED") {
        Some(seed) => vec![seed],
        None => {
            let all = number("MOORING_HISTORIES").unwrap_or(HISTORIES);
            let meddled = (all..MEDDLED).filter(|seed| seed % 8 == 3);
            (0..all).chain(meddled).chain(FOUND).collect()
        }
    };
    let random = Trial::test("S1–S11 S13–S17 L8 L9 and convergence over random histories", move || {
        for seed in &seeds {
            histories::play(*seed).map_err(|error| Failed::from(format!("MOORING_SEED={seed}: {error}")))?;
        }
        Ok(())
    });
    let explained = Trial::test("what explanations say of random histories is what happens", move || {
        let seeds = number("MOORING_SEED").map_or(0..EXPLAINED, |seed| seed..seed + 1);
        for seed in seeds {
            let told = |error| Failed::from(format!("MOORING_SEED={seed}: {error}"));
            histories::explained::play(seed).map_err(told)?;
        }
        Ok(())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![random, explained]).exit();
}
