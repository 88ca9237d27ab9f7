//! Executor: carries out one step as one request and reports what became of it. Makes no choices.
//!
//! In: calls, each complete with names, preconditions and body. Out: an [`Outcome`] per call, through a
//! bounded channel to the one owner of the state.

use serde_json::json;
use tokio::{sync::mpsc, task::JoinSet};

use super::{
    actual_state::{Sequence, Unpublished},
    volume_name::VolumeId,
};
use crate::kube_api::{
    call::{CallError, Caller, Request, Verb},
    ids::{AttachmentName, NodeName, ResourceVersion, Uid, VolumeName},
    kinds::{Narrow, Node, VolumeAttachment, api_root},
};

/// A request about to be sent.
#[derive(Clone, Debug)]
pub enum Call {
    /// A request for one pair.
    Pair(VolumeId, NodeName, PairRequest),
    /// Write `volumesAttached`, based on this revision.
    PatchNode(NodeName, ResourceVersion, Request),
    /// Read a node live.
    ReadNode(NodeName),
}

/// A request for one pair.
#[derive(Clone, Debug)]
pub enum PairRequest {
    /// Create the VolumeAttachment.
    Create(Request),
    /// Delete the VolumeAttachment of this UID.
    Delete(Uid, Request),
    /// Read the VolumeAttachment.
    Read(AttachmentName),
}

/// What became of a call.
#[derive(Debug)]
pub struct Outcome {
    /// The call.
    pub call: Call,
    /// Its place in the order of sending.
    pub sent: Sequence,
    /// What the server answered.
    pub result: Result<Answer, CallError>,
}

/// What the server answered.
#[derive(Debug)]
pub enum Answer {
    /// A VolumeAttachment.
    Attachment(VolumeAttachment),
    /// A Node.
    Node(Node),
    /// The object is gone for good.
    Gone,
}

/// The request that creates the VolumeAttachment of a volume and node (attach-detach §7.2).
#[must_use]
pub fn create(volume: &VolumeId, node: &NodeName, source: &VolumeName) -> Request {
    let (driver, _) = volume.driver_and_handle();
    Request {
        verb: Verb::Create,
        path: format!("{}/{}", api_root(VolumeAttachment::GROUP), VolumeAttachment::PLURAL),
        body: Some(json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": VolumeAttachment::KIND,
            "metadata": { "name": volume.attachment_name(node) },
            "spec": {
                "attacher": driver,
                "nodeName": node,
                "source": { "persistentVolumeName": source },
            },
        })),
    }
}

/// The request that deletes the VolumeAttachment of exactly this UID (S7). The proof is what entitles
/// to it.
#[must_use]
pub fn delete(volume: &VolumeId, node: &NodeName, uid: &Uid, _proof: &Unpublished) -> Request {
    Request {
        verb: Verb::Delete,
        path: VolumeAttachment::path(&volume.attachment_name(node)),
        body: Some(json!({ "preconditions": { "uid": uid } })),
    }
}

/// Sends calls concurrently.
#[derive(Debug)]
pub struct Executor {
    caller: Caller,
    outcomes: mpsc::Sender<Outcome>,
    tasks: JoinSet<()>,
    last: Sequence,
}

impl Executor {
    /// An executor that reports to the given channel.
    #[must_use]
    pub fn new(caller: Caller, outcomes: mpsc::Sender<Outcome>) -> Self {
        Self { caller, outcomes, tasks: JoinSet::new(), last: Sequence::default() }
    }

    /// The place of the latest call in the order of sending.
    #[must_use]
    pub fn last_sent(&self) -> Sequence {
        self.last
    }

    /// Sends a call; its outcome arrives in the channel, whatever happens.
    pub fn send(&mut self, call: Call) {
        while self.tasks.try_join_next().is_some() {}
        self.last.0 += 1;
        let (caller, outcomes, sent) = (self.caller.clone(), self.outcomes.clone(), self.last);
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
            let body = caller.send(request).await?;
            // With finalizers left the answer is the object, otherwise a Status.
            Ok(serde_json::from_slice::<VolumeAttachment>(&body)
                .ok()
                .filter(|attachment| !attachment.metadata.uid.is_empty())
                .map_or(Answer::Gone, Answer::Attachment))
        }
        Call::Pair(_, _, PairRequest::Read(name)) => caller.get(name).await.map(Answer::Attachment),
        Call::PatchNode(_, _, request) => caller.write(request).await.map(Answer::Node),
        Call::ReadNode(name) => caller.get(name).await.map(Answer::Node),
    }
}
