//! S46: what another writer has undone is put right: at once where that was the only undo within a minute, and within 40 s once
//! a stubborn writer has stopped. What the daemon owes is told by the objects alone: a fact of an object that it wrote, that
//! is not so any more, and that nothing in the world keeps it from writing again.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;
use testbed::actors::Fact;
use tokio::time::Instant;

use super::{
    Fault, Moment, Objects, Timeline,
    all_on::has_finalizer,
    calm::{BESIDE_FREE, Given, HALF_BOUND, NOT_ASKED, claim_waits, given, is_given, is_left_over},
    claims_of, disk_of, in_use, is_of, is_terminating, listed, mounted, refers_to_name, uid,
};
use crate::{
    acts::Undo,
    play::Record,
    world::{attachment_of, is_managed, machine_of},
};

/// After a stubborn writer has stopped: the longest pause is 30 s.
const STOPPED: Duration = Duration::from_secs(40);
/// A write that stood for so long is repeated at once.
const STOOD: Duration = Duration::from_mins(1);
/// A turn in the queue, and what goes before a write: reads, and another write to the same object.
const AT_ONCE: Duration = Duration::from_secs(5);
/// What a process takes to begin: the lease of one that was killed runs out.
const BEGINS: Duration = Duration::from_secs(25);
/// Requests that failed are repeated after pauses up to so long.
const RETRY: Duration = Duration::from_secs(35);

/// What is not as it is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// What we had written.
    Undone(Undo),
    /// A claim waits beside a volume that it could have, or is half bound.
    Open,
}

/// What, and the object of which it is so.
type Place = (What, String);

/// Since when a fact is not so.
#[derive(Clone, Copy)]
struct Wrong {
    since: Instant,
    /// Another writer undid what we had written more than a minute before.
    is_single: bool,
}

pub fn judge(record: &Record, timeline: &Timeline) -> Vec<Fault> {
    let mut watch = Watch {
        record,
        disturbances: disturbances(record, RETRY),
        troubles: disturbances(record, Duration::ZERO),
        known: Known::default(),
        given: given(record, timeline),
        wrong: BTreeMap::new(),
        right_again: vec![false; record.fights.len()],
        last: None,
        faults: BTreeMap::new(),
    };
    timeline.fold(|objects, moment| {
        if moment.change.revision <= record.killed {
            watch.look(objects, moment.at);
            watch.note(moment);
        }
    });
    watch.look(&timeline.at(record.killed), record.killed_at);
    watch.faults.into_values().collect()
}

/// From when to when the daemon may not do what is due.
fn disturbances(record: &Record, pause: Duration) -> Vec<(Instant, Instant)> {
    let kills = record.kills.iter().map(|kill| (*kill, *kill + BEGINS));
    // One that is asked to end writes events for a while.
    let starts = record.starts.iter().map(|start| (*start - STOOD, *start + BEGINS));
    let late = record.late.iter().chain(&record.faults).map(|(begin, end)| (*begin, *end + pause));
    kills.chain(starts).chain(late).collect()
}

/// What the changes so far tell.
#[derive(Default)]
struct Known<'a> {
    /// By UID: when it came into being, as a number that grows.
    born: BTreeMap<&'a str, usize>,
    /// By resource and name: when we wrote to it last.
    ours: BTreeMap<(&'a str, &'a str), Instant>,
    /// By name: when we made a VolumeAttachment last, as such a number.
    made: BTreeMap<&'a str, usize>,
}

/// A change that may have made something wrong.
#[derive(Clone, Copy)]
struct Last<'a> {
    at: Instant,
    /// Resource and name.
    changed: (&'a str, &'a str),
    is_ours: bool,
    /// When we had written to that before.
    ours_before: Option<Instant>,
}

struct Watch<'a> {
    record: &'a Record,
    /// With the pauses after them, and without.
    disturbances: Vec<(Instant, Instant)>,
    troubles: Vec<(Instant, Instant)>,
    known: Known<'a>,
    given: Given,
    wrong: BTreeMap<Place, Wrong>,
    /// By stubborn writer: what it undid has been right since it stopped.
    right_again: Vec<bool>,
    /// The change since the last look.
    last: Option<Last<'a>>,
    faults: BTreeMap<(&'static str, Place), Fault>,
}

