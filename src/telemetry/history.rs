//! What happened to each object lately: the last changes of state, for timelines that outlive events.
//!
//! In: the changes that are logged ([`Transition`]). Out: those of one object. Bounded in bytes, for any size of the
//! cluster: the object that has been at rest longest is forgotten first, and of one that changes again and again only
//! the last changes are kept. Of a replica that stands by there is nothing: it judges nothing.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use lru::LruCache;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;

use super::transition::{Named, Transition};

/// Changes kept of one object: an attach and detach with three waits each have eight.
pub const CHANGES: usize = 16;

/// Bytes for all objects, by default: some 16 000 objects with three changes each, and two hundredths of what the process
/// takes at 5 000 nodes.
pub const BYTES: usize = 6 << 20;

/// What an object takes beside its name and changes: the places in the list and the index, and the allocations.
const OVERHEAD: usize = 160;

/// A change of state, as it was logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// When, by this machine's clock.
    pub at: Timestamp,
    /// What it was.
    pub from: &'static str,
    /// What it became.
    pub to: &'static str,
    /// Why: the code.
    pub reason: &'static str,
    /// Which attempt that belonged to, from 1.
    pub attempt: u32,
}

/// The last changes of all objects. A clone shares them.
#[derive(Clone, Debug)]
pub struct History(Arc<Mutex<KeptChanges>>);

#[derive(Debug)]
struct KeptChanges {
    changes: LruCache<Box<str>, Vec<Change>>,
    /// What they take.
    bytes: usize,
    most: usize,
}

impl Default for History {
    fn default() -> Self {
        Self::within(BYTES)
    }
}

impl History {
    /// Keeps as much as so many bytes hold.
    #[must_use]
    pub fn within(bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(KeptChanges { changes: LruCache::unbounded(), bytes: 0, most: bytes })))
    }

    /// Logs a change, and notes it.
    pub fn tell(&self, transition: &Transition) {
        transition.log();
        self.note(transition, Timestamp::now());
    }

    /// Notes a change.
    pub fn note(&self, transition: &Transition, at: Timestamp) {
        let Transition { object, reason, from, to, attempt, .. } = transition;
        self.lock().note(&key(object), Change { at, from, to, reason, attempt: *attempt });
    }

    /// The last changes of an object, the oldest first.
    #[must_use]
    pub fn of(&self, object: &Named) -> Vec<Change> {
        self.lock().changes.peek(&*key(object)).cloned().unwrap_or_default()
    }

    /// What is kept, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, KeptChanges> {
        self.0.lock()
    }
}

impl KeptChanges {
    fn note(&mut self, key: &str, change: Change) {
        if let Some(changes) = self.changes.get_mut(key) {
            if changes.len() == CHANGES {
                changes.remove(0);
            } else {
                changes.reserve_exact(1);
                self.bytes += size_of::<Change>();
            }
            changes.push(change);
        } else {
            self.changes.put(key.into(), vec![change]);
            self.bytes += key.len() + OVERHEAD + size_of::<Change>();
        }
        while self.bytes > self.most
            && let Some((key, changes)) = self.changes.pop_lru()
        {
            self.bytes -= key.len() + OVERHEAD + changes.len() * size_of::<Change>();
        }
    }
}

fn key(object: &Named) -> String {
    let Named { object, namespace } = object;
    format!("{} {object}", namespace.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str) -> Named {
        Named::in_namespace("PersistentVolumeClaim", "shop", name)
    }

    fn change(name: &str, attempt: u32) -> Transition {
        Transition { object: claim(name), attempt, ..crate::telemetry::transition::tests::example() }
    }

    fn attempts(history: &History, name: &str) -> Vec<u32> {
        history.of(&claim(name)).iter().map(|change| change.attempt).collect()
    }

    #[test]
    fn of_an_object_the_last_changes_are_kept_the_oldest_first() {
        let history = History::default();
        assert!(attempts(&history, "a").is_empty());
        for attempt in 1..=20 {
            history.note(&change("a", attempt), Timestamp::UNIX_EPOCH);
        }
        assert_eq!(attempts(&history, "a"), (5..=20).collect::<Vec<_>>());
        let other = Named { namespace: Some("other".to_owned()), ..claim("a") };
        assert_eq!(history.of(&other), []);
    }

    #[test]
    fn what_has_been_at_rest_longest_is_forgotten_first_and_all_stays_within_the_bytes() {
        let history = History::within(4_096);
        history.note(&change("old", 1), Timestamp::UNIX_EPOCH);
        history.note(&change("busy", 1), Timestamp::UNIX_EPOCH);
        for number in 0..100 {
            history.note(&change(&format!("c{number}"), 1), Timestamp::UNIX_EPOCH);
            history.note(&change("busy", number), Timestamp::UNIX_EPOCH);
            assert!(history.bytes() <= 4_096, "{}", history.bytes());
        }
        assert_eq!((attempts(&history, "old"), attempts(&history, "c99")), (vec![], vec![1]));
        assert_eq!(attempts(&history, "busy").len(), CHANGES);
        let mut kept = history.lock();
        while kept.changes.pop_lru().is_some() {}
        kept.bytes = 0;
        drop(kept);
        history.note(&change("a", 1), Timestamp::UNIX_EPOCH);
        let alone = history.bytes();
        let empty = History::within(alone - 1);
        empty.note(&change("a", 1), Timestamp::UNIX_EPOCH);
        assert_eq!((empty.bytes(), attempts(&empty, "a")), (0, vec![]), "one that is too large is not kept");
    }
}
