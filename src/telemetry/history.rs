//! What happened to each object lately: the last changes of state, for timelines that outlive events.
//!
//! In: the changes that are logged ([`Transition`]). Out: those of one object, found by reading all: they are asked for rarely.
//! Bounded for any size of the cluster: the oldest change is forgotten first. Of a replica that stands by there is nothing:
//! it judges nothing.

use std::{borrow::Cow, collections::VecDeque, sync::Arc};

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::transition::{Named, Transition};

/// Changes kept of all objects: some 200 bytes each, together two hundredths of what the process takes at 5 000 nodes.
pub const CHANGES: usize = 1 << 15;

/// A change of state, as it was logged.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Change {
    /// When, by this machine's clock.
    pub at: Timestamp,
    /// What it was.
    pub from: Cow<'static, str>,
    /// What it became.
    pub to: Cow<'static, str>,
    /// Why: the code.
    pub reason: Cow<'static, str>,
    /// Which attempt that belonged to, from 1.
    pub attempt: u32,
}

/// The last changes, each with the object's name.
type Changes = VecDeque<(Box<str>, Change)>;

/// The last changes of all objects. A clone shares them.
#[derive(Clone, Debug, Default)]
pub struct History(Arc<Mutex<Changes>>);

impl History {
    /// Logs a change, and notes it.
    pub fn tell(&self, transition: &Transition) {
        transition.log();
        self.note(transition, Timestamp::now());
    }

    /// Notes a change.
    pub fn note(&self, transition: &Transition, at: Timestamp) {
        let &Transition { ref object, reason, from, to, attempt, .. } = transition;
        let change = Change { at, from: from.into(), to: to.into(), reason: reason.into(), attempt };
        let mut changes = self.0.lock();
        if changes.len() == CHANGES {
            changes.pop_front();
        }
        changes.push_back((key(object), change));
    }

    /// The last changes of an object, the oldest first.
    pub fn of(&self, object: &Named) -> Vec<Change> {
        let key = key(object);
        let changes = self.0.lock();
        changes.iter().filter(|(of, _)| *of == key).map(|(_, change)| change.clone()).collect()
    }
}

fn key(Named { object, namespace }: &Named) -> Box<str> {
    format!("{} {object}", namespace.as_deref().unwrap_or_default()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str) -> Named {
        Named::by("PersistentVolumeClaim", &format!("shop/{name}"))
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
            history.note(&change("b", attempt), Timestamp::UNIX_EPOCH);
        }
        assert_eq!(attempts(&history, "a"), (1..=20).collect::<Vec<_>>());
        let other = Named { namespace: Some("other".to_owned()), ..claim("a") };
        assert_eq!(history.of(&other), []);
    }

    #[test]
    fn what_has_been_at_rest_longest_is_forgotten_first_and_all_stays_within_bounds() {
        let history = History::default();
        for name in ["old", "young"] {
            history.note(&change(name, 1), Timestamp::UNIX_EPOCH);
        }
        for _ in 0..CHANGES - 1 {
            history.note(&change("busy", 1), Timestamp::UNIX_EPOCH);
        }
        assert_eq!((attempts(&history, "old"), attempts(&history, "young")), (vec![], vec![1]));
        assert_eq!(history.0.lock().len(), CHANGES);
        let mean = change("pvc-01234567-89ab-cdef-0123-456789abcdef", 1);
        assert!(size_of::<(Box<str>, Change)>() + key(&mean.object).len() <= 200);
    }
}
