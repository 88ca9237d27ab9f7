//! An attachment that nothing will take away: its node is gone, its driver was removed, and it never was attached.
//!
//! In: the attachment and all that it leads to. Out: the attacher's finalizer goes, and only where a disk cannot come to
//! be written from two machines by it (S1, S4): not attached and without an error, its node gone, its attacher proven to
//! be gone, and no claim bound to its volume. A node's absence does not prove its machine off (H9), so that what may
//! be attached stays until its driver says otherwise.

use std::time::Duration;

use apiserver::{
    ids::AttachmentName,
    kinds::{
        Narrow, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment, VolumePhase,
    },
    text::Text,
};
use serde_json::json;

use super::proof::{Proof, Proposal, identity, may_be_same, patch};
use crate::{
    attach_detach::state::desired::volume_name::VolumeId,
    explain::{
        sidecars::{Presence, Sidecar, Sidecars, attacher_finalizer},
        snapshot::Snapshot,
    },
};

/// Two of the longest pauses of the side-cars.
const STUCK_AFTER: Duration = Duration::from_mins(10);

pub(super) fn propose(snapshot: &Snapshot, name: &AttachmentName, proof: &mut Proof) -> Option<Proposal> {
    let attachment = proof.demand_object::<VolumeAttachment>(snapshot, name);
    proof.demand_list::<Node>(snapshot);
    proof.demand_list::<Pod>(snapshot);
    proof.demand_list::<PersistentVolume>(snapshot);
    // Whether a pod wants the volume, its claim tells.
    proof.demand_list::<PersistentVolumeClaim>(snapshot);
    let attachment = attachment?;
    let node = &attachment.spec.node_name;
    let driver = attachment.spec.attacher.as_str();
    let now = snapshot.taken_at;
    let deleted = attachment.metadata.deletion_timestamp.as_deref().copied();
    let is_stuck = deleted.and_then(|at| at.checked_add(STUCK_AFTER).ok()).is_some_and(|until| until < now);
    proof.demand(
        is_stuck,
        "it has been deleted for more than ten minutes",
        "it is not being deleted, or for less than ten minutes: the controller or its attacher may still remove it",
    );
    let status = &attachment.status;
    proof.demand(
        !status.attached,
        "it is not attached",
        "it is ATTACHED: without its finalizer the disk may be written from two machines. Bring the attacher back",
    );
    proof.demand(
        status.attach_error.is_none() && status.detach_error.is_none(),
        "its driver reported no error",
        "its driver reported an error: the volume may be attached all the same. Bring the attacher back",
    );
    proof.demand(
        snapshot.is_absent(&ObjectRef::Node(node.clone())),
        format!("node {node} is gone"),
        format!("node {node} is there: only its driver may say that the volume has left it"),
    );
    let presence = Sidecars::new(snapshot).presence(driver, Sidecar::Attacher);
    let is_gone = match presence {
        Presence::NotSeen => true,
        Presence::Gone(since) => since.checked_add(STUCK_AFTER).is_ok_and(|until| until < now),
        Presence::Seen | Presence::NoLease | Presence::Unknown => false,
    };
    proof.demand(
        is_gone,
        format!("the attacher of {driver} is gone: no lease is renewed"),
        format!("whether the attacher of {driver} is gone is not proven: it may be about to detach"),
    );
    proof.is_unseen |= presence == Presence::Unknown && snapshot.unseen.iter().any(|it| it.forbidden);
    let own = attacher_finalizer(driver);
    let finalizers: Vec<&str> = attachment.metadata.finalizers.iter().map(Text::as_str).collect();
    proof.demand(
        finalizers == [own.as_str()],
        format!("what holds it is {own} alone"),
        format!("it is held by {finalizers:?}, not by {own} alone"),
    );
    let source = attachment.spec.source.persistent_volume_name.as_ref();
    // The disk may stand behind several volumes: the one that is named, and each that leads to this attachment or to the same disk.
    let named = source.and_then(|source| snapshot.objects.volumes.get(source));
    let own = named.as_deref().and_then(identity);
    let is_it = |id: &VolumeId| {
        id.attachment_name(node) == *name || own.as_ref().is_some_and(|own| may_be_same(own, id))
    };
    // A volume that is gone leaves the name, which was computed of its disk and node.
    let hash = name.as_str().strip_prefix("csi-").filter(|hash| hash.len() == 64);
    let is_computed = hash.is_some_and(|hash| hash.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let is_gone = source.is_some_and(|it| snapshot.is_absent(&ObjectRef::Volume(it.clone())));
    let is_known = named.is_some() || (is_gone && is_computed);
    let bound = snapshot.keys(|volume: &PersistentVolume| {
        let is_meant = Some(&volume.key()) == source || identity(volume).is_some_and(|id| is_it(&id));
        is_meant && volume.status.phase == VolumePhase::Bound
    });
    proof.demand(
        is_known && bound.is_empty(),
        "no claim is bound to its volume",
        "a claim is bound to its volume, or the volume is unknown: a pod could write to it elsewhere",
    );
    let outlook = snapshot.ask_attach_detach();
    let is_wanted = outlook.desired.values().flatten().any(|wanted| is_it(&wanted.volume));
    proof.demand(!is_wanted, "no pod wants its volume", "a pod wants its volume");
    let request = patch(&*attachment, json!({ "finalizers": null }), json!({}));
    Some((vec![request], "The object is removed without the driver: check the storage itself.".to_owned()))
}
