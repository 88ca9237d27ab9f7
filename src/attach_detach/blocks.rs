//! What keeps a volume from being touched although the rules would allow it: another controller at work
//! (S14), a restore of etcd (E11), an object that cannot be read (S42).
//!
//! In: the suspicion, the grace after a restore, the markers in the tables. Out: the [`StandOff`] that a plan
//! takes as a value, and per node the object that has to be readable first.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use super::{controller::Controller, desired_state::Wish, volume_name::VolumeId};
use crate::{
    kube_api::{
        ids::NodeName,
        kinds::{Node, VolumeAttachment},
    },
    state::VecMap,
};

/// Why nothing is taken away from nodes or drivers for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandOff {
    /// Another controller does our work (S14).
    ForeignWriter,
    /// The cluster was restored from a backup: what it says may be of the past (E11).
    Restored {
        /// Until when, by the cluster's clock.
        until: Timestamp,
    },
}

impl Controller {
    /// Whether nothing may be taken away now.
    pub(super) fn stand_off(&self, now: Instant) -> Option<StandOff> {
        if self.suspicion.is_alarmed() {
            return Some(StandOff::ForeignWriter);
        }
        let left = self.objects.restore_grace().left(now)?;
        Some(StandOff::Restored { until: self.clock.wall(now + left) })
    }

    /// When the grace after a restore ends, if there is one.
    pub(super) fn grace_ends_at(&self) -> Option<Instant> {
        self.graced_until
    }

    /// Judges everything anew when the grace after a restore has ended.
    pub(super) fn end_grace(&mut self, now: Instant) {
        let left = self.objects.restore_grace().left(now);
        if left.is_none() && self.graced_until.is_some() {
            tracing::warn!("the grace after the restore is over: detaching again");
            self.look_at_everything();
        }
        self.graced_until = left.map(|left| now + left);
    }

    /// The nodes on which nothing may be done about a volume, each with the object that cannot be read.
    pub(super) fn unreadable(
        &self,
        volume: &VolumeId,
        wishes: Option<&VecMap<NodeName, Wish>>,
    ) -> BTreeMap<NodeName, String> {
        let objects = &self.objects;
        let mut blocked = BTreeMap::new();
        let held = self.actual.volume(volume).into_iter().flat_map(|state| state.pairs.keys());
        let nodes = || wishes.into_iter().flat_map(VecMap::keys).chain(held.clone());
        if objects.nodes.unreadable_count() > 0 {
            let unreadable = nodes().filter(|node| objects.unreadable::<Node>(node).is_some());
            blocked.extend(unreadable.map(|node| (node.clone(), format!("node/{node}"))));
        }
        if objects.attachments.unreadable_count() > 0 {
            // On whichever node the volume may be by one of them, it must not get to another.
            let everywhere = objects.nodes.snapshot();
            let unreadable = |node: &NodeName| {
                let name = volume.attachment_name(node);
                objects.unreadable::<VolumeAttachment>(&name).map(|_| name)
            };
            let name = nodes().find_map(unreadable).or_else(|| everywhere.keys().find_map(unreadable));
            if let Some(name) = name {
                blocked.extend(nodes().map(|node| (node.clone(), format!("volumeattachment/{name}"))));
            }
        }
        blocked
    }
}
