//! The clock of this process: the time of day as it was read at start, carried on by the monotonic clock.
//!
//! Waits are counted on it, and it is shown. It is never compared with a time that another machine wrote (S4, S6, E10);
//! and as it is read once, a jump of the wall clock changes nothing. While the machine is suspended it stands still, as
//! the monotonic clock does: what was not observed does not count as waited.

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
    pub fn new(wall: Timestamp, monotonic: Instant) -> Self {
        Self { wall, monotonic }
    }

    /// What it shows at a later moment.
    pub fn wall(&self, now: Instant) -> Timestamp {
        // An instant that cannot be represented is one that does not come.
        self.wall.checked_add(now.saturating_duration_since(self.monotonic)).unwrap_or(Timestamp::MAX)
    }

    /// The moment at which it shows that, if that is not past.
    pub(crate) fn instant(&self, wall: Timestamp) -> Option<Instant> {
        self.monotonic.checked_add(wall.duration_since(self.wall).try_into().ok()?)
    }
}
