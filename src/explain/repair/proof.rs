//! What is demanded of a repair, and what speaks against it; and what the three repairs have in common.

use std::sync::Arc;

use apiserver::{
    ids::{ClaimKey, VolumeName},
    kinds::{Narrow, Node, PersistentVolume, PersistentVolumeClaim, VolumeAttachment},
    tables::Stored,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    attach_detach::state::desired::{
        volume_name::VolumeId,
        volume_source::{Storage, of_persistent_volume},
    },
    binder::{
        annotations::{
            BETA_STORAGE_PROVISIONER, BIND_COMPLETED, BOUND_BY_CONTROLLER, STORAGE_PROVISIONER, has,
        },
        matching::predicate::{Requirements, mismatch_for_named},
    },
    explain::snapshot::Snapshot,
};

/// Requests, and what becomes of it.
pub(super) type Proposal = (Vec<RepairWrite>, String);

/// A request as it will be sent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RepairWrite {
    /// `PATCH`.
    pub method: &'static str,
    /// Path of the URL.
    pub path: String,
    /// Body, with UID and revision.
    pub body: Value,
}

/// What a repair found out.
#[derive(Debug, Default)]
pub(super) struct Proof {
    pub against: Vec<String>,
    pub proven: Vec<String>,
    pub is_missing: bool,
    pub is_unseen: bool,
}

impl Proof {
    /// Something has to be so.
    pub fn demand(&mut self, holds: bool, proof: impl Into<String>, against: impl Into<String>) {
        if holds {
            self.proven.push(proof.into());
        } else {
            self.against.push(against.into());
        }
    }

    /// Something has not to be so.
    pub fn refuse_if(&mut self, holds: bool, against: impl Into<String>) {
        if holds {
            self.against.push(against.into());
        }
    }

    /// A table has to have been read whole: an object in it that cannot be read may be what speaks against it (S42).
    pub fn demand_list<T: Stored>(&mut self, snapshot: &Snapshot) {
        if !snapshot.is_whole::<T>() {
            self.is_unseen = true;
            self.against
                .push(format!("{} could not all be read: nothing is proven by those that were", T::PLURAL));
        }
    }

    /// The object, which has to be there and whole.
    pub fn demand_object<T: Stored>(&mut self, snapshot: &Snapshot, key: &T::Key) -> Option<Arc<T>> {
        let object = T::table(&snapshot.objects).get(key);
        match &object {
            None => {
                self.is_missing |= snapshot.is_absent(&T::object_ref(key.clone()));
                self.is_unseen |= !self.is_missing;
                self.against.push(format!("{} was not found", T::object_ref(key.clone())));
            }
            Some(object) => {
                let metadata = object.metadata();
                self.refuse_if(
                    metadata.uid.is_empty() || metadata.resource_version.0 == 0,
                    format!("{} has no UID and revision to name", T::object_ref(key.clone())),
                );
            }
        }
        object
    }
}

/// A claim that is to get a volume has not asked a provisioner for one.
pub(super) fn refuse_asked(claim: &PersistentVolumeClaim, proof: &mut Proof) {
    let is_asked =
        has(&claim.metadata, STORAGE_PROVISIONER) || has(&claim.metadata, BETA_STORAGE_PROVISIONER);
    proof.refuse_if(
        claim.spec.volume_name.is_empty() && is_asked && !has(&claim.metadata, BIND_COMPLETED),
        format!(
            "the claim pvc/{} waits for a provisioner, which may create a volume at any moment: the claim would have two",
            claim.metadata.name
        ),
    );
}

/// A merge patch that does something to this object at this revision alone.
pub(super) fn patch<T: Narrow>(object: &T, mut metadata: Value, rest: Value) -> RepairWrite {
    let meta = object.metadata();
    if let Some(fields) = metadata.as_object_mut() {
        fields.insert("uid".to_owned(), json!(meta.uid));
        fields.insert("resourceVersion".to_owned(), json!(meta.resource_version));
    }
    let mut body = rest;
    if let Some(fields) = body.as_object_mut() {
        fields.insert("metadata".to_owned(), metadata);
    }
    RepairWrite { method: "PATCH", path: T::path(&object.key()), body }
}

