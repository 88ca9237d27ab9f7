//! S49 to S52: what the small controllers write, by who wrote. And in the calm, where they are on: nothing that is deleted
//! and unused keeps the finalizer of its protection, each pod has its claims, and of each claim that is to grow is told who
//! lets it grow.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;
use test_support::{promises::classes, writes};
use tokio::time::Instant;

use super::{Fault, Moment, Objects, Timeline, claims_of, is_of, is_terminating, uid};
use crate::play::Record;

/// What has named a class for so long was there when the lists began that show no use of it.
const LISTED: Duration = Duration::from_secs(2);

/// The promises about claims that [`writes::check`] finds, and the rules of this judge.
const OF_CLAIMS: [(&str, &str); 2] =
    [("S50", "claims: created for no pod"), ("S51", "claims: written by the expander")];

pub fn judge(record: &Record, timeline: &Timeline) -> Vec<Fault> {
    let mut faults = classes_let_go(record, timeline);
    faults.extend(protected_let_go(record, timeline));
    for what in writes::check(&record.changes, &writes::by_daemon(&record.requests)) {
        let rule = OF_CLAIMS.iter().find(|(id, _)| what.starts_with(id));
        faults.extend(rule.map(|(_, rule)| Fault { rule, what }));
    }
    if record.script.has_all {
        calm(&timeline.at(record.killed), &mut faults);
    }
    faults
}

/// Whether a broken promise is judged here.
pub fn is_of_claims(what: &str) -> bool {
    OF_CLAIMS.iter().any(|(id, _)| what.starts_with(id))
}

/// S49: a class loses its finalizer by us only if it is deleted, and nothing has named it since before we looked.
fn classes_let_go(record: &Record, timeline: &Timeline) -> Vec<Fault> {
    let mut faults = Vec::new();
    // By claim and volume: which classes it names, and since when these.
    let mut known: BTreeMap<(&str, &str), (BTreeSet<String>, Instant)> = BTreeMap::new();
    for moment in &timeline.moments {
        let change = moment.change;
        let key = (change.resource.as_str(), change.name.as_str());
        match (key.0, &change.before, &change.after) {
            ("persistentvolumeclaims" | "persistentvolumes", _, Some(after)) => {
                let names = classes::named(after);
                if known.get(&key).is_none_or(|(before, _)| *before != names) {
                    known.insert(key, (names, moment.at));
                }
            }
            ("persistentvolumeclaims" | "persistentvolumes", _, None) => drop(known.remove(&key)),
            ("volumeattributesclasses", Some(before), after) if moment.is_ours() => {
                let looked = looked(record, moment);
                let users =
                    known.iter().filter(|(_, (names, since))| names.contains(key.1) && *since <= looked);
                let users = users.map(|((_, user), _)| *user);
                let what = classes::let_go_early(before, after.as_ref(), users);
                faults.extend(what.map(|what| Fault { rule: "classes: let go", what }));
            }
            _ => {}
        }
    }
    faults
}

/// S52: a claim or volume loses its protection by us only if it is deleted; a claim if no pod on a node has used it since before we
/// looked, a volume if it is not Bound. Its last finalizer goes with the object.
fn protected_let_go(record: &Record, timeline: &Timeline) -> Vec<Fault> {
    let mut faults = Vec::new();
    // Pods on nodes, and since when they are there.
    let mut placed: BTreeMap<&str, (&Value, Instant)> = BTreeMap::new();
    for moment in &timeline.moments {
        let change = moment.change;
        let name = change.name.as_str();
        if change.resource == "pods" {
            match change.after.as_ref().filter(|pod| pod["spec"]["nodeName"].is_string()) {
                None => drop(placed.remove(name)),
                Some(pod) => {
                    let since = placed.get(name).filter(|(known, _)| uid(known) == uid(pod));
                    let since = since.map_or(moment.at, |(_, since)| *since);
                    placed.insert(name, (pod, since));
                }
            }
        }
        let Some(before) = change.before.as_ref().filter(|_| moment.is_ours()) else { continue };
        let loses = |finalizer: &str| {
            has_finalizer(before, finalizer)
                && !change.after.as_ref().is_some_and(|after| has_finalizer(after, finalizer))
        };
        let mut convict = |what: String| {
            let what = format!("{what} at revision {}", change.revision);
            faults.push(Fault { rule: "protection: let go", what });
        };
        match change.resource.as_str() {
            "persistentvolumeclaims" if loses("kubernetes.io/pvc-protection") => {
                let looked = looked(record, moment);
                let user =
                    placed.iter().find(|(_, (pod, since))| *since <= looked && is_held(before, name, pod));
                if let Some((pod, _)) = user {
                    convict(format!("claim {name}, which {pod} uses,"));
                } else if !is_terminating(before) {
                    convict(format!("claim {name}, which is not deleted,"));
                }
            }
            "persistentvolumes"
                if loses("kubernetes.io/pv-protection")
                    && (before["status"]["phase"] == "Bound" || !is_terminating(before)) =>
            {
                convict(format!("volume {name}, which is Bound or not deleted,"));
            }
            _ => {}
        }
    }
    faults
}

