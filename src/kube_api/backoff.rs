//! Pauses between attempts: doubling up to a limit, with jitter so that replicas and watches do not
//! come back all at once.

use std::time::Duration;

/// The first pause. Long enough for a server that is just restarting, short enough for a blip.
const FIRST: Duration = Duration::from_millis(200);

/// An endless series of pauses.
#[derive(Clone, Debug)]
pub struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// Pauses of up to `longest`.
    #[must_use]
    pub fn new(longest: Duration) -> Self {
        Self { next: FIRST.min(longest), longest }
    }

    /// The next pause: between half of the current step and all of it.
    pub fn pause(&mut self) -> Duration {
        let step = self.next;
        self.next = (step * 2).min(self.longest);
        step.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.pause())
    }
}

impl kube::runtime::utils::Backoff for Backoff {
    fn reset(&mut self) {
        *self = Self::new(self.longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_limit_and_start_over() {
        let mut backoff = Backoff::new(Duration::from_secs(1));
        for step in [200, 400, 800, 1_000, 1_000] {
            let pause = backoff.pause();
            let step = Duration::from_millis(step);
            assert!(pause >= step / 2 && pause <= step, "{pause:?} of {step:?}");
        }
        kube::runtime::utils::Backoff::reset(&mut backoff);
        assert!(backoff.pause() <= FIRST);
    }
}
