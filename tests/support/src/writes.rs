//! What the daemon itself may write to volumes and claims (safety.md, S19, S25 to S34), checked against what each
//! of its writes really changed.
//!
//! In: the changes of objects from etcd ([`super::history`]), and which of them the audit log says are the daemon's
//! ([`super::audit`]). Out: one line per violation, with the revision. Nothing here asks the daemon.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{
    audit::{DAEMON, Entry},
    history::Change,
};

const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const DEFAULT_CLASS: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
const FINALIZERS: [&str; 2] =
    ["kubernetes.io/pv-controller", "external-provisioner.volume.kubernetes.io/finalizer"];

/// What of a volume is the binder's, and what the server adds to it.
const OF_VOLUME: [&str; 9] = [
    "/metadata/resourceVersion",
    "/metadata/managedFields",
    "/metadata/finalizers",
    "/metadata/annotations/pv.kubernetes.io/bound-by-controller",
    "/metadata/annotations/pv.kubernetes.io/migrated-to",
    "/spec/claimRef",
    "/status/phase",
    "/status/message",
    "/status/lastPhaseTransitionTime",
];

/// The same of a claim.
const OF_CLAIM: [&str; 14] = [
    "/metadata/resourceVersion",
    "/metadata/managedFields",
    "/metadata/annotations/pv.kubernetes.io/bind-completed",
    "/metadata/annotations/pv.kubernetes.io/bound-by-controller",
    "/metadata/annotations/pv.kubernetes.io/migrated-to",
    "/metadata/annotations/volume.kubernetes.io/selected-node",
    "/metadata/annotations/volume.kubernetes.io/storage-provisioner",
    "/metadata/annotations/volume.beta.kubernetes.io/storage-provisioner",
    "/spec/volumeName",
    "/spec/storageClassName",
    "/status/phase",
    "/status/accessModes",
    "/status/capacity",
    "/status/currentVolumeAttributesClassName",
];

/// Revisions of the writes to volumes and claims that are the daemon's.
pub fn by_daemon(entries: &[Entry]) -> BTreeSet<u64> {
    let kinds = ["persistentvolumes", "persistentvolumeclaims"];
    let is_ours = |entry: &&Entry| {
        let resource = entry.resource.trim_end_matches("/status");
        // What changes nothing is answered with the revision of the last change, whoever made it.
        let changes =
            entry.request["metadata"]["resourceVersion"] != entry.response["metadata"]["resourceVersion"];
        let patches = entry.user == DAEMON && entry.verb == "patch" && entry.code < 300;
        patches && changes && kinds.contains(&resource)
    };
    entries.iter().filter(is_ours).filter_map(Entry::revision).collect()
}

/// Checks the writes of these revisions, over a history that begins with an empty cluster.
pub fn check(changes: &[Change], ours: &BTreeSet<u64>) -> Vec<String> {
    let mut objects: BTreeMap<(&str, &str), &Value> = BTreeMap::new();
    let mut violations = Vec::new();
    for change in changes {
        if let (Some(before), Some(after)) = (&change.before, &change.after)
            && ours.contains(&change.revision)
        {
            let write = Write { objects: &objects, change, before, after };
            for rule in write.violations() {
                violations
                    .push(format!("{rule}: {} {} at {}", change.resource, change.name, change.revision));
            }
        }
        let key = (change.resource.as_str(), change.name.as_str());
        match &change.after {
            Some(after) => objects.insert(key, after),
            None => objects.remove(&key),
        };
    }
    violations
}

/// One write of the daemon, and the objects as they were.
struct Write<'a> {
    objects: &'a BTreeMap<(&'a str, &'a str), &'a Value>,
    change: &'a Change,
    before: &'a Value,
    after: &'a Value,
}

