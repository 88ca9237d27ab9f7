//! S43: an exclusive disk that is mounted on a machine goes to no other, and none is left behind by us.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;
use testbed::actors::{Fact, Step};
use tokio::time::Instant;

use super::{
    Fault, Moment, Names, Objects, Timeline, begins,
    calm::{Given, given},
    claims_of, disk_of, in_use, is_out_of_service, is_ready, is_terminating, listed, machine_for, mounted,
    refers_to_name, uid,
};
use crate::{
    play::Record,
    world::{attachment_of, is_managed, machine_of, node_of},
};

/// Six minutes of true time, less what the clocks of the tests are coarse.
const FORCE: Duration = Duration::from_secs(355);

/// A request that was decided on what people had done may arrive so long after that, and later by how late watches are.
const UNDER_WAY: Duration = Duration::from_secs(1);

/// What attachments lead to.
const CSI: &str = "kubernetes.io/csi/";

/// What is known of machines and disks up to a moment.
struct Machines<'a> {
    facts: &'a [Fact],
    late: &'a [(Instant, Instant)],
    under_way: Duration,
    names: Names<'a>,
    /// When processes began, or began to lead.
    begins: Vec<Instant>,
    /// By machine: since when its node is not Ready (or gone, or another's), and when it was out of service.
    unready: BTreeMap<String, Instant>,
    out_of_service: BTreeMap<String, Instant>,
    shared: BTreeSet<String>,
    given: Given,
    /// Machine and disk: we took it off the node's list while it was mounted and reported in use.
    unlisted: BTreeSet<(String, String)>,
    /// Machine and disk: people took away the kubelet's report, by which alone a detach goes (S3).
    falsified: BTreeSet<(String, String)>,
    /// Machine and disk: the report went with the node object. Until that is made anew an attachment is a witness (S6).
    gone: BTreeSet<(String, String)>,
    /// Machine and disk: when the kubelet reported again what people had taken away.
    reported_again: BTreeMap<(String, String), Instant>,
    /// When a node was made that people had deleted.
    made: BTreeMap<String, Instant>,
    /// When a PersistentVolume of that name was made, and when the deletion of an attachment was asked for.
    volumes_made: BTreeMap<String, Instant>,
    asked: BTreeMap<String, Instant>,
    /// By attachment: the PersistentVolume that it names, or named last.
    sources: BTreeMap<String, String>,
    /// Node and disk of each attachment that people made last, and whether kubelets look for it under another name.
    by_people: BTreeMap<(String, String), bool>,
    /// Machine and disk: when an attachment that we had deleted was gone, whose PersistentVolume led to that disk then.
    ended: BTreeMap<(String, String), Instant>,
}

pub fn judge(record: &Record, timeline: &Timeline) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut machines = Machines {
        facts: &record.facts,
        names: Names::default(),
        begins: begins(record, timeline),
        unready: BTreeMap::new(),
        out_of_service: BTreeMap::new(),
        shared: BTreeSet::new(),
        given: given(record, timeline),
        unlisted: BTreeSet::new(),
        falsified: BTreeSet::new(),
        gone: BTreeSet::new(),
        late: &record.late,
        under_way: UNDER_WAY + record.script.lags.iter().max().copied().unwrap_or_default(),
        reported_again: BTreeMap::new(),
        made: BTreeMap::new(),
        volumes_made: BTreeMap::new(),
        asked: BTreeMap::new(),
        ended: BTreeMap::new(),
        sources: BTreeMap::new(),
        by_people: BTreeMap::new(),
    };
    // By attachment: who asked for its deletion, and who made it vanish.
    let mut deleted_by: BTreeMap<&str, (&str, bool)> = BTreeMap::new();
    let mut next = 0;
    let end = timeline.fold(|objects, moment| {
        // What the storage did before this change was sent.
        while let Some(fact) = record.facts.get(next).filter(|fact| fact.at < moment.at) {
            machines.judge_fact(objects, fact, &deleted_by, &mut faults);
            next += 1;
        }
        if moment.change.resource == "volumeattachments" {
            machines.note_end(objects, moment, &deleted_by);
        }
        machines.note(moment);
        match moment.change.resource.as_str() {
            "volumeattachments" => {
                machines.note_maker(objects, moment);
                note_deletion(moment, leads_elsewhere(objects, moment), &mut deleted_by);
                if let Some((disk, node)) = given_by_attachment(objects, moment) {
                    machines.judge_given(objects, moment, &disk, &node, &mut faults);
                }
            }
            "nodes" => {
                let bearer = machines.names.bearer(&moment.change.name).to_owned();
                for disk in given_by_list(moment) {
                    // What is listed again where it is mounted is not given.
                    if machines.mounted(&disk, &bearer, moment.at).is_some() {
                        continue;
                    }
                    if disk.starts_with(CSI) {
                        machines.judge_listed(objects, moment, &disk, &mut faults);
                        continue;
                    }
                    machines.judge_given(objects, moment, &disk, &moment.change.name, &mut faults);
                }
            }
            _ => {}
        }
    });
    for fact in &record.facts[next..] {
        machines.judge_fact(&end, fact, &deleted_by, &mut faults);
    }
    faults
}

