//! What no pod or claim waits for, and should not be: one handle in two volumes, disks on two machines, attachments of others and
//! of nodes that are gone, space that is kept.
//!
//! In: the tables, and what the controllers say of them. Out: groups. Each table is read once.

use std::{collections::BTreeMap, time::Duration};

use apiserver::{
    ids::VolumeName,
    kinds::{ObjectRef, ReclaimPolicy, VolumeAttachment, VolumePhase},
};
use k8s_openapi::jiff::Timestamp;

use super::{groups::Groups, writers::in_phase_since};
use crate::{
    binder::{matching::predicate::capacity, reasons::VolumeReason},
    explain::{
        age, foreign,
        links::Link,
        report::Verdict,
        subject::Subject,
        table::Facts,
        view::{View, get, index},
    },
};

pub(super) fn look(view: &View<'_>, groups: &mut Groups<'_>) {
    let snapshot = view.snapshot;
    let volumes = snapshot.objects.volumes.snapshot();
    let csi = volumes.iter().filter_map(|(name, volume)| Some((volume.spec.csi.as_ref()?, name)));
    let mut handles = index(csi.map(|(csi, name)| ((csi.driver.as_str(), &*csi.volume_handle), name)));
    let mut kept = Vec::new();
    for (name, volume) in &volumes {
        let place = view.binder.as_ref().and_then(|binder| binder.volumes.get(name));
        let reason = place.and_then(|place| place.reason.as_deref());
        let is_kept = volume.status.phase == VolumePhase::Released
            && volume.spec.reclaim_policy == ReclaimPolicy::Retain
            && matches!(reason, None | Some(VolumeReason::Retained));
        if is_kept {
            // Since when it is so, the narrow object does not say.
            let since = snapshot.details.get(&ObjectRef::Volume(name.clone())).and_then(in_phase_since);
            let size = capacity(volume).unwrap_or_default().bytes();
            kept.push((since, volume.metadata.creation_timestamp, name.clone(), size));
        }
    }
    handles.retain(|_, names| names.len() > 1);
    shared_handles(&handles, groups);
    tell_kept(kept, groups);
    made_by_others(view, groups);
    twice(view, groups);
}

/// Volumes for one node alone that are on several.
fn twice(view: &View<'_>, groups: &mut Groups<'_>) {
    for (id, twice) in view.twice() {
        let (_, handle) = id.driver_and_handle();
        for (name, since) in &twice.attachments {
            let subject = Subject::Attachment(name.clone());
            let link = Link::told(&subject, "ExclusiveAttachedTwice several", &[("told", &twice.told)]);
            let victim = (subject, "attachment", *since);
            let Some(index) = groups.note(&link, handle, victim) else { continue };
            // The page of the volume shows all nodes of its attachments.
            if let Some(node) = &twice.in_use {
                groups.explained_by(index, &Subject::Node(node.clone()));
            } else if let Some(volume) = &twice.volume {
                groups.explained_by(index, &Subject::Volume(volume.clone()));
            }
        }
    }
}

fn shared_handles(handles: &BTreeMap<(&str, &str), Vec<&VolumeName>>, groups: &mut Groups<'_>) {
    for ((driver, handle), names) in handles {
        let told: Vec<&str> = names.iter().map(|name| name.as_str()).take(4).collect();
        for name in names {
            let subject = Subject::Volume((*name).clone());
            let facts: Facts<'_> = &[("told", &told.join(", ")), ("handle", handle), ("driver", driver)];
            let link = Link::told(&subject, "HandleShared", facts);
            // Many handles of a driver are one mistake.
            let about = if handles.len() > 5 { *driver } else { *handle };
            groups.note(&link, about, (subject, "volume", None));
        }
    }
}

/// What has been kept for longer is hardly kept on purpose.
const LONG_UNUSED: Duration = Duration::from_hours(30 * 24);

/// A volume that is Released and kept: since when, when it was made, which, and its size.
type Kept = (Option<Timestamp>, Option<Timestamp>, VolumeName, f64);

/// The longest kept first; of what is not known since when, the oldest.
fn tell_kept(mut volumes: Vec<Kept>, groups: &mut Groups<'_>) {
    let now = groups.now;
    volumes.sort_by(|one, other| {
        let key = |since: Option<Timestamp>| since.unwrap_or(Timestamp::MAX);
        (key(one.0), key(one.1), &one.2).cmp(&(key(other.0), key(other.1), &other.2))
    });
    let is_long = |(since, ..): &&Kept| {
        since.and_then(|since| since.checked_add(LONG_UNUSED).ok()).is_some_and(|until| until < now)
    };
    let long: Vec<&Kept> = volumes.iter().filter(is_long).collect();
    let size = age::bytes(volumes.iter().map(|(.., size)| size).sum());
    let created = volumes.iter().filter_map(|(_, created, ..)| *created).min();
    let first = match (volumes.first().and_then(|(since, ..)| *since), created) {
        (Some(since), _) => format!(", the first for {}", age::between(since, now)),
        (None, Some(created)) => {
            format!(
                "; the oldest was created {} ago (when it was released is not known)",
                age::between(created, now)
            )
        }
        (None, None) => String::new(),
    };
    let for_long = if long.is_empty() {
        String::new()
    } else {
        let size = age::bytes(long.iter().map(|(.., size)| size).sum());
        format!("; {} ({size}) for more than 30d", age::counted(long.len(), "volume"))
    };
    let told = format!("{size} of Released volumes are kept{first}{for_long}");
    for (since, _, name, _) in volumes {
        let subject = Subject::Volume(name);
        let link = Link::told(&subject, "Retained kept", &[("told", &told)]);
        groups.note(&link, "", (subject, "volume", since));
    }
}

/// Attachments that the controller did not make. Nobody waits for one that is not being deleted.
fn made_by_others(view: &View<'_>, groups: &mut Groups<'_>) {
    for (name, (_, node)) in &view.attach_detach.foreign {
        let attachment = get::<VolumeAttachment>(view, name);
        let Some((attachment, mut link)) = attachment.zip(foreign::foreign(view, name)) else { continue };
        let mut about = attachment.spec.attacher.as_str();
        let subject = Subject::Attachment(name.clone());
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