/// Whether a pod on a node keeps a claim (pv-binder §15.1).
fn is_held(claim: &Value, key: &str, pod: &Value) -> bool {
    let is_shut_down = is_terminating(pod) && pod["metadata"]["deletionGracePeriodSeconds"] == 0;
    let mut volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let is_ephemeral = volumes.any(|volume| !volume["ephemeral"].is_null());
    claims_of(pod).iter().any(|used| used == key) && is_of(claim, pod) && !(is_ephemeral && is_shut_down)
}

/// Until when what was written there may have been looked for: the write may have been on its way for as long as the
/// daemon's way to the API server was in trouble.
fn looked(record: &Record, moment: &Moment) -> Instant {
    let troubles =
        record.late.iter().filter(|(begin, end)| *begin <= moment.at && moment.at <= *end + LISTED);
    let sent = troubles.map(|(begin, _)| *begin).min().unwrap_or(moment.at);
    sent.checked_sub(LISTED).unwrap_or(record.began)
}

fn calm(objects: &Objects, faults: &mut Vec<Fault>) {
    let mut fault = |rule: &'static str, what: &str| faults.push(Fault { rule, what: what.to_owned() });
    let pods = || objects.all("pods").map(|(_, pod)| pod);
    for (name, claim) in objects.all("persistentvolumeclaims") {
        let is_used = pods().any(|pod| claims_of(pod).iter().any(|used| used == name));
        if is_kept(claim, "kubernetes.io/pvc-protection") && !is_used {
            fault("calm: a claim that is deleted and unused keeps its finalizer", name);
        }
        let is_told = |event: &Value| {
            event["involvedObject"]["uid"] == uid(claim) && event["reason"] == "ExternalExpanding"
        };
        if is_to_grow(objects, claim) && !objects.all("events").any(|(_, event)| is_told(event)) {
            fault("told: not who lets it grow", name);
        }
    }
    for (name, volume) in objects.all("persistentvolumes") {
        if is_kept(volume, "kubernetes.io/pv-protection") && volume["status"]["phase"] != "Bound" {
            fault("calm: a volume that is deleted and unbound keeps its finalizer", name);
        }
    }
    for (name, class) in objects.all("volumeattributesclasses") {
        let mut users = objects.all("persistentvolumeclaims").chain(objects.all("persistentvolumes"));
        let is_used = users.any(|(_, user)| classes::named(user).contains(name));
        if is_kept(class, "kubernetes.io/vac-protection") && !is_used {
            fault("calm: a class that is deleted and unused keeps its finalizer", name);
        }
    }
    for (name, pod) in objects.all("pods").filter(|(_, pod)| !is_terminating(pod)) {
        let mut volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
        let is_there = |claim: &String| objects.get("persistentvolumeclaims", claim).is_some();
        if volumes.any(|volume| !volume["ephemeral"].is_null()) && !claims_of(pod).iter().all(is_there) {
            fault("calm: a pod without the claim of its ephemeral volume", name);
        }
    }
}

fn is_kept(object: &Value, finalizer: &str) -> bool {
    is_terminating(object) && has_finalizer(object, finalizer)
}

pub(super) fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    object["metadata"]["finalizers"].as_array().into_iter().flatten().any(|one| one == finalizer)
}

/// A Bound claim that asks for more than its volume has.
fn is_to_grow(objects: &Objects, claim: &Value) -> bool {
    let size = |value: &Value| value.as_str().and_then(|size| size.strip_suffix("Gi")?.parse::<u64>().ok());
    let volume = claim["spec"]["volumeName"].as_str().and_then(|name| objects.get("persistentvolumes", name));
    claim["status"]["phase"] == "Bound"
        && volume.is_some_and(|volume| volume["spec"]["claimRef"]["uid"] == uid(claim))
        && size(&claim["spec"]["resources"]["requests"]["storage"])
            > size(&claim["status"]["capacity"]["storage"])
}
