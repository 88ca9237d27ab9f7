//! Standby: what a replica does while another one leads, and where it begins when it leads itself.
//!
//! In: changed objects; the right to write. Out: the states as they are read from the tables then, as by a process that
//! starts. A replica that stands by holds the tables and judges nothing. Two things no table shows, and it remembers them:
//! what a CSIDriver said that is away for a moment, and when a pod was last seen to need a volume on a node that is not
//! Ready, from which on a wait for force counts (S4, S6).

use std::{collections::BTreeSet, mem};

use apiserver::{
    ids::{NodeName, PodKey},
    kinds::ObjectRef,
    tables::give_back_room,
};
use k8s_openapi::jiff::Timestamp;
use litemap::LiteMap;
use tokio::time::Instant;

use super::{
    controller::AttachDetach,
    decide::scope::Scope,
    facts::Fact,
    guard::force_waits::{Said, waits},
    state::{
        actual::NodeVolume,
        desired::{DesiredState, populator, volume_name::VolumeId},
    },
};
impl AttachDetach {
    /// Takes changed objects while another replica leads.
    pub(super) fn stand_by(&mut self, changed: BTreeSet<ObjectRef>, now: Instant) {
        let wall = self.clock.wall(now);
        // No wait is longer.
        let patience = self.options.force.unready.max(self.options.force.gone);
        let mut pods = BTreeSet::new();
        for object in changed {
            pods.extend(self.desired.dependants(&object));
            match object {
                ObjectRef::Pod(key) => drop(pods.insert(key)),
                ObjectRef::Driver(name) => self.refresh_driver(&name, now),
                ObjectRef::Node(name) => drop(self.objects.nodes.take_final_state(&name)),
                _ => {}
            }
        }
        for key in pods {
            self.watch_pod(&key, wall);
        }
        self.ended.retain(|_, ended| ended.checked_add(patience).is_ok_and(|over| wall < over));
        give_back_room(&mut self.ended);
    }

    /// Follows what a pod needs, on whatever node.
    pub(super) fn watch_pod(&mut self, key: &PodKey, wall: Timestamp) {
        let node = self.desired.pod(key).map(|desired_pod| desired_pod.node.clone());
        let pod = self.objects.pods.get(key);
        let needs = pod
            .and_then(|pod| populator::populate(&pod, &self.objects, &self.drivers, true, None, |_| false));
        let touched = self.desired.set(key, needs);
        let is_down = |name: &NodeName| self.objects.nodes.get(name).is_some_and(|node| !node.is_ready());
        let Some(node) = node.filter(is_down) else { return };
        for volume in touched.into_iter().filter(|volume| self.desired.get(volume, &node).is_none()) {
            self.ended.insert((volume, node.clone()), wall);
        }
    }

    /// What pods need on nodes that are not Ready, as far as this process has followed them.
    fn needed_where_not_ready(&self) -> BTreeSet<(VolumeId, NodeName)> {
        let is_down = |name: &NodeName| self.objects.nodes.get(name).is_some_and(|node| !node.is_ready());
        let pairs = self.desired.volumes().flat_map(|volume| {
            let nodes = self.desired.nodes(volume).into_iter().flat_map(LiteMap::keys);
            nodes.map(move |node| (volume, node))
        });
        let down = pairs.filter(|(_, node)| is_down(node));
        down.map(|(volume, node)| (volume.clone(), node.clone())).collect()
    }

