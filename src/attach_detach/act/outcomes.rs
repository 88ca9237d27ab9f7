//! What each answer of the API server means for the state.
//!
//! In: an [`Outcome`]. Out: changed volumes on nodes and nodes, marked dirty, so that the next plan starts from
//! what is now known. Silence after a write never counts as "nothing happened".

use std::{mem, time::Duration};

use tokio::time::Instant;

use super::calls::{Answer, AttachmentRequest, Call, Outcome};
use crate::{
    attach_detach::{
        actual::{
            state::{Deletion, Operation, Uncertain, WhyRead},
            unpublishing::{Sequence, Unpublishing},
        },
        controller::Controller,
        desired::volume_name::VolumeId,
        guard::{evidence::Target, force_timers::Candidate},
        tell::{metrics::Ending, report::Line},
    },
    controller::{in_doubt::InDoubt, retry::Retry},
    kube_api::{
        call::CallError,
        ids::{NodeName, ResourceVersion, Uid},
        kinds::{Narrow, Node, VolumeAttachment},
    },
};

/// After so many failures in a row that the server may not have meant, no answer or a request for a
/// pause, an event says so: it is no accident then. (KCM records the first.)
const RECORDED_FAILURES: u32 = 3;

impl Controller {
    /// Takes an outcome. `jitter`, below 1, is for the pause after a failure.
    pub fn take_outcome(&mut self, outcome: Outcome, now: Instant, jitter: f64) {
        self.queue.at(now);
        let Outcome { call, sent, result } = outcome;
        let asked = self.dispatcher.ended(&call, sent, result.is_ok(), now);
        match call {
            Call::Attachment(volume, node, request) => {
                self.actual.node_volume_mut(&volume, &node).call = None;
                self.queue.add_on(&node, [volume.clone()], &self.actual);
                match request {
                    AttachmentRequest::Create(_) => self.created(&volume, &node, result, now, jitter),
                    AttachmentRequest::Delete(uid, _) => {
                        self.deleted(&volume, &node, uid, result, now, jitter);
                    }
                    AttachmentRequest::Read(_) => {
                        self.attachment_read(&volume, &node, result, asked, now, jitter);
                    }
                }
            }
            Call::PatchNode(name, revision, _) => {
                self.queue.add_node(name.clone());
                self.actual.node_mut(&name).busy = false;
                match result {
                    Ok(Answer::Node(node)) => {
                        if let Some(own) = &mut self.actual.node_mut(&name).own_list {
                            own.landed = true;
                        }
                        self.actual.node_mut(&name).retry = Retry::default();
                        self.node_answered(&name, &node, sent, now);
                    }
                    Ok(_) | Err(CallError::NotLeader) => {}
                    Err(CallError::Conflict(_)) => {
                        let state = self.actual.node_mut(&name);
                        state.stale = true;
                        state.refused = Some(revision);
                    }
                    Err(error @ CallError::NotFound(_)) => {
                        self.node_not_found(&name, &error, sent, now, jitter);
                    }
                    Err(error) => self.node_patch_failed(&name, revision, &error, now, jitter),
                }
                let touched = self.actual.node_call_ended(&name);
                self.queue.add_on(&name, touched, &self.actual);
            }
            Call::Timers(_) => self.timers_answered(result, now, jitter),
            Call::ReadOwner(target, _) => self.owner_read(&target, result, now),
            Call::ReadNode(name) => {
                self.queue.add_node(name.clone());
                self.actual.node_mut(&name).busy = false;
                match result {
                    Ok(Answer::Node(node)) => {
                        let state = self.actual.node_mut(&name);
                        state.stale = false;
                        if state.refused.take() == Some(node.metadata.resource_version) {
                            // The revision was the newest, and the next patch would be refused like the last.
                            let error = CallError::Conflict("refused at the newest revision".to_owned());
                            self.node_failed(&name, &error, now, jitter);
                        } else if state.unsettled.is_none() {
                            // A patch that was not answered is a failure until one is.
                            state.retry = Retry::default();
                        }
                        let touched = self.actual.settle_node(&name, asked);
                        self.queue.add_on(&name, touched, &self.actual);
                        self.node_answered(&name, &node, sent, now);
                    }
                    Ok(_) => {}
                    Err(error @ CallError::NotFound(_)) => {
                        self.node_not_found(&name, &error, sent, now, jitter);
                    }
                    Err(error) => self.node_not_read(&name, &error, now, jitter),
                }
                let touched = self.actual.node_call_ended(&name);
                self.queue.add_on(&name, touched, &self.actual);
            }
        }
    }

