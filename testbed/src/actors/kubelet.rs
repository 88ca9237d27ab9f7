//! Stand-in for the kubelets of all nodes (attach-detach §14).
//!
//! It reports the volumes of each pod on a node in `volumesInUse`: what the pod's claims lead to, and what they led to
//! before. A kubelet keeps what it once processed for a pod as long as the pod runs (KCM:
//! `pkg/kubelet/volumemanager/populator`, `AddPodToVolume` without its reverse). When `volumesAttached` lists them and
//! their VolumeAttachments are attached, it mounts them and runs the pod. When the pod is deleted or done,
//! it stops the pod, unmounts the volumes, removes them from `volumesInUse`, and then removes the pod
//! object with grace 0. One write of a node is in progress at a time.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    time::Duration,
};

use futures::StreamExt;
use http::Method;
use k8s_openapi::{
    api::{
        core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
        storage::v1::VolumeAttachment,
    },
    jiff::Timestamp,
};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::{sync::watch, task::JoinHandle, time::Instant};

use super::{
    Handle,
    mirror::{Key, Mirror, events, key},
    objects::{claim_of, claims_of, is_for, node_of, pod_path},
    storage::{Step, Storage},
    work::{Work, Write},
};
use crate::clock::seconds_text;

/// Writes of all nodes at once.
const WORKERS: usize = 32;

/// What the stand-ins do; the sets are of node names.
#[derive(Clone, Debug, Default)]
pub struct KubeletBehaviour {
    /// These do nothing at all, as if the machine had stopped.
    pub silent: BTreeSet<String>,
    /// These keep volumes mounted (and in use) although their pods are gone: an unmount that hangs.
    pub holding: BTreeSet<String>,
    /// How often the machine of a node has booted. After a boot nothing is mounted there.
    pub boots: BTreeMap<String, usize>,
    /// By node: the machine that bears its name now, if that is not the first one, which is called as the node.
    pub machines: BTreeMap<String, String>,
    /// Machines that have stopped for good: nothing is mounted there any more.
    pub dead: BTreeSet<String>,
    /// After so long they report again what they have mounted, if somebody has taken it out of their report.
    pub report_after: Duration,
    /// What mounts are noted in.
    pub storage: Storage,
}

/// Running stand-ins; stop when dropped.
#[derive(Debug)]
pub struct Kubelets {
    behaviour: watch::Sender<KubeletBehaviour>,
    task: JoinHandle<()>,
}

impl Kubelets {
    /// Starts a kubelet for every node there is and will be.
    pub fn start(client: Client, behaviour: KubeletBehaviour) -> Self {
        let (sender, receiver) = watch::channel(behaviour);
        Self { behaviour: sender, task: tokio::spawn(run(client, receiver)) }
    }

    /// What changes them from a task of its own.
    pub fn handle(&self) -> Handle<KubeletBehaviour> {
        Handle(self.behaviour.clone())
    }

