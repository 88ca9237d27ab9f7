//! S47: each pod is told each change at most once, also over restarts, and once unless the daemon was killed meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::{Value, json};
use test_support::history::Change;
use tokio::time::Instant;

use super::{
    Fault, Objects, Timeline, claims_of, disk_of, held::tells, in_use, is_of, is_out_of_service, is_ready,
    is_terminating, listed, uid,
};
use crate::{play::Record, world::is_managed};

/// So long an event is awaited, and a disturbance before excuses that it does not come.
const AWAITED: Duration = Duration::from_secs(10);
/// So long an event is not told again while it holds.
const STANDS: Duration = Duration::from_mins(45);
/// So long an event is tried again.
const WRITTEN_LATE: Duration = Duration::from_mins(2);
/// So many events of what is in order one object gets at once; then some are left out.
const MANY: usize = 12;

pub fn judge(record: &Record, timeline: &Timeline) -> Vec<Fault> {
    let mut faults = attached_once(record, timeline);
    faults.extend(attached_at_all(record, timeline));
    faults.extend(failed_once(record, timeline));
    faults.extend(provisioning(record, timeline));
    faults
}

fn event_of<'a>(event: &'a Value, reason: &str) -> Option<(&'a str, &'a str)> {
    (event["reason"] == reason)
        .then(|| Some((event["involvedObject"]["uid"].as_str()?, event["message"].as_str()?)))
        .flatten()
}

/// A node and a volume.
type Place = (String, String);

/// A pod on a node: how often each volume had been attached there when it came, and which ones were so, as far as was told.
struct Born {
    node: String,
    before: BTreeMap<String, u64>,
    attached: BTreeSet<String>,
}

/// `SuccessfulAttachVolume`, as often as its volume was attached to its node while the pod was there. One that found it
/// attached may have been told so before that.
fn attached_once(record: &Record, timeline: &Timeline) -> Vec<Fault> {
    let mut told: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut found: BTreeSet<(&str, &str)> = BTreeSet::new();
    // Attached or listed so often, and until when this may be what is known.
    let mut times: BTreeMap<Place, u64> = BTreeMap::new();
    let mut until: BTreeMap<Place, Option<Instant>> = BTreeMap::new();
    let mut born: BTreeMap<&str, Born> = BTreeMap::new();
    timeline.fold(|objects, moment| {
        let change = moment.change;
        for place in places(objects, change, change.after.as_ref(), change.before.as_ref()) {
            *times.entry(place.clone()).or_default() += 1;
            until.insert(place, None);
        }
        for place in places(objects, change, change.before.as_ref(), change.after.as_ref()) {
            until.insert(place, Some(tells(record, moment)));
        }
        match (change.resource.as_str(), &change.after) {
            ("events", Some(after)) => {
                let Some(key @ (pod, message)) = event_of(after, "SuccessfulAttachVolume") else { return };
                let before = change.before.as_ref().and_then(|before| before["count"].as_u64()).unwrap_or(0);
                let count = after["count"].as_u64().unwrap_or(1);
                *told.entry(key).or_default() += count.saturating_sub(before).max(1);
                let (Some(born), Some(volume)) = (born.get(pod), message.split('"').nth(1)) else { return };
                if born.attached.contains(volume) && born.since(volume, &times) == 0 {
                    found.insert(key);
                }
            }
            ("pods", Some(after)) => {
                let node = after["spec"]["nodeName"].as_str().unwrap_or_default();
                if !node.is_empty() && !born.contains_key(uid(after)) {
                    let before = times.iter().filter(|((of, _), _)| of == node);
                    let before = before.map(|((_, volume), count)| (volume.clone(), *count)).collect();
                    let is_known = |end: &Option<Instant>| end.is_none_or(|end| end >= moment.at);
                    let attached = until.iter().filter(|((of, _), end)| of == node && is_known(end));
                    let attached = attached.map(|((_, volume), _)| volume.clone()).collect();
                    born.insert(uid(after), Born { node: node.to_owned(), before, attached });
                }
            }
            _ => {}
        }
    });
    let mut faults = Vec::new();
    for (key @ (pod, message), count) in told {
        let Some(born) = born.get(pod) else { continue };
        let Some(volume) = message.split('"').nth(1) else { continue };
        let allowed = (born.since(volume, &times) + u64::from(found.contains(&key))).max(1);
        if count > allowed {
            let what = format!("pod {pod} {count} times {message:?}, attached {allowed} times");
            faults.push(Fault { rule: "told: again", what });
        }
    }
    faults
}

