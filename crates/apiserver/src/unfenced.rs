//! That another writer may write: nothing is taken away while it is free to, and nothing new is begun while work changes hands.
//!
//! In: whether what keeps the other from writing (a fence, of which nothing is known here) was found in force, since when, and
//! whether the other is to take over. Out: an [`Unfenced`], which every destructive request asks first, beside the
//! [`super::restore::RestoreGrace`], and which those ask that no precondition guards.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// That a fence is found again is noticed so much later.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Why nothing new is begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unbegun {
    /// Until then, a request of the other may be carried out that was admitted before it was fenced off.
    Settling(Instant),
    /// The other takes over.
    Draining,
}

#[derive(Debug, Default)]
struct Limits {
    /// Until when nothing is taken away, since the fence was lost.
    lost: Option<Instant>,
    /// Whether it was in force when it was last looked at.
    is_in_force: bool,
    settles: Option<Instant>,
    drains: bool,
}

/// What is not done because another writer may write, shared by all parts.
#[derive(Clone, Debug, Default)]
pub struct Unfenced(Arc<Mutex<Limits>>);

impl Unfenced {
    /// The fence was not found in force. From the first time on, so long nothing is taken away; then whether another writes
    /// is judged by what it has written.
    pub fn lost(&self, now: Instant, lasts: Duration) {
        let mut limits = self.0.lock();
        limits.is_in_force = false;
        limits.lost.get_or_insert(now + lasts);
    }

    /// This process begins to lead. What it saw of another writer while it stood by does not count, so if the fence is lost,
    /// the time begins anew, even if it has run out.
    pub fn lead(&self, now: Instant, lasts: Duration) {
        let lost = &mut self.0.lock().lost;
        *lost = lost.map(|_| now + lasts);
    }

    /// The fence was found in force.
    pub fn found(&self) {
        let mut limits = self.0.lock();
        (limits.lost, limits.is_in_force) = (None, true);
    }

    /// Whether the fence was in force when it was last looked at.
    pub fn is_in_force(&self) -> bool {
        self.0.lock().is_in_force
    }

    /// Requests of the other that were admitted before may be carried out until then.
    pub fn settle(&self, until: Instant) {
        self.0.lock().settles = Some(until);
    }

    /// Whether the other takes over.
    pub fn drain(&self, drains: bool) {
        self.0.lock().drains = drains;
    }

    /// Until when nothing is taken away; `None` if there is no cause.
    pub fn until(&self, now: Instant) -> Option<Instant> {
        self.0.lock().lost.filter(|until| *until > now)
    }

    /// Why nothing new is begun; `None` if there is no cause.
    pub fn begins_nothing(&self, now: Instant) -> Option<Unbegun> {
        let limits = self.0.lock();
        let settles = limits.settles.filter(|until| *until > now).map(Unbegun::Settling);
        if limits.drains { Some(Unbegun::Draining) } else { settles }
    }

    /// When to ask again: it may be over earlier than it was to last.
    pub fn look_again(&self, now: Instant) -> Option<Instant> {
        let begins = self.begins_nothing(now).map(|why| match why {
            Unbegun::Settling(until) => until,
            Unbegun::Draining => now + LOOK_AGAIN,
        });
        self.until(now).into_iter().chain(begins).min().map(|until| until.min(now + LOOK_AGAIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s14_a_lost_fence_holds_up_for_so_long_or_until_it_is_found() {
        let (unfenced, start, lasts) = (Unfenced::default(), Instant::now(), Duration::from_mins(10));
        assert_eq!(unfenced.until(start), None);
        unfenced.lost(start, lasts);
        unfenced.lost(start + LOOK_AGAIN, lasts);
        assert_eq!(unfenced.until(start), Some(start + lasts), "seen again, it does not begin anew");
        assert_eq!(unfenced.look_again(start), Some(start + LOOK_AGAIN));
        assert_eq!(unfenced.until(start + lasts), None);
        assert!(!unfenced.is_in_force());
        unfenced.found();
        assert_eq!(unfenced.until(start), None);
        assert!(unfenced.is_in_force());
    }

    #[test]
    fn s1_nothing_is_begun_while_requests_of_another_settle_or_it_takes_over() {
        let (unfenced, start, minute) = (Unfenced::default(), Instant::now(), Duration::from_mins(1));
        assert_eq!(unfenced.begins_nothing(start), None);
        unfenced.settle(start + minute);
        assert_eq!(unfenced.begins_nothing(start), Some(Unbegun::Settling(start + minute)));
        assert_eq!(unfenced.look_again(start), Some(start + LOOK_AGAIN));
        unfenced.drain(true);
        assert_eq!(unfenced.begins_nothing(start), Some(Unbegun::Draining));
        unfenced.drain(false);
        assert_eq!(unfenced.begins_nothing(start + minute), None);
        assert_eq!(unfenced.look_again(start + minute), None);
    }

    #[test]
    fn s14_who_begins_to_lead_while_the_fence_is_lost_waits_the_whole_time() {
        let (unfenced, start, lasts) = (Unfenced::default(), Instant::now(), Duration::from_mins(10));
        unfenced.lead(start, lasts);
        assert_eq!(unfenced.until(start), None, "nothing is lost");
        unfenced.lost(start, lasts);
        let later = start + lasts + lasts;
        unfenced.lead(later, lasts);
        assert_eq!(unfenced.until(later), Some(later + lasts));
        unfenced.found();
        assert_eq!(unfenced.until(later), None);
    }
}
