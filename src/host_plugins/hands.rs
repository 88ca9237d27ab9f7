//! What the plugins do outside of the planner: directories of this machine, and events of recycler pods.
//!
//! What is told about recycler pods is told again about their volumes: users who wait for a volume look
//! there (pv-binder §6.4). In: which pods are at work. Out: an event `RecyclerPod` for each event of such a pod. One
//! watch per pod, as long as it is at work; it explains, and decides nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use apiserver::{
    backoff::retry_pause,
    events::{EventRecorder, Involved},
    ids::{PodKey, Uid},
};
use futures::{StreamExt, future::BoxFuture};
use k8s_openapi::api::core::v1::Event as PodEvent;
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt,
        watcher::{self, watcher},
    },
};
use tokio::task::spawn_blocking;
use tokio_util::task::AbortOnDropHandle;

use super::directories::{self, ROOT};
use crate::binder::{calls::Directory, events, requests::Hands};

/// Longest pause between two attempts to watch.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Pauses that nothing starts over: kube's watcher says that all is well before each attempt to list, so one
/// that is forbidden would be repeated several times a second for ever.
#[derive(Default)]
struct WatchBackoff {
    failures: u32,
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        Some(retry_pause(self.failures, fastrand::f64()).min(LONGEST_PAUSE))
    }
}

impl kube::runtime::utils::Backoff for WatchBackoff {
    fn reset(&mut self) {}
}

/// Acts on the machine that the binder runs on, and copies the events of recycler pods.
#[derive(derive_more::Debug)]
#[debug("MachineHands({following:?})")]
pub struct MachineHands {
    client: Client,
    recorder: EventRecorder,
    /// The watches, by the UIDs of their pods.
    following: BTreeMap<Uid, AbortOnDropHandle<()>>,
}

impl MachineHands {
    /// Nothing is followed yet.
    pub fn new(client: Client, recorder: EventRecorder) -> Self {
        Self { client, recorder, following: BTreeMap::new() }
    }
}

impl Hands for MachineHands {
    fn act(&self, directory: &Directory) -> BoxFuture<'static, Result<(), String>> {
        let directory = directory.clone();
        Box::pin(async move {
            let done = spawn_blocking(move || directories::perform(Path::new(ROOT), &directory)).await;
            done.unwrap_or_else(|error| Err(error.to_string()))
        })
    }

    fn follow(&mut self, pods: BTreeMap<Uid, (PodKey, Involved)>) {
        self.following.retain(|uid, _| pods.contains_key(uid));
        for (uid, (pod, volume)) in pods {
            if !self.following.contains_key(&uid) {
                let api = Api::namespaced(self.client.clone(), pod.namespace());
                let copying = copy(api, uid.clone(), volume, self.recorder.clone());
                self.following.insert(uid, AbortOnDropHandle::new(tokio::spawn(copying)));
            }
        }
    }
}

// KCM: pkg/volume/util/recyclerclient/recycler_client.go, waitForPod.
async fn copy(api: Api<PodEvent>, pod: Uid, volume: Involved, recorder: EventRecorder) {
    let config = watcher::Config::default().fields(&format!("involvedObject.uid={pod}"));
    let mut copied = watcher(api, config).backoff(WatchBackoff::default()).applied_objects().boxed();
    let mut seen: BTreeSet<Option<String>> = BTreeSet::new();
    while let Some(event) = copied.next().await {
        let Ok(event) = event else { continue };
        // A repetition changes the event; only the first one is copied.
        if seen.insert(event.metadata.uid) {
            let warns = event.type_.as_deref() == Some("Warning");
            let message = event.message.unwrap_or_default();
            recorder.record(events::recycler_pod(volume.clone(), warns, &message));
        }
    }
}
