//! The subsystem at run time: feeds the controller and carries out what it wants.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    calls::Outcome,
    clock::Clock,
    controller::{AttachDetachOptions, Controller, Effects, NODE_CALLS, PAIR_CALLS},
    executor::Executor,
    metrics::AttachDetachMetrics,
    standing::Standing,
    wish_clock::ClockPlace,
};
use crate::{
    kube_api::{call::Caller, events::EventRecorder, leadership::Leadership},
    metrics::{Alarms, Metrics},
    state::{ChangeSet, Objects},
};

/// The attach/detach subsystem.
#[derive(Debug)]
pub struct AttachDetach {
    objects: Arc<Objects>,
    changes: Arc<ChangeSet>,
    controller: Controller,
    executor: Executor,
    outcomes: mpsc::Receiver<Outcome>,
    leadership: Leadership,
    events: EventRecorder,
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
        Ok(Self {
            changes: objects.subscribe(),
            controller: Controller::new(
                Arc::clone(&objects),
                AttachDetachMetrics::new(metrics, alarms)?,
                options,
                Clock::new(Timestamp::now(), Instant::now()),
            ),
            executor: Executor::new(caller.with_own_budget(PAIR_CALLS + NODE_CALLS), sender),
            objects,
            outcomes,
            leadership,
            events,
        })
    }

    /// The same with a wish clock that survives this process (S6).
    #[must_use]
    pub fn with_wish_clock(mut self, place: ClockPlace) -> Self {
        self.controller.keep_wishes_in(place);
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
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = self.leadership.acquired(), if !self.controller.leads() => {
                    // What the take-over barrier has read is to be known before anything is planned.
                    self.controller.take_changes(self.changes.take_now(), Instant::now());
                    self.controller.take_over();
                }
                changed = self.changes.take() => self.controller.take_changes(changed, Instant::now()),
                Some(outcome) = self.outcomes.recv() => self.take_outcomes(outcome),
                () = sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => {}
            }
            let Effects { calls, events } = self.controller.reconcile(Instant::now());
            for (sent, call) in calls {
                self.executor.send(sent, call);
            }
            for event in events {
                // One that does not fit is counted; what still holds is told again before it expires.
                let _lost = self.events.record(event);
            }
        }
        while self.controller.in_flight() > 0 {
            let Some(outcome) = self.outcomes.recv().await else { break };
            self.take_outcomes(outcome);
        }
    }

    /// Takes an outcome and all that have arrived behind it, so that they are planned together.
    fn take_outcomes(&mut self, first: Outcome) {
        self.controller.take_outcome(first, Instant::now());
        while let Ok(outcome) = self.outcomes.try_recv() {
            self.controller.take_outcome(outcome, Instant::now());
        }
    }
}