    fn timers_answered(&mut self, result: Result<Answer, CallError>, now: Instant, jitter: f64) {
        let result = result.and_then(|answer| match answer {
            Answer::Timers(map) => Ok(Some(map)),
            Answer::Gone => Ok(None),
            _ => Err(CallError::Unknown("not a ConfigMap".to_owned())),
        });
        let (actual, wall) = (&self.actual, self.clock.wall(now));
        // What a backup says of waits is of another time (E11).
        let is_restored = self.objects.restore_grace().left(now).is_some();
        let desired = &self.desired;
        let is_unwanted = |candidate: &Candidate| desired.get(&candidate.volume, &candidate.node).is_none();
        let candidates = || {
            let waiting = if is_restored { Vec::new() } else { actual.waiting_for_force() };
            waiting.into_iter().filter(is_unwanted).collect()
        };
        let inherited = self.force_timers.take(result, candidates, jitter, (now, wall));
        self.report_timers();
        self.report_timers_alarm();
        for proven in &inherited {
            self.actual.inherit(proven, wall);
        }
        if !inherited.is_empty() {
            self.queue.add_all();
        }
    }

    fn created(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        result: Result<Answer, CallError>,
        now: Instant,
        jitter: f64,
    ) {
        match result {
            Ok(Answer::Attachment(attachment)) => {
                let node_volume = self.actual.node_volume_mut(volume, node);
                node_volume.uncertain = node_volume.uncertain.filter(|uncertain| uncertain.until > now);
                node_volume.retry = Retry::default();
                self.attachment_answered(attachment, now);
            }
            Ok(_) | Err(CallError::NotLeader) => {}
            Err(error @ (CallError::Unknown(_) | CallError::AlreadyExists(_))) => {
                self.recorder.log_failure(
                    volume,
                    node,
                    &error,
                    "whether the attachment was created is unknown, reading it",
                    &self.actual,
                );
                let settle_time = self.dispatcher.settle_time();
                let node_volume = self.actual.node_volume_mut(volume, node);
                if error.is_certain() && node_volume.uncertain.is_none() && node_volume.known.is_none() {
                    node_volume.why_read = Some(WhyRead::MadeByAnother);
                }
                node_volume.uncertain = Some(Uncertain { until: now + settle_time, read_absent: false });
                if !error.is_certain() {
                    self.attachment_call_failed(volume, node, &error, now, jitter);
                    if self.actual.node_volume_mut(volume, node).retry.message().is_some() {
                        self.record_failure(volume, node, &error, now);
                    }
                    self.recorder.ended(volume, node, Operation::Attach, Ending::Failure, now);
                }
            }
            Err(error @ CallError::Throttled { .. }) => {
                self.attachment_call_failed(volume, node, &error, now, jitter);
            }
            Err(error) => {
                self.recorder.log_failure(
                    volume,
                    node,
                    &error,
                    "creating the attachment failed",
                    &self.actual,
                );
                self.attachment_call_failed(volume, node, &error, now, jitter);
                self.recorder.ended(volume, node, Operation::Attach, Ending::Failure, now);
                self.record_failure(volume, node, &error, now);
            }
        }
    }

