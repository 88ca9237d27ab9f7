//! Whether this process may write, and until when a write of it may still be carried out.
//!
//! The elector extends the term after each renewal of the lease; every write asks first. A term
//! begins only after the take-over barrier ([`super::elector`]): a task that waits for
//! [`Leadership::acquired`] sees what earlier leaders wrote. Times are monotonic: a jump of the wall
//! clock neither ends nor prolongs a term (S36). That clock stands still while the machine is suspended, so a term
//! is over when that has happened since the lease was renewed ([`super::suspension`]).
//!
//! What was sent, and may be carried out by the server although it is not known to have been, is noted
//! here, too ([`Landing`]): the lease is not given up before that is over (S37).

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::suspension::Suspended;

/// The current right to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Term {
    /// Not the leader.
    #[default]
    None,
    /// Leader until the deadline, unless renewed.
    Until(Instant),
    /// Leader election is off: this process is told to be the only one.
    Unlimited,
}

/// Shared view of the term: written by the elector, read before every write.
#[derive(Clone, Debug)]
pub struct Leadership {
    term: Arc<watch::Sender<(Term, Suspended)>>,
    suspended: fn() -> Suspended,
    reserve: Duration,
    landings: Arc<watch::Sender<BTreeMap<u64, Instant>>>,
    numbers: Arc<AtomicU64>,
}

impl Leadership {
    /// No term yet.
    pub fn new(term: Term) -> Self {
        Self {
            term: Arc::new(watch::Sender::new((term, Suspended::until_now()))),
            suspended: Suspended::until_now,
            reserve: Duration::ZERO,
            landings: Arc::default(),
            numbers: Arc::default(),
        }
    }

    /// The same, with the time after the end of a term in which no other process leads yet
    /// ([`super::lease::Timing::reserve`]): a write that was sent within the term may be carried out until
    /// that is over, too.
    #[must_use]
    pub fn with_reserve(self, reserve: Duration) -> Self {
        Self { reserve, ..self }
    }

    /// The same with another look at the machine's clocks, which is taken whenever the term is asked for.
    #[cfg(test)]
    pub(super) fn looking_by(self, suspended: fn() -> Suspended) -> Self {
        Self { suspended, ..self }
    }

    /// How long the machine has been suspended since it started.
    pub(crate) fn suspended(&self) -> Suspended {
        (self.suspended)()
    }

    /// Begins, extends or ends the term.
    pub fn set(&self, term: Term) {
        self.set_since(term, self.suspended());
    }

    /// Begins or extends the term by a renewal, when it was sent.
    pub(crate) fn set_since(&self, term: Term, suspended: Suspended) {
        self.term.send_replace((term, suspended));
    }

    /// The term as it stands.
    pub fn term(&self) -> Term {
        let (term, suspended) = *self.term.borrow();
        match term {
            Term::Until(_) if self.suspended().is_more_than(suspended) => Term::None,
            term => term,
        }
    }

    /// How long after the end of a term no other process leads yet.
    pub fn reserve(&self) -> Duration {
        self.reserve
    }

    /// Tells of each beginning, extension and end of the term.
    pub(crate) fn terms(&self) -> watch::Receiver<(Term, Suspended)> {
        self.term.subscribe()
    }

    /// Whether a write may be sent now.
    pub fn may_write(&self, now: Instant) -> bool {
        match self.term() {
            Term::None => false,
            Term::Until(deadline) => now < deadline,
            Term::Unlimited => true,
        }
    }

    /// Waits until this process leads.
    pub async fn acquired(&self) {
        let mut term = self.term.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = term.wait_for(|(term, _)| *term != Term::None).await;
    }

    /// Waits until this process may write again, if it ever may: a term that ends because the lease is lost ends the
    /// process with it.
    pub async fn regained(&self) {
        let mut terms = self.terms();
        while !self.may_write(Instant::now()) {
            // The sender lives in `self`, so waiting cannot fail.
            let _ = terms.changed().await;
        }
    }

    /// A write that is about to be sent.
    pub(crate) fn landing(&self) -> Landing {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        Landing { leadership: self.clone(), number }
    }

    /// Until when a write that was sent may still be carried out; `None` if there is no such write.
    pub fn unsettled(&self, now: Instant) -> Option<Instant> {
        self.landings.borrow().values().copied().max().filter(|until| *until > now)
    }

    /// Waits until no write that was sent can be carried out any more.
    pub async fn settled(&self) {
        let mut landings = self.landings.subscribe();
        while let Some(until) = self.unsettled(Instant::now()) {
            tokio::select! {
                () = sleep_until(until) => {}
                _ = landings.changed() => {}
            }
        }
    }
}

/// One write between the moment it leaves and the moment its outcome is known. Of a write whose outcome
/// never becomes known, the time stays noted until it has passed.
#[derive(Debug)]
pub struct Landing {
    leadership: Leadership,
    number: u64,
}

impl Landing {
    /// It leaves now, and the server gives it up at the given time at the latest.
    pub fn leaves(&self, until: Instant) {
        let now = Instant::now();
        self.leadership.landings.send_modify(|landings| {
            landings.retain(|_, until| *until > now);
            landings.insert(self.number, until);
        });
    }

    /// Its outcome is known.
    pub fn landed(&self) {
        self.leadership.landings.send_if_modified(|landings| landings.remove(&self.number).is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn e9_a_term_ends_when_the_machine_is_suspended_and_goes_on_with_the_next_renewal() {
        /// A machine that has been suspended for some hundred seconds at least since it started.
        fn awake() -> Suspended {
            Suspended::of(Duration::from_secs(100))
        }
        let leadership = Leadership::new(Term::None).looking_by(awake);
        let term = Term::Until(Instant::now() + Duration::from_secs(10));
        leadership.set_since(term, Suspended::of(Duration::from_secs(99)));
        assert_eq!((leadership.term(), leadership.may_write(Instant::now())), (Term::None, false));
        leadership.set_since(term, awake());
        assert_eq!((leadership.term(), leadership.may_write(Instant::now())), (term, true));
    }

    #[tokio::test(start_paused = true)]
    async fn s37_what_may_still_be_carried_out_is_waited_for() {
        let leadership = Leadership::new(Term::Unlimited);
        let start = Instant::now();
        leadership.settled().await;
        let [answered, unanswered] = [(); 2].map(|()| leadership.landing());
        answered.leaves(start + Duration::from_secs(12));
        unanswered.leaves(start + Duration::from_secs(7));
        assert_eq!(leadership.unsettled(start), Some(start + Duration::from_secs(12)));
        answered.landed();
        drop(unanswered);
        leadership.settled().await;
        assert_eq!(start.elapsed(), Duration::from_secs(7));
        assert_eq!(leadership.unsettled(Instant::now()), None);
    }
}
