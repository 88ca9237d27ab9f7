//! What every volume on every node waits for, since when, and when it is looked at again.
//!
//! Written by the controller with each verdict, read by whoever explains: `/debug/attach-detach` prints the
//! very values that the rules returned, so it cannot drift from what is done.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{rules::Waiting, volume_name::VolumeId};
use crate::kube_api::ids::NodeName;

/// One pair that is not settled.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// What it waits for.
    pub waiting: Waiting,
    /// Since when it has been waiting for this kind of thing.
    pub since: Timestamp,
    /// When it is looked at again although nothing happened.
    pub next_look: Option<Timestamp>,
}

/// All pairs: those that wait, and how many there are.
#[derive(Debug, Default)]
pub struct Standing {
    entries: Mutex<BTreeMap<(VolumeId, NodeName), Entry>>,
    alarm: AtomicBool,
}

impl Standing {
    /// Sets what a pair waits for. Returns what it waited for before.
    pub(super) fn set(&self, volume: &VolumeId, node: &NodeName, entry: Option<Entry>) -> Option<Waiting> {
        let key = (volume.clone(), node.clone());
        let mut entries = self.lock();
        let Some(mut entry) = entry else { return entries.remove(&key).map(|before| before.waiting) };
        let before = entries.get(&key);
        if let Some(before) = before
            && before.waiting.code() == entry.waiting.code()
        {
            entry.since = before.since;
        }
        entries.insert(key, entry).map(|before| before.waiting)
    }

    /// Notes whether another controller is at work.
    pub(super) fn set_alarm(&self, alarm: bool) {
        self.alarm.store(alarm, Ordering::Relaxed);
    }

    /// What to tell operators whatever volume they look at: that another controller is at work (S14).
    #[must_use]
    pub fn alarm(&self) -> Option<&'static str> {
        self.alarm.load(Ordering::Relaxed).then_some(
            "another attach/detach controller writes VolumeAttachments or volumesAttached: nothing is detached \
             until none has been seen for ten minutes",
        )
    }

    /// Since when a pair has been waiting for what it waits for.
    pub(super) fn since(&self, volume: &VolumeId, node: &NodeName) -> Option<Timestamp> {
        self.lock().get(&(volume.clone(), node.clone())).map(|entry| entry.since)
    }

    /// Every pair that waits.
    #[must_use]
    pub fn entries(&self) -> BTreeMap<(VolumeId, NodeName), Entry> {
        self.lock().clone()
    }

    /// As JSON: a list ordered by volume and node.
    #[must_use]
    pub fn json(&self) -> Value {
        let entries = self.entries();
        let rows = entries.iter().map(|((volume, node), entry)| {
            let mut row = json!({
                "volume": volume,
                "node": node,
                "since": entry.since.to_string(),
                "nextLook": entry.next_look.map(|at| at.to_string()),
            });
            let facts = serde_json::to_value(&entry.waiting).unwrap_or(Value::Null);
            if let (Some(row), Value::Object(facts)) = (row.as_object_mut(), facts) {
                row.extend(facts);
            }
            row
        });
        json!({ "waiting": rows.collect::<Vec<_>>(), "alarm": self.alarm() })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(VolumeId, NodeName), Entry>> {
        // The map is valid between any two statements, so a panic elsewhere cannot spoil it.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        attach_detach::{force::Unforced, rules::Rival},
        kube_api::ids::DriverName,
    };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn l18_a_wait_is_shown_with_its_facts_and_its_beginning() {
        let standing = Standing::default();
        let volume = VolumeId::csi(&DriverName::from("d"), "h");
        let (a, b) = (NodeName::from("a"), NodeName::from("b"));
        let held = Waiting::HeldByNode { rival: Rival { node: a.clone(), holds: true } };
        standing.set(&volume, &b, Some(Entry { waiting: held, since: at(5), next_look: None }));
        for (second, unforced) in [(0, Unforced::NodeReady), (9, Unforced::Until(at(360)))] {
            let waiting = Waiting::DetachWaitingForUnmount { unforced };
            standing.set(&volume, &a, Some(Entry { waiting, since: at(second), next_look: Some(at(360)) }));
        }
        let shown = standing.json();
        assert_eq!(
            shown,
            json!({ "waiting": [
                {
                    "volume": "kubernetes.io/csi/d^h", "node": "a", "reason": "DetachWaitingForUnmount",
                    "unforced": { "until": "1970-01-01T00:06:00Z" },
                    "since": "1970-01-01T00:00:00Z", "nextLook": "1970-01-01T00:06:00Z",
                },
                {
                    "volume": "kubernetes.io/csi/d^h", "node": "b", "reason": "HeldByNode",
                    "rival": { "node": "a", "holds": true },
                    "since": "1970-01-01T00:00:05Z", "nextLook": null,
                },
            ], "alarm": null})
        );
        standing.set(&volume, &a, None);
        assert_eq!(standing.entries().len(), 1);
    }
}
