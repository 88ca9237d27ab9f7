//! The promises of safety.md, checked against the complete history.
//!
//! In: the changes of objects from etcd ([`super::history`]) and the requests from the audit log
//! ([`super::audit`]). Out: one line per violation, with the revision. The check does not use the daemon.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    audit::{DAEMON, Entry},
    history::Change,
    promises::{
        attachments::{self, Volume},
        bindings, classes,
        requests::{self, Request},
        telling,
    },
};

/// Who writes the daemon's events.
const COMPONENTS: [&str; 4] =
    ["attachdetach-controller", "persistentvolume-controller", "ephemeral_volume", "volume_expand"];

/// The objects as of a revision, and what must be remembered of earlier ones.
#[derive(Debug, Default)]
struct World<'a> {
    objects: BTreeMap<(&'a str, &'a str), &'a Value>,
    /// Source and exclusiveness of every PersistentVolume that ever was.
    volumes: BTreeMap<&'a str, (Volume, bool)>,
    /// What each name of a PersistentVolume stood for before.
    former: BTreeMap<&'a str, Vec<Volume>>,
    /// What every node ever was, oldest first.
    nodes: BTreeMap<&'a str, Vec<&'a Value>>,
    /// UIDs of VolumeAttachments that were attached at some revision.
    ever_attached: BTreeSet<&'a str>,
    /// The classes of volume attributes that each claim and volume names, and since which revision it names these.
    class_users: BTreeMap<(&'a str, &'a str), (BTreeSet<String>, u64)>,
    /// Pods and claims that ever were: their names, and the namespaces that have one of that name.
    namespaces: BTreeMap<&'a str, BTreeSet<String>>,
    violations: Vec<String>,
}

/// A use that is younger by so many revisions may have begun after the lists that showed none (S49).
const LISTED_BEFORE: u64 = 20;

/// Checks S1–S3, S10, S18, S41 and S49 over a history that begins with an empty cluster. A change that is not `judged` is part
/// of the world in which the others are made, and not held against anybody.
pub fn check_history(changes: &[Change], judged: impl Fn(&Change) -> bool) -> Vec<String> {
    let mut world = World::default();
    for change in changes {
        world.apply(change);
        if !judged(change) {
            continue;
        }
        match change.resource.as_str() {
            "volumeattachments" => world.check_attachment(change),
            "nodes" => world.check_node(change),
            "persistentvolumeclaims" => world.check_claim(change),
            "events" => world.check_event(change),
            "volumeattributesclasses" => world.check_class(change),
            _ => {}
        }
    }
    world.violations
}

/// Checks the daemon's own requests: S7, S12, S13, S23, S34, S35 and S50.
pub fn check_requests(entries: &[Entry]) -> Vec<String> {
    let mut violations = Vec::new();
    for entry in entries.iter().filter(|entry| entry.user == DAEMON && entry.resource != "events") {
        let Entry { verb, resource, name, request: body, code, .. } = entry;
        let mut violation = |rule: &str| violations.push(format!("{rule}: {verb} {resource} {name} {body}"));
        // Quotas and policies refuse with the same code.
        let is_of_roles = |message: &str| message.is_empty() || message.contains(" cannot ");
        if *code == 403 && is_of_roles(entry.response["message"].as_str().unwrap_or_default()) {
            violation("the daemon's role does not allow what it asks for");
        }
        // The head of a write whose body was kept back: it says nothing, and changes nothing.
        if ["create", "patch", "delete"].contains(&verb.as_str()) && body.is_null() && *code >= 400 {
            continue;
        }
        for rule in requests::broken(Request { verb, resource, body }) {
            violation(rule);
        }
    }
    violations
}

