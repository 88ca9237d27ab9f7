//! Requests: the executor, which sends each call as one request.
//!
//! In: calls, complete with names, UIDs and preconditions. Out: their answers, and what a plan measured. It decides nothing.

use apiserver::{
    call::{CallError, Caller},
    kinds::{Narrow, Node, VolumeAttachment},
    lease_note::LeaseNote,
};
use tokio::time::Instant;

use super::{
    calls::{Answer, AttachmentRequest, Call},
    controller::{AttachDetach, Measures},
    dispatcher::{ATTACHMENT_CALLS, NODE_CALLS},
    guard::second_writer_role::ActTarget,
    metrics::AttachDetachMetrics,
    reasons::{AttachDetachReason, NodeVolumeKey, Report},
    state::actual::{ActualState, unpublishing::Sequence},
};
use crate::{
    controller::{Executor, second_writer::WrittenObject as _},
    telemetry::transition::Named,
};

/// Sends the requests.
#[derive(Debug)]
pub struct Requests {
    /// For volumes on nodes and for the rest: neither keeps the other waiting.
    attachments: Caller,
    rest: Caller,
    metrics: AttachDetachMetrics,
    lease_note: Option<LeaseNote>,
}

impl Requests {
    pub(super) fn new(caller: &Caller, metrics: AttachDetachMetrics, lease_note: Option<LeaseNote>) -> Self {
        let (attachments, rest) =
            (caller.with_own_budget(ATTACHMENT_CALLS), caller.with_own_budget(NODE_CALLS));
        Self { attachments, rest, metrics, lease_note }
    }
}

impl Executor<AttachDetach> for Requests {
    fn perform(
        &self,
        (sent, call): (Sequence, Call),
    ) -> impl Future<Output = ((Sequence, Call), Result<Answer, CallError>)> + Send + 'static {
        let caller = if matches!(call, Call::Attachment(..)) { &self.attachments } else { &self.rest };
        let caller = caller.clone();
        async move {
            let result = perform(&caller, &call).await;
            ((sent, call), result)
        }
    }

    fn planned(&mut self, _: &AttachDetach, measures: Measures, now: Instant) {
        if let (Some(lease), Some(text)) = (&self.lease_note, &measures.note) {
            lease.set(text);
        }
        self.metrics.take(measures.facts, now);
    }

    fn reported(&mut self, before: Option<&AttachDetachReason>, report: &Report, now: Instant) {
        self.metrics.reported(before, report, now);
    }

    fn next_due(&self) -> Option<Instant> {
        self.metrics.next_due()
    }

    fn work((_, call): &(Sequence, Call)) -> Option<(usize, String)> {
        match call {
            Call::Attachment(volume, node, _) => Some((0, format!("{volume} {node}"))),
            Call::PatchNode(node, ..) | Call::ReadNode(node) => Some((1, node.to_string())),
            Call::ReadOwner(..) => None,
        }
    }

    fn ends(
        &mut self,
        controller: &AttachDetach,
        (_, call): &(Sequence, Call),
        result: &Result<Answer, CallError>,
    ) {
        self.metrics.answered(call, result);
        if let Err(error) = result {
            log(call, controller.actual(), error);
        }
    }
}

async fn perform(caller: &Caller, call: &Call) -> Result<Answer, CallError> {
    match call {
        Call::Attachment(_, _, AttachmentRequest::Create(request)) => {
            caller.write(request).await.map(Answer::Attachment)
        }
        Call::Attachment(_, _, AttachmentRequest::Delete(.., request)) => {
            caller.send(request).await.map(|body| deleted(&body))
        }
        Call::Attachment(_, _, AttachmentRequest::Read(name)) => {
            caller.get(name).await.map(Answer::Attachment)
        }
        Call::PatchNode(_, _, request) => caller.write(request).await.map(Answer::Node),
        Call::ReadNode(name) => caller.get(name).await.map(Answer::Node),
        Call::ReadOwner(target, uid) => {
            let path = match target {
                ActTarget::Node(name) => Node::path(name),
                ActTarget::Attachment(_, name) => VolumeAttachment::path(name),
            };
            caller.owners(path, uid, &target.pointer()).await.map(Answer::Owners)
        }
    }
}

/// Logs that a request failed, if no other writer was there first and the server does not ask to wait.
fn log(call: &Call, actual: &ActualState, error: &CallError) {
    let creates = matches!(call, Call::Attachment(_, _, AttachmentRequest::Create(_)));
    match error {
        CallError::NotLeader
        | CallError::NotFound(_)
        | CallError::Throttled { .. }
        | CallError::Conflict(_) => return,
        CallError::AlreadyExists(_) if creates => return,
        _ => {}
    }
    let reason = "RetryBackoff";
    match call {
        Call::Attachment(volume, node, request) => {
            let what = match request {
                AttachmentRequest::Create(_) if matches!(error, CallError::Unknown(_)) => {
                    "whether the attachment was created is unknown, reading it"
                }
                AttachmentRequest::Create(_) => "creating the attachment failed",
                AttachmentRequest::Delete(..) => "deleting the attachment failed",
                AttachmentRequest::Read(_) => "the attachment could not be read",
            };
            let (key, attempt) = (NodeVolumeKey::new(volume, node), actual.attempt(volume, node));
            tracing::warn!(object = key.named().object, reason, attempt, %volume, %node, %error, "{what}");
        }
        Call::PatchNode(node, ..) | Call::ReadNode(node) | Call::ReadOwner(ActTarget::Node(node), _) => {
            let Named { object, .. } = Named::by(Node::KIND, node);
            let attempt =
                actual.node(node).map_or(1, |state| state.requests.retry.failures().saturating_add(1));
            tracing::warn!(object, reason, attempt, %error, "request for the node failed");
        }
        Call::ReadOwner(..) => {}
    }
}

/// What the answer to a delete says: with finalizers left it is the object, otherwise a Status.
fn deleted(body: &[u8]) -> Answer {
    serde_json::from_slice::<VolumeAttachment>(body)
        .ok()
        .filter(|attachment| !attachment.metadata.uid.is_empty())
        .map_or(Answer::Gone, Answer::Attachment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delete_is_answered_with_what_is_left_or_with_a_status() {
        let left = br#"{"kind": "VolumeAttachment", "metadata": {"name": "csi-1", "uid": "u"}}"#;
        assert!(matches!(deleted(left), Answer::Attachment(left) if left.metadata.uid == "u".into()));
        let status = br#"{"kind": "Status", "metadata": {}, "status": "Success", "details": {"uid": "u"}}"#;
        for body in [&status[..], b"ok", b""] {
            assert!(matches!(deleted(body), Answer::Gone));
        }
    }
}
