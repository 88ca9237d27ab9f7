//! Stand-in for external-attacher: attaches and detaches volumes as the VolumeAttachments of one driver
//! require (attach-detach §7.6).
//!
//! Like the real one, it writes merge patches and refuses volumes that are being deleted. It puts its finalizer on the
//! PersistentVolume and on the VolumeAttachment before it attaches, and removes the finalizer after it has detached
//! (from a volume that is being deleted, after its last attachment). It does not enforce exclusive access. It gives the
//! driver the present handle of the volume of that name, and the machine that the attachment is annotated with, which is the
//! one that had the node's name as it was attached. It retries after 1 s, doubles the pause each time up to 5 min,
//! and each time writes the error with a new time.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::api::{core::v1::PersistentVolume, storage::v1::VolumeAttachment};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::{sync::watch, task::JoinHandle, time::Instant};

use super::{
    Handle, add_finalizer, has_finalizer,
    mirror::{Mirror, events},
    remove_finalizer,
    storage::{Effect, Step, Storage},
    work::{Work, Write},
};
use crate::clock::Clock;

/// What the driver calls the machine.
const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

/// The real one's default number of workers.
const WORKERS: usize = 10;
/// The real one's pauses after failures: `--retry-interval-start` and `--retry-interval-max`.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

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
    /// By node: the machine that bears its name now, if that is not the first one, which is called as the node.
    pub machines: BTreeMap<String, String>,
    /// Writes at once; 0 means the real one's default.
    pub workers: usize,
    /// What the driver's calls are noted in.
    pub storage: Storage,
}

/// A running stand-in; stops when dropped.
#[derive(Debug)]
pub struct Attacher {
    behaviour: watch::Sender<AttacherBehaviour>,
    task: JoinHandle<()>,
}

impl Attacher {
    /// Starts serving a driver.
    pub fn start(client: Client, driver: &str, behaviour: AttacherBehaviour) -> Self {
        let (sender, receiver) = watch::channel(behaviour);
        let task = tokio::spawn(run(client, driver.to_owned(), receiver));
        Self { behaviour: sender, task }
    }

