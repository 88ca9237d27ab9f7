//! Whether this replica sees what happens in the cluster, and can connect to act on it.
//!
//! In: from the watches, since when one of them has shown nothing, and cannot be opened anew or brings nothing; since
//! when no new connection can be made. Out: what the elector asks before it stands for election, and while it leads
//! ([`super::elector`]). Silence alone is not blindness: a short watch that brings nothing, and ends when it should,
//! shows that nothing happens.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

/// How long a leader goes on blind before it looks for a successor. An API server that restarts or fails over
/// takes less.
pub(crate) const LONGEST_BLINDNESS: Duration = Duration::from_mins(2);

/// Who cannot connect for so long is as good as blind: before a leader that cannot, either, asks for a successor.
const LONGEST_CUT_OFF: Duration = Duration::from_mins(1);

/// Since when a watch has been blind, or no connection could be made, shared by those that learn it and the elector.
#[derive(Clone, Debug, Default)]
pub struct Sight {
    blind_since: Arc<watch::Sender<Option<Instant>>>,
    cut_off_since: Arc<watch::Sender<Option<Instant>>>,
}

impl Sight {
    /// Since when the watch that has been blind longest has been so; `None` when all see.
    pub fn set(&self, blind_since: Option<Instant>) {
        self.blind_since.send_if_modified(|known| std::mem::replace(known, blind_since) != blind_since);
    }

    /// Since when no new connection could be made; `None` when the last attempt succeeded.
    pub(crate) fn set_cut_off(&self, since: Option<Instant>) {
        self.cut_off_since.send_replace(since);
    }

    /// Since when this replica has been blind, or as good as that.
    pub fn blind_since(&self) -> Option<Instant> {
        let cut_off_since = self.cut_off_since.borrow().filter(|since| since.elapsed() >= LONGEST_CUT_OFF);
        self.blind_since.borrow().into_iter().chain(cut_off_since).min()
    }

    /// Whether it has been blind for so long that another would do better.
    pub(crate) fn needs_successor(&self, now: Instant) -> bool {
        self.blind_since().is_some_and(|since| now >= since + LONGEST_BLINDNESS)
    }
}