impl Born {
    /// How often it was attached since the pod came.
    fn since(&self, volume: &str, times: &BTreeMap<Place, u64>) -> u64 {
        let all = times.get(&(self.node.clone(), volume.to_owned())).copied().unwrap_or(0);
        all - self.before.get(volume).copied().unwrap_or(0)
    }
}

/// What is attached, or on iSCSI listed, by the one of two states of an object and not by the other.
fn places(objects: &Objects, change: &Change, is: Option<&Value>, is_not: Option<&Value>) -> Vec<Place> {
    let Some(state) = is else { return Vec::new() };
    match change.resource.as_str() {
        "volumeattachments" => {
            let is_attached = |object: &Value| object["status"]["attached"] == true;
            if !is_attached(state) || is_not.is_some_and(is_attached) {
                return Vec::new();
            }
            let source = state["spec"]["source"]["persistentVolumeName"].as_str().unwrap_or_default();
            let node = state["spec"]["nodeName"].as_str().unwrap_or_default();
            names_of(objects, source).map(|name| (node.to_owned(), name.to_owned())).collect()
        }
        "nodes" => {
            let other = is_not.map(listed).unwrap_or_default();
            let state = listed(state);
            let disks: BTreeSet<&str> =
                state.difference(&other).filter(|disk| disk.contains("/iscsi/")).copied().collect();
            let of_disks = |volume: &Value| disk_of(volume).is_some_and(|disk| disks.contains(disk.as_str()));
            let volumes = objects.all("persistentvolumes").filter(|(_, volume)| of_disks(volume));
            volumes.map(|(name, _)| (change.name.clone(), name.to_owned())).collect()
        }
        _ => Vec::new(),
    }
}

/// This PersistentVolume and the others of its disk, which are attached at once.
fn names_of<'a>(objects: &Objects<'a>, source: &'a str) -> impl Iterator<Item = &'a str> {
    let disk = objects.get("persistentvolumes", source).and_then(disk_of);
    let of_disk =
        move |(name, volume): &(&str, &Value)| *name != source && disk.is_some() && disk_of(volume) == disk;
    objects.all("persistentvolumes").filter(of_disk).map(|(name, _)| name).chain([source])
}

/// A claim that is handed to its provisioner is told so, unless the daemon was killed in the ten seconds after.
fn provisioning(record: &Record, timeline: &Timeline) -> Vec<Fault> {
    const KEY: &str = "volume.kubernetes.io/storage-provisioner";
    let mut asked = BTreeMap::new();
    let mut told = BTreeSet::new();
    let mut bound = BTreeMap::new();
    for moment in &timeline.moments {
        let change = moment.change;
        let Some(after) = &change.after else { continue };
        match change.resource.as_str() {
            "persistentvolumeclaims" => {
                let has = |claim: &Value| !claim["metadata"]["annotations"][KEY].is_null();
                if has(after) && moment.is_ours() && !change.before.as_ref().is_some_and(has) {
                    asked.insert(uid(after), (moment.at, change.name.as_str()));
                }
                if !after["spec"]["volumeName"].is_null() {
                    bound.entry(uid(after)).or_insert(moment.at);
                }
            }
            "events" => {
                for reason in ["ExternalProvisioning", "ProvisioningFailed"] {
                    told.extend(event_of(after, reason).map(|(claim, _)| claim));
                }
            }
            _ => {}
        }
    }
    let mut faults = Vec::new();
    for (claim, (at, name)) in asked {
        let second = Duration::from_secs(1);
        let is_quick = bound.get(claim).is_some_and(|then| *then < at + second);
        let is_over = record.times.last().is_some_and(|(_, last)| *last < at + 5 * second);
        if !told.contains(claim) && !is_quick && !is_over && !is_disturbed(record, at, &record.faults) {
            faults.push(Fault { rule: "told: not that a provisioner is asked", what: name.to_owned() });
        }
    }
    faults
}

