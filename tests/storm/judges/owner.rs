//! S45: a volume that was Bound goes to no other claim while its claim lives and names it, and its data is not given up.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

use super::{Fault, Moment, Objects, Timeline, is_terminating, refers_to_name, uid};

/// The claim of a volume: key and UID.
type Owner = (String, String);

/// A claim whose volume was proven gone may be written Lost so long after that: the request is under way.
const UNDER_WAY: Duration = Duration::from_secs(2);

/// Who has which volume, and which of those claims are not Bound any more, as people wrote another phase: nothing shows then whose
/// a volume is that refers to another claim (S45).
#[derive(Default)]
struct Owners {
    of: BTreeMap<String, Owner>,
    hidden: BTreeSet<Owner>,
}

pub fn judge(timeline: &Timeline) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut owners = Owners::default();
    let mut made: BTreeMap<&str, Instant> = BTreeMap::new();
    timeline.fold(|objects, moment| match moment.change.resource.as_str() {
        "persistentvolumes" => {
            if moment.change.before.is_none() {
                made.insert(&moment.change.name, moment.at);
            }
            volume(objects, moment, &mut owners, &mut faults);
        }
        "persistentvolumeclaims" => claim(objects, moment, &made, &mut owners, &mut faults),
        _ => {}
    });
    faults
}

/// Its owner still lives and names it.
fn lives(objects: &Objects, volume: &str, (key, owner): &Owner) -> bool {
    let claim = objects.get("persistentvolumeclaims", key);
    claim.is_some_and(|claim| uid(claim) == owner && claim["spec"]["volumeName"] == volume)
}

/// Whether the claim that a volume refers to, by that UID or by none, names another volume.
fn has_another(objects: &Objects, volume: &str, reference: &Value) -> bool {
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let claim = objects.get("persistentvolumeclaims", &format!("{}/{}", text("namespace"), text("name")));
    claim.is_some_and(|claim| {
        let named = claim["spec"]["volumeName"].as_str().unwrap_or_default();
        ["", uid(claim)].contains(&text("uid")) && !named.is_empty() && named != volume
    })
}

fn volume(objects: &Objects, moment: &Moment, owners: &mut Owners, faults: &mut Vec<Fault>) {
    let name = moment.change.name.as_str();
    let Some(after) = &moment.change.after else { return };
    let phase = |object: &Value| object["status"]["phase"].as_str().unwrap_or_default().to_owned();
    let was = |phase_then| moment.change.before.as_ref().is_some_and(|before| phase(before) == phase_then);
    let is_given_up = after["spec"]["persistentVolumeReclaimPolicy"] != "Retain";
    if moment.is_ours() && phase(after) == "Released" && !was("Released") && is_given_up {
        // One that is Lost, and of another name and UID, was handed over from.
        let reference = &after["spec"]["claimRef"];
        let refers =
            |key: &str, claim: &Value| reference["uid"] == uid(claim) || refers_to_name(reference, key);
        let bound = objects.all("persistentvolumeclaims").find(|(key, claim)| {
            let phase = phase(claim);
            let is_its = phase == "Bound" || phase == "Lost" && refers(key, claim);
            claim["spec"]["volumeName"] == name && is_its
        });
        if let Some((key, _)) = bound {
            let what = format!("{name} of {key} at revision {}", moment.change.revision);
            faults.push(Fault { rule: "owner: made Released", what });
        }
    }
    let Some(owner) = owners.of.get(name) else { return };
    if !lives(objects, name, owner) {
        owners.of.remove(name);
        return;
    }
    let reference = &after["spec"]["claimRef"];
    let is_others = |reference: &Value| {
        reference["uid"].as_str().is_some_and(|uid| !uid.is_empty() && uid != owner.1)
            || reference["name"].is_string() && !refers_to_name(reference, &owner.0)
    };
    let names_other = is_others(reference);
    let was_others =
        moment.change.before.as_ref().is_some_and(|before| is_others(&before["spec"]["claimRef"]));
    if moment.is_ours() && was_others && owners.hidden.contains(owner) {
        owners.of.remove(name);
        return;
    }
    // Of a name alone it counts which claim has it when somebody looks: one that was made anew since has nothing.
    let has_no_uid = reference["uid"].as_str().is_none_or(str::is_empty);
    let before = moment.change.before.as_ref();
    let is_as_before = before.is_some_and(|before| before["spec"]["claimRef"] == *reference);
    let is_theirs = !moment.is_ours() || is_as_before;
    if names_other && has_no_uid && is_theirs && !has_another(objects, name, reference) {
        owners.of.remove(name);
        return;
    }
    if !moment.is_ours() {
        // People and populators hand a volume over by naming another claim, but not one that has another volume.
        if names_other && !has_another(objects, name, reference) {
            owners.of.remove(name);
        }
        return;
    }
    let names_other = names_other && !is_as_before;
    let is_made_available =
        phase(after) == "Available" && moment.change.before.is_some() && !was("Available");
    if names_other || is_made_available {
        let what = format!("{name} of {} at revision {}", owner.0, moment.change.revision);
        let rule = if names_other { "owner: given to another claim" } else { "owner: made Available" };
        faults.push(Fault { rule, what });
    }
}

fn claim(
    objects: &Objects,
    moment: &Moment,
    made: &BTreeMap<&str, Instant>,
    owners: &mut Owners,
    faults: &mut Vec<Fault>,
) {
    let Some(after) = &moment.change.after else { return };
    let Some(name) = after["spec"]["volumeName"].as_str() else { return };
    let owner = (moment.change.name.clone(), uid(after).to_owned());
    let volume = objects.get("persistentvolumes", name);
    let phase = after["status"]["phase"].as_str().unwrap_or_default();
    let was = moment.change.before.as_ref().map(|before| &before["status"]["phase"]);
    if phase == "Bound" {
        owners.hidden.remove(&owner);
    } else if was.is_some_and(|was| was == "Bound") && !moment.is_ours() {
        owners.hidden.insert(owner.clone());
    }
    if phase == "Bound" && volume.is_some_and(|volume| volume["spec"]["claimRef"]["uid"] == owner.1.as_str())
    {
        owners.of.insert(name.to_owned(), owner);
        return;
    }
    let was_lost = was.is_some_and(|was| was == "Lost");
    if phase == "Lost" && !was_lost && moment.is_ours() {
        let is_new = made.get(name).is_some_and(|at| moment.at - *at < UNDER_WAY);
        let Some(volume) = volume.filter(|volume| !is_terminating(volume) && !is_new) else { return };
        let reference = &volume["spec"]["claimRef"];
        let is_own = reference.is_null()
            || (refers_to_name(reference, &owner.0)
                && reference["uid"].as_str().is_none_or(|uid| uid.is_empty() || uid == owner.1));
        if is_own && owners.of.get(name).is_none_or(|held| *held == owner) {
            let what = format!("{} though {name} is there, at revision {}", owner.0, moment.change.revision);
            faults.push(Fault { rule: "owner: Lost", what });
        }
    }
}
