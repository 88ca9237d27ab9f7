//! Which volume a VolumeAttachment is about, from its content (H5).
//!
//! In: the attachment and the tables. Out: [`Candidates`]: the volume that its source names, be that a
//! PersistentVolume or a spec of its own, CSI or in-tree; what that PersistentVolume was without its labels; and for the
//! case that it is gone, what the node's status lists or has in use; and which of them explains the attachment's name.
//! The [actual state](super::state) also tries every volume that comes to be desired.

use apiserver::{
    ids::{NodeName, Uid, VolumeName},
    kinds::{Meta, VolumeAttachment},
    tables::Objects,
};

use crate::attach_detach::state::desired::{
    volume_name::{VolumeId, VolumeKind},
    volume_source::{CsiVolume, csi_volume, source_of},
};

/// What a VolumeAttachment is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::attach_detach) struct AttachmentIdentity {
    /// Of which object of that name.
    pub(super) uid: Uid,
    pub(in crate::attach_detach) volume: VolumeId,
    pub(in crate::attach_detach) node: NodeName,
    pub(in crate::attach_detach) ours: bool,
    /// The PersistentVolume that it names.
    pub(in crate::attach_detach) source: Option<VolumeName>,
    /// Other volumes that it holds: its name is of one, and its source is, or was, of another.
    pub(super) second_volumes: Vec<VolumeId>,
    /// Whether its source may be on one node only.
    pub(super) is_exclusive: bool,
}

/// The volumes that a VolumeAttachment may be about.
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    /// What its source says, if that can be read.
    pub source: Option<VolumeId>,
    /// Whether that may be on one node only.
    pub is_exclusive: bool,
    /// What its node's status lists, and what its source was without labels, unless the source explains the name.
    pub published: Vec<VolumeId>,
}

/// Ours is an attachment whose name is the hash of the volume it is about. One that its source
/// explains, but under another name, is another party's (S12, conformance tests make such).
pub(super) fn identify(attachment: &VolumeAttachment, candidates: Candidates) -> Option<AttachmentIdentity> {
    let Candidates { source, published, is_exclusive } = candidates;
    let identity = |volume, ours, second_volume: Option<VolumeId>| AttachmentIdentity {
        uid: attachment.metadata.uid.clone(),
        volume,
        node: attachment.spec.node_name.clone(),
        ours,
        source: attachment.spec.source.persistent_volume_name.clone(),
        second_volumes: second_volume.into_iter().collect(),
        is_exclusive,
    };
    if let Some(volume) = source.iter().chain(&published).find(|volume| is_named_after(attachment, volume)) {
        let second_volume = source.clone().filter(|source| source != volume);
        return Some(identity(volume.clone(), true, second_volume));
    }
    source.map(|volume| identity(volume, false, None))
}

/// The name alone is not enough: what it is the hash of is joined without separators (H6).
pub(super) fn is_named_after(attachment: &VolumeAttachment, volume: &VolumeId) -> bool {
    let spec = &attachment.spec;
    *volume.driver_and_handle().0 == *spec.attacher.as_str()
        && *volume.attachment_name(&spec.node_name).as_str() == *attachment.metadata.name
}

/// The volumes that a VolumeAttachment may be about.
pub fn candidates(objects: &Objects, attachment: &VolumeAttachment) -> Candidates {
    let source = source_of(objects, attachment);
    // Of most the source explains the name, and what the node lists need not be read.
    let is_explained = source.as_ref().is_some_and(|volume| is_named_after(attachment, &volume.id));
    let node = objects.nodes.get(&attachment.spec.node_name).filter(|_| !is_explained);
    let listed = node.iter().flat_map(|node| &node.status.volumes_attached).map(|entry| entry.name.as_ref());
    let in_use = node.iter().flat_map(|node| &node.status.volumes_in_use).map(AsRef::as_ref);
    let named = attachment.spec.source.persistent_volume_name.as_ref().filter(|_| !is_explained);
    let earlier = named.and_then(|name| unlabelled(objects, name));
    let parse = |name: &str| VolumeId::parse(name).filter(|volume| volume.kind() == VolumeKind::Csi);
    Candidates {
        is_exclusive: source.as_ref().is_some_and(CsiVolume::is_exclusive),
        source: source.map(|volume| volume.id),
        published: listed.chain(in_use).filter_map(parse).chain(earlier).collect(),
    }
}

