//! The binder's one task: takes changes and outcomes to the planner, and sends what it plans.
//!
//! In: the change set of the shared tables, answers of the API server, the right to write. Out:
//! requests, each in a task of its own; events; metrics. It makes no choices: what is sent, and
//! when again after a failure, the planner says.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use k8s_openapi::jiff::Timestamp;
use tokio::{
    task::{JoinError, JoinSet, spawn_blocking},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    act::{
        op::{Answer, Call, Op},
        write::{Object, Target, WriteKind},
    },
    decide::view::BinderOptions,
    doubt::Doubts,
    planner::Planner,
    plugins::{self, PodEvents, path::ROOT},
    tell::{diagnostics::Diagnostics, metrics::BinderMetrics, transitions},
};
use crate::{
    kube_api::{
        call::{CallError, Caller, Verb},
        events::EventRecorder,
        kinds::{Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim},
        leadership::Leadership,
        managed_fields::OwnedField,
    },
    metrics::{Alarms, Metrics, Subsystem},
    second_writer::{StandOff, seconds},
    state::{ChangeSet, Objects},
    telemetry::transition::Named,
    traces::Traces,
};

/// Requests on the wire at once.
const CONNECTIONS: usize = 64;

/// The alarm about another binder.
const SECOND_BINDER: &str = "second_binder";

/// A request with its outcome.
type Finished = (Op, Result<Answer, CallError>);

