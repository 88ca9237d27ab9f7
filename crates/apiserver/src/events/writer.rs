//! Writes recorded events: one request at a time, when nothing else is in flight or after a short wait for
//! that, repeated a few times, then every ten seconds for two minutes, then dropped and counted. An event has the time at which
//! it was recorded, however late it is written, and never takes the place of a later one.
//!
//! At the end of the process the events that are left are written also after its term, as long as there is time: they tell of
//! what was done, and decide nothing. What could not be written is tried again sooner then. A process that has not led leaves
//! its events to the one that leads.
//!
//! What a process before this one has told stands: its event has the name that ours would have, so that a create is
//! refused, and it is read how often and when it was told (S47).

use std::{collections::VecDeque, time::Duration};

use k8s_openapi::jiff::Timestamp;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Loss, Losses, Novelty, Report, body,
    memory::{Memory, Written},
    spam::SpamFilter,
};
use crate::{
    backoff::Backoff,
    call::{CallError, Caller, Request, Verb},
};

/// Attempts in a row, while the events behind wait.
const ATTEMPTS: usize = 4;

/// When an event that could not be written is tried again, and how often, one attempt each time.
///
/// client-go: tools/record/event.go, sleepDuration and maxTriesPerEvent (10 s, 12).
const TRY_AGAIN: Duration = Duration::from_secs(10);
const TRIES: usize = 12;

/// The same at the end of the process, which is half a minute away at the most.
const TRY_AGAIN_AT_THE_END: Duration = Duration::from_secs(2);

/// So many wait for that at most; then no more are taken out of the queue.
const WAITING: usize = 1_024;

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
    left: watch::Sender<usize>,
}

impl EventWriter {
    pub(super) fn new(queue: mpsc::Receiver<Report>, losses: Losses, left: watch::Sender<usize>) -> Self {
        Self { queue, losses, left }
    }

    /// Takes events and writes none, for a process that only observes.
    pub async fn discard(mut self) {
        while self.queue.recv().await.is_some() {}
    }

    /// Writes events until told to stop, then what is left. `instance` names this process.
    pub async fn run(mut self, caller: Caller, instance: String, stop: CancellationToken) {
        let (caller, mut work) = caller.in_the_background();
        let (memory, losses) = (Memory::default(), &self.losses);
        let mut desk = Desk { caller, instance: &instance, memory, losses, stop: &stop, has_led: false };
        let (mut spam, mut waiting) = (SpamFilter::default(), Waiting::default());
        let mut stopping = false;
        loop {
            self.left.send_replace(self.queue.len() + waiting.0.len());
            let again = if stopping { TRY_AGAIN_AT_THE_END } else { TRY_AGAIN };
            let report = tokio::select! {
                Some(report) = self.queue.recv(), if stopping || waiting.has_room() => report,
                Some((report, tries)) = waiting.next(again) => {
                    if !desk.is_overtaken(&report) && let Some(report) = desk.deliver(report, 1).await {
                        waiting.put_off(report, tries + 1, stopping, desk.losses);
                    }
                    continue;
                }
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    // No more comes in; what is in is still delivered.
                    self.queue.close();
                    continue;
                }
                else => return,
            };
            if desk.stands(&report) {
                continue;
            }
            if !spam.admit(&report, Instant::now()) {
                self.losses.of(Loss::Spam).inc();
                continue;
            }
            let_work_go_first(&mut work).await;
            // While events wait, the API server takes none: one attempt tells whether it does again.
            let attempts = if waiting.0.is_empty() { ATTEMPTS } else { 1 };
            if let Some(report) = desk.deliver(report, attempts).await {
                waiting.put_off(report, 1, stopping, desk.losses);
            }
        }
    }
}

async fn let_work_go_first(work: &mut watch::Receiver<usize>) {
    // Whether it waited in vain does not matter.
    let _ = timeout(PATIENCE, work.wait_for(|count| *count == 0)).await;
}

/// Events that could not be written, with the time of their last try and how many there were.
#[derive(Debug, Default)]
struct Waiting(VecDeque<(Instant, Report, usize)>);

impl Waiting {
    fn has_room(&self) -> bool {
        self.0.len() < WAITING
    }

    /// At the end all wait as long as there is time: what is left then is told.
    fn put_off(&mut self, report: Report, tries: usize, is_stopping: bool, losses: &Losses) {
        if tries >= TRIES && !is_stopping {
            losses.of(Loss::Failed).inc();
            return;
        }
        self.0.push_back((Instant::now(), report, tries));
    }

