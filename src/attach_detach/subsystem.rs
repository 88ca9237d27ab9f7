//! The subsystem at run time: feeds the controller and carries out what it wants.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use tokio::{
    sync::mpsc,
    task::yield_now,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    act::{
        calls::Outcome,
        room::{NODE_CALLS, PAIR_CALLS},
    },
    clock::Clock,
    controller::{AttachDetachOptions, Controller, Effects},
    executor::Executor,
    guard::force_timers::TimersPlace,
    tell::{backlog, end_to_end::EndToEnd, metrics::AttachDetachMetrics, standing::Standing},
};
use crate::{
    kube_api::{call::Caller, events::EventRecorder, leadership::Leadership, tally::LeaseTally},
    metrics::{Alarms, Metrics, Subsystem},
    state::{ChangeSet, Objects},
    traces::Traces,
};

/// The attach/detach subsystem.
#[derive(Debug)]
pub struct AttachDetach {
    objects: Arc<Objects>,
    changes: Arc<ChangeSet>,
    controller: Controller,
    /// What is noted outside of planning.
    metrics: AttachDetachMetrics,
    end_to_end: EndToEnd,
    executor: Executor,
    outcomes: mpsc::Receiver<Outcome>,
    leadership: Leadership,
    events: EventRecorder,
    tally: Option<LeaseTally>,
}

