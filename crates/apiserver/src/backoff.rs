//! Pauses between attempts: doubling up to a limit, with jitter so that replicas and watches do not
//! come back all at once.

use std::time::Duration;

/// First pause after an operation on an object failed. KCM: exponentialbackoff.go,
/// `initialDurationBeforeRetry`.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// Longest one. KCM: exponentialbackoff.go, `maxDurationBeforeRetry`.
const LONGEST_RETRY: Duration = Duration::from_secs(122);

/// Longest pause before a write that another writer undoes each time: with the jitter 21 to 28 s (S46).
const LONGEST_UNDONE: Duration = Duration::from_secs(28);

/// Longest pause after a request without an answer. KCM has none of its own; when the API server is back,
/// everything has to go on within five seconds (L16).
const LONGEST_SILENCE: Duration = Duration::from_secs(4);

/// How long to leave an object alone after so many failures in a row (S40). `jitter` in 0..=1 shortens
/// the pause by up to a quarter, so that objects that failed together do not come back together.
pub fn retry_pause(failures: u32, jitter: f64) -> Duration {
    doubled(failures, LONGEST_RETRY, jitter)
}

/// How long a write stands at least that was undone so many times in a row.
pub fn undone_pause(times: u32, jitter: f64) -> Duration {
    doubled(times, LONGEST_UNDONE, jitter)
}

/// How long to wait after so many requests in a row about an object that were not answered. That says
/// nothing about the object, so it is shorter than [`retry_pause`] in the long run.
pub fn silence_pause(silences: u32, jitter: f64) -> Duration {
    doubled(silences, LONGEST_SILENCE, jitter)
}

fn doubled(times: u32, longest: Duration, jitter: f64) -> Duration {
    let doubled = FIRST_RETRY.saturating_mul(2_u32.saturating_pow(times.saturating_sub(1)));
    doubled.min(longest).mul_f64(1.0 - 0.25 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s40_retries_double_up_to_the_cap() {
        let pauses: Vec<u128> = (1..=10).map(|failures| retry_pause(failures, 0.0).as_millis()).collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000]);
        assert_eq!(retry_pause(u32::MAX, 0.0), LONGEST_RETRY);
        assert_eq!(retry_pause(1, 1.0), Duration::from_millis(375));
    }

    #[test]
    fn l16_who_was_not_answered_comes_back_within_five_seconds() {
        let pauses: Vec<u128> = (1..=6).map(|silences| silence_pause(silences, 0.0).as_millis()).collect();
        assert_eq!(pauses, [500, 1000, 2000, 4000, 4000, 4000]);
        assert_eq!(silence_pause(u32::MAX, 1.0), Duration::from_secs(3));
    }
}
