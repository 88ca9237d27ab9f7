//! After a failure: which windows of faults it takes.
//!
//! In: the windows of a plan, and how often a play with some of them fails. Out: as few as still fail at least once.

use tokio::runtime::Runtime;

use crate::{Request, plan::Window, trial};

/// So often each choice is played: a violation that takes some interleaving does not appear each time.
const PLAYS: usize = 3;

/// Leaves out part after part, halves first, as long as the rest fails. Nobody is asked about all, which has failed.
fn shrink<T: Clone>(all: &[T], mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    if all.is_empty() || fails(&[]) {
        return Vec::new();
    }
    let mut left = all.to_vec();
    let mut size = left.len().div_ceil(2);
    while left.len() > 1 {
        let without = |from: usize| {
            let to = left.len().min(from + size);
            [&left[..from], &left[to..]].concat()
        };
        match (0..left.len()).step_by(size).map(without).find(|rest| !rest.is_empty() && fails(rest)) {
            Some(rest) => {
                left = rest;
                size = left.len().div_ceil(2);
            }
            None if size == 1 => break,
            None => size = size.div_ceil(2),
        }
    }
    left
}

/// Plays choices of the windows of a plan that has failed, and says how often each fails. Acts, and all times, stay as they are.
pub fn play(runtime: &Runtime, request: &Request) {
    let windows = trial::plan_of(request).windows;
    let mut plays = 0;
    let left = shrink(&windows, |chosen| {
        let mut failures = 0;
        for _ in 0..PLAYS {
            plays += 1;
            let keep = request.keep.as_ref().map(|folder| format!("{folder}/play-{plays}"));
            let only = Some(chosen.iter().map(|window| window.from).collect());
            let outcome = runtime.block_on(trial::play(&Request { keep, only, ..request.clone() })).unwrap();
            failures += usize::from(!outcome.is_good());
        }
        println!("shrinking, play {plays}: {failures} of {PLAYS} fail with {}", told(chosen));
        failures > 0
    });
    println!("shrunk to {}", told(&left));
}

fn told(windows: &[Window]) -> String {
    let each = windows.iter().map(|window| format!("{} at {} s", window.name(), window.from.as_secs()));
    if windows.is_empty() { "no fault".to_owned() } else { each.collect::<Vec<_>>().join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_failure_does_not_take_is_left_out() {
        // All, those that it takes, and how many choices may be played for it.
        let cases: [(usize, &[usize], usize); 8] = [
            (0, &[], 0),
            (1, &[], 1),
            (1, &[0], 1),
            (8, &[], 1),
            (8, &[5], 7),
            (8, &[0, 7], 20),
            (9, &[2, 3, 8], 30),
            (4, &[0, 1, 2, 3], 7),
        ];
        for (count, needed, limit) in cases {
            let all: Vec<usize> = (0..count).collect();
            let mut plays = 0;
            let left = shrink(&all, |chosen| {
                plays += 1;
                needed.iter().all(|one| chosen.contains(one))
            });
            assert_eq!(left, needed, "of {count}");
            assert!(plays <= limit, "{plays} choices for {needed:?} of {count}");
        }
    }

    #[test]
    fn one_of_two_that_fail_alone_is_enough() {
        assert_eq!(shrink(&[1, 2, 3, 4], |chosen| chosen.contains(&2) || chosen.contains(&3)), [3]);
    }
}
