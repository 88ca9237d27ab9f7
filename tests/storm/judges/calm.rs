//! The calm: nothing terminating, half-bound, Lost or unattached without a cause that the world shows. And a kill in the
//! calm: no event, and no write but the lease's.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;
use test_support::audit::{DAEMON, Entry};
use tokio::time::Instant;

use super::{
    Fault, Moment, Objects, Timeline, begins, claims_of, disk_of, in_use, is_of, is_ready, is_terminating,
    listed, mounted, pace::is_write, refers_to_name, uid,
};
use crate::{
    play::Record,
    world::{attachment_of, machine_of, names},
};

/// An attacher that is well has detached what was deleted so long ago.
const DETACHED: Duration = Duration::from_mins(10);
pub(super) const BESIDE_FREE: &str = "calm: Pending beside a free volume";
pub(super) const HALF_BOUND: &str = "calm: half-bound";
pub(super) const NOT_ASKED: &str = "calm: its class's provisioner is not asked";
/// So long an event is not told again while it holds.
const STANDS: Duration = Duration::from_mins(45);

pub fn judge(record: &Record, timeline: &Timeline) -> Vec<Fault> {
    let objects = timeline.at(record.killed);
    let mut faults = Vec::new();
    let mut fault = |rule: &'static str, what: String| faults.push(Fault { rule, what });
    for (name, claim) in objects.all("persistentvolumeclaims") {
        if let Some(rule) = claim_waits(&objects, name, claim) {
            fault(rule, name.to_owned());
        }
    }
    for (name, volume) in objects.all("persistentvolumes") {
        if let Some(rule) = volume_waits(&objects, name, volume) {
            fault(rule, name.to_owned());
        }
    }
    let given = given(record, timeline);
    for (name, attachment) in objects.all("volumeattachments") {
        if is_left_over(&objects, attachment) && !is_given(&objects, &given, attachment) {
            fault("calm: an attachment that no pod needs", name.to_owned());
        }
    }
    for (name, node) in objects.all("nodes") {
        for disk in listed(node).into_iter().filter(|disk| lists_for_nobody(&objects, &given, name, disk)) {
            let what = format!("{disk} on {name}");
            fault("calm: listed, and nobody there uses, reports or attaches it", what);
        }
    }
    for (name, since) in terminating(record, timeline) {
        let is_there = objects.get("volumeattachments", name).filter(|it| is_explained(&objects, it));
        if is_there.is_some() && record.killed_at.duration_since(since) >= DETACHED {
            fault("calm: an attachment that does not end", name.to_owned());
        }
    }
    let unproven = unproven(record, timeline);
    let by_people = by_people(record, timeline);
    for (name, pod) in objects.all("pods") {
        if pod_waits(record, &objects, &unproven, pod) && !waits_for_people(&objects, &by_people, pod) {
            fault("calm: a pod that waits without a cause", name.to_owned());
        }
    }
    for entry in &record.requests[record.killed_request..] {
        let is_quiet = entry.resource == "leases";
        let writes = is_write(&entry.verb);
        // A create that is refused, as an event of that name stands, writes nothing.
        if entry.user == DAEMON && writes && entry.code < 400 && !is_quiet && !is_repeated(timeline, entry) {
            let rule = match entry.resource.as_str() {
                "events" => "calm: an event after a kill",
                _ => "calm: a write after a kill",
            };
            let body = &entry.request;
            if is_unexplained(&objects, &given, entry) || is_announced_elsewhere(record, &objects, body) {
                continue;
            }
            let what = if entry.resource == "events" {
                let of = &body["involvedObject"]["name"];
                format!("{} about {of}: {} {}", entry.verb, body["reason"], body["message"])
            } else {
                format!("{} {} {} {body}", entry.verb, entry.resource, entry.name)
            };
            fault(rule, what);
        }
    }
    faults
}

/// An event that would expire soon is told again, by the process that leads then.
fn is_repeated(timeline: &Timeline, entry: &Entry) -> bool {
    let of = |moment: &&Moment| {
        moment.change.resource == "events" && Some(moment.change.revision) == entry.revision()
    };
    let Some(again) = timeline.moments.iter().find(of) else { return false };
    let is_it = |moment: &&Moment| {
        moment.change.resource == "events"
            && moment.change.name == again.change.name
            && moment.change.revision < again.change.revision
    };
    let last = timeline.moments.iter().rfind(is_it);
    last.is_some_and(|last| again.at.duration_since(last.at) >= STANDS)
}

