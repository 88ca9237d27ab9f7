//! What the laws need to know of the time before an act, which the world right before it does not show. Pure.
//!
//! In: acts and ends of pods, in the order of revisions. Out: which volumes were idle when they came off the list of their
//! node, since when no pod needs a volume on a node, and what the Node before one that was made anew reported in use.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use apiserver::{
    ids::NodeName,
    kinds::{Narrow as _, Node, NodeInfo, Pod},
    tables::Objects,
};
use k8s_openapi::jiff::Timestamp;

use super::{
    holders::volumes_of,
    mutation::{Mutation, MutationKind},
};
use crate::attach_detach::state::actual::is_another_boot;

/// How long a volume must not have been needed on a node before it is taken off by force; a little less, as watches are late.
const FORCE_AFTER: Duration = Duration::from_secs(6 * 60 - 15);

/// For how long the empty report of a Node that was made anew says nothing: its kubelet has to fill it first.
const REPORTS_AFTER: Duration = Duration::from_mins(1);

/// How old the report of a use must be before it counts against who takes the volume off: what was decided before it may land after it.
const USE_SEEN_AFTER: Duration = Duration::from_secs(10);

/// A volume on a node.
type OnNode = (NodeName, String);

/// What the Nodes of a name before this one reported in use, when the last of them went or this one came, and on which machine.
type Former = (BTreeSet<String>, Timestamp, NodeInfo);

/// What was before.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    idle: BTreeMap<OnNode, Timestamp>,
    unneeded: BTreeMap<OnNode, Timestamp>,
    former: BTreeMap<NodeName, Former>,
    begun: BTreeMap<OnNode, Timestamp>,
}

impl Earlier {
    /// An act was made in this world.
    pub(super) fn act(&mut self, world: &Objects, act: &Mutation, now: Timestamp) {
        let Some(node) = &act.node else { return };
        let is_idle = |node| world.nodes.get(node).is_some_and(|it| !it.uses(&act.value));
        let on_node = (node.clone(), act.value.clone());
        match act.kind {
            MutationKind::Unlist if is_idle(node) => {
                self.idle.retain(|_, since| is_recent(*since, now));
                self.idle.insert(on_node, now);
            }
            MutationKind::List | MutationKind::Unlist => {
                self.idle.remove(&on_node);
            }
            _ => {}
        }
    }

    /// A Node becomes this, or goes, or comes. What a kubelet reports itself is no longer of the Node before.
    pub(super) fn node(&mut self, was: Option<&Node>, is: Option<&Node>, now: Timestamp) {
        let uid = |node: Option<&Node>| node.map(|node| node.metadata.uid.clone());
        if let Some(was) = was.filter(|_| uid(was) != uid(is)) {
            self.former.retain(|_, (_, since, _)| is_recent(*since, now));
            let (used, since, machine) = self.former.entry(was.key()).or_default();
            used.extend(was.status.volumes_in_use.iter().map(ToString::to_string));
            (*since, *machine) = (now, was.status.node_info.clone());
        }
        self.begun.retain(|_, since| is_within(USE_SEEN_AFTER, *since, now));
        if let (Some(was), Some(is)) = (was, is) {
            let begun = is.status.volumes_in_use.iter().filter(|id| !was.uses(id.as_str()));
            self.begun.extend(begun.map(|id| ((is.key(), id.to_string()), now)));
        }
        let Some((node, (used, since, machine))) =
            is.and_then(|is| Some((is, self.former.get_mut(&is.key())?)))
        else {
            return;
        };
        if was.is_none() {
            *since = now;
        }
        // What was mounted before a boot is so no more.
        let is_booted = is_another_boot(machine, &node.status.node_info);
        used.retain(|id| !is_booted && !node.uses(id));
    }

    /// Whether the Node before this one reported a volume in use, and this one had no time to report for itself.
    pub(super) fn used_by_former(&self, node: &NodeName, id: &str, now: Timestamp) -> bool {
        self.former
            .get(node)
            .is_some_and(|(used, since, _)| used.contains(id) && is_within(REPORTS_AFTER, *since, now))
    }