    fn deleted(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        uid: Uid,
        result: Result<Answer, CallError>,
        now: Instant,
        jitter: f64,
    ) {
        let node_volume = self.actual.node_volume_mut(volume, node);
        let error = match result {
            Ok(answer) => {
                node_volume.note_deletion(&uid, Deletion::Accepted);
                // If the watch has told of its end already, the answer is history.
                if let Answer::Attachment(attachment) = answer
                    && let Some(known) = self.objects.attachments.get(&attachment.key())
                    && known.metadata.uid == attachment.metadata.uid
                {
                    self.attachment_answered(attachment, now);
                }
                return;
            }
            Err(CallError::NotFound(_)) => {
                node_volume.note_deletion(&uid, Deletion::Accepted);
                return self.attachment_not_found(volume, node, now);
            }
            Err(error) => error,
        };
        // The next try begins with a fresh look at the node.
        node_volume.unpublishing = Unpublishing::None;
        if !error.is_certain() {
            let until = now + self.dispatcher.settle_time();
            node_volume.note_deletion(&uid, Deletion::InDoubt { until });
        }
        match error {
            CallError::NotLeader => {}
            CallError::Throttled { .. } => self.attachment_call_failed(volume, node, &error, now, jitter),
            CallError::Conflict(_) => {
                // Read with the next plan, if there is one: who shuts down sends nothing more.
                node_volume.why_read = Some(WhyRead::DeletionRefused(uid));
            }
            error => {
                let what = "deleting the attachment failed";
                self.recorder.log_failure(volume, node, &error, what, &self.actual);
                self.attachment_call_failed(volume, node, &error, now, jitter);
                self.recorder.ended(volume, node, Operation::Detach, Ending::Failure, now);
            }
        }
    }

    /// An answer that comes late shows nothing of what landed after the question was `asked`.
    fn attachment_read(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        result: Result<Answer, CallError>,
        asked: Instant,
        now: Instant,
        jitter: f64,
    ) {
        match result {
            Ok(Answer::Attachment(attachment)) => {
                let name = attachment.key();
                self.attachment_answered(attachment, now);
                let is_there = self.objects.attachments.get(&name).is_some();
                let node_volume = self.actual.node_volume_mut(volume, node);
                let why_read = node_volume.why_read.take();
                node_volume.uncertain = node_volume.uncertain.filter(|uncertain| uncertain.until > asked);
                node_volume.settle_deletion(asked);
                if is_there && node_volume.known.is_none() {
                    let attempt = node_volume.retry.failures().saturating_add(1);
                    let line = Line::NameTaken { volume: volume.clone(), node: node.clone(), attempt };
                    self.recorder.log(line);
                    let node_volume = self.actual.node_volume_mut(volume, node);
                    if why_read == Some(WhyRead::MadeByAnother) {
                        node_volume.uncertain = None;
                    }
                    node_volume.why_read = Some(WhyRead::NameTaken(name));
                    node_volume.pause(|retry| retry.after_failure(now, jitter, Duration::ZERO));
                    return;
                }
                if let Some(WhyRead::DeletionRefused(uid)) = &why_read
                    && node_volume.uid() == Some(uid)
                {
                    // The UID was right, and the next delete would be refused like the last.
                    node_volume.pause(|retry| retry.after_failure(now, jitter, Duration::ZERO));
                    return;
                }
                node_volume.retry = Retry::default();
                let uid = node_volume.uid().cloned();
                if why_read == Some(WhyRead::MadeByAnother)
                    && is_there
                    && let Some(uid) = uid
                {
                    self.note_evidence(Target::Attachment(node.clone(), name), &uid, now);
                }
            }
            Ok(_) | Err(CallError::NotLeader) => {}
            Err(CallError::NotFound(_)) => {
                let wanted = self.desired.get(volume, node).is_some();
                self.attachment_not_found(volume, node, now);
                let node_volume = self.actual.node_volume_mut(volume, node);
                node_volume.why_read =
                    node_volume.why_read.take().filter(|why_read| *why_read == WhyRead::Unconfirmed);
                if node_volume.known.is_some() {
                    node_volume.pause(|retry| retry.after_failure(now, 0.0, Duration::ZERO));
                }
                let Some(uncertain) = &mut node_volume.uncertain else { return };
                uncertain.read_absent = true;
                if uncertain.until <= asked {
                    node_volume.uncertain = None;
                } else if !wanted {
                    // The create may still land; look again when it no longer can.
                    let left = uncertain.until.saturating_duration_since(now);
                    node_volume.pause(|retry| retry.after_failure(now, 0.0, left));
                }
            }
            Err(error @ CallError::Unknown(_)) => {
                self.recorder.log_failure(
                    volume,
                    node,
                    &error,
                    "the attachment could not be read",
                    &self.actual,
                );
                self.actual.node_volume_mut(volume, node).pause(|retry| retry.after_silence(now, jitter));
            }
            Err(error) => self.attachment_call_failed(volume, node, &error, now, jitter),
        }
    }

