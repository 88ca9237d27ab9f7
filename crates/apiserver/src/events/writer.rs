//! Writes recorded events: one request at a time, when nothing else is in flight or after a short wait for
//! that. One that the API server does not take is tried again after pauses for two minutes, then dropped and counted; after each
//! refusal none is written for as long as the server asks for. An event has the time at which it was recorded, however late it is
//! written, and never takes the place of a later one.
//!
//! At the end of the process the events that are left are written also after its term, as long as there is time: they tell of
//! what was done, and decide nothing. What could not be written is tried again sooner then. A process that has not led leaves
//! its events to the one that leads.
//!
//! What another process has told stands: its event has the name that ours would have, so that a create is refused, or another
//! revision than ours had, so that a patch is. Then it is read how often and when it was told (S47).

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Loss, Losses, Novelty, Report, body,
    memory::{Memory, Written},
    spam::SpamFilter,
};
use crate::{
    backoff::retry_pause,
    call::{CallError, Caller, Request, Verb},
};

/// Longest pause before an event that could not be written is tried again, and how often it is, which takes two minutes.
///
/// client-go: tools/record/event.go, sleepDuration and maxTriesPerEvent (10 s, 12).
const TRY_AGAIN: Duration = Duration::from_secs(10);
const TRIES: u32 = 16;

/// The same at the end of the process, which is half a minute away at the most.
const TRY_AGAIN_AT_THE_END: Duration = Duration::from_secs(2);

/// Times in events are cut to seconds.
const ROUNDED: Duration = Duration::from_secs(1);
/// So long none is tried after one that was not answered.
const UNANSWERED: Duration = Duration::from_millis(100);

/// So many wait to be tried again at most; then no more are taken out of the queue.
const WAITING: usize = 1_024;

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
        // Until when the API server is to be asked nothing.
        let mut quiet = Instant::now();
        let mut longest = TRY_AGAIN;
        loop {
            self.left.send_replace(self.queue.len() + waiting.0.len());
            let (report, tries) = tokio::select! {
                Some(report) = after(quiet, self.queue.recv()), if waiting.has_room() || stop.is_cancelled() => {
                    if desk.stands(&report) {
                        continue;
                    }
                    if !spam.admit(&report, Instant::now()) {
                        self.losses.of(Loss::Spam).inc();
                        continue;
                    }
                    let_work_go_first(&mut work).await;
                    (report, 1)
                }
                Some((report, tries)) = after(quiet, waiting.next(longest)) => {
                    if desk.is_overtaken(&report) {
                        continue;
                    }
                    (report, tries + 1)
                }
                () = stop.cancelled(), if longest == TRY_AGAIN => {
                    longest = TRY_AGAIN_AT_THE_END;
                    quiet = quiet.min(Instant::now() + longest);
                    // No more comes in; what is in is still delivered.
                    self.queue.close();
                    continue;
                }
                else => return,
            };
            let Some((report, pause)) = desk.deliver(report).await else { continue };
            let is_ending = longest == TRY_AGAIN_AT_THE_END;
            quiet = Instant::now() + if is_ending { pause.min(longest) } else { pause };
            // At the end all wait as long as there is time: what is left then is told.
            if tries < TRIES || is_ending {
                waiting.0.push((Instant::now(), report, tries));
            } else {
                desk.losses.of(Loss::Failed).inc();
            }
        }
    }
}

async fn after<T>(quiet: Instant, next: impl Future<Output = T>) -> T {
    sleep_until(quiet).await;
    next.await
}

async fn let_work_go_first(work: &mut watch::Receiver<usize>) {
    // Whether it waited in vain does not matter.
    let _ = timeout(PATIENCE, work.wait_for(|count| *count == 0)).await;
}

/// Events that could not be written, with the time of their last try and how many there were.
#[derive(Debug, Default)]
struct Waiting(Vec<(Instant, Report, u32)>);

impl Waiting {
    fn has_room(&self) -> bool {
        self.0.len() < WAITING
    }