    /// Changes what they do from now on.
    pub fn change(&self, change: impl FnOnce(&mut KubeletBehaviour)) {
        self.behaviour.send_modify(change);
    }
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the kubelets see, and what they have mounted.
#[derive(Debug, Default)]
struct World {
    nodes: Mirror<Node>,
    pods: Mirror<Pod>,
    claims: Mirror<PersistentVolumeClaim>,
    volumes: Mirror<PersistentVolume>,
    attachments: Mirror<VolumeAttachment>,
    /// Pods by node.
    pods_of: BTreeMap<String, BTreeSet<Key>>,
    /// Nodes with a pod that uses a claim.
    users_of: BTreeMap<Key, BTreeSet<String>>,
    /// By machine: unique volume names and the pods (UIDs) they are mounted for.
    mounted: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
    /// By machine and pod (UID): the unique names of the volumes that the pod's claims ever led to.
    processed: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
    /// By machine: the boot that these two are of.
    boots: BTreeMap<String, usize>,
    /// By node: when it reports again what somebody has taken out of its report.
    reports: BTreeMap<String, Instant>,
}

async fn run(client: Client, mut behaviour: watch::Receiver<KubeletBehaviour>) {
    let mut world = World::default();
    let mut work: Work<String> = Work::new(WORKERS);
    let mut nodes = std::pin::pin!(events::<Node>(&client));
    let mut pods = std::pin::pin!(events::<Pod>(&client));
    let mut claims = std::pin::pin!(events::<PersistentVolumeClaim>(&client));
    let mut volumes = std::pin::pin!(events::<PersistentVolume>(&client));
    let mut attachments = std::pin::pin!(events::<VolumeAttachment>(&client));
    loop {
        while let Some(node) = work.next() {
            let write = world.next_write(&node, &behaviour.borrow());
            if let Some(write) = write {
                work.start(node, write, client.clone());
            } else if let Some(at) = world.reports.get(&node).filter(|at| **at > Instant::now()) {
                work.mark_after(node, at.duration_since(Instant::now()));
            }
        }
        tokio::select! {
            Some(event) = nodes.next() => {
                for (before, now) in world.nodes.apply(event) {
                    let Some(node) = now.or(before) else { continue };
                    work.mark(node.name_any());
                }
            }
            Some(event) = pods.next() => {
                for (before, now) in world.pods.apply(event) {
                    world.index(before.as_ref(), now.as_ref());
                    let Some(pod) = now.or(before) else { continue };
                    if let Some(node) = node_of(&pod) {
                        work.mark(node.to_owned());
                    }
                }
            }
            Some(event) = claims.next() => {
                for (before, now) in world.claims.apply(event) {
                    let Some(claim) = now.or(before) else { continue };
                    for node in world.users_of.get(&key(&*claim)).into_iter().flatten() {
                        work.mark(node.clone());
                    }
                }
            }
            // Watches of two kinds have no order between them: a claim may be seen before its volume.
            Some(event) = volumes.next() => {
                for (before, now) in world.volumes.apply(event) {
                    let Some(volume) = now.or(before) else { continue };
                    let Some(claim) = claim_of(&volume) else { continue };
                    for node in world.users_of.get(&claim).into_iter().flatten() {
                        work.mark(node.clone());
                    }
                }
            }
            Some(event) = attachments.next() => {
                for (before, now) in world.attachments.apply(event) {
                    let Some(attachment) = now.or(before) else { continue };
                    work.mark(attachment.spec.node_name.clone());
                }
            }
            Ok(()) = behaviour.changed() => {
                world.bury(&behaviour.borrow());
                for node in world.nodes.values() {
                    work.mark(node.name_any());
                }
            }
            () = work.finished() => {}
            else => return,
        }
    }
}

impl World {
    fn index(&mut self, before: Option<&Arc<Pod>>, now: Option<&Arc<Pod>>) {
        if let Some((pod, node)) = before.and_then(|pod| Some((pod, node_of(pod)?)))
            && let Some(keys) = self.pods_of.get_mut(node)
        {
            keys.remove(&key(&**pod));
        }
        if let Some((pod, node)) = now.and_then(|pod| Some((pod, node_of(pod)?))) {
            self.pods_of.entry(node.to_owned()).or_default().insert(key(&**pod));
            for claim in claims_of(pod) {
                self.users_of.entry(claim).or_default().insert(node.to_owned());
            }
        }
    }

    /// Unique volume name and VolumeAttachment-worthy facts of a pod's claim: its CSI or iSCSI volume, once bound.
    fn volume_of(&self, pod: &Pod, claim: &Key) -> Option<(String, &PersistentVolume)> {
        let claim = self.claims.get(&claim.0, &claim.1).filter(|claim| is_for(pod, claim))?;
        let phase = claim.status.as_ref()?.phase.as_deref();
        let volume = self.volumes.get("", claim.spec.as_ref()?.volume_name.as_deref()?)?;
        let spec = volume.spec.as_ref()?;
        if phase != Some("Bound") || spec.claim_ref.as_ref()?.uid != claim.metadata.uid {
            return None;
        }
        let csi = spec.csi.as_ref().map(|csi| format!("csi/{}^{}", csi.driver, csi.volume_handle));
        let iscsi = || {
            let lun = spec.iscsi.as_ref()?;
            Some(format!("iscsi/{}:{}:{}", lun.target_portal, lun.iqn, lun.lun))
        };
        Some((format!("kubernetes.io/{}", csi.or_else(iscsi)?), volume))
    }

