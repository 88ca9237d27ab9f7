//! How long what could be done was not done: unavailability, from etcd's history alone.
//!
//! In: changes with the time at which they were seen. Out: one wait for each attach, detach and bind, from the moment at which
//! nothing stood against it until it was done. What becomes unwanted before is no wait.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use test_support::promises::attachments::{self, Volume};

use crate::record::Seen;

/// A Node that was made anew is new for a minute, and for what it takes to be Ready.
const NEW_NODE: i64 = 75_000;

/// What was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A pod has a node, its claim is bound, and no other node has the volume; until the VolumeAttachment is there.
    Attach,
    /// No pod of the node needs the volume, and the kubelet reports it no longer; until the VolumeAttachment is being deleted.
    Detach,
    /// A volume names the claim; until the claim is Bound.
    Bind,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Attach, Self::Detach, Self::Bind];
}

/// One wait, in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    pub kind: Kind,
    pub what: String,
    pub from: i64,
    pub to: i64,
    /// Whether the Node was just made anew, or is younger than the attachment that is to go: what it reports proves little at
    /// first, and each leader of mooring waits until it has known such a Node to be Ready for a minute.
    pub on_new_node: bool,
}

/// A kind, and the volume and node, or the claim.
type Key = (Kind, String);

/// All waits that ended, and those that had not at the end.
pub fn waits(seen: &[Seen]) -> (Vec<Wait>, Vec<Wait>) {
    let mut world = World::default();
    let mut since: BTreeMap<Key, i64> = BTreeMap::new();
    let mut new_nodes = NewNodes::default();
    let mut ended = Vec::new();
    let wait = |(kind, what): &Key, from: i64, to: i64, new_nodes: &NewNodes| {
        let on_new_node = *kind == Kind::Detach && new_nodes.holds(what, from);
        Wait { kind: *kind, what: what.clone(), from, to, on_new_node }
    };
    for Seen { at, change } in seen {
        world.apply(&change.resource, &change.name, change.after.as_ref());
        match (change.resource.as_str(), &change.after) {
            ("nodes", None) => {
                new_nodes.gone.insert(change.name.clone());
                new_nodes.older.extend(world.attached_to(&change.name));
            }
            ("nodes", Some(_)) if new_nodes.gone.remove(&change.name) => {
                new_nodes.made.insert(change.name.clone(), *at);
            }
            ("volumeattachments", None) => _ = new_nodes.older.remove(&place(change.before.as_ref())),
            _ => {}
        }
        let (could, done) = world.open();
        since.retain(|key, from| {
            if done.contains(key) {
                ended.push(wait(key, *from, *at, &new_nodes));
            }
            could.contains(key)
        });
        for key in could {
            since.entry(key).or_insert(*at);
        }
    }
    let last = seen.last().map_or(0, |seen| seen.at);
    let open = since.iter().map(|(key, from)| wait(key, *from, last, &new_nodes));
    (ended, open.collect())
}

/// Nodes that were made anew.
#[derive(Debug, Default)]
struct NewNodes {
    /// Those that are not there now.
    gone: BTreeSet<String>,
    /// When each was made anew for the last time.
    made: BTreeMap<String, i64>,
    /// Attachments that are older than their Node.
    older: BTreeSet<String>,
}

impl NewNodes {
    /// Whether that may hold up a detach that begins to wait.
    fn holds(&self, place: &str, from: i64) -> bool {
        let node = place.split_once(' ').map_or("", |(_, node)| node);
        self.older.contains(place) || self.made.get(node).is_some_and(|made| from - made < NEW_NODE)
    }
}

/// The objects by resource and name.
#[derive(Debug, Default)]
struct World<'a>(BTreeMap<&'a str, BTreeMap<&'a str, &'a Value>>);

impl<'a> World<'a> {
    fn apply(&mut self, resource: &'a str, name: &'a str, after: Option<&'a Value>) {
        let of_kind = self.0.entry(resource).or_default();
        match after {
            Some(after) => of_kind.insert(name, after),
            None => of_kind.remove(name),
        };
    }

    fn all(&self, resource: &str) -> impl Iterator<Item = (&'a str, &'a Value)> {
        self.0.get(resource).into_iter().flatten().map(|(name, object)| (*name, *object))
    }

