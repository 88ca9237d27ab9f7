//! Which lines are too much of the same. Pure: time comes in as an argument.
//!
//! In: where a line comes from and why, and what it repeats. Out: whether it is written, and how many from there
//! were left out before it. Two rules: so many lines a second from one place for one reason; and an attempt that
//! failed like the one before is said once in a while.

use std::{num::NonZeroUsize, time::Duration};

use lru::LruCache;
use tokio::time::Instant;

/// Lines that may come at once from one place for one reason. A drain of a full rack makes some hundred.
pub const BURST: u32 = 1_000;

/// How long one more line of a place and reason takes to be allowed: 100 a second, some 2 MiB a minute.
pub const REFILL: Duration = Duration::from_millis(10);

/// An attempt that fails as before is said again after so long.
pub const REPEAT: Duration = Duration::from_mins(10);

/// Places and reasons that are remembered: there are fewer than 300 in the program.
const SOURCES: NonZeroUsize = NonZeroUsize::new(1_024).unwrap();

/// Repeated lines that are remembered. Beyond, one may be said once more.
const REPETITIONS: NonZeroUsize = NonZeroUsize::new(8_192).unwrap();

/// What one place may still say.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: u32,
    filled_at: Instant,
    left_out: u64,
}

impl Bucket {
    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.filled_at).as_nanos() / REFILL.as_nanos();
        if passed > 0 {
            let more = u32::try_from(passed).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(more).min(BURST);
            self.filled_at = now;
        }
    }
}

/// What has been written of late.
#[derive(Debug)]
pub struct Limit {
    buckets: LruCache<u64, Bucket, ahash::RandomState>,
    said: LruCache<u64, Instant, ahash::RandomState>,
}

impl Default for Limit {
    fn default() -> Self {
        Self {
            buckets: LruCache::with_hasher(SOURCES, ahash::RandomState::new()),
            said: LruCache::with_hasher(REPETITIONS, ahash::RandomState::new()),
        }
    }
}

impl Limit {
    /// Whether a line is written, with the number of those that were left out since the last one from its source.
    pub fn admit(&mut self, source: u64, repetition: Option<u64>, now: Instant) -> Option<u64> {
        let bucket =
            self.buckets.get_or_insert_mut(source, || Bucket { left: BURST, filled_at: now, left_out: 0 });
        bucket.refill(now);
        let said = repetition.and_then(|line| self.said.get(&line)).copied();
        let is_repeated = said.is_some_and(|at| now < at + REPEAT);
        if is_repeated || bucket.left == 0 {
            bucket.left_out += 1;
            return None;
        }
        bucket.left -= 1;
        let left_out = std::mem::take(&mut bucket.left_out);
        if let Some(line) = repetition {
            self.said.put(line, now);
        }
        Some(left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_may_say_much_at_once_and_then_as_much_as_time_allows() {
        let (start, mut limit) = (Instant::now(), Limit::default());
        for _ in 0..BURST {
            assert_eq!(limit.admit(1, None, start), Some(0));
        }
        assert_eq!((limit.admit(1, None, start), limit.admit(1, None, start)), (None, None));
        assert_eq!(limit.admit(2, None, start), Some(0), "another source is not held to account");
        let later = start + REFILL;
        assert_eq!((limit.admit(1, None, later), limit.admit(1, None, later)), (Some(2), None));
        let much_later = start + Duration::from_hours(1);
        assert_eq!(limit.admit(1, None, much_later), Some(1));
        let rest = (0..2 * BURST).filter(|_| limit.admit(1, None, much_later).is_some()).count();
        assert_eq!(rest, usize::try_from(BURST).unwrap() - 1);
    }

    #[test]
    fn what_is_repeated_is_said_again_after_a_while_with_their_number() {
        let (start, mut limit) = (Instant::now(), Limit::default());
        assert_eq!(limit.admit(1, Some(7), start), Some(0));
        assert_eq!(limit.admit(1, Some(7), start + REPEAT / 2), None);
        assert_eq!(limit.admit(1, Some(8), start + REPEAT / 2), Some(1));
        assert_eq!(limit.admit(1, Some(7), start + REPEAT), Some(0));
    }
}