    /// Reads the tables whole (attach-detach §5, without its gaps).
    pub(super) fn read_tables(&mut self, now: Instant) {
        self.desired = DesiredState::default();
        let wall = self.clock.wall(now);
        for (name, node) in self.objects.nodes.snapshot() {
            self.actual.observe_node(&name, Some(&node), |_| false, wall);
            if self.objects.nodes.is_missing(&name) {
                self.read_node_live(&name);
            }
        }
        for (name, attachment) in self.objects.attachments.snapshot() {
            self.newest_attachment = self.newest_attachment.max(attachment.metadata.resource_version);
            self.refresh_attachment(&name, now);
            self.confirm_attachment(&name);
        }
        self.actual.distrust_younger_nodes();
        for (key, pod) in self.objects.pods.snapshot() {
            let attached = || self.actual.sources_on(&pod.spec.node_name);
            if let Some(given) = populator::given_before(&pod, &self.objects, attached) {
                self.desired.set(&key, Some(given));
            }
            self.refresh_pod(&key, now);
        }
        let (desired, objects) = (&self.desired, &self.objects);
        let waits = |volume: &VolumeId, node: &NodeName| {
            desired.is_exclusive(volume) && desired.get(volume, node).is_some()
        };
        self.actual.forget_reports(|volume, node| desired.is_run_with(volume, node, objects), waits);
        self.is_loaded = true;
        let (attachments, pods) = (objects.attachments.len(), objects.pods.len());
        self.outbox.push(Fact::Loaded { attachments, pods });
    }

    /// Goes on with the waits that a predecessor of this process has proven on the lease (S6). After a restore of etcd
    /// that is of another time (E11). What pods `needed` a moment ago has not waited at all.
    fn go_on_waiting(&mut self, needed: &BTreeSet<(VolumeId, NodeName)>, now: Instant) {
        let ended = mem::take(&mut self.ended);
        let is_restored = self.objects.restore_grace().left(now).is_some();
        let note = match self.force_waits.take_over() {
            Ok(note) if note.count() == 0 => return,
            Ok(note) => note,
            Err(said) => return self.outbox.push(Fact::ForceWaits(said)),
        };
        let go_on: Vec<_> = waits(&self.actual, &self.desired)
            .filter_map(|(name, wait)| Some((name.clone(), note.elapsed(&wait)?, wait)))
            .filter(|_| !is_restored)
            .collect();
        let (count, wall) = (go_on.len(), self.clock.wall(now));
        for (name, elapsed, wait) in go_on {
            let since_of = |volume: &VolumeId, since: Timestamp| {
                let pair = (volume.clone(), name.clone());
                let ended = ended.get(&pair).map_or(since, |ended| (*ended).min(wall).max(since));
                (!needed.contains(&pair)).then_some(ended)
            };
            self.actual.go_on(&name, &wait, elapsed, since_of, wall);
            self.force_waits.begin();
        }
        let said = Said::TakenOver { go_on: count, begin_anew: note.count() - count };
        self.outbox.push(Fact::ForceWaits(said));
    }

    /// Starts to plan: this process may write from now on. Volumes with which something has begun come first, node by node,
    /// then those that no pod needs, those that are new, and those that are as they should be.
    pub(super) fn take_over(&mut self, now: Instant) {
        self.second_writer.lead(now);
        // Pods go while the tables are read.
        let needed = self.needed_where_not_ready();
        self.read_tables(now);
        self.go_on_waiting(&needed, now);
        self.actual.inherit_told();
        // What was loaded is no work yet, and is looked at in this order.
        self.queue.clear();
        self.queue.at(now);
        for node in self.actual.nodes_to_look_at() {
            self.queue.add_node(node.clone());
        }
        let mut volumes = Vec::new();
        for volume in self.desired.volumes() {
            let nodes = self.desired.nodes(volume).into_iter().flat_map(LiteMap::keys);
            let first = nodes.clone().next();
            let is_listed =
                |node: &NodeName| self.actual.node_volume(volume, node).is_some_and(NodeVolume::is_listed);
            let turn = match self.actual.volume(volume) {
                None => FirstTurn::New,
                Some(state) if state.nodes.len() == nodes.clone().count() && nodes.clone().all(is_listed) => {
                    FirstTurn::Settled
                }
                Some(_) => FirstTurn::Begun,
            };
            volumes.push((turn, first, volume));
        }
        let unwanted = self.actual.volumes().map(|(volume, _)| volume);
        let unwanted = unwanted.filter(|volume| self.desired.nodes(volume).is_none());
        volumes.extend(unwanted.map(|volume| (FirstTurn::Unwanted, None, volume)));
        volumes.sort();
        for (turn, _, volume) in volumes {
            match turn {
                FirstTurn::Begun | FirstTurn::Unwanted => self.queue.add(volume.clone(), Scope::All),
                FirstTurn::New | FirstTurn::Settled => self.queue.add_new(volume.clone(), Scope::All),
            }
        }
    }
}

