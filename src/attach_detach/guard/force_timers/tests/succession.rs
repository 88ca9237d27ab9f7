//! What a successor may count on, also if the ConfigMap could not be written (S4, S6).

use super::*;

/// What happens after a volume has not been desired for a moment.
#[derive(Clone, Copy)]
enum Happens {
    Pass(u64),
    /// Some policy refuses writes, or does so no longer.
    Refused(bool),
    /// A pod comes, and goes.
    Visited(usize),
    /// It is detached.
    Detached(usize),
    /// No pod needs it.
    Waits(usize),
}

/// What happens, and which volumes a successor credits with how many seconds then.
type Case = (&'static str, &'static [Happens], &'static [(usize, u64)]);

/// Cold: it has not seen what happened, and the same is attached.
fn credited(store: &mut Store, mut successor: Process) -> BTreeMap<usize, u64> {
    for candidate in &mut successor.candidates {
        candidate.attachment = None;
    }
    successor.works(store);
    let number = |volume: &VolumeId| (1..=9).find(|number| lun(*number) == *volume).unwrap();
    successor.inherited.iter().map(|proven| (number(&proven.volume), proven.elapsed.as_secs())).collect()
}

#[test]
fn s4_s6_a_successor_goes_on_from_what_was_not_broken_off_since_it_was_written() {
    use Happens::{Detached, Pass, Refused, Visited, Waits};

    const REFUSED: Happens = Refused(true);
    let cases: [Case; 10] = [
        ("written all along", &[Pass(43)], &[(1, 40)]),
        (
            "refused since, and nobody has wanted it: as much at least",
            &[Pass(43), REFUSED, Pass(200)],
            &[(1, 40)],
        ),
        ("wanted again while it is refused", &[Pass(43), REFUSED, Pass(9), Visited(1), Pass(100)], &[]),
        (
            "written again since",
            &[Pass(43), REFUSED, Visited(1), Pass(9), Refused(false), Pass(300)],
            &[(1, 306)],
        ),
        ("wanted again and written as it should be", &[Pass(43), Visited(1), Pass(44)], &[(1, 40)]),
        (
            "its end could not be written, and then it was wanted again",
            &[Pass(43), REFUSED, Detached(1), Pass(9), Visited(1), Pass(100)],
            &[],
        ),
        ("nor could its end, and that is all", &[Pass(43), REFUSED, Detached(1), Pass(100)], &[(1, 40)]),
        ("another was wanted again", &[Waits(2), Pass(43), REFUSED, Visited(2), Pass(100)], &[]),
        (
            "another of which nothing was written",
            &[Pass(43), REFUSED, Waits(2), Visited(3), Pass(100)],
            &[(1, 40)],
        ),
        ("never written", &[REFUSED, Pass(43), Refused(false)], &[]),
    ];
    for (name, happens, expected) in cases {
        let mut store = Store::default();
        let mut process = Process::succeeding(&store, 0);
        process.works(&mut store);
        if !matches!(happens[0], Refused(_)) {
            process.waits(1, "");
            process.works(&mut store);
        }
        for happens in happens {
            match *happens {
                Pass(time) => process.works_for(seconds(time), &mut store),
                Refused(is_refused) => store.refuses = is_refused,
                Visited(number) => {
                    process.timers.break_off(&lun(number), &node());
                    process.waits(number, "");
                }
                Detached(number) => process.timers.forget(&lun(number), &node()),
                Waits(number) => process.waits(number, ""),
            }
            process.renews(&mut store);
        }
        store.refuses = false;
        let successor = Process::succeeding(&store, 7_000);
        let credited: Vec<_> = credited(&mut store, successor).into_iter().collect();
        assert_eq!(credited, expected, "{name}");
    }
}

#[test]
fn s4_nobody_believes_what_neither_the_lease_nor_its_last_holder_has_told_of() {
    let mut store = Store::default();
    let mut process = Process::succeeding(&store, 0);
    process.waits(1, "");
    process.works_for(seconds(43), &mut store);
    process.renews(&mut store);
    let at_rest = store.clone();
    // One that led in between could not write it.
    let between = Process::succeeding(&store, 0);
    between.renews(&mut store);
    let next = Process::succeeding(&store, 0);
    assert_eq!(credited(&mut store, next), BTreeMap::new());
    // The lease was made anew.
    let mut store = Store { told: None, ..at_rest.clone() };
    let next = Process::succeeding(&store, 0);
    assert_eq!(credited(&mut store, next), BTreeMap::new());
    // One that took the lease and never led has changed nothing of it.
    let mut store = at_rest;
    let next = Process::succeeding(&store, 0);
    assert_eq!(credited(&mut store, next), BTreeMap::from([(1, 40)]));
}

#[test]
fn s4_without_a_lease_a_map_is_believed_that_can_be_written_as_it_was_read() {
    let mut store = Store::default();
    let mut process = Process::started(0);
    process.waits(1, "");
    process.works_for(seconds(43), &mut store);
    store.asked.clear();
    for (refuses, expected) in [(false, vec![(1, 40)]), (true, vec![])] {
        let mut store = Store { refuses, ..store.clone() };
        let mut next = Process::started(0);
        for candidate in &mut next.candidates {
            candidate.attachment = None;
        }
        next.works(&mut store);
        assert_eq!(next.inherited.len(), expected.len(), "refused: {refuses}");
        // What is allowed later is too late: who came before may have been refused until then.
        store.refuses = false;
        next.works_for(seconds(600), &mut store);
        assert_eq!(next.inherited.len(), expected.len(), "refused: {refuses}");
    }
}

/// With every refusal, loss and delay, and every moment of death: what a successor that saw nothing of it counts
/// is no more than has passed since a pod needed the volume, as far as its predecessor had seen when it last
/// renewed the lease.
#[test]
fn s4_s6_in_no_history_is_more_credited_than_was_waited() {
    let mut credits = 0;
    for seed in 0..400 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut store = Store::default();
        let mut process = Process::succeeding(&store, 0);
        let mut late: Vec<Request> = Vec::new();
        // Since when no pod has needed it, by the clock of the process.
        let mut unwanted = BTreeMap::new();
        for _ in 0..60 {
            let number = rng.usize(1..4);
            match rng.u32(0..12) {
                0 | 1 => {
                    unwanted.entry(number).or_insert(process.wall);
                    process.timers.note(
                        key(number),
                        Wait { since: unwanted[&number], failure: failure(0), attachment: None },
                    );
                }
                2 => {
                    // A pod comes and goes.
                    unwanted.insert(number, process.wall);
                    process.timers.break_off(&lun(number), &node());
                }
                3 => process.timers.forget(&lun(number), &node()),
                4 => store.refuses = rng.bool(),
                5 if !late.is_empty() => {
                    let request = late.remove(rng.usize(0..late.len()));
                    let _unheard = store.serve(request);
                }
                _ => {
                    process.pass(Duration::from_millis(rng.u64(0..20_000)));
                    if let Some(request) = process.next() {
                        let fate = rng.u32(0..8);
                        if fate == 0 {
                            late.push(request);
                            process.take(Err(CallError::Unknown("late".to_owned())));
                        } else {
                            let answer = store.serve(request);
                            let lost = Err(CallError::Unknown("lost".to_owned()));
                            process.take(if fate == 1 { lost } else { answer });
                        }
                    }
                }
            }
            process.renews(&mut store);
            // It dies here; what is late may still land.
            let mut store = Store { refuses: false, ..store.clone() };
            if rng.bool() && !late.is_empty() {
                let _unheard = store.serve(late[rng.usize(0..late.len())].clone());
            }
            let successor = Process::succeeding(&store, rng.i64(0..100_000));
            for (number, credited) in credited(&mut store, successor) {
                let waited = process.wall.duration_since(unwanted[&number]).as_secs();
                assert!(i64::try_from(credited).unwrap() <= waited, "seed {seed}: {credited} of {waited}");
                credits += u64::from(credited > 0);
            }
        }
    }
    assert!(credits > 5_000, "{credits}: it happens at all");
}
