//! What every volume on every node waits for, since when, and when it is looked at again.
//!
//! Written by the controller with each verdict, read by the debug page and explanations: `/debug/attach-detach` prints
//! the very values that the rules returned, so it cannot drift from what is done.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use k8s_openapi::jiff::Timestamp;
use serde::{Serialize, Serializer, ser::SerializeStruct};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::{
    attach_detach::{
        actual::state::{AttachmentCall, Mount, NodeVolume},
        decide::verdict::Waiting,
        desired::{
            state::{Unresolved, WhyUnresolved},
            volume_name::VolumeId,
        },
    },
    controller::{
        asked::{Asked, Names},
        diagnostics::{Kind, Reason, Rows, Subject, Wait, Waits, WallClock, row},
    },
    kube_api::ids::{AttachmentName, NodeName, PodKey},
    metrics::Metrics,
};

/// The state of a volume on a node.
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
    /// Unknown: a request of ours had no answer.
    Uncertain,
}

impl State {
    /// As it is shown.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Detached => "Detached",
            Self::Attaching => "Attaching",
            Self::Attached => "Attached",
            Self::Detaching => "Detaching",
            Self::Uncertain => "Uncertain",
        }
    }

    /// The state of a volume on a node.
    #[must_use]
    pub fn of(node_volume: &NodeVolume) -> Self {
        let Some(attachment) = node_volume.attachment() else {
            return match node_volume.call {
                _ if node_volume.uncertain.is_some() => Self::Uncertain,
                Some(AttachmentCall::Create) => Self::Attaching,
                _ if node_volume.is_listed() || node_volume.mount == Mount::Possible => Self::Attached,
                _ => Self::Detached,
            };
        };
        match node_volume.call {
            _ if node_volume.is_going() => Self::Detaching,
            Some(AttachmentCall::Delete) => Self::Detaching,
            _ if node_volume.deletion_in_doubt().is_some() => Self::Uncertain,
            _ if attachment.status.attached => Self::Attached,
            _ => Self::Attaching,
        }
    }
}

/// A volume on a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeVolumeKey {
    /// The volume.
    pub volume: VolumeId,
    /// The node.
    pub node: NodeName,
}

impl Subject for NodeVolumeKey {
    fn names(&self) -> Names {
        vec![("volume", self.volume.as_str().to_owned()), ("node", self.node.to_string())]
    }
}

/// A volume of a pod, by its name in the pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodVolume {
    pod: PodKey,
    volume: String,
}

impl Subject for PodVolume {
    fn names(&self) -> Names {
        vec![("pod", self.pod.to_string()), ("podVolume", self.volume.clone())]
    }
}

/// What a volume on a node waits for, and what it is meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeVolumeWait {
    /// What it is meanwhile.
    pub state: State,
    /// What it waits for.
    pub waiting: Waiting,
}

impl Reason for NodeVolumeWait {
    fn code(&self) -> &'static str {
        self.waiting.code()
    }

    fn message(&self) -> String {
        self.waiting.to_string()
    }

    fn until(&self, _: &WallClock) -> Option<Timestamp> {
        self.waiting.until()
    }

    fn facts(&self) -> Map<String, Value> {
        let mut facts = match serde_json::to_value(&self.waiting) {
            Ok(Value::Object(facts)) => facts,
            _ => Map::new(),
        };
        facts.remove("reason");
        facts.insert("state".to_owned(), json!(self.state));
        facts
    }
}

impl Reason for WhyUnresolved {
    fn code(&self) -> &'static str {
        self.code()
    }

    fn message(&self) -> String {
        self.to_string()
    }

    fn facts(&self) -> Map<String, Value> {
        let object = self.object().map(|object| object.to_string());
        Map::from_iter([("object".to_owned(), json!(object)), ("problem".to_owned(), json!(self.problem()))])
    }
}

/// A volume on a node that waits for nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Settled {
    state: State,
    since: Instant,
}

/// A VolumeAttachment that is not ours.
#[derive(Clone, Debug, PartialEq)]
struct Foreign {
    volume: Option<VolumeId>,
    node: NodeName,
    since: Instant,
}

