//! Stand-in for external-attacher: attaches and detaches what VolumeAttachments of one driver ask
//! for (attach-detach §7.6).
//!
//! As the real one it writes merge patches, puts its finalizer on the PersistentVolume and on the
//! VolumeAttachment before it attaches, refuses volumes that are being deleted, takes the finalizer
//! away after it has detached (from a volume that goes, after its last attachment), and does not
//! enforce exclusive access.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::{
    api::{core::v1::PersistentVolume, storage::v1::VolumeAttachment},
    jiff::Timestamp,
};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::{sync::watch, task::JoinHandle};

use super::{
    add_finalizer, has_finalizer,
    mirror::{Mirror, events},
    remove_finalizer,
    work::{Work, Write},
};

/// The real one's default number of workers.
const WORKERS: usize = 10;

/// How the storage system answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Does it, after that long.
    Succeed(Duration),
    /// Refuses, with this text.
    Fail(String),
    /// Never answers.
    Silent,
}

impl Default for Reaction {
    fn default() -> Self {
        Self::Succeed(Duration::ZERO)
    }
}

/// What the stand-in does; the maps are by PersistentVolume and come before the defaults.
#[derive(Clone, Debug, Default)]
pub struct AttacherBehaviour {
    /// To attaching.
    pub attach: Reaction,
    /// To detaching.
    pub detach: Reaction,
    /// To attaching these.
    pub attach_of: BTreeMap<String, Reaction>,
    /// To detaching these.
    pub detach_of: BTreeMap<String, Reaction>,
    /// Writes at once; 0 means the real one's default.
    pub workers: usize,
}

/// A running stand-in; stops when dropped.
#[derive(Debug)]
pub struct Attacher {
    behaviour: watch::Sender<AttacherBehaviour>,
    task: JoinHandle<()>,
}

impl Attacher {
    /// Starts serving a driver.
    #[must_use]
    pub fn start(client: Client, driver: &str, behaviour: AttacherBehaviour) -> Self {
        let (sender, receiver) = watch::channel(behaviour);
        let task = tokio::spawn(run(client, driver.to_owned(), receiver));
        Self { behaviour: sender, task }
    }

    /// Changes what it does from now on; what waits is looked at again.
    pub fn change(&self, change: impl FnOnce(&mut AttacherBehaviour)) {
        self.behaviour.send_modify(change);
    }
}

impl Drop for Attacher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Job {
    Attachment(String),
    Volume(String),
}

async fn run(client: Client, driver: String, mut behaviour: watch::Receiver<AttacherBehaviour>) {
    let mut attachments: Mirror<VolumeAttachment> = Mirror::default();
    let mut volumes: Mirror<PersistentVolume> = Mirror::default();
    let mut attachment_events = std::pin::pin!(events::<VolumeAttachment>(&client));
    let mut volume_events = std::pin::pin!(events::<PersistentVolume>(&client));
    let mut work: Work<Job> = Work::new(match behaviour.borrow().workers {
        0 => WORKERS,
        count => count,
    });
    // Attachments of a volume, so that a change of the volume costs what it touches.
    let mut of_volume: BTreeMap<String, Vec<String>> = BTreeMap::new();
    loop {
        while let Some(job) = work.next() {
            let write = match &job {
                Job::Attachment(name) => attachments.get("", name).and_then(|attachment| {
                    let volume = source(attachment).and_then(|volume| volumes.get("", volume));
                    next_write(attachment, volume.map(Arc::as_ref), &behaviour.borrow())
                }),
                Job::Volume(name) if of_volume.get(name).is_none_or(Vec::is_empty) => {
                    volumes.get("", name).and_then(|volume| let_go(volume, &driver))
                }
                Job::Volume(_) => None,
            };
            if let Some(write) = write {
                work.start(job, write, client.clone());
            }
        }
        tokio::select! {
            Some(event) = attachment_events.next() => {
                for (before, now) in attachments.apply(event) {
                    let Some(attachment) = now.as_ref().or(before.as_ref()) else { continue };
                    if attachment.spec.attacher != driver {
                        continue;
                    }
                    let name = attachment.name_any();
                    if let Some(volume) = source(attachment) {
                        let names = of_volume.entry(volume.to_owned()).or_default();
                        names.retain(|other| *other != name);
                        if now.is_some() {
                            names.push(name.clone());
                        } else if names.is_empty() {
                            of_volume.remove(volume);
                            work.mark(Job::Volume(volume.to_owned()));
                        }
                    }
                    work.mark(Job::Attachment(name));
                }
            }
            Some(event) = volume_events.next() => {
                for (before, now) in volumes.apply(event) {
                    let Some(volume) = now.or(before) else { continue };
                    for name in of_volume.get(&volume.name_any()).into_iter().flatten() {
                        work.mark(Job::Attachment(name.clone()));
                    }
                    work.mark(Job::Volume(volume.name_any()));
                }
            }
            Ok(()) = behaviour.changed() => {
                for names in of_volume.values() {
                    for name in names {
                        work.mark(Job::Attachment(name.clone()));
                    }
                }
            }
            () = work.finished() => {}
            else => return,
        }
    }
}

