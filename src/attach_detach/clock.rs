//! The cluster's time, carried on by the monotonic clock.
//!
//! Objects bear wall-clock times, and a detach is forced by them. The wall clock is read once, at start;
//! from then on it is the monotonic clock that advances it, so a jump of the wall clock can neither force
//! a detach early nor put it off (E10).

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

/// Where both clocks stood at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    wall: Timestamp,
    monotonic: Instant,
}

impl Clock {
    /// Both clocks at one moment.
    #[must_use]
    pub fn new(wall: Timestamp, monotonic: Instant) -> Self {
        Self { wall, monotonic }
    }

    /// The cluster's time at a later moment.
    #[must_use]
    pub fn wall(&self, now: Instant) -> Timestamp {
        // An instant that cannot be represented is one that does not come.
        self.wall.checked_add(now.saturating_duration_since(self.monotonic)).unwrap_or(Timestamp::MAX)
    }

    /// The moment of a time of the cluster, if it is not past.
    #[must_use]
    pub fn instant(&self, wall: Timestamp) -> Option<Instant> {
        self.monotonic.checked_add(wall.duration_since(self.wall).try_into().ok()?)
    }
}
