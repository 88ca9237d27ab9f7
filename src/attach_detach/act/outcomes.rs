//! What each answer of the API server means for the state.
//!
//! In: an [`Outcome`]. Out: objects, volumes on nodes and nodes that know it, each by a method of its own; marked dirty,
//! so that the next plan starts from what is now known; and what there is to tell of it.

use tokio::time::Instant;

use super::calls::{Answer, AttachmentRequest, Call, Outcome};
use crate::{
    attach_detach::{
        actual::{
            answered::Answered,
            node_requests::NodeRequests,
            state::{Deletion, Failed, Found, NodeVolume},
            unpublishing::Sequence,
        },
        controller::Controller,
        desired::volume_name::VolumeId,
        guard::second_writer::Target,
        tell::facts::{Fact, Line},
    },
    kube_api::{
        call::CallError,
        ids::{NodeName, ResourceVersion, Uid},
        kinds::Narrow,
    },
};

impl Controller {
    /// Takes an outcome. `jitter`, below 1, is for the pause after a failure.
    pub fn take_outcome(&mut self, outcome: Outcome, now: Instant, jitter: f64) {
        self.caches.queue.at(now);
        let Outcome { call, sent, result } = outcome;
        let asked = self.dispatcher.ended(&call, sent, result.is_ok(), now);
        let answered = Answered { asked, now, jitter, settle_time: self.dispatcher.settle_time() };
        match call {
            Call::Attachment(volume, node, request) => {
                self.caches.actual.node_volume_mut(&volume, &node).call = None;
                self.caches.queue.add_on(&node, [volume.clone()]);
                match request {
                    AttachmentRequest::Create(_) => self.created(&volume, &node, result, &answered),
                    AttachmentRequest::Delete(uid, revision, _) => {
                        self.deleted(&volume, &node, (&uid, revision), result, &answered);
                    }
                    AttachmentRequest::Read(_) => self.attachment_read(&volume, &node, result, &answered),
                }
            }
            Call::PatchNode(name, revision, _) => self.node_call_ended(&name, |controller| {
                controller.node_patched(&name, revision, result, sent, &answered);
            }),
            Call::ReadNode(name) => self.node_call_ended(&name, |controller| {
                controller.node_read(&name, result, sent, &answered);
            }),
            Call::ReadOwner(target, uid) => match &target {
                Target::Node(name) => self.node_call_ended(name, |controller| {
                    controller.owner_read(&target, uid, result, &answered);
                }),
                Target::Attachment(..) => self.owner_read(&target, uid, result, &answered),
            },
        }
        self.note_learnt(now);
    }

    fn created(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        result: Result<Answer, CallError>,
        answered: &Answered,
    ) {
        match result {
            Ok(Answer::Attachment(attachment)) => {
                self.caches.actual.node_volume_mut(volume, node).created(answered);
                self.caches.attachment_answered(attachment, answered.now);
            }
            Ok(_) => {}
            Err(error) => self.attachment_call_failed(volume, node, &error, answered, |node_volume| {
                node_volume.create_failed(&error, answered)
            }),
        }
    }

    fn deleted(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        (uid, revision): (&Uid, ResourceVersion),
        result: Result<Answer, CallError>,
        answered: &Answered,
    ) {
        let node_volume = self.caches.actual.node_volume_mut(volume, node);
        match result {
            Ok(answer) => {
                node_volume.note_deletion(uid, Deletion::Accepted);
                // If the watch has told of its end already, the answer is history.
                if let Answer::Attachment(attachment) = answer
                    && let Some(known) = self.caches.objects.attachments.get(&attachment.key())
                    && known.metadata.uid == attachment.metadata.uid
                {
                    self.caches.attachment_answered(attachment, answered.now);
                }
            }
            Err(CallError::NotFound(_)) => {
                node_volume.note_deletion(uid, Deletion::Accepted);
                self.caches.attachment_not_found(volume, node, answered.now);
            }
            Err(error) => self.attachment_call_failed(volume, node, &error, answered, |node_volume| {
                node_volume.delete_failed((uid, revision), &error, answered)
            }),
        }
    }

    fn attachment_read(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        result: Result<Answer, CallError>,
        answered: &Answered,
    ) {
        match result {
            Ok(Answer::Attachment(attachment)) => {
                let name = attachment.key();
                self.caches.attachment_answered(attachment, answered.now);
                let is_there = self.caches.objects.attachments.get(&name).is_some();
                let attempt = self.caches.actual.attempt(volume, node);
                match self.caches.actual.node_volume_mut(volume, node).read_found(&name, is_there, answered) {
                    Found::Known => {}
                    Found::NameTaken => {
                        self.caches.actual.note_name_taken(&name, volume, node);
                        let (volume, node) = (volume.clone(), node.clone());
                        self.recorder.log(Line::NameTaken { volume, node, attempt });
                    }
                    Found::MadeByAnother(uid) => {
                        self.note_foreign(&Target::Attachment(node.clone(), name), &uid, answered.now);
                    }
                }
            }
            Ok(_) => {}
            Err(CallError::NotFound(_)) => {
                let is_desired = self.caches.desired.get(volume, node).is_some();
                self.caches.attachment_not_found(volume, node, answered.now);
                self.caches.actual.node_volume_mut(volume, node).read_absent(is_desired, answered);
            }
            Err(error) => self.attachment_call_failed(volume, node, &error, answered, |node_volume| {
                node_volume.read_failed(&error, answered)
            }),
        }
    }