    /// The one that is due first, when it is, with a pause of no more than that. Cancel safe.
    async fn next(&mut self, longest: Duration) -> Option<(Report, u32)> {
        let due = |(tried, _, tries): &(Instant, Report, u32)| *tried + retry_pause(*tries, 0.0).min(longest);
        let (at, first) = self.0.iter().map(due).enumerate().min_by_key(|(_, due)| *due)?;
        sleep_until(first).await;
        let (_, report, tries) = self.0.swap_remove(at);
        Some((report, tries))
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

    /// Writes it. If the API server takes no events now, returns it with how long to leave the server alone.
    async fn deliver(&mut self, mut report: Report) -> Option<(Report, Duration)> {
        self.has_led |= self.caller.may_write();
        let mut written = self.write(&report).await;
        if written == Err(CallError::NotLeader) && self.stop.is_cancelled() {
            if !self.has_led {
                return None;
            }
            self.caller = self.caller.clone().after_its_term();
            written = self.write(&report).await;
        }
        let error = written.err()?;
        report.may_be_written |= matches!(error, CallError::Unknown(_));
        let (reason, name) = (report.event.reason, &report.event.involved.name);
        tracing::debug!(reason, object = %name, %error, "event not written");
        match error {
            CallError::Throttled { after, .. } => Some((report, after)),
            // In a conflict another process has counted it meanwhile, or a quota lost its races.
            CallError::Unknown(_)
            | CallError::NotSent(_)
            | CallError::NotLeader
            | CallError::Conflict(_)
            | CallError::Refused { code: 409, .. } => Some((report, UNANSWERED)),
            _ => {
                self.losses.of(Loss::Failed).inc();
                None
            }
        }
    }

    async fn write(&mut self, report: &Report) -> Result<(), CallError> {
        let digest = body::digest(report);
        let name = body::name(report, digest);
        let collection = body::collection(body::namespace(report));
        let path = format!("{collection}/{name}");
        if let Some(earlier) = self.memory.recall(digest, Instant::now()) {
            match self.count(report, digest, &path, earlier).await {
                // Events expire on the server, or another process has told the same since.
                Err(CallError::NotFound(_) | CallError::Conflict(_)) => self.memory.forget(digest),
                result => return result,
            }
        }
        let body = body::creation(report, &name, self.instance);
        let create = Request { verb: Verb::Create, path: collection, body: Some(body) };
        match self.caller.send(&create).await {
            Ok(answer) => {
                self.remember(digest, 1, report.recorded, &answer);
                return Ok(());
            }
            Err(CallError::AlreadyExists(_)) => {}
            Err(error) => return Err(error),
        }
        let read = Request { verb: Verb::Get, path: path.clone(), body: None };
        let answer = self.caller.send(&read).await?;
        let (count, age, _) = body::counted(&answer, Timestamp::now());
        let now = Instant::now();
        let last = age.and_then(|age| now.checked_sub(age));
        let earlier = self.remember(digest, count, last.unwrap_or(report.recorded), &answer);
        // One that is older than what was recorded is not the one that may be written.
        let is_its_own = || last.is_some_and(|last| last + ROUNDED >= report.recorded);
        let is_told = match report.event.novelty {
            Novelty::New => report.may_be_written && is_its_own(),
            Novelty::Unclear | Novelty::Standing => earlier.stands(now),
        };
        if is_told || last.is_some_and(|last| last > report.recorded) {
            Ok(())
        } else {
            self.count(report, digest, &path, earlier).await
        }
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
        let body = Some(body::repetition(report, count, earlier.revision));
        let answer = self.caller.send(&Request { verb: Verb::Patch, path: path.to_owned(), body }).await?;
        self.remember(digest, count, report.recorded, &answer);
        Ok(())
    }

    /// Remembers an event, and of an answer that shows it the revision.
    fn remember(&mut self, digest: u64, count: u32, last: Instant, answer: &[u8]) -> Written {
        let (.., revision) = body::counted(answer, Timestamp::now());
        let written = Written { count, last, revision };
        self.memory.remember(digest, written, Instant::now());
        written
    }
}
