//! What another process did: the mutations between two revisions of an object. Pure.
//!
//! In: an object before and after. Out: each change that is for one of the storage loops to make. What the attacher, the
//! provisioner, the kubelet and people write is none: the status and finalizers of an attachment, volumes that appear, the
//! list of what is in use.

use std::{collections::BTreeSet, sync::Arc};

use apiserver::{
    ids::{AttributesClassName, ClaimKey, Uid, VolumeName},
    kinds::{
        Meta, Narrow, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, VolumeAttachment,
        VolumeAttributesClass,
    },
    tables::Objects,
};
use serde_json::Value;

use super::mutation::{Mutation, MutationKind};
use crate::binder::annotations::{BIND_COMPLETED, MIGRATED_TO, STORAGE_PROVISIONER};
use crate::controller::finalizer::Protected as _;
use crate::expander::calls::STORAGE_RESIZER;

/// Finalizers of the three protection controllers.
const PROTECTION: [&str; 3] = [ClaimKey::FINALIZER, VolumeName::FINALIZER, AttributesClassName::FINALIZER];
/// Finalizers that the binder puts on volumes; those who delete the storage take them off.
const DELETION_PROTECTION: [&str; 2] =
    ["external-provisioner.volume.kubernetes.io/finalizer", "kubernetes.io/pv-controller"];

/// An object at one revision, of a kind that the storage loops write to.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    Attachment(Arc<VolumeAttachment>),
    Node(Arc<Node>),
    Volume(Arc<PersistentVolume>),
    Claim(Arc<PersistentVolumeClaim>),
    Class(Arc<VolumeAttributesClass>),
}

impl Shape {
    /// The object as the tables show it.
    pub(super) fn of(world: &Objects, object: &ObjectRef) -> Option<Self> {
        Some(match object {
            ObjectRef::Attachment(name) => Self::Attachment(world.attachments.get(name)?),
            ObjectRef::Node(name) => Self::Node(world.nodes.get(name)?),
            ObjectRef::Volume(name) => Self::Volume(world.volumes.get(name)?),
            ObjectRef::Claim(key) => Self::Claim(world.claims.get(key)?),
            ObjectRef::AttributesClass(name) => Self::Class(world.attributes_classes.get(name)?),
            ObjectRef::Pod(_) | ObjectRef::Class(_) | ObjectRef::Driver(_) => return None,
        })
    }

    /// What all kinds have.
    pub(super) fn meta(&self) -> &Meta {
        match self {
            Self::Attachment(attachment) => &attachment.metadata,
            Self::Node(node) => &node.metadata,
            Self::Volume(volume) => &volume.metadata,
            Self::Claim(claim) => &claim.metadata,
            Self::Class(class) => &class.metadata,
        }
    }

    /// The object after a patch.
    pub(super) fn patched(mut self, body: &Value) -> Self {
        match &mut self {
            Self::Attachment(_) => {}
            Self::Node(node) => Arc::make_mut(node).patch(body),
            Self::Volume(volume) => Arc::make_mut(volume).patch(body),
            Self::Claim(claim) => Arc::make_mut(claim).patch(body),
            Self::Class(class) => Arc::make_mut(class).metadata.patch(body),
        }
        self
    }
}

/// The mutations between two revisions of one object.
pub(super) fn acts(before: Option<&Shape>, after: Option<&Shape>) -> Vec<Mutation> {
    // Of another UID, it is another object.
    let is = after.filter(|is| before.is_none_or(|was| was.meta().uid == is.meta().uid));
    match (before, is) {
        (None, Some(Shape::Attachment(made))) => {
            vec![attachment(MutationKind::Attach, made, &Uid::default())]
        }
        (Some(Shape::Attachment(was)), is) => {
            let mut found = Vec::new();
            if !was.metadata.is_terminating() && is.is_none_or(|is| is.meta().is_terminating()) {
                found.push(attachment(MutationKind::Detach, was, &was.metadata.uid));
            }
            if let (None, Some(Shape::Attachment(made))) = (is, after) {
                found.push(attachment(MutationKind::Attach, made, &Uid::default()));
            }
            found
        }
        (Some(Shape::Node(was)), Some(Shape::Node(is))) => list(was, is),
        (Some(Shape::Volume(was)), Some(Shape::Volume(is))) => volume(was, is),
        (Some(Shape::Volume(was)), _) => {
            let mut found = finalizers(&**was, &Meta::default());
            found.push(deleted(was));
            found
        }
        (None, Some(Shape::Claim(made))) => {
            let is_of_pod = made.metadata.controller().is_some_and(|owner| owner.kind == "Pod");
            let object = ObjectRef::Claim(made.key());
            let created = Mutation::new(MutationKind::CreateClaim, object, &Uid::default(), "");
            if is_of_pod { vec![created] } else { Vec::new() }
        }
        (Some(Shape::Claim(was)), Some(Shape::Claim(is))) => claim(was, is),
        (Some(Shape::Claim(was)), _) => finalizers(&**was, &Meta::default()),
        (Some(Shape::Class(was)), is) => finalizers(&**was, is.map_or(&Meta::default(), Shape::meta)),
        _ => Vec::new(),
    }
}

