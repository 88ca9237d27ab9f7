//! Stand-in for the two protection controllers: they release claims and volumes that are being deleted
//! and no longer in use (pv-binder §7).
//!
//! A claim is in use while a pod that is on a node names it, and a volume while its phase is Bound. The
//! API server's admission adds the finalizers.
//!
//! KCM: pkg/controller/volume/pvcprotection, pkg/controller/volume/pvprotection.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{Client, ResourceExt};
use tokio::task::JoinHandle;

use super::{
    has_finalizer,
    mirror::{Key, Mirror, events, key},
    objects::{claim_path, claims_of, is_terminating, node_of, volume_path},
    remove_finalizer,
    work::{Work, Write},
};

/// Writes at once.
const WORKERS: usize = 16;
const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";

/// A running stand-in; stops when dropped.
#[derive(Debug)]
pub struct Protection {
    task: JoinHandle<()>,
}

impl Protection {
    /// Starts letting go.
    pub fn start(client: Client) -> Self {
        Self { task: tokio::spawn(run(client)) }
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Job {
    Claim(Key),
    Volume(String),
}

#[derive(Debug, Default)]
struct World {
    pods: Mirror<Pod>,
    claims: Mirror<PersistentVolumeClaim>,
    volumes: Mirror<PersistentVolume>,
    /// Pods on nodes by the claims they use.
    users_of: BTreeMap<Key, BTreeSet<Key>>,
    /// Whether all pods are known: before that nothing is unused.
    knows_pods: bool,
}

async fn run(client: Client) {
    let mut world = World::default();
    let mut work: Work<Job> = Work::new(WORKERS);
    let mut pods = std::pin::pin!(events::<Pod>(&client));
    let mut claims = std::pin::pin!(events::<PersistentVolumeClaim>(&client));
    let mut volumes = std::pin::pin!(events::<PersistentVolume>(&client));
    loop {
        while let Some(job) = work.next() {
            if let Some(write) = world.next_write(&job) {
                work.start(job, write, client.clone());
            }
        }
        tokio::select! {
            Some(event) = pods.next() => {
                let is_listed = matches!(event, kube::runtime::watcher::Event::InitDone);
                for (before, now) in world.pods.apply(event) {
                    world.index(before.as_deref(), now.as_deref());
                    for claim in now.or(before).iter().flat_map(|pod| claims_of(pod)) {
                        work.mark(Job::Claim(claim));
                    }
                }
                if is_listed {
                    world.knows_pods = true;
                    world.claims.values().for_each(|claim| work.mark(Job::Claim(key(&**claim))));
                }
            }
            Some(event) = claims.next() => {
                for (_, now) in world.claims.apply(event) {
                    if let Some(claim) = now {
                        work.mark(Job::Claim(key(&*claim)));
                    }
                }
            }
            Some(event) = volumes.next() => {
                for (_, now) in world.volumes.apply(event) {
                    if let Some(volume) = now {
                        work.mark(Job::Volume(volume.name_any()));
                    }
                }
            }
            () = work.finished() => {}
            else => return,
        }
    }
}

impl World {
    fn index(&mut self, before: Option<&Pod>, now: Option<&Pod>) {
        for (pod, is_now) in before.map(|pod| (pod, false)).into_iter().chain(now.map(|pod| (pod, true))) {
            if node_of(pod).is_none() {
                continue;
            }
            for claim in claims_of(pod) {
                let users = self.users_of.entry(claim.clone()).or_default();
                if is_now {
                    users.insert(key(pod))
                } else {
                    users.remove(&key(pod))
                };
                if users.is_empty() {
                    self.users_of.remove(&claim);
                }
            }
        }
    }

    fn next_write(&self, job: &Job) -> Option<Write> {
        match job {
            Job::Claim(claim) => {
                let object = self.claims.get(&claim.0, &claim.1)?;
                let is_used = !self.knows_pods || self.users_of.contains_key(claim);
                let goes = is_terminating(&**object) && has_finalizer(&object.metadata, CLAIM_FINALIZER);
                (goes && !is_used).then(|| {
                    Write::patch(claim_path(claim), remove_finalizer(&object.metadata, CLAIM_FINALIZER))
                })
            }
            Job::Volume(name) => {
                let object = self.volumes.get("", name)?;
                let phase = object.status.as_ref().and_then(|status| status.phase.as_deref());
                let goes = is_terminating(&**object) && has_finalizer(&object.metadata, VOLUME_FINALIZER);
                (goes && phase != Some("Bound")).then(|| {
                    Write::patch(volume_path(name), remove_finalizer(&object.metadata, VOLUME_FINALIZER))
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actors::tests::{Case, apply, cases, expect};

    #[test]
    fn protection_decisions() {
        for Case { name, objects, about, then, .. } in cases("protection") {
            let mut world = World { knows_pods: true, ..World::default() };
            let mut job = Job::Claim(("ns".to_owned(), about.clone()));
            for object in &objects {
                match object["kind"].as_str().unwrap() {
                    "Pod" => {
                        for (before, now) in apply(&mut world.pods, object) {
                            world.index(before.as_deref(), now.as_deref());
                        }
                    }
                    "PersistentVolumeClaim" => drop(apply(&mut world.claims, object)),
                    "PersistentVolume" => {
                        apply(&mut world.volumes, object);
                        job = Job::Volume(about.clone());
                    }
                    other => panic!("{name}: {other}"),
                }
            }
            expect(&name, world.next_write(&job).as_ref(), &then);
            world.knows_pods = false;
            if matches!(job, Job::Claim(_)) {
                assert_eq!(world.next_write(&job), None, "{name}: pods are not known yet");
            }
        }
    }
}