    /// Tells what there is to tell of a request that failed.
    fn attachment_call_failed(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        error: &CallError,
        answered: &Answered,
        take: impl FnOnce(&mut NodeVolume) -> Failed,
    ) {
        let attempt = self.caches.actual.attempt(volume, node);
        let Failed { log, is_recorded, failed } = take(self.caches.actual.node_volume_mut(volume, node));
        if let Some(what) = log {
            self.recorder.log_failure(volume, node, attempt, error, what);
        }
        if let Some(operation) = failed {
            self.recorder.report(Fact::OperationFailed(volume.clone(), node.clone(), operation));
        }
        if is_recorded {
            self.record_failure(volume, node, error, answered.now);
        }
    }

    /// Takes the answer to any request to a node: there may be another request to it from now on.
    fn node_call_ended(&mut self, name: &NodeName, take: impl FnOnce(&mut Self)) {
        self.caches.queue.add_node(name.clone());
        self.caches.actual.node_mut(name).requests.ended();
        take(self);
        let touched = self.caches.actual.node_call_ended(name);
        self.caches.queue.add_on(name, touched);
    }

    fn node_patched(
        &mut self,
        name: &NodeName,
        revision: ResourceVersion,
        result: Result<Answer, CallError>,
        sent: Sequence,
        answered: &Answered,
    ) {
        let requests = &mut self.caches.actual.node_mut(name).requests;
        match result {
            Ok(Answer::Node(node)) => {
                requests.patch_landed(answered);
                self.caches.node_answered(name, &node, sent, answered.now);
            }
            Ok(_) | Err(CallError::NotLeader) => {}
            Err(CallError::Conflict(_)) => requests.patch_refused(revision),
            Err(error @ CallError::NotFound(_)) => self.node_not_found(name, &error, sent, answered),
            Err(error) => self.node_call_failed(name, &error, |requests| {
                requests.patch_failed(revision, &error, answered);
            }),
        }
    }

    fn node_read(
        &mut self,
        name: &NodeName,
        result: Result<Answer, CallError>,
        sent: Sequence,
        answered: &Answered,
    ) {
        match result {
            Ok(Answer::Node(node)) => {
                let revision = node.metadata.resource_version;
                if let Some(error) = self.caches.actual.node_mut(name).requests.was_read(revision) {
                    self.node_call_failed(name, &error, |requests| requests.failed(&error, answered));
                }
                let touched = self.caches.actual.settle_node(name, answered.asked);
                self.caches.queue.add_on(name, touched);
                self.caches.node_answered(name, &node, sent, answered.now);
            }
            Ok(_) => {}
            Err(error @ CallError::NotFound(_)) => self.node_not_found(name, &error, sent, answered),
            Err(error) => {
                self.node_call_failed(name, &error, |requests| requests.read_failed(&error, answered));
            }
        }
    }

    fn node_not_found(&mut self, name: &NodeName, error: &CallError, sent: Sequence, answered: &Answered) {
        if !self.caches.node_not_found(name, sent, answered.now) {
            self.node_call_failed(name, error, |requests| requests.failed(error, answered));
        }
    }

    /// Logs that a request to a node failed.
    pub(in crate::attach_detach) fn node_call_failed(
        &mut self,
        name: &NodeName,
        error: &CallError,
        take: impl FnOnce(&mut NodeRequests),
    ) {
        let state = self.caches.actual.node_mut(name);
        let attempt = state.requests.retry().failures().saturating_add(1);
        take(&mut state.requests);
        // What waits for the node is looked at, so that it can say until when.
        let volumes = state.volumes.clone();
        self.caches.queue.add_on(name, volumes);
        if *error != CallError::NotLeader {
            self.recorder.log(Line::NodeFailed { node: name.clone(), attempt, error: error.clone() });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::status_updater::tests::controller, *};
    use crate::{attach_detach::actual::state::Uncertain, kube_api::ids::DriverName};

    #[test]
    fn s17_a_read_says_nothing_of_a_create_that_could_still_land_when_it_was_sent() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        for (asked, is_uncertain) in [(9, true), (10, false)] {
            let (mut controller, node) = controller(start);
            let volume = VolumeId::csi(&DriverName::from("d"), "h");
            controller.caches.actual.node_volume_mut(&volume, &node).uncertain =
                Some(Uncertain { until: after(10), read_absent: false });
            let read = AttachmentRequest::Read(volume.attachment_name(&node));
            controller.send(&volume, &node, read, after(asked));
            let (sent, call) = controller.dispatcher.take().pop().expect("a read");
            let result = Err(CallError::NotFound("gone".to_owned()));
            controller.take_outcome(Outcome { call, sent, result }, after(12), 0.5);
            let uncertain = controller.caches.actual.node_volume_mut(&volume, &node).uncertain;
            assert_eq!(uncertain.is_some(), is_uncertain, "sent after {asked} s");
        }
    }
}
