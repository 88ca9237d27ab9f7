//! Lease note: what a leader tells its successor, kept on the lease.
//!
//! In: a text of the leader. Out: each renewal writes it to the lease; who takes the lease over is handed the text of the
//! term before. What the text says is the business of who writes it. It costs no request, and no clock is asked how old
//! it is: no process leads without renewing. Until this process leads it leaves what another wrote.

use std::sync::Arc;

use tokio::sync::watch;

/// The note of this process and that of its predecessor, shared by who writes and reads them and who renews.
#[derive(Clone, Debug, Default)]
pub struct LeaseNote {
    annotation: &'static str,
    own: Arc<watch::Sender<Option<Arc<str>>>>,
    left: Arc<watch::Sender<Option<Arc<str>>>>,
}

impl LeaseNote {
    /// A note in this annotation of the lease.
    pub fn new(annotation: &'static str) -> Self {
        Self { annotation, ..Self::default() }
    }

    /// Where it is kept.
    pub fn annotation(&self) -> &'static str {
        self.annotation
    }

    /// The leader says this from now on; nothing, if it is empty.
    pub fn set(&self, text: &str) {
        self.own.send_replace(Some(text.into()));
    }

    /// What this process says; `None` as long as it has not led.
    pub fn own(&self) -> Option<Arc<str>> {
        self.own.borrow().clone()
    }

    /// Notes what the lease said when this process asked for it.
    pub fn leave(&self, left: Option<&str>) {
        self.left.send_replace(left.map(Arc::from));
    }

    /// What the leader of the term before said last.
    pub fn left(&self) -> Option<Arc<str>> {
        self.left.borrow().clone()
    }
}
