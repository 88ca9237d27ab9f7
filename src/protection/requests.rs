//! How the calls of the protection controllers are sent.

use apiserver::{
    call::{CallError, Caller, Request, Verb},
    kinds::{Narrow, PersistentVolume, PersistentVolumeClaim},
};
use serde::Deserialize;

use super::calls::{Answer, Call, ListedPod};
use crate::controller::{requests::Sent, second_writer::WrittenObject as _};

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

impl Sent for Call {
    type Answer = Answer;

    async fn send(&self, caller: &Caller) -> Result<Answer, CallError> {
        match self {
            Self::Claim(_, _, request) => caller.write(request).await.map(Answer::Claim),
            Self::Volume(_, _, request) => caller.write(request).await.map(Answer::Volume),
            Self::ClaimOwner(key, uid) => {
                let path = PersistentVolumeClaim::path(key);
                caller.owners(path, uid, key.field().pointer()).await.map(Answer::Owners)
            }
            Self::VolumeOwner(name, uid) => {
                let path = PersistentVolume::path(name);
                caller.owners(path, uid, name.field().pointer()).await.map(Answer::Owners)
            }
            Self::Pods(namespace, _) => pods(caller, namespace).await.map(Answer::Pods),
        }
    }

    fn key(&self) -> String {
        match self {
            Self::Claim(key, ..) | Self::ClaimOwner(key, _) => key.to_string(),
            Self::Volume(name, ..) | Self::VolumeOwner(name, _) => name.to_string(),
            Self::Pods(namespace, _) => namespace.clone(),
        }
    }

    fn log(&self, error: &CallError) {
        match self {
            Self::Claim(..) | Self::Volume(..) => {
                let object = self.key();
                tracing::warn!(object, reason = "RetryBackoff", %error, "finalizer could not be changed, retrying");
            }
            Self::Pods(namespace, claims) => {
                let claims = claims.len();
                tracing::warn!(namespace, reason = "RetryBackoff", %error, claims, "pods could not be listed, claims are kept");
            }
            Self::ClaimOwner(..) | Self::VolumeOwner(..) => {}
        }
    }
}