    fn get(&self, resource: &str, name: &str) -> Option<&'a Value> {
        self.0.get(resource)?.get(name).copied()
    }

    /// The attachments of a node.
    fn attached_to(&self, node: &str) -> impl Iterator<Item = String> {
        let all = self.all("volumeattachments").filter(move |(_, it)| it["spec"]["nodeName"] == node);
        all.map(|(_, attachment)| place(Some(attachment)))
    }

    /// What could be done now, and what is done.
    fn open(&self) -> (BTreeSet<Key>, BTreeSet<Key>) {
        let (mut could, mut done) = (BTreeSet::new(), BTreeSet::new());
        let mut attached: BTreeMap<&str, Vec<(&str, &Value)>> = BTreeMap::new();
        for (_, attachment) in self.all("volumeattachments") {
            let source = attachment["spec"]["source"]["persistentVolumeName"].as_str().unwrap_or_default();
            let node = attachment["spec"]["nodeName"].as_str().unwrap_or_default();
            attached.entry(source).or_default().push((node, attachment));
        }
        let wanted = self.wanted();
        for (volume, node) in &wanted {
            let Some(object) = self.get("persistentvolumes", volume) else { continue };
            let here = attached.get(*volume).into_iter().flatten();
            let key = (Kind::Attach, format!("{volume} {node}"));
            if here.clone().any(|(on, attachment)| on == node && !attachments::is_terminating(attachment)) {
                done.insert(key);
            } else if self.is_free(object, node, here.map(|(on, _)| *on))
                && !attachments::is_terminating(object)
            {
                could.insert(key);
            }
        }
        for (volume, here) in &attached {
            let unique =
                self.get("persistentvolumes", volume).and_then(|object| Volume::of(object).0.unique_name());
            for (node, attachment) in here {
                let key = (Kind::Detach, format!("{volume} {node}"));
                if attachments::is_terminating(attachment) {
                    done.insert(key);
                } else if !wanted.contains(&(*volume, *node))
                    && let Some(unique) = &unique
                    // Of a node that is gone or not Ready, waiting for minutes is the law.
                    && let Some(node) = self.get("nodes", node)
                    && !attachments::is_unready(node)
                    && !reports(node, unique)
                {
                    could.insert(key);
                }
            }
        }
        for (name, claim) in self.all("persistentvolumeclaims") {
            let key = (Kind::Bind, name.to_owned());
            if claim["status"]["phase"] == "Bound" {
                done.insert(key);
            } else if !attachments::is_terminating(claim)
                && self.all("persistentvolumes").any(|(_, volume)| {
                    volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
                        && !attachments::is_terminating(volume)
                })
            {
                could.insert(key);
            }
        }
        (could, done)
    }

    /// The volumes that pods need, with their nodes.
    fn wanted(&self) -> BTreeSet<(&'a str, &'a str)> {
        let mut wanted = BTreeSet::new();
        for (key, pod) in self.all("pods") {
            let phase = pod["status"]["phase"].as_str().unwrap_or_default();
            let Some(node) = pod["spec"]["nodeName"].as_str() else { continue };
            if matches!(phase, "Succeeded" | "Failed") {
                continue;
            }
            for source in pod["spec"]["volumes"].as_array().into_iter().flatten() {
                let name = match source["persistentVolumeClaim"]["claimName"].as_str() {
                    Some(claim) => claim.to_owned(),
                    None if source["ephemeral"].is_object() => {
                        let (pod, volume) = (&pod["metadata"]["name"], &source["name"]);
                        format!(
                            "{}-{}",
                            pod.as_str().unwrap_or_default(),
                            volume.as_str().unwrap_or_default()
                        )
                    }
                    None => continue,
                };
                let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
                let claim = self.get("persistentvolumeclaims", &format!("{namespace}/{name}"));
                if let Some(claim) = claim
                    && claim["status"]["phase"] == "Bound"
                    && let Some(volume) = claim["spec"]["volumeName"].as_str()
                {
                    wanted.insert((volume, node));
                }
            }
        }
        wanted
    }

    /// Whether a volume may go to a node: the node is there, and no other has the volume or reports it, if it is exclusive.
    fn is_free<'b>(&self, volume: &Value, node: &str, mut on: impl Iterator<Item = &'b str>) -> bool {
        let (disk, exclusive) = Volume::of(volume);
        let unique = disk.unique_name().unwrap_or_default();
        let reported = || self.all("nodes").any(|(name, object)| name != node && reports(object, &unique));
        // Also its own attachment that is being deleted has to be gone first.
        on.all(|other| !exclusive && other != node)
            && self.get("nodes", node).is_some()
            && (!exclusive || !reported())
    }
}

