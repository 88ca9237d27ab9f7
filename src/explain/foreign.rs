//! VolumeAttachments that the controller did not make.
//!
//! In: what the controller says of them. Out: a [`Link`] for each.

use k8s_openapi::jiff::Timestamp;

use super::{
    actions::{care, never, never_by_hand, safe},
    attachment::{absent_attacher, logs_of},
    links::{Link, program},
    report::Verdict,
    subject::Subject,
    view::{Missing, View, get},
};
use crate::{
    attach_detach::desired::volume_name::VolumeId,
    kube_api::{
        ids::{AttachmentName, NodeName},
        kinds::{Node, VolumeAttachment},
    },
};

/// The link of an attachment that the controller did not make and does not touch, if it is such a one.
pub(super) fn foreign(view: &View<'_>, name: &AttachmentName) -> Option<Link> {
    let (volume, node) = view.attach_detach.foreign.get(name)?;
    let (reason, message) = match volume {
        Some(_) => (
            "ForeignAttachment",
            format!(
                "its name is not that of its volume on {node}: the attach/detach controller did not make it and leaves it, \
                 and it stays until it is deleted"
            ),
        ),
        None => (
            "VolumeMissing",
            "its volume is not there, so that it cannot be told whose it is: it stays until it is deleted"
                .to_owned(),
        ),
    };
    let subject = Subject::Attachment(name.clone());
    let object = get::<VolumeAttachment>(view, name)?;
    if let Some(deleted) = object.metadata.deletion_timestamp.as_deref().copied() {
        return Some(foreign_deleted(view, &subject, &object, deleted));
    }
    let link = Link::new(&subject, reason, message, Verdict::Blocked)
        .detail(format!("on {node}"))
        .since(object.metadata.creation_timestamp)
        .act(safe(
            "find out who made it, and what for",
            &["kubectl", "get", "volumeattachment", name.as_str(), "-o", "yaml", "--show-managed-fields"],
        ));
    let uses = |volume: &VolumeId| {
        let object = get::<Node>(view, node);
        let is_unknown = object.is_none() && !matches!(view.missing::<Node>(node), Missing::Absent);
        is_unknown
            || object.is_some_and(|node| node.uses(volume.as_str()) || node.lists(volume.as_str()))
            || view.users(volume, node).next().is_some()
    };
    if volume.as_ref().is_none_or(uses) {
        return Some(link.act(never(
            "delete it as long as a pod on its node may use the volume: the attacher detaches it under the pod",
        )));
    }
    Some(link.act(care(
        format!(
            "only if no one needs it: no pod uses the volume on {node}, as far as is seen, and its attacher detaches it then"
        ),
        &["kubectl", "delete", "volumeattachment", name.as_str()],
    )))
}

/// One that is being deleted.
fn foreign_deleted(
    view: &View<'_>,
    subject: &Subject,
    object: &VolumeAttachment,
    deleted: Timestamp,
) -> Link {
    let (node, driver) = (&object.spec.node_name, object.spec.attacher.as_str());
    let link = absent_attacher(view, subject, driver, Some(deleted)).unwrap_or_else(|| {
        let verdict = Verdict::of_wait(Some(deleted), view.now());
        let finalizers: Vec<&str> = object.metadata.finalizers.iter().map(|it| &**it).collect();
        let message = format!("it is being deleted, and waits for {}", finalizers.join(", "));
        Link::new(subject, "DetachWaitingForAttacher", message, verdict)
            .blocked_by(program("Attacher", driver), "has been asked")
            .next("Detach", Some("the attacher answers: within seconds as a rule"))
            .act(logs_of(view, driver))
            .act(never_by_hand())
    });
    link.detail(format!("on {node}")).since(Some(deleted))
}

/// The links of the attachments of a volume that the controller did not make. They harm no one but where they put a
/// volume for one node alone on a second.
pub(super) fn foreign_of(view: &View<'_>, volume: &VolumeId, is_exclusive: bool) -> Vec<Link> {
    let all = view.attach_detach.foreign.iter().filter(|(_, (of, _))| of.as_ref() == Some(volume));
    let links =
        all.filter_map(|(name, (_, node))| {
            let mut link = foreign(view, name)?;
            let is_there =
                |node: &NodeName| get::<VolumeAttachment>(view, &volume.attachment_name(node)).is_some();
            let others = view.nodes_of(volume).map(|(other, _)| other);
            let elsewhere = others.filter(|other| is_there(other)).find(|other| *other != node);
            let Some(elsewhere) = elsewhere.filter(|_| is_exclusive) else {
                return Some(Link { verdict: Verdict::Healthy, ..link });
            };
            link.step.message = format!(
                "the volume is for one node alone, and is on {elsewhere}, and by this on {node}: {}",
                link.step.message
            );
            Some(link.act(never(
                "let pods on both nodes use the volume: the disk may be written from two machines",
            )))
        });
    links.collect()
}