fn source(attachment: &VolumeAttachment) -> Option<&str> {
    attachment.spec.source.persistent_volume_name.as_deref()
}

/// `external-attacher/` and the driver, with what a finalizer may not contain replaced.
fn finalizer(driver: &str) -> String {
    let mut name: String =
        driver.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).collect();
    if name.ends_with('-') {
        name.push('X');
    }
    format!("external-attacher/{name}")
}

fn path(attachment: &VolumeAttachment) -> String {
    format!("/apis/storage.k8s.io/v1/volumeattachments/{}", attachment.name_any())
}

/// The patch that lets go of a volume that is being deleted and has no attachments any more.
fn let_go(volume: &PersistentVolume, driver: &str) -> Option<Write> {
    let finalizer = finalizer(driver);
    let goes = volume.metadata.deletion_timestamp.is_some() && has_finalizer(&volume.metadata, &finalizer);
    goes.then(|| {
        let path = format!("/api/v1/persistentvolumes/{}", volume.name_any());
        Write::patch(path, remove_finalizer(&volume.metadata, &finalizer))
    })
}

/// What to write next for an attachment, if anything.
fn next_write(
    attachment: &VolumeAttachment,
    volume: Option<&PersistentVolume>,
    behaviour: &AttacherBehaviour,
) -> Option<Write> {
    if attachment.metadata.deletion_timestamp.is_some() {
        detach(attachment, volume, behaviour)
    } else {
        attach(attachment, volume, behaviour)
    }
}

fn attach(
    attachment: &VolumeAttachment,
    volume: Option<&PersistentVolume>,
    behaviour: &AttacherBehaviour,
) -> Option<Write> {
    if attachment.status.as_ref().is_some_and(|status| status.attached) {
        return None;
    }
    let finalizer = finalizer(&attachment.spec.attacher);
    // Without the volume's handle there is nothing to ask the driver for.
    let volume = volume?;
    if volume.metadata.deletion_timestamp.is_some() {
        return failed(
            attachment,
            "attachError",
            &format!("PersistentVolume {:?} is marked for deletion", volume.name_any()),
        );
    }
    if !has_finalizer(&volume.metadata, &finalizer) {
        let path = format!("/api/v1/persistentvolumes/{}", volume.name_any());
        return Some(Write::patch(path, add_finalizer(&volume.metadata, &finalizer)));
    }
    if !has_finalizer(&attachment.metadata, &finalizer) {
        let finalizers = attachment.metadata.finalizers.iter().flatten().map(String::as_str);
        let body = json!({ "metadata": {
            "resourceVersion": attachment.metadata.resource_version,
            "finalizers": finalizers.chain([finalizer.as_str()]).collect::<Vec<_>>(),
            "annotations": { "csi.alpha.kubernetes.io/node-id": attachment.spec.node_name },
        }});
        return Some(Write::patch(path(attachment), body));
    }
    match behaviour.attach_of.get(&volume.name_any()).unwrap_or(&behaviour.attach) {
        Reaction::Silent => None,
        Reaction::Fail(text) => failed(attachment, "attachError", text),
        Reaction::Succeed(delay) => {
            let body = json!({ "status": { "attached": true, "attachError": null, "detachError": null } });
            Some(Write::patch(format!("{}/status", path(attachment)), body).after(*delay))
        }
    }
}

fn detach(
    attachment: &VolumeAttachment,
    volume: Option<&PersistentVolume>,
    behaviour: &AttacherBehaviour,
) -> Option<Write> {
    let finalizer = finalizer(&attachment.spec.attacher);
    if !has_finalizer(&attachment.metadata, &finalizer) {
        return None;
    }
    // The real one needs the volume to detach, too; its finalizer on it makes sure that it is there.
    let volume = volume?;
    match behaviour.detach_of.get(&volume.name_any()).unwrap_or(&behaviour.detach) {
        Reaction::Silent => None,
        Reaction::Fail(text) => failed(attachment, "detachError", text),
        Reaction::Succeed(delay) => {
            let body = remove_finalizer(&attachment.metadata, &finalizer);
            Some(Write::patch(path(attachment), body).after(*delay))
        }
    }
}

/// The patch that reports an error, unless it is reported already: it retries for ever, but the same
/// error twice says nothing new.
fn failed(attachment: &VolumeAttachment, field: &str, text: &str) -> Option<Write> {
    let status = attachment.status.as_ref();
    let reported = match field {
        "attachError" => status.and_then(|status| status.attach_error.as_ref()),
        _ => status.and_then(|status| status.detach_error.as_ref()),
    };
    if reported.and_then(|error| error.message.as_deref()) == Some(text) {
        return None;
    }
    let body = json!({ "status": { field: { "time": Timestamp::now().to_string(), "message": text } } });
    Some(Write::patch(format!("{}/status", path(attachment)), body))
}
