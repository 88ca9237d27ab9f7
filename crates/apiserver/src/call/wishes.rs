//! Writes of a process that only observes: none of them is sent.
//!
//! In: each write that a subsystem decided on. Out: a [`Wish`] for whoever compares it with what another process does. The
//! write waits without an answer, and without a permit of any budget, until its wish is released; then it is answered as
//! that of a process that does not lead, after which a subsystem decides anew at once.

use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{CallError, Request};

/// A write that is not sent.
#[derive(Debug)]
pub struct Wish {
    /// The write.
    pub request: Request,
    /// When it was decided on.
    pub made: Instant,
    /// When this goes, the write is answered.
    _unanswered: oneshot::Sender<()>,
}

impl Wish {
    /// Answers the write: it was not sent.
    pub fn release(self) {
        drop(self);
    }
}

/// Where the writes go.
#[derive(Clone, Debug)]
pub struct Wishes(mpsc::UnboundedSender<Wish>);

impl Wishes {
    /// No wishes yet, and where they come.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Wish>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// Holds a write until its wish is released, or nobody asks for wishes any more.
    pub(super) async fn hold(&self, request: &Request) -> CallError {
        let (unanswered, released) = oneshot::channel();
        let wish = Wish { request: request.clone(), made: Instant::now(), _unanswered: unanswered };
        if self.0.send(wish).is_ok() {
            // Its other end never sends: it goes.
            let _ = released.await;
        }
        CallError::NotLeader
    }
}