fn made(object: &Value) -> &str {
    object["metadata"]["creationTimestamp"].as_str().unwrap_or_default()
}

fn phase(object: &Value) -> &str {
    object["status"]["phase"].as_str().unwrap_or_default()
}

pub(super) fn claim_waits(objects: &Objects, name: &str, claim: &Value) -> Option<&'static str> {
    if is_terminating(claim) {
        return None;
    }
    let volume = claim["spec"]["volumeName"].as_str().and_then(|name| objects.get("persistentvolumes", name));
    let names_it = |volume: &Value| {
        let reference = &volume["spec"]["claimRef"];
        reference.is_null()
            || (refers_to_name(reference, name)
                && reference["uid"].as_str().is_none_or(|of| of.is_empty() || of == uid(claim)))
    };
    let has_its_class =
        |volume: &Value| volume["spec"]["storageClassName"] == claim["spec"]["storageClassName"];
    // One that names no claim has to suit it, unless it was bound to it.
    let was_bound = claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"].is_string();
    let is_its = |volume: &Value| {
        names_it(volume) && (!volume["spec"]["claimRef"].is_null() || was_bound || has_its_class(volume))
    };
    match phase(claim) {
        "Bound" => None,
        "Lost" => volume
            .filter(|volume| names_it(volume) && !is_disputed(objects, volume))
            .map(|_| "calm: Lost with its volume"),
        _ if volume.is_some_and(is_its) => Some(HALF_BOUND),
        _ if claim["spec"]["volumeName"].is_null() && lacks_class(objects, claim) => {
            Some("calm: of no class beside a default one")
        }
        _ => {
            let fits = |volume: &Value| has_its_class(volume) && !is_terminating(volume);
            // No claim may name it, or it is that one's.
            let is_named = |name: &str| {
                objects.all("persistentvolumeclaims").any(|(_, other)| other["spec"]["volumeName"] == name)
            };
            let free = objects.all("persistentvolumes").any(|(name, volume)| {
                fits(volume) && volume["spec"]["claimRef"].is_null() && !is_named(name)
            });
            // Of a class that waits for a pod the scheduler takes it.
            let class = claim["spec"]["storageClassName"].as_str();
            let class = class.and_then(|class| objects.get("storageclasses", class));
            let is_delayed = class.is_some_and(|class| class["volumeBindingMode"] == "WaitForFirstConsumer");
            if free && !is_delayed {
                return Some(BESIDE_FREE);
            }
            // What holds its UID and suits it is its volume; what does not suit it lets it wait (S19).
            let holds = |volume: &&Value| volume["spec"]["claimRef"]["uid"] == uid(claim);
            let mut held =
                objects.all("persistentvolumes").map(|(_, volume)| volume).filter(holds).peekable();
            if held.peek().is_some() {
                return held.all(fits).then_some(HALF_BOUND);
            }
            asks_nobody(objects, claim).then_some(NOT_ASKED)
        }
    }
}

/// Whether a volume that names no claim is named by several that were bound to it, of which not exactly one is Bound: then it goes
/// to none until people say to which (S45).
fn is_disputed(objects: &Objects, volume: &Value) -> bool {
    let was_bound = |claim: &Value| {
        ["Bound", "Lost"].contains(&phase(claim))
            || claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"].is_string()
    };
    let claims = objects.all("persistentvolumeclaims").map(|(_, claim)| claim);
    let owners: Vec<&Value> = claims
        .filter(|claim| claim["spec"]["volumeName"] == volume["metadata"]["name"] && was_bound(claim))
        .collect();
    let bound = owners.iter().filter(|claim| phase(claim) == "Bound").count();
    volume["spec"]["claimRef"].is_null() && owners.len() > 1 && bound != 1
}

/// A claim that says nothing of its class, where one is the default.
fn lacks_class(objects: &Objects, claim: &Value) -> bool {
    let default = "storageclass.kubernetes.io/is-default-class";
    let is_default = |(_, class): (&str, &Value)| class["metadata"]["annotations"][default] == "true";
    claim["spec"]["storageClassName"].is_null() && objects.all("storageclasses").any(is_default)
}

