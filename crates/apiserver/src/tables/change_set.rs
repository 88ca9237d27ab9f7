//! The set of objects a subsystem has yet to look at.
//!
//! A set, not a queue: however often an object changes it is in here once, so it is bounded by
//! the number of objects, a watch never blocks on a slow subsystem, and nothing is ever dropped.

use std::{collections::BTreeSet, iter, mem};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::kinds::ObjectRef;

/// Changed objects, to be taken by their one reader.
#[derive(Debug, Default)]
pub struct ChangeSet {
    changed: Mutex<BTreeSet<ObjectRef>>,
    wake: Notify,
}

impl ChangeSet {
    /// Notes that an object changed and wakes the reader.
    pub fn insert(&self, object: ObjectRef) {
        self.changed.lock().insert(object);
        self.wake.notify_one();
    }

    /// Waits until something has changed.
    pub async fn changed(&self) {
        while self.changed.lock().is_empty() {
            self.wake.notified().await;
        }
    }

    /// How many have changed by now.
    pub fn count(&self) -> usize {
        self.changed.lock().len()
    }

    /// Takes what has changed by now.
    pub fn take(&self) -> BTreeSet<ObjectRef> {
        mem::take(&mut *self.changed.lock())
    }

    /// Takes at most so many of what has changed by now.
    pub fn take_some(&self, most: usize) -> BTreeSet<ObjectRef> {
        let mut changed = self.changed.lock();
        iter::from_fn(|| changed.pop_first()).take(most).collect()
    }
}
