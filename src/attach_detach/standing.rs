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
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    actual_state::{Pair, PairCall},
    desired_state::Unresolved,
    rules::Waiting,
    volume_name::VolumeId,
};
use crate::kube_api::ids::{AttachmentName, NodeName, PodKey};

/// What a pair is, whatever it waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum State {
    /// Neither attached nor on its way.
    #[default]
    Detached,
    /// To be attached by the driver.
    Attaching,
    /// Attached, as the driver says; or, without a driver, as the node's status says, or said last.
    Attached,
    /// To be detached by the driver.
    Detaching,
    /// Nobody knows: a request of ours had no answer.
    Uncertain,
}

impl State {
    /// The state of a pair.
    #[must_use]
    pub fn of(pair: &Pair) -> Self {
        let Some(attachment) = &pair.attachment else {
            return match pair.call {
                _ if pair.uncertain.is_some() => Self::Uncertain,
                Some(PairCall::Create) => Self::Attaching,
                _ if pair.listed || pair.held => Self::Attached,
                _ => Self::Detached,
            };
        };
        match pair.call {
            _ if pair.is_going() => Self::Detaching,
            Some(PairCall::Delete) => Self::Detaching,
            _ if pair.deletion_doubt.is_some() => Self::Uncertain,
            _ if attachment.status.attached => Self::Attached,
            _ => Self::Attaching,
        }
    }
}

/// One pair that is settled.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Settled {
    state: State,
    since: Timestamp,
}

/// One pair that is not settled.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// What it is meanwhile.
    pub state: State,
    /// What it waits for.
    pub waiting: Waiting,
    /// Since when it has been waiting for this kind of thing.
    pub since: Timestamp,
    /// When it is looked at again although nothing happened.
    pub next_look: Option<Timestamp>,
}

/// A VolumeAttachment that is not ours.
#[derive(Clone, Debug, PartialEq)]
struct Foreign {
    volume: Option<VolumeId>,
    node: NodeName,
    since: Timestamp,
}

/// All pairs: those that wait, and how many there are.
#[derive(Debug, Default)]
pub struct Standing {
    entries: Mutex<BTreeMap<(VolumeId, NodeName), Entry>>,
    settled: Mutex<BTreeMap<(VolumeId, NodeName), Settled>>,
    unresolved: Mutex<BTreeMap<PodKey, Vec<(Unresolved, Timestamp)>>>,
    foreign: Mutex<BTreeMap<AttachmentName, Foreign>>,
    second_writers: Mutex<(Option<String>, Vec<Value>)>,
    leads: AtomicBool,
}

/// A copy as of now, which goes its own way.
impl Clone for Standing {
    fn clone(&self) -> Self {
        fn copy<T: Clone>(value: &Mutex<T>) -> Mutex<T> {
            Mutex::new(value.lock().unwrap_or_else(PoisonError::into_inner).clone())
        }
        let Self { entries, settled, unresolved, foreign, second_writers, leads } = self;
        Self {
            entries: copy(entries),
            settled: copy(settled),
            unresolved: copy(unresolved),
            foreign: copy(foreign),
            second_writers: copy(second_writers),
            leads: AtomicBool::new(leads.load(Ordering::Relaxed)),
        }
    }
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

    /// Notes that a pair waits for nothing, and what it is.
    pub(super) fn settle(&self, volume: &VolumeId, node: &NodeName, state: State, now: Timestamp) {
        let key = (volume.clone(), node.clone());
        let mut settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        if state == State::Detached {
            settled.remove(&key);
        } else if settled.get(&key).is_none_or(|before| before.state != state) {
            settled.insert(key, Settled { state, since: now });
        }
    }

    /// Notes which volumes of a pod cannot even be wanted yet.
    pub(super) fn set_unresolved(&self, pod: &PodKey, unresolved: &[Unresolved], now: Timestamp) {
        let mut pods = self.unresolved.lock().unwrap_or_else(PoisonError::into_inner);
        let before = pods.remove(pod).unwrap_or_default();
        if unresolved.is_empty() {
            return;
        }
        let since = |found: &Unresolved| {
            before.iter().find(|(known, _)| known == found).map_or(now, |(_, since)| *since)
        };
        pods.insert(pod.clone(), unresolved.iter().map(|found| (found.clone(), since(found))).collect());
    }

    /// Notes a VolumeAttachment that is not ours, with the volume it holds if that is known; or, without a node,
    /// that it is gone or ours. Returns by how many there are more now.
    pub(super) fn set_foreign(
        &self,
        name: &AttachmentName,
        volume: Option<&VolumeId>,
        node: Option<&NodeName>,
        now: Timestamp,
    ) -> i64 {
        let mut foreign = self.foreign.lock().unwrap_or_else(PoisonError::into_inner);
        let before = foreign.remove(name);
        let Some(node) = node else { return -i64::from(before.is_some()) };
        let since = before.as_ref().map_or(now, |before| before.since);
        foreign.insert(name.clone(), Foreign { volume: volume.cloned(), node: node.clone(), since });
        i64::from(before.is_none())
    }

