//! The judges: what must not have happened, by the record alone. None asks the daemon or its tables.
//!
//! Each is a function of the [`Record`] through a [`Timeline`]: the changes in order, with the time and the author of each.

mod all_on;
mod calm;
mod disk;
mod held;
mod lives;
mod owner;
mod pace;
mod told;
mod undone;
mod why;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use serde_json::Value;
use test_support::{
    audit::{self, DAEMON},
    history::Change,
    invariants, writes,
};
use testbed::actors::{Fact, Step};
use tokio::time::Instant;

use crate::{
    play::Record,
    world::{machine_of, node_of},
};

/// What a judge has found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Judge and rule.
    pub rule: &'static str,
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.what)
    }
}

/// All that the judges find.
pub fn judge(record: &Record) -> Vec<Fault> {
    let mut faults = goods(record);
    faults.extend(promises(record, &Timeline::of(record)));
    faults
}

/// What the judges of goods find, and of today's promises those about attachments. The others have tables of their own.
pub fn goods(record: &Record) -> Vec<Fault> {
    let timeline = Timeline::of(record);
    let mut faults = disk::judge(record, &timeline);
    faults.extend(owner::judge(&timeline));
    faults.extend(lives::judge(record));
    faults.extend(pace::judge(record, &timeline));
    faults.extend(undone::judge(record, &timeline));
    faults.extend(told::judge(record, &timeline));
    faults.extend(why::judge(record, &timeline));
    faults.extend(calm::judge(record, &timeline));
    faults.extend(all_on::judge(record, &timeline));
    faults.extend(history(record, &timeline));
    faults.sort();
    faults.dedup();
    faults
}

/// Today's promises, by who wrote: only what the daemon's own requests and writes did.
fn promises(record: &Record, timeline: &Timeline) -> Vec<Fault> {
    let ours = writes::by_daemon(&record.requests);
    let check = |changes: &[Change]| writes::check(changes, &ours);
    let mut broken = check(&record.changes);
    broken.retain(|what| !held::is_untold(record, timeline, what, check));
    broken.extend(invariants::check_requests(&record.requests));
    broken.retain(|what| !all_on::is_of_claims(what));
    broken.into_iter().map(|what| Fault { rule: "promise", what }).collect()
}

/// S1 to S3, S10, S18 and S41 of the daemon's own changes. What S49 says of classes has a judge here.
fn history(record: &Record, timeline: &Timeline) -> Vec<Fault> {
    let ours = timeline.moments.iter().filter(|moment| moment.is_ours());
    let ours: BTreeSet<u64> = ours.map(|moment| moment.change.revision).collect();
    let is_judged =
        |change: &Change| change.resource != "volumeattributesclasses" && ours.contains(&change.revision);
    let check = |changes: &[Change]| invariants::check_history(changes, is_judged);
    let mut broken = check(&record.changes);
    broken.retain(|what| !held::is_untold(record, timeline, what, check));
    broken.into_iter().map(|what| Fault { rule: "promise", what }).collect()
}

/// So long a request is under way.
const UNDER_WAY: Duration = Duration::from_secs(1);

/// The changes, each with when and by whom.
pub struct Timeline<'a> {
    pub moments: Vec<Moment<'a>>,
}

/// One change.
pub struct Moment<'a> {
    pub change: &'a Change,
    pub at: Instant,
    pub author: &'a str,
}

impl Moment<'_> {
    pub fn is_ours(&self) -> bool {
        self.author == DAEMON
    }
}

impl<'a> Timeline<'a> {
    pub fn of(record: &'a Record) -> Self {
        let authors: BTreeMap<u64, &str> = record
            .requests
            .iter()
            .filter(|entry| entry.code < 300)
            .filter_map(|entry: &audit::Entry| Some((entry.revision()?, entry.user.as_str())))
            .fold(BTreeMap::new(), |mut authors, (revision, user)| {
                // What changes nothing is answered with the revision of the last change: the first one made it.
                authors.entry(revision).or_insert(user);
                authors
            });
        let ends = ends(&record.requests);
        let mut times = record.times.iter().peekable();
        let mut moments = Vec::new();
        for change in &record.changes {
            while times.peek().is_some_and(|(revision, _)| *revision < change.revision) {
                times.next();
            }
            let at = times.peek().map_or(record.began, |(_, at)| *at);
            let ended_by =
                || ends.get(uid(change.before.as_ref().filter(|_| change.after.is_none())?)).copied();
            let author = authors.get(&change.revision).copied().or_else(ended_by).unwrap_or("somebody");
            moments.push(Moment { change, at, author });
        }
        Self { moments }
    }