impl Foreign {
    fn names(&self, attachment: &AttachmentName) -> Names {
        let volume = self.volume.as_ref().map(|volume| ("volume", volume.as_str().to_owned()));
        let own = [("attachment", attachment.to_string()), ("node", self.node.to_string())];
        own.into_iter().chain(volume).collect()
    }
}

/// All volumes on nodes: those that wait, and those that do not.
#[derive(Debug, Default)]
pub struct Diagnostics {
    waits: Arc<Waits<NodeVolumeKey, NodeVolumeWait>>,
    unresolved: Arc<Waits<PodVolume, WhyUnresolved>>,
    settled: Mutex<BTreeMap<NodeVolumeKey, Settled>>,
    foreign: Mutex<BTreeMap<AttachmentName, Foreign>>,
    second_writers: Mutex<(Option<String>, Vec<Value>)>,
    leads: AtomicBool,
}

/// A copy as of now, which goes its own way.
impl Clone for Diagnostics {
    fn clone(&self) -> Self {
        fn copy<T: Clone>(value: &Mutex<T>) -> Mutex<T> {
            Mutex::new(value.lock().unwrap_or_else(PoisonError::into_inner).clone())
        }
        let Self { waits, unresolved, settled, foreign, second_writers, leads } = self;
        Self {
            waits: Arc::new(Waits::clone(waits)),
            unresolved: Arc::new(Waits::clone(unresolved)),
            settled: copy(settled),
            foreign: copy(foreign),
            second_writers: copy(second_writers),
            leads: AtomicBool::new(leads.load(Ordering::Relaxed)),
        }
    }
}