impl<'a> Watch<'a> {
    /// What is so up to that moment.
    fn look(&mut self, objects: &Objects, now: Instant) {
        if let Some(last) = self.last.take() {
            self.compare(objects, last);
        }
        let lag = 2 * self.record.script.lags.iter().max().copied().unwrap_or_default();
        for (place, wrong) in &self.wrong {
            if wrong.is_single && now > self.undisturbed(wrong.since, now) + AT_ONCE + lag {
                let rule = "pace: what was undone once is not put right at once";
                self.faults
                    .entry((rule, place.clone()))
                    .or_insert_with(|| fault(rule, place, wrong.since, self.record));
            }
        }
        for (place, wrong) in self.wrong.iter().filter(|(place, _)| place.0 == What::Open) {
            // Of two writers that undo claim and volume, each has a pause of its own.
            let fights = self.record.fights.iter().filter(|fight| fight.until > wrong.since);
            let (of_claim, of_others): (Vec<_>, Vec<_>) = fights.partition(|fight| fight.name == place.1);
            let pauses = if of_claim.is_empty() || of_others.is_empty() { 1 } else { 2 };
            if now > undisturbed(&self.troubles, wrong.since, now) + STOPPED * pauses + lag {
                let rule = "pace: a claim waits beside its volume";
                self.faults
                    .entry((rule, place.clone()))
                    .or_insert_with(|| fault(rule, place, wrong.since, self.record));
            }
        }
        for (fight, is_right) in self.record.fights.iter().zip(&mut self.right_again) {
            let place = (What::Undone(fight.undo), fight.name.clone());
            if fight.until > now {
                // Each undo begins it anew.
                if let Some(wrong) = self.wrong.get(&place)
                    && now > undisturbed(&self.disturbances, wrong.since, now) + STOPPED + lag
                {
                    let rule = "pace: given up against a writer";
                    self.faults
                        .entry((rule, place.clone()))
                        .or_insert_with(|| fault(rule, &place, wrong.since, self.record));
                }
                continue;
            }
            if *is_right {
                continue;
            }
            let Some(wrong) = self.wrong.get(&place) else {
                *is_right = true;
                continue;
            };
            let since = undisturbed(&self.disturbances, wrong.since.max(fight.until), now);
            if now > since + STOPPED + lag {
                let rule = "pace: not put right after a writer stopped";
                self.faults
                    .entry((rule, place.clone()))
                    .or_insert_with(|| fault(rule, &place, since, self.record));
            }
        }
    }

    fn undisturbed(&self, since: Instant, now: Instant) -> Instant {
        undisturbed(&self.disturbances, since, now)
    }

    fn compare(&mut self, objects: &Objects, last: Last<'a>) {
        let Last { at, changed, is_ours, ours_before } = last;
        let before = std::mem::take(&mut self.wrong);
        for place in self.wrong_now(objects, at) {
            let is_undo =
                resource(place.0).is_some_and(|resource| changed == (resource, place.1.as_str())) && !is_ours;
            let wrong = match before.get(&place) {
                Some(wrong) if !is_undo => *wrong,
                Some(wrong) => Wrong { since: at, ..*wrong },
                None => {
                    let is_single = is_undo && ours_before.is_some_and(|ours| at - ours > STOOD);
                    Wrong { since: at, is_single }
                }
            };
            self.wrong.insert(place, wrong);
        }
    }

    fn note(&mut self, moment: &Moment<'a>) {
        let change = moment.change;
        let key = (change.resource.as_str(), change.name.as_str());
        if ["events", "leases"].contains(&key.0) {
            return;
        }
        let order = self.known.born.len();
        if let Some(after) = &change.after {
            self.known.born.entry(uid(after)).or_insert(order);
            if change.before.is_none() && moment.is_ours() && key.0 == "volumeattachments" {
                self.known.made.insert(key.1, order);
            }
        }
        let ours_before = self.known.ours.get(&key).copied();
        if moment.is_ours() {
            self.known.ours.insert(key, moment.at);
        }
        self.last = Some(Last { at: moment.at, changed: key, is_ours: moment.is_ours(), ours_before });
    }