impl<'a> World<'a> {
    fn all(&self, resource: &str) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |((kind, _), _)| *kind == resource).map(|(_, object)| *object)
    }

    fn violate(&mut self, change: &Change, broken: impl IntoIterator<Item = String>) {
        let Change { name, revision, .. } = change;
        self.violations
            .extend(broken.into_iter().map(|rule| format!("{rule}: {name} at revision {revision}")));
    }

    fn apply(&mut self, change: &'a Change) {
        let key = (change.resource.as_str(), change.name.as_str());
        let Some(after) = &change.after else {
            self.objects.remove(&key);
            self.class_users.remove(&key);
            return;
        };
        if let "persistentvolumes" | "persistentvolumeclaims" = key.0 {
            let names = classes::named(after);
            if self.class_users.get(&key).is_none_or(|(before, _)| *before != names) {
                self.class_users.insert(key, (names, change.revision));
            }
        }
        self.objects.insert(key, after);
        match key {
            ("persistentvolumes", name) => {
                let now = Volume::of(after);
                let is_other = |(before, _): &(Volume, bool)| *before != now.0;
                let before = self.volumes.insert(name, now.clone()).filter(is_other);
                self.former.entry(name).or_default().extend(before.map(|(before, _)| before));
            }
            ("nodes", name) => self.nodes.entry(name).or_default().push(after),
            ("pods" | "persistentvolumeclaims", name) => {
                if let Some((namespace, name)) = name.split_once('/') {
                    self.namespaces.entry(name).or_default().insert(namespace.to_owned());
                }
            }
            ("volumeattachments", _) if after["status"]["attached"] == true => {
                self.ever_attached.extend(after["metadata"]["uid"].as_str());
            }
            _ => {}
        }
    }

    fn check_attachment(&mut self, change: &Change) {
        let volume_of = |name: &str| self.volumes.get(name);
        // One that is there already is not made by a change of it.
        if let (None, Some(after)) = (&change.before, &change.after)
            && let Some(nodes) = attachments::spread(after, self.all("volumeattachments"), volume_of)
        {
            self.violate(change, [format!("S1 an exclusive volume is on {nodes:?}")]);
        }
        let is_going = |object: &Option<Value>| object.as_ref().is_none_or(attachments::is_terminating);
        if let Some(before) = &change.before
            && is_going(&change.after)
            && !attachments::is_terminating(before)
        {
            let broken = self.deleted_early(before);
            self.violate(change, broken);
        }
    }

    /// S2 and S3, at the revision at which a VolumeAttachment's deletion began. Of a node that is not Ready S3 is not asked:
    /// no record of etcd tells how long force has been due (S4).
    fn deleted_early(&self, attachment: &Value) -> Option<String> {
        let source = attachment["spec"]["source"]["persistentVolumeName"].as_str()?;
        // One of a PersistentVolume that was made anew with another handle tells by its name which one it is of.
        let is_its = |volume: &&Volume| {
            matches!(volume, Volume::Csi(..)) && attachments::misnamed(attachment, volume).is_none()
        };
        let now = &self.volumes.get(source)?.0;
        let former = self.former.get(source).into_iter().flatten();
        let volume = [now].into_iter().chain(former).find(is_its).unwrap_or(now).unique_name()?;
        let node = attachment["spec"]["nodeName"].as_str()?;
        // A node that is gone lists nothing.
        self.objects.get(&("nodes", node))?;
        attachments::deleted_early(&volume, self.nodes.get(node)?, attachments::is_unready)
    }

    fn check_node(&mut self, change: &Change) {
        let Some(now) = &change.after else { return };
        let attachment_of = |name: &str| {
            let attachment = *self.objects.get(&("volumeattachments", name))?;
            let uid = attachment["metadata"]["uid"].as_str().unwrap_or_default();
            Some((attachment, self.ever_attached.contains(uid)))
        };
        let broken = attachments::listed_falsely(&change.name, change.before.as_ref(), now, attachment_of);
        self.violate(change, broken);
    }

    fn check_event(&mut self, change: &Change) {
        let Some(after) = &change.after else { return };
        let Some((namespace, _)) = change.name.split_once('/') else { return };
        if !COMPONENTS.contains(&after["source"]["component"].as_str().unwrap_or_default()) {
            return;
        }
        let message = after["message"].as_str().unwrap_or_default();
        let foreign = telling::foreign_name(message, namespace, |name| self.namespaces.get(name));
        let broken = foreign.map(|name| format!("S41 {message:?} names {name} of another namespace"));
        self.violate(change, broken);
    }

    fn check_class(&mut self, change: &Change) {
        let Some(before) = &change.before else { return };
        let users = self.class_users.iter().filter(|(_, (names, since))| {
            names.contains(&change.name) && since + LISTED_BEFORE <= change.revision
        });
        let users = users.map(|((_, user), _)| *user);
        let broken = classes::let_go_early(before, change.after.as_ref(), users);
        self.violate(change, broken);
    }

    fn check_claim(&mut self, change: &'a Change) {
        let pair = |claim: &'a Value| {
            let is_bound = claim["status"]["phase"] == "Bound";
            claim["spec"]["volumeName"].as_str().filter(|_| is_bound)
        };
        let named = change.after.as_ref().and_then(pair);
        let is_new = named != change.before.as_ref().and_then(pair);
        if is_new && named.is_some_and(|name| bindings::is_shared(name, self.all("persistentvolumeclaims"))) {
            self.violate(change, ["S18 a volume is bound to two claims".to_owned()]);
        }
    }
}
