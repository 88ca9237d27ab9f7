//! Standby: what a replica that does not lead forgets, and what begins when it leads.
//!
//! In: the time, and that this process leads from now on. Out: volumes that no longer count as attached where another
//! replica has given up, or would have, and in which nothing is measured that began before.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::{ActualState, Desire, Listed, Mount, NodeName, NodeVolume, VolumeId, VolumeKind};

impl ActualState {
    /// Since when something is undesired counts from now on.
    pub(in crate::attach_detach) fn begin_to_lead(
        &mut self,
        gone: Duration,
        wanted: impl Fn(&VolumeId, &NodeName) -> bool,
        runs: impl Fn(&VolumeId, &NodeName) -> bool,
        wall: Timestamp,
    ) {
        self.forget_given_up(gone, wanted, runs, wall);
        for node_volume in self
            .volumes
            .values_mut()
            .flat_map(|state| state.nodes.iter_mut().map(|(_, node_volume)| node_volume))
        {
            node_volume.desire = Desire::Unjudged;
        }
    }

    /// What is, or was, listed: a predecessor of this process has told of that. What was attached while no process led is
    /// not listed, and is still to be told.
    pub(in crate::attach_detach) fn published(&self) -> impl Iterator<Item = (&VolumeId, &NodeName)> {
        self.volumes.iter().flat_map(|(volume, state)| {
            let published = state
                .nodes
                .iter()
                .filter(|(_, node_volume)| node_volume.is_listed() || node_volume.mount == Mount::Possible);
            published.map(move |(node, _)| (volume, node))
        })
    }

    /// Notes that the first pod comes that needs the volume here. What its kubelet reported in use before does not announce
    /// that pod.
    pub(in crate::attach_detach) fn note_desired(&mut self, volume: &VolumeId, node: &NodeName) {
        let node_volume = self.volumes.get_mut(volume).and_then(|state| state.nodes.get_mut(node));
        if let Some(node_volume) = node_volume
            && let Mount::Reported { since } = node_volume.mount
        {
            node_volume.mount = Mount::ReportedBefore { since };
        }
    }

    /// The volumes that a kubelet reports in use, of which nothing else tells whether it has them.
    pub fn merely_in_use(&self, node: &NodeName) -> impl Iterator<Item = &VolumeId> {
        let in_use = |node_volume: &NodeVolume| node_volume.in_use && node_volume.mount != Mount::Possible;
        self.volumes_on(node).filter(move |(_, node_volume)| in_use(node_volume)).map(|(volume, _)| volume)
    }

    /// Notes that a pod runs here with the volume: if its kubelet reports it in use, it is mounted. Returns whether that
    /// is news.
    pub fn note_mounted(&mut self, volume: &VolumeId, node: &NodeName) -> bool {
        let node_volume = self.volumes.get_mut(volume).and_then(|state| state.nodes.get_mut(node));
        let news =
            node_volume.filter(|node_volume| node_volume.in_use && node_volume.mount != Mount::Possible);
        news.map(|node_volume| node_volume.mount = Mount::Possible).is_some()
    }

    /// Notes that no pod needs a volume here any more, if anything is known of it.
    pub(in crate::attach_detach) fn note_desire_ended(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        wall: Timestamp,
    ) {
        if self.node_volume(volume, node).is_some() {
            self.node_volume_mut(volume, node).desired_until = Some(wall);
        }
    }

