//! The time on the embedded server.
//!
//! It is a start time plus the time that tokio's clock has measured since. So a test with paused time
//! also moves creation timestamps, grace periods and watch timeouts, and the server never waits in real
//! time.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// A wall clock that follows tokio's.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Timestamp,
    since: Instant,
}

impl Clock {
    /// A clock that shows `start` now.
    pub fn starting_at(start: Timestamp) -> Self {
        Self { start, since: Instant::now() }
    }

    /// The time, to the second: finer digits are never stored in metadata.
    pub fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.since.elapsed()).unwrap_or(SignedDuration::ZERO);
        self.start.checked_add(elapsed).unwrap_or(self.start)
    }

    /// The time as objects carry it.
    pub fn text(&self) -> String {
        seconds_text(self.now())
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::starting_at(Timestamp::now())
    }
}

/// RFC 3339, whole seconds, UTC.
pub fn seconds_text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// RFC 3339, microseconds, UTC.
pub fn microseconds_text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}
