//! The daemon's writes to volumes and claims, checked against the real change of each write; and the names of the
//! VolumeAttachments, and the owners of the claims, that it creates.
//!
//! In: the changes of objects from etcd ([`super::history`]), and the audit log ([`super::audit`]), which names the changes
//! of the daemon. Out: one line per violation, with the revision. The check does not use the daemon.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    audit::{DAEMON, Entry},
    history::Change,
    promises::{
        attachments::{self, Volume},
        bindings::{self, Kind, Known, Write},
        ephemeral,
    },
};

/// Revisions of the daemon's writes to volumes and claims, and of its new VolumeAttachments.
pub fn by_daemon(entries: &[Entry]) -> BTreeSet<u64> {
    let kinds = ["persistentvolumes", "persistentvolumeclaims"];
    let is_ours = |entry: &&Entry| {
        let resource = entry.resource.trim_end_matches("/status");
        // What changes nothing is answered with the revision of the last change, whoever made it.
        let changes =
            entry.request["metadata"]["resourceVersion"] != entry.response["metadata"]["resourceVersion"];
        let creates =
            entry.verb == "create" && matches!(resource, "volumeattachments" | "persistentvolumeclaims");
        let patches = entry.verb == "patch" && changes && kinds.contains(&resource);
        entry.user == DAEMON && entry.code < 300 && (creates || patches)
    };
    entries.iter().filter(is_ours).filter_map(Entry::revision).collect()
}

/// Checks the writes of these revisions, over a history that begins with an empty cluster.
pub fn check(changes: &[Change], ours: &BTreeSet<u64>) -> Vec<String> {
    let mut objects = Objects::default();
    let mut violations = Vec::new();
    // All that pods ever were.
    let mut pods: Vec<&Value> = Vec::new();
    for change in changes {
        objects.revision = change.revision;
        let kind = match change.resource.as_str() {
            "persistentvolumes" => Some(Kind::Volume),
            "persistentvolumeclaims" => Some(Kind::Claim),
            _ => None,
        };
        if let (Some(kind), Some(before), Some(after)) = (kind, &change.before, &change.after)
            && ours.contains(&change.revision)
        {
            for rule in bindings::broken(&objects, Write { kind, name: &change.name, before, after }) {
                violations
                    .push(format!("{rule}: {} {} at {}", change.resource, change.name, change.revision));
            }
        }
        if let ("volumeattachments", None, Some(after)) =
            (change.resource.as_str(), &change.before, &change.after)
            && ours.contains(&change.revision)
        {
            let source = after["spec"]["source"]["persistentVolumeName"].as_str().unwrap_or_default();
            let volume = objects.states(Kind::Volume, source);
            // One that was made anew may have had another handle when its attachment was decided on.
            let volume = match &volume[..] {
                [Some(volume)] => Some(Volume::of(volume).0),
                _ => None,
            };
            if let Some(rule) = volume.and_then(|volume| attachments::misnamed(after, &volume)) {
                violations.push(format!("{rule}: {} at {}", change.name, change.revision));
            }
        }
        if let ("persistentvolumeclaims", None, Some(after)) =
            (change.resource.as_str(), &change.before, &change.after)
            && ours.contains(&change.revision)
            && let Some(rule) = ephemeral::made_for_no_pod(after, pods.iter().copied())
        {
            violations.push(format!("{rule}: {} at {}", change.name, change.revision));
        }
        if change.resource == "pods" {
            pods.extend(&change.after);
        }
        if let (Some(Kind::Claim), Some(claim)) = (kind, &change.after)
            && claim["status"]["phase"] == "Bound"
        {
            objects.bound.extend(names_of_pair(&claim["spec"]["volumeName"], claim));
        }
        let key = (change.resource.as_str(), change.name.as_str());
        if change.after.is_none() {
            objects.gone.insert(key);
        } else if change.before.is_none() && objects.gone.contains(&key) {
            objects.made_anew.insert(key, change.revision);
        }
        let holds = |volume: &Option<Value>| {
            volume.as_ref().is_some_and(|volume| volume["spec"]["claimRef"]["uid"].is_string())
        };
        if holds(&change.after) && !holds(&change.before) && !ours.contains(&change.revision) {
            objects.given.insert(&change.name, change.revision);
        }
        match &change.after {
            Some(after) => objects.now.insert(key, after),
            None => objects.now.remove(&key),
        };
    }
    violations
}

/// So many revisions later a request may arrive that was decided on before.
const UNDER_WAY: u64 = 20;

/// So many revisions after another party has made a volume for a claim, or given it one, a writer may not have seen it.
const AT_ONCE: u64 = 4;

/// The objects as they were at a write, by resource and name. What its writer had seen is on no record.
#[derive(Default)]
struct Objects<'a> {
    now: BTreeMap<(&'a str, &'a str), &'a Value>,
    /// Those that were gone once.
    gone: BTreeSet<(&'a str, &'a str)>,
    /// At which revision they were made anew: a writer may have seen that they were gone, if it wrote soon after.
    made_anew: BTreeMap<(&'a str, &'a str), u64>,
    /// Volumes that another party made for a claim or gave it, with the revision: who gives the claim another soon after may
    /// not have seen it.
    given: BTreeMap<&'a str, u64>,
    /// Names of volumes, with the UID of each claim that was Bound to them.
    bound: BTreeSet<(&'a str, &'a str)>,
    revision: u64,
}

impl Known for Objects<'_> {
    fn all(&self, kind: Kind) -> Vec<(String, &Value)> {
        let of_kind = self.now.iter().filter(|((resource, _), _)| *resource == resource_of(kind));
        of_kind.map(|((_, name), object)| ((*name).to_owned(), *object)).collect()
    }

    fn states(&self, kind: Kind, name: &str) -> Vec<Option<&Value>> {
        let key = (resource_of(kind), name);
        let is_new = self.made_anew.get(&key).is_some_and(|made| self.revision - made <= UNDER_WAY);
        let gone = is_new.then_some(None);
        [self.now.get(&key).copied()].into_iter().chain(gone).collect()
    }

    fn reads(&self, _: Kind, _: &str) -> Option<Vec<Option<&Value>>> {
        None
    }

    fn is_new(&self, volume: &str) -> bool {
        self.given.get(volume).is_some_and(|made| self.revision - made <= AT_ONCE)
    }

    fn had(&self, volume: &Value, claim: &Value) -> bool {
        names_of_pair(&volume["metadata"]["name"], claim).is_some_and(|pair| self.bound.contains(&pair))
    }
}

/// The name of a volume, and the UID of a claim.
fn names_of_pair<'a>(volume: &'a Value, claim: &'a Value) -> Option<(&'a str, &'a str)> {
    volume.as_str().zip(claim["metadata"]["uid"].as_str())
}

fn resource_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Volume => "persistentvolumes",
        Kind::Claim => "persistentvolumeclaims",
        Kind::Class => "storageclasses",
        Kind::Driver => "csidrivers",
        Kind::Pod => "pods",
    }
}