/// The binder, ready to run.
#[derive(Debug)]
pub struct Binder {
    objects: Arc<Objects>,
    changes: Arc<ChangeSet>,
    planner: Planner,
    caller: Caller,
    leadership: Leadership,
    events: EventRecorder,
    metrics: BinderMetrics,
    alarms: Alarms,
    /// What was last shown about others who write: one at work everywhere, and on objects alone.
    rivals: (Option<StandOff>, Vec<StandOff>),
    pod_events: PodEvents,
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
        alarms.set(SECOND_BINDER, None);
        let changes = objects.subscribe();
        let mut planner = Planner::new(Arc::clone(&objects), options);
        planner.count_runs_from(fastrand::u64(..));
        planner.known.doubts = Doubts::lasting(caller.settle_time());
        Ok(Self {
            changes,
            metrics: BinderMetrics::new(metrics, &objects, &planner.diagnostics())?,
            planner,
            alarms,
            rivals: (None, Vec::new()),
            objects,
            caller: caller.with_own_budget(CONNECTIONS).of_subsystem(Subsystem::Binder),
            leadership,
            pod_events: PodEvents::new(caller.client(), events.clone()),
            events,
        })
    }

    /// The same with a trace of each bind that is sampled.
    #[must_use]
    pub fn with_traces(mut self, traces: Traces) -> Self {
        self.planner.trace(traces);
        self
    }

    /// Why each claim and volume waits; stays readable while the binder runs.
    #[must_use]
    pub fn diagnostics(&self) -> Arc<Diagnostics> {
        self.planner.diagnostics()
    }

    /// Runs until told to stop, then waits for the outcomes of what is under way. Keeps its state
    /// warm while another process leads.
    pub async fn run(mut self, shutdown: CancellationToken) {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = self.objects.synced() => {}
        }
        self.planner.load(Instant::now());
        let mut tasks: JoinSet<Finished> = JoinSet::new();
        let mut leading = false;
        let mut wake_at = None;
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = self.leadership.acquired(), if !leading => {
                    leading = true;
                    self.planner.lead(Instant::now());
                    self.planner.diagnostics().lead(Instant::now());
                    self.metrics.leads(true);
                }
                () = self.leadership.lost(), if leading => {
                    leading = false;
                    self.planner.diagnostics().stand_by();
                    self.metrics.leads(false);
                    self.pod_events.follow(BTreeMap::new());
                }
                changed = self.changes.take() => self.changed(&changed),
                Some(finished) = tasks.join_next() => self.finished(finished),
                () = sleep_until(wake_at.unwrap_or_else(Instant::now)), if leading && wake_at.is_some() => {}
            }
            while let Some(finished) = tasks.try_join_next() {
                self.finished(finished);
            }
            if leading {
                // The indexes are brought up to the tables first: what an earlier leader reserved
                // is in the tables when the term begins, and must not be missed (S19).
                self.changed(&self.changes.take_now());
                wake_at = self.plan(&mut tasks);
            } else {
                // What was under way when the term ended has been answered since.
                self.planner.stand_by();
            }
        }
        while let Some(finished) = tasks.join_next().await {
            self.finished(finished);
        }
    }

    fn changed(&mut self, changed: &BTreeSet<ObjectRef>) {
        let now = Instant::now();
        for object in changed {
            self.planner.changed(object, now);
        }
    }

    /// Plans, and sends. Returns when to plan again.
    fn plan(&mut self, tasks: &mut JoinSet<Finished>) -> Option<Instant> {
        let now = Instant::now();
        let plan = self.planner.plan(now);
        self.alarm(now);
        for sample in &plan.samples {
            self.metrics.observe(sample);
        }
        self.metrics.queued(&plan.tallies);
        for transition in &plan.transitions {
            transition.log();
        }
        for event in plan.events {
            if let Err(event) = self.events.record(event) {
                self.planner.not_told(&event.involved);
            }
        }
        for ((kind, reason), count) in plan.decisions {
            self.metrics.decided(kind, reason, count);
        }
        for ((request, outcome), count) in plan.failures {
            self.metrics.failed(request, outcome, count);
        }
        for op in plan.ops {
            let (caller, leadership) = (self.caller.clone(), self.leadership.clone());
            self.metrics.begins(&op.subject, now);
            tasks.spawn(async move {
                let result = match &op.call {
                    // No request asks for the right to write here.
                    Call::Directory(_) if !leadership.may_write(Instant::now()) => Err(CallError::NotLeader),
                    call => perform(&caller, &op.subject, call).await,
                };
                (op, result)
            });
        }
        self.pod_events.follow(self.planner.recycling_pods());
        plan.wake_at
    }

    /// Raises or lowers the alarm about another binder.
    fn alarm(&mut self, now: Instant) {
        let rivals = (self.planner.second_writer().cloned(), self.planner.stand_offs().cloned().collect());
        if rivals != self.rivals {
            let wall = Timestamp::now();
            let until = |by: &StandOff| {
                wall.checked_add(by.until.saturating_duration_since(now)).unwrap_or(Timestamp::MAX)
            };
            let alarm = rivals.0.as_ref().map(|by| {
                format!(
                    "{by}: is its persistentvolume-binder-controller still running? Nothing is released or given \
                     up until {} at the earliest",
                    seconds(until(by))
                )
            });
            match (&self.rivals.0, &alarm) {
                (None, Some(rival)) => tracing::error!(%rival, "another binder is at work"),
                (Some(_), None) => tracing::warn!("no other binder has been seen for a while: going on"),
                _ => {}
            }
            let rows = rivals.1.iter().map(|by| by.json(until(by))).collect();
            self.planner.diagnostics().set_second_writers(alarm.clone(), rows);
            self.alarms.set(SECOND_BINDER, alarm);
            self.rivals = rivals;
        }
        self.metrics.sighted(self.planner.sightings());
    }

    fn finished(&mut self, finished: Result<Finished, JoinError>) {
        let (op, result) = match finished {
            Ok(finished) => finished,
            // Its claim and volume would be held for ever; the process ends instead.
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => return,
            },
        };
        let sent = !matches!(result, Err(CallError::NotLeader));
        if sent && op.call.write_kind() == Some(WriteKind::AssignClass) {
            self.metrics.class_assigned(result.is_ok());
        }
        if let (Some(kind), Err(CallError::Conflict(_))) = (op.call.write_kind(), &result) {
            self.metrics.conflicted(kind);
        }
        log(&op, self.planner.attempt(&op.subject), &result);
        let now = Instant::now();
        self.metrics.ends(&op.subject, now);
        self.planner.outcome(op, result, now, fastrand::f64());
    }
}