/// Whether people made the PersistentVolume of an attachment anew with another handle: the driver goes by its name, and
/// detached another disk.
fn leads_elsewhere(objects: &Objects, moment: &Moment) -> bool {
    let Some(before) = &moment.change.before else { return false };
    let source = before["spec"]["source"]["persistentVolumeName"].as_str().unwrap_or_default();
    let node = before["spec"]["nodeName"].as_str().unwrap_or_default();
    let disk = objects.get("persistentvolumes", source).and_then(disk_of);
    disk.is_some_and(|disk| attachment_of(&disk, node).as_deref() != Some(moment.change.name.as_str()))
}

fn note_deletion<'a>(
    moment: &Moment<'a>,
    leads_elsewhere: bool,
    deleted_by: &mut BTreeMap<&'a str, (&'a str, bool)>,
) {
    let name = moment.change.name.as_str();
    let was = moment.change.before.as_ref().is_some_and(is_terminating);
    match &moment.change.after {
        Some(after) if is_terminating(after) && !was => {
            deleted_by.insert(name, (moment.author, moment.is_ours()));
        }
        None if !was => {
            // An attacher that answers for an earlier attachment of that name leaves this one attached without its finalizer,
            // and nobody detaches it.
            let is_unguarded = moment.change.before.as_ref().is_some_and(|before| {
                before["status"]["attached"] == true && before["metadata"]["finalizers"].is_null()
            });
            deleted_by.insert(name, (moment.author, moment.is_ours() && !is_unguarded));
        }
        Some(after) if !is_terminating(after) => {
            deleted_by.remove(name);
        }
        None if leads_elsewhere => {
            deleted_by.insert(name, ("admin", false));
        }
        // Whoever takes the finalizer off in the attacher's place has taken the disk from its care.
        None if moment.author == "admin" => {
            deleted_by.insert(name, (moment.author, false));
        }
        _ => {}
    }
}

/// A VolumeAttachment that the daemon creates.
fn given_by_attachment(objects: &Objects, moment: &Moment) -> Option<(String, String)> {
    let after =
        moment.change.after.as_ref().filter(|_| moment.change.before.is_none() && moment.is_ours())?;
    let volume =
        objects.get("persistentvolumes", after["spec"]["source"]["persistentVolumeName"].as_str()?)?;
    Some((disk_of(volume)?, after["spec"]["nodeName"].as_str()?.to_owned()))
}

/// Entries that the daemon adds to a list.
fn given_by_list(moment: &Moment) -> Vec<String> {
    let (Some(before), Some(after)) = (&moment.change.before, &moment.change.after) else {
        return Vec::new();
    };
    if !moment.is_ours() {
        return Vec::new();
    }
    let (before, after) = (listed(before), listed(after));
    after.difference(&before).map(|disk| (*disk).to_owned()).collect()
}

