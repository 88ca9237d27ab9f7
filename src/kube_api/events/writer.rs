//! Writes recorded events: one request at a time, when nothing else is in flight or after a short wait for
//! that, repeated a few times, then dropped and counted.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Loss, Losses, Report, body, memory::Memory, spam::SpamFilter};
use crate::kube_api::{
    backoff::Backoff,
    call::{CallError, Caller, Request, Verb},
};

/// Attempts per event. client-go tries 12 times, 10 s apart; an event that late explains nothing.
const ATTEMPTS: usize = 4;

/// Longest pause between attempts, also when the server asks for more: the events behind this one
/// are waiting.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How long an event lets other requests go first: under load that never ends, forty are written per second
/// all the same, which is twice what client-go allows for everything.
const PATIENCE: Duration = Duration::from_millis(25);

/// Empties the queue of events.
#[derive(Debug)]
pub struct EventWriter {
    queue: mpsc::Receiver<Report>,
    losses: Losses,
}

impl EventWriter {
    pub(super) fn new(queue: mpsc::Receiver<Report>, losses: Losses) -> Self {
        Self { queue, losses }
    }

    /// Writes events until told to stop, then what is still queued. `instance` names this process.
    pub async fn run(mut self, caller: Caller, instance: String, stop: CancellationToken) {
        let (caller, mut work) = caller.in_the_background();
        let mut desk = Desk { caller, instance: &instance, memory: Memory::default(), losses: &self.losses };
        let mut spam = SpamFilter::default();
        let mut stopping = false;
        loop {
            let report = tokio::select! {
                report = self.queue.recv() => report,
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    // No more comes in; what is in is still delivered.
                    self.queue.close();
                    continue;
                }
            };
            let Some(report) = report else { break };
            if !spam.admit(&report, Instant::now()) {
                self.losses.of(Loss::Spam).inc();
                continue;
            }
            let_work_go_first(&mut work).await;
            desk.deliver(&report).await;
        }
        stop.cancelled().await;
    }
}

async fn let_work_go_first(work: &mut watch::Receiver<usize>) {
    // Whether it waited in vain does not matter.
    let _ = timeout(PATIENCE, work.wait_for(|count| *count == 0)).await;
}

#[derive(Debug)]
struct Desk<'a> {
    caller: Caller,
    instance: &'a str,
    memory: Memory,
    losses: &'a Losses,
}

impl Desk<'_> {
    async fn deliver(&mut self, report: &Report) {
        let mut backoff = Backoff::new(LONGEST_PAUSE);
        let mut attempt = 1;
        // The same name in every attempt, so that one whose answer was lost is not written twice.
        let name = body::name(report, Timestamp::now());
        loop {
            let Err(error) = self.write(report, &name).await else { return };
            let pause = match &error {
                CallError::Throttled { after, .. } => (*after).min(LONGEST_PAUSE),
                CallError::Unknown(_) | CallError::NotSent(_) => backoff.pause(),
                _ => Duration::MAX,
            };
            if pause == Duration::MAX || attempt == ATTEMPTS {
                self.losses.of(Loss::Failed).inc();
                let reason = report.event.reason;
                tracing::debug!(reason, object = %report.event.involved.name, %error, "event dropped");
                return;
            }
            attempt += 1;
            sleep(pause).await;
        }
    }

    async fn write(&mut self, report: &Report, name: &str) -> Result<(), CallError> {
        let digest = self.memory.digest(report);
        let collection = body::collection(body::namespace(report));
        if let Some(earlier) = self.memory.recall(digest, Instant::now()) {
            let count = earlier.count.saturating_add(1);
            let patch = Request {
                verb: Verb::Patch,
                path: format!("{collection}/{}", earlier.name),
                body: Some(body::repetition(count, Timestamp::now())),
            };
            match self.caller.send(&patch).await {
                Ok(_) => {
                    self.memory.remember(digest, earlier.name, count, Instant::now());
                    return Ok(());
                }
                // Events expire on the server.
                Err(CallError::NotFound(_)) => self.memory.forget(digest),
                Err(error) => return Err(error),
            }
        }
        let create = Request {
            verb: Verb::Create,
            path: collection,
            body: Some(body::creation(report, name, self.instance, Timestamp::now())),
        };
        match self.caller.send(&create).await {
            Ok(_) | Err(CallError::AlreadyExists(_)) => {}
            Err(error) => return Err(error),
        }
        self.memory.remember(digest, name.to_owned(), 1, Instant::now());
        Ok(())
    }
}