impl Write<'_> {
    fn violations(&self) -> Vec<String> {
        let (rules, allowed) = match self.change.resource.as_str() {
            "persistentvolumes" => (self.of_volume(), &OF_VOLUME[..]),
            "persistentvolumeclaims" => (self.of_claim(), &OF_CLAIM[..]),
            _ => return Vec::new(),
        };
        let mut rules: Vec<String> = rules.into_iter().map(str::to_owned).collect();
        let mut changed = Vec::new();
        differences("", self.before, self.after, &mut changed);
        let is_allowed = |pointer: &&String| allowed.iter().any(|allowed| pointer.starts_with(allowed));
        for pointer in changed.iter().filter(|pointer| !is_allowed(pointer)) {
            rules.push(format!("S34 {pointer} is not the daemon's to write"));
        }
        rules
    }

    fn both(&self, pointer: &str) -> (&str, &str) {
        (text(self.before, pointer), text(self.after, pointer))
    }

    fn of_volume(&self) -> Vec<&'static str> {
        let mut rules = Vec::new();
        let mut must = |holds: bool, rule| {
            if !holds {
                rules.push(rule);
            }
        };
        let (held, holds) = self.both("/spec/claimRef/uid");
        let (was, is) = self.both("/status/phase");
        let parked = |volume: &Value| matches!(text(volume, "/status/phase"), "Released" | "Failed");
        if held != holds && !holds.is_empty() {
            let is_second = self.objects.iter().any(|((kind, name), other)| {
                let other_volume = *kind == "persistentvolumes" && *name != self.change.name;
                other_volume && text(other, "/spec/claimRef/uid") == holds && !parked(other)
            });
            must(!is_second, "S19 a claim gets a second volume");
            must(held.is_empty(), "S23 a volume is taken from one claim and given to another");
            must(self.suits(holds), "S27 a volume that is not free, or of another class, is taken");
        }
        let recycled = text(self.before, "/spec/persistentVolumeReclaimPolicy") == "Recycle";
        let freed = held != holds && holds.is_empty() && parked(self.before);
        must(!freed || recycled, "S25 a volume that is kept is freed");
        let offered = was != is && is == "Available";
        must(!offered || holds.is_empty(), "S25 a volume of a claim becomes Available");
        let cleared = !self.before["spec"]["claimRef"].is_null() && self.after["spec"]["claimRef"].is_null();
        let marked = annotation(self.before, BOUND_BY_CONTROLLER).is_some();
        must(!cleared || marked, "S26 a user's reservation is removed");
        let failed = was != is && is == "Failed";
        must(!failed || self.after["spec"]["csi"].is_null(), "S32 a volume of a driver becomes Failed");
        let kept = others_finalizers(self.before) == others_finalizers(self.after);
        must(kept, "S33 a finalizer of others changes");
        rules
    }

    /// Whether a volume suits the claim that gets it; one that the volume or the claim named itself need not.
    fn suits(&self, claim: &str) -> bool {
        let mut claims = self.objects.iter().filter(|((kind, _), _)| *kind == "persistentvolumeclaims");
        let claim = claims.find(|(_, found)| text(found, "/metadata/uid") == claim);
        let named = |claim: &Value| !text(claim, "/spec/volumeName").is_empty();
        let reserved = !self.before["spec"]["claimRef"].is_null();
        let is_free = text(self.before, "/status/phase") == "Available"
            && self.before["metadata"]["deletionTimestamp"].is_null();
        claim.is_none_or(|(_, claim)| {
            reserved || named(claim) || (is_free && class_of(claim) == class_of(self.before))
        })
    }

    fn of_claim(&self) -> Vec<&'static str> {
        let mut rules = Vec::new();
        let mut must = |holds: bool, rule| {
            if !holds {
                rules.push(rule);
            }
        };
        let class = |name: &str| self.objects.get(&("storageclasses", name)).copied();
        let (asked, asks) = (annotation(self.before, PROVISIONER), annotation(self.after, PROVISIONER));
        if asked != asks {
            let first = asked.is_none_or(|asked| asked.starts_with("kubernetes.io/"));
            must(first, "S29 a claim is handed from one provisioner to another");
            let class = class(class_of(self.after));
            let delayed =
                class.is_some_and(|class| text(class, "/volumeBindingMode") == "WaitForFirstConsumer");
            let selected = annotation(self.after, SELECTED_NODE).is_some();
            must(selected || !delayed, "S28 a provisioner is asked before a node is selected");
        }
        let (had, has) = (&self.before["spec"]["storageClassName"], &self.after["spec"]["storageClassName"]);
        if had != has {
            let is_default =
                |class: &Value| DEFAULT_CLASS.iter().any(|key| annotation(class, key) == Some("true"));
            let class = class(has.as_str().unwrap_or_default());
            let right = had.is_null() && class.is_some_and(is_default);
            must(right, "S30 a claim gets a class that is not the default, or a second one");
        }
        let (was, is) = self.both("/status/phase");
        let same = self.before["status"]["capacity"] == self.after["status"]["capacity"];
        must(was != is || same, "S31 the capacity of a claim changes without its phase");
        rules
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][key].as_str()
}

fn class_of(object: &Value) -> &str {
    annotation(object, "volume.beta.kubernetes.io/storage-class")
        .unwrap_or_else(|| text(object, "/spec/storageClassName"))
}

fn others_finalizers(object: &Value) -> Vec<&str> {
    let all = object["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str);
    all.filter(|name| !FINALIZERS.contains(name)).collect()
}

/// Where two objects differ, as paths; keys with slashes are not escaped.
fn differences(at: &str, before: &Value, after: &Value, found: &mut Vec<String>) {
    let none = Map::new();
    let (one, other) = match (before, after) {
        (Value::Object(one), Value::Object(other)) => (one, other),
        (Value::Object(one), Value::Null) => (one, &none),
        (Value::Null, Value::Object(other)) => (&none, other),
        _ => {
            if before != after {
                found.push(at.to_owned());
            }
            return;
        }
    };
    let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    for key in keys {
        let side = |side: &Map<String, Value>| side.get(key).cloned().unwrap_or_default();
        differences(&format!("{at}/{key}"), &side(one), &side(other), found);
    }
}
