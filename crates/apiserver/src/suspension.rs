//! Whether the machine was suspended: a term must not outlast that (E9).
//!
//! The clock that terms are counted on stands still while a machine is suspended or a virtual one is paused with its
//! host's co-operation; another clock of the kernel goes on. Their difference is how long the machine was suspended
//! since it started. A virtual machine that is stopped without being told sees neither clock move: which no process can
//! tell from within, and only the API server's refusal of a stale revision is left against it.

use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Longer than any error of reading clocks, and shorter than anything that matters to a lease.
const TOLERANCE: Duration = Duration::from_millis(100);

/// How long the machine has been suspended since it started, as far as clocks can tell that are read one after
/// the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Suspended {
    at_least: Duration,
    at_most: Duration,
}

impl Suspended {
    /// Until now.
    pub(crate) fn until_now() -> Self {
        let before = duration(clock_gettime(ClockId::Monotonic));
        let whole = duration(clock_gettime(ClockId::Boottime));
        let after = duration(clock_gettime(ClockId::Monotonic));
        // However long this thread had to wait in between.
        Self { at_least: whole.saturating_sub(after), at_most: whole.saturating_sub(before) }
    }

    /// Exactly so long.
    #[cfg(test)]
    pub(super) fn of(duration: Duration) -> Self {
        Self { at_least: duration, at_most: duration }
    }

    /// Whether the machine was suspended since that was found.
    pub(crate) fn is_more_than(self, earlier: Self) -> bool {
        self.at_least > earlier.at_most + TOLERANCE
    }
}

fn duration(time: Timespec) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_is_not_a_machine_that_sleeps() {
        let of = |at_least, at_most| Suspended {
            at_least: Duration::from_millis(at_least),
            at_most: Duration::from_millis(at_most),
        };
        assert!(!of(0, 5_000).is_more_than(of(0, 0)), "the thread waited between two clocks");
        assert!(!of(90, 91).is_more_than(of(0, 0)));
        assert!(of(1_000, 1_001).is_more_than(of(0, 1)));
        assert!(!of(1_000, 1_001).is_more_than(of(1_000, 1_001)));
        assert!(!Suspended::until_now().is_more_than(Suspended::until_now()));
    }
}
