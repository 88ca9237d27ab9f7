//! The promises of safety.md, checked against what really happened.
//!
//! In: the changes of objects from etcd ([`super::history`]) and the requests from the audit log
//! ([`super::audit`]). Out: one line per violation, with the revision. Nothing here asks the daemon.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    actors::attachment_name,
    audit::{DAEMON, Entry},
    history::Change,
    promises::{
        attachments::{self, Volume},
        requests::{self, Request},
    },
};

/// Who writes the daemon's events.
const COMPONENTS: [&str; 2] = ["attachdetach-controller", "persistentvolume-controller"];
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// One revision of a node's lists.
#[derive(Clone, Debug, Default)]
struct NodeLists {
    revision: u64,
    attached: BTreeSet<String>,
    in_use: BTreeSet<String>,
    is_out_of_service: bool,
}

/// The objects as of a revision, and what must be remembered of earlier ones.
#[derive(Debug, Default)]
struct World {
    objects: BTreeMap<(String, String), Value>,
    /// CSI source and exclusiveness of every PersistentVolume that ever was.
    volumes: BTreeMap<String, (Volume, bool)>,
    nodes: BTreeMap<String, Vec<NodeLists>>,
    /// UIDs of VolumeAttachments that were attached at some revision.
    ever_attached: BTreeSet<String>,
    /// Pods and claims that ever were: their names, and the namespaces that have one of that name.
    namespaces: BTreeMap<String, BTreeSet<String>>,
    violations: Vec<String>,
}

/// Checks S1–S3, S10, S18 and S41 over a history that begins with an empty cluster.
pub fn check_history(changes: &[Change]) -> Vec<String> {
    let mut world = World::default();
    for change in changes {
        world.apply(change);
        match change.resource.as_str() {
            "volumeattachments" => world.check_attachment(change),
            "nodes" => world.check_node(change),
            "persistentvolumeclaims" => world.check_claim(change),
            "events" => world.check_event(change),
            _ => {}
        }
    }
    world.violations
}

/// Checks the daemon's own requests: S7, S12, S13, S23, S34 and S35.
pub fn check_requests(entries: &[Entry]) -> Vec<String> {
    let mut violations = Vec::new();
    for entry in entries.iter().filter(|entry| entry.user == DAEMON && entry.resource != "events") {
        let Entry { verb, resource, name, request: body, code, .. } = entry;
        let mut violation = |rule: &str| violations.push(format!("{rule}: {verb} {resource} {name} {body}"));
        if *code == 403 {
            violation("the daemon's role does not allow what it asks for");
        }
        // The head of a write whose body was kept back: it says nothing, and changes nothing.
        if ["patch", "delete"].contains(&verb.as_str()) && body.is_null() && *code >= 400 {
            continue;
        }
        for rule in requests::broken(Request { verb, resource, body }) {
            violation(rule);
        }
    }
    violations
}

fn strings(list: &Value, text: impl Fn(&Value) -> &Value) -> BTreeSet<String> {
    list.as_array().into_iter().flatten().filter_map(|item| text(item).as_str().map(str::to_owned)).collect()
}