    /// Forgets, while another replica leads, what that one has given up or would have: what it took off a list; what
    /// was on nodes that have been `gone` for that long, and on machines whose name another one has borne for as
    /// long. Where nothing but the list tells who has a volume, it is forgotten once the leader listed it elsewhere:
    /// whether and when the leader forces is its to know (S1). Returns when to look again.
    pub(in crate::attach_detach) fn forget_lost(
        &mut self,
        volume: &VolumeId,
        gone: Duration,
        wanted: impl Fn(&NodeName) -> bool,
        wall: Timestamp,
    ) -> Option<Timestamp> {
        let mut next = None;
        let state = self.volumes.get_mut(volume)?;
        let is_listed = state.nodes.values().any(|node_volume| node_volume.is_listed());
        for (name, node_volume) in state.nodes.iter_mut() {
            if node_volume.known.is_some() || node_volume.mount == Mount::No || node_volume.is_listed() {
                continue;
            }
            if node_volume.given_up {
                node_volume.mount = Mount::No;
                continue;
            }
            let node = self.nodes.get(name);
            if volume.kind() == VolumeKind::NoOp {
                let is_there = node.is_some_and(|state| state.node.is_some());
                if if is_there { !node_volume.in_use } else { is_listed } {
                    node_volume.mount = Mount::No;
                }
                continue;
            }
            let node = node.filter(|state| state.node.is_none());
            let Some(since) = node.and_then(|state| state.unready_since).filter(|_| !wanted(name)) else {
                continue;
            };
            let due = due(since, node_volume, gone);
            if due <= wall {
                node_volume.mount = Mount::No;
            } else {
                next = next.max(Some(due));
            }
        }
        next
    }

    /// Forgets what a predecessor of this process gave up: what is not in use, what a node that is not Ready uses once
    /// it is elsewhere, and what was on a node that is gone once that is listed elsewhere, or the attachment was
    /// deleted. Why, force for one, does not show. But it takes off the list before it deletes, and forces nothing
    /// before its time: what a node still listed when it went, and is on no other node, it had not given up until
    /// then, also if its attachment was deleted. What is in use where a pod runs with it is mounted.
    fn forget_given_up(
        &mut self,
        gone: Duration,
        wanted: impl Fn(&VolumeId, &NodeName) -> bool,
        runs: impl Fn(&VolumeId, &NodeName) -> bool,
        wall: Timestamp,
    ) {
        for (volume, state) in &mut self.volumes {
            let stays = |node_volume: &NodeVolume| node_volume.known.is_some() && !node_volume.is_going();
            let is_placed = |node_volume: &NodeVolume| node_volume.is_listed() || stays(node_volume);
            let placed = state.nodes.values().filter(|node_volume| is_placed(node_volume)).count();
            for (name, node_volume) in state.nodes.iter_mut() {
                if node_volume.is_listed() {
                    continue;
                }
                let is_elsewhere = placed > usize::from(is_placed(node_volume));
                let node = self.nodes.get(name);
                let is_given_up = if let Some(node) = node.and_then(|state| state.node.as_deref()) {
                    let is_reported = node.uses(volume.as_str());
                    if node_volume.in_use && runs(volume, name) {
                        node_volume.mount = Mount::Possible;
                    } else if is_reported && !node.is_ready() && node_volume.mount == Mount::Possible {
                        // Held, but not listed again: a predecessor may have given it up by force.
                        node_volume.mount = Mount::Reported { since: wall.as_millisecond() };
                    }
                    let is_forced = !node.is_ready() && is_elsewhere && !stays(node_volume);
                    !node_volume.in_use || (is_forced && !runs(volume, name))
                } else {
                    let since = node.and_then(|state| state.unready_since);
                    let is_early = since
                        .is_some_and(|since| wanted(volume, name) || wall < due(since, node_volume, gone));
                    let is_kept = node_volume.listed == Listed::WhenNodeWent && is_early;
                    match volume.kind() {
                        VolumeKind::Csi => !stays(node_volume) && (is_elsewhere || !is_kept),
                        VolumeKind::NoOp => is_elsewhere,
                    }
                };
                if is_given_up {
                    node_volume.mount = Mount::No;
                }
            }
        }
    }
}

/// When what is on a node is given up that has been gone since then.
fn due(since: Timestamp, node_volume: &NodeVolume, gone: Duration) -> Timestamp {
    let since = node_volume.desired_until.map_or(since, |ended| ended.max(since));
    since.checked_add(gone).unwrap_or(Timestamp::MAX)
}
