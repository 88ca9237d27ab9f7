//! The attach/detach controller in the skeleton: its controller and its executor, put together.
//!
//! In: the shared parts of the process. Out: [`AttachDetach`], ready to run. A call is one request; its answer goes
//! back to the controller with its place in the order of sending.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    act::{
        calls::{Answer, AttachmentRequest, Call, Outcome},
        dispatcher::{ATTACHMENT_CALLS, NODE_CALLS},
    },
    actual::unpublishing::Sequence,
    clock::Clock,
    controller::{Controller, Effects},
    guard::second_writer::{ROLE, Target},
    options::AttachDetachOptions,
    tell::{
        backlog,
        facts::Facts,
        metrics::AttachDetachMetrics,
        reporter::AttachDetachReporter,
        state::{AttachDetachKey, AttachDetachReason},
    },
};
use crate::{
    controller::{self, Executor, Identity, Plan, Runner, report::board::Board, second_writer::Target as _},
    kube_api::{
        call::{CallError, Caller},
        events::EventRecorder,
        kinds::{Narrow, Node, ObjectRef, VolumeAttachment},
        leadership::Leadership,
        lease_note::LeaseNote,
    },
    metrics::{Alarms, Metrics, Requester},
    state::Objects,
    telemetry::history::History,
    traces::Traces,
};

/// The attach/detach controller, ready to run.
#[derive(Debug)]
pub struct AttachDetach {
    runner: Runner<Controller, Requests>,
}

impl AttachDetach {
    /// The controller over the shared tables.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(
        objects: Arc<Objects>,
        caller: &Caller,
        leadership: Leadership,
        events: EventRecorder,
        options: AttachDetachOptions,
        metrics: &Metrics,
        alarms: Alarms,
    ) -> Result<Self, prometheus::Error> {
        let of_ours = AttachDetachMetrics::new(metrics)?;
        let clock = Clock::new(Timestamp::now(), Instant::now());
        let controller =
            Controller::new(Arc::clone(&objects), options, clock).with_settle_time(caller.settle_time());
        let reporter = AttachDetachReporter::new(of_ours.clone());
        let requests =
            Requests::new(&caller.of_subsystem(Requester::AttachDetach.label()), of_ours, reporter);
        let parts = (controller, requests);
        let runner = Runner::new(parts, Arc::clone(&objects), leadership, events, (metrics, alarms))?;
        backlog::register(runner.board(), objects, metrics)?;
        Ok(Self { runner })
    }

    /// The same, whose waits for force the lease carries, if there is one (S6).
    #[must_use]
    pub fn with_lease_note(mut self, note: Option<LeaseNote>) -> Self {
        if let Some(note) = note.clone() {
            self.runner.controller_mut().follow_lease(note);
        }
        self.runner.executor_mut().lease_note = note;
        self
    }

    /// The same with a trace of each attach and detach that is sampled.
    #[must_use]
    pub fn with_traces(mut self, traces: Traces) -> Self {
        self.runner.executor_mut().reporter.trace(traces);
        self
    }

    /// The same with a history in which changes are remembered.
    #[must_use]
    pub fn with_history(mut self, history: History) -> Self {
        self.runner.remember(history);
        self
    }

    /// What every volume waits for; stays readable while it runs.
    #[must_use]
    pub fn board(&self) -> Arc<Board<AttachDetachKey, AttachDetachReason>> {
        self.runner.board()
    }

    /// See [`Runner::run`].
    pub async fn run(self, shutdown: CancellationToken) {
        self.runner.run(shutdown).await;
    }
}

/// What is noted of a plan outside of planning.
#[derive(Debug)]
pub struct Measures {
    facts: Facts,
    /// What the lease says of waits for force, if that has changed.
    note: Option<String>,
}

impl controller::Controller for Controller {
    // KCM: cmd/kube-controller-manager/names/controller_names.go.
    const IDENTITY: Identity = Identity {
        name: "persistentvolume-attach-detach-controller",
        queues: &["attach", "node-status"],
        role: ROLE,
    };
    type Key = AttachDetachKey;
    type Reason = AttachDetachReason;
    type Call = (Sequence, Call);
    type Answer = Answer;
    type Measures = Measures;

    fn load(&mut self, now: Instant) {
        Self::load(self, now);
    }

    fn changed(&mut self, objects: BTreeSet<ObjectRef>, now: Instant) {
        self.take_changes(objects, now);
    }

    fn answered(
        &mut self,
        (sent, call): Self::Call,
        result: Result<Answer, CallError>,
        now: Instant,
        jitter: f64,
    ) {
        self.take_outcome(Outcome { call, sent, result }, now, jitter);
    }

    fn lead(&mut self, now: Instant) {
        self.take_over(now);
    }

    fn plan(&mut self, now: Instant) -> Plan<Self> {
        let Effects { calls, events, reports, others, facts } = self.reconcile(now);
        let counts = if self.leads() { self.take_counts().into() } else { Vec::new() };
        let measures = Measures { facts, note: self.take_note() };
        Plan { calls, events, reports, others, counts, measures, wake_at: self.wake_at() }
    }

    fn unplanned(&mut self) -> Option<Plan<Self>> {
        let (reports, facts) = self.take_facts();
        let (calls, events, counts) = (Vec::new(), Vec::new(), Vec::new());
        let measures = Measures { facts, note: None };
        Some(Plan { calls, events, reports, others: None, counts, measures, wake_at: None })
    }
}

/// Sends the requests.
#[derive(Debug)]
pub struct Requests {
    /// For volumes on nodes and for the rest: neither keeps the other waiting.
    attachments: Caller,
    rest: Caller,
    metrics: AttachDetachMetrics,
    reporter: AttachDetachReporter,
    lease_note: Option<LeaseNote>,
}

impl Requests {
    fn new(caller: &Caller, metrics: AttachDetachMetrics, reporter: AttachDetachReporter) -> Self {
        let (attachments, rest) =
            (caller.with_own_budget(ATTACHMENT_CALLS), caller.with_own_budget(NODE_CALLS));
        Self { attachments, rest, metrics, reporter, lease_note: None }
    }
}

impl Executor<Controller> for Requests {
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

    fn planned(&mut self, _: &Controller, measures: Measures, now: Instant) {
        if let (Some(lease), Some(text)) = (&self.lease_note, &measures.note) {
            lease.set(text);
        }
        self.reporter.take(measures.facts, now);
    }

    fn work((_, call): &(Sequence, Call)) -> Option<(usize, String)> {
        match call {
            Call::Attachment(volume, node, _) => Some((0, format!("{volume} {node}"))),
            Call::PatchNode(node, ..) | Call::ReadNode(node) => Some((1, node.to_string())),
            Call::ReadOwner(..) => None,
        }
    }

    fn ends(&mut self, _: &Controller, (_, call): &(Sequence, Call), result: &Result<Answer, CallError>) {
        self.metrics.answered(call, result);
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
                Target::Node(name) => Node::path(name),
                Target::Attachment(_, name) => VolumeAttachment::path(name),
            };
            caller.owners(path, uid, target.field().pointer()).await.map(Answer::Owners)
        }
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
