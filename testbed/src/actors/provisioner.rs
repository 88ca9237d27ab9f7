//! Stand-in for external-provisioner of one driver (pv-binder §7.5).
//!
//! It creates a volume for a claim that the binder has marked for this driver. If the class requires it,
//! it waits until the scheduler has chosen a node, and gives the choice back if it cannot serve it. It
//! protects a bound volume with policy Delete with its finalizer, and deletes a released volume once it
//! is attached nowhere. It decides nothing about binding: its volume names the claim, and the binder does
//! the rest.

use std::{collections::BTreeMap, sync::Arc};

use futures::StreamExt;
use http::Method;
use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::{StorageClass, VolumeAttachment},
};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::{sync::watch, task::JoinHandle};

use super::{
    add_finalizer,
    attacher::Reaction,
    has_finalizer,
    mirror::{Key, Mirror, events, key},
    remove_finalizer,
    work::{Work, Write},
};

const WORKERS: usize = 100;
const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const PROVISIONER_KEYS: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];

/// What the stand-in does.
#[derive(Clone, Debug, Default)]
pub struct ProvisionerBehaviour {
    /// To making a volume.
    pub create: Reaction,
    /// To deleting one.
    pub delete: Reaction,
    /// Whether a failure to make one is final on the selected node, so that another has to be chosen.
    pub reschedule: bool,
    /// What stands before the name of a volume in its handle.
    pub handle_prefix: String,
}

/// A running stand-in; stops when dropped.
#[derive(Debug)]
pub struct Provisioner {
    behaviour: watch::Sender<ProvisionerBehaviour>,
    task: JoinHandle<()>,
}

impl Provisioner {
    /// Starts serving a driver.
    pub fn start(client: Client, driver: &str, behaviour: ProvisionerBehaviour) -> Self {
        let (sender, receiver) = watch::channel(behaviour);
        let task = tokio::spawn(run(client, driver.to_owned(), receiver));
        Self { behaviour: sender, task }
    }

    /// Changes what it does from now on.
    pub fn change(&self, change: impl FnOnce(&mut ProvisionerBehaviour)) {
        self.behaviour.send_modify(change);
    }
}

impl Drop for Provisioner {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Job {
    Claim(Key),
    Volume(String),
}

async fn run(client: Client, driver: String, mut behaviour: watch::Receiver<ProvisionerBehaviour>) {
    let mut claims: Mirror<PersistentVolumeClaim> = Mirror::default();
    let mut volumes: Mirror<PersistentVolume> = Mirror::default();
    let mut classes: Mirror<StorageClass> = Mirror::default();
    let mut attachments: Mirror<VolumeAttachment> = Mirror::default();
    let mut claim_events = std::pin::pin!(events::<PersistentVolumeClaim>(&client));
    let mut volume_events = std::pin::pin!(events::<PersistentVolume>(&client));
    let mut class_events = std::pin::pin!(events::<StorageClass>(&client));
    let mut attachment_events = std::pin::pin!(events::<VolumeAttachment>(&client));
    let mut work: Work<Job> = Work::new(WORKERS);
    loop {
        while let Some(job) = work.next() {
            let write = match &job {
                Job::Claim((namespace, name)) => claims.get(namespace, name).and_then(|claim| {
                    let class = classes.get("", claim.spec.as_ref()?.storage_class_name.as_deref()?)?;
                    // Made already, and the binder is at work.
                    if volumes.get("", &volume_name(claim)?).is_some() {
                        return None;
                    }
                    create(claim, class, &driver, &behaviour.borrow())
                }),
                Job::Volume(name) => volumes.get("", name).and_then(|volume| {
                    let attached = attachments.values().any(|attachment| names(attachment, name));
                    protect(volume, &driver)
                        .or_else(|| delete(volume, attached, &driver, &behaviour.borrow().delete))
                }),
            };
            if let Some(write) = write {
                work.start(job, write, client.clone());
            }
        }
        tokio::select! {
            Some(event) = claim_events.next() => {
                for (_, now) in claims.apply(event) {
                    if let Some(claim) = now {
                        work.mark(Job::Claim(key(&*claim)));
                    }
                }
            }
            Some(event) = volume_events.next() => {
                for (_, now) in volumes.apply(event) {
                    if let Some(volume) = now {
                        work.mark(Job::Volume(volume.name_any()));
                    }
                }
            }
            Some(event) = class_events.next() => {
                if !classes.apply(event).is_empty() {
                    for claim in claims.values() {
                        work.mark(Job::Claim(key(&**claim)));
                    }
                }
            }
            Some(event) = attachment_events.next() => {
                if !attachments.apply(event).is_empty() {
                    for volume in volumes.values() {
                        work.mark(Job::Volume(volume.name_any()));
                    }
                }
            }
            Ok(()) = behaviour.changed() => {
                for claim in claims.values() {
                    work.mark(Job::Claim(key(&**claim)));
                }
                for volume in volumes.values() {
                    work.mark(Job::Volume(volume.name_any()));
                }
            }
            () = work.finished() => {}
            else => return,
        }
    }
}

fn volume_name(claim: &PersistentVolumeClaim) -> Option<String> {
    Some(format!("pvc-{}", claim.metadata.uid.as_ref()?))
}

fn create(
    claim: &Arc<PersistentVolumeClaim>,
    class: &StorageClass,
    driver: &str,
    behaviour: &ProvisionerBehaviour,
) -> Option<Write> {
    let annotations: &BTreeMap<String, String> = claim.annotations();
    let spec = claim.spec.as_ref()?;
    let asked = PROVISIONER_KEYS.iter().find_map(|key| annotations.get(*key));
    let is_ours = [asked, annotations.get(MIGRATED_TO)].into_iter().flatten().any(|name| name == driver);
    let waits = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
        && annotations.get(SELECTED_NODE).is_none_or(String::is_empty);
    let has_volume = spec.volume_name.as_ref().is_some_and(|name| !name.is_empty());
    if !is_ours || waits || has_volume || claim.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let delay = match &behaviour.create {
        Reaction::Succeed(delay) => delay,
        Reaction::Fail(_) if behaviour.reschedule && annotations.contains_key(SELECTED_NODE) => {
            let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
            let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}");
            let body = json!({ "metadata": {
                "resourceVersion": claim.metadata.resource_version,
                "annotations": { SELECTED_NODE: null },
            }});
            return Some(Write::patch(path, body));
        }
        // A failure is an event of the provisioner's and nothing else.
        Reaction::Fail(_) | Reaction::Silent => return None,
    };
    let name = volume_name(claim)?;
    let body = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "annotations": { PROVISIONED_BY: driver },
            "finalizers": [FINALIZER],
        },
        "spec": {
            "capacity": { "storage": spec.resources.as_ref()?.requests.as_ref()?.get("storage")? },
            "accessModes": spec.access_modes,
            "volumeMode": spec.volume_mode,
            "storageClassName": class.name_any(),
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "csi": { "driver": driver, "volumeHandle": format!("{}{name}", behaviour.handle_prefix) },
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": claim.namespace(), "name": claim.name_any(),
                "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version,
            },
        },
    });
    let path = "/api/v1/persistentvolumes".to_owned();
    Some(Write::new(Method::POST, path, body).after(*delay))
}

