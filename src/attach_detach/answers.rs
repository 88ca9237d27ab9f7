//! Answers: what each answer of the API server means for the state.
//!
//! In: the answer to a call, or that there is none. Out: objects, volumes on nodes and nodes that know it, each by a method of
//! its own; marked dirty, so that the next plan starts from what is now known; and what there is to tell of it.

use apiserver::{
    call::CallError,
    ids::{NodeName, ResourceVersion, Uid},
    kinds::{Narrow, Node},
};
use tokio::time::Instant;

use super::{
    calls::{Answer, AttachmentRequest},
    controller::AttachDetach,
    facts::{Fact, Forced},
    guard::second_writer_role::ActTarget,
    reasons::NodeVolumeKey,
    state::{
        actual::{
            Deletion, ForceReason, Operation, WhyRead, answer_time::Answered, node_requests::NodeRequests,
            unpublishing::Sequence,
        },
        desired::volume_name::VolumeId,
    },
};
impl AttachDetach {
    /// The answer to a create.
    pub(super) fn created(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        result: Result<Answer, CallError>,
        answered: &Answered,
    ) {
        match result {
            Ok(Answer::Attachment(attachment)) => {
                self.actual.node_volume_mut(volume, node).created(answered);
                let name = attachment.key();
                self.objects.observe_response(attachment);
                self.refresh_attachment(&name, answered.now);
            }
            Ok(_) => {}
            Err(error) => {
                let node_volume = self.actual.node_volume_mut(volume, node);
                // The watch was first to tell of one that is there, and none of ours may have landed: another has made it.
                let is_anothers =
                    matches!(error, CallError::AlreadyExists(_)) && node_volume.uncertain.is_none();
                let made = node_volume.uid().cloned().filter(|_| is_anothers);
                node_volume.create_failed(&error, answered);
                if let Some(uid) = made {
                    let target = ActTarget::Attachment(node.clone(), volume.attachment_name(node));
                    self.note_foreign(&target, &uid, answered.now);
                }
                self.operation_failed(volume, node, Operation::Attach, &error);
            }
        }
    }

    /// The answer to a DELETE of the attachment of this UID and revision.
    pub(super) fn deleted(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        (uid, revision): (&Uid, ResourceVersion),
        result: Result<Answer, CallError>,
        answered: &Answered,
    ) {
        let object = self.actual.node(node).and_then(|state| state.node.as_deref());
        let is_out_of_service = object.is_some_and(Node::is_out_of_service);
        let node_volume = self.actual.node_volume_mut(volume, node);
        if let Ok(_) | Err(CallError::NotFound(_)) = &result {
            self.deletions.landed(&NodeVolumeKey::new(volume, node), answered.now, answered.jitter);
        }
        match result {
            Ok(answer) => {
                node_volume.note_deletion(uid, Deletion::Accepted);
                // KCM: pkg/controller/volume/attachdetach/reconciler: each detach from a node with the taint counts as forced,
                // mounted or not.
                if is_out_of_service && node_volume.forced.is_none() {
                    self.report_forced(volume, node, ForceReason::OutOfService, Forced::Tainted);
                }
                // If the watch has told of its end already, the answer is history.
                if let Answer::Attachment(attachment) = answer
                    && let name = attachment.key()
                    && let Some(known) = self.objects.attachments.get(&name)
                    && known.metadata.uid == attachment.metadata.uid
                {
                    self.objects.observe_response(attachment);
                    self.refresh_attachment(&name, answered.now);
                }
            }
            // The watch is about to tell of its end.
            Err(CallError::NotFound(_)) => node_volume.note_deletion(uid, Deletion::Accepted),
            Err(error) => {
                if node_volume.delete_failed((uid, revision), &error, answered) {
                    let read = AttachmentRequest::Read(volume.attachment_name(node));
                    self.send(volume, node, read, answered.now);
                }
                self.operation_failed(volume, node, Operation::Detach, &error);
            }
        }
    }

