//! The requests as values, how each is sent, and what can come back: the claim is made, and before that the pod is read if its
//! template is not there any more.

use apiserver::{
    call::{CallError, Caller, Request, Verb},
    ids::{ClaimKey, PodKey, Uid},
    kinds::{ClaimTemplate, Narrow, PersistentVolumeClaim, Pod},
    text::Text,
    wire::Encoding,
};
use bytes::Bytes;
use prometheus::IntCounter;
use serde_json::Value;

use super::decide;
use crate::{controller::requests::Sent, metrics::Metrics};

/// What is counted of the requests.
#[derive(Debug)]
pub struct CreateCounts {
    creates: IntCounter,
    failures: IntCounter,
}

impl CreateCounts {
    /// Registers the counters.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    // KCM: pkg/controller/volume/ephemeral/metrics.
    pub fn new(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        Ok(Self {
            creates: metrics.counter(
                "ephemeral_volume_controller_create_total",
                "Number of PersistentVolumeClaim creation requests",
            )?,
            failures: metrics.counter(
                "ephemeral_volume_controller_create_failures_total",
                "Number of PersistentVolumeClaim creation requests that failed",
            )?,
        })
    }

    /// Counts a request that was answered, if it was to make a claim.
    pub(super) fn count(&self, call: &Call, is_error: bool) {
        if call.template.is_some() {
            self.creates.inc();
            self.failures.inc_by(is_error.into());
        }
    }
}

/// A request for the claim of one volume.
#[derive(Clone, Debug)]
pub struct Call {
    /// The pod.
    pub pod: PodKey,
    /// Its UID.
    pub uid: Uid,
    /// The volume.
    pub volume: Text,
    /// The claim.
    pub claim: ClaimKey,
    /// What the claim is made of; without it, the pod is read.
    pub template: Option<Value>,
}

/// What came back.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The template of the volume, of the pod as it was read.
    Template(Value),
    /// The claim.
    Claim(Box<PersistentVolumeClaim>),
}

impl Call {
    /// What it does, for people.
    pub(super) fn what(&self) -> String {
        if self.template.is_some() {
            format!("create PVC {}", self.claim.name())
        } else {
            "read pod".to_owned()
        }
    }

    /// The template, of the pod as the server has it.
    pub(super) fn template(&self, body: &Bytes) -> Result<Value, CallError> {
        // It has answered, and will answer the same until somebody mends the pod.
        let unreadable =
            |why: &str| CallError::Refused { code: 200, message: format!("it cannot be read: {why}") };
        let pod: Pod = Encoding::Json.object(body).map_err(|error| unreadable(&error.to_string()))?;
        if pod.metadata.uid != self.uid || pod.metadata.is_terminating() {
            // The watch is about to tell of that.
            return Err(CallError::NotFound("the pod is deleted".to_owned()));
        }
        let templates = ClaimTemplate::all(Encoding::Json, body).unwrap_or_default();
        let template = templates.into_iter().find(|template| template.volume == self.volume);
        template.map(|template| template.template).ok_or_else(|| unreadable("no template"))
    }
}

impl Sent for Call {
    type Answer = Answer;

    async fn send(&self, caller: &Caller) -> Result<Answer, CallError> {
        let Some(template) = &self.template else {
            let request = Request { verb: Verb::Get, path: Pod::path(&self.pod), body: None };
            return self.template(&caller.send(&request).await?.into()).map(Answer::Template);
        };
        let request = decide::claim(&self.pod, &self.uid, self.claim.name(), template);
        caller.write(&request).await.map(Box::new).map(Answer::Claim)
    }

    fn key(&self) -> String {
        self.pod.to_string()
    }

    fn failed(&self) -> String {
        format!("{} failed, retrying", self.what())
    }
}
