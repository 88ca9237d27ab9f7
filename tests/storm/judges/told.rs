//! S47: each pod is told each change at most once, also over restarts. S48: each that waits is told why.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tokio::time::Instant;

use super::{Fault, Moment, Objects, Timeline, claims_of, disk_of, is_ready, is_terminating, listed, uid};
use crate::play::Record;

pub fn judge(record: &Record, timeline: &Timeline) -> Vec<Fault> {
    let mut faults = attached_once(timeline);
    faults.extend(provisioning(record, timeline));
    faults.extend(why(record, timeline));
    faults
}

fn event_of<'a>(event: &'a Value, reason: &str) -> Option<(&'a str, &'a str)> {
    (event["reason"] == reason)
        .then(|| Some((event["involvedObject"]["uid"].as_str()?, event["message"].as_str()?)))
        .flatten()
}

/// `SuccessfulAttachVolume`, as often as its volume was attached to its node while the pod was there.
fn attached_once(timeline: &Timeline) -> Vec<Fault> {
    let mut told: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    // By node and disk: attached or listed so often.
    let mut times: BTreeMap<(String, String), u64> = BTreeMap::new();
    let mut born: BTreeMap<&str, (String, BTreeMap<String, u64>)> = BTreeMap::new();
    timeline.fold(|objects, moment| {
        let change = moment.change;
        match (change.resource.as_str(), &change.after) {
            ("events", Some(after)) => {
                if let Some(key) = event_of(after, "SuccessfulAttachVolume") {
                    let before =
                        change.before.as_ref().and_then(|before| before["count"].as_u64()).unwrap_or(0);
                    let count = after["count"].as_u64().unwrap_or(1);
                    *told.entry(key).or_default() += count.saturating_sub(before).max(1);
                }
            }
            ("volumeattachments", Some(after)) => {
                let is = |object: &Value| object["status"]["attached"] == true;
                if is(after) && !change.before.as_ref().is_some_and(is) {
                    let source = after["spec"]["source"]["persistentVolumeName"].as_str().unwrap_or_default();
                    let node = after["spec"]["nodeName"].as_str().unwrap_or_default();
                    *times.entry((node.to_owned(), source.to_owned())).or_default() += 1;
                }
            }
            ("nodes", Some(after)) => {
                let before = change.before.as_ref().map(listed).unwrap_or_default();
                for disk in listed(after).difference(&before).filter(|disk| disk.contains("/iscsi/")) {
                    for (name, _) in objects
                        .all("persistentvolumes")
                        .filter(|(_, volume)| disk_of(volume).as_deref() == Some(*disk))
                    {
                        *times.entry((change.name.clone(), name.to_owned())).or_default() += 1;
                    }
                }
            }
            ("pods", Some(after)) => {
                let node = after["spec"]["nodeName"].as_str().unwrap_or_default();
                if !node.is_empty() && !born.contains_key(uid(after)) {
                    let then = times.iter().filter(|((of, _), _)| of == node);
                    let then = then.map(|((_, volume), count)| (volume.clone(), *count)).collect();
                    born.insert(uid(after), (node.to_owned(), then));
                }
            }
            _ => {}
        }
    });
    let mut faults = Vec::new();
    for ((pod, message), count) in told {
        let Some((node, then)) = born.get(pod) else { continue };
        let Some(volume) = message.split('"').nth(1) else { continue };
        let all = times.get(&(node.clone(), volume.to_owned())).copied().unwrap_or(0);
        let allowed = (all - then.get(volume).copied().unwrap_or(0)).max(1);
        if count > allowed {
            let what = format!("pod {pod} {count} times {message:?}, attached {allowed} times");
            faults.push(Fault { rule: "told: again", what });
        }
    }
    faults
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
        let second = std::time::Duration::from_secs(1);
        let was_killed = record.kills.iter().any(|kill| *kill + second >= at && *kill <= at + 10 * second);
        let is_quick = bound.get(claim).is_some_and(|then| *then < at + second);
        let is_over = record.times.last().is_some_and(|(_, last)| *last < at + 5 * second);
        let ends = |end: Instant| end + 10 * second >= at;
        let is_disturbed = record.faults.iter().any(|(begin, end)| *begin <= at + 10 * second && ends(*end));
        if !told.contains(claim) && !was_killed && !is_quick && !is_over && !is_disturbed {
            faults.push(Fault { rule: "told: not that a provisioner is asked", what: name.to_owned() });
        }
    }
    faults
}

/// The volume of a claim and how it is, in a word.
fn volume_of(objects: &Objects, claim: &str) -> Option<String> {
    let name = objects.get("persistentvolumeclaims", claim)?["spec"]["volumeName"].as_str()?;
    let Some(volume) = objects.get("persistentvolumes", name) else { return Some(format!("{name} is gone")) };
    let going = if is_terminating(volume) { ", terminating" } else { "" };
    Some(format!("{name} {} of {}{going}", volume["status"]["phase"], volume["spec"]["claimRef"]["uid"]))
}

/// What waits at the end of the calm has an event of the daemon's, with the cause.
fn why(record: &Record, timeline: &Timeline) -> Vec<Fault> {
    let objects = timeline.at(record.killed);
    let is_past = |moment: &&Moment| moment.change.revision <= record.killed;
    let events = timeline.moments.iter().take_while(is_past).filter(|moment| moment.is_ours());
    let told = events.filter(|moment| moment.change.resource == "events");
    // That something was attached is not why it waits.
    let about: BTreeSet<&str> = told
        .filter_map(|moment| moment.change.after.as_ref())
        .filter(|event| event["reason"] != "SuccessfulAttachVolume")
        .filter_map(|event| event["involvedObject"]["uid"].as_str())
        .collect();
    let mut faults = Vec::new();
    for (name, pod) in objects.all("pods") {
        let node = pod["spec"]["nodeName"].as_str().and_then(|node| objects.get("nodes", node));
        let waits = pod["status"]["phase"] != "Running" && !is_terminating(pod);
        let claims = claims_of(pod);
        let is_bound = claims.iter().all(|claim| {
            let claim = objects.get("persistentvolumeclaims", claim);
            claim.is_some_and(|claim| claim["status"]["phase"] == "Bound")
        });
        if waits && is_bound && node.is_some_and(is_ready) && !about.contains(uid(pod)) {
            let volumes: Vec<String> = claims.iter().filter_map(|claim| volume_of(&objects, claim)).collect();
            faults.push(Fault { rule: "told: not why it waits", what: format!("pod {name}, {volumes:?}") });
        }
    }
    for (name, claim) in objects.all("persistentvolumeclaims") {
        if claim["status"]["phase"] != "Bound" && !is_terminating(claim) && !about.contains(uid(claim)) {
            faults.push(Fault { rule: "told: not why it waits", what: format!("claim {name}") });
        }
    }
    faults
}
