//! Standby: what the controller does with its inputs while another replica leads, and where it begins when it
//! leads itself.
//!
//! In: dirty volumes and nodes. Out: nothing but state that is forgotten. A replica that stands by judges
//! nothing, so it forgets as each fact ends: it holds what a leader holds, and never more than the objects
//! that are there. What only a leader measures or remembers (since when something is not desired, operations and
//! phases under way) begins when it leads.

use tokio::time::Instant;

use super::{
    act::in_flight::Room,
    actual::state::NodeVolume,
    controller::Controller,
    decide::scope::Scope,
    desired::volume_name::VolumeId,
    guard::force_waits::{Said, waits_on},
    queue::{AT_ONCE, Key},
};
use crate::{kube_api::ids::NodeName, state::VecMap};

impl Controller {
    /// Forgets what has ended, in place of planning.
    pub(super) fn stand_by(&mut self, now: Instant) {
        let mut left = AT_ONCE;
        while let Some(node) = self.caches.queue.get_node(Room::of_each(left)) {
            left -= 1;
            let believed = self.caches.believe_node(&node, &self.options.force, now);
            self.caches.queue.add_on(&node, believed, &self.caches.actual);
        }
        while let Some((volume, scope)) = self.caches.queue.get(Room::of_each(left)) {
            left -= 1;
            self.forget_lost(&volume, now);
            self.prune(&volume, &scope);
        }
        self.caches.queue.end_turn(Room::of_each(AT_ONCE), now);
    }

    /// A leader gives up what was on a node that is gone, in time, and nothing tells of it.
    fn forget_lost(&mut self, volume: &VolumeId, now: Instant) {
        let desired = &self.caches.desired;
        let wanted = |node: &NodeName| desired.get(volume, node).is_some();
        let due = self.caches.actual.forget_lost(
            volume,
            self.options.force.gone,
            wanted,
            self.caches.clock.wall(now),
        );
        if let Some(at) = due.and_then(|due| self.caches.clock.instant(due)) {
            self.caches.queue.add_at(at, Key::Volume(volume.clone()));
        }
    }

    /// Goes on with the waits that a predecessor of this process has proven on the lease (S6). After a restore of etcd
    /// that is of another time (E11).
    fn go_on_waiting(&mut self, now: Instant) {
        let is_restored = self.caches.objects.restore_grace().left(now).is_some();
        let note = match self.force_waits.take_over() {
            Ok(note) if note.is_empty() => return,
            Ok(note) => note,
            Err(said) => return self.tell_of_waits(Some(said)),
        };
        let (wall, mut go_on) = (self.caches.clock.wall(now), Vec::new());
        for name in self.caches.actual.node_names().filter(|_| !is_restored) {
            let Some(wait) = waits_on(name, &self.caches.actual, &self.caches.desired) else { continue };
            if let Some(elapsed) = note.elapsed(&wait) {
                go_on.push((name.clone(), wait, elapsed));
            }
        }
        let (count, begin_anew) = (go_on.len(), note.len().saturating_sub(go_on.len()));
        for (name, wait, elapsed) in go_on {
            self.caches.actual.go_on(&name, &wait, elapsed, wall);
            self.force_waits.add(&name);
        }
        self.tell_of_waits(Some(Said::TakenOver { go_on: count, begin_anew }));
    }

    /// Starts to plan: this process may write from now on. Volumes that pods wait for come first, node by
    /// node, then those that no pod needs, then those that are as they should be.
    pub fn take_over(&mut self, now: Instant) {
        self.caches.queue.at(now);
        self.leads = true;
        self.second_writer.lead(now);
        let desired = &self.caches.desired;
        let wanted = |volume: &VolumeId, node: &NodeName| desired.get(volume, node).is_some();
        let objects = &self.caches.objects;
        let runs = |volume: &VolumeId, node: &NodeName| {
            desired.get(volume, node).is_some_and(|desired| desired.runs(objects))
        };
        let wall = self.caches.clock.wall(now);
        self.caches.actual.begin_to_lead(self.options.force.gone, wanted, runs, wall);
        self.go_on_waiting(now);
        let (recorder, known) = self.recording(now);
        recorder.lead(known);
        for node in self.caches.actual.distrusted_nodes() {
            self.caches.queue.add_node(node.clone());
        }
        let (mut begun, mut new, mut settled) = (Vec::new(), Vec::new(), Vec::new());
        for volume in self.caches.desired.volumes() {
            let nodes = self.caches.desired.nodes(volume).into_iter().flat_map(VecMap::keys);
            let first = nodes.clone().next();
            let is_listed = |node: &NodeName| {
                self.caches.actual.node_volume(volume, node).is_some_and(NodeVolume::is_listed)
            };
            match self.caches.actual.volume(volume) {
                None => new.push((first, volume)),
                Some(state) if state.nodes.len() == nodes.clone().count() && nodes.clone().all(is_listed) => {
                    settled.push((first, volume));
                }
                Some(_) => begun.push((first, volume)),
            }
        }
        for volumes in [&mut begun, &mut new, &mut settled] {
            volumes.sort();
        }
        for volume in names(&begun) {
            self.caches.queue.add(volume.clone(), Scope::All);
        }
        let unwanted = self.caches.actual.volumes().map(|(volume, _)| volume);
        let unwanted = unwanted.filter(|volume| self.caches.desired.nodes(volume).is_none());
        for volume in names(&new).chain(unwanted).chain(names(&settled)) {
            self.caches.queue.add_new(volume.clone(), Scope::All);
        }
    }
}

fn names<'a, Place>(volumes: &[(Place, &'a VolumeId)]) -> impl Iterator<Item = &'a VolumeId> {
    volumes.iter().map(|(_, volume)| *volume)
}
