//! Whether this process may write, and until when.
//!
//! The elector extends the term after each renewal of the lease; every write asks first. A term
//! begins only after the take-over barrier ([`super::elector`]): whoever waits for
//! [`Leadership::acquired`] sees what earlier leaders wrote. Times are monotonic: a jump of the wall
//! clock neither ends nor prolongs a term (S36).

use std::sync::Arc;

use tokio::{sync::watch, time::Instant};

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
    term: Arc<watch::Sender<Term>>,
}

impl Leadership {
    /// Nobody's term yet.
    #[must_use]
    pub fn new(term: Term) -> Self {
        Self { term: Arc::new(watch::Sender::new(term)) }
    }

    /// Begins, extends or ends the term.
    pub fn set(&self, term: Term) {
        self.term.send_replace(term);
    }

    /// The term as it stands.
    #[must_use]
    pub fn term(&self) -> Term {
        *self.term.borrow()
    }

    /// Whether a write may be sent now.
    #[must_use]
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
        let _ = term.wait_for(|term| *term != Term::None).await;
    }

    /// Waits until this process no longer leads.
    pub async fn lost(&self) {
        let mut term = self.term.subscribe();
        let _ = term.wait_for(|term| *term == Term::None).await;
    }
}
