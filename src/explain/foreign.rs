//! VolumeAttachments that the controller did not make.
//!
//! In: what the controller says of them. Out: a [`Link`] for each.

use apiserver::{
    ids::AttachmentName,
    kinds::{Node, ObjectRef, VolumeAttachment},
};
use k8s_openapi::jiff::Timestamp;

use super::{
    attachment::absent_attacher,
    links::Link,
    report::Verdict,
    sidecars::Sidecar,
    table::Facts,
    view::{View, finalizers, get},
};
use crate::attach_detach::state::desired::volume_name::VolumeId;

/// The link of an attachment that the controller did not make and does not touch, if it is such a one.
pub(super) fn foreign(view: &View<'_>, name: &AttachmentName) -> Option<Link> {
    let (volume, node) = view.attach_detach().foreign.get(name)?;
    let subject = ObjectRef::Attachment(name.clone());
    let object = get::<VolumeAttachment>(view, name)?;
    if let Some(deleted) = object.metadata.deletion_timestamp.as_deref().copied() {
        return Some(foreign_deleted(view, &subject, &object, deleted));
    }
    let source = object.spec.source.persistent_volume_name.clone().map(ObjectRef::Volume);
    let is_unread = source.is_some_and(|it| !view.snapshot.holds(&it) && !view.snapshot.is_absent(&it));
    let missing = if is_unread { "VolumeMissing unread" } else { "VolumeMissing of attachment" };
    let case = if volume.is_some() { "ForeignAttachment" } else { missing };
    let uses = |volume: &VolumeId| {
        let object = get::<Node>(view, node);
        object.is_none_or(|node| node.uses(volume.as_str()) || node.lists(volume.as_str()))
            || view.users(volume, node).next().is_some()
    };
    let also = match volume.as_ref().is_none_or(uses) {
        // Without its object, no pod counts on a node, and its machine may run (H9). Without a volume no attacher detaches.
        _ if volume.is_some() && view.is_gone(node) => "+foreign gone node",
        true => "+foreign in use",
        false => "+foreign unused",
    };
    let facts: Facts<'_> = &[("name", name), ("node", node)];
    let link = Link::told(&subject, case, facts).and(also, facts);
    Some(link.detail(format!("on {node}")).since(object.metadata.creation_timestamp))
}

/// One that is being deleted.
fn foreign_deleted(
    view: &View<'_>,
    subject: &ObjectRef,
    object: &VolumeAttachment,
    deleted: Timestamp,
) -> Link {
    let (node, driver) = (&object.spec.node_name, object.spec.attacher.as_str());
    let link = absent_attacher(view, subject, driver, Some(deleted)).unwrap_or_else(|| {
        let facts: Facts<'_> = &[("driver", &driver), ("finalizers", &finalizers(&object.metadata))];
        Link::told(subject, "DetachWaitingForAttacher foreign", facts)
            .verdict(Verdict::of_wait(Some(deleted), view.now()))
            .and_log(view, driver, Sidecar::Attacher)
    });
    link.detail(format!("on {node}")).since(Some(deleted))
}

/// The links of the attachments of a volume that the controller did not make. That they put a volume for one node alone on a second
/// is told beside.
pub(super) fn foreign_of(view: &View<'_>, volume: &VolumeId) -> Vec<Link> {
    let all = view.attach_detach().foreign.iter().filter(|(_, (of, _))| of.as_ref() == Some(volume));
    let all = all.inspect(|(_, (_, node))| drop(view.read::<Node>(node)));
    all.filter_map(|(name, _)| Some(Link { verdict: Verdict::Healthy, ..foreign(view, name)? })).collect()
}