    /// Calls for each change with the objects as they were before it.
    pub fn fold(&self, mut each: impl FnMut(&Objects<'a>, &Moment<'a>)) -> Objects<'a> {
        let mut objects = Objects::default();
        for moment in &self.moments {
            each(&objects, moment);
            objects.apply(moment.change);
        }
        objects
    }

    /// The objects at a revision.
    pub fn at(&self, revision: u64) -> Objects<'a> {
        let mut objects = Objects::default();
        for moment in self.moments.iter().take_while(|moment| moment.change.revision <= revision) {
            objects.apply(moment.change);
        }
        objects
    }
}

/// Who ended each object, by UID: whose delete it was, or who took off the last finalizer.
fn ends(requests: &[audit::Entry]) -> BTreeMap<&str, &str> {
    let is_end = |entry: &&audit::Entry| {
        let metadata = &entry.response["metadata"];
        let is_free = metadata["finalizers"].as_array().is_none_or(Vec::is_empty);
        entry.verb == "delete" || (is_terminating(&entry.response) && is_free)
    };
    let ends = requests.iter().filter(|entry| entry.code < 300).filter(is_end);
    ends.filter_map(|entry| {
        let uid = &entry.response["metadata"]["uid"];
        let uid = if uid.is_string() { uid } else { &entry.response["details"]["uid"] };
        Some((uid.as_str()?, entry.user.as_str()))
    })
    .collect()
}

/// All objects, by resource and key.
#[derive(Default)]
pub struct Objects<'a>(BTreeMap<(&'a str, &'a str), &'a Value>);

impl<'a> Objects<'a> {
    fn apply(&mut self, change: &'a Change) {
        let key = (change.resource.as_str(), change.name.as_str());
        match &change.after {
            Some(after) => self.0.insert(key, after),
            None => self.0.remove(&key),
        };
    }

    pub fn get(&self, resource: &str, name: &str) -> Option<&'a Value> {
        self.0.get(&(resource, name)).copied()
    }

    pub fn all(&self, resource: &str) -> impl Iterator<Item = (&'a str, &'a Value)> {
        self.0
            .iter()
            .filter(move |((kind, _), _)| *kind == resource)
            .map(|((_, name), value)| (*name, *value))
    }
}

/// The disk of a volume, as kubelets name it.
pub fn disk_of(volume: &Value) -> Option<String> {
    let spec = &volume["spec"];
    if let (Some(driver), Some(handle)) =
        (spec["csi"]["driver"].as_str(), spec["csi"]["volumeHandle"].as_str())
    {
        return Some(format!("kubernetes.io/csi/{driver}^{handle}"));
    }
    let lun = &spec["iscsi"];
    let (portal, iqn) = (lun["targetPortal"].as_str()?, lun["iqn"].as_str()?);
    Some(format!("kubernetes.io/iscsi/{portal}:{iqn}:{}", lun["lun"]))
}

/// Since when a machine has a disk mounted: strictly before that moment, and not unmounted at or before it.
pub fn mounted(facts: &[Fact], disk: &str, machine: &str, at: Instant) -> Option<Instant> {
    let steps = facts.iter().filter(|fact| fact.disk == disk && fact.machine == machine);
    let mut since = None;
    for fact in steps.take_while(|fact| fact.at <= at) {
        match fact.step {
            Step::Mounted if fact.at < at => since = Some(fact.at),
            Step::Unmounted => since = None,
            _ => {}
        }
    }
    since
}

/// Names in a list of a node's status.
pub fn listed(node: &Value) -> BTreeSet<&str> {
    let list = node["status"]["volumesAttached"].as_array().into_iter().flatten();
    list.filter_map(|entry| entry["name"].as_str()).collect()
}

