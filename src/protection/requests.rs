//! Sends the requests of the protection controllers, and puts each into the skeleton.

use std::sync::Arc;

use apiserver::{
    call::{CallError, Caller, Request, Verb},
    events::EventRecorder,
    kinds::{Narrow, PersistentVolume, PersistentVolumeClaim},
    leadership::Leadership,
    tables::Objects,
};
use serde::Deserialize;

use super::{
    calls::{Answer, Call, ListedPod},
    keys::CALLS,
};
use crate::{
    controller::{Controller, Executor, Runner, second_writer::WrittenObject as _},
    metrics::{Alarms, Metrics},
};

/// Pods on one page of a list. Each has some kilobytes, of which nothing but its claims is kept.
const POD_PAGE: usize = 500;

#[derive(Deserialize)]
struct PodPage {
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
    query.append_pair("limit", &POD_PAGE.to_string());
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
        let page = serde_json::from_slice::<PodPage>(&body).ok().filter(|page| page.kind == "PodList");
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
pub struct Requests(Caller);

impl<C: Controller<Call = Call, Answer = Answer>> Executor<C> for Requests {
    fn perform(
        &self,
        call: Call,
    ) -> impl Future<Output = (Call, Result<Answer, CallError>)> + Send + 'static {
        let caller = self.0.clone();
        async move {
            let result = match &call {
                Call::Claim(_, _, request) => caller.write(request).await.map(Answer::Claim),
                Call::Volume(_, _, request) => caller.write(request).await.map(Answer::Volume),
                Call::ClaimOwner(key, uid) => {
                    let path = PersistentVolumeClaim::path(key);
                    caller.owners(path, uid, key.field().pointer()).await.map(Answer::Owners)
                }
                Call::VolumeOwner(name, uid) => {
                    let path = PersistentVolume::path(name);
                    caller.owners(path, uid, name.field().pointer()).await.map(Answer::Owners)
                }
                Call::Pods(namespace, _) => pods(&caller, namespace).await.map(Answer::Pods),
            };
            (call, result)
        }
    }

    fn work(call: &Call) -> Option<(usize, String)> {
        Some((0, call.key()))
    }

    fn ends(&mut self, _: &C, call: &Call, result: &Result<Answer, CallError>) {
        let Err(error) = result else { return };
        if matches!(error, CallError::Conflict(_) | CallError::NotFound(_) | CallError::NotLeader) {
            return;
        }
        match call {
            Call::Claim(..) | Call::Volume(..) => {
                let object = call.key();
                tracing::warn!(object, reason = "RetryBackoff", %error, "finalizer could not be changed, retrying");
            }
            Call::Pods(namespace, claims) => {
                let claims = claims.len();
                tracing::warn!(namespace, reason = "RetryBackoff", %error, claims, "pods could not be listed, claims are kept");
            }
            Call::ClaimOwner(..) | Call::VolumeOwner(..) => {}
        }
    }
}

/// Joins one of the two with what sends its requests.
///
/// # Errors
/// See [`Metrics::register`].
pub fn runner<C: Controller>(
    controller: C,
    objects: Arc<Objects>,
    caller: &Caller,
    leadership: Leadership,
    events: EventRecorder,
    metrics: (&Metrics, Alarms),
) -> Result<Runner<C, Requests>, prometheus::Error>
where
    Requests: Executor<C>,
{
    let parts = (controller, Requests(caller.with_own_budget(CALLS)));
    Runner::new(parts, objects, leadership, events, metrics)
}
