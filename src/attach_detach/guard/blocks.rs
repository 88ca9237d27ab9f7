//! What keeps a volume from being touched although the rules would allow it: another controller at work
//! (S14), a restore of etcd (E11), an object that cannot be read (S42).
//!
//! In: the evidence of a second writer, the grace after a restore, the markers in the tables. Out: the [`StandOff`]
//! that a plan takes as a value, and per node the object that has to be readable first.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    attach_detach::{
        controller::Controller,
        desired::{state::DesiredAttachment, volume_name::VolumeId},
        tell::report::Line,
    },
    controller::second_writer,
    kube_api::{
        ids::{AttachmentName, NodeName},
        kinds::{Node, VolumeAttachment},
    },
    state::VecMap,
};

/// Why nothing is taken away from nodes or drivers for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StandOff {
    /// Another controller does our work, or another party writes to the node again and again (S14): who, and what.
    ForeignWriter {
        /// Who wrote what.
        by: Arc<str>,
        /// When it ends, unless another such write is seen, by this process' clock.
        until: Timestamp,
    },
    /// The cluster was restored from a backup: what it says may be of the past (E11).
    Restored {
        /// Until when, by this process' clock.
        until: Timestamp,
    },
}

/// Which volumes are held up by VolumeAttachments that cannot be read. Of one that was never read, only its name
/// tells which volume on which node it is about, and only by computing the names of all nodes: that is done once
/// for each volume.
#[derive(Clone, Debug, Default)]
pub(in crate::attach_detach) struct UnreadableAttachments {
    names: Vec<AttachmentName>,
    found: HashMap<VolumeId, Option<AttachmentName>>,
}

impl UnreadableAttachments {
    /// The names of these attachments, and of all nodes, may have changed.
    pub(in crate::attach_detach) fn forget(&mut self) {
        self.found.clear();
    }
}

impl Controller {
    /// A VolumeAttachment that cannot be read and that is, or may be, about this volume.
    pub(in crate::attach_detach) fn unreadable_attachment(
        &mut self,
        volume: &VolumeId,
    ) -> Option<AttachmentName> {
        if self.objects.attachments.unreadable_count() == 0 {
            self.unreadable_attachments = UnreadableAttachments::default();
            return None;
        }
        let unreadable = self.objects.attachments.all_unreadable();
        let names: Vec<AttachmentName> = unreadable.into_iter().map(|(name, _)| name).collect();
        let (objects, actual, memory) = (&self.objects, &self.actual, &mut self.unreadable_attachments);
        if memory.names != names {
            *memory = UnreadableAttachments { names, found: HashMap::new() };
        }
        let names = &memory.names;
        let find = || {
            if let Some(name) = names.iter().find(|name| actual.volume_of(name) == Some(volume)) {
                return Some(name.clone());
            }
            if names.iter().all(|name| actual.volume_of(name).is_some()) {
                return None;
            }
            let computed = objects.nodes.snapshot().into_keys().map(|node| volume.attachment_name(&node));
            computed.into_iter().find(|name| names.binary_search(name).is_ok())
        };
        memory.found.entry(volume.clone()).or_insert_with(find).clone()
    }

    /// Whether nothing may be taken away now.
    pub(in crate::attach_detach) fn stand_off(&self, now: Instant) -> Option<StandOff> {
        if let Some(by) = self.second_writer.everywhere() {
            return Some(self.for_second_writer(by));
        }
        let left = self.objects.restore_grace().left(now)?;
        Some(StandOff::Restored { until: self.clock.wall(now + left) })
    }

    /// The nodes of a volume from which nothing may be taken away now, while elsewhere all goes on.
    pub(in crate::attach_detach) fn stand_off_on(
        &self,
        volume: &VolumeId,
        desired_nodes: Option<&VecMap<NodeName, DesiredAttachment>>,
    ) -> BTreeMap<NodeName, StandOff> {
        if self.second_writer.everywhere().is_some() || !self.second_writer.is_any_node() {
            return BTreeMap::new();
        }
        let held = self.actual.volume(volume).into_iter().flat_map(|state| state.nodes.keys());
        let nodes = desired_nodes.into_iter().flat_map(VecMap::keys).chain(held);
        nodes.filter_map(|node| Some((node.clone(), self.stand_off_of(node)?))).collect()
    }