fn names(attachment: &VolumeAttachment, volume: &str) -> bool {
    attachment.spec.source.persistent_volume_name.as_deref() == Some(volume)
}

fn is_ours(volume: &PersistentVolume, driver: &str) -> bool {
    let annotations = volume.annotations();
    [PROVISIONED_BY, MIGRATED_TO].iter().filter_map(|key| annotations.get(*key)).any(|name| name == driver)
}

/// Adds its finalizer to a bound volume that is to be deleted, removes it from one that no longer is.
fn protect(volume: &PersistentVolume, driver: &str) -> Option<Write> {
    let is_bound = volume.status.as_ref()?.phase.as_deref() == Some("Bound");
    if !is_ours(volume, driver) || !is_bound {
        return None;
    }
    let path = format!("/api/v1/persistentvolumes/{}", volume.name_any());
    let to_delete = volume.spec.as_ref()?.persistent_volume_reclaim_policy.as_deref() == Some("Delete");
    match (to_delete, has_finalizer(&volume.metadata, FINALIZER)) {
        (true, false) if volume.metadata.deletion_timestamp.is_none() => {
            Some(Write::patch(path, add_finalizer(&volume.metadata, FINALIZER)))
        }
        (false, true) => Some(Write::patch(path, remove_finalizer(&volume.metadata, FINALIZER))),
        _ => None,
    }
}

/// Deletes what was released: first the object is marked, then, with the storage gone, let go.
fn delete(volume: &PersistentVolume, attached: bool, driver: &str, reaction: &Reaction) -> Option<Write> {
    let is_ours = is_ours(volume, driver);
    let spec = volume.spec.as_ref()?;
    let is_released = volume.status.as_ref()?.phase.as_deref() == Some("Released");
    if !is_ours
        || !is_released
        || attached
        || spec.persistent_volume_reclaim_policy.as_deref() != Some("Delete")
    {
        return None;
    }
    let Reaction::Succeed(delay) = reaction else { return None };
    let path = format!("/api/v1/persistentvolumes/{}", volume.name_any());
    if volume.metadata.deletion_timestamp.is_none() {
        let body = json!({ "preconditions": { "uid": volume.metadata.uid } });
        return Some(Write::new(Method::DELETE, path, body).after(*delay));
    }
    has_finalizer(&volume.metadata, FINALIZER)
        .then(|| Write::patch(path, remove_finalizer(&volume.metadata, FINALIZER)))
}
