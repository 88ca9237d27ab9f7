//! What keeps a volume from being touched although the rules would allow it: a restore of etcd (E11), an object that
//! cannot be read (S42).
//!
//! In: the grace after a restore, the markers in the tables. Out: whether that grace has just ended, and per node the
//! object that has to be readable first.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    attach_detach::{actual::state::ActualState, desired::volume_name::VolumeId, known::Known},
    kube_api::{
        ids::{AttachmentName, NodeName},
        kinds::{Node, VolumeAttachment},
    },
    state::{Objects, VecMap},
};

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

    /// A VolumeAttachment that cannot be read and that is, or may be, about this volume.
    pub(in crate::attach_detach) fn of(
        &mut self,
        volume: &VolumeId,
        objects: &Objects,
        actual: &ActualState,
    ) -> Option<AttachmentName> {
        if objects.attachments.unreadable_count() == 0 {
            *self = Self::default();
            return None;
        }
        let unreadable = objects.attachments.all_unreadable();
        let names: Vec<AttachmentName> = unreadable.into_iter().map(|(name, _)| name).collect();
        if self.names != names {
            *self = Self { names, found: HashMap::new() };
        }
        let names = &self.names;
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
        self.found.entry(volume.clone()).or_insert_with(find).clone()
    }
}

/// Until when nothing is taken away after a restore of etcd.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::attach_detach) struct Grace(Option<Instant>);

impl Grace {
    /// When it ends, if there is one.
    pub(in crate::attach_detach) fn ends_at(self) -> Option<Instant> {
        self.0
    }

    /// Takes how much of it is left. Returns whether it has just ended.
    pub(in crate::attach_detach) fn ends(&mut self, left: Option<Duration>, now: Instant) -> bool {
        let before = mem::replace(&mut self.0, left.map(|left| now + left));
        before.is_some() && left.is_none()
    }
}

/// The nodes on which nothing may be done about a volume, each with the object that cannot be read: the node itself, or
/// an `attachment` of the volume.
pub(in crate::attach_detach) fn unreadable_on(
    volume: &VolumeId,
    attachment: Option<&AttachmentName>,
    Known { objects, desired, actual, .. }: Known<'_>,
) -> BTreeMap<NodeName, String> {
    let (of_nodes, of_attachments) =
        (objects.nodes.unreadable_count(), objects.attachments.unreadable_count());
    if of_nodes + of_attachments == 0 {
        return BTreeMap::new();
    }
    let held = actual.volume(volume).into_iter().flat_map(|state| state.nodes.keys());
    let nodes: BTreeSet<&NodeName> =
        desired.nodes(volume).into_iter().flat_map(VecMap::keys).chain(held).collect();
    let mut blocked = BTreeMap::new();
    let unreadable = nodes.iter().filter(|node| objects.unreadable::<Node>(node).is_some());
    blocked.extend(unreadable.map(|node| ((*node).clone(), format!("node/{node}"))));
    // On any node the volume may be attached by it: it must not get to another.
    let of_unknown_node = || {
        let is_unreadable = |name: &AttachmentName| objects.unreadable::<VolumeAttachment>(name).is_some();
        (of_attachments > 0)
            .then(|| nodes.iter().map(|node| volume.attachment_name(node)).find(is_unreadable))
            .flatten()
    };
    if let Some(name) = attachment.cloned().or_else(of_unknown_node) {
        blocked.extend(nodes.iter().map(|node| ((*node).clone(), format!("volumeattachment/{name}"))));
    }
    blocked
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Arc};

    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::{
        attach_detach::{clock::Clock, controller::Controller, options::AttachDetachOptions},
        kube_api::{ids::ResourceVersion, kinds::ObjectRef},
    };

    #[test]
    fn e11_the_grace_after_a_restore_ends_once() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut grace = Grace::default();
        for (left, ends_at, ends) in [
            (None, None, false),
            (Some(second), Some(now + second), false),
            (None, None, true),
            (None, None, false),
        ] {
            assert_eq!((grace.ends(left, now), grace.ends_at()), (ends, ends_at), "{left:?}");
        }
    }

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
        controller.take_over(now);
        let unreadable = |controller: &mut Controller, volume: &VolumeId| {
            controller.unreadable.of(volume, &controller.caches.objects, &controller.caches.actual)
        };
        let [volume, other] = ["a", "b"].map(|handle| VolumeId::csi(&"d".into(), handle));
        node("n1");
        assert_eq!(unreadable(&mut controller, &volume), None);
        let name = volume.attachment_name(&"n2".into());
        let revision = Some(ResourceVersion(5));
        objects.note_unreadable::<VolumeAttachment>(None, &name, None, revision, "bad".to_owned());
        assert_eq!(unreadable(&mut controller, &volume), None, "nobody knows that node yet");
        node("n2");
        controller.take_changes(BTreeSet::from([ObjectRef::Node("n2".into())]), now);
        assert_eq!(unreadable(&mut controller, &volume), Some(name));
        assert_eq!(unreadable(&mut controller, &other), None);
    }
}