    /// Whether nothing may be taken away from this node now, while elsewhere all goes on.
    pub(in crate::attach_detach) fn stand_off_of(&self, name: &NodeName) -> Option<StandOff> {
        let out_of_service = self.objects.nodes.get(name).is_some_and(|node| node.is_out_of_service());
        let by = self.second_writer.on(name, out_of_service)?;
        Some(self.for_second_writer(by))
    }

    fn for_second_writer(&self, by: &second_writer::StandOff) -> StandOff {
        StandOff::ForeignWriter { by: by.to_string().into(), until: self.clock.wall(by.until) }
    }

    /// When the grace after a restore ends, if there is one.
    pub(in crate::attach_detach) fn grace_ends_at(&self) -> Option<Instant> {
        self.graced_until
    }

    /// Judges everything anew when the grace after a restore has ended.
    pub(in crate::attach_detach) fn end_grace(&mut self, now: Instant) {
        let left = self.objects.restore_grace().left(now);
        if left.is_none() && self.graced_until.is_some() {
            self.recorder.log(Line::GraceOver);
            self.queue.add_all();
        }
        self.graced_until = left.map(|left| now + left);
    }

    /// The nodes on which nothing may be done about a volume, each with the object that cannot be read: the node
    /// itself, or an `attachment` of the volume.
    pub(in crate::attach_detach) fn unreadable(
        &self,
        volume: &VolumeId,
        attachment: Option<&AttachmentName>,
        desired_nodes: Option<&VecMap<NodeName, DesiredAttachment>>,
    ) -> BTreeMap<NodeName, String> {
        let objects = &self.objects;
        let mut blocked = BTreeMap::new();
        let held = self.actual.volume(volume).into_iter().flat_map(|state| state.nodes.keys());
        let nodes = || desired_nodes.into_iter().flat_map(VecMap::keys).chain(held.clone());
        if objects.nodes.unreadable_count() > 0 {
            let unreadable = nodes().filter(|node| objects.unreadable::<Node>(node).is_some());
            blocked.extend(unreadable.map(|node| (node.clone(), format!("node/{node}"))));
        }
        // On whichever node the volume may be by it, it must not get to another.
        let of_unknown_node = || {
            let named = |node: &NodeName| volume.attachment_name(node);
            let is_unreadable =
                |name: &AttachmentName| objects.unreadable::<VolumeAttachment>(name).is_some();
            let any = objects.attachments.unreadable_count() > 0;
            any.then(|| nodes().map(named).find(is_unreadable)).flatten()
        };
        if let Some(name) = attachment.cloned().or_else(of_unknown_node) {
            blocked.extend(nodes().map(|node| (node.clone(), format!("volumeattachment/{name}"))));
        }
        blocked
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::{
        attach_detach::{clock::Clock, controller::AttachDetachOptions},
        kube_api::{ids::ResourceVersion, kinds::ObjectRef},
        state::Objects,
    };

    #[test]
    fn s42_an_attachment_that_was_never_read_is_found_by_its_name_also_on_a_node_that_comes_later() {
        let objects = Arc::new(Objects::default());
        let node = |name: &str| {
            let node = json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}});
            objects.apply::<Node>(serde_json::from_value(node).unwrap());
        };
        let now = Instant::now();
        let clock = Clock::new(Timestamp::UNIX_EPOCH, now);
        let mut controller = Controller::new(Arc::clone(&objects), AttachDetachOptions::default(), clock);
        let [volume, other] = ["a", "b"].map(|handle| VolumeId::csi(&"d".into(), handle));
        node("n1");
        assert_eq!(controller.unreadable_attachment(&volume), None);
        let name = volume.attachment_name(&"n2".into());
        let revision = Some(ResourceVersion(5));
        objects.note_unreadable::<VolumeAttachment>(None, &name, None, revision, "bad".to_owned());
        assert_eq!(controller.unreadable_attachment(&volume), None, "nobody knows that node yet");
        node("n2");
        controller.take_changes(BTreeSet::from([ObjectRef::Node("n2".into())]), now);
        assert_eq!(controller.unreadable_attachment(&volume), Some(name));
        assert_eq!(controller.unreadable_attachment(&other), None);
    }
}
