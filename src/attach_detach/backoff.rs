//! Pause after a failure: exponential per key, and never reset by another kind of operation (S40).

use std::time::Duration;

use tokio::time::Instant;

/// First pause. KCM: exponentialbackoff.go, `initialDurationBeforeRetry`.
const FIRST: Duration = Duration::from_millis(500);
/// Longest pause. KCM: exponentialbackoff.go, `maxDurationBeforeRetry`.
const LONGEST: Duration = Duration::from_secs(122);

/// Failures in a row, and when to try again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retry {
    failures: u32,
    at: Option<Instant>,
}

impl Retry {
    /// When the next try is due, if that is in the future.
    #[must_use]
    pub fn pending(&self, now: Instant) -> Option<Instant> {
        self.at.filter(|at| *at > now)
    }

    /// Notes a failure. `jitter` in 0..=1 spreads retries over the last tenth of the pause; `at_least`
    /// is what the server asked for.
    #[must_use]
    pub fn after_failure(self, now: Instant, jitter: f64, at_least: Duration) -> Self {
        let doubled = FIRST.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        let pause = doubled.min(LONGEST).mul_f64(0.9 + 0.1 * jitter.clamp(0.0, 1.0)).max(at_least);
        Self { failures: self.failures.saturating_add(1), at: Some(now + pause) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s40_pauses_double_up_to_the_cap() {
        let now = Instant::now();
        let mut retry = Retry::default();
        let mut pauses = Vec::new();
        for _ in 0..11 {
            retry = retry.after_failure(now, 1.0, Duration::ZERO);
            pauses.push(retry.pending(now).map(|at| (at - now).as_millis()).unwrap_or_default());
        }
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 122_000, 122_000, 122_000]);
    }

    #[test]
    fn s40_the_server_may_ask_for_more() {
        let now = Instant::now();
        let retry = Retry::default().after_failure(now, 0.0, Duration::from_secs(7));
        assert_eq!(retry.pending(now), Some(now + Duration::from_secs(7)));
        assert_eq!(retry.pending(now + Duration::from_secs(7)), None);
    }
}