    /// The answer to a live read of an attachment.
    pub(super) fn attachment_read(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        result: Result<Answer, CallError>,
        answered: &Answered,
    ) {
        match result {
            Ok(Answer::Attachment(attachment)) => {
                let name = attachment.key();
                self.objects.observe_response(attachment);
                self.refresh_attachment(&name, answered.now);
                let is_there = self.objects.attachments.get(&name).is_some();
                let node_volume = self.actual.node_volume_mut(volume, node);
                let foreign = node_volume.read_found(&name, is_there, answered);
                if matches!(node_volume.why_read, Some(WhyRead::NameTaken(_))) {
                    self.actual.taken.insert(name.clone(), (volume.clone(), node.clone()));
                }
                if let Some(uid) = foreign {
                    self.note_foreign(&ActTarget::Attachment(node.clone(), name), &uid, answered.now);
                }
            }
            Ok(_) => {}
            Err(CallError::NotFound(_)) => {
                let is_desired = self.desired.get(volume, node).is_some();
                self.actual.node_volume_mut(volume, node).read_absent(is_desired, answered);
            }
            Err(error) => self.actual.node_volume_mut(volume, node).failed(&error, true, answered),
        }
    }

    /// An operation failed with a request, unless that is to be sent later, or another writer was there first.
    fn operation_failed(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        operation: Operation,
        error: &CallError,
    ) {
        use CallError::{AlreadyExists, Conflict, NotLeader, Throttled};
        if !matches!(error, NotLeader | Throttled { .. } | AlreadyExists(_) | Conflict(_)) {
            self.outbox.push(Fact::Failed(NodeVolumeKey::new(volume, node), operation));
        }
    }

    /// Takes the answer to any request to a node: there may be another request to it from now on.
    pub(super) fn node_call_ended(&mut self, name: &NodeName, now: Instant, take: impl FnOnce(&mut Self)) {
        self.queue.add_node(name.clone());
        self.actual.node_mut(name).requests.ended();
        take(self);
        self.note_list_changed(name, now);
        let touched = self.actual.node_call_ended(name);
        self.look_on(name, touched);
    }

    /// The answer to a patch of a node's list.
    pub(super) fn node_patched(
        &mut self,
        name: &NodeName,
        revision: ResourceVersion,
        result: Result<Answer, CallError>,
        sent: Sequence,
        answered: &Answered,
    ) {
        let requests = &mut self.actual.node_mut(name).requests;
        match result {
            Ok(Answer::Node(node)) => {
                requests.patch_answered(&node, answered);
                self.node_answered(name, &node, sent, answered.now);
            }
            Ok(_) | Err(CallError::NotLeader) => {}
            Err(CallError::Conflict(_)) => requests.patch_refused(revision),
            Err(error @ CallError::NotFound(_)) => self.node_not_found(name, &error, sent, answered),
            Err(error) => self.node_call_failed(name, |requests| {
                requests.patch_failed(revision, &error, answered);
            }),
        }
    }

    /// The answer to a live read of a node.
    pub(super) fn node_read(
        &mut self,
        name: &NodeName,
        result: Result<Answer, CallError>,
        sent: Sequence,
        answered: &Answered,
    ) {
        match result {
            Ok(Answer::Node(node)) => {
                let revision = node.metadata.resource_version;
                let requests = &mut self.actual.node_mut(name).requests;
                if requests.is_outrun(revision) {
                    return self.node_call_failed(name, |requests| requests.read_in_vain(answered));
                }
                if let Some(error) = requests.was_read(revision) {
                    self.node_call_failed(name, |requests| requests.failed(&error, false, answered));
                }
                let touched = self.actual.settle_node(name, answered.asked);
                self.look_on(name, touched);
                self.node_answered(name, &node, sent, answered.now);
            }
            Ok(_) => {}
            Err(error @ CallError::NotFound(_)) => self.node_not_found(name, &error, sent, answered),
            Err(error) => {
                self.node_call_failed(name, |requests| requests.failed(&error, true, answered));
            }
        }
    }

    fn node_not_found(&mut self, name: &NodeName, error: &CallError, sent: Sequence, answered: &Answered) {
        if !self.node_is_gone(name, sent) {
            self.node_call_failed(name, |requests| requests.failed(error, false, answered));
        }
    }