impl<'a> Machines<'a> {
    fn note(&mut self, moment: &Moment<'a>) {
        let change = moment.change;
        match (change.resource.as_str(), &change.after) {
            ("nodes", node) => self.note_node(moment, node.as_ref()),
            ("volumeattachments", Some(attachment)) if is_terminating(attachment) => {
                self.asked.entry(change.name.clone()).or_insert(moment.at);
            }
            ("volumeattachments", Some(_)) => drop(self.asked.remove(&change.name)),
            ("persistentvolumes", Some(volume)) => {
                if change.before.is_none() {
                    self.volumes_made.insert(change.name.clone(), moment.at);
                }
                let modes = volume["spec"]["accessModes"].as_array().into_iter().flatten();
                let is_shared =
                    modes.into_iter().any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany");
                self.shared.extend(disk_of(volume).filter(|_| is_shared));
            }
            _ => {}
        }
    }

    fn note_node(&mut self, moment: &Moment<'a>, node: Option<&'a Value>) {
        let change = moment.change;
        let name = &change.name;
        let before = self.names.bearer(name).to_owned();
        self.names.note(moment);
        let Some(node) = node else {
            self.unready.entry(before.clone()).or_insert(moment.at);
            let reports = change.before.as_ref().map(in_use).unwrap_or_default();
            let reports = reports.into_iter().filter(|_| !moment.is_ours());
            self.gone.extend(reports.map(|disk| (before.clone(), disk.to_owned())));
            return;
        };
        let machine = machine_of(name, node).to_owned();
        if machine != before {
            // Of one that has lost its name nothing is heard any more.
            self.unready.entry(before).or_insert(moment.at);
        }
        if is_ready(node) {
            self.unready.remove(&machine);
        } else {
            self.unready.entry(machine.clone()).or_insert(moment.at);
        }
        if change.before.is_none() {
            self.made.insert(name.clone(), moment.at);
            self.falsified.extend(self.gone.extract_if(.., |(machine, _)| node_of(machine) == name));
        }
        if is_out_of_service(node) {
            self.out_of_service.insert(machine.clone(), moment.at);
        }
        self.note_list(moment, &machine, change.before.as_ref().unwrap_or(&Value::Null), node);
    }

    /// The machine that an attachment is for.
    fn machine_for<'b>(&'b self, attachment: &'b Value) -> &'b str {
        machine_for(attachment)
            .unwrap_or_else(|| self.names.bearer(attachment["spec"]["nodeName"].as_str().unwrap_or_default()))
    }

    /// The driver goes by the name of the volume: it detaches what that leads to now.
    fn note_end(&mut self, objects: &Objects, moment: &Moment, deleted_by: &BTreeMap<&str, (&str, bool)>) {
        let (None, Some(before)) = (&moment.change.after, &moment.change.before) else { return };
        let is_ours = deleted_by.get(moment.change.name.as_str()).is_some_and(|(_, ours)| *ours);
        let source = before["spec"]["source"]["persistentVolumeName"].as_str().unwrap_or_default();
        let machine = self.machine_for(before).to_owned();
        let is_ours = is_ours && self.could_know(&moment.change.name, source);
        if let Some(disk) = objects.get("persistentvolumes", source).and_then(disk_of).filter(|_| is_ours) {
            self.ended.insert((machine, disk), moment.at);
        }
    }

    fn note_maker(&mut self, objects: &Objects, moment: &Moment) {
        let (None, Some(after)) = (&moment.change.before, &moment.change.after) else { return };
        let source = after["spec"]["source"]["persistentVolumeName"].as_str().unwrap_or_default();
        self.sources.insert(moment.change.name.clone(), source.to_owned());
        let node = after["spec"]["nodeName"].as_str().unwrap_or_default();
        let Some(disk) = objects.get("persistentvolumes", source).and_then(disk_of) else { return };
        let is_misnamed = attachment_of(&disk, node).as_deref() != Some(moment.change.name.as_str());
        let place = (node.to_owned(), disk);
        if moment.is_ours() {
            self.by_people.remove(&place);
        } else {
            self.by_people.insert(place, is_misnamed);
        }
    }

    /// Whether who asked for the deletion of an attachment could know the volume of that name: it was not made later.
    fn could_know(&self, attachment: &str, source: &str) -> bool {
        let Some(asked) = self.asked.get(attachment) else { return true };
        self.volumes_made.get(source).is_none_or(|made| *made + self.under_way <= *asked)
    }