    fn wrong_now(&self, objects: &Objects, at: Instant) -> BTreeSet<Place> {
        let mut wrong = BTreeSet::new();
        for (name, claim) in objects.all("persistentvolumeclaims").filter(|(_, claim)| !is_terminating(claim))
        {
            wrong.extend(of_claim(objects, name, claim));
            match claim_waits(objects, name, claim) {
                Some(BESIDE_FREE | HALF_BOUND) => drop(wrong.insert((What::Open, name.to_owned()))),
                Some(NOT_ASKED) => drop(wrong.insert((What::Undone(Undo::Provisioner), name.to_owned()))),
                _ => {}
            }
            if self.record.script.has_all && !has_finalizer(claim, "kubernetes.io/pvc-protection") {
                wrong.insert((What::Undone(Undo::Protection), name.to_owned()));
            }
        }
        for (name, attachment) in objects.all("volumeattachments") {
            // What a machine had before its node was made anew stays for a minute, which a new leader begins anew (S6).
            let node = attachment["spec"]["nodeName"].as_str().unwrap_or_default();
            let born = |object| self.known.born.get(uid(object));
            let is_there = objects.get("nodes", node).is_some_and(|node| born(node) < born(attachment));
            if is_there && is_left_over(objects, attachment) && !is_given(objects, &self.given, attachment) {
                wrong.insert((What::Undone(Undo::Deletion), name.to_owned()));
            }
        }
        let seen = Seen { objects, known: &self.known, facts: &self.record.facts, at };
        for (_, pod) in objects.all("pods") {
            wrong.extend(seen.of_pod(pod));
        }
        wrong
    }
}

fn fault(rule: &'static str, (what, name): &Place, since: Instant, record: &Record) -> Fault {
    let since = since.duration_since(record.began).as_secs_f64();
    Fault { rule, what: format!("{what:?} of {name}, since {since:.1} s") }
}

/// The end of the last disturbance that began before now, if that is later.
fn undisturbed(disturbances: &[(Instant, Instant)], since: Instant, now: Instant) -> Instant {
    let begun = disturbances.iter().filter(|(begin, _)| *begin <= now);
    begun.map(|(_, end)| *end).fold(since, Instant::max)
}

/// The resource of which it is undone.
fn resource(what: What) -> Option<&'static str> {
    let What::Undone(undo) = what else { return None };
    Some(match undo {
        Undo::Attachment | Undo::Deletion => "volumeattachments",
        Undo::List => "nodes",
        Undo::ClaimRef | Undo::Phase => "persistentvolumes",
        Undo::BindCompleted | Undo::ClaimPhase | Undo::Provisioner | Undo::Protection => {
            "persistentvolumeclaims"
        }
    })
}

/// What is wrong between a claim that is Bound and its volume.
fn of_claim(objects: &Objects, name: &str, claim: &Value) -> Option<Place> {
    const BOUND: &str = "pv.kubernetes.io/bind-completed";
    let volume_name = claim["spec"]["volumeName"].as_str()?;
    let volume = objects.get("persistentvolumes", volume_name).filter(|volume| !is_terminating(volume))?;
    let mut namers = objects.all("persistentvolumeclaims");
    if namers.any(|(other, claim)| other != name && claim["spec"]["volumeName"] == volume_name) {
        return None;
    }
    let reference = &volume["spec"]["claimRef"];
    let (is_bound, is_volume_bound) =
        (claim["status"]["phase"] == "Bound", volume["status"]["phase"] == "Bound");
    if reference["uid"] == uid(claim) {
        if claim["metadata"]["annotations"][BOUND].is_null() {
            return Some((What::Undone(Undo::BindCompleted), name.to_owned()));
        }
        if is_volume_bound && claim["status"]["phase"] == "Pending" {
            return Some((What::Undone(Undo::ClaimPhase), name.to_owned()));
        }
        return (is_bound && !is_volume_bound).then(|| (What::Undone(Undo::Phase), volume_name.to_owned()));
    }
    let is_cleared = reference.is_null() || reference["uid"].is_null() && refers_to_name(reference, name);
    (is_cleared && is_bound && is_volume_bound)
        .then(|| (What::Undone(Undo::ClaimRef), volume_name.to_owned()))
}

