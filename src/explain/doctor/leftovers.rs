//! What no pod or claim waits for, and should not be: one handle in two volumes, disks on two machines, attachments of others and
//! of nodes that are gone, space that is kept.
//!
//! In: the tables, and what the controllers say of them. Out: groups. Each table is read once.

use apiserver::{
    ids::VolumeName,
    kinds::{Narrow as _, ObjectRef, PersistentVolume, ReclaimPolicy, VolumeAttachment, VolumePhase},
};
use k8s_openapi::jiff::Timestamp;

use super::groups::Groups;
use crate::{
    attach_detach::state::desired::volume_name::VolumeId,
    binder::{matching::predicate::capacity, reasons::VolumeReason},
    explain::{
        age, foreign,
        links::Link,
        report::Verdict,
        table::Facts,
        view::{View, get},
    },
};

pub(super) fn look(view: &View<'_>, groups: &mut Groups<'_>) {
    let volumes = view.objects().volumes.snapshot();
    let is_kept = |(name, volume): &(&VolumeName, &PersistentVolume)| {
        let place = view.binder.as_ref().and_then(|binder| binder.volumes.get(*name));
        let reason = place.and_then(|place| place.reason.as_deref());
        volume.status.phase == VolumePhase::Released
            && volume.spec.reclaim_policy == ReclaimPolicy::Retain
            && matches!(reason, None | Some(VolumeReason::Retained))
    };
    let kept = volumes.iter().map(|(name, volume)| (name, &**volume)).filter(is_kept);
    shared_handles(view, groups);
    tell_kept(kept.collect(), groups);
    made_by_others(view, groups);
    twice(view, groups);
}

/// Volumes for one node alone that are on several.
fn twice(view: &View<'_>, groups: &mut Groups<'_>) {
    for (id, twice) in view.twice() {
        let (_, handle) = id.driver_and_handle();
        for (name, since) in &twice.attachments {
            let subject = ObjectRef::Attachment(name.clone());
            let link = Link::told(&subject, "ExclusiveAttachedTwice several", &[("told", &twice.told)]);
            let victim = (subject, "attachment", *since);
            let Some(index) = groups.note(&link, handle, victim) else { continue };
            // The page of the volume shows all nodes of its attachments.
            if let Some(node) = &twice.in_use {
                groups.explained_by(index, &ObjectRef::Node(node.clone()));
            } else if let Some(volume) = &twice.volume {
                groups.explained_by(index, &ObjectRef::Volume(volume.clone()));
            }
        }
    }
}

fn shared_handles(view: &View<'_>, groups: &mut Groups<'_>) {
    let is_shared = |(id, all): &(&VolumeId, &Vec<_>)| all.len() > 1 && !id.driver_and_handle().0.is_empty();
    let shared: Vec<_> = view.standing().iter().filter(is_shared).collect();
    // Many handles of a driver are one mistake.
    let are_many = shared.len() > 5;
    for (id, volumes) in shared {
        let (driver, handle) = id.driver_and_handle();
        let told: Vec<&str> = volumes.iter().map(|it| &*it.metadata.name).take(4).collect();
        for volume in volumes {
            let subject = ObjectRef::Volume(volume.key());
            let facts: Facts<'_> = &[("told", &told.join(", ")), ("handle", &handle), ("driver", &driver)];
            let link = Link::told(&subject, "HandleShared", facts);
            groups.note(&link, if are_many { driver } else { handle }, (subject, "volume", None));
        }
    }
}

/// How much is kept, the oldest first. When it was released, what is listed does not say.
fn tell_kept(mut volumes: Vec<(&VolumeName, &PersistentVolume)>, groups: &mut Groups<'_>) {
    let created = |volume: &PersistentVolume| volume.metadata.creation_timestamp;
    volumes.sort_by_key(|(_, volume)| created(volume).unwrap_or(Timestamp::MAX));
    let size: f64 = volumes.iter().map(|(_, volume)| capacity(volume).unwrap_or_default().bytes()).sum();
    let oldest = volumes.first().and_then(|(_, volume)| created(volume));
    let oldest = oldest.map_or(String::new(), |created| {
        format!("; the oldest was created {} ago", age::between(created, groups.now))
    });
    let told = format!("{} of Released volumes are kept{oldest}", age::bytes(size));
    for (name, _) in volumes {
        let subject = ObjectRef::Volume(name.clone());
        let link = Link::told(&subject, "Retained kept", &[("told", &told)]);
        groups.note(&link, "", (subject, "volume", None));
    }
}

/// Attachments that the controller did not make. Nobody waits for one that is not being deleted.
fn made_by_others(view: &View<'_>, groups: &mut Groups<'_>) {
    for (name, (_, node)) in &view.attach_detach().foreign {
        let attachment = get::<VolumeAttachment>(view, name);
        let Some((attachment, mut link)) = attachment.zip(foreign::foreign(view, name)) else { continue };
        let mut about = attachment.spec.attacher.as_str();
        let subject = ObjectRef::Attachment(name.clone());
        if !attachment.metadata.is_terminating() {
            if view.is_gone(node) {
                link.step = Link::told(&subject, "AttachmentOfGoneNode", &[("node", node)]).step;
                about = node.as_str();
            }
            link.verdict = Verdict::Healthy;
        }
        let since = attachment.metadata.creation_timestamp;
        groups.note(&link, about, (subject, "attachment", since));
    }
}
