//! The requests of this subsystem as values, and what can come back.
//!
//! In: names, UIDs, proofs. Out: a [`Call`] that needs nothing more to be sent.

use apiserver::{
    call::{Request, Verb},
    ids::{AttachmentName, NodeName, ResourceVersion, Uid},
    kinds::{Narrow, Node, VolumeAttachment, api_root},
};
use serde_json::json;

use crate::attach_detach::{
    guard::second_writer_role::ActTarget,
    state::{
        actual::{AttachmentCall, unpublishing::Unpublished},
        desired::{AttachSource, volume_name::VolumeId},
    },
};

/// A request about to be sent.
#[derive(Clone, Debug)]
pub enum Call {
    /// A request for one volume on a node.
    Attachment(VolumeId, NodeName, AttachmentRequest),
    /// Write `volumesAttached`, based on this revision.
    PatchNode(NodeName, ResourceVersion, Request),
    /// Read a node live.
    ReadNode(NodeName),
    /// Read who wrote the field that matters of the object with this UID (S14).
    ReadOwner(ActTarget, Uid),
}

/// A request for one volume on a node.
#[derive(Clone, Debug)]
pub enum AttachmentRequest {
    /// Create the VolumeAttachment.
    Create(Request),
    /// Delete the VolumeAttachment of this UID as it is at this revision.
    Delete(Uid, ResourceVersion, Request),
    /// Read the VolumeAttachment.
    Read(AttachmentName),
}

impl AttachmentRequest {
    /// What the volume on the node is doing while it is in flight.
    pub fn kind(&self) -> AttachmentCall {
        match self {
            Self::Create(_) => AttachmentCall::Create,
            Self::Delete(..) => AttachmentCall::Delete,
            Self::Read(_) => AttachmentCall::Read,
        }
    }
}

/// What the server answered.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A VolumeAttachment.
    Attachment(VolumeAttachment),
    /// A Node.
    Node(Node),
    /// The managers that own a field.
    Owners(Vec<String>),
    /// The object is gone for good.
    Gone,
}

/// The request that creates the VolumeAttachment of a volume and node (attach-detach §7.2).
pub fn create(volume: &VolumeId, node: &NodeName, source: &AttachSource) -> Request {
    let (driver, _) = volume.driver_and_handle();
    let source = match source {
        AttachSource::PersistentVolume(name) => json!({ "persistentVolumeName": name }),
        AttachSource::Inline(spec) => json!({ "inlineVolumeSpec": spec }),
    };
    Request {
        verb: Verb::Create,
        path: format!("{}/{}", api_root(VolumeAttachment::GROUP), VolumeAttachment::PLURAL),
        body: Some(json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": VolumeAttachment::KIND,
            "metadata": { "name": volume.attachment_name(node) },
            "spec": {
                "attacher": driver,
                "nodeName": node,
                "source": source,
            },
        })),
    }
}

/// The request that deletes the VolumeAttachment of exactly this UID and revision (S7). The proof is what entitles
/// to it. Without the revision the API server deletes an object that had no finalizers when it began, also if the
/// external-attacher has put its finalizer on since and attaches (kubernetes#77988).
pub fn delete(
    volume: &VolumeId,
    node: &NodeName,
    (uid, revision): (&Uid, ResourceVersion),
    _proof: &Unpublished,
) -> Request {
    Request {
        verb: Verb::Delete,
        path: VolumeAttachment::path(&volume.attachment_name(node)),
        body: Some(json!({ "preconditions": { "uid": uid, "resourceVersion": revision } })),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use apiserver::ids::DriverName;

    use super::*;
    #[test]
    fn s9_an_attachment_names_driver_node_and_source() {
        let (volume, node) = (VolumeId::csi(&DriverName::from("d"), "a^b"), NodeName::from("n1"));
        let inline = Arc::new(json!({ "csi": { "driver": "d", "volumeHandle": "a^b" } }));
        let cases = [
            (AttachSource::PersistentVolume("pv1".into()), json!({ "persistentVolumeName": "pv1" })),
            (AttachSource::Inline(Arc::clone(&inline)), json!({ "inlineVolumeSpec": inline })),
        ];
        for (source, expected) in cases {
            let body = create(&volume, &node, &source).body.expect("a body");
            assert_eq!(body["metadata"], json!({ "name": volume.attachment_name(&node) }));
            assert_eq!(body["spec"], json!({ "attacher": "d", "nodeName": "n1", "source": expected }));
        }
    }
}
