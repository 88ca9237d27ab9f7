//! Undone: how often in a row other writers have undone a write of ours, and when it may be repeated (S46). Pure.
//!
//! In: our write as it is sent and as it lands, and that another writer has undone it, with the time and chance as
//! arguments. Out: until when it is not repeated. A write that has stood for a minute is repeated at once.

use std::time::Duration;

use apiserver::backoff::undone_pause;
use tokio::time::Instant;

/// What has stood for so long was not undone at once: that others undo it then is no fight.
pub const STANDS: Duration = Duration::from_mins(1);

/// How often others have undone a write, and when it may be repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Undone {
    times: u32,
    /// When it was first sent since it was last undone.
    written: Option<Instant>,
    again_at: Option<Instant>,
}

impl Undone {
    /// Undone for the first time: how long it had stood does not matter, as it is repeated at once.
    pub fn once() -> Self {
        Self { times: 1, ..Self::default() }
    }

    /// It is sent.
    pub fn sent(&mut self, now: Instant) {
        // It has stood, or a minute ago it could have been repeated and was not.
        let is_forgotten = self.written.is_none() && self.again_at.is_some_and(|at| at + STANDS <= now);
        if self.stands(now) || is_forgotten {
            self.times = 0;
        }
        self.written.get_or_insert(now);
    }

    /// It has landed; `jitter`, below 1, is for the pause before it is repeated.
    pub fn landed(&mut self, now: Instant, jitter: f64) {
        self.again_at = (self.times > 0).then(|| now + undone_pause(self.times, jitter));
    }

    /// Another writer has undone it. That one before us was undone is no act against this process.
    pub fn undone(&mut self, now: Instant) {
        if self.stands(now) {
            (self.times, self.again_at) = (0, None);
        }
        if self.written.take().is_some() {
            self.times = self.times.saturating_add(1);
        }
    }

    /// We take it back ourselves: what ends it then is no act of another.
    pub fn withdrawn(&mut self, now: Instant) {
        if self.stands(now) {
            self.times = 0;
        }
        (self.written, self.again_at) = (None, None);
    }

    /// Until when it is not repeated.
    pub fn pending(&self, now: Instant) -> Option<Instant> {
        self.again_at.filter(|at| self.written.is_none() && *at > now)
    }

    /// Whether it has stood for a minute, or a minute has passed since it could be repeated: nothing is left to remember.
    pub fn is_over(&self, now: Instant) -> bool {
        self.stands(now) || (self.written.is_none() && self.again_at.is_none_or(|at| at + STANDS <= now))
    }

    fn stands(&self, now: Instant) -> bool {
        self.written.is_some_and(|at| at + STANDS <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// When it is written within so many seconds, if it is undone that long after each time.
    fn writes(undone_after: Duration, jitter: f64, seconds: u32) -> Vec<f64> {
        let start = Instant::now();
        let (mut undone, mut now, mut writes) = (Undone::default(), start, Vec::new());
        while now < start + seconds * SECOND {
            undone.sent(now);
            undone.landed(now, jitter);
            writes.push((now - start).as_secs_f64());
            now += undone_after;
            undone.undone(now);
            now = undone.pending(now).unwrap_or(now);
        }
        writes
    }

    #[test]
    fn s46_what_is_undone_at_once_is_written_ten_times_in_a_minute_and_then_each_twenty_to_thirty_seconds() {
        for jitter in [0.0, 0.5, 0.999] {
            let writes = writes(Duration::from_millis(1), jitter, 600);
            let first = writes.iter().filter(|at| **at < 60.0).count();
            assert!((8..=11).contains(&first), "{jitter}: {writes:?}");
            let later: Vec<f64> =
                writes.windows(2).filter(|two| two[0] > 60.0).map(|two| two[1] - two[0]).collect();
            assert!(later.len() > 10 && later.iter().all(|pause| (20.0..=30.0).contains(pause)), "{later:?}");
        }
    }

    #[test]
    fn s46_a_fight_that_ended_undone_is_forgotten_after_a_minute() {
        let (mut undone, mut now) = (Undone::default(), Instant::now());
        for _ in 0..5 {
            undone.sent(now);
            undone.landed(now, 0.0);
            undone.undone(now);
            now = undone.pending(now).unwrap_or(now);
        }
        now += STANDS;
        undone.sent(now);
        undone.landed(now, 0.0);
        undone.undone(now + SECOND);
        assert_eq!(undone.pending(now + SECOND), None);
    }

    #[test]
    fn s46_what_stands_for_a_minute_is_repeated_at_once_and_what_was_before_is_forgotten() {
        assert_eq!(writes(60 * SECOND, 0.0, 600).len(), 10);
        let (now, mut undone) = (Instant::now(), Undone::default());
        for _ in 0..9 {
            undone.sent(now);
            undone.undone(now);
        }
        undone.sent(now);
        undone.landed(now, 0.0);
        undone.undone(now + 60 * SECOND);
        assert_eq!(undone.pending(now + 60 * SECOND), None);
        undone.sent(now + 60 * SECOND);
        undone.sent(now + 120 * SECOND);
        undone.landed(now + 120 * SECOND, 0.0);
        undone.undone(now + 121 * SECOND);
        assert_eq!(undone.pending(now + 121 * SECOND), None, "it stood until it was written anew");
    }

    #[test]
    fn s46_what_is_undone_before_its_answer_waits_all_the_same() {
        let (now, mut undone) = (Instant::now(), Undone::default());
        for _ in 0..4 {
            undone.sent(now);
            undone.undone(now);
            undone.landed(now, 0.0);
        }
        assert_eq!(undone.pending(now), Some(now + undone_pause(4, 0.0)));
    }

    #[test]
    fn s46_only_what_this_process_wrote_is_undone() {
        let (now, mut undone) = (Instant::now(), Undone::default());
        for _ in 0..9 {
            undone.undone(now);
        }
        assert_eq!(undone, Undone::default());
        undone.sent(now);
        undone.landed(now, 0.0);
        assert_eq!(undone.pending(now), None, "what stands is not held back");
    }
}