impl AttachDetach {
    /// The subsystem over the shared tables.
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
        let (sender, outcomes) = mpsc::channel(PAIR_CALLS + NODE_CALLS + 1);
        let changes = objects.subscribe();
        let of_ours = AttachDetachMetrics::new(metrics, alarms)?;
        let clock = Clock::new(Timestamp::now(), Instant::now());
        let controller = Controller::new(Arc::clone(&objects), of_ours.clone(), options, clock)
            .with_settle_time(caller.settle_time());
        controller.standing().register(metrics)?;
        backlog::register(controller.standing(), Arc::clone(&objects), metrics)?;
        let caller = caller.of_subsystem(Subsystem::AttachDetach);
        Ok(Self {
            changes,
            end_to_end: controller.end_to_end(),
            controller,
            metrics: of_ours,
            executor: Executor::new(&caller, sender),
            objects,
            outcomes,
            leadership,
            events,
            tally: None,
        })
    }

    /// The same with force-detach timers that survive this process (S6), which has that identity; the tally is what
    /// the lease tells of them, if there is one.
    #[must_use]
    pub fn with_force_timers(
        mut self,
        place: TimersPlace,
        identity: String,
        tally: Option<LeaseTally>,
    ) -> Self {
        self.controller.keep_timers_in(place, identity);
        self.tally = tally;
        self
    }

    /// The same with a trace of each attach and detach that is sampled.
    #[must_use]
    pub fn with_traces(mut self, traces: Traces) -> Self {
        self.controller.trace(traces);
        self
    }

    /// What every volume waits for; stays readable while the subsystem runs.
    #[must_use]
    pub fn standing(&self) -> Arc<Standing> {
        self.controller.standing()
    }

    /// Runs until shutdown, then waits for the requests in flight.
    pub async fn run(mut self, shutdown: CancellationToken) {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = self.objects.synced() => {}
        }
        self.controller.load(Instant::now());
        loop {
            let wake_at = self.controller.wake_at();
            if wake_at.is_some_and(|at| at <= Instant::now()) {
                // There is much to plan: other tasks have their turn, too.
                yield_now().await;
            }
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = self.leadership.acquired(), if !self.controller.leads() => {
                    // What the take-over barrier has read is to be known before anything is planned.
                    self.controller.take_changes(self.changes.take_now(), Instant::now());
                    if let Some(tally) = &self.tally {
                        self.controller.succeed(tally.left());
                    }
                    self.controller.take_over(Instant::now());
                }
                changed = self.changes.take() => self.controller.take_changes(changed, Instant::now()),
                Some(outcome) = self.outcomes.recv() => self.take_outcomes(outcome),
                () = sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => {}
            }
            let Effects { calls, events, laps } = self.controller.reconcile(Instant::now());
            if let Some(tally) = self.tally.as_ref().filter(|_| self.controller.leads()) {
                tally.set(self.controller.waits_broken_off());
            }
            let counts = self.controller.take_counts();
            // One that stands by looks at nothing.
            if self.controller.leads() {
                self.metrics.queued(&counts);
            }
            for (sent, call) in calls {
                self.metrics.begins(&call, Instant::now());
                self.executor.send(sent, call);
            }
            for (volume, lap, trace) in laps {
                self.end_to_end.observe(&volume, lap, trace);
            }
            for event in events {
                if let Err(lost) = self.events.record(event) {
                    self.controller.not_told(&lost, Instant::now());
                }
            }
        }
        while self.controller.in_flight() > 0 {
            let Some(outcome) = self.outcomes.recv().await else { break };
            self.take_outcomes(outcome);
        }
    }

    /// Takes an outcome and all that have arrived behind it, so that they are planned together.
    fn take_outcomes(&mut self, first: Outcome) {
        let mut next = Some(first);
        while let Some(outcome) = next {
            self.metrics.answered(&outcome);
            self.metrics.ends(&outcome.call, Instant::now());
            self.controller.take_outcome(outcome, Instant::now());
            next = self.outcomes.try_recv().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Mutex, time::Duration};

    use http::{Method, Request, Response};
    use kube::{Client, client::Body};
    use serde_json::{Value, json};
    use tokio::{sync::Semaphore, task::JoinHandle, time::timeout};

    use super::super::desired::volume_name::VolumeId;
    use super::*;
    use crate::{
        kube_api::{
            events::EventQueue,
            ids::NodeName,
            kinds::{
                CsiDriver, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass, VolumeAttachment,
            },
            leadership::Term,
        },
        metrics::ApiMetrics,
    };

    const HOUR: Duration = Duration::from_hours(1);

    /// A node that lists something, or nothing.
    fn node(revision: &str, list: &Value) -> Value {
        json!({
            "kind": "Node",
            "metadata": {"name": "n1", "uid": "u", "resourceVersion": revision},
            "status": {"volumesAttached": list},
        })
    }

    /// The subsystem over a server that answers one request at a time, when it is let.
    struct Stage {
        asked: Arc<Mutex<Vec<String>>>,
        arrived: Arc<Semaphore>,
        gate: Arc<Semaphore>,
        standing: Arc<Standing>,
        shutdown: CancellationToken,
        running: JoinHandle<()>,
    }

    impl Stage {
        fn new(answer: fn(&Method) -> (u16, Value), node: Value, attachments: Vec<VolumeAttachment>) -> Self {
            let asked = Arc::new(Mutex::new(Vec::new()));
            let (arrived, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
            let server = {
                let (asked, arrived, gate) = (Arc::clone(&asked), Arc::clone(&arrived), Arc::clone(&gate));
                tower::service_fn(move |request: Request<Body>| {
                    let (asked, arrived, gate) =
                        (Arc::clone(&asked), Arc::clone(&arrived), Arc::clone(&gate));
                    async move {
                        asked.lock().unwrap().push(format!("{} {}", request.method(), request.uri().path()));
                        arrived.add_permits(1);
                        gate.acquire().await.unwrap().forget();
                        let (status, body) = answer(request.method());
                        let response =
                            Response::builder().status(status).header("content-type", "application/json");
                        Ok::<_, Infallible>(response.body(Body::from(body.to_string().into_bytes())).unwrap())
                    }
                })
            };
            let metrics = Metrics::default();
            let api = Arc::new(ApiMetrics::new(&metrics, "test").unwrap());
            let leadership = Leadership::new(Term::Unlimited);
            let caller = Caller::new(Client::new(server, "default"), leadership.clone(), None, api);
            let (events, _writer) = EventQueue::new(&metrics).unwrap();
            let objects = Arc::new(Objects::default());
            let alarms = Alarms::new(&metrics).unwrap();
            let subsystem = AttachDetach::new(
                Arc::clone(&objects),
                &caller,
                leadership,
                events.for_component("attachdetach-controller"),
                AttachDetachOptions::default(),
                &metrics,
                alarms,
            );
            let subsystem = subsystem.unwrap();
            let standing = subsystem.standing();
            let shutdown = CancellationToken::new();
            let running = tokio::spawn(subsystem.run(shutdown.clone()));
            objects.reset::<Node>(vec![serde_json::from_value(node).unwrap()]);
            objects.reset::<Pod>(Vec::new());
            objects.reset::<PersistentVolume>(Vec::new());
            objects.reset::<PersistentVolumeClaim>(Vec::new());
            objects.reset::<VolumeAttachment>(attachments);
            objects.reset::<StorageClass>(Vec::new());
            objects.reset::<CsiDriver>(Vec::new());
            Self { asked, arrived, gate, standing, shutdown, running }
        }

        async fn request_arrives(&self) {
            timeout(HOUR, self.arrived.acquire()).await.expect("a request").unwrap().forget();
        }

        /// Shuts down while a request is in flight, which is then answered. Returns what was asked.
        async fn shut_down(self) -> Vec<String> {
            self.shutdown.cancel();
            for _turn in 0..100 {
                yield_now().await;
            }
            assert!(!self.running.is_finished(), "a request is in flight");
            self.gate.add_permits(1);
            timeout(HOUR, self.running).await.expect("it ends when that is answered").unwrap();
            let asked = self.asked.lock().unwrap();
            asked.clone()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn on_shutdown_the_answers_to_what_was_asked_are_awaited_and_nothing_more_is_asked() {
        let listed = json!([{"name": "kubernetes.io/csi/d^h", "devicePath": ""}]);
        let answer = |_: &Method| (200, node("2", &json!([])));
        let stage = Stage::new(answer, node("1", &listed), Vec::new());
        stage.request_arrives().await;
        assert_eq!(stage.standing.json()["leads"], json!(true));
        assert_eq!(stage.shut_down().await, ["PATCH /api/v1/nodes/n1/status"]);
    }

    /// Who shuts down does not look why.
    #[tokio::test(start_paused = true)]
    async fn on_shutdown_a_delete_that_is_refused_is_not_followed_by_a_read() {
        let answer = |method: &Method| match *method {
            Method::DELETE => {
                (409, json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409}))
            }
            _ => (200, node("1", &json!([]))),
        };
        let (volume, name) = (VolumeId::csi(&"d".into(), "h"), NodeName::from("n1"));
        let name = volume.attachment_name(&name);
        let attachment = json!({
            "metadata": {"name": name, "uid": "a", "resourceVersion": "1"},
            "spec": {
                "attacher": "d",
                "nodeName": "n1",
                "source": {"inlineVolumeSpec": {"csi": {"driver": "d", "volumeHandle": "h"}}},
            },
            "status": {"attached": true},
        });
        let attachments = vec![serde_json::from_value(attachment).unwrap()];
        let stage = Stage::new(answer, node("1", &json!([])), attachments);
        stage.request_arrives().await;
        stage.gate.add_permits(1);
        stage.request_arrives().await;
        let delete = format!("DELETE /apis/storage.k8s.io/v1/volumeattachments/{name}");
        assert_eq!(stage.shut_down().await, ["GET /api/v1/nodes/n1".to_owned(), delete]);
    }
}
