//! VolumeAttachments that nothing has explained so far: neither their source, nor what their node lists.
//!
//! In: such attachments. Out: those that an object may explain that has changed, and those that a volume
//! does. The name of an attachment is a hash over its volume and node, so whether a volume explains it is
//! found out by computing the names that this volume's attachments would have: one for each node that has
//! some of its driver, once for each volume, and again only for nodes that have new ones.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use apiserver::{
    ids::{AttachmentName, DriverName, NodeName, VolumeName},
    kinds::{AttachmentSpec, VolumeAttachment},
};

use crate::attach_detach::state::desired::volume_name::VolumeId;

/// The attachments, and on which nodes those of each driver are.
#[derive(Clone, Debug, Default)]
pub(super) struct Unidentified {
    attachments: BTreeMap<AttachmentName, Arc<VolumeAttachment>>,
    /// When the last of a driver on a node arrived, in the order of arrivals.
    places: BTreeMap<(DriverName, NodeName), u64>,
    /// The last arrival.
    last: u64,
    /// Up to which arrival each volume has been held against all.
    tried: HashMap<VolumeId, u64>,
}

impl Unidentified {
    /// Takes one as last seen. What it is about never changes while it is the same object.
    pub(super) fn insert(&mut self, name: &AttachmentName, attachment: Arc<VolumeAttachment>) {
        if self.get(name).is_none_or(|known| known.metadata.uid != attachment.metadata.uid) {
            self.remove(name);
            self.last += 1;
            self.places.insert(place(&attachment.spec), self.last);
        }
        self.attachments.insert(name.clone(), attachment);
    }

    /// It is explained, or gone.
    pub(super) fn remove(&mut self, name: &AttachmentName) {
        let Some(attachment) = self.attachments.remove(name) else { return };
        let AttachmentSpec { attacher, node_name, .. } = &attachment.spec;
        if self.names(|it| it.attacher == *attacher && it.node_name == *node_name).next().is_none() {
            self.places.remove(&place(&attachment.spec));
        }
    }

    pub(super) fn get(&self, name: &AttachmentName) -> Option<&Arc<VolumeAttachment>> {
        self.attachments.get(name)
    }

    fn names(&self, is_meant: impl Fn(&AttachmentSpec) -> bool) -> impl Iterator<Item = &AttachmentName> {
        self.attachments.iter().filter(move |(_, it)| is_meant(&it.spec)).map(|(name, _)| name)
    }

    /// Those on the node.
    pub(super) fn on(&self, node: &NodeName) -> Vec<AttachmentName> {
        self.names(|it| it.node_name == *node).cloned().collect()
    }

    /// Those that name the PersistentVolume.
    pub(super) fn of(&self, source: &VolumeName) -> Vec<AttachmentName> {
        self.names(|it| it.source.persistent_volume_name.as_ref() == Some(source)).cloned().collect()
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
        places.filter(|(_, last)| **last > tried).map(|((_, node), _)| node.clone()).collect()
    }

    /// Forgets what the volume was held against.
    pub(super) fn forget(&mut self, volume: &VolumeId) {
        self.tried.remove(volume);
    }
}

fn place(spec: &AttachmentSpec) -> (DriverName, NodeName) {
    (spec.attacher.clone(), spec.node_name.clone())
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
