//! Stand-in for the garbage collector, as far as claims of generic ephemeral volumes need it: it deletes a claim whose
//! controlling owner, a pod, is gone.
//!
//! KCM: pkg/controller/garbagecollector.

use std::time::Duration;

use futures::StreamExt;
use http::Method;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Client, runtime::watcher::Event};
use serde_json::json;
use tokio::task::JoinHandle;

use super::{
    mirror::{Key, Mirror, events, key},
    objects::{claim_path, controller_of, is_terminating},
    work::{Work, Write},
};

/// Writes at once.
const WORKERS: usize = 16;
/// It looks so long after a change: watches of two kinds have no order between them, so a claim may be seen before its pod.
const PAUSE: Duration = Duration::from_millis(500);

/// A running stand-in; stops when dropped.
#[derive(Debug)]
pub struct Collector {
    task: JoinHandle<()>,
}

impl Collector {
    /// Starts collecting.
    pub fn start(client: Client) -> Self {
        Self { task: tokio::spawn(run(client)) }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(client: Client) {
    let mut pods: Mirror<Pod> = Mirror::default();
    let mut claims: Mirror<PersistentVolumeClaim> = Mirror::default();
    // Before all pods are known, none is gone.
    let mut knows_pods = false;
    let mut work: Work<Key> = Work::new(WORKERS);
    let mut pod_events = std::pin::pin!(events::<Pod>(&client));
    let mut claim_events = std::pin::pin!(events::<PersistentVolumeClaim>(&client));
    loop {
        while let Some(claim) = work.next() {
            let Some(object) = claims.get(&claim.0, &claim.1).filter(|_| knows_pods) else { continue };
            if let Some(write) = delete(object, &pods) {
                work.start(claim, write, client.clone());
            }
        }
        tokio::select! {
            Some(event) = pod_events.next() => {
                let is_listed = matches!(event, Event::InitDone);
                let is_gone = pods.apply(event).iter().any(|(_, now)| now.is_none());
                knows_pods |= is_listed;
                if is_listed || is_gone {
                    claims.values().for_each(|claim| work.mark_after(key(&**claim), PAUSE));
                }
            }
            Some(event) = claim_events.next() => {
                claims.apply(event).iter().filter_map(|(_, now)| now.as_ref()).for_each(|claim| work.mark_after(key(&**claim), PAUSE));
            }
            () = work.finished() => {}
            else => return,
        }
    }
}

/// The pod that controls the claim is gone, or another one has its name.
fn delete(claim: &PersistentVolumeClaim, pods: &Mirror<Pod>) -> Option<Write> {
    let owner = controller_of(claim).filter(|owner| owner.kind == "Pod")?;
    let (namespace, _) = key(claim);
    let is_there =
        pods.get(&namespace, &owner.name).is_some_and(|pod| pod.metadata.uid.as_ref() == Some(&owner.uid));
    (!is_there && !is_terminating(claim)).then(|| {
        let body = json!({ "preconditions": { "uid": claim.metadata.uid } });
        Write::new(Method::DELETE, claim_path(&key(claim)), body)
    })
}