    fn note_list(&mut self, moment: &Moment, machine: &str, before: &Value, after: &Value) {
        let (old, new) = (listed(before), listed(after));
        for disk in new.difference(&old) {
            self.unlisted.remove(&(machine.to_owned(), (*disk).to_owned()));
        }
        let (old_use, new_use) = (in_use(before), in_use(after));
        for disk in &new_use {
            let place = (machine.to_owned(), (*disk).to_owned());
            if self.falsified.remove(&place) {
                self.reported_again.insert(place, moment.at);
            }
        }
        for disk in old_use.difference(&new_use).filter(|_| moment.author == "admin") {
            self.falsified.insert((machine.to_owned(), (*disk).to_owned()));
        }
        for disk in old.difference(&new).filter(|disk| moment.is_ours() && in_use(before).contains(*disk)) {
            if self.mounted(disk, machine, moment.at).is_some() {
                self.unlisted.insert((machine.to_owned(), (*disk).to_owned()));
            }
        }
    }

    /// Whether what happened at the one time may be unseen at the other.
    fn is_late(&self, happened: Instant, now: Instant) -> bool {
        self.late
            .iter()
            .any(|(begin, end)| *begin <= happened + self.under_way && *end + self.under_way >= now)
    }

    fn mounted(&self, disk: &str, machine: &str, at: Instant) -> Option<Instant> {
        mounted(self.facts, disk, machine, at)
    }

    fn is_excused(&self, machine: &str, mounted: Instant, at: Instant) -> bool {
        let forced = self.unready.get(machine).is_some_and(|since| at - *since >= FORCE);
        forced || self.is_fenced(machine, mounted)
    }

    fn is_fenced(&self, machine: &str, mounted: Instant) -> bool {
        self.out_of_service.get(machine).is_some_and(|tainted| *tainted >= mounted)
    }

    /// A disk is given to a node: is it mounted on another machine?
    fn judge_given(
        &self,
        objects: &Objects,
        moment: &Moment,
        disk: &str,
        node: &str,
        faults: &mut Vec<Fault>,
    ) {
        if self.shared.contains(disk) {
            return;
        }
        let machines: BTreeSet<&str> = self.facts.iter().map(|fact| fact.machine.as_str()).collect();
        for machine in machines.into_iter().filter(|machine| *machine != self.names.bearer(node)) {
            let Some(since) = self.mounted(disk, machine, moment.at) else { continue };
            if self.is_excused(machine, since, moment.at) {
                continue;
            }
            let attachment = attachment_of(disk, node_of(machine));
            let attachment = attachment.and_then(|name| objects.get("volumeattachments", &name));
            let is_attached = attachment.is_some_and(|attachment| self.machine_for(attachment) == machine);
            let holder = objects.get("nodes", node_of(machine));
            let holder = holder.filter(|_| self.names.bearer(node_of(machine)) == machine);
            let place = (machine.to_owned(), disk.to_owned());
            // What is decided while no list has it may be under way when the kubelet reports it again.
            let is_new = self.reported_again.get(&place).is_some_and(|at| moment.at - *at < self.under_way)
                || self
                    .made
                    .get(node_of(machine))
                    .is_some_and(|at| since < *at && self.is_late(*at, moment.at));
            let witness = holder
                .is_some_and(|node| listed(node).contains(disk) || (in_use(node).contains(disk) && !is_new));
            // Where no witness stands, people took away the report that the kubelet had made before it mounted, and not mooring
            // the list.
            let is_unreported = self.falsified.contains(&place) || self.gone.contains(&place) || is_new;
            let is_unlisted = self.unlisted.contains(&place);
            // Nor can a process know what has only a machine whose name another one had before that process began.
            let is_unknown = self.names.is_unknown(machine, &self.begins, moment.at);
            if !is_attached && !witness && (is_unknown || !is_unlisted && is_unreported) {
                continue;
            }
            faults.push(Fault {
                rule: "disk: given while it is mounted elsewhere",
                what: format!(
                    "{disk} to {node}, mounted on {machine}, at revision {}",
                    moment.change.revision
                ),
            });
        }
    }

