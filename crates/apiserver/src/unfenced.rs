//! That another writer may be free to write: nothing is taken away while that lasts.
//!
//! In: whether what keeps the other from writing (a fence, of which nothing is known here) was found in force. Out: an
//! [`Unfenced`], which every destructive request asks first, beside the [`super::restore::RestoreGrace`].

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

/// That a fence is found again is noticed so much later.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Until when nothing is taken away because a fence was lost, shared by all parts.
#[derive(Clone, Debug, Default)]
pub struct Unfenced(Arc<watch::Sender<Sight>>);

/// What was last seen of the fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sight {
    /// Nothing: it is not asked for, or was not looked at yet.
    #[default]
    None,
    /// It is in force.
    Found,
    /// It was lost: until then nothing is taken away.
    Lost(Instant),
}

impl Unfenced {
    /// The fence was not found in force. From the first time on, so long nothing is taken away; then whether another writes
    /// is judged by what it has written.
    pub fn lost(&self, now: Instant, lasts: Duration) {
        self.0.send_if_modified(|sight| {
            let begins = !matches!(sight, Sight::Lost(_));
            if begins {
                *sight = Sight::Lost(now + lasts);
            }
            begins
        });
    }

    /// This process begins to lead. What it saw of another writer while it stood by does not count, so if the fence is lost,
    /// the time begins anew, even if it has run out.
    pub fn lead(&self, now: Instant, lasts: Duration) {
        self.0.send_if_modified(|sight| {
            let is_lost = matches!(sight, Sight::Lost(_));
            if is_lost {
                *sight = Sight::Lost(now + lasts);
            }
            is_lost
        });
    }

    /// The fence was found in force.
    pub fn found(&self) {
        self.0.send_if_modified(|sight| std::mem::replace(sight, Sight::Found) != Sight::Found);
    }

    /// Whether the fence was in force when it was last looked at.
    #[must_use]
    pub fn is_in_force(&self) -> bool {
        *self.0.borrow() == Sight::Found
    }

    /// Until when nothing is taken away; `None` if there is no cause.
    #[must_use]
    pub fn until(&self, now: Instant) -> Option<Instant> {
        match *self.0.borrow() {
            Sight::Lost(until) if until > now => Some(until),
            Sight::None | Sight::Found | Sight::Lost(_) => None,
        }
    }

    /// When to ask again: it may be over earlier than it was to last.
    #[must_use]
    pub fn look_again(&self, now: Instant) -> Option<Instant> {
        self.until(now).map(|until| until.min(now + LOOK_AGAIN))
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