    /// Whether it is time for a node's report of what is in use. Of what it has mounted, and somebody has taken out, the kubelet
    /// tells with its next turn; of what a pod waits for at once.
    fn is_to_report(&mut self, name: &str, is_taken_out: bool, after: Duration) -> bool {
        if !is_taken_out {
            self.reports.remove(name);
            return true;
        }
        let now = Instant::now();
        *self.reports.entry(name.to_owned()).or_insert(now + after) <= now
    }

    /// What a machine had mounted that has stopped for good is mounted no more.
    fn bury(&mut self, behaviour: &KubeletBehaviour) {
        for machine in &behaviour.dead {
            for disk in self.mounted.remove(machine).unwrap_or_default().keys() {
                behaviour.storage.note(disk, machine, Step::Unmounted);
            }
        }
    }

    /// The next write of a node's kubelet, after it has mounted and unmounted what it may.
    fn next_write(&mut self, name: &str, behaviour: &KubeletBehaviour) -> Option<Write> {
        if behaviour.silent.contains(name) {
            return None;
        }
        let node = Arc::clone(self.nodes.get("", name)?);
        let pods: Vec<Arc<Pod>> = self
            .pods_of
            .get(name)
            .into_iter()
            .flatten()
            .filter_map(|(namespace, pod)| self.pods.get(namespace, pod).cloned())
            .collect();
        let machine = behaviour.machines.get(name).map_or(name, String::as_str);
        let mut mounted = self.mounted.remove(machine).unwrap_or_default();
        let mut processed = self.processed.remove(machine).unwrap_or_default();
        if let Some(boots) = behaviour.boots.get(name)
            && self.boots.insert(machine.to_owned(), *boots).unwrap_or_default() != *boots
        {
            for disk in mem::take(&mut mounted).keys() {
                behaviour.storage.note(disk, machine, Step::Unmounted);
            }
            processed.clear();
        }
        processed
            .retain(|uid, _| pods.iter().any(|pod| !is_done(pod) && pod.metadata.uid.as_ref() == Some(uid)));
        let before: BTreeSet<String> = mounted.keys().cloned().collect();

        // Stop what must stop: containers first, so that none writes to what is unmounted.
        let stopping = pods.iter().find(|pod| pod.metadata.deletion_timestamp.is_some() && runs(pod));
        // Unmount for pods that run no more.
        if !behaviour.holding.contains(name) {
            let live: BTreeSet<String> =
                pods.iter().filter(|pod| !is_done(pod)).filter_map(|pod| pod.uid()).collect();
            for users in mounted.values_mut() {
                users.retain(|user| live.contains(user));
            }
            mounted.retain(|_, users| !users.is_empty());
        }
        // In use is what is mounted, and what a pod waits to mount.
        let status = node.status.clone().unwrap_or_default();
        let reported: BTreeSet<String> = status.volumes_in_use.into_iter().flatten().collect();
        let published: BTreeSet<String> =
            status.volumes_attached.into_iter().flatten().map(|volume| volume.name).collect();
        let mut in_use: BTreeSet<String> = mounted.keys().cloned().collect();
        let mut ready = None;
        for pod in pods.iter().filter(|pod| !is_done(pod)) {
            let claims = claims_of(pod);
            let volumes: Vec<_> = claims.iter().filter_map(|claim| self.volume_of(pod, claim)).collect();
            let kept = processed.entry(pod.uid().unwrap_or_default()).or_default();
            kept.extend(volumes.iter().map(|(unique_name, _)| unique_name.clone()));
            in_use.extend(kept.iter().cloned());
            let mountable = volumes.len() == claims.len()
                && volumes.iter().all(|(unique_name, volume)| {
                    reported.contains(unique_name)
                        && published.contains(unique_name)
                        && self.is_attached(volume, name)
                        && (machine == name || is_there(volume, unique_name, machine, &behaviour.storage))
                });
            if mountable && pod.metadata.deletion_timestamp.is_none() {
                for (unique_name, _) in volumes {
                    mounted.entry(unique_name).or_default().extend(pod.uid());
                }
                if !runs(pod) {
                    ready = ready.or(Some(pod));
                }
            }
        }
        let missing: Vec<&String> = in_use.difference(&reported).collect();
        let is_taken_out = !missing.is_empty() && missing.iter().all(|disk| before.contains(*disk));
        let is_to_report = self.is_to_report(name, is_taken_out, behaviour.report_after);
        let write = if let Some(pod) = stopping {
            Some(pod_status(pod, &phase_of(pod), false))
        } else if is_to_report && in_use != reported {
            let body = json!({ "status": { "volumesInUse": in_use } });
            Some(Write::patch(format!("/api/v1/nodes/{name}/status"), body))
        } else if let Some(pod) = ready {
            Some(pod_status(pod, "Running", true))
        } else {
            // Last of all the object, once none of its volumes is mounted.
            pods.iter()
                .filter(|pod| pod.metadata.deletion_timestamp.is_some())
                .find(|pod| !mounted.values().flatten().any(|user| pod.metadata.uid.as_ref() == Some(user)))
                .map(|pod| {
                    let body =
                        json!({ "gracePeriodSeconds": 0, "preconditions": { "uid": pod.metadata.uid } });
                    Write::new(Method::DELETE, pod_path(&key(&**pod)), body)
                })
        };
        for disk in before.iter().filter(|disk| !mounted.contains_key(*disk)) {
            behaviour.storage.note(disk, machine, Step::Unmounted);
        }
        for disk in mounted.keys().filter(|disk| !before.contains(*disk)) {
            behaviour.storage.note(disk, machine, Step::Mounted);
        }
        self.mounted.insert(machine.to_owned(), mounted);
        self.processed.insert(machine.to_owned(), processed);
        write
    }