    /// A disk with an attachment is put on the list of a node whose name another machine has taken: is it that one's, which the
    /// attachment is not for? A process that began since cannot know, and a pod that has started keeps what it was given, also
    /// while it is being deleted, until it ends (S44).
    fn judge_listed(&self, objects: &Objects, moment: &Moment, disk: &str, faults: &mut Vec<Fault>) {
        let node = moment.change.name.as_str();
        let attachment = attachment_of(disk, node);
        let Some(attachment) = attachment.and_then(|name| objects.get("volumeattachments", &name)) else {
            return;
        };
        let (machine, bearer) = (self.machine_for(attachment), self.names.bearer(node));
        let Some(since) = self.mounted(disk, machine, moment.at).filter(|_| machine != bearer) else {
            return;
        };
        if self.shared.contains(disk)
            || self.names.is_unknown(machine, &self.begins, moment.at)
            || self.is_excused(machine, since, moment.at)
            || self.keeps(objects, disk, node)
        {
            return;
        }
        let revision = moment.change.revision;
        let what = format!("{disk} to {bearer} by a list, mounted on {machine}, at revision {revision}");
        faults.push(Fault { rule: "disk: given while it is mounted elsewhere", what });
    }

    fn judge_fact(
        &self,
        objects: &Objects,
        fact: &Fact,
        deleted_by: &BTreeMap<&str, (&str, bool)>,
        faults: &mut Vec<Fault>,
    ) {
        let Fact { at, disk, machine, step } = fact;
        let is_ours = |machine: &str| {
            attachment_of(disk, node_of(machine)).and_then(|name| deleted_by.get(name.as_str()).copied())
        };
        match step {
            Step::Unpublished => {
                let Some(since) = self.mounted(disk, machine, *at) else { return };
                // What is decided while no list has it may be under way when the kubelet reports it again.
                let place = (machine.clone(), disk.clone());
                let is_new = self.reported_again.get(&place).is_some_and(|again| *at - *again < UNDER_WAY);
                // Such a pod needs the disk whatever people made of its node's report, unless the driver attaches none (S16).
                let attaches = |(_, driver): (&str, &Value)| driver["spec"]["attachRequired"] != false;
                let is_needed =
                    objects.all("csidrivers").all(attaches) && self.shows_pod(objects, disk, machine, *at);
                let is_told_wrongly = self.falsified.contains(&place) || is_new;
                if is_told_wrongly && !is_needed {
                    return;
                }
                // An attachment of another disk ends this one, too, whether its deletion is seen yet or not.
                let ends_it = |(name, object): (&str, &Value)| {
                    let source =
                        object["spec"]["source"]["persistentVolumeName"].as_str().unwrap_or_default();
                    self.machine_for(object) == machine
                        && is_terminating(object)
                        && deleted_by.get(name).is_some_and(|(_, ours)| *ours)
                        && self.could_know(name, source)
                        && objects.get("persistentvolumes", source).and_then(disk_of).as_ref() == Some(disk)
                };
                // Whether another attachment would take it, mooring could not know then.
                let by_another = || {
                    self.ended.get(&place).is_some_and(|ended| ended >= at)
                        || objects.all("volumeattachments").any(ends_it)
                };
                let by_us =
                    is_ours(machine).is_some_and(|(_, ours)| ours) || !is_told_wrongly && by_another();
                let asked = attachment_of(disk, node_of(machine)).and_then(|name| self.asked.get(&name));
                // A process that began since another machine took the name knows nothing of this one.
                let is_unknown = self.names.is_unknown(machine, &self.begins, *asked.unwrap_or(at));
                let is_forced = is_unknown || self.is_excused(machine, since, *at);
                let is_shown = !self.is_fenced(machine, since) && self.shows_pod(objects, disk, machine, *at);
                if by_us && (!is_forced || is_shown) {
                    let what = format!("{disk} from {machine}");
                    faults.push(Fault { rule: "disk: taken while it is mounted", what });
                }
            }
            // Whom people give it beside another is theirs to answer for.
            Step::Published
                if !self.shared.contains(disk)
                    && !self.by_people.contains_key(&(node_of(machine).to_owned(), disk.clone())) =>
            {
                let mut on: BTreeSet<&str> = BTreeSet::new();
                for earlier in self.facts.iter().filter(|earlier| earlier.disk == *disk && earlier.at < *at) {
                    match earlier.step {
                        Step::Published => drop(on.insert(&earlier.machine)),
                        Step::Unpublished => drop(on.remove(earlier.machine.as_str())),
                        _ => {}
                    }
                }
                // A driver that is asked again gives nothing.
                if on.contains(machine.as_str()) {
                    return;
                }
                // What people attach under another name nobody deletes with ours.
                let is_misnamed = |other: &&str| {
                    self.by_people
                        .get(&(node_of(other).to_owned(), disk.clone()))
                        .copied()
                        .unwrap_or_default()
                };
                for other in on.into_iter().filter(|other| other != machine && !is_misnamed(other)) {
                    if is_ours(other).is_some_and(|(_, ours)| ours) && !self.is_excused(other, *at, *at) {
                        let what = format!("{disk} on {other}, then given to {machine}");
                        faults.push(Fault { rule: "disk: left behind by a detach of ours", what });
                    }
                }
            }
            Step::Published | Step::Mounted | Step::Unmounted => {}
        }
    }

