//! The set of objects a subsystem has yet to look at.
//!
//! A set, not a queue: however often an object changes it is in here once, so it is bounded by
//! the number of objects, a watch never blocks on a slow subsystem, and nothing is ever dropped.

use std::{collections::BTreeSet, mem};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::kinds::ObjectRef;

/// Changed objects, to be taken all at once by their one reader.
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

    /// Waits until something changed, then takes all of it.
    ///
    /// Cancel safe: nothing is taken before the final step.
    pub async fn take(&self) -> BTreeSet<ObjectRef> {
        loop {
            let taken = self.take_now();
            if !taken.is_empty() {
                return taken;
            }
            self.wake.notified().await;
        }
    }

    /// Takes what has changed by now, without waiting.
    pub fn take_now(&self) -> BTreeSet<ObjectRef> {
        mem::take(&mut *self.changed.lock())
    }
}