    /// The kubelet computes the VolumeAttachment's name; here it is enough to look for it. An iSCSI volume has none.
    fn is_attached(&self, volume: &PersistentVolume, node: &str) -> bool {
        let Some(csi) = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()) else { return true };
        let name = attachment_name(&csi.volume_handle, &csi.driver, node);
        self.attachments.get("", &name).is_some_and(|attachment| {
            attachment.spec.node_name == node
                && attachment.status.as_ref().is_some_and(|status| status.attached)
        })
    }
}

/// Whether a machine that has taken a name finds the device: an attachment of that name may be of the machine before, and then
/// the driver has put the disk there. An iSCSI target is found from everywhere.
fn is_there(volume: &PersistentVolume, disk: &str, machine: &str, storage: &Storage) -> bool {
    volume.spec.as_ref().is_some_and(|spec| spec.csi.is_none()) || storage.is_published(disk, machine)
}

/// The name by which the kubelet asks for a VolumeAttachment (attach-detach §7.1).
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    use sha2::{Digest, Sha256};
    let hash = Sha256::new().chain_update(handle).chain_update(driver).chain_update(node).finalize();
    format!("csi-{hash:x}")
}

fn phase_of(pod: &Pod) -> String {
    pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_else(|| "Pending".to_owned())
}

/// Whether a container of the pod runs.
fn runs(pod: &Pod) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses
        .into_iter()
        .flatten()
        .any(|status| status.state.as_ref().is_some_and(|state| state.running.is_some()))
}

/// Whether the pod needs its volumes no more.
fn is_done(pod: &Pod) -> bool {
    matches!(phase_of(pod).as_str(), "Succeeded" | "Failed")
        || (pod.metadata.deletion_timestamp.is_some() && !runs(pod))
}

fn pod_status(pod: &Pod, phase: &str, running: bool) -> Write {
    let state = if running {
        json!({ "running": { "startedAt": seconds_text(Timestamp::now()) } })
    } else {
        json!({ "terminated": { "exitCode": 0, "reason": "Completed" } })
    };
    let statuses: Vec<_> = pod
        .spec
        .iter()
        .flat_map(|spec| &spec.containers)
        .map(|container| {
            json!({
                "name": container.name, "image": container.image, "imageID": "", "restartCount": 0,
                "ready": running, "state": state,
            })
        })
        .collect();
    let body = json!({
        "metadata": { "uid": pod.metadata.uid },
        "status": { "phase": phase, "containerStatuses": statuses },
    });
    Write::patch(format!("{}/status", pod_path(&key(pod))), body)
}
