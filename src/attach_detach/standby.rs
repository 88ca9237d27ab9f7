//! Standby: what the controller does with its inputs while another replica leads, and where it begins when it
//! leads itself.
//!
//! In: dirty volumes and nodes. Out: nothing but state that is forgotten. A replica that stands by judges
//! nothing, so it forgets as each fact ends: it holds what a leader holds, and never more than the objects
//! that are there. What only a leader measures or remembers (since when something is not desired, operations and
//! phases under way) begins when it leads.

use tokio::time::Instant;

use super::{
    actual::state::NodeVolume,
    controller::{Controller, Dirty},
    decide::scope::Scope,
    desired::volume_name::VolumeId,
    planning::AT_ONCE,
};
use crate::{kube_api::ids::NodeName, state::VecMap};

impl Controller {
    /// Forgets what has ended, in place of planning.
    pub(super) fn stand_by(&mut self, now: Instant) {
        let mut left = AT_ONCE;
        while left > 0
            && let Some(node) = self.dirty_nodes.pop()
        {
            left -= 1;
            let believed = self.believe_node(&node, now);
            self.touch_on(&node, believed);
        }
        while left > 0
            && let Some((volume, scope)) =
                self.dirty_volumes.pop_begun(left).or_else(|| self.dirty_volumes.pop_new(left))
        {
            left -= 1;
            self.forget_lost(&volume, now);
            self.prune(&volume, &scope);
        }
        let has_more = !self.dirty_volumes.none_begun()
            || !self.dirty_volumes.none_new()
            || !self.dirty_nodes.is_empty()
            || self.has_more_to_survey();
        self.goes_on_at = has_more.then_some(now);
    }

    /// A leader gives up what was on a node that is gone, in time, and nothing tells of it.
    fn forget_lost(&mut self, volume: &VolumeId, now: Instant) {
        let desired = &self.desired;
        let wanted = |node: &NodeName| desired.get(volume, node).is_some();
        let due = self.actual.forget_lost(volume, self.options.force.gone, wanted, self.clock.wall(now));
        if let Some(at) = due.and_then(|due| self.clock.instant(due)) {
            self.wake_at.insert((at, Dirty::Volume(volume.clone())));
        }
    }

    /// Starts to plan: this process may write from now on. Volumes that pods wait for come first, node by
    /// node, then those that no pod needs, then those that are as they should be.
    pub fn take_over(&mut self, now: Instant) {
        self.tick(now);
        self.leads = true;
        self.second_writer.take_over(now);
        let desired = &self.desired;
        let wanted = |volume: &VolumeId, node: &NodeName| desired.get(volume, node).is_some();
        self.actual.begin_to_lead(self.options.force.gone, wanted, self.clock.wall(now));
        self.recorder.lead(&self.actual);
        self.dirty_nodes.extend(self.actual.distrusted_nodes().cloned());
        let (mut begun, mut new, mut settled) = (Vec::new(), Vec::new(), Vec::new());
        for volume in self.desired.volumes() {
            let nodes = self.desired.nodes(volume).into_iter().flat_map(VecMap::keys);
            let first = nodes.clone().next();
            let is_listed =
                |node: &NodeName| self.actual.node_volume(volume, node).is_some_and(NodeVolume::is_listed);
            match self.actual.volume(volume) {
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
            self.dirty_volumes.push(volume.clone(), Scope::All);
        }
        let unwanted = self.actual.volumes().map(|(volume, _)| volume);
        let unwanted = unwanted.filter(|volume| self.desired.nodes(volume).is_none());
        for volume in names(&new).chain(unwanted).chain(names(&settled)) {
            self.dirty_volumes.push_new(volume.clone(), Scope::All);
        }
    }
}

fn names<'a, Place>(volumes: &[(Place, &'a VolumeId)]) -> impl Iterator<Item = &'a VolumeId> {
    volumes.iter().map(|(_, volume)| *volume)
}