/// What takes the annotation off by which a controller that undoes a bind frees the volume for anybody.
pub(super) fn unmarked(volume: &PersistentVolume) -> Value {
    let is_marked = has(&volume.metadata, BOUND_BY_CONTROLLER);
    if is_marked { json!({ "annotations": { BOUND_BY_CONTROLLER: null } }) } else { json!({}) }
}

/// The volume as kubelets name it, an in-tree one as the CSI volume that it is today; `None` of one that is never attached.
pub(super) fn identity(volume: &PersistentVolume) -> Option<VolumeId> {
    of_persistent_volume(&volume.metadata, &volume.spec).ok().and_then(Storage::id)
}

/// No other volume may be the same disk. Of what is never attached (a directory, an export) nothing tells.
pub(super) fn demand_alone(snapshot: &Snapshot, volume: &PersistentVolume, proof: &mut Proof) {
    if let Err(error) = of_persistent_volume(&volume.metadata, &volume.spec) {
        proof.against.push(format!("its source leads nowhere: {error}"));
    }
    let Some(id) = identity(volume) else { return };
    let is_same = |other: VolumeId| may_be_same(&id, &other);
    let twins = snapshot.keys(|other: &PersistentVolume| {
        other.metadata.name != volume.metadata.name && identity(other).is_some_and(is_same)
    });
    let against =
        format!("its handle is that of {}, too: two claims would write to one disk", listed(&twins));
    if volume.spec.csi.is_some() {
        proof.demand(twins.is_empty(), "no other volume has its handle", against);
    } else {
        // One disk has many names in a source that is not CSI's.
        proof.refuse_if(!twins.is_empty(), against);
    }
}

/// Whether two names may be of one disk: what in-tree plugins leave unspecified may be anything, and some clouds know no case.
pub(super) fn may_be_same(one: &VolumeId, other: &VolumeId) -> bool {
    let (one, other) = (one.as_str().split('/'), other.as_str().split('/'));
    let is_same = |(one, other): (&str, &str)| {
        one.eq_ignore_ascii_case(other) || [one, other].iter().any(|part| part.ends_with("UNSPECIFIED"))
    };
    one.clone().count() == other.clone().count() && one.zip(other).all(is_same)
}

/// Claims that name a volume, other than this one.
pub(super) fn claimants(snapshot: &Snapshot, name: &VolumeName, but: Option<&ClaimKey>) -> Vec<ClaimKey> {
    snapshot
        .keys(|claim: &PersistentVolumeClaim| claim.spec.volume_name == *name && Some(&claim.key()) != but)
}

/// It may be attached to no node, nor listed or used there. What is never attached is not asked for.
pub(super) fn demand_detached(snapshot: &Snapshot, volume: &PersistentVolume, proof: &mut Proof) {
    let Some(id) = identity(volume) else { return };
    let attachments = snapshot.all(|attachment: &VolumeAttachment| {
        attachment.spec.source.persistent_volume_name == Some(volume.key())
            || id.attachment_name(&attachment.spec.node_name) == attachment.key()
    });
    let mut nodes = snapshot.keys(|node: &Node| node.lists(id.as_str()) || node.uses(id.as_str()));
    nodes.extend(attachments.iter().map(|attachment| attachment.spec.node_name.clone()));
    nodes.sort();
    nodes.dedup();
    proof.demand(
        nodes.is_empty(),
        "it is attached to no node",
        format!("it is still attached to {}: its last user may write yet", listed(&nodes)),
    );
}

pub(super) fn listed<T: ToString>(names: &[T]) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

pub(super) fn suits(claim: &PersistentVolumeClaim, volume: &PersistentVolume, proof: &mut Proof) {
    let mismatch = Requirements::of(claim).map(|requirements| {
        let mut reserved = volume.clone();
        reserved.spec.claim_ref = None;
        mismatch_for_named(&reserved, &requirements)
    });
    match mismatch {
        Ok(None) => proof.proven.push("size, modes and class suit".to_owned()),
        Ok(Some(mismatch)) => {
            proof.against.push(format!("pv/{} does not suit: {}", volume.metadata.name, mismatch.code()));
        }
        Err(unreadable) => proof.against.push(format!("the claim cannot be read: {unreadable}")),
    }
}
