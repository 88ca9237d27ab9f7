//! The pause of one pair or node after a failure; another kind of operation never resets it (S40).

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::kube_api::backoff::{retry_pause, silence_pause};

/// Failures in a row, when to try again, and what was said of the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retry {
    failures: u32,
    silences: u32,
    at: Option<Instant>,
    message: Option<Arc<str>>,
}

impl Retry {
    /// When the next try is due, if that is in the future.
    #[must_use]
    pub fn pending(&self, now: Instant) -> Option<Instant> {
        self.at.filter(|at| *at > now)
    }

    /// When the next try is or was due, if the last one failed.
    #[must_use]
    pub fn at(&self) -> Option<Instant> {
        self.at
    }

    /// Failures in a row.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// What was said of the last failure, of requests that nobody but us makes and users wait for.
    #[must_use]
    pub fn message(&self) -> Option<&Arc<str>> {
        self.message.as_ref()
    }

    /// The same after a failure of which this is to be told (L18).
    #[must_use]
    pub fn because(self, message: &str) -> Self {
        Self { message: Some(message.into()), ..self }
    }

    /// Notes a failure; `at_least` is what the server asked for.
    #[must_use]
    pub fn after_failure(self, now: Instant, jitter: f64, at_least: Duration) -> Self {
        let failures = self.failures.saturating_add(1);
        let at = Some(now + retry_pause(failures, jitter).max(at_least));
        Self { failures, silences: 0, at, message: None }
    }

    /// Notes that a read was not answered, which says nothing about the object (L16).
    #[must_use]
    pub fn after_silence(self, now: Instant, jitter: f64) -> Self {
        let silences = self.silences.saturating_add(1);
        Self { silences, at: Some(now + silence_pause(silences, jitter)), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l16_silence_counts_apart_from_failures() {
        let now = Instant::now();
        let mut retry = Retry::default().after_failure(now, 0.0, Duration::ZERO);
        for _ in 0..20 {
            retry = retry.after_silence(now, 0.0);
        }
        assert_eq!(retry.at(), Some(now + silence_pause(20, 0.0)));
        assert_eq!(retry.after_failure(now, 0.0, Duration::ZERO).at(), Some(now + retry_pause(2, 0.0)));
    }

    #[test]
    fn s40_the_server_may_ask_for_more() {
        let now = Instant::now();
        let retry = Retry::default().after_failure(now, 0.0, Duration::from_secs(7));
        assert_eq!(retry.pending(now), Some(now + Duration::from_secs(7)));
        assert_eq!(retry.pending(now + Duration::from_secs(7)), None);
    }
}