/// A claim that could be provisioned now, whose annotation does not ask the provisioner that its class names.
fn asks_nobody(objects: &Objects, claim: &Value) -> bool {
    let class = claim["spec"]["storageClassName"].as_str();
    let Some(class) = class.and_then(|class| objects.get("storageclasses", class)) else { return false };
    let annotation = |key: &str| &claim["metadata"]["annotations"][key];
    let is_external = class["provisioner"].as_str().is_some_and(|name| !name.starts_with("kubernetes.io/"));
    let is_due = class["volumeBindingMode"] == "Immediate"
        || annotation("volume.kubernetes.io/selected-node").is_string();
    is_external
        && is_due
        && claim["spec"]["volumeName"].is_null()
        && *annotation("volume.kubernetes.io/storage-provisioner") != class["provisioner"]
}

fn volume_waits(objects: &Objects, name: &str, volume: &Value) -> Option<&'static str> {
    let reference = &volume["spec"]["claimRef"];
    let key = format!(
        "{}/{}",
        reference["namespace"].as_str().unwrap_or_default(),
        reference["name"].as_str().unwrap_or_default()
    );
    let claim = objects.get("persistentvolumeclaims", &key);
    let claim = claim.filter(|claim| reference["uid"] == uid(claim));
    let is_open = claim.is_some_and(|claim| claim["spec"]["volumeName"].is_null() && !is_terminating(claim));
    // One that was given back waits for the end of its attachment, which a pod may still need (S44).
    let of_it = |attachment: &Value| attachment["spec"]["source"]["persistentVolumeName"] == name;
    let is_attached = objects.all("volumeattachments").any(|(_, attachment)| of_it(attachment));
    if is_terminating(volume) && is_open && !(phase(volume) == "Released" && is_attached) {
        return Some("calm: a terminating volume and its open claim wait for each other");
    }
    // One that a claim names which was bound to it is kept for that claim (S45).
    let is_kept = objects
        .all("persistentvolumeclaims")
        .any(|(_, claim)| claim["spec"]["volumeName"] == name && ["Bound", "Lost"].contains(&phase(claim)));
    let is_dead = !reference["uid"].is_null() && claim.is_none() && !is_kept;
    (is_dead && phase(volume) == "Bound").then_some("calm: Bound to a claim that is gone")
}

/// Whether the volume that an attachment names is the one that it was made for.
fn is_explained(objects: &Objects, attachment: &Value) -> bool {
    let node = attachment["spec"]["nodeName"].as_str().unwrap_or_default();
    let source = attachment["spec"]["source"]["persistentVolumeName"].as_str().unwrap_or_default();
    let leads_to = objects.get("persistentvolumes", source).and_then(disk_of);
    leads_to.and_then(|disk| attachment_of(&disk, node)).as_deref() == attachment["metadata"]["name"].as_str()
}

/// A write about an attachment, or to the list of its node, of whose volume nothing tells what a pod was given by it: it is
/// gone, or one of another handle has its name (S44). A pod of that node, whose claim leads nowhere either, may be told so.
/// So it is with what another claim has by now, and with what refers to no claim any more.
fn is_unexplained(objects: &Objects, given: &Given, entry: &Entry) -> bool {
    let told = entry.request["involvedObject"]["name"].as_str().unwrap_or_default();
    let told = objects.all("pods").find(|(_, pod)| pod["metadata"]["name"] == told).map(|(_, pod)| pod);
    let message = entry.request["message"].as_str().unwrap_or_default();
    let told = told.filter(|_| message.contains("cannot be attached yet"));
    objects.all("volumeattachments").any(|(name, attachment)| {
        let node = &attachment["spec"]["nodeName"];
        let is_about = match entry.resource.as_str() {
            "volumeattachments" => entry.name == name,
            "nodes/status" => *node == entry.name.as_str(),
            "events" => told.is_some_and(|pod| pod["spec"]["nodeName"] == *node),
            _ => false,
        };
        let source = attachment["spec"]["source"]["persistentVolumeName"].as_str().unwrap_or_default();
        let names_none = objects
            .get("persistentvolumes", source)
            .is_some_and(|volume| volume["spec"]["claimRef"].is_null());
        let is_others =
            (names_none || is_left_over(objects, attachment)) && is_given(objects, given, attachment);
        is_about && (is_others || !is_explained(objects, attachment))
    }) || entry.resource.starts_with("nodes") && takes_off_what_was_given(objects, given, entry)
}

