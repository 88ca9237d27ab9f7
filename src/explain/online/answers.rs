//! What a user is told of an object, by what that is known again, and why it is not told.
//!
//! In: what the desk says of the object, and the user's rights. Out: the answer without what this user may not see.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{
    access,
    desk::{Busy, Desk},
    redact::{Answer as Whole, redacted},
};
use crate::{
    explain::{
        report::{API_VERSION, Explanation, Observed, Source, Verdict},
        subject::Subject,
    },
    http::{Denial, Rights},
};

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    /// It cannot be told what may be seen.
    Denied(Denial),
    /// Too many ask.
    Busy,
}

impl From<Denial> for Trouble {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}

impl From<Busy> for Trouble {
    fn from(_: Busy) -> Self {
        Self::Busy
    }
}

impl Trouble {
    /// As it is answered.
    pub fn told(&self, path: &str) -> (StatusCode, String) {
        match self {
            Self::Denied(denial) => denial.told(path),
            Self::Busy => {
                (StatusCode::SERVICE_UNAVAILABLE, "too much is being explained: try later\n".to_owned())
            }
        }
    }
}

/// What is said of an object to one who may ask about it, with what it was made from; or that this one may not.
pub(super) async fn object(
    desk: &Desk,
    subject: &Subject,
    rights: &Rights,
) -> Result<(Explanation, Option<Arc<Whole>>), Trouble> {
    if !rights.may_ask_for(&access::resource(&subject.object())).await? {
        return Ok((forbidden(subject), None));
    }
    let answer = desk.answer(subject).await?;
    let hidden = access::hidden(answer.mentioned.keys().cloned(), rights).await?;
    Ok((redacted(&answer, &hidden), Some(answer)))
}

/// What is said to one who may not get an object, whether it is there or not.
pub(super) fn forbidden(subject: &Subject) -> Explanation {
    let name = match subject.namespace() {
        Some(namespace) => format!("{namespace}/{}", subject.name()),
        None => subject.name().to_owned(),
    };
    Explanation {
        api_version: API_VERSION,
        kind: "Explanation",
        subject: subject.json(),
        headline: String::new(),
        verdict: Verdict::Forbidden,
        reason: "Forbidden".to_owned(),
        summary: format!(
            "you may not get {} {name}: ask for the right that kubectl get would need",
            subject.kind()
        ),
        observed: Observed {
            resource_version: None,
            at: Timestamp::now(),
            source: Source::Daemon,
            leader: None,
        },
        steps: Vec::new(),
        candidates: Vec::new(),
        evidence: Vec::new(),
        timeline: Vec::new(),
        actions: Vec::new(),
        unseen: Vec::new(),
        unknown: Vec::new(),
        redacted: 0,
    }
}

/// By what an answer is known again: all of it but when and at which revision of the tables it was made.
pub(super) fn etag_of(explanation: &Explanation) -> String {
    let mut same = explanation.clone();
    same.observed.at = Timestamp::UNIX_EPOCH;
    same.observed.resource_version = None;
    etag(&same)
}

pub(super) fn etag(value: &impl Serialize) -> String {
    let digest = Sha256::digest(serde_json::to_vec(value).unwrap_or_default());
    // Half of it: it tells answers apart, and protects nothing.
    let half = digest.iter().take(16).fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    format!("W/\"{half}\"")
}

/// What keeps a browser that is led here from making anything of the answer.
pub(super) fn protect(headers: &mut HeaderMap) {
    const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"),
    );
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
}