impl Diagnostics {
    /// Registers the gauges of what waits.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn register(&self, metrics: &Metrics) -> Result<(), prometheus::Error> {
        self.waits.register(Kind::Attachment, metrics)?;
        self.unresolved.register(Kind::PodVolume, metrics)
    }

    /// Sets what a volume on a node waits for, and when it is looked at again. Returns how it waited before.
    pub(in crate::attach_detach) fn set(
        &self,
        volume: &VolumeId,
        node: &NodeName,
        wait: Option<(NodeVolumeWait, Option<Instant>)>,
        now: Instant,
    ) -> Option<Wait<NodeVolumeWait>> {
        self.waits.set(&key(volume, node), wait, now)
    }

    /// Notes that a volume on a node waits for nothing, and what it is. Returns what it was, and since when, if it
    /// waited for nothing before and was not detached.
    pub(in crate::attach_detach) fn settle(
        &self,
        volume: &VolumeId,
        node: &NodeName,
        state: State,
        now: Instant,
    ) -> Option<(State, Instant)> {
        let key = key(volume, node);
        let mut settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        let before = settled.get(&key).map(|before| (before.state, before.since));
        if state == State::Detached {
            settled.remove(&key);
        } else if before.is_none_or(|(before, _)| before != state) {
            settled.insert(key, Settled { state, since: now });
        }
        before
    }

    /// Notes which volumes of a pod cannot even be desired yet, in place of those that could not before.
    pub(in crate::attach_detach) fn set_unresolved(
        &self,
        pod: &PodKey,
        before: &[Unresolved],
        found: &[Unresolved],
        now: Instant,
    ) {
        let key =
            |unresolved: &Unresolved| PodVolume { pod: pod.clone(), volume: unresolved.pod_volume.clone() };
        let still: BTreeSet<&String> = found.iter().map(|unresolved| &unresolved.pod_volume).collect();
        for gone in before.iter().filter(|unresolved| !still.contains(&unresolved.pod_volume)) {
            self.unresolved.set(&key(gone), None, now);
        }
        for unresolved in found {
            self.unresolved.set(&key(unresolved), Some((unresolved.why.clone(), None)), now);
        }
    }

    /// Notes a VolumeAttachment that is not ours, with the volume it holds if that is known; or, without a node,
    /// that it is gone or ours. Returns by how many there are more now.
    pub(in crate::attach_detach) fn set_foreign(
        &self,
        name: &AttachmentName,
        volume: Option<&VolumeId>,
        node: Option<&NodeName>,
        now: Instant,
    ) -> i64 {
        let mut foreign = self.foreign.lock().unwrap_or_else(PoisonError::into_inner);
        let before = foreign.remove(name);
        let Some(node) = node else { return -i64::from(before.is_some()) };
        let since = before.as_ref().map_or(now, |before| before.since);
        foreign.insert(name.clone(), Foreign { volume: volume.cloned(), node: node.clone(), since });
        i64::from(before.is_none())
    }

    /// Notes that this process decides from now on: one that stands by judges nothing, and so has nothing to show.
    pub(in crate::attach_detach) fn lead(&self, now: Instant) {
        self.leads.store(true, Ordering::Relaxed);
        self.waits.lead(now);
        self.unresolved.lead(now);
    }

    /// Notes whether another controller is at work, and what others wrote of late.
    pub(in crate::attach_detach) fn set_second_writers(&self, shown: (Option<String>, Vec<Value>)) {
        *self.second_writers.lock().unwrap_or_else(PoisonError::into_inner) = shown;
    }

    /// That another controller is at work (S14), which concerns every volume.
    #[must_use]
    pub fn alarm(&self) -> Option<String> {
        self.second_writers.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// What others wrote of late, each with object, field, manager, and until when it counts.
    #[must_use]
    pub fn second_writers(&self) -> Vec<Value> {
        self.second_writers.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Looks at every wait, in any order and without a copy.
    pub(in crate::attach_detach) fn for_each_wait(&self, mut look: impl FnMut(&NodeVolumeKey, &Waiting)) {
        self.waits.for_each(|node_volume, wait| look(node_volume, &wait.reason.waiting));
    }

    /// Whether this process decides.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.leads.load(Ordering::Relaxed)
    }

    /// Every volume on a node that waits.
    #[must_use]
    pub fn waits(&self) -> BTreeMap<NodeVolumeKey, Wait<NodeVolumeWait>> {
        self.waits.snapshot()
    }

    /// As JSON: whether this replica decides; what waits, volumes on nodes and volumes of pods alike; the volumes on
    /// nodes that do not; and VolumeAttachments that are not ours.
    #[must_use]
    pub fn page(&self) -> Page {
        self.page_at(WallClock::now())
    }

    /// The same with the rows that are asked for.
    #[must_use]
    pub fn part(&self, asked: &Asked) -> Page {
        let mut page = self.page();
        page.node_volumes.retain(|key, _| asked.has(&key.names()));
        page.pod_volumes.retain(|key, _| asked.has(&key.names()));
        page.settled.retain(|key, _| asked.has(&key.names()));
        page.foreign.retain(|name, foreign| asked.has(&foreign.names(name)));
        page
    }

    fn page_at(&self, clock: WallClock) -> Page {
        // The planner does not wait for a reader: each map is copied first.
        Page {
            clock,
            alarm: self.alarm(),
            foreign: self.foreign.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            leads: self.leads(),
            second_writers: self.second_writers(),
            settled: self.settled.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            node_volumes: self.waits.snapshot(),
            pod_volumes: self.unresolved.snapshot(),
        }
    }
}

/// The debug page as of one moment.
#[derive(Clone, Debug)]
pub struct Page {
    clock: WallClock,
    alarm: Option<String>,
    foreign: BTreeMap<AttachmentName, Foreign>,
    leads: bool,
    second_writers: Vec<Value>,
    settled: BTreeMap<NodeVolumeKey, Settled>,
    node_volumes: BTreeMap<NodeVolumeKey, Wait<NodeVolumeWait>>,
    pod_volumes: BTreeMap<PodVolume, Wait<WhyUnresolved>>,
}