/// Whether all that is taken off a node's list was there merely because a pod was given it. No VolumeAttachment can tell the next
/// process so of a disk that has none, as one of iSCSI, nor a claim that leads elsewhere by now.
fn takes_off_what_was_given(objects: &Objects, given: &Given, entry: &Entry) -> bool {
    let Some(node) = objects.get("nodes", &entry.name) else { return false };
    let (before, after) = (listed(node), listed(&entry.request));
    let nobody = |given: &Given, disk: &str| lists_for_nobody(objects, given, &entry.name, disk);
    let is_given = |disk: &&str| nobody(&Given::new(), disk) && !nobody(given, disk);
    before != after && after.is_subset(&before) && before.difference(&after).all(is_given)
}

/// Whether a node reports a disk in use that its machine has mounted. Nothing less keeps the disk from others: a report may
/// announce a pod that waits, too (S43).
fn has_mounted(record: &Record, name: &str, node: &Value, disk: &str) -> bool {
    in_use(node).contains(disk)
        && mounted(&record.facts, disk, machine_of(name, node), record.killed_at).is_some()
}

/// By node, and disk: what is reported in use since before the last process began to lead. It has not seen that a pod waited for
/// it then (S43).
fn unproven(record: &Record, timeline: &Timeline) -> BTreeSet<(String, String)> {
    let mut since: BTreeMap<(String, String), Instant> = BTreeMap::new();
    let is_past = |moment: &&Moment| moment.change.revision <= record.killed;
    for moment in timeline.moments.iter().take_while(is_past) {
        let change = moment.change;
        if change.resource != "nodes" {
            continue;
        }
        let used = change.after.as_ref().map(in_use).unwrap_or_default();
        since.retain(|(node, disk), _| *node != change.name || used.contains(disk.as_str()));
        for disk in used {
            since.entry((change.name.clone(), disk.to_owned())).or_insert(moment.at);
        }
    }
    let begins = begins(record, timeline);
    let last = begins.into_iter().filter(|begin| *begin <= record.killed_at).max();
    since.into_iter().filter(|(_, since)| last.is_some_and(|last| *since <= last)).map(|(at, _)| at).collect()
}

/// An event that another node holds a volume which that node alone has mounted, without an entry in its list or an attachment:
/// the process before had detached it there by force, and no object tells of that any more.
fn is_announced_elsewhere(record: &Record, objects: &Objects, event: &Value) -> bool {
    let message = event["message"].as_str().unwrap_or_default();
    if event["reason"] != "HeldByNode" && !message.starts_with("Multi-Attach error") {
        return false;
    }
    let volume = message.split('"').nth(1).and_then(|name| objects.get("persistentvolumes", name));
    let Some(disk) = volume.and_then(disk_of) else { return false };
    let is_given = |name: &str, node: &Value| {
        listed(node).contains(disk.as_str())
            || attachment_of(&disk, name)
                .is_some_and(|name| objects.get("volumeattachments", &name).is_some())
    };
    let mut nodes = objects.all("nodes");
    nodes.any(|(name, node)| has_mounted(record, name, node, &disk) && !is_given(name, node))
}

/// By UID of a pod, and disk: it was given that once, as its claim was bound to the disk's volume, and it ran or its node
/// listed the disk.
pub(super) type Given = BTreeSet<(String, String)>;

pub(super) fn given(record: &Record, timeline: &Timeline) -> Given {
    let mut given = Given::new();
    timeline.fold(|objects, moment| {
        let is_read = ["pods", "persistentvolumeclaims", "persistentvolumes", "nodes"];
        if moment.change.revision > record.killed || !is_read.contains(&moment.change.resource.as_str()) {
            return;
        }
        for (_, pod) in objects.all("pods") {
            let node = pod["spec"]["nodeName"].as_str().and_then(|name| objects.get("nodes", name));
            for claim in claims_of(pod).iter().filter_map(|key| objects.get("persistentvolumeclaims", key)) {
                let Some(volume) = claim["spec"]["volumeName"].as_str() else { continue };
                let volume = objects.get("persistentvolumes", volume);
                let bound = volume.filter(|volume| volume["spec"]["claimRef"]["uid"] == uid(claim));
                let Some(disk) = bound.and_then(disk_of) else { continue };
                if phase(pod) == "Running" || node.is_some_and(|node| listed(node).contains(disk.as_str())) {
                    given.insert((uid(pod).to_owned(), disk));
                }
            }
        }
    });
    given
}