    fn node_patch_failed(
        &mut self,
        name: &NodeName,
        revision: ResourceVersion,
        error: &CallError,
        now: Instant,
        jitter: f64,
    ) {
        self.node_failed(name, error, now, jitter);
        if !error.is_certain() {
            let state = self.actual.node_mut(name);
            state.unsettled = Some(InDoubt::since(now, self.dispatcher.settle_time(), revision));
            state.stale = true;
        }
    }

    /// The node is gone. The watch is about to say so, unless it began anew without it.
    fn node_not_found(
        &mut self,
        name: &NodeName,
        error: &CallError,
        sent: Sequence,
        now: Instant,
        jitter: f64,
    ) {
        if self.objects.prove_unconfirmed_gone::<Node>(name) {
            self.observe_final_state(name, now);
        }
        if self.actual.node(name).is_some_and(|state| state.node.is_none()) {
            let touched = self.actual.witness_absence(name, sent);
            self.queue.add_on(name, touched, &self.actual);
        } else {
            self.node_failed(name, error, now, jitter);
        }
    }

    fn node_failed(&mut self, name: &NodeName, error: &CallError, now: Instant, jitter: f64) {
        self.node_pauses(name, error, |retry| {
            noted(retry.after_failure(now, jitter, asked_pause(error)), error)
        });
    }

    fn node_not_read(&mut self, name: &NodeName, error: &CallError, now: Instant, jitter: f64) {
        if error.is_certain() {
            return self.node_failed(name, error, now, jitter);
        }
        self.node_pauses(name, error, |retry| retry.after_silence(now, jitter));
    }

    fn node_pauses(&mut self, name: &NodeName, error: &CallError, pause: impl FnOnce(Retry) -> Retry) {
        if *error != CallError::NotLeader {
            let attempt = self.actual.node_mut(name).retry.failures().saturating_add(1);
            let line = Line::NodeFailed { node: name.clone(), attempt, error: error.clone() };
            self.recorder.log(line);
        }
        let state = self.actual.node_mut(name);
        state.retry = pause(mem::take(&mut state.retry));
        // What waits for the node is looked at, so that it can say until when.
        let volumes = state.volumes.clone();
        self.queue.add_on(name, volumes, &self.actual);
    }

    fn attachment_call_failed(
        &mut self,
        volume: &VolumeId,
        node: &NodeName,
        error: &CallError,
        now: Instant,
        jitter: f64,
    ) {
        let node_volume = self.actual.node_volume_mut(volume, node);
        node_volume.pause(|retry| noted(retry.after_failure(now, jitter, asked_pause(error)), error));
    }

    /// The attachment is gone. The watch is about to say so, unless it began anew without it.
    fn attachment_not_found(&mut self, volume: &VolumeId, node: &NodeName, now: Instant) {
        let name = volume.attachment_name(node);
        if self.objects.prove_unconfirmed_gone::<VolumeAttachment>(&name) {
            self.refresh_attachment(&name, now);
        }
    }

    fn attachment_answered(&mut self, attachment: VolumeAttachment, now: Instant) {
        let name = attachment.key();
        self.objects.observe_response(attachment);
        self.refresh_attachment(&name, now);
    }

    fn node_answered(&mut self, name: &NodeName, answer: &Node, sent: Sequence, now: Instant) {
        self.objects.observe_response(answer.clone());
        let latest = self.objects.nodes.get(name);
        let mut touched = self.observe_node(name, latest.as_ref(), now);
        touched.extend(self.actual.witness_node(answer, name, sent));
        self.queue.add_on(name, touched, &self.actual);
    }
}

/// With what is to be told of the failure, if anything.
fn noted(retry: Retry, error: &CallError) -> Retry {
    if error.is_of_all() {
        return retry;
    }
    let is_meant = error.is_certain() && !matches!(error, CallError::Throttled { .. });
    if is_meant || retry.failures() >= RECORDED_FAILURES { retry.because(&error.to_string()) } else { retry }
}

fn asked_pause(error: &CallError) -> Duration {
    match error {
        CallError::Throttled { after, .. } => *after,
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::node_status::tests::controller, *};
    use crate::kube_api::ids::DriverName;

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
            controller.take_outcome(Outcome { call, sent, result }, after(12), 0.5);
            let uncertain = controller.actual.node_volume_mut(&volume, &node).uncertain;
            assert_eq!(uncertain.is_some(), is_uncertain, "sent after {asked} s");
        }
    }
}