fn is_terminating(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

impl World {
    fn get(&self, resource: &str, name: &str) -> Option<&Value> {
        self.objects.get(&(resource.to_owned(), name.to_owned()))
    }

    fn all<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |((kind, _), _)| kind == resource).map(|(_, object)| object)
    }

    fn violate(&mut self, change: &Change, text: &str) {
        self.violations.push(format!("{text}: {} at revision {}", change.name, change.revision));
    }

    fn apply(&mut self, change: &Change) {
        let key = (change.resource.clone(), change.name.clone());
        let Some(after) = &change.after else {
            self.objects.remove(&key);
            return;
        };
        self.objects.insert(key, after.clone());
        match change.resource.as_str() {
            "persistentvolumes" => {
                self.volumes.insert(change.name.clone(), Volume::of(after));
            }
            "nodes" => {
                let status = &after["status"];
                let lists = NodeLists {
                    revision: change.revision,
                    attached: strings(&status["volumesAttached"], |volume| &volume["name"]),
                    in_use: strings(&status["volumesInUse"], |name| name),
                    is_out_of_service: strings(&after["spec"]["taints"], |taint| &taint["key"])
                        .contains(OUT_OF_SERVICE),
                };
                self.nodes.entry(change.name.clone()).or_default().push(lists);
            }
            "pods" | "persistentvolumeclaims" => {
                if let Some((namespace, name)) = change.name.split_once('/') {
                    self.namespaces.entry(name.to_owned()).or_default().insert(namespace.to_owned());
                }
            }
            "volumeattachments" if after["status"]["attached"] == true => {
                self.ever_attached.extend(after["metadata"]["uid"].as_str().map(str::to_owned));
            }
            _ => {}
        }
    }

    /// The volume that a VolumeAttachment is about, and whether it is exclusive.
    fn volume_of(&self, attachment: &Value) -> Option<&(Volume, bool)> {
        self.volumes.get(attachment["spec"]["source"]["persistentVolumeName"].as_str()?)
    }

    fn check_attachment(&mut self, change: &Change) {
        if let Some(after) = &change.after {
            self.check_exclusive(change, after);
        }
        let was_terminating = change.before.as_ref().is_none_or(is_terminating);
        let is_terminating = change.after.as_ref().is_none_or(is_terminating);
        if is_terminating
            && !was_terminating
            && let Some(before) = &change.before
        {
            self.check_deletion(change, before);
        }
    }

    fn check_exclusive(&mut self, change: &Change, attachment: &Value) {
        let volume_of = |name: &str| self.volumes.get(name);
        if let Some(nodes) = attachments::spread(attachment, self.all("volumeattachments"), volume_of) {
            let text = format!("S1 an exclusive volume is on {nodes:?}");
            self.violate(change, &text);
        }
    }

    /// S2 and S3, at the revision at which a VolumeAttachment's deletion began.
    fn check_deletion(&mut self, change: &Change, attachment: &Value) {
        let Some((volume, _)) = self.volume_of(attachment) else { return };
        let Some(name) = volume.unique_name() else { return };
        let node = attachment["spec"]["nodeName"].as_str().unwrap_or_default();
        if self.get("nodes", node).is_none() {
            return;
        }
        let Some(lists) = self.nodes.get(node) else { return };
        let Some(now) = lists.last() else { return };
        if now.attached.contains(&name) {
            let text = format!("S2 deleted while {node} lists {name} as attached");
            self.violate(change, &text);
            return;
        }
        // From the revision that took it from the list on, or from the beginning if it never was there.
        let listed = lists.iter().rposition(|lists| lists.attached.contains(&name));
        let since = listed.map_or(0, |position| position + 1);
        let unused = lists[since..].iter().any(|lists| !lists.in_use.contains(&name));
        if !unused && !now.is_out_of_service {
            let text =
                format!("S3 deleted although {node} reports {name} in use since revision {}", now.revision);
            self.violate(change, &text);
        }
    }

    /// S2: what is being deleted is not listed again. S10: what is listed was attached.
    fn check_node(&mut self, change: &Change) {
        let Some(lists) = self.nodes.get(&change.name) else { return };
        let Some(now) = lists.last().filter(|_| change.after.is_some()) else { return };
        let before = lists.iter().rev().nth(1);
        let mut found = Vec::new();
        for name in &now.attached {
            if before.is_some_and(|before| before.attached.contains(name)) {
                continue;
            }
            let Some(Volume::Csi(driver, handle)) = Volume::parse(name) else { continue };
            let attachment = attachment_name(&handle, &driver, &change.name);
            match self.get("volumeattachments", &attachment) {
                None => found.push(format!("S10 lists {name}, which has no VolumeAttachment")),
                Some(attachment) if is_terminating(attachment) => {
                    found.push(format!("S2 lists {name} again, whose VolumeAttachment is being deleted"));
                }
                Some(attachment) => {
                    let uid = attachment["metadata"]["uid"].as_str().unwrap_or_default();
                    if !self.ever_attached.contains(uid) {
                        found.push(format!("S10 lists {name}, which is not attached"));
                    }
                }
            }
        }
        for text in found {
            self.violate(change, &text);
        }
    }

    /// S41: what is told in one namespace names no pod and no claim of another.
    fn check_event(&mut self, change: &Change) {
        let Some(after) = &change.after else { return };
        let Some((namespace, _)) = change.name.split_once('/') else { return };
        if !COMPONENTS.contains(&after["source"]["component"].as_str().unwrap_or_default()) {
            return;
        }
        let message = after["message"].as_str().unwrap_or_default();
        let words = message.split(|c: char| !(c.is_ascii_alphanumeric() || "-.".contains(c)));
        let mut words = words.map(|word| word.trim_end_matches('.'));
        let is_foreign = |word: &&str| {
            self.namespaces.get(*word).is_some_and(|namespaces| !namespaces.contains(namespace))
        };
        if let Some(word) = words.find(is_foreign) {
            let text = format!("S41 {message:?} names {word} of another namespace");
            self.violate(change, &text);
        }
    }

    /// S18: of the claims that are Bound, one names a volume.
    fn check_claim(&mut self, change: &Change) {
        let Some(after) = &change.after else { return };
        let name = &after["spec"]["volumeName"];
        let claims = self.all("persistentvolumeclaims").filter(|claim| claim["status"]["phase"] == "Bound");
        if name.is_string() && claims.filter(|claim| claim["spec"]["volumeName"] == *name).count() > 1 {
            self.violate(change, "S18 a volume is bound to two claims");
        }
    }
}