/// Whether a pod of the node was given the volume of an attachment: it stays its own until the pod ends (S44).
pub(super) fn is_given(objects: &Objects, given: &Given, attachment: &Value) -> bool {
    let source = attachment["spec"]["source"]["persistentVolumeName"].as_str().unwrap_or_default();
    let Some(disk) = objects.get("persistentvolumes", source).and_then(disk_of) else { return false };
    objects.all("pods").any(|(_, pod)| {
        pod["spec"]["nodeName"] == attachment["spec"]["nodeName"]
            && given.contains(&(uid(pod).to_owned(), disk.clone()))
    })
}

/// Since when each attachment that is being deleted at the last kill is so.
fn terminating<'a>(record: &Record, timeline: &Timeline<'a>) -> BTreeMap<&'a str, Instant> {
    let mut since = BTreeMap::new();
    for moment in timeline.moments.iter().take_while(|moment| moment.change.revision <= record.killed) {
        let change = moment.change;
        match &change.after {
            _ if change.resource != "volumeattachments" => {}
            Some(after) if is_terminating(after) => {
                since.entry(change.name.as_str()).or_insert(moment.at);
            }
            _ => drop(since.remove(change.name.as_str())),
        }
    }
    since
}

/// Whether a node lists a disk that has no attachment there, that it does not report in use, and that no pod there uses
/// or was given.
fn lists_for_nobody(objects: &Objects, given: &Given, name: &str, disk: &str) -> bool {
    let is_attached =
        attachment_of(disk, name).is_some_and(|name| objects.get("volumeattachments", &name).is_some());
    let is_used = objects.get("nodes", name).is_some_and(|node| in_use(node).contains(disk));
    let leads_to = |claim: &String| {
        let volume = objects.get("persistentvolumeclaims", claim)?["spec"]["volumeName"].as_str()?;
        disk_of(objects.get("persistentvolumes", volume)?)
    };
    let is_wanted = objects.all("pods").any(|(_, pod)| {
        pod["spec"]["nodeName"] == name
            && (given.contains(&(uid(pod).to_owned(), disk.to_owned()))
                || claims_of(pod).iter().any(|claim| leads_to(claim).as_deref() == Some(disk)))
    });
    !is_attached && !is_used && !is_wanted
}

/// Whether the driver never attaches a volume.
fn is_broken(record: &Record, volume: &Value) -> bool {
    let broken =
        record.script.broken.map(|number| names(&record.script, "v", number + 1).swap_remove(number));
    broken.is_some_and(|name| volume["metadata"]["name"] == name) && !volume["spec"]["csi"].is_null()
}

pub(super) fn is_left_over(objects: &Objects, attachment: &Value) -> bool {
    let node = attachment["spec"]["nodeName"].as_str().unwrap_or_default();
    let source = attachment["spec"]["source"]["persistentVolumeName"].as_str().unwrap_or_default();
    // Without its volume the attacher cannot detach, and whose it is cannot be told (L9).
    if is_terminating(attachment) || !is_explained(objects, attachment) {
        return false;
    }
    let name = attachment["metadata"]["name"].as_str();
    let used: BTreeSet<&str> = objects.get("nodes", node).map(in_use).unwrap_or_default();
    let is_used = used.iter().any(|disk| attachment_of(disk, node).as_deref() == name);
    // What a pod was given stays its own, also if its claim is another by now, and people have cleared the claimRef (S44).
    let reference = objects.get("persistentvolumes", source).map(|volume| &volume["spec"]["claimRef"]);
    let named = reference.and_then(|reference| {
        Some(format!("{}/{}", reference["namespace"].as_str()?, reference["name"].as_str()?))
    });
    let is_wanted = objects.all("pods").any(|(_, pod)| {
        pod["spec"]["nodeName"] == node
            && claims_of(pod).iter().any(|key| {
                let claim = objects.get("persistentvolumeclaims", key);
                let is_younger = |than: &Value| claim.is_none_or(|claim| made(than) < made(claim));
                claim.is_some_and(|claim| claim["spec"]["volumeName"] == source)
                    || named.as_ref() == Some(key)
                    || (named.is_none() && is_younger(pod) && is_younger(attachment))
            })
    });
    !is_used && !is_wanted
}

