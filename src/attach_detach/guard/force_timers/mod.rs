//! Force-detach timers: how long detaches have waited for nodes that are not Ready, kept where a successor of this
//! process finds it, so that a restart begins no wait anew (S6). Pure.
//!
//! In: which detaches wait for such a node, and what became of our requests. Out: the one request that is needed, if
//! any. It is about a ConfigMap beside the lease, by [`WaitKey`], written only while a detach waits in this way, and
//! then stamped again every [`STAMP_PERIOD`]. A successor goes on from the last stamp, if it believes it ([`credit`]):
//! of the time since then it knows nothing, and so a wait is longer by that, and never shorter.

mod credit;
mod earlier;
mod trouble;
mod wait;

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

pub use super::force_timers::wait::{Failure, Wait, WaitKey, Waited};
use super::force_timers::{
    credit::{Belief, Credit, Predecessor, STAMPED_BY},
    earlier::EarlierMap,
    trouble::Trouble,
};
use crate::{
    attach_detach::{
        actual::state::ActualState,
        decide::{
            force::Unforced,
            verdict::{Step, Verdict, Waiting},
        },
        desired::volume_name::VolumeId,
        tell::{
            report::{Line, Report},
            timers::Said,
        },
    },
    controller::retry::Retry,
    kube_api::{
        call::{CallError, Request, Verb},
        ids::{NodeName, Uid},
        kinds::ConfigMap,
        tally::{LeaseTally, Tally},
    },
};

/// Entries that are kept, at most. A ConfigMap may hold 1 MiB, and one entry is a key of 32 bytes, three digits, the
/// name of a failure of 16 bytes and a UID of 36.
const MOST: usize = 9_000;

/// How often what is written is stamped again while something waits: by so much a restart makes a wait longer, besides
/// the time in which no replica leads.
pub const STAMP_PERIOD: Duration = Duration::from_secs(5);

/// Time between two writes at least: each has etcd store the whole map.
pub const WRITE_PERIOD: Duration = Duration::from_secs(1);

/// Where the ConfigMap is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimersConfigMap {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Under which name an earlier version kept such a map, if it is to be looked for.
    pub earlier_name: Option<String>,
}

/// A volume on a node whose detach may wait, when what a predecessor wrote is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The volume.
    pub volume: VolumeId,
    /// The node.
    pub node: NodeName,
    /// As what the node is not Ready now.
    pub failure: Option<Failure>,
    /// What is attached now.
    pub attachment: Option<Uid>,
    /// When this process last saw a pod cease to need it there: what was counted before is of an earlier wait (S4).
    pub desired_until: Option<Timestamp>,
}

/// What a predecessor has proven of a volume on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// The volume.
    pub volume: VolumeId,
    /// The node.
    pub node: NodeName,
    /// For how long at least no pod has needed the volume there.
    pub elapsed: Duration,
    /// Whether the node has not been Ready for as long either.
    pub is_unready_as_long: bool,
}

/// What is remembered, and what of it is written.
#[derive(Clone, Debug, Default)]
pub struct ForceTimers {
    place: Option<TimersConfigMap>,
    lease: Option<LeaseTally>,
    /// How long a wait is at most: what has lasted as long need not be stamped again.
    patience: Duration,
    waits: HashMap<WaitKey, Wait>,
    written: Written,
    /// Whether what is written may differ from what is remembered.
    changed: bool,
    /// Whether some wait is to be stamped again.
    runs: bool,
    /// When it was last looked at what there is to write.
    looked_at: Option<Instant>,
    /// How many did not fit when it was written last.
    left_out: usize,
    before: Predecessor,
    inheritance: Inheritance,
    credit: Credit,
    earlier: EarlierMap,
    asked: Option<Asked>,
    retry: Retry,
    trouble: Trouble,
    /// What there is to log.
    said: Vec<Said>,
}

/// How far it is with what predecessors wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Inheritance {
    /// It is to be read.
    #[default]
    Unread,
    /// It is to be written as it was read, before it is believed.
    Unclaimed,
    /// It has been taken, or is not believed.
    Settled,
}

/// What the request in flight is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Timers(Verb),
    EarlierMap,
}

/// The ConfigMap, as far as known.
#[derive(Clone, Debug, Default)]
enum Written {
    /// To be read.
    #[default]
    Unknown,
    Absent,
    Present(Box<ConfigMap>),
}

