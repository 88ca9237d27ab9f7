//! VolumeAttachments that nothing has explained so far: neither their source, nor what their node lists.
//!
//! In: such attachments. Out: those that an object may explain that has changed, and those that a volume
//! does. The name of an attachment is a hash over its volume and node, so whether a volume explains it is
//! found out by computing the names that this volume's attachments would have: one for each node that has
//! some of its driver, once for each volume, and again only for nodes that have new ones.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    sync::Arc,
};

use apiserver::{
    ids::{AttachmentName, DriverName, NodeName, VolumeName},
    kinds::VolumeAttachment,
    tables::Relation,
};

use crate::attach_detach::state::desired::volume_name::VolumeId;
/// The attachments, and where to find them.
#[derive(Clone, Debug, Default)]
pub(in crate::attach_detach) struct Unidentified {
    attachments: HashMap<AttachmentName, Arc<VolumeAttachment>>,
    by_node: Relation<NodeName, AttachmentName>,
    by_source: Relation<VolumeName, AttachmentName>,
    places: BTreeMap<(DriverName, NodeName), DriverOnNode>,
    /// The last arrival.
    last: Arrival,
    /// Up to which arrival each volume has been held against all.
    tried: HashMap<VolumeId, Arrival>,
}

/// Place in the order in which attachments arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Arrival(u64);

/// Attachments of one driver on one node.
#[derive(Clone, Debug, Default)]
struct DriverOnNode {
    count: usize,
    last: Arrival,
}

impl Unidentified {
    /// Takes one as last seen. What it is about never changes while it is the same object.
    pub(super) fn insert(&mut self, name: &AttachmentName, attachment: Arc<VolumeAttachment>) {
        if let Some(known) = self.attachments.get_mut(name)
            && known.metadata.uid == attachment.metadata.uid
        {
            *known = attachment;
            return;
        }
        self.remove(name);
        self.last.0 += 1;
        let spec = &attachment.spec;
        self.by_node.insert(spec.node_name.clone(), name.clone());
        if let Some(source) = &spec.source.persistent_volume_name {
            self.by_source.insert(source.clone(), name.clone());
        }
        let place = self.places.entry((spec.attacher.clone(), spec.node_name.clone())).or_default();
        place.count += 1;
        place.last = self.last;
        self.attachments.insert(name.clone(), attachment);
    }

    /// It is explained, or gone.
    pub(super) fn remove(&mut self, name: &AttachmentName) {
        let Some(attachment) = self.attachments.remove(name) else { return };
        let spec = &attachment.spec;
        self.by_node.remove(&spec.node_name, name);
        if let Some(source) = &spec.source.persistent_volume_name {
            self.by_source.remove(source, name);
        }
        if let Entry::Occupied(mut place) = self.places.entry((spec.attacher.clone(), spec.node_name.clone()))
        {
            place.get_mut().count -= 1;
            if place.get().count == 0 {
                place.remove();
            }
        }
    }

    pub(super) fn get(&self, name: &AttachmentName) -> Option<&Arc<VolumeAttachment>> {
        self.attachments.get(name)
    }

    /// Those on the node.
    pub(in crate::attach_detach) fn on(&self, node: &NodeName) -> Vec<AttachmentName> {
        self.by_node.of(node.clone()).cloned().collect()
    }

    /// Those that name the PersistentVolume.
    pub(in crate::attach_detach) fn of(&self, source: &VolumeName) -> Vec<AttachmentName> {
        self.by_source.of(source.clone()).cloned().collect()
    }

    /// The nodes on which an attachment of the volume may be that it has not been held against: its name is to be
    /// computed for each, and looked up.
    pub(super) fn untried(&mut self, volume: &VolumeId) -> Vec<NodeName> {
        let tried = self.tried.get(volume).copied().unwrap_or_default();
        if tried == self.last {
            return Vec::new();
        }
        self.tried.insert(volume.clone(), self.last);
        let driver = DriverName::from(volume.driver_and_handle().0);
        let places = self.places.range((driver.clone(), NodeName::default())..);
        let places = places.take_while(|((other, _), _)| *other == driver);
        places.filter(|(_, place)| place.last > tried).map(|((_, node), _)| node.clone()).collect()
    }

    /// Forgets what the volume was held against.
    pub(super) fn forget(&mut self, volume: &VolumeId) {
        self.tried.remove(volume);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(uid: &str, driver: &str, node: &str, source: Option<&str>) -> Arc<VolumeAttachment> {
        let mut attachment = VolumeAttachment::default();
        attachment.metadata.uid = uid.into();
        attachment.spec.attacher = driver.into();
        attachment.spec.node_name = node.into();
        attachment.spec.source.persistent_volume_name = source.map(VolumeName::from);
        Arc::new(attachment)
    }

    fn nodes(unidentified: &mut Unidentified, volume: &VolumeId) -> Vec<String> {
        unidentified.untried(volume).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_volume_is_held_against_what_is_new_and_of_its_driver_only() {
        let mut unidentified = Unidentified::default();
        let volume = VolumeId::csi(&"d".into(), "h");
        assert_eq!(nodes(&mut unidentified, &volume), [""; 0]);
        unidentified.insert(&"other".into(), attachment("o", "e", "n2", None));
        for number in 0..100 {
            let name = AttachmentName::from(format!("va{number}").as_str());
            unidentified.insert(&name, attachment(&format!("u{number}"), "d", "n1", None));
        }
        assert_eq!(nodes(&mut unidentified, &volume), ["n1"], "once for a hundred");
        assert_eq!(nodes(&mut unidentified, &volume), [""; 0], "and once for all");
        unidentified.insert(&"more".into(), attachment("m", "d", "n3", None));
        assert_eq!(nodes(&mut unidentified, &volume), ["n3"]);
        unidentified.insert(&"more".into(), attachment("m", "d", "n3", None));
        assert_eq!(nodes(&mut unidentified, &volume), [""; 0], "it is the same");
        unidentified.insert(&"more".into(), attachment("anew", "d", "n4", None));
        assert_eq!(nodes(&mut unidentified, &volume), ["n4"], "it was made anew");
        unidentified.forget(&volume);
        assert_eq!(nodes(&mut unidentified, &volume), ["n1", "n4"]);
    }

    #[test]
    fn what_is_explained_or_gone_leaves_nothing_behind() {
        let mut unidentified = Unidentified::default();
        unidentified.insert(&"a".into(), attachment("a", "d", "n1", Some("pv1")));
        unidentified.insert(&"b".into(), attachment("b", "d", "n1", Some("pv1")));
        assert_eq!(unidentified.on(&"n1".into()), ["a".into(), "b".into()]);
        assert_eq!(unidentified.of(&"pv1".into()), ["a".into(), "b".into()]);
        unidentified.remove(&"a".into());
        assert_eq!(unidentified.on(&"n1".into()), ["b".into()]);
        assert_eq!(unidentified.of(&"pv1".into()), ["b".into()]);
        assert_eq!(nodes(&mut unidentified, &VolumeId::csi(&"d".into(), "h")), ["n1"]);
        unidentified.remove(&"b".into());
        unidentified.remove(&"b".into());
        assert_eq!(nodes(&mut unidentified, &VolumeId::csi(&"d".into(), "other")), [""; 0]);
        let Unidentified { attachments, places, .. } = &unidentified;
        assert!(attachments.is_empty() && places.is_empty());
        assert!(unidentified.on(&"n1".into()).is_empty() && unidentified.of(&"pv1".into()).is_empty());
    }
}