    /// A request to a node failed. What waits for the node is looked at, so that it can say until when.
    pub(super) fn node_call_failed(&mut self, name: &NodeName, take: impl FnOnce(&mut NodeRequests)) {
        let state = self.actual.node_mut(name);
        take(&mut state.requests);
        let volumes = state.volumes.clone();
        self.queue.add_on(name, volumes);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use apiserver::{ids::DriverName, kinds::VolumeAttachment};
    use k8s_openapi::jiff::Timestamp;
    use tokio::time::Instant;

    use super::{
        super::{
            calls::{AttachmentRequest, create},
            plan::tests::controller,
            state::desired::AttachSource,
        },
        *,
    };
    use crate::{
        attach_detach::state::actual::{Candidates, ReportAsAttached, Uncertain},
        controller::Controller as _,
    };

    #[test]
    fn s14_an_attachment_that_the_watch_shows_before_our_create_is_refused_is_anothers() {
        let now = Instant::now();
        for is_in_doubt in [false, true] {
            let (mut controller, node) = controller(now);
            let volume = VolumeId::csi(&DriverName::from("d"), "h");
            let name = volume.attachment_name(&node);
            if is_in_doubt {
                controller.actual.node_volume_mut(&volume, &node).uncertain =
                    Some(Uncertain { until: now, read_absent: true });
            }
            let source = AttachSource::PersistentVolume("pv".into());
            let create = AttachmentRequest::Create(create(&volume, &node, &source));
            controller.send(&volume, &node, create, now);
            let sent = controller.dispatcher.take().pop().expect("a create");
            let mut attachment = VolumeAttachment::default();
            attachment.metadata.name = name.as_str().into();
            attachment.metadata.resource_version = ResourceVersion(9);
            (attachment.spec.attacher, attachment.spec.node_name) = ("d".into(), node.clone());
            controller.objects.apply(attachment);
            let about = Candidates { source: Some(volume.clone()), ..Candidates::default() };
            let shown = controller.objects.attachments.get(&name);
            controller.actual.observe_attachment(&name, shown, |_| about, Timestamp::UNIX_EPOCH);
            controller.answered(sent, Err(CallError::AlreadyExists("there".to_owned())), now, 0.5);
            let target = ActTarget::Attachment(node, name);
            assert_eq!(controller.second_writer.has_to_read(&target), !is_in_doubt, "{is_in_doubt}");
        }
    }

    #[test]
    fn l13_what_no_patch_can_list_any_more_has_a_turn_though_its_pod_has_gone_meanwhile() {
        let now = Instant::now();
        let (mut controller, node) = controller(now);
        let volume = VolumeId::iscsi("p", "i", 0);
        controller.actual.node_volume_mut(&volume, &node).report_as_attached = ReportAsAttached::Yes;
        controller.plan_node(&node, now);
        let sent = controller.dispatcher.take().pop().expect("a patch");
        controller.actual.node_volume_mut(&volume, &node).report_as_attached = ReportAsAttached::No;
        controller.queue.clear();
        controller.answered(sent, Err(CallError::Conflict("moved on".to_owned())), now, 0.5);
        let room = controller.dispatcher.room();
        assert_eq!(controller.queue.get(room), Some((volume, [node].into())));
    }

    #[test]
    fn s17_a_read_says_nothing_of_a_create_that_could_still_land_when_it_was_sent() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        for (asked, is_uncertain) in [(9, true), (10, false)] {
            let (mut controller, node) = controller(start);
            let volume = VolumeId::csi(&DriverName::from("d"), "h");
            controller.actual.node_volume_mut(&volume, &node).uncertain =
                Some(Uncertain { until: after(10), read_absent: false });
            let read = AttachmentRequest::Read(volume.attachment_name(&node));
            controller.send(&volume, &node, read, after(asked));
            let (sent, call) = controller.dispatcher.take().pop().expect("a read");
            let result = Err(CallError::NotFound("gone".to_owned()));
            controller.answered((sent, call), result, after(12), 0.5);
            let uncertain = controller.actual.node_volume_mut(&volume, &node).uncertain;
            assert_eq!(uncertain.is_some(), is_uncertain, "sent after {asked} s");
        }
    }
}