impl Serialize for Page {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let clock = &self.clock;
        let foreign = || {
            self.foreign.iter().map(|(name, Foreign { volume, node, since })| {
                let since = clock.at(*since).to_string();
                json!({ "attachment": name, "volume": volume, "node": node, "since": since })
            })
        };
        let settled = || {
            self.settled.iter().map(|(NodeVolumeKey { volume, node }, Settled { state, since })| {
                json!({ "volume": volume, "node": node, "state": state, "since": clock.at(*since).to_string() })
            })
        };
        let waiting = || {
            let node_volumes =
                self.node_volumes.iter().map(|(key, wait)| row(Kind::Attachment, key, wait, clock));
            let volumes = self.pod_volumes.iter().map(|(key, wait)| row(Kind::PodVolume, key, wait, clock));
            node_volumes.chain(volumes)
        };
        let mut page = serializer.serialize_struct("Page", 6)?;
        page.serialize_field("alarm", &self.alarm)?;
        page.serialize_field("foreign", &Rows(foreign))?;
        page.serialize_field("leads", &self.leads)?;
        page.serialize_field("secondWriters", &self.second_writers)?;
        page.serialize_field("settled", &Rows(settled))?;
        page.serialize_field("waiting", &Rows(waiting))?;
        page.end()
    }
}

