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
//!
//! Besides, small worlds are explored exhaustively ([`histories::explore`]): whole, until no state is left that was
//! not gone on from, where the watches keep up or nearly so and faults are of one kind; and with everything that
//! can happen for a few steps from some beginnings. `MOORING_EXPLORE=<steps>` goes that many steps, and explores
//! larger worlds whole, up to two volumes and three pods, which takes 20 minutes and 3.5 GiB.

// What it says goes to the person who runs the tests.
#![allow(clippy::print_stdout)]
// A broken test should stop where it breaks.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::unwrap_used, missing_docs)]

mod histories;

use histories::explore::{Beginning, Bounds, Fault, KINDS};
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
    let asked_steps =
        number("MOORING_EXPLORE").map(|steps| usize::try_from(steps).expect("a number of steps"));
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
    let explore = |name: String, bounds: Bounds| {
        Trial::test(format!("explored: {name}"), move || {
            let seen = histories::explore::explore(&bounds)?;
            let extent = bounds
                .most_steps
                .map_or("all reachable states".to_owned(), |steps| format!("all of {steps} steps"));
            println!("{name}: {extent}: {seen:?}");
            Ok(())
        })
    };
    let large = if asked_steps.is_some() { &LARGE[..] } else { &[] };
    // What takes longest begins first.
    let mut trials = Vec::new();
    for (pods, late, faults, most_faults) in large.iter().chain(&WHOLE).copied() {
        let lags = (late, 1);
        let bounds = Bounds {
            beginning: Beginning::Nothing,
            pods,
            lags,
            faults,
            most_faults,
            most_steps: None,
            rest: 16,
        };
        let most = most_faults.map(|most| format!(", at most {most}")).unwrap_or_default();
        let watches = if late.is_empty() { String::new() } else { format!(", {late:?} told late") };
        trials.push(explore(format!("whole, pods {pods:?}, faults {faults:?}{most}{watches}"), bounds));
    }
    for (name, beginning, steps) in BEGINNINGS {
        let (pods, lags, faults) = (&[0, 1, 2], (&KINDS[..], usize::MAX), &Fault::ALL[..]);
        let (most_faults, most_steps) = (Some(2), Some(asked_steps.unwrap_or(steps)));
        let bounds = Bounds { beginning, pods, lags, faults, most_faults, most_steps, rest: 1 };
        trials.push(explore(name.to_owned(), bounds));
    }
    let name = "by hand, while an exclusive volume is held and an older pod waits";
    let bounds = Bounds {
        beginning: Beginning::Overtaken,
        pods: &[0, 1, 2],
        lags: (&[], 0),
        faults: &[Fault::SomebodyDetaches],
        most_faults: Some(2),
        most_steps: Some(asked_steps.unwrap_or(6)),
        rest: 4,
    };
    trials.push(explore(name.to_owned(), bounds));
    trials.push(random);
    trials.push(explained);
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Where explorations begin that end after a number of steps, with the number in a test run.
const BEGINNINGS: [(&str, Beginning, usize); 6] = [
    ("from nothing", Beginning::Nothing, 3),
    ("while attaching", Beginning::Attaching, 3),
    ("while an exclusive volume is held", Beginning::Held, 4),
    ("when it is unmounted", Beginning::Unmounted, 4),
    ("while its detach is under way", Beginning::Deleting, 3),
    ("when its node has failed", Beginning::Stranded, 4),
];

/// An exploration of all reachable states: pods that come and go, watches that take their time, faults, and how
/// many of those if not any number.
type Whole = (&'static [usize], &'static [&'static str], &'static [Fault], Option<usize>);

/// Pods that want one exclusive volume, each on a node of its own.
const TWO: &[usize] = &[1, 2];
const ONE: &[usize] = &[1];

/// Those of a test run.
const WHOLE: [Whole; 10] = [
    (TWO, &[], &[], None),
    (ONE, &[], &[Fault::AttacherFails], None),
    (ONE, &[], &[Fault::Heartbeat], None),
    (ONE, &[], &[Fault::RequestLost], Some(1)),
    (ONE, &[], &[Fault::AnswerLost], Some(1)),
    (ONE, &[], &[Fault::Dies, Fault::DiesLate], None),
    (ONE, &[], &[Fault::NodeFails, Fault::NodeRecovers], Some(1)),
    (ONE, &["node"], &[], None),
    (ONE, &["pod"], &[], None),
    (ONE, &["attachment"], &[Fault::Relists], None),
];

/// Those that take minutes, the longest first.
const LARGE: [Whole; 19] = [
    (TWO, &[], &[Fault::SomebodyDetaches], Some(1)),
    (&[0, 1, 2], &[], &[], None),
    (&[0, 1], &[], &[], None),
    (TWO, &[], &[Fault::AttacherFails], None),
    (TWO, &[], &[Fault::Heartbeat], None),
    (TWO, &[], &[Fault::RequestLost], Some(1)),
    (TWO, &[], &[Fault::RequestLate], Some(1)),
    (TWO, &[], &[Fault::AnswerLost], Some(1)),
    (TWO, &[], &[Fault::Dies, Fault::DiesLate], None),
    (TWO, &[], &[Fault::NodeFails, Fault::NodeRecovers], Some(2)),
    (TWO, &["node"], &[], None),
    (TWO, &["pod"], &[], None),
    (TWO, &["attachment"], &[], None),
    (TWO, &["node", "pod", "attachment"], &[Fault::Relists], None),
    (ONE, &[], &[Fault::RequestLost], None),
    (ONE, &[], &[Fault::RequestLate], Some(1)),
    (ONE, &[], &[Fault::AnswerLost], None),
    (ONE, &[], &[Fault::NodeFails, Fault::NodeRecovers], None),
    (ONE, &["node", "pod", "attachment"], &[Fault::Relists], None),
];
