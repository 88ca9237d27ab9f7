//! Sends the requests of the protection controllers, and puts each into the skeleton.

use std::{fmt::Display, sync::Arc};

use serde::Deserialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    CALLS, Measures,
    calls::{Answer, Call, ListedPod},
    claims::ClaimProtection,
    second_writer::Protected,
    volumes::VolumeProtection,
};
use crate::{
    controller::{
        Controller, Executor, Runner,
        second_writer::{Role, Target, Teller},
    },
    kube_api::{
        call::{CallError, Caller, Request, Verb},
        events::EventRecorder,
        ids::{ClaimKey, VolumeName},
        kinds::{Narrow, PersistentVolume, PersistentVolumeClaim},
        leadership::Leadership,
    },
    metrics::{Alarms, Metrics, WorkQueueMetrics},
    state::Objects,
};

/// Pods on one page of a list. Each has some kilobytes, of which nothing but its claims is kept.
const PAGE: usize = 500;

#[derive(Deserialize)]
struct Page {
    kind: String,
    metadata: PageMeta,
    items: Vec<ListedPod>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PageMeta {
    r#continue: String,
}

/// Where a page is, which the last one names, if there was one.
fn page_path(namespace: &str, token: &str) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("limit", &PAGE.to_string());
    if !token.is_empty() {
        query.append_pair("continue", token);
    }
    format!("/api/v1/namespaces/{namespace}/pods?{}", query.finish())
}

/// Lists all pods of a namespace at the most recent revision. What cannot be read proves nothing (S42).
async fn pods(caller: &Caller, namespace: &str) -> Result<Vec<ListedPod>, CallError> {
    let (mut all, mut next) = (Vec::new(), String::new());
    loop {
        let path = page_path(namespace, &next);
        let body = caller.send(&Request { verb: Verb::Get, path, body: None }).await?;
        let page = serde_json::from_slice::<Page>(&body).ok().filter(|page| page.kind == "PodList");
        let page = page.ok_or_else(|| CallError::Unknown("unreadable list of pods".to_owned()))?;
        all.extend(page.items);
        if page.metadata.r#continue.is_empty() {
            return Ok(all);
        }
        next = page.metadata.r#continue;
    }
}

/// Sends the requests of one of the two.
#[derive(Debug)]
pub struct Requests {
    caller: Caller,
    queue: WorkQueueMetrics,
    second_writers: Teller,
}

impl<C: Controller<Call = Call, Answer = Answer, Measures = Measures>> Executor<C> for Requests {
    fn perform(
        &self,
        call: Call,
    ) -> impl Future<Output = (Call, Result<Answer, CallError>)> + Send + 'static {
        let caller = self.caller.clone();
        async move {
            let result = match &call {
                Call::Claim(_, _, request) => caller.write(request).await.map(Answer::Claim),
                Call::Volume(_, _, request) => caller.write(request).await.map(Answer::Volume),
                Call::ClaimOwner(key, uid) => {
                    let path = PersistentVolumeClaim::path(key);
                    caller.owners(path, uid, key.field()).await.map(Answer::Owners)
                }
                Call::VolumeOwner(name, uid) => {
                    let path = PersistentVolume::path(name);
                    caller.owners(path, uid, name.field()).await.map(Answer::Owners)
                }
                Call::Pods(namespace, _) => pods(&caller, namespace).await.map(Answer::Pods),
            };
            (call, result)
        }
    }

    fn planned(&mut self, _: &C, Measures { counts, others }: Measures, _: Instant) {
        self.queue.counted(&counts);
        if let Some(news) = &others {
            self.second_writers.tell(news);
        }
    }

    fn begins(&mut self, call: &Call, now: Instant) {
        self.queue.begins(key(call), now);
    }

    fn ends(&mut self, _: &C, call: &Call, _: &Result<Answer, CallError>, now: Instant) {
        self.queue.ends(&key(call), now);
    }
}

fn key(call: &Call) -> String {
    let key: &dyn Display = match call {
        Call::Claim(key, ..) | Call::ClaimOwner(key, _) => key,
        Call::Volume(name, ..) | Call::VolumeOwner(name, _) => name,
        Call::Pods(namespace, _) => namespace,
    };
    key.to_string()
}

/// Under which names one of the two is seen.
struct Names {
    /// KCM's name of it.
    name: &'static str,
    /// KCM's name of its queue.
    queue: &'static str,
    role: Role,
}

/// One of the two, ready to run.
#[derive(Debug)]
pub struct Protection<C: Controller> {
    runner: Runner<C, Requests>,
}

impl<C: Controller<Call = Call, Answer = Answer, Measures = Measures>> Protection<C> {
    /// Joins the controller with what sends its requests, under KCM's names of it and of its queue.
    fn join(
        Names { name, queue, role }: Names,
        controller: C,
        objects: Arc<Objects>,
        caller: &Caller,
        leadership: Leadership,
        events: EventRecorder,
        (metrics, alarms): (&Metrics, Alarms),
    ) -> Result<Self, prometheus::Error> {
        let queue = WorkQueueMetrics::new(metrics, queue)?;
        let second_writers = Teller::new(role, metrics, alarms)?;
        let caller = caller.with_own_budget(CALLS);
        let parts = (controller, Requests { caller, queue, second_writers });
        Ok(Self { runner: Runner::new(name, parts, objects, leadership, events, metrics)? })
    }

    /// See [`Runner::run`].
    pub async fn run(self, shutdown: CancellationToken) {
        self.runner.run(shutdown).await;
    }
}

impl Protection<ClaimProtection> {
    /// KCM: cmd/kube-controller-manager/names/controller_names.go.
    pub const NAME: &str = "persistentvolumeclaim-protection-controller";

    /// The one for claims.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn of_claims(
        objects: Arc<Objects>,
        caller: &Caller,
        leadership: Leadership,
        events: EventRecorder,
        metrics: (&Metrics, Alarms),
    ) -> Result<Self, prometheus::Error> {
        let controller = ClaimProtection::new(Arc::clone(&objects));
        let names = Names { name: Self::NAME, queue: "pvcprotection", role: ClaimKey::ROLE };
        Self::join(names, controller, objects, caller, leadership, events, metrics)
    }
}

impl Protection<VolumeProtection> {
    /// KCM: cmd/kube-controller-manager/names/controller_names.go.
    pub const NAME: &str = "persistentvolume-protection-controller";

    /// The one for volumes.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn of_volumes(
        objects: Arc<Objects>,
        caller: &Caller,
        leadership: Leadership,
        events: EventRecorder,
        metrics: (&Metrics, Alarms),
    ) -> Result<Self, prometheus::Error> {
        let controller = VolumeProtection::new(Arc::clone(&objects));
        let names = Names { name: Self::NAME, queue: "pvprotection", role: VolumeName::ROLE };
        Self::join(names, controller, objects, caller, leadership, events, metrics)
    }
}