impl ForceTimers {
    /// Timers that are kept there by a process of that identity, for waits that last so long at most.
    #[must_use]
    pub fn kept_in(place: TimersConfigMap, identity: String, patience: Duration) -> Self {
        let earlier = EarlierMap::named(place.earlier_name.as_ref().map(|name| path(&place.namespace, name)));
        Self { place: Some(place), patience, earlier, credit: Credit::of(identity), ..Self::default() }
    }

    /// The lease tells of the timers of who led before, and will tell of these.
    pub fn follow(&mut self, lease: LeaseTally) {
        self.lease = Some(lease);
    }

    /// This process leads from now on.
    pub fn take_over(&mut self) {
        if let Some(told) = self.lease.as_ref().map(LeaseTally::left) {
            self.succeed(told);
        }
    }

    /// Takes what the lease says of the previous leader, by which its ConfigMap is judged. Not called where there is no
    /// election.
    pub fn succeed(&mut self, told: Option<Tally>) {
        self.before = Predecessor::OnLease(told);
    }

    /// How many waits were broken off of which the ConfigMap may tell, to be told on the lease.
    #[must_use]
    pub fn broken_off(&self) -> u64 {
        self.credit.broken_off()
    }

    /// A detach waits for a node that is not Ready.
    pub fn note(&mut self, key: WaitKey, wait: Wait) {
        if self.waits.get(&key) != Some(&wait) {
            self.waits.insert(key, wait);
            self.changed = true;
        }
    }

    /// Takes the verdict on a volume on a node: how long a wait has lasted that force may end is kept for the process
    /// that comes after us.
    pub fn judged(&mut self, volume: &VolumeId, node: &NodeName, verdict: &Verdict, actual: &ActualState) {
        let Some(node_volume) = actual.node_volume(volume, node) else { return };
        let attachment = node_volume.attachment();
        let is_over = attachment.is_some_and(|attachment| attachment.metadata.is_terminating());
        let is_over =
            is_over || matches!(verdict.step, Some(Step::GiveUp(_))) || !node_volume.may_be_attached();
        match (node_volume.undesired_since(), &verdict.waiting) {
            (
                Some(since),
                Some(
                    Waiting::DetachWaitingForUnmount { unforced: Unforced::Until(_) }
                    | Waiting::DetachWaitingForNode { unforced: Unforced::Until(_) },
                ),
            ) => {
                let state = actual.node(node);
                let unready_since = state.and_then(|state| state.unready_since);
                let wait = Wait {
                    since: unready_since.map_or(since, |unready_since| unready_since.max(since)),
                    failure: state.and_then(|state| state.node.as_deref()).and_then(Failure::of),
                    attachment: node_volume.uid().cloned(),
                };
                self.note(WaitKey::new(volume, node), wait);
            }
            (Some(_), _) if !is_over => {}
            _ => self.forget(volume, node),
        }
    }

    /// The volume is desired again, or being detached, or gone.
    pub fn forget(&mut self, volume: &VolumeId, node: &NodeName) {
        if !self.waits.is_empty() {
            self.changed |= self.waits.remove(&WaitKey::new(volume, node)).is_some();
        }
    }

    /// A pod needs the volume: what may have been written of its wait does not go on, whether or not the
    /// ConfigMap can be written (S4).
    pub fn break_off(&mut self, volume: &VolumeId, node: &NodeName) {
        if !self.waits.is_empty() || !self.credit.is_empty() {
            let key = WaitKey::new(volume, node);
            self.changed |= self.waits.remove(&key).is_some();
            self.changed |= self.credit.break_off(&key);
        }
    }

