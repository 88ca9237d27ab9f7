//! Take-over: where a process begins when it leads. While another one leads, it holds the tables and judges nothing.
//!
//! In: the right to write, and what the lease says of the term before. Out: the states as they are read from the tables, as
//! by a process that starts; waits that go on (S6); and what is looked at first.

use std::collections::BTreeSet;

use apiserver::ids::NodeName;
use tokio::time::Instant;

use super::{
    controller::AttachDetach,
    facts::Fact,
    guard::force_waits::waits,
    known::Known,
    state::desired::{populator, volume_name::VolumeId},
};

impl AttachDetach {
    /// Reads the tables whole (attach-detach §5, without its gaps).
    pub(super) fn read_tables(&mut self, now: Instant) {
        self.objects.nodes.keep_final_states();
        for driver in self.objects.drivers.keys() {
            self.refresh_driver(&driver, now);
        }
        let wall = self.clock.wall(now);
        for (name, node) in self.objects.nodes.snapshot() {
            self.actual.observe_node(&name, Some(&node), |_| false, wall);
        }
        self.attachments_told = [self.objects.attachments.observed(); 2];
        for name in self.objects.attachments.snapshot().into_keys() {
            self.refresh_attachment(&name, now);
        }
        self.actual.distrust_younger_nodes(wall);
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
    /// that is of another time (E11).
    fn go_on_waiting(&mut self, now: Instant) {
        let is_restored = self.objects.restore_grace().left(now).is_some();
        let note = match self.force_waits.take_over() {
            Some(note) if note.count() == 0 => return,
            Some(note) => note,
            None => return self.outbox.push(Fact::ForceWaits(None)),
        };
        let go_on: Vec<_> = waits(&self.actual, &self.desired)
            .filter_map(|(name, wait)| Some((name.clone(), note.elapsed(&wait)?, wait)))
            .filter(|_| !is_restored)
            .collect();
        let (count, wall) = (go_on.len(), self.clock.wall(now));
        for (name, elapsed, wait) in go_on {
            self.actual.go_on(&name, &wait, elapsed, wall);
            self.force_waits.begin();
        }
        self.outbox.push(Fact::ForceWaits(Some([count, note.count() - count])));
    }

    /// Starts to plan: this process may write from now on. Volumes with which something has begun come first, node by node
    /// and then those that no pod needs, and behind them those that are new.
    pub(super) fn take_over(&mut self, now: Instant) {
        self.second_writer.lead(now);
        self.read_tables(now);
        self.go_on_waiting(now);
        self.actual.inherit_told();
        // What was loaded is no work yet.
        self.queue.clear();
        self.queue.at(now);
        for node in self.actual.distrusted_nodes() {
            self.queue.add_node(node.clone());
        }
        let first = |volume: &VolumeId| self.desired.nodes(volume).and_then(|nodes| nodes.keys().next());
        let held = self.actual.volumes().map(|(volume, _)| volume);
        let volumes = self.desired.volumes().chain(held).map(|volume| (first(volume), volume));
        let volumes: BTreeSet<_> = volumes.map(|(first, volume)| (first.is_none(), first, volume)).collect();
        let known = Known { objects: &self.objects, desired: &self.desired, actual: &self.actual, now };
        for (.., volume) in volumes {
            match self.actual.volume(volume) {
                Some(_) => self.queue.add(volume.clone(), known.nodes_of(volume)),
                None => self.queue.add_new(volume.clone(), known.nodes_of(volume)),
            }
        }
    }
}
