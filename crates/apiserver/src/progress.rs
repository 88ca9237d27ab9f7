//! When something that takes long last came further.
//!
//! In: from who works, that a step is done. Out: since when none was, for who waits and would rather give up than
//! wait for ever. How long the whole may take follows from the size of a cluster, and has no limit here.

use std::sync::Arc;

use tokio::{sync::watch, time::Instant};

/// The last step, shared by who works and who waits.
#[derive(Clone, Debug, educe::Educe)]
#[educe(Default(expression = Self(Arc::new(watch::Sender::new(Instant::now())))))]
pub struct Progress(Arc<watch::Sender<Instant>>);

impl Progress {
    /// A step is done.
    pub fn note(&self) {
        self.0.send_replace(Instant::now());
    }

    /// When the last step was done; for none, when this was made.
    pub fn last(&self) -> Instant {
        *self.0.borrow()
    }
}
