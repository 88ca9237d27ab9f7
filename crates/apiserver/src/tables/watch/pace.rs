//! How often to ask: pauses after failures, and the distance between two lists. Pure: time and jitter come in as
//! arguments.
//!
//! Only success starts the pauses over: a list that reached its end, or a watch that brought something or
//! stayed open. A server that asks to wait is heard, within reason.

use std::time::Duration;

use tokio::time::Instant;

/// First pause after a failure. Long enough for a server that is just restarting, short enough for a blip.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause that we choose ourselves: work has to resume within 5 s of the end of an outage (L16).
const LONGEST_PAUSE: Duration = Duration::from_millis(2_500);
/// Longest pause after requests that took long, and so cost the server much, each time and for every replica. client-go's.
const LONGEST_PAUSE_AFTER_WORK: Duration = Duration::from_secs(30);
/// What took so long has cost the server something: to connect takes less.
const LONG: Duration = Duration::from_secs(10);
/// Longest pause that a server may ask for. A mistyped header must not park a kind for a day.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(30);
/// Lists of one kind begin at least so far apart (safety E5).
const BETWEEN_LISTS: Duration = Duration::from_secs(1);
/// Largest distance of lists between which no watch was well: each takes longer than the server remembers, or
/// none can be watched from. client-go's.
const FAR_BETWEEN_LISTS: Duration = Duration::from_secs(30);

/// The pace of one kind's lists and watches.
#[derive(Clone, Debug)]
pub struct Pace {
    step: Duration,
    last_list: Option<Instant>,
    between_lists: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { step: FIRST_PAUSE, last_list: None, between_lists: BETWEEN_LISTS }
    }
}

impl Pace {
    /// How long to pause after a failure that took that long: between half of the current step and all of it, as
    /// `jitter` in 0..=1 says, and no less than the server asks for.
    pub fn failed(&mut self, took: Duration, retry_after: Option<Duration>, jitter: f64) -> Duration {
        let longest = if took >= LONG { LONGEST_PAUSE_AFTER_WORK } else { LONGEST_PAUSE };
        let step = self.step.min(longest);
        self.step = (step * 2).min(longest);
        let jitter = jitter.clamp(0.0, 1.0);
        let own = step.mul_f64(0.5 + jitter / 2.0);
        // Those who are told the same time must not come back at the same time.
        let asked = retry_after.map(|asked| asked.min(LONGEST_RETRY_AFTER).mul_f64(1.0 + jitter / 10.0));
        asked.map_or(own, |asked| asked.max(own))
    }

    /// Something came of it: the next failure is a first one.
    pub fn succeeded(&mut self) {
        self.step = FIRST_PAUSE;
    }

    /// When the next list may begin.
    pub(crate) fn next_list(&self, now: Instant, jitter: f64) -> Instant {
        let spread = self.between_lists.mul_f64(1.0 + jitter.clamp(0.0, 1.0) / 4.0);
        self.last_list.map_or(now, |last| (last + spread).max(now))
    }

    /// A list begins.
    pub(crate) fn list_begun(&mut self, now: Instant) {
        self.last_list = Some(now);
    }

    /// A list reached its end.
    pub fn listed(&mut self) {
        self.between_lists = (self.between_lists * 2).min(FAR_BETWEEN_LISTS);
    }

    /// A watch was well: what comes next is not the fault of the list before it.
    pub fn watched(&mut self) {
        self.between_lists = BETWEEN_LISTS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s40_pauses_double_up_to_the_limit_and_only_success_starts_them_over() {
        let mut pace = Pace::default();
        let mut after = |seconds, jitter| pace.failed(Duration::from_secs(seconds), None, jitter).as_millis();
        let pauses: Vec<u128> = (0..6).map(|_| after(9, 1.0)).collect();
        assert_eq!(pauses, [200, 400, 800, 1_600, 2_500, 2_500]);
        assert_eq!(after(0, 0.0), 1_250);
        // A list that runs into its deadline, again and again; and then an outage.
        let pauses: Vec<u128> = (0..6).map(|_| after(60, 1.0)).collect();
        assert_eq!(pauses, [2_500, 5_000, 10_000, 20_000, 30_000, 30_000]);
        assert_eq!(after(60, 0.0), 15_000);
        assert_eq!(after(5, 1.0), 2_500);
        pace.succeeded();
        assert_eq!(pace.failed(Duration::ZERO, None, 0.0), Duration::from_millis(100));
    }

    #[test]
    fn s40_a_server_that_asks_to_wait_is_heard_within_reason() {
        let cases = [(0, 200), (5, 5_500), (30, 33_000), (86_400, 33_000), (u64::MAX, 33_000)];
        for (asked, expected) in cases {
            let pause = Pace::default().failed(Duration::ZERO, Some(Duration::from_secs(asked)), 1.0);
            assert_eq!(pause, Duration::from_millis(expected), "{asked} s");
        }
    }

    #[test]
    fn e5_lists_of_a_kind_are_at_least_a_second_apart() {
        let mut pace = Pace::default();
        let start = Instant::now();
        assert_eq!(pace.next_list(start, 0.0), start);
        pace.list_begun(start);
        assert_eq!(pace.next_list(start, 0.0), start + Duration::from_secs(1));
        assert_eq!(pace.next_list(start, 1.0), start + Duration::from_millis(1_250));
        let later = start + Duration::from_hours(1);
        assert_eq!(pace.next_list(later, 1.0), later);
    }

    #[test]
    fn e5_lists_after_which_no_watch_is_well_come_ever_more_rarely() {
        let mut pace = Pace::default();
        let start = Instant::now();
        let mut distances = Vec::new();
        for _ in 0..8 {
            pace.list_begun(start);
            pace.listed();
            distances.push((pace.next_list(start, 0.0) - start).as_secs());
        }
        assert_eq!(distances, [2, 4, 8, 16, 30, 30, 30, 30]);
        pace.watched();
        assert_eq!(pace.next_list(start, 0.0), start + Duration::from_secs(1));
    }
}