pub fn in_use(node: &Value) -> BTreeSet<&str> {
    node["status"]["volumesInUse"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

pub fn is_ready(node: &Value) -> bool {
    let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

pub fn is_out_of_service(node: &Value) -> bool {
    let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
    taints.any(|taint| taint["key"] == "node.kubernetes.io/out-of-service")
}

/// Whether a volume refers to what has the name of a claim, in its namespace.
pub fn refers_to_name(reference: &Value, claim: &str) -> bool {
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    claim.split_once('/').is_some_and(|of| of == (text("namespace"), text("name")))
}

/// The machine that a VolumeAttachment is for, once its attacher has seen it.
pub fn machine_for(attachment: &Value) -> Option<&str> {
    attachment["metadata"]["annotations"]["csi.alpha.kubernetes.io/node-id"].as_str()
}

/// Whether an attachment is for another machine than the one that bears the name of its node now.
pub fn is_of_another(objects: &Objects, attachment: &Value) -> bool {
    let node = attachment["spec"]["nodeName"].as_str().unwrap_or_default();
    let bearer = objects.get("nodes", node).map(|object| machine_of(node, object));
    machine_for(attachment).zip(bearer).is_some_and(|(machine, bearer)| machine != bearer)
}

/// Which machine bears the name of each node.
#[derive(Default)]
pub struct Names<'a> {
    bearers: BTreeMap<&'a str, &'a str>,
    deleted: BTreeMap<&'a str, Instant>,
    lost: BTreeMap<&'a str, Instant>,
    /// By machine: when its node was deleted, or another took the name.
    left: BTreeMap<&'a str, Instant>,
}

impl<'a> Names<'a> {
    pub fn note(&mut self, moment: &Moment<'a>) {
        let Change { resource, name, after, .. } = moment.change;
        match after {
            _ if resource != "nodes" => {}
            None => drop(self.deleted.insert(name, moment.at)),
            Some(node) => {
                let machine = machine_of(name, node);
                let since = self.deleted.remove(name.as_str()).unwrap_or(moment.at);
                if let Some(before) = self.bearers.insert(name, machine).filter(|before| *before != machine) {
                    self.lost.insert(name, since);
                    self.left.insert(before, since);
                }
            }
        }
    }

    /// The machine that bears it, or did last.
    pub fn bearer<'b>(&'b self, node: &'b str) -> &'b str {
        self.bearers.get(node).copied().unwrap_or(node)
    }

    /// Since when the machine before the one that bears it does no more.
    pub fn lost(&self, node: &str) -> Option<Instant> {
        self.lost.get(node).copied()
    }

    /// Whether a process that began in time to do something then knows nothing of the machine, as another had its name.
    pub fn is_unknown(&self, machine: &str, begins: &[Instant], then: Instant) -> bool {
        let left = self.left.get(machine).filter(|_| self.bearer(node_of(machine)) != machine);
        left.is_some_and(|left| begins.iter().any(|begin| (*left..=then).contains(begin)))
    }
}

/// When processes began, or began to lead: none knows which machine had a node's name before.
pub fn begins(record: &Record, timeline: &Timeline) -> Vec<Instant> {
    let holder = |lease: &Option<Value>| lease.as_ref().map(|lease| lease["spec"]["holderIdentity"].clone());
    let is_change = |moment: &&Moment| {
        let change = moment.change;
        change.resource == "leases" && holder(&change.before) != holder(&change.after)
    };
    let changes = timeline.moments.iter().filter(is_change).map(|moment| moment.at);
    record.starts.iter().copied().chain(changes).collect()
}

pub fn is_terminating(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

pub fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

/// Claims that a pod uses, as keys, those of its generic ephemeral volumes among them.
pub fn claims_of(pod: &Value) -> Vec<String> {
    let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let names = volumes.filter_map(|volume| {
        if volume["ephemeral"].is_null() {
            return volume["persistentVolumeClaim"]["claimName"].as_str().map(str::to_owned);
        }
        Some(format!("{}-{}", pod["metadata"]["name"].as_str()?, volume["name"].as_str()?))
    });
    names.map(|name| format!("{namespace}/{name}")).collect()
}

/// Whether a claim of that name is the pod's: that of a generic ephemeral volume is only if the pod owns it.
pub fn is_of(claim: &Value, pod: &Value) -> bool {
    let mut volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let owners = claim["metadata"]["ownerReferences"].as_array();
    volumes.all(|volume| volume["ephemeral"].is_null())
        || owners.is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == uid(pod)))
}