/// An attachment's volume and node, as a key has them.
fn place(attachment: Option<&Value>) -> String {
    let spec = attachment.map(|attachment| &attachment["spec"]);
    let text = |of: Option<&Value>| of.and_then(Value::as_str).unwrap_or_default().to_owned();
    let volume = spec.map(|spec| &spec["source"]["persistentVolumeName"]);
    format!("{} {}", text(volume), text(spec.map(|spec| &spec["nodeName"])))
}

fn reports(node: &Value, unique: &str) -> bool {
    attachments::uses(node, unique)
}

/// The value below which this share of sorted numbers lies.
pub fn quantile(sorted: &[i64], share: f64) -> Option<i64> {
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let rank = ((sorted.len() as f64) * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use test_support::history::Change;

    use super::*;

    const UNIQUE: &str = "kubernetes.io/csi/driver^d";

    fn seen(at: i64, resource: &str, name: &str, after: Value) -> Seen {
        let after = Some(after).filter(|after| !after.is_null());
        let (resource, name) = (resource.to_owned(), name.to_owned());
        Seen { at, change: Change { revision: 1, resource, name, before: None, after } }
    }

    fn node(at: i64, name: &str, in_use: &[&str]) -> Seen {
        let ready = json!([{ "type": "Ready", "status": "True" }]);
        seen(
            at,
            "nodes",
            name,
            json!({ "metadata": { "name": name }, "status": { "conditions": ready, "volumesInUse": in_use } }),
        )
    }

    fn pod(at: i64, name: &str, node: &str) -> Seen {
        let volumes = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": "c" } }]);
        let spec = json!({ "nodeName": node, "volumes": volumes });
        seen(at, "pods", &format!("default/{name}"), json!({ "metadata": { "name": name }, "spec": spec }))
    }

    fn attachment(at: i64, node: &str, terminating: bool) -> Seen {
        let mut object = json!({ "metadata": {}, "spec": { "nodeName": node, "source": { "persistentVolumeName": "pv" } } });
        if terminating {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        seen(at, "volumeattachments", &format!("of-{node}"), object)
    }

    #[test]
    fn a_wait_lasts_from_when_it_could_be_done_until_it_is() {
        let claim = |at, phase: &str| {
            seen(
                at,
                "persistentvolumeclaims",
                "default/c",
                json!({
                    "metadata": { "uid": "u" }, "spec": { "volumeName": "pv" }, "status": { "phase": phase },
                }),
            )
        };
        let volume = seen(
            2,
            "persistentvolumes",
            "pv",
            json!({
                "metadata": { "name": "pv" },
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "claimRef": { "uid": "u" },
                    "csi": { "driver": "driver", "volumeHandle": "d" },
                },
            }),
        );
        let gone = |at, resource: &str, name: &str| seen(at, resource, name, Value::Null);
        let history = [
            claim(1, "Pending"),
            volume,
            claim(5, "Bound"),
            node(6, "a", &[]),
            node(7, "b", &[]),
            pod(10, "p", "a"),
            attachment(14, "a", false),
            node(15, "a", &[UNIQUE]),
            // Another node has it, and then only its kubelet reports it.
            pod(20, "q", "b"),
            gone(30, "pods", "default/p"),
            node(40, "a", &[]),
            attachment(43, "a", true),
            gone(50, "volumeattachments", "of-a"),
            attachment(57, "b", false),
            // Unwanted before it was done.
            gone(60, "pods", "default/q"),
            pod(61, "q", "b"),
        ];
        let (ended, open) = waits(&history);
        let told: Vec<(Kind, i64, i64)> = ended.iter().map(|wait| (wait.kind, wait.from, wait.to)).collect();
        assert_eq!(
            told,
            [(Kind::Bind, 2, 5), (Kind::Attach, 10, 14), (Kind::Detach, 40, 43), (Kind::Attach, 50, 57),]
        );
        assert_eq!(open, []);
    }

    #[test]
    fn quantiles_are_of_what_is_there() {
        let numbers: Vec<i64> = (1..=100).collect();
        assert_eq!(
            [quantile(&numbers, 0.5), quantile(&numbers, 0.99), quantile(&numbers, 1.0)],
            [Some(50), Some(99), Some(100)]
        );
        assert_eq!(quantile(&[], 0.5), None);
    }
}