fn of<T: Narrow>(kind: MutationKind, object: &T, value: &str) -> Mutation {
    Mutation::new(kind, T::object_ref(object.key()), &object.metadata().uid, value)
}

fn attachment(kind: MutationKind, object: &VolumeAttachment, uid: &Uid) -> Mutation {
    let mutation = Mutation::new(kind, ObjectRef::Attachment(object.key()), uid, "");
    mutation.on(&object.spec.node_name)
}

/// A volume that goes.
pub(super) fn deleted(volume: &PersistentVolume) -> Mutation {
    of(MutationKind::DeleteVolume, volume, "")
}

fn list(was: &Node, is: &Node) -> Vec<Mutation> {
    let names = |node: &Node| -> BTreeSet<String> {
        node.status.volumes_attached.iter().map(|entry| entry.name.to_string()).collect()
    };
    let (known, list) = (names(was), names(is));
    let change = |kind, volume: &String| of(kind, was, volume).on(&was.key());
    let added = list.difference(&known).map(|volume| change(MutationKind::List, volume));
    added.chain(known.difference(&list).map(|volume| change(MutationKind::Unlist, volume))).collect()
}

fn volume(was: &PersistentVolume, is: &PersistentVolume) -> Vec<Mutation> {
    let mut found = Vec::new();
    let uid = |volume: &PersistentVolume| {
        volume.spec.claim_ref.as_ref().map(|claim| claim.uid.clone()).filter(|uid| !uid.is_empty())
    };
    match (uid(was), uid(is), &is.spec.claim_ref) {
        (before, Some(after), Some(claim)) if before.as_ref() != Some(&after) => {
            let object = ObjectRef::Claim(claim.key());
            let mutation = Mutation::new(MutationKind::Reserve, object, &after, "");
            found.push(Mutation { volume: Some(is.key()), ..mutation });
        }
        (Some(_), None, _) => found.push(of(MutationKind::Unreserve, is, "")),
        _ => {}
    }
    if was.status.phase != is.status.phase {
        found.push(of(MutationKind::VolumePhase, is, <&str>::from(is.status.phase)));
    }
    if is.metadata.annotation(MIGRATED_TO) != was.metadata.annotation(MIGRATED_TO) {
        found.push(of(MutationKind::Annotate, is, MIGRATED_TO));
    }
    found.extend(finalizers(was, &is.metadata));
    found
}

fn claim(was: &PersistentVolumeClaim, is: &PersistentVolumeClaim) -> Vec<Mutation> {
    let mut found = Vec::new();
    let gained = |key| was.metadata.annotation(key).is_none() && is.metadata.annotation(key).is_some();
    if was.spec.storage_class_name.is_none() && is.spec.storage_class_name.is_some() {
        found.push(of(MutationKind::AssignClass, is, ""));
    }
    if was.spec.volume_name.is_empty() && !is.spec.volume_name.is_empty() || gained(BIND_COMPLETED) {
        found.push(of(MutationKind::NameVolume, is, ""));
    }
    if gained(STORAGE_PROVISIONER) {
        found.push(of(MutationKind::AskProvisioner, is, ""));
    }
    if gained(STORAGE_RESIZER) {
        found.push(of(MutationKind::AskResizer, is, ""));
    }
    if was.status.phase != is.status.phase {
        found.push(of(MutationKind::ClaimPhase, is, <&str>::from(is.status.phase)));
    }
    found.extend(finalizers(was, &is.metadata));
    found
}

/// The changes of the finalizers of an object that are for a storage loop to make. With its last one an object goes.
fn finalizers<T: Narrow>(was: &T, is: &Meta) -> Vec<Mutation> {
    let names =
        |meta: &Meta| -> BTreeSet<String> { meta.finalizers.iter().map(ToString::to_string).collect() };
    let (known, is) = (names(was.metadata()), names(is));
    let mut found = Vec::new();
    for name in PROTECTION {
        match (known.contains(name), is.contains(name)) {
            (false, true) => found.push(of(MutationKind::Protect, was, name)),
            (true, false) => found.push(of(MutationKind::Unprotect, was, name)),
            _ => {}
        }
    }
    let added = DELETION_PROTECTION.iter().filter(|name| is.contains(**name) && !known.contains(**name));
    found.extend(added.map(|name| of(MutationKind::Annotate, was, name)));
    found
}