    /// Whether the kubelet has only just begun to report that it uses a volume.
    pub(super) fn has_just_begun(&self, node: &NodeName, id: &str, now: Timestamp) -> bool {
        let begun = self.begun.get(&(node.clone(), id.to_owned()));
        begun.is_some_and(|since| is_within(USE_SEEN_AFTER, *since, now))
    }

    /// A pod becomes this in this world, or goes.
    pub(super) fn pod(&mut self, world: &Objects, was: &Pod, is: Option<&Pod>, now: Timestamp) {
        let still = is.is_some_and(|is| is.metadata.uid == was.metadata.uid && !is.is_terminated());
        if still || !runs(was) {
            return;
        }
        self.unneeded.retain(|_, since| is_recent(*since, now));
        for (id, _) in volumes_of(world, was) {
            self.unneeded.insert((was.spec.node_name.clone(), id.to_string()), now);
        }
    }

    /// Whether a volume that is not in use now was not either when it came off the list.
    pub(super) fn was_idle(&self, node: &NodeName, id: &str) -> bool {
        self.idle.contains_key(&(node.clone(), id.to_owned()))
    }

    /// Whether a pod has needed a volume on a node within the last six minutes, as far as is known.
    pub(super) fn was_needed(&self, world: &Objects, (node, id): (&NodeName, &str), now: Timestamp) -> bool {
        let ended = self.unneeded.get(&(node.clone(), id.to_owned()));
        let mut is_needed = ended.is_some_and(|since| is_recent(*since, now));
        world.pods.for_each(|pod| {
            is_needed |= pod.spec.node_name == *node
                && runs(pod)
                && volumes_of(world, pod).iter().any(|(other, _)| other.as_str() == id);
        });
        is_needed
    }
}

/// Whether it was less than six minutes ago.
fn is_recent(since: Timestamp, now: Timestamp) -> bool {
    is_within(FORCE_AFTER, since, now)
}

fn is_within(limit: Duration, since: Timestamp, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(since)).is_ok_and(|lasted| lasted < limit)
}

fn runs(pod: &Pod) -> bool {
    !pod.spec.node_name.is_empty() && !pod.is_terminated()
}

#[cfg(test)]
mod tests {
    use apiserver::kinds::{PersistentVolume, PersistentVolumeClaim};
    use k8s_openapi::jiff::SignedDuration;
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn a_volume_is_needed_until_six_minutes_after_the_last_pod() {
        let world = Objects::default();
        let volume = json!({
            "metadata": { "name": "v1", "uid": "v1", "resourceVersion": "1" },
            "spec": { "csi": { "driver": "d", "volumeHandle": "h1" } },
        });
        world.apply::<PersistentVolume>(from_value(volume).unwrap());
        let claim = json!({
            "metadata": { "namespace": "ns", "name": "c1", "uid": "c1", "resourceVersion": "2" },
            "spec": { "volumeName": "v1" },
        });
        world.apply::<PersistentVolumeClaim>(from_value(claim).unwrap());
        let pod: Pod = from_value(json!({
            "metadata": { "namespace": "ns", "name": "p1", "uid": "p1", "resourceVersion": "3" },
            "spec": {
                "nodeName": "n1",
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "c1" } }],
            },
            "status": { "phase": "Running" },
        }))
        .unwrap();
        let (node, id, end) = ("n1".into(), "kubernetes.io/csi/d^h1", Timestamp::UNIX_EPOCH);
        let mut past = Earlier::default();
        assert!(!past.was_needed(&world, (&node, id), end), "as far as is known");
        world.apply(pod.clone());
        past.pod(&world, &pod, Some(&pod), end);
        assert!(past.was_needed(&world, (&node, id), end), "it runs");
        world.delete(pod.clone());
        past.pod(&world, &pod, None, end);
        for (minutes, expected) in [(0, true), (5, true), (6, false)] {
            let now = end + SignedDuration::from_mins(minutes);
            assert_eq!(past.was_needed(&world, (&node, id), now), expected, "{minutes}");
        }
    }
}