/// Whether the daemon was killed, or one of these troubles reigned, within ten seconds.
fn is_disturbed(record: &Record, at: Instant, troubles: &[(Instant, Instant)]) -> bool {
    let was_killed =
        record.kills.iter().any(|kill| *kill + Duration::from_secs(1) >= at && *kill <= at + AWAITED);
    was_killed || troubles.iter().any(|(begin, end)| *begin <= at + AWAITED && *end + AWAITED >= at)
}

/// What is awaited: a pod, by UID and name, is to be told of that volume, attached at that time.
struct Awaited<'a> {
    pod: &'a str,
    name: &'a str,
    attachment: &'a str,
    volume: &'a str,
    at: Instant,
}

/// Each pod that was there and wanted it as an attachment of ours turned attached has been told so, if both are still so ten
/// seconds later. Once is enough: a process that follows another cannot tell an attach from the one before.
fn attached_at_all(record: &Record, timeline: &Timeline) -> Vec<Fault> {
    let mut awaited: Vec<Awaited> = Vec::new();
    let mut ours = BTreeSet::new();
    let mut told = BTreeSet::new();
    // By UID: how many events it got.
    let mut events: BTreeMap<&str, usize> = BTreeMap::new();
    let mut faults = Vec::new();
    timeline.fold(|objects, moment| {
        let change = moment.change;
        awaited.retain(|it| {
            if moment.at <= it.at + AWAITED {
                return wants(objects, it.pod, it.volume) && is_attached(objects, it.attachment);
            }
            let is_told = told.contains(&(it.pod, it.volume));
            let troubles: Vec<_> = record.late.iter().chain(&record.faults).copied().collect();
            let is_quiet = events.get(it.pod).is_none_or(|count| *count < MANY);
            let begins =
                record.starts.iter().any(|start| *start + AWAITED >= it.at && *start <= it.at + AWAITED);
            if !is_told && is_quiet && !begins && !is_disturbed(record, it.at, &troubles) {
                let what = format!("pod {}, of {}", it.name, it.volume);
                faults.push(Fault { rule: "told: not that its volume is attached", what });
            }
            false
        });
        match (change.resource.as_str(), &change.after) {
            ("events", Some(after)) if moment.is_ours() => {
                *events.entry(after["involvedObject"]["uid"].as_str().unwrap_or_default()).or_default() += 1;
                if let Some((pod, message)) = event_of(after, "SuccessfulAttachVolume") {
                    told.insert((pod, message.split('"').nth(1).unwrap_or_default()));
                }
            }
            ("volumeattachments", Some(after)) => {
                if change.before.is_none() && moment.is_ours() {
                    ours.insert(uid(after));
                }
                let is = |object: &Value| object["status"]["attached"] == true && !is_terminating(object);
                let volume = after["spec"]["source"]["persistentVolumeName"].as_str().unwrap_or_default();
                if !is(after) || change.before.as_ref().is_some_and(is) || !ours.contains(uid(after)) {
                    return;
                }
                for (name, pod) in objects.all("pods") {
                    let is_here = pod["spec"]["nodeName"] == after["spec"]["nodeName"];
                    let node = objects.get("nodes", pod["spec"]["nodeName"].as_str().unwrap_or_default());
                    if is_here && node.is_some_and(is_managed) && wants(objects, uid(pod), volume) {
                        let attachment = change.name.as_str();
                        awaited.push(Awaited { pod: uid(pod), name, attachment, volume, at: moment.at });
                    }
                }
            }
            _ => {}
        }
    });
    faults
}

fn is_attached(objects: &Objects, attachment: &str) -> bool {
    let object = objects.get("volumeattachments", attachment);
    object.is_some_and(|object| object["status"]["attached"] == true && !is_terminating(object))
}

/// Whether a pod that is there uses a claim that is bound to that volume.
fn wants(objects: &Objects, pod: &str, volume: &str) -> bool {
    let is_done = |pod: &Value| pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed";
    let is_it = |object: &Value| uid(object) == pod && !is_terminating(object) && !is_done(object);
    let pod = objects.all("pods").find(|(_, object)| is_it(object));
    let Some((volume, (_, pod))) = objects.get("persistentvolumes", volume).zip(pod) else { return false };
    claims_of(pod).iter().filter_map(|claim| objects.get("persistentvolumeclaims", claim)).any(|claim| {
        claim["spec"]["volumeName"] == volume["metadata"]["name"]
            && claim["status"]["phase"] == "Bound"
            && volume["spec"]["claimRef"]["uid"] == uid(claim)
            && !is_terminating(volume)
            && is_of(claim, pod)
    })
}

