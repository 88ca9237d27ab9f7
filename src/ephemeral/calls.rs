//! The request that makes a claim, and the read of the pod before it if the template is not there any more.

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
#[derive(Clone, Debug)]
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
        let counter = |name, help| {
            let counters = metrics.counters(name, help, &[])?;
            Ok::<_, prometheus::Error>(counters.with_label_values::<&str>(&[]))
        };
        Ok(Self {
            creates: counter(
                "ephemeral_volume_controller_create_total",
                "Number of PersistentVolumeClaim creation requests",
            )?,
            failures: counter(
                "ephemeral_volume_controller_create_failures_total",
                "Number of PersistentVolumeClaim creation requests that failed",
            )?,
        })
    }
}

/// Makes the claim of one volume.
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
    /// What the claim is made of; without it, the pod is read first.
    pub template: Option<Value>,
    /// Where it is counted.
    pub counts: CreateCounts,
}

impl Call {
    async fn read_template(&self, caller: &Caller) -> Result<Value, CallError> {
        let request = Request { verb: Verb::Get, path: Pod::path(&self.pod), body: None };
        let body = Bytes::from(caller.send(&request).await?);
        let unreadable = |why: &str| CallError::Unknown(format!("unreadable pod: {why}"));
        let pod: Pod = Encoding::Json.object(&body).map_err(|error| unreadable(&error.to_string()))?;
        if pod.metadata.uid != self.uid || pod.metadata.is_terminating() {
            // The watch is about to tell of that.
            return Err(CallError::NotFound("the pod is deleted".to_owned()));
        }
        let templates = ClaimTemplate::all(Encoding::Json, &body).unwrap_or_default();
        let template = templates.into_iter().find(|template| template.volume == self.volume);
        template.map(|template| template.template).ok_or_else(|| unreadable("no template"))
    }
}

impl Sent for Call {
    type Answer = PersistentVolumeClaim;

    async fn send(&self, caller: &Caller) -> Result<Self::Answer, CallError> {
        let template = match &self.template {
            Some(template) => template.clone(),
            None => self.read_template(caller).await?,
        };
        let request = decide::claim(&self.pod, &self.uid, self.claim.name(), &template);
        self.counts.creates.inc();
        let created = caller.write(&request).await;
        if created.is_err() {
            self.counts.failures.inc();
        }
        created
    }

    fn key(&self) -> String {
        self.pod.to_string()
    }

    fn log(&self, error: &CallError) {
        let (pod, claim) = (&self.pod, &self.claim);
        tracing::warn!(%pod, %claim, reason = "RetryBackoff", %error, "claim could not be created, retrying");
    }
}