    async fn next(&mut self, again: Duration) -> Option<(Report, usize)> {
        let (tried, ..) = self.0.front()?;
        sleep_until(*tried + again).await;
        self.0.pop_front().map(|(_, report, tries)| (report, tries))
    }
}

#[derive(Debug)]
struct Desk<'a> {
    caller: Caller,
    instance: &'a str,
    memory: Memory,
    losses: &'a Losses,
    stop: &'a CancellationToken,
    /// Whether this process has led.
    has_led: bool,
}

impl Desk<'_> {
    /// Whether it may have been so for long, and this process knows that its event does not expire soon.
    fn stands(&self, report: &Report) -> bool {
        let now = Instant::now();
        let written = self.memory.recall(body::digest(report), now);
        report.event.novelty == Novelty::Standing && written.is_some_and(|written| written.stands(now))
    }

    /// Whether the same was written since it was recorded, maybe with later words about the same subject.
    fn is_overtaken(&self, report: &Report) -> bool {
        let written = self.memory.recall(body::digest(report), Instant::now());
        written.is_some_and(|written| written.last > report.recorded)
    }

    /// Writes it. Returns it if the API server takes no events now.
    async fn deliver(&mut self, mut report: Report, attempts: usize) -> Option<Report> {
        let mut backoff = Backoff::new(LONGEST_PAUSE);
        let mut attempt = 1;
        loop {
            self.has_led |= self.caller.may_write();
            let Err(error) = self.write(&report).await else { return None };
            if error == CallError::NotLeader && self.stop.is_cancelled() {
                if !self.has_led {
                    return None;
                }
                self.caller = self.caller.clone().after_its_term();
                continue;
            }
            report.may_be_written |= matches!(error, CallError::Unknown(_));
            let pause = match &error {
                CallError::Throttled { after, .. } => (*after).min(LONGEST_PAUSE),
                CallError::Unknown(_) | CallError::NotSent(_) => backoff.pause(),
                _ => Duration::MAX,
            };
            if pause == Duration::MAX || attempt >= attempts {
                let reason = report.event.reason;
                tracing::debug!(reason, object = %report.event.involved.name, %error, "event not written");
                if pause < Duration::MAX || matches!(error, CallError::NotLeader) {
                    return Some(report);
                }
                self.losses.of(Loss::Failed).inc();
                return None;
            }
            attempt += 1;
            sleep(pause).await;
        }
    }

    async fn write(&mut self, report: &Report) -> Result<(), CallError> {
        let digest = body::digest(report);
        let name = body::name(report, digest);
        let collection = body::collection(body::namespace(report));
        let path = format!("{collection}/{name}");
        if let Some(earlier) = self.memory.recall(digest, Instant::now()) {
            match self.count(report, digest, &path, earlier).await {
                // Events expire on the server.
                Err(CallError::NotFound(_)) => self.memory.forget(digest),
                result => return result,
            }
        }
        let body = body::creation(report, &name, self.instance);
        let create = Request { verb: Verb::Create, path: collection, body: Some(body) };
        match self.caller.send(&create).await {
            Ok(_) => {
                self.remember(digest, 1, report.recorded);
                return Ok(());
            }
            Err(CallError::AlreadyExists(_)) => {}
            Err(error) => return Err(error),
        }
        let read = Request { verb: Verb::Get, path: path.clone(), body: None };
        let (count, age) = body::counted(&self.caller.send(&read).await?, Timestamp::now());
        let now = Instant::now();
        let earlier = self.remember(digest, count, now.checked_sub(age).unwrap_or(now));
        let is_told = match report.event.novelty {
            Novelty::New => report.may_be_written,
            Novelty::Unclear | Novelty::Standing => earlier.stands(now),
        };
        if is_told { Ok(()) } else { self.count(report, digest, &path, earlier).await }
    }

    /// Counts a repetition.
    async fn count(
        &mut self,
        report: &Report,
        digest: u64,
        path: &str,
        earlier: Written,
    ) -> Result<(), CallError> {
        let count = earlier.count.saturating_add(1);
        let body = Some(body::repetition(report, count));
        self.caller.send(&Request { verb: Verb::Patch, path: path.to_owned(), body }).await?;
        self.remember(digest, count, report.recorded);
        Ok(())
    }

    fn remember(&mut self, digest: u64, count: u32, last: Instant) -> Written {
        let written = Written { count, last };
        self.memory.remember(digest, written, Instant::now());
        written
    }
}