fn key(volume: &VolumeId, node: &NodeName) -> NodeVolumeKey {
    NodeVolumeKey { volume: volume.clone(), node: node.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        attach_detach::{
            actual::state::{Deletion, Listed, Uncertain},
            decide::{force::Unforced, verdict::ConflictingNode},
            desired::{source_error::SourceError, state::WhyUnresolved},
        },
        kube_api::ids::{ClaimKey, DriverName},
    };

    #[tokio::test(start_paused = true)]
    async fn l18_a_wait_is_shown_with_its_facts_and_its_beginning() {
        let start = Instant::now();
        let at = |second| start + std::time::Duration::from_secs(second);
        let clock = WallClock::new(Timestamp::UNIX_EPOCH, start);
        let diagnostics = Diagnostics::default();
        let volume = VolumeId::csi(&DriverName::from("d"), "h");
        let (a, b) = (NodeName::from("a"), NodeName::from("b"));
        let wait = |state, waiting| NodeVolumeWait { state, waiting };
        let held = Waiting::HeldByNode { conflict: ConflictingNode { node: a.clone(), is_attached: true } };
        diagnostics.set(&volume, &b, Some((wait(State::Detached, held), None)), at(5));
        diagnostics.settle(&volume, &NodeName::from("c"), State::Attached, at(7));
        diagnostics.settle(&volume, &NodeName::from("c"), State::Attached, at(8));
        let due = Timestamp::from_second(360).unwrap();
        for (second, unforced) in [(0, Unforced::NodeReady), (9, Unforced::Until(due))] {
            let waiting = Waiting::DetachWaitingForUnmount { unforced };
            diagnostics.set(&volume, &a, Some((wait(State::Attached, waiting), Some(at(360)))), at(second));
        }
        let pod = PodKey::new("ns", "p");
        let no_claim = WhyUnresolved::ClaimMissing(ClaimKey::new("ns", "c"));
        let no_claim = Unresolved { pod_volume: "data".to_owned(), why: no_claim };
        let no_handle = WhyUnresolved::MalformedSource(None, SourceError::NoHandle);
        let no_handle = Unresolved { pod_volume: "more".to_owned(), why: no_handle };
        let (before, found) = ([no_claim.clone()], [no_claim, no_handle]);
        diagnostics.set_unresolved(&pod, &[], &before, at(3));
        diagnostics.set_unresolved(&pod, &before, &found, at(4));
        let (ours, theirs) = (AttachmentName::from("csi-1"), AttachmentName::from("made-by-hand"));
        assert_eq!(diagnostics.set_foreign(&ours, None, Some(&a), at(6)), 1);
        assert_eq!(diagnostics.set_foreign(&ours, None, None, at(7)), -1);
        assert_eq!(diagnostics.set_foreign(&theirs, None, Some(&a), at(6)), 1);
        assert_eq!(diagnostics.set_foreign(&theirs, Some(&volume), Some(&a), at(7)), 0);
        let time = |second: i64| Timestamp::from_second(second).unwrap().to_string();
        assert_eq!(
            json!(diagnostics.page_at(clock)),
            json!({ "waiting": [
                {
                    "kind": "attachment", "volume": "kubernetes.io/csi/d^h", "node": "a",
                    "reason": "DetachWaitingForUnmount",
                    "message": "the node is not Ready and its kubelet has not unmounted the volume: it is detached by force at 1970-01-01T00:06:00Z",
                    "since": time(0), "next": time(360), "until": time(360),
                    "facts": { "state": "Attached", "unforced": { "until": time(360) } },
                },
                {
                    "kind": "attachment", "volume": "kubernetes.io/csi/d^h", "node": "b",
                    "reason": "HeldByNode", "message": "node a holds the volume, which is for one node alone",
                    "since": time(5), "next": null, "until": null,
                    "facts": { "state": "Detached", "conflictingNode": { "node": "a", "isAttached": true } },
                },
                {
                    "kind": "pod_volume", "pod": "ns/p", "podVolume": "data", "reason": "ClaimMissing",
                    "message": "claim ns/c does not exist", "since": time(3), "next": null, "until": null,
                    "facts": { "object": "pvc/ns/c", "problem": null },
                },
                {
                    "kind": "pod_volume", "pod": "ns/p", "podVolume": "more", "reason": "MalformedSource",
                    "message": "the volume's source leads nowhere: the source does not name a volume",
                    "since": time(4), "next": null, "until": null,
                    "facts": { "object": null, "problem": "the source does not name a volume" },
                },
            ], "settled": [
                { "volume": "kubernetes.io/csi/d^h", "node": "c", "state": "Attached", "since": time(7) },
            ], "foreign": [
                { "attachment": "made-by-hand", "volume": "kubernetes.io/csi/d^h", "node": "a", "since": time(6) },
            ], "alarm": null, "secondWriters": [], "leads": false})
        );
        diagnostics.set_unresolved(&pod, &found, &[], at(5));
        diagnostics.set(&volume, &a, None, at(5));
        assert_eq!(json!(diagnostics.page_at(clock))["waiting"].as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn l18_the_state_shown_is_what_is_known_of_the_pair() {
        let (none, attached) = (NodeVolume::default, || NodeVolume::with_attachment(true, false));
        let now = Instant::now();
        let uncertain = Some(Uncertain { until: now, read_absent: false });
        let cases = [
            ("nothing", none(), State::Detached),
            ("create sent", NodeVolume { call: Some(AttachmentCall::Create), ..none() }, State::Attaching),
            (
                "create sent, listed of old",
                NodeVolume { call: Some(AttachmentCall::Create), listed: Listed::Yes, ..none() },
                State::Attaching,
            ),
            ("create unanswered", NodeVolume { uncertain, ..none() }, State::Uncertain),
            (
                "create unanswered, sent again",
                NodeVolume { uncertain, call: Some(AttachmentCall::Create), ..none() },
                State::Uncertain,
            ),
            ("listed", NodeVolume { listed: Listed::Yes, ..none() }, State::Attached),
            ("made", NodeVolume::with_attachment(false, false), State::Attaching),
            ("attached", attached(), State::Attached),
            (
                "deletion sent",
                NodeVolume { call: Some(AttachmentCall::Delete), ..attached() },
                State::Detaching,
            ),
            ("deletion accepted", attached().with_deletion(Deletion::Accepted), State::Detaching),
            (
                "deletion unanswered",
                attached().with_deletion(Deletion::InDoubt { until: now }),
                State::Uncertain,
            ),
            (
                "deletion unanswered, sent again",
                NodeVolume {
                    call: Some(AttachmentCall::Delete),
                    ..attached().with_deletion(Deletion::InDoubt { until: now })
                },
                State::Detaching,
            ),
            ("going", NodeVolume::with_attachment(true, true), State::Detaching),
        ];
        for (name, node_volume, expected) in cases {
            assert_eq!(State::of(&node_volume), expected, "{name}");
        }
    }

    #[test]
    fn s14_it_shows_whether_another_controller_is_at_work_and_whether_this_one_decides() {
        let diagnostics = Diagnostics::default();
        for (leads, alarm) in [(false, false), (true, true), (true, false)] {
            if leads {
                diagnostics.lead(Instant::now());
            }
            diagnostics.set_second_writers((alarm.then(|| "another".to_owned()), Vec::new()));
            let shown = json!(diagnostics.page());
            assert_eq!((&shown["leads"], shown["alarm"].is_string()), (&json!(leads), alarm));
        }
    }
}