/// About the same again only after a change of what it is about, or of the pod.
fn failed_once(record: &Record, timeline: &Timeline) -> Vec<Fault> {
    // By the name of an event: when it was told last.
    let mut told: BTreeMap<&str, Instant> = BTreeMap::new();
    // By the revision of a change of a VolumeAttachment: the volumes that are of its disk.
    let mut volumes: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    timeline.fold(|objects, moment| {
        let change = moment.change;
        let object = change.after.as_ref().or(change.before.as_ref());
        let source = object.and_then(|it| it["spec"]["source"]["persistentVolumeName"].as_str());
        let names = source.map(|source| names_of(objects, source).collect());
        volumes.extend(names.map(|names| (change.revision, names)));
    });
    let mut faults = Vec::new();
    for (place, moment) in timeline.moments.iter().enumerate() {
        let change = moment.change;
        if change.revision > record.killed || change.resource != "events" || !moment.is_ours() {
            continue;
        }
        let is_of_pod =
            |event: &&Value| event["involvedObject"]["kind"].as_str().is_none_or(|kind| kind == "Pod");
        let Some(after) = change.after.as_ref().filter(is_of_pod) else { continue };
        let (reason, message) = (after["reason"].as_str(), after["message"].as_str().unwrap_or_default());
        if reason == Some("SuccessfulAttachVolume") {
            continue;
        }
        let Some(before) = told.insert(change.name.as_str(), moment.at) else { continue };
        // An event is written some time after what it tells, and late if requests fail.
        let failed =
            record.faults.iter().any(|(begin, end)| *begin <= moment.at && *end + WRITTEN_LATE >= before);
        // Its volume is one of the names in quotes.
        let names: Vec<&str> = message.split('"').skip(1).step_by(2).collect();
        let recent =
            timeline.moments[..place].iter().rev().take_while(|earlier| earlier.at + AWAITED >= before);
        let is_news = recent.into_iter().any(|earlier| concerns(earlier.change, &names, &volumes));
        if !is_news && !failed && moment.at - before < STANDS {
            let what = format!("{}: {message}", change.name);
            faults.push(Fault { rule: "told: a failure again", what });
        }
    }
    faults
}

/// Whether a change is one of what keeps a volume of these names from a pod, or its disk. That an error was written again is
/// none.
fn concerns(change: &Change, names: &[&str], volumes: &BTreeMap<u64, Vec<&str>>) -> bool {
    let is_it = |name: &Value| name.as_str().is_some_and(|name| names.contains(&name));
    let mut attached = volumes.get(&change.revision).into_iter().flatten();
    let is_attached = attached.any(|name| names.contains(name));
    let facts = |object: &Option<Value>| {
        let Some(object) = object else { return Value::Null };
        let (spec, status) = (&object["spec"], &object["status"]);
        match change.resource.as_str() {
            "volumeattachments" if is_attached => json!([
                object["metadata"]["uid"],
                is_terminating(object),
                status["attached"],
                status["attachError"]["message"],
                status["detachError"]["message"],
            ]),
            "persistentvolumes" if is_it(&object["metadata"]["name"]) => {
                json!([object["metadata"]["uid"], is_terminating(object), spec, status["phase"]])
            }
            "persistentvolumeclaims" if is_it(&spec["volumeName"]) || is_it(&object["metadata"]["name"]) => {
                json!([object["metadata"]["uid"], is_terminating(object), status["phase"]])
            }
            "nodes" => json!([
                listed(object),
                in_use(object),
                is_ready(object),
                is_out_of_service(object),
                is_managed(object)
            ]),
            "pods" => json!([is_terminating(object), spec["nodeName"], status["phase"]]),
            "csidrivers" => spec.clone(),
            _ => Value::Null,
        }
    };
    facts(&change.before) != facts(&change.after)
}