    /// Whether a pod of the node that has started was given the disk: it keeps it until it ends, whatever has become of its claim.
    fn keeps(&self, objects: &Objects, disk: &str, node: &str) -> bool {
        objects.all("pods").any(|(_, pod)| {
            pod["spec"]["nodeName"] == node
                && pod["status"]["phase"] == "Running"
                && self.given.contains(&(uid(pod).to_owned(), disk.to_owned()))
        })
    }

    /// Whether objects show a pod that runs on the machine with the disk, and that no time takes it from (S4, S44): its claim
    /// has the volume, or was made anew under it, and the attachment names a volume that names the claim.
    fn shows_pod(&self, objects: &Objects, disk: &str, machine: &str, at: Instant) -> bool {
        let node = node_of(machine);
        // Nothing says any more of a node that is gone, or is not marked so, that its volumes are ours to attach.
        let Some(object) = objects.get("nodes", node).filter(|object| is_managed(object)) else {
            return false;
        };
        let attached = attachment_of(disk, node).and_then(|name| self.sources.get(&name));
        let since = self.mounted(disk, machine, at);
        let has_begun =
            self.begins.iter().any(|begin| since.is_some_and(|since| since < *begin) && *begin <= at);
        let of_claim = |key: &str| {
            let (namespace, name) = key.split_once('/').unwrap_or_default();
            let volumes = objects.all("persistentvolumes").filter(move |(_, volume)| {
                let reference = &volume["spec"]["claimRef"];
                disk_of(volume).as_deref() == Some(disk)
                    && reference["namespace"] == namespace
                    && reference["name"] == name
            });
            volumes.collect::<Vec<_>>()
        };
        let created = |object: &Value| object["metadata"]["creationTimestamp"].as_str().map(str::to_owned);
        // To a process that began since, what merely has the name of a claim is not the pod's, if the node reports another volume
        // that has it, too (S44).
        let is_told = |key: &str| {
            has_begun
                && !in_use(object).contains(disk)
                && objects.all("persistentvolumes").any(|(_, volume)| {
                    let used = disk_of(volume).filter(|other| in_use(object).contains(other.as_str()));
                    let attachment = used.and_then(|other| attachment_of(&other, node));
                    refers_to_name(&volume["spec"]["claimRef"], key)
                        && attachment.is_some_and(|name| objects.get("volumeattachments", &name).is_some())
                })
        };
        let has_it = |pod: &Value, key: &str| {
            let claim = objects.get("persistentvolumeclaims", key);
            of_claim(key).into_iter().any(|(volume, object)| {
                let is_bound = claim.is_some_and(|claim| {
                    claim["status"]["phase"] == "Bound"
                        && claim["spec"]["volumeName"] == volume
                        && object["spec"]["claimRef"]["uid"] == uid(claim)
                });
                let is_older = claim.is_none_or(|claim| created(claim) > created(pod));
                let reserves = object["spec"]["claimRef"]["uid"].as_str().is_none_or(str::is_empty);
                is_bound
                    || is_older
                        && attached.is_some_and(|source| source == volume)
                        && !(reserves && is_told(key))
            })
        };
        objects.all("pods").any(|(_, pod)| {
            let is_there = pod["spec"]["nodeName"] == node
                && pod["status"]["phase"] == "Running"
                && !is_terminating(pod);
            is_there && claims_of(pod).iter().any(|key| has_it(pod, key))
        })
    }
}
