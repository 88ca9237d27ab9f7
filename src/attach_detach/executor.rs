//! Executor: carries out one call as one request and reports what became of it. Makes no choices.
//!
//! In: calls, each complete with names, preconditions and body. Out: an [`Outcome`] per call, through a
//! bounded channel to the one owner of the state.

use tokio::{sync::mpsc, task::JoinSet};

use super::{
    act::{
        calls::{Answer, Call, Outcome, PairRequest},
        room::{NODE_CALLS, PAIR_CALLS},
    },
    actual::withdrawal::Sequence,
    guard::second_controller::Suspect,
};
use crate::kube_api::{
    call::{CallError, Caller, Verb},
    kinds::{Narrow, Node, VolumeAttachment},
};

/// Sends calls concurrently.
#[derive(Debug)]
pub struct Executor {
    /// For pairs and for the rest: neither keeps the other waiting.
    pairs: Caller,
    rest: Caller,
    outcomes: mpsc::Sender<Outcome>,
    tasks: JoinSet<()>,
}

impl Executor {
    /// An executor that reports to the given channel.
    #[must_use]
    pub fn new(caller: &Caller, outcomes: mpsc::Sender<Outcome>) -> Self {
        let (pairs, rest) = (caller.with_own_budget(PAIR_CALLS), caller.with_own_budget(NODE_CALLS));
        Self { pairs, rest, outcomes, tasks: JoinSet::new() }
    }

    /// Sends a call; its outcome arrives in the channel, whatever happens.
    pub fn send(&mut self, sent: Sequence, call: Call) {
        while self.tasks.try_join_next().is_some() {}
        let caller = if matches!(call, Call::Pair(..)) { &self.pairs } else { &self.rest };
        let (caller, outcomes) = (caller.clone(), self.outcomes.clone());
        self.tasks.spawn(async move {
            let result = perform(&caller, &call).await;
            // The receiver is gone only when the process ends.
            let _ = outcomes.send(Outcome { call, sent, result }).await;
        });
    }
}

async fn perform(caller: &Caller, call: &Call) -> Result<Answer, CallError> {
    match call {
        Call::Pair(_, _, PairRequest::Create(request)) => caller.write(request).await.map(Answer::Attachment),
        Call::Pair(_, _, PairRequest::Delete(_, request)) => {
            caller.send(request).await.map(|body| deleted(&body))
        }
        Call::Pair(_, _, PairRequest::Read(name)) => caller.get(name).await.map(Answer::Attachment),
        Call::PatchNode(_, _, request) => caller.write(request).await.map(Answer::Node),
        Call::ReadNode(name) => caller.get(name).await.map(Answer::Node),
        Call::ReadOwner(suspect, uid) => {
            let path = match suspect {
                Suspect::Node(name) => Node::path(name),
                Suspect::Attachment(_, name) => VolumeAttachment::path(name),
            };
            caller.owners(path, uid, suspect.field()).await.map(Answer::Owners)
        }
        Call::Timers(request) if request.verb == Verb::Delete => {
            caller.send(request).await.map(|_| Answer::Gone)
        }
        Call::Timers(request) => caller.config_map(request).await.map(Answer::Timers),
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