/// What a PersistentVolume was before it was labelled: the handle of an in-tree disk has its zone in it.
fn unlabelled(objects: &Objects, name: &VolumeName) -> Option<VolumeId> {
    let volume = objects.volumes.get(name)?;
    volume.spec.in_tree.as_ref()?;
    let metadata = Meta { labels: apiserver::text::TextMap::default(), ..volume.metadata.clone() };
    csi_volume(&metadata, &volume.spec).map(|volume| volume.id)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use apiserver::{
        ids::{DriverName, NodeName},
        kinds::{Node, PersistentVolume},
    };
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::{
        super::{node_volume::NodeVolume, state::ActualState},
        *,
    };
    fn attachment(source: &Value) -> VolumeAttachment {
        let object = json!({
            "metadata": {"name": "va", "resourceVersion": "1"},
            "spec": {"attacher": "d", "nodeName": "n1", "source": source},
        });
        serde_json::from_value(object).expect("a VolumeAttachment")
    }

    fn volume(metadata: &Value, spec: &Value) -> PersistentVolume {
        let mut object = json!({"metadata": metadata, "spec": spec});
        object["metadata"]["name"] = json!("pv1");
        object["metadata"]["resourceVersion"] = json!("1");
        serde_json::from_value(object).expect("a PersistentVolume")
    }

    #[test]
    fn the_source_says_which_volume_it_is() {
        let by_name = json!({"persistentVolumeName": "pv1"});
        let ebs = json!({"awsElasticBlockStore": {"volumeID": "aws://us-west-2a/vol-1"}});
        let inline = |spec: &Value| json!({"inlineVolumeSpec": spec});
        let csi = json!({"csi": {"driver": "d", "volumeHandle": "a^b"}});
        let zone = json!({"labels": {"topology.kubernetes.io/zone": "us-east1-a"}});
        let disk = json!({"gcePersistentDisk": {"pdName": "disk"}});
        let cases = [
            ("CSI volume", by_name.clone(), Some((&json!({}), &csi)), Some("d^a^b")),
            ("in-tree volume", by_name.clone(), Some((&json!({}), &ebs)), Some("ebs.csi.aws.com^vol-1")),
            (
                "C-09 in-tree volume with zone",
                by_name.clone(),
                Some((&zone, &disk)),
                Some("pd.csi.storage.gke.io^projects/UNSPECIFIED/zones/us-east1-a/disks/disk"),
            ),
            ("iSCSI volume", by_name.clone(), Some((&json!({}), &json!({"iscsi": {"iqn": "i"}}))), None),
            ("malformed volume", by_name.clone(), Some((&json!({}), &json!({"cinder": 7}))), None),
            ("volume that is gone", by_name, None, None),
            ("H5 inline CSI spec", inline(&csi), None, Some("d^a^b")),
            ("H5 inline in-tree spec", inline(&ebs), None, Some("ebs.csi.aws.com^vol-1")),
            ("malformed inline spec", inline(&json!({"csi": "no"})), None, None),
            ("no source", json!({}), None, None),
        ];
        for (name, source, object, expected) in cases {
            let objects = Objects::default();
            if let Some((metadata, spec)) = object {
                objects.apply(volume(metadata, spec));
            }
            let seen = candidates(&objects, &attachment(&source)).source;
            let expected = expected.map(|name| format!("kubernetes.io/csi/{name}"));
            assert_eq!(seen.map(|volume| volume.to_string()), expected, "{name}");
        }
    }

    #[test]
    fn h5_when_the_volume_is_gone_the_node_may_still_know_it() {
        let objects = Objects::default();
        let node = json!({
            "metadata": {"name": "n1", "resourceVersion": "1"},
            "status": {"volumesAttached": [
                {"name": "kubernetes.io/csi/d^h", "devicePath": ""},
                {"name": "kubernetes.io/iscsi/1.2.3.4:3260:iqn:0", "devicePath": ""},
                {"name": "example.com/flex/x", "devicePath": ""},
            ]},
        });
        objects.apply::<Node>(serde_json::from_value(node).expect("a Node"));
        let attachment = attachment(&json!({"persistentVolumeName": "gone"}));
        assert_eq!(attachment.spec.node_name, NodeName::from("n1"));
        let published = candidates(&objects, &attachment).published;
        assert_eq!(published, [VolumeId::csi(&DriverName::from("d"), "h")]);
    }

    #[test]
    fn h5_attachments_of_inline_volumes_are_found_again_after_a_restart() {
        let node = NodeName::from("n1");
        let sources = [
            json!({"csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1"}}),
            json!({"awsElasticBlockStore": {"volumeID": "aws://us-west-2a/vol-1"}}),
        ];
        for source in sources {
            let volume = VolumeId::csi(&DriverName::from("ebs.csi.aws.com"), "vol-1");
            let name = volume.attachment_name(&node);
            let mut attachment = attachment(&json!({"inlineVolumeSpec": source}));
            attachment.metadata.name = name.as_str().into();
            attachment.spec.attacher = DriverName::from("ebs.csi.aws.com");
            let mut actual = ActualState::default();
            let objects = Objects::default();
            let about = |attachment: &VolumeAttachment| candidates(&objects, attachment);
            let now = Timestamp::UNIX_EPOCH;
            let found = actual.observe_attachment(&name, Some(Arc::new(attachment)), about, now);
            assert_eq!(found, Some((volume.clone(), node.clone())));
            assert!(actual.node_volume(&volume, &node).is_some_and(NodeVolume::may_be_attached));
        }
    }
}