    /// Whether a request is in flight.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.asked.is_some()
    }

    /// When to ask for the next request although nothing happened.
    #[must_use]
    pub fn due_at(&self) -> Option<Instant> {
        let retry = self.retry.at();
        let period = if self.changed { Some(WRITE_PERIOD) } else { self.runs.then_some(STAMP_PERIOD) };
        let due = match (&self.written, self.looked_at, period) {
            (Written::Unknown, ..) | (_, None, Some(_)) => retry,
            // A pause ends nothing if there is nothing to write: it may be of a write that landed unheard.
            (_, Some(looked_at), Some(period)) => Some(looked_at + period).max(retry),
            (_, _, None) => None,
        };
        due.filter(|_| self.place.is_some() && !self.is_busy())
    }

    /// The request to send now, which then is in flight. `wall` is the time by the clock of the noted waits.
    pub fn next(&mut self, now: Instant, wall: Timestamp) -> Option<Request> {
        if self.is_busy() || self.retry.pending(now).is_some() {
            return None;
        }
        let place = self.place.as_ref()?;
        let path = path(&place.namespace, &place.name);
        if matches!(self.written, Written::Unknown) {
            self.asked = Some(Asked::Timers(Verb::Get));
            return Some(Request { verb: Verb::Get, path, body: None });
        }
        if let Some(request) = self.earlier.next() {
            self.asked = Some(Asked::EarlierMap);
            return Some(request);
        }
        if self.inheritance == Inheritance::Unclaimed
            && let Written::Present(map) = &self.written
        {
            self.credit.writes(&map.data);
            self.asked = Some(Asked::Timers(Verb::Patch));
            return Some(patch(path, map, &json!({ STAMPED_BY: self.credit.stamp() })));
        }
        let since_last = self.looked_at.map_or(Duration::MAX, |looked_at| now - looked_at);
        let is_due =
            (self.changed && since_last >= WRITE_PERIOD) || (self.runs && since_last >= STAMP_PERIOD);
        if !is_due {
            return None;
        }
        let request = self.write(path, wall);
        self.changed = false;
        if request.is_none() {
            // It says what it should, by our hand or another.
            let said = self.trouble.is_over();
            self.said.extend(said);
        }
        if request.is_some() || self.runs {
            self.looked_at = Some(now);
        }
        self.asked = request.as_ref().map(|request| Asked::Timers(request.verb));
        request
    }

    /// The write that makes the ConfigMap what it should be.
    fn write(&mut self, path: String, wall: Timestamp) -> Option<Request> {
        let wanted = self.kept(wall);
        self.credit.writes(&wanted);
        match &self.written {
            Written::Absent if !wanted.is_empty() => {
                let (collection, name) = path.rsplit_once('/')?;
                let body = json!({
                    "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": wanted,
                });
                Some(Request { verb: Verb::Create, path: collection.to_owned(), body: Some(body) })
            }
            Written::Present(map) if map.data != wanted => {
                let gone = map.data.keys().filter(|key| !wanted.contains_key(*key));
                let mut data: BTreeMap<&String, Value> = gone.map(|key| (key, Value::Null)).collect();
                let changed = wanted.iter().filter(|(key, value)| map.data.get(*key) != Some(*value));
                data.extend(changed.map(|(key, value)| (key, json!(value))));
                Some(patch(path, map, &json!(data)))
            }
            _ => None,
        }
    }

    /// What is to be written: if there is more than fits, what began first. A successor begins those waits
    /// anew that it does not find, which is safe, and lengthens the youngest least.
    fn kept(&mut self, wall: Timestamp) -> BTreeMap<String, String> {
        let mut all: Vec<(&Wait, &WaitKey)> = self.waits.iter().map(|(key, wait)| (wait, key)).collect();
        let left_out = all.len().saturating_sub(MOST);
        if left_out > 0 {
            all.sort_unstable();
            all.truncate(MOST);
        }
        if left_out > 0 && self.left_out == 0 {
            self.said.push(Said::LeftOut(left_out));
        }
        self.left_out = left_out;
        self.runs = false;
        let mut kept = BTreeMap::new();
        for (wait, key) in all {
            let waited = wait.as_of(wall, self.patience);
            self.runs |= waited.elapsed < self.patience;
            kept.insert(key.as_str().to_owned(), waited.to_string());
        }
        if !kept.is_empty() {
            kept.insert(STAMPED_BY.to_owned(), self.credit.stamp());
        }
        kept
    }

    /// Takes what became of the request; `Ok(None)` for a deletion. Returns what predecessors have proven, once, of
    /// the `candidates`, which are asked for only then; none may be among them that a pod has needed since this
    /// process leads.
    pub fn take(
        &mut self,
        result: Result<Option<ConfigMap>, CallError>,
        candidates: impl FnOnce() -> Vec<Candidate>,
        jitter: f64,
        (now, wall): (Instant, Timestamp),
    ) -> Vec<Inherited> {
        let asked = self.asked.take();
        let verb = match asked {
            Some(Asked::EarlierMap) => {
                let said = self.earlier.take(result);
                self.said.extend(said);
                return Vec::new();
            }
            Some(Asked::Timers(verb)) => verb,
            None => return Vec::new(),
        };
        match result {
            Ok(Some(map)) => self.written = Written::Present(Box::new(map)),
            Err(CallError::NotFound(_)) if verb == Verb::Get => self.written = Written::Absent,
            Ok(None) => return Vec::new(),
            Err(error) => {
                if verb != Verb::Get {
                    // Who came before may not have been able to write it either.
                    self.inheritance = Inheritance::Settled;
                }
                self.failed(&error, verb, jitter, now);
                return Vec::new();
            }
        }
        let (is_over, said) = self.trouble.ends(verb);
        self.said.extend(said);
        if is_over {
            self.retry = Retry::default();
        }
        // It may hold what is not waited for, or lack what came meanwhile.
        self.changed |= verb == Verb::Get;
        if verb != Verb::Get
            && let Written::Present(map) = &self.written
        {
            self.credit.has_written(&map.data);
        }
        let is_believed = match mem::replace(&mut self.inheritance, Inheritance::Settled) {
            Inheritance::Unread => self.is_believed(),
            Inheritance::Unclaimed => true,
            Inheritance::Settled => false,
        };
        if is_believed { self.inherit(candidates, wall) } else { Vec::new() }
    }

    /// Whether what was read may be gone on from now.
    fn is_believed(&mut self) -> bool {
        let Written::Present(map) = &self.written else { return false };
        if map.data.is_empty() {
            return false;
        }
        let belief = self.before.belief(&map.data);
        if belief == Belief::IfClaimed {
            self.inheritance = Inheritance::Unclaimed;
        }
        if belief == Belief::Disbelieved {
            let config_map = map.metadata.name.to_string();
            self.said.push(Said::BeginAnew { config_map, waits: map.data.len() });
        }
        belief == Belief::Believed
    }

    fn inherit(&mut self, candidates: impl FnOnce() -> Vec<Candidate>, wall: Timestamp) -> Vec<Inherited> {
        let data = match &self.written {
            Written::Present(map) => &map.data,
            _ => return Vec::new(),
        };
        let mut all = Vec::new();
        for candidate in candidates() {
            let Candidate { volume, node, failure, attachment, desired_until } = candidate;
            let key = WaitKey::new(&volume, &node);
            let waited = data.get(key.as_str()).and_then(|text| Waited::parse(text));
            let Some(waited) = waited.filter(|waited| waited.is_for(attachment.as_ref())) else { continue };
            let elapsed = waited.elapsed.min(self.patience);
            let since = wall.checked_sub(elapsed).unwrap_or(wall);
            let since = desired_until.map_or(since, |ended| ended.min(wall).max(since));
            let elapsed = wall.duration_since(since).try_into().unwrap_or_default();
            // Noted at once: it may take a while until the volume on the node is judged, and the map is written before.
            let known = self.waits.entry(key);
            let known = known.or_insert(Wait { since, failure: waited.failure.clone(), attachment });
            known.since = known.since.min(since);
            let is_unready_as_long = waited.is_of(failure.as_ref());
            all.push(Inherited { volume, node, elapsed, is_unready_as_long });
        }
        all
    }

    fn failed(&mut self, error: &CallError, verb: Verb, jitter: f64, now: Instant) {
        // It is not what it was taken for.
        self.written = Written::Unknown;
        if *error == CallError::NotLeader {
            return;
        }
        let at_least = if let CallError::Throttled { after, .. } = error { *after } else { Duration::ZERO };
        self.retry = if error.is_certain() {
            mem::take(&mut self.retry).after_failure(now, jitter, at_least)
        } else {
            mem::take(&mut self.retry).after_silence(now, jitter)
        };
        if let Some(place) = &self.place {
            let said = self.trouble.goes_on(verb, error, place);
            self.said.extend(said);
        }
    }

    /// What an operator has to see to: that the ConfigMap cannot be used (S6).
    #[must_use]
    pub fn alarm(&self) -> Option<&str> {
        self.trouble.alarm()
    }

    /// What there is to log since this was last asked, and whether an operator has to see to it that the ConfigMap can
    /// be used (S6), if that has changed.
    pub(in crate::attach_detach) fn take_reports(&mut self) -> Vec<Report> {
        let said = mem::take(&mut self.said).into_iter().map(|said| Report::Line(Line::Timers(said)));
        let is_news = self.trouble.take_news();
        let alarm = is_news.then(|| Report::TimersAlarm(self.alarm().map(str::to_owned)));
        said.chain(alarm).collect()
    }
}

/// The change of data of the ConfigMap as it was read.
fn patch(path: String, map: &ConfigMap, data: &Value) -> Request {
    let metadata = json!({ "uid": map.metadata.uid, "resourceVersion": map.metadata.resource_version });
    Request { verb: Verb::Patch, path, body: Some(json!({ "metadata": metadata, "data": data })) }
}

/// Path of a ConfigMap.
fn path(namespace: &str, name: &str) -> String {
    ConfigMap::path(namespace, name)
}

#[cfg(test)]
mod tests;