struct Seen<'a, 'b> {
    objects: &'b Objects<'a>,
    known: &'b Known<'a>,
    facts: &'b [Fact],
    at: Instant,
}

impl Seen<'_, '_> {
    /// What is wrong with the volumes of a pod on its node, that was right for it before.
    fn of_pod(&self, pod: &Value) -> Vec<Place> {
        let is_over = ["Succeeded", "Failed"].iter().any(|phase| pod["status"]["phase"] == **phase);
        let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
        let Some(object) = self.objects.get("nodes", node).filter(|node| is_managed(node)) else {
            return Vec::new();
        };
        if is_over
            || is_terminating(pod)
            || self.objects.all("csidrivers").any(|(_, it)| it["spec"]["attachRequired"] == false)
        {
            return Vec::new();
        }
        let claims = claims_of(pod).into_iter();
        claims.filter_map(|claim| self.of_claim(pod, (node, object), &claim)).collect()
    }

    fn of_claim(&self, pod: &Value, (node, object): (&str, &Value), claim: &str) -> Option<Place> {
        let claim = self.objects.get("persistentvolumeclaims", claim).filter(|claim| is_of(claim, pod))?;
        let volume_name = claim["spec"]["volumeName"].as_str()?;
        let volume = self.objects.get("persistentvolumes", volume_name)?;
        let is_bound = claim["status"]["phase"] == "Bound" && volume["spec"]["claimRef"]["uid"] == uid(claim);
        if !is_bound || is_terminating(claim) || is_terminating(volume) {
            return None;
        }
        let disk = disk_of(volume)?;
        let name = attachment_of(&disk, node)?;
        let attachment = self.objects.get("volumeattachments", &name);
        // What they are now they were when it was attached for them.
        let made = attachment.map_or_else(
            || self.known.made.get(name.as_str()),
            |attachment| self.known.born.get(uid(attachment)),
        )?;
        let is_older = |object: &Value| self.known.born.get(uid(object)).is_some_and(|born| born < made);
        if ![pod, claim, volume, object].into_iter().all(is_older)
            || self.is_elsewhere(node, &disk, volume_name)
        {
            return None;
        }
        match attachment {
            None => Some((What::Undone(Undo::Attachment), name)),
            Some(attachment) => {
                let is_attached = attachment["status"]["attached"] == true && !is_terminating(attachment);
                (is_attached && !listed(object).contains(disk.as_str()))
                    .then(|| (What::Undone(Undo::List), node.to_owned()))
            }
        }
    }

    /// Whether anything shows the disk elsewhere, or another disk under the name of the volume.
    fn is_elsewhere(&self, node: &str, disk: &str, volume: &str) -> bool {
        let mut others = self.objects.all("nodes").filter(|(name, _)| *name != node);
        let is_there = |(name, node): (&str, &Value)| {
            listed(node).contains(disk)
                || in_use(node).contains(disk)
                || attachment_of(disk, name)
                    .is_some_and(|name| self.objects.get("volumeattachments", &name).is_some())
        };
        let machine = self.objects.get("nodes", node).map_or(node, |object| machine_of(node, object));
        let mut machines = self.facts.iter().filter(|fact| fact.disk == disk && fact.machine != machine);
        let mut attachments = self.objects.all("volumeattachments");
        others.any(is_there)
            || machines.any(|fact| mounted(self.facts, disk, &fact.machine, self.at).is_some())
            || attachments.any(|(name, attachment)| {
                let on = attachment["spec"]["nodeName"].as_str().unwrap_or_default();
                attachment["spec"]["source"]["persistentVolumeName"] == volume
                    && attachment_of(disk, on).as_deref() != Some(name)
            })
    }
}