/// When a volume has its turn after a take-over, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FirstTurn {
    Begun,
    Unwanted,
    New,
    Settled,
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use apiserver::{
        ids::ResourceVersion,
        kinds::{Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment},
        tables::Objects,
    };
    use serde_json::json;

    use super::*;
    use crate::{
        attach_detach::{clock::Clock, options::AttachDetachOptions},
        controller::Controller as _,
    };

    fn meta(name: &str) -> serde_json::Value {
        json!({"namespace": "ns", "name": name, "uid": name, "resourceVersion": "1"})
    }

    fn pod() -> Pod {
        let source = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]);
        serde_json::from_value(json!({"metadata": meta("p"), "spec": {"nodeName": "n1", "volumes": source}}))
            .unwrap()
    }

    /// A node that is not Ready and uses a volume that is attached.
    fn objects() -> Arc<Objects> {
        let objects = Arc::new(Objects::default());
        let id = VolumeId::csi(&"d".into(), "h");
        let mut node = json!({"metadata": meta("n1"), "status": {
            "conditions": [{"type": "Ready", "status": "Unknown", "lastTransitionTime": "1970-01-01T00:00:00Z"}],
            "volumesInUse": [id.as_str()], "volumesAttached": [{"name": id.as_str(), "devicePath": ""}]}});
        node["metadata"]["annotations"] =
            json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
        objects.apply::<Node>(serde_json::from_value(node).unwrap());
        let pv = json!({"metadata": meta("v"), "spec": {"csi": {"driver": "d", "volumeHandle": "h"},
            "accessModes": ["ReadWriteOnce"], "claimRef": {"namespace": "ns", "name": "c", "uid": "c"}}});
        objects.apply::<PersistentVolume>(serde_json::from_value(pv).unwrap());
        let claim = json!({"metadata": meta("c"), "spec": {"volumeName": "v"}, "status": {"phase": "Bound"}});
        objects.apply::<PersistentVolumeClaim>(serde_json::from_value(claim).unwrap());
        let attachment = json!({"metadata": meta(id.attachment_name(&"n1".into()).as_str()),
            "spec": {"attacher": "d", "nodeName": "n1", "source": {"persistentVolumeName": "v"}},
            "status": {"attached": true}});
        objects.apply::<VolumeAttachment>(serde_json::from_value(attachment).unwrap());
        objects
    }

    fn process(objects: Arc<Objects>, now: Instant) -> AttachDetach {
        AttachDetach::new(objects, AttachDetachOptions::default(), Clock::new(Timestamp::UNIX_EPOCH, now))
    }

    #[test]
    fn s4_s6_what_a_pod_needed_until_the_tables_were_read_does_not_go_on_with_a_wait_of_before() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut former = process(objects(), start);
        former.succeed(None);
        former.lead(start);
        let notes: Vec<String> =
            (0..=300).filter_map(|second| former.plan(after(second)).measures.note).collect();
        let note = notes.last().expect("a wait for force");
        for was_needed in [false, true] {
            let objects = objects();
            if was_needed {
                objects.apply(pod());
            }
            let mut next = process(Arc::clone(&objects), after(300));
            next.load(after(300));
            // It goes while the tables are read: nobody has told of it yet.
            let mut gone = pod();
            gone.metadata.resource_version = ResourceVersion(9);
            objects.delete(gone);
            next.succeed(Some(note));
            next.lead(after(300));
            let is_forced = (300..=420).any(|second| !next.plan(after(second)).calls.is_empty());
            assert_eq!(
                is_forced, !was_needed,
                "six minutes after the pod, or of the wait before: {was_needed}"
            );
        }
    }
}