/// The attachments that others than the daemon made last, by name.
fn by_people<'a>(record: &Record, timeline: &Timeline<'a>) -> BTreeSet<&'a str> {
    let mut names = BTreeSet::new();
    for moment in timeline.moments.iter().take_while(|moment| moment.change.revision <= record.killed) {
        let change = moment.change;
        if change.resource == "volumeattachments" && change.before.is_none() {
            if moment.is_ours() {
                names.remove(change.name.as_str());
            } else {
                names.insert(change.name.as_str());
            }
        }
    }
    names
}

/// Whether what a pod waits for is an attachment that people made of its disk there, of a PersistentVolume that is gone: its attacher
/// cannot attach, and says so. As long as the pod needs the disk the daemon does not delete what carries the name of its own.
fn waits_for_people(objects: &Objects, by_people: &BTreeSet<&str>, pod: &Value) -> bool {
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    claims_of(pod).iter().any(|key| {
        let claim = objects.get("persistentvolumeclaims", key);
        let volume = claim.and_then(|claim| claim["spec"]["volumeName"].as_str());
        let disk = volume.and_then(|name| objects.get("persistentvolumes", name)).and_then(disk_of);
        let Some(name) = disk.and_then(|disk| attachment_of(&disk, node)) else { return false };
        let Some(attachment) = objects.get("volumeattachments", &name) else { return false };
        let source = attachment["spec"]["source"]["persistentVolumeName"].as_str().unwrap_or_default();
        by_people.contains(name.as_str())
            && attachment["status"]["attached"] != true
            && objects.get("persistentvolumes", source).is_none()
    })
}

/// A pod on a well node whose claims are Bound waits, and nothing that the world shows keeps its volume from it.
fn pod_waits(record: &Record, objects: &Objects, unproven: &Given, pod: &Value) -> bool {
    let name = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    let Some(node) = objects.get("nodes", name).filter(|node| is_ready(node)) else { return false };
    if ["Running", "Succeeded", "Failed"].contains(&phase(pod)) || is_terminating(pod) {
        return false;
    }
    claims_of(pod).iter().all(|key| {
        let claim = objects.get("persistentvolumeclaims", key).filter(|claim| is_of(claim, pod));
        let Some(claim) = claim else { return false };
        let volume =
            claim["spec"]["volumeName"].as_str().and_then(|name| objects.get("persistentvolumes", name));
        let Some(volume) = volume.filter(|volume| phase(claim) == "Bound" && !is_terminating(volume)) else {
            return false;
        };
        let Some(disk) = disk_of(volume) else { return false };
        let is_bound = volume["spec"]["claimRef"]["uid"] == uid(claim);
        let is_elsewhere = objects.all("nodes").any(|(other, node)| {
            other != name
                && (listed(node).contains(disk.as_str())
                    || has_mounted(record, other, node, &disk)
                    || unproven.contains(&(other.to_owned(), disk.clone()))
                    || attachment_of(&disk, other)
                        .is_some_and(|name| objects.get("volumeattachments", &name).is_some()))
        });
        let is_going = attachment_of(&disk, name)
            .and_then(|name| objects.get("volumeattachments", &name))
            .is_some_and(is_terminating);
        // A driver may have attached either disk of those that this name led to (S43, S44).
        let is_held_by_name = objects.all("volumeattachments").any(|(attachment, object)| {
            let spec = &object["spec"];
            let node = spec["nodeName"].as_str().unwrap_or_default();
            spec["source"]["persistentVolumeName"] == volume["metadata"]["name"]
                && attachment_of(&disk, node).as_deref() != Some(attachment)
        });
        is_bound
            && !is_elsewhere
            && !is_held_by_name
            && !is_broken(record, volume)
            && !is_going
            && !listed(node).contains(disk.as_str())
    })
}