    /// What changes it from a task of its own.
    pub fn handle(&self) -> Handle<AttacherBehaviour> {
        Handle(self.behaviour.clone())
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
    let mut failures = Failures::new();
    // Attachments of a volume, so that a change of the volume costs what it touches.
    let mut of_volume: BTreeMap<String, Vec<String>> = BTreeMap::new();
    loop {
        while let Some(job) = work.next() {
            let write = match &job {
                Job::Attachment(name) => attachments.get("", name).and_then(|attachment| {
                    let volume = source(attachment).and_then(|volume| volumes.get("", volume));
                    match next(attachment, volume.map(Arc::as_ref), &behaviour.borrow()) {
                        Next::Write(write) => Some(write),
                        Next::Nothing => {
                            failures.end(name);
                            None
                        }
                        Next::Fail(field, text) => {
                            let (write, pause) = failures.tell(attachment, field, &text, volume.is_none());
                            if let Some(pause) = pause {
                                work.mark_after(job.clone(), pause);
                            }
                            write
                        }
                    }
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
                failures.forget();
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

/// What comes next for an attachment.
enum Next {
    Nothing,
    Write(Write),
    /// It failed: the field of the status that says so, and the words.
    Fail(&'static str, String),
}

fn next(
    attachment: &VolumeAttachment,
    volume: Option<&PersistentVolume>,
    behaviour: &AttacherBehaviour,
) -> Next {
    if attachment.metadata.deletion_timestamp.is_some() {
        detach(attachment, volume, behaviour)
    } else {
        attach(attachment, volume, behaviour)
    }
}

fn missing(attachment: &VolumeAttachment) -> String {
    format!("persistentvolume {:?} not found", source(attachment).unwrap_or_default())
}

fn effect(
    attachment: &VolumeAttachment,
    volume: &PersistentVolume,
    storage: &Storage,
    step: Step,
) -> Option<Effect> {
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    Some(Effect {
        storage: storage.clone(),
        disk: format!("kubernetes.io/csi/{}^{}", csi.driver, csi.volume_handle),
        machine: machine_of(attachment).unwrap_or(&attachment.spec.node_name).to_owned(),
        step,
    })
}

/// The machine that an attachment is for. The real one writes what the driver calls it.
fn machine_of(attachment: &VolumeAttachment) -> Option<&str> {
    attachment.metadata.annotations.as_ref()?.get(NODE_ID).map(String::as_str)
}

fn attach(
    attachment: &VolumeAttachment,
    volume: Option<&PersistentVolume>,
    behaviour: &AttacherBehaviour,
) -> Next {
    if attachment.status.as_ref().is_some_and(|status| status.attached) {
        return Next::Nothing;
    }
    let finalizer = finalizer(&attachment.spec.attacher);
    let Some(volume) = volume else { return Next::Fail("attachError", missing(attachment)) };
    if volume.metadata.deletion_timestamp.is_some() {
        let text = format!("PersistentVolume {:?} is marked for deletion", volume.name_any());
        return Next::Fail("attachError", text);
    }
    if !has_finalizer(&volume.metadata, &finalizer) {
        let path = format!("/api/v1/persistentvolumes/{}", volume.name_any());
        return Next::Write(Write::patch(path, add_finalizer(&volume.metadata, &finalizer)));
    }
    let node = &attachment.spec.node_name;
    let machine = behaviour.machines.get(node).unwrap_or(node);
    let is_of_another = machine_of(attachment).is_some_and(|of| of != machine);
    if !has_finalizer(&attachment.metadata, &finalizer) || is_of_another {
        let finalizers = attachment.metadata.finalizers.iter().flatten().map(String::as_str);
        let others = finalizers.filter(|name| *name != finalizer);
        let body = json!({ "metadata": {
            "resourceVersion": attachment.metadata.resource_version,
            "finalizers": others.chain([finalizer.as_str()]).collect::<Vec<_>>(),
            "annotations": { NODE_ID: machine },
        }});
        return Next::Write(Write::patch(path(attachment), body));
    }
    match behaviour.attach_of.get(&volume.name_any()).unwrap_or(&behaviour.attach) {
        Reaction::Silent => Next::Nothing,
        Reaction::Fail(text) => Next::Fail("attachError", text.clone()),
        Reaction::Succeed(delay) => {
            let body = json!({ "status": { "attached": true, "attachError": null, "detachError": null } });
            let write = Write::patch(format!("{}/status", path(attachment)), body).after(*delay);
            let effect = effect(attachment, volume, &behaviour.storage, Step::Published);
            Next::Write(Write { effect, ..write })
        }
    }
}

fn detach(
    attachment: &VolumeAttachment,
    volume: Option<&PersistentVolume>,
    behaviour: &AttacherBehaviour,
) -> Next {
    let finalizer = finalizer(&attachment.spec.attacher);
    if !has_finalizer(&attachment.metadata, &finalizer) {
        return Next::Nothing;
    }
    // The real one needs the volume to detach, too; its finalizer on it makes sure that it is there.
    let Some(volume) = volume else { return Next::Fail("detachError", missing(attachment)) };
    match behaviour.detach_of.get(&volume.name_any()).unwrap_or(&behaviour.detach) {
        Reaction::Silent => Next::Nothing,
        Reaction::Fail(text) => Next::Fail("detachError", text.clone()),
        Reaction::Succeed(delay) => {
            let body = remove_finalizer(&attachment.metadata, &finalizer);
            let write = Write::patch(path(attachment), body).after(*delay);
            let effect = effect(attachment, volume, &behaviour.storage, Step::Unpublished);
            Next::Write(Write { effect, ..write })
        }
    }
}

/// When what failed is tried again, by attachment.
struct Failures {
    clock: Clock,
    tries: BTreeMap<String, (u32, Instant)>,
}

impl Failures {
    fn new() -> Self {
        Self { clock: Clock::default(), tries: BTreeMap::new() }
    }

    fn end(&mut self, name: &str) {
        self.tries.remove(name);
    }

    fn forget(&mut self) {
        self.tries.clear();
    }

    /// The patch that reports a failure of now, and when the next try is. Watches of two kinds have no order between
    /// them, so a volume is missing only if it is at the second look.
    fn tell(
        &mut self,
        attachment: &VolumeAttachment,
        field: &str,
        text: &str,
        is_missing: bool,
    ) -> (Option<Write>, Option<Duration>) {
        let now = Instant::now();
        let first = (0, if is_missing { now + FIRST_PAUSE } else { now });
        let is_new = !self.tries.contains_key(&attachment.name_any());
        let (count, due) = self.tries.entry(attachment.name_any()).or_insert(first);
        if now < *due {
            return (None, is_new.then_some(*due - now));
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << (*count).min(9)).min(LONGEST_PAUSE);
        (*count, *due) = (*count + 1, now + pause);
        let error = json!({ "time": self.clock.text(), "message": text });
        let body = json!({ "status": { field: error } });
        (Some(Write::patch(format!("{}/status", path(attachment)), body)), Some(pause))
    }
}