    /// Notes whether this process decides: one that stands by judges nothing, and so has nothing to show.
    pub(super) fn set_leads(&self, leads: bool) {
        self.leads.store(leads, Ordering::Relaxed);
    }

    /// Notes whether another controller is at work, and where nothing is detached for what others wrote there.
    /// Returns whether the former is news.
    pub(super) fn set_second_writers(&self, alarm: Option<String>, rows: Vec<Value>) -> bool {
        let mut known = self.second_writers.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = known.0 != alarm;
        *known = (alarm, rows);
        is_news
    }

    /// What to tell operators whatever volume they look at: that another controller is at work (S14).
    #[must_use]
    pub fn alarm(&self) -> Option<String> {
        self.second_writers.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Where nothing is detached for what others wrote there, each with object, field, manager and end.
    #[must_use]
    pub fn second_writers(&self) -> Vec<Value> {
        self.second_writers.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
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

    /// As JSON: whether this replica decides; the pairs that wait and those that do not, each a list ordered by volume and node; and the pods'
    /// volumes that cannot be wanted yet; and VolumeAttachments that are not ours.
    #[must_use]
    pub fn json(&self) -> Value {
        let entries = self.entries();
        let rows = entries.iter().map(|((volume, node), entry)| {
            let mut row = json!({
                "volume": volume,
                "node": node,
                "state": entry.state,
                "since": entry.since.to_string(),
                "nextLook": entry.next_look.map(|at| at.to_string()),
            });
            let facts = serde_json::to_value(&entry.waiting).unwrap_or(Value::Null);
            if let (Some(row), Value::Object(facts)) = (row.as_object_mut(), facts) {
                row.extend(facts);
            }
            row
        });
        let waiting: Vec<Value> = rows.collect();
        // The planner does not wait for whoever reads this.
        let settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let settled = settled.iter().map(|((volume, node), settled)| {
            let Settled { state, since } = settled;
            json!({ "volume": volume, "node": node, "state": state, "since": since.to_string() })
        });
        let unresolved = self.unresolved.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let unresolved = unresolved.iter().flat_map(|(pod, volumes)| {
            volumes.iter().map(move |(Unresolved { pod_volume, why }, since)| {
                json!({
                    "pod": pod.to_string(),
                    "podVolume": pod_volume,
                    "reason": why.code(),
                    "object": why.object().map(|object| object.to_string()),
                    "problem": why.problem(),
                    "since": since.to_string(),
                })
            })
        });
        let foreign = self.foreign.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let foreign = foreign.iter().map(|(name, Foreign { volume, node, since })| {
            json!({ "attachment": name, "volume": volume, "node": node, "since": since.to_string() })
        });
        json!({
            "foreign": foreign.collect::<Vec<_>>(),
            "waiting": waiting,
            "unresolved": unresolved.collect::<Vec<_>>(),
            "settled": settled.collect::<Vec<_>>(),
            "alarm": self.alarm(),
            "secondWriters": self.second_writers(),
            "leads": self.leads.load(Ordering::Relaxed),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(VolumeId, NodeName), Entry>> {
        // The map is valid between any two statements, so a panic elsewhere cannot spoil it.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::{
        attach_detach::{
            actual_state::Uncertain, desired_state::WhyUnresolved, force::Unforced, rules::Rival,
            volume_source::SourceError,
        },
        kube_api::ids::{ClaimKey, DriverName},
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
        let state = State::Detached;
        standing.set(&volume, &b, Some(Entry { state, waiting: held, since: at(5), next_look: None }));
        standing.settle(&volume, &NodeName::from("c"), State::Attached, at(7));
        standing.settle(&volume, &NodeName::from("c"), State::Attached, at(8));
        for (second, unforced) in [(0, Unforced::NodeReady), (9, Unforced::Until(at(360)))] {
            let waiting = Waiting::DetachWaitingForUnmount { unforced };
            let (state, since, next_look) = (State::Attached, at(second), Some(at(360)));
            standing.set(&volume, &a, Some(Entry { state, waiting, since, next_look }));
        }
        let pod = PodKey::new("ns", "p");
        let no_claim = WhyUnresolved::ClaimMissing(ClaimKey::new("ns", "c"));
        let no_claim = Unresolved { pod_volume: "data".to_owned(), why: no_claim };
        let no_handle = WhyUnresolved::MalformedSource(None, SourceError::NoHandle);
        let no_handle = Unresolved { pod_volume: "more".to_owned(), why: no_handle };
        standing.set_unresolved(&pod, std::slice::from_ref(&no_claim), at(3));
        standing.set_unresolved(&pod, &[no_claim, no_handle], at(4));
        let (ours, theirs) = (AttachmentName::from("csi-1"), AttachmentName::from("made-by-hand"));
        assert_eq!(standing.set_foreign(&ours, None, Some(&a), at(6)), 1);
        assert_eq!(standing.set_foreign(&ours, None, None, at(7)), -1);
        assert_eq!(standing.set_foreign(&theirs, None, Some(&a), at(6)), 1);
        assert_eq!(standing.set_foreign(&theirs, Some(&volume), Some(&a), at(7)), 0);
        let shown = standing.json();
        assert_eq!(
            shown,
            json!({ "waiting": [
                {
                    "volume": "kubernetes.io/csi/d^h", "node": "a", "reason": "DetachWaitingForUnmount",
                    "state": "Attached",
                    "unforced": { "until": "1970-01-01T00:06:00Z" },
                    "since": "1970-01-01T00:00:00Z", "nextLook": "1970-01-01T00:06:00Z",
                },
                {
                    "volume": "kubernetes.io/csi/d^h", "node": "b", "reason": "HeldByNode",
                    "state": "Detached",
                    "rival": { "node": "a", "holds": true },
                    "since": "1970-01-01T00:00:05Z", "nextLook": null,
                },
            ], "settled": [
                {
                    "volume": "kubernetes.io/csi/d^h", "node": "c", "state": "Attached",
                    "since": "1970-01-01T00:00:07Z",
                },
            ], "unresolved": [
                {
                    "pod": "ns/p", "podVolume": "data", "reason": "ClaimMissing", "object": "pvc/ns/c",
                    "problem": null, "since": "1970-01-01T00:00:03Z",
                },
                {
                    "pod": "ns/p", "podVolume": "more", "reason": "MalformedSource", "object": null,
                    "problem": "the source does not name a volume", "since": "1970-01-01T00:00:04Z",
                },
            ], "foreign": [
                {
                    "attachment": "made-by-hand", "volume": "kubernetes.io/csi/d^h", "node": "a",
                    "since": "1970-01-01T00:00:06Z",
                },
            ], "alarm": null, "secondWriters": [], "leads": false})
        );
        standing.set_unresolved(&pod, &[], at(5));
        assert_eq!(standing.json()["unresolved"], json!([]));
        standing.set(&volume, &a, None);
        assert_eq!(standing.entries().len(), 1);
    }

    #[test]
    fn l18_the_state_shown_is_what_is_known_of_the_pair() {
        let (none, attached) = (Pair::default, || Pair::with_attachment(true, false));
        let now = Instant::now();
        let uncertain = Some(Uncertain { until: now, read_absent: false });
        let cases = [
            ("nothing", none(), State::Detached),
            ("create sent", Pair { call: Some(PairCall::Create), ..none() }, State::Attaching),
            (
                "create sent, listed of old",
                Pair { call: Some(PairCall::Create), listed: true, ..none() },
                State::Attaching,
            ),
            ("create unanswered", Pair { uncertain, ..none() }, State::Uncertain),
            (
                "create unanswered, sent again",
                Pair { uncertain, call: Some(PairCall::Create), ..none() },
                State::Uncertain,
            ),
            ("listed", Pair { listed: true, ..none() }, State::Attached),
            ("made", Pair::with_attachment(false, false), State::Attaching),
            ("attached", attached(), State::Attached),
            ("deletion sent", Pair { call: Some(PairCall::Delete), ..attached() }, State::Detaching),
            (
                "deletion accepted",
                Pair { deletion_accepted: Some("1".into()), ..attached() },
                State::Detaching,
            ),
            ("deletion unanswered", Pair { deletion_doubt: Some(now), ..attached() }, State::Uncertain),
            (
                "deletion unanswered, sent again",
                Pair { deletion_doubt: Some(now), call: Some(PairCall::Delete), ..attached() },
                State::Detaching,
            ),
            ("going", Pair::with_attachment(true, true), State::Detaching),
        ];
        for (name, pair, expected) in cases {
            assert_eq!(State::of(&pair), expected, "{name}");
        }
    }

    #[test]
    fn s14_it_shows_whether_another_controller_is_at_work_and_whether_this_one_decides() {
        let standing = Standing::default();
        for (leads, alarm) in [(true, true), (false, false), (true, false)] {
            standing.set_leads(leads);
            standing.set_second_writers(alarm.then(|| "another".to_owned()), Vec::new());
            let shown = standing.json();
            assert_eq!((&shown["leads"], shown["alarm"].is_string()), (&json!(leads), alarm));
        }
    }
}
