//! Requests: the executor, which sends each call as one request, or has a plugin act on this machine.
//!
//! In: calls, complete with names, UIDs and preconditions. Out: their answers, and what a plan measured. It decides nothing.

use std::{collections::BTreeMap, fmt};

use apiserver::{
    call::{CallError, Caller, Verb},
    events::Involved,
    ids::{PodKey, Uid},
    kinds::ObjectRef,
    leadership::Leadership,
};
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::{
    calls::{Answer, Call, Directory, Op, Purpose, Target, WriteKind},
    controller::{Measures, Planner},
    failure::{Failure, FailureOutcome},
    metrics::BinderMetrics,
};
use crate::{
    controller::{Executor, report::ReportKey as _, second_writer::WrittenObject as _},
    telemetry::transition::Named,
};

/// Requests on the wire at once.
const CONNECTIONS: usize = 64;

/// What plugins do outside of the planner.
pub trait Hands: fmt::Debug + Send {
    /// Does something to a directory, once it is awaited. The error is text for people.
    fn act(&self, directory: &Directory) -> BoxFuture<'static, Result<(), String>>;

    /// These pods are at work, by UID, with the volume of each.
    fn follow(&mut self, pods: BTreeMap<Uid, (PodKey, Involved)>);
}

/// Sends the requests, and has the plugins act.
#[derive(Debug)]
pub struct Requests {
    caller: Caller,
    leadership: Leadership,
    metrics: BinderMetrics,
    pub(super) hands: Option<Box<dyn Hands>>,
}

impl Requests {
    pub(super) fn new(caller: &Caller, leadership: Leadership, metrics: BinderMetrics) -> Self {
        Self { caller: caller.with_own_budget(CONNECTIONS), leadership, metrics, hands: None }
    }
}

impl Executor<Planner> for Requests {
    fn perform(&self, op: Op) -> impl Future<Output = (Op, Result<Answer, CallError>)> + Send + 'static {
        let (caller, leadership) = (self.caller.clone(), self.leadership.clone());
        let acting = match (&op.call, &self.hands) {
            (Call::Directory(directory), Some(hands)) => Some(hands.act(directory)),
            _ => None,
        };
        async move {
            let result = match (&op.call, acting) {
                // No request asks for the right to write here.
                (Call::Directory(_), Some(acting)) if leadership.may_write(Instant::now()) => {
                    Ok(Answer::Directory(acting.await))
                }
                (call, _) => perform(&caller, &op.subject, call).await,
            };
            (op, result)
        }
    }

    fn planned(&mut self, planner: &Planner, measures: Measures, _: Instant) {
        for sample in &measures.samples {
            self.metrics.observe(sample);
        }
        for ((request, outcome), count) in measures.failed {
            self.metrics.failed(request, outcome, count);
        }
        if let Some(hands) = &mut self.hands {
            hands.follow(planner.state.plugins.pods_at_work(&planner.state.objects));
        }
    }

    fn work(op: &Op) -> Option<(usize, String)> {
        let queue = usize::from(matches!(op.subject, Target::Volume(_)));
        Some((queue, op.subject.to_string()))
    }

    fn ends(&mut self, planner: &Planner, op: &Op, result: &Result<Answer, CallError>) {
        let sent = !matches!(result, Err(CallError::NotLeader));
        if sent && op.call.write_kind() == Some(WriteKind::AssignClass) {
            self.metrics.class_assigned(result.is_ok());
        }
        if let (Some(kind), Err(CallError::Conflict(_))) = (op.call.write_kind(), result) {
            self.metrics.conflicted(kind);
        }
        log(op, planner.attempt(&op.subject), result);
    }
}

/// Sends one request and reads the answer.
async fn perform(caller: &Caller, subject: &Target, call: &Call) -> Result<Answer, CallError> {
    match call {
        Call::Write(write) if write.request.verb == Verb::Delete => {
            caller.send(&write.request).await.map(|_| Answer::Deleted)
        }
        Call::Write(write) => match &write.target {
            ObjectRef::Claim(_) => caller.write(&write.request).await.map(Answer::Claim),
            ObjectRef::Volume(_) => caller.write(&write.request).await.map(Answer::Volume),
            _ => caller.write(&write.request).await.map(Answer::Pod),
        },
        Call::Read { purpose: Purpose::LearnOwner(uid), .. } => {
            caller.owners(subject.object().path(), uid, &subject.pointer()).await.map(Answer::Owners)
        }
        Call::Read { target: ObjectRef::Claim(key), .. } => caller.get(key).await.map(Answer::Claim),
        Call::Read { target: ObjectRef::Volume(name), .. } => caller.get(name).await.map(Answer::Volume),
        Call::Read { target: ObjectRef::Pod(key), .. } => caller.get(key).await.map(Answer::Pod),
        Call::Read { target: ObjectRef::Class(name), .. } => caller.get(name).await.map(Answer::Class),
        Call::Read { target, .. } => Err(CallError::NotSent(format!("{target} is not read here"))),
        Call::Directory(_) => Err(CallError::NotLeader),
    }
}

/// Logs what became of a request, of which this was the given attempt.
fn log(op: &Op, attempt: u32, result: &Result<Answer, CallError>) {
    let Named { object, namespace } = op.subject.named();
    match Failure::of(op, result) {
        // In a conflict nothing went wrong: another writer was there first.
        Some(Failure { task, object: about, outcome, words: error, .. })
            if outcome != FailureOutcome::Conflict =>
        {
            let request = task.label();
            tracing::warn!(object, namespace, request, about, attempt, error, "request failed");
        }
        _ => {
            if let (Call::Directory(about), Ok(Answer::Directory(Err(error)))) = (&op.call, result) {
                return tracing::warn!(
                    object,
                    namespace,
                    request = "directory",
                    ?about,
                    attempt,
                    error,
                    "request failed"
                );
            }
            let request = op.call.write_kind().map_or("read", Into::into);
            let about = op.call.target().map(tracing::field::display);
            let error = result.as_ref().err().map(tracing::field::display);
            tracing::debug!(object, namespace, request, about, attempt, error, "request answered");
        }
    }
}