/// Does one thing and reads the answer.
async fn perform(caller: &Caller, subject: &Target, call: &Call) -> Result<Answer, CallError> {
    match call {
        Call::Write(write) if write.request.verb == Verb::Delete => {
            caller.send(&write.request).await.map(|_| Answer::Deleted)
        }
        Call::Write(write) => match &write.target {
            Object::Claim(_) => caller.write(&write.request).await.map(Answer::Claim),
            Object::Volume(_) => caller.write(&write.request).await.map(Answer::Volume),
            Object::Pod(_) => caller.write(&write.request).await.map(Answer::Pod),
        },
        Call::Read { target: Object::Claim(key), .. } => caller.get(key).await.map(Answer::Claim),
        Call::Read { target: Object::Volume(name), .. } => caller.get(name).await.map(Answer::Volume),
        Call::Read { target: Object::Pod(key), .. } => caller.get(key).await.map(Answer::Pod),
        Call::ReadClass(name) => caller.get(name).await.map(Answer::Class),
        Call::ReadOwner(uid) => {
            let path = match subject {
                Target::Claim(key) => PersistentVolumeClaim::path(key),
                Target::Volume(name) => PersistentVolume::path(name),
            };
            caller.owners(path, uid, OwnedField::Phase).await.map(Answer::Owners)
        }
        Call::Directory(directory) => {
            let directory = directory.clone();
            let done = spawn_blocking(move || plugins::perform(Path::new(ROOT), &directory)).await;
            Ok(Answer::Directory(done.unwrap_or_else(|error| Err(error.to_string()))))
        }
    }
}

/// Logs what became of a request, of which this was the given attempt.
fn log(op: &Op, attempt: u32, result: &Result<Answer, CallError>) {
    let Named { object, namespace } = transitions::named(&op.subject);
    match (&op.call, result) {
        (Call::Write(write), Ok(_)) => {
            tracing::debug!(object, namespace, written = %write.target, write = write.kind.as_str(), attempt, "written");
        }
        // Nothing went wrong: somebody else was there first.
        (Call::Write(write), Err(error @ (CallError::Conflict(_) | CallError::NotFound(_)))) => {
            tracing::debug!(object, namespace, written = %write.target, write = write.kind.as_str(), attempt, %error, "changed or gone meanwhile, looking again");
        }
        (_, Err(CallError::NotLeader))
        | (
            Call::Read { .. } | Call::ReadClass(_) | Call::ReadOwner(_),
            Ok(_) | Err(CallError::NotFound(_)),
        ) => {}
        (Call::Write(write), Err(error)) => {
            tracing::warn!(object, namespace, written = %write.target, write = write.kind.as_str(), attempt, %error, "write failed, retrying");
        }
        (Call::Read { target, .. }, Err(error)) => {
            tracing::warn!(object, namespace, read = %target, attempt, %error, "live read failed, retrying");
        }
        (Call::ReadOwner(_), Err(error)) => {
            tracing::warn!(object, namespace, attempt, %error, "who wrote it could not be read");
        }
        (Call::ReadClass(class), Err(error)) => {
            tracing::warn!(object, namespace, %class, attempt, %error, "live read of the class failed, retrying");
        }
        (Call::Directory(directory), Ok(Answer::Directory(Err(error)))) => {
            tracing::warn!(object, namespace, ?directory, attempt, %error, "directory could not be made or removed, retrying");
        }
        (Call::Directory(directory), _) => {
            tracing::debug!(object, namespace, ?directory, attempt, "directory made or removed");
        }
    }
}
