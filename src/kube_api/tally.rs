//! Tally: what a leader counts for its successor, kept on the lease.
//!
//! In: the leader's count. Out: with each renewal it is on the lease; who takes the lease over knows what it said then.
//! No process leads without renewing, so the lease is the one place where a leader that may write nothing else still
//! tells something, and no clock is asked how old that is. Until this process leads it leaves what another told.

use std::{
    fmt::{self, Display},
    sync::Arc,
};

use tokio::sync::watch;

/// A count and whose it is: that of another process says nothing of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// The identity of the process, as the lease has it.
    pub by: String,
    /// How much it has counted.
    pub count: u64,
}

impl Tally {
    /// Reads what [`Display`] writes; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (count, by) = text.split_once(' ')?;
        Some(Self { by: by.to_owned(), count: count.parse().ok()? })
    }
}

impl Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.count, self.by)
    }
}

/// The tally of this process, shared by who counts and who renews.
#[derive(Clone, Debug, Default)]
pub struct LeaseTally {
    own: Arc<watch::Sender<Option<u64>>>,
    left: Arc<watch::Sender<Option<Tally>>>,
}

impl LeaseTally {
    /// The leader has counted so much.
    pub fn set(&self, count: u64) {
        self.own.send_if_modified(|own| own.replace(count) != Some(count));
    }

    /// What this process has counted; `None` as long as it has not led.
    #[must_use]
    pub fn own(&self) -> Option<u64> {
        *self.own.borrow()
    }

    /// Notes what the lease told when this process asked for it.
    pub fn leave(&self, left: Option<Tally>) {
        self.left.send_replace(left);
    }

    /// What the last leader had counted when it last renewed, if it told.
    #[must_use]
    pub fn left(&self) -> Option<Tally> {
        self.left.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_is_read_as_it_was_written_and_nothing_else_is() {
        let tally = Tally { by: "host_0123 and more".to_owned(), count: 7 };
        assert_eq!(Tally::parse(&tally.to_string()), Some(tally));
        for text in ["", "7", "host 7", "-1 host", "7.5 host"] {
            assert_eq!(Tally::parse(text), None, "{text:?}");
        }
    }
}
