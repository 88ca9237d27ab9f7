//! S48: what waits at the end of the calm has an event of the daemon's about its cause: of a reason, and with words, that can be
//! the cause of this wait as the world shows it, and told since the wait began, or before if the daemon was killed just then.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;
use tokio::time::Instant;

use super::{
    Fault, Moment, Names, Objects, Timeline, UNDER_WAY, begins, claims_of, disk_of, in_use, is_of_another,
    is_ready, is_terminating, listed, uid,
};
use crate::{play::Record, world::attachment_of};

/// The API server drops an event after so long.
const EXPIRES: Duration = Duration::from_hours(1);

/// An event of the daemon's: its reason, its words, and when it was told last.
struct Told<'a> {
    reason: &'a str,
    message: &'a str,
    at: Instant,
}

pub fn judge(record: &Record, timeline: &Timeline) -> Vec<Fault> {
    let objects = timeline.at(record.killed);
    let is_past = |moment: &&Moment| moment.change.revision <= record.killed;
    let mut told: BTreeMap<&str, Vec<Told>> = BTreeMap::new();
    // By UID: since when it waits.
    let mut since: BTreeMap<&str, Instant> = BTreeMap::new();
    let mut names = Names::default();
    for moment in timeline.moments.iter().take_while(is_past) {
        names.note(moment);
        let Some(after) = &moment.change.after else { continue };
        let phase = |object: &Value| object["status"]["phase"].as_str().unwrap_or_default().to_owned();
        let waits =
            |object: &Value| !["Bound", "Running", "Succeeded", "Failed"].contains(&phase(object).as_str());
        match moment.change.resource.as_str() {
            "events" if moment.is_ours() => {
                let (reason, message) = (after["reason"].as_str(), after["message"].as_str());
                let about = after["involvedObject"]["uid"].as_str().unwrap_or_default();
                let (reason, message) = (reason.unwrap_or_default(), message.unwrap_or_default());
                told.entry(about).or_default().push(Told { reason, message, at: moment.at });
            }
            "pods" | "persistentvolumeclaims"
                if waits(after) && !moment.change.before.as_ref().is_some_and(waits) =>
            {
                since.insert(uid(after), moment.at);
            }
            _ => {}
        }
    }
    let is_told = |object: &Value, explains: &dyn Fn(&Told) -> bool| {
        let since = since.get(uid(object)).copied().unwrap_or(record.began);
        // Who comes after one that was killed between the change and its event finds the event of an earlier wait (S47).
        let was_killed = record.kills.iter().any(|kill| *kill >= since && *kill <= since + UNDER_WAY);
        let is_there = |told: &Told| was_killed && told.at + EXPIRES > record.killed_at;
        let mut told = told.get(uid(object)).into_iter().flatten();
        told.any(|told| (told.at >= since || is_there(told)) && explains(told))
    };
    let begins = begins(record, timeline);
    let mut faults = Vec::new();
    for (name, pod) in objects.all("pods") {
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        let is_over =
            ["Running", "Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == **phase);
        let waits = !is_over && !is_terminating(pod);
        let claims = claims_of(pod);
        let is_bound = claims.iter().all(|claim| {
            let claim = objects.get("persistentvolumeclaims", claim);
            claim.is_some_and(|claim| claim["status"]["phase"] == "Bound")
        });
        let is_well = objects.get("nodes", node).is_some_and(is_ready);
        let explains = |told: &Told| {
            claims
                .iter()
                .any(|claim| Facts::of(&objects, node, claim).is_some_and(|facts| facts.explain(told)))
        };
        // A process that began after another machine had taken the name cannot know whose the attachment is; and what a pod has
        // that has started there stays listed.
        let has_begun = names.lost(node).is_some_and(|lost| begins.iter().any(|begin| *begin >= lost));
        let is_kept = |claim: &String| {
            objects.all("pods").any(|(_, other)| {
                other["spec"]["nodeName"] == node
                    && other["status"]["phase"] == "Running"
                    && claims_of(other).contains(claim)
            })
        };
        let is_unknown =
            claims.iter().any(|claim| is_for_another(&objects, node, claim) && (has_begun || is_kept(claim)));
        if waits && is_bound && is_well && !is_unknown && !is_told(pod, &explains) {
            let volumes: Vec<String> = claims.iter().filter_map(|claim| volume_of(&objects, claim)).collect();
            faults.push(Fault { rule: "told: not why it waits", what: format!("pod {name}, {volumes:?}") });
        }
    }
    for (name, claim) in objects.all("persistentvolumeclaims") {
        let waits = claim["status"]["phase"] != "Bound" && !is_terminating(claim);
        if waits && !is_told(claim, &|told| explains_claim(&objects, name, claim, told)) {
            faults.push(Fault { rule: "told: not why it waits", what: format!("claim {name}") });
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

/// Whether the attachment of a claim's volume on a node is for a machine that had its name before.
fn is_for_another(objects: &Objects, node: &str, claim: &str) -> bool {
    let volume = objects.get("persistentvolumeclaims", claim).map(|claim| &claim["spec"]["volumeName"]);
    let volume = volume.and_then(Value::as_str).and_then(|name| objects.get("persistentvolumes", name));
    let attachment = volume.and_then(disk_of).and_then(|disk| attachment_of(&disk, node));
    let attachment = attachment.and_then(|name| objects.get("volumeattachments", &name));
    attachment.is_some_and(|attachment| is_of_another(objects, attachment))
}

/// What the world shows of the volume of a claim of a pod on a node.
struct Facts {
    /// It is the claim's, and not going.
    is_usable: bool,
    is_attached: bool,
    /// On another node, or there is an attachment of another disk by the name of the volume.
    is_held: bool,
}

impl Facts {
    fn of(objects: &Objects, node: &str, key: &str) -> Option<Self> {
        let claim = objects.get("persistentvolumeclaims", key)?;
        let name = claim["spec"]["volumeName"].as_str().unwrap_or_default();
        let volume = objects.get("persistentvolumes", name);
        let disk = volume.and_then(disk_of);
        let Some((volume, disk)) = volume.zip(disk) else {
            // Of an in-tree volume that a driver took over nothing is known.
            return Some(Self { is_usable: false, is_attached: false, is_held: volume.is_some() });
        };
        let is_its = volume["spec"]["claimRef"]["uid"] == uid(claim);
        let of =
            |node: &str| attachment_of(&disk, node).and_then(|name| objects.get("volumeattachments", &name));
        let is_attached = match of(node) {
            Some(attachment) => {
                attachment["status"]["attached"] == true
                    && !is_terminating(attachment)
                    && !is_of_another(objects, attachment)
            }
            // A kubelet mounts no CSI volume for an entry of the list alone.
            None => {
                let node = objects.get("nodes", node).filter(|_| disk.contains("/iscsi/"));
                node.is_some_and(|node| listed(node).contains(disk.as_str()))
            }
        };
        let is_there = |(other, object): (&str, &Value)| {
            let is_listed = listed(object).contains(disk.as_str()) || in_use(object).contains(disk.as_str());
            other != node && (is_listed || of(other).is_some())
        };
        let is_anothers = |(attachment, object): (&str, &Value)| {
            let on = object["spec"]["nodeName"].as_str().unwrap_or_default();
            object["spec"]["source"]["persistentVolumeName"] == name
                && attachment_of(&disk, on).as_deref() != Some(attachment)
        };
        let is_held = objects.all("nodes").any(is_there) || objects.all("volumeattachments").any(is_anothers);
        Some(Self { is_usable: is_its && !is_terminating(volume), is_attached, is_held })
    }

    fn explain(&self, told: &Told) -> bool {
        let says = |words: &str| told.message.contains(words);
        match told.reason {
            "HeldByNode" => self.is_held,
            "FailedAttachVolume" if says("Multi-Attach error") => self.is_held,
            "FailedAttachVolume" if says("cannot be attached yet") => !self.is_usable,
            // What has happened is not why it waits.
            "SuccessfulAttachVolume" | "MultiAttachResolved" | "ForcedDetach" | "ForcedDetachDone" => false,
            _ => !self.is_attached,
        }
    }
}

/// Whether what a claim was told can be why it waits now.
fn explains_claim(objects: &Objects, key: &str, claim: &Value, told: &Told) -> bool {
    let class = claim["spec"]["storageClassName"].as_str();
    let class = class.and_then(|class| objects.get("storageclasses", class));
    let provisioner = class.and_then(|class| class["provisioner"].as_str());
    let asked = claim["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"].as_str();
    let named = claim["spec"]["volumeName"].as_str();
    let is_lost = claim["status"]["phase"] == "Lost";
    let is_delayed = class.is_some_and(|class| class["volumeBindingMode"] == "WaitForFirstConsumer");
    // A pod that has a node waits for no scheduler.
    let is_used = || {
        let mut pods =
            objects.all("pods").filter(|(_, pod)| pod["spec"]["nodeName"].is_null() && !is_terminating(pod));
        pods.any(|(_, pod)| claims_of(pod).iter().any(|claim| claim == key))
    };
    let holds = |volume: &Value| volume["spec"]["claimRef"]["uid"] == uid(claim);
    let held = || objects.all("persistentvolumes").any(|(_, volume)| holds(volume));
    let is_open = named.is_none() && !is_lost;
    match told.reason {
        "ProvisioningFailed" if told.message.contains("not found") => is_open && class.is_none(),
        "ProvisioningFailed" if told.message.contains("was handed to provisioner") => {
            is_open && asked != provisioner
        }
        "ProvisioningFailed" => {
            is_open && provisioner.is_some_and(|name| asked.is_none() || name.starts_with("kubernetes.io/"))
        }
        "ExternalProvisioning" => is_open && asked.is_some() && asked == provisioner,
        "WaitForFirstConsumer" => is_open && is_delayed && !is_used(),
        "WaitForPodScheduled" => is_open && is_delayed && is_used(),
        "FailedBinding" => named.is_some() || (is_open && claim["spec"]["storageClassName"].is_null()),
        "NamedVolumeMissing" => named.is_some_and(|name| objects.get("persistentvolumes", name).is_none()),
        "VolumeMismatch" => named.is_some() || held(),
        "HoldsOtherVolume" => held(),
        "ClaimLost" | "ClaimMisbound" | "LostVolumeMissing" | "LostReference" => is_lost,
        "LostMisbound" => is_lost || named.is_some(),
        // That others undo a write, or that nothing is known of one, lasts no longer than they do.
        _ => false,
    }
}
