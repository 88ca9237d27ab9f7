//! The binder in the skeleton: its controller and its executor, put together.
//!
//! In: the shared parts of the process. Out: [`Binder`], ready to run. A call is one request, or something that a plugin
//! does on this machine; its answer goes back to the planner, which is the controller.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, mem,
    sync::Arc,
};

use apiserver::{
    call::{CallError, Caller, Verb},
    events::{EventRecorder, Involved},
    ids::{PodKey, Uid},
    kinds::{Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim},
    leadership::Leadership,
    tables::Objects,
};
use futures::future::BoxFuture;
use telemetry::traces::Traces;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    calls::{Answer, Call, Directory, Op, Purpose, Target, WriteKind},
    doubt::Doubts,
    planner::{self, Planner},
    second_writer::ROLE,
    state::{BinderOptions, Plugins},
    tell::{metrics::BinderMetrics, sizes::Sizes, state::BinderReason},
};
use crate::{
    controller::{
        Controller, Executor, Identity, Plan, Runner,
        report::{ReportKey as _, board::Board},
        second_writer::WrittenObject as _,
    },
    metrics::{Alarms, Metrics, Requester},
    telemetry::{history::History, transition::Named},
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

/// The binder, ready to run.
#[derive(Debug)]
pub struct Binder {
    runner: Runner<Planner, Requests>,
}

impl Binder {
    /// Puts the binder together; it is told of changes from now on.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(
        objects: Arc<Objects>,
        caller: &Caller,
        leadership: Leadership,
        events: EventRecorder,
        options: BinderOptions,
        metrics: &Metrics,
        alarms: Alarms,
    ) -> Result<Self, prometheus::Error> {
        let mut planner = Planner::new(Arc::clone(&objects), options);
        planner.state.doubts = Doubts::lasting(caller.settle_time());
        let requests = Requests {
            caller: caller.with_own_budget(CONNECTIONS).of_subsystem(Requester::Binder.label()),
            leadership: leadership.clone(),
            metrics: BinderMetrics::new(metrics)?,
            hands: None,
        };
        let parts = (planner, requests);
        let runner = Runner::new(parts, Arc::clone(&objects), leadership, events, (metrics, alarms))?;
        metrics.register(&Sizes::new(objects, runner.board())?)?;
        Ok(Self { runner })
    }

    /// The same with a trace of each bind that is sampled.
    #[must_use]
    pub fn with_traces(mut self, traces: Traces) -> Self {
        self.runner.controller_mut().trace(traces);
        self
    }

    /// The same with a history in which changes are remembered.
    #[must_use]
    pub fn with_history(mut self, history: History) -> Self {
        self.runner.remember(history);
        self
    }

    /// The same with plugins that recycle, delete and make volumes.
    #[must_use]
    pub fn with_plugins(mut self, plugins: Box<dyn Plugins>, hands: Box<dyn Hands>) -> Self {
        self.runner.controller_mut().state.plugins = plugins;
        self.runner.executor_mut().hands = Some(hands);
        self
    }

    /// Why each claim and volume waits; stays readable while the binder runs.
    #[must_use]
    pub fn board(&self) -> Arc<Board<Target, BinderReason>> {
        self.runner.board()
    }

    /// See [`Runner::run`].
    pub async fn run(self, shutdown: CancellationToken) {
        self.runner.run(shutdown).await;
    }
}

impl Controller for Planner {
    // KCM: cmd/kube-controller-manager/names/controller_names.go.
    const IDENTITY: Identity = Identity {
        name: "persistentvolume-binder-controller",
        component: "persistentvolume-controller",
        queues: &["claims", "volumes"],
        role: Some(ROLE),
    };
    type Key = Target;
    type Reason = BinderReason;
    type Call = Op;
    type Answer = Answer;
    /// What is left of a plan without its requests and events.
    type Measures = planner::Plan;

    fn load(&mut self, now: Instant) {
        Self::load(self, now);
    }

    fn changed(&mut self, objects: BTreeSet<ObjectRef>, now: Instant) {
        for object in &objects {
            Self::changed(self, object, now);
        }
    }

    fn answered(&mut self, op: Op, result: Result<Answer, CallError>, now: Instant, jitter: f64) {
        Self::answered(self, op, result, now, jitter);
    }

    fn lead(&mut self, now: Instant) {
        Self::lead(self, now);
    }

    fn plan(&mut self, now: Instant) -> Plan<Self> {
        // Until this process leads, only what is known of the objects is kept up.
        let mut plan = if self.queue.is_open() { Self::plan(self, now) } else { planner::Plan::default() };
        Plan {
            calls: mem::take(&mut plan.ops),
            events: mem::take(&mut plan.events),
            reports: mem::take(&mut plan.reports),
            others: plan.others.take(),
            counts: plan.counts.to_vec(),
            wake_at: plan.wake_at,
            measures: plan,
        }
    }
}

/// Sends the requests, and has the plugins act.
#[derive(Debug)]
struct Requests {
    caller: Caller,
    leadership: Leadership,
    metrics: BinderMetrics,
    hands: Option<Box<dyn Hands>>,
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

    fn planned(&mut self, planner: &Planner, plan: planner::Plan, _: Instant) {
        for sample in &plan.samples {
            self.metrics.observe(sample);
        }
        for ((request, outcome), count) in plan.failures {
            self.metrics.failed(request, outcome, count);
        }
        if let Some(hands) = &mut self.hands {
            hands.follow(planner.pods_at_work());
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
            let path = match subject {
                Target::Claim(key) => PersistentVolumeClaim::path(key),
                Target::Volume(name) => PersistentVolume::path(name),
            };
            caller.owners(path, uid, &subject.field().pointer()).await.map(Answer::Owners)
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
    match (&op.call, result) {
        (Call::Write(write), Ok(_)) => {
            tracing::debug!(object, namespace, written = %write.target, write = write.kind.as_str(), attempt, "written");
        }
        // Nothing went wrong: another writer was there first.
        (Call::Write(write), Err(error @ (CallError::Conflict(_) | CallError::NotFound(_)))) => {
            tracing::debug!(object, namespace, written = %write.target, write = write.kind.as_str(), attempt, %error, "changed or gone meanwhile, looking again");
        }
        (_, Err(CallError::NotLeader)) | (Call::Read { .. }, Ok(_) | Err(CallError::NotFound(_))) => {}
        (Call::Write(write), Err(error)) => {
            tracing::warn!(object, namespace, written = %write.target, write = write.kind.as_str(), attempt, %error, "write failed, retrying");
        }
        (Call::Read { purpose: Purpose::LearnOwner(_), .. }, Err(error)) => {
            tracing::warn!(object, namespace, attempt, %error, "who wrote it could not be read, retrying");
        }
        (Call::Read { target: ObjectRef::Class(class), .. }, Err(error)) => {
            tracing::warn!(object, namespace, %class, attempt, %error, "live read of the class failed, retrying");
        }
        (Call::Read { target, .. }, Err(error)) => {
            tracing::warn!(object, namespace, read = %target, attempt, %error, "live read failed, retrying");
        }
        (Call::Directory(directory), Ok(Answer::Directory(Err(error)))) => {
            tracing::warn!(object, namespace, ?directory, attempt, %error, "directory could not be made or removed, retrying");
        }
        (Call::Directory(directory), _) => {
            tracing::debug!(object, namespace, ?directory, attempt, "directory made or removed");
        }
    }
}
