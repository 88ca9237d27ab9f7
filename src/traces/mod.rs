//! Traces: one for each attach, detach and bind that is sampled, from the event that made it due to its end, across
//! all tries.
//!
//! In: when each phase of an operation began, noted in a [`Trail`] by the subsystem that owns the operation. Out: one
//! message on a bounded queue when the operation ends, which `export` turns into spans and sends over OTLP on a
//! thread of its own. A collector that is slow or away costs traces, which are counted, and never the daemon's time.
//! The design takes its spans' times from instants that are kept anyway, so nothing is open while a request is under
//! way.

pub mod config;
#[cfg(feature = "tracing-otlp")]
pub mod export;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use prometheus::{IntCounterVec, Opts};
use tokio::{sync::mpsc, time::Instant};

pub use config::TracingConfig;

pub use crate::metrics::exemplar::TraceId;

use crate::metrics::Metrics;

/// Operations that wait to be sent. A mass move ends some hundred a second, and a batch leaves each second.
pub const QUEUE: usize = 4_096;

/// Operations of one subsystem that are traced at once. More are under way when much is stuck, and then they are
/// much alike. Each is some hundred bytes.
const OPEN: usize = 10_000;

/// What became of a trace, as a label value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The collector has it.
    Exported,
    /// It ended when the queue was full.
    QueueFull,
    /// The collector could not be reached, or refused it.
    Failed,
    /// It began when too many were open.
    TooManyOpen,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Exported, Self::QueueFull, Self::Failed, Self::TooManyOpen];

    /// Value of the label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Exported => "exported",
            Self::QueueFull => "queue_full",
            Self::Failed => "failed",
            Self::TooManyOpen => "too_many_open",
        }
    }
}

/// A part of an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Its name, which is that of the phase in the metrics.
    pub name: &'static str,
    /// When it began; it ends when the next one begins.
    pub began: Instant,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It did what it should.
    Done,
    /// It was no longer wanted.
    Superseded,
}

impl End {
    /// Value of the span's attribute.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Superseded => "superseded",
        }
    }
}

/// An operation under way.
#[derive(Clone, Debug, PartialEq)]
pub struct Trail {
    id: TraceId,
    name: &'static str,
    steps: Vec<Step>,
}

impl Trail {
    /// Its trace.
    #[must_use]
    pub fn id(&self) -> TraceId {
        self.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Notes that a phase has begun, unless it is the present one or was there before: what is tried again belongs to
    /// the phase that it has reached.
    pub fn reach(&mut self, phase: &'static str, now: Instant) {
        if self.steps.iter().all(|step| step.name != phase) {
            self.steps.push(Step { name: phase, began: now });
        }
    }
}

/// An operation that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// What happened when.
    pub trail: Trail,
    /// When it ended.
    pub ended: Instant,
    /// How.
    pub end: End,
    /// Names of what it was about, and how often it was tried.
    pub attributes: Vec<(&'static str, String)>,
}

#[derive(Debug)]
struct Shared {
    per_million: u32,
    queue: mpsc::Sender<Finished>,
    counts: IntCounterVec,
}

/// Begins and ends traces. A clone shares the queue.
#[derive(Clone, Debug, Default)]
pub struct Traces(Option<Arc<Shared>>);

impl Traces {
    /// Traces so many of a million operations; what they come to is received at the other end.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(
        per_million: u32,
        metrics: &Metrics,
    ) -> Result<(Self, mpsc::Receiver<Finished>, Counts), prometheus::Error> {
        let counts = IntCounterVec::new(
            Opts::new("mooring_traces_total", "Traces of operations, by what became of them"),
            &["outcome"],
        )?;
        for outcome in Outcome::ALL {
            counts.with_label_values(&[outcome.label()]);
        }
        metrics.register(&counts)?;
        let (queue, finished) = mpsc::channel(QUEUE);
        let shared = Shared { per_million, queue, counts: counts.clone() };
        Ok((Self(Some(Arc::new(shared))), finished, Counts(counts)))
    }

    /// The id of a new trace, if the next operation is to be traced.
    fn sample(&self) -> Option<TraceId> {
        let shared = self.0.as_ref()?;
        let id = (u128::from(fastrand::u64(..)) << 64) | u128::from(fastrand::u64(..));
        is_sampled(id, shared.per_million).then(|| TraceId(id.to_be_bytes()))
    }

    fn count(&self, outcome: Outcome) {
        if let Some(shared) = &self.0 {
            shared.counts.with_label_values(&[outcome.label()]).inc();
        }
    }

    /// Sends off an operation that has ended, if there is room.
    pub fn end(&self, finished: Finished) {
        let Some(shared) = &self.0 else { return };
        if shared.queue.try_send(finished).is_err() {
            self.count(Outcome::QueueFull);
        }
    }
}

/// What became of traces.
#[derive(Clone, Debug)]
pub struct Counts(IntCounterVec);

impl Counts {
    /// Counts some.
    pub fn add(&self, outcome: Outcome, count: usize) {
        self.0.with_label_values(&[outcome.label()]).inc_by(count as u64);
    }
}

/// Whether a trace of this id is taken.
///
/// OpenTelemetry for Go: sdk/trace/sampling.go, traceIDRatioSampler.
fn is_sampled(id: u128, per_million: u32) -> bool {
    const LOW: u128 = u64::MAX as u128;
    let share = (id & LOW) >> 1;
    share < (u128::from(per_million) << 63) / 1_000_000
}

/// The operations of one subsystem that are under way and traced.
#[derive(Clone, Debug)]
pub struct Trails<K> {
    traces: Traces,
    open: BTreeMap<K, Trail>,
}

impl<K> Default for Trails<K> {
    fn default() -> Self {
        Self { traces: Traces::default(), open: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Trails<K> {
    /// Those that are ended there.
    #[must_use]
    pub fn of(traces: Traces) -> Self {
        Self { traces, open: BTreeMap::new() }
    }

    /// Whether anything is traced.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.traces.0.is_some()
    }

    /// An operation begins, with this phase.
    pub fn begin(&mut self, key: &K, name: &'static str, phase: &'static str, now: Instant) {
        let Some(id) = self.traces.sample() else { return };
        if self.open.len() >= OPEN {
            self.traces.count(Outcome::TooManyOpen);
            return;
        }
        let steps = vec![Step { name: phase, began: now }];
        self.open.insert(key.clone(), Trail { id, name, steps });
    }

    /// An operation has come to a phase.
    pub fn reach(&mut self, key: &K, phase: &'static str, now: Instant) {
        if let Some(trail) = self.open.get_mut(key) {
            trail.reach(phase, now);
        }
    }

    /// The trace of an operation, if it is traced.
    #[must_use]
    pub fn id(&self, key: &K) -> Option<TraceId> {
        self.open.get(key).map(Trail::id)
    }

    /// The name of the operation that is traced.
    #[must_use]
    pub fn name(&self, key: &K) -> Option<&'static str> {
        self.open.get(key).map(Trail::name)
    }

    /// An operation ends.
    pub fn end(
        &mut self,
        key: &K,
        end: End,
        now: Instant,
        attributes: impl FnOnce() -> Vec<(&'static str, String)>,
    ) {
        let Some(trail) = self.open.remove(key) else { return };
        self.traces.end(Finished { trail, ended: now, end, attributes: attributes() });
    }

    /// Forgets an operation that this process does not see to its end.
    pub fn forget(&mut self, key: &K) {
        self.open.remove(key);
    }

    /// Forgets all: another process goes on.
    pub fn forget_all(&mut self) {
        self.open.clear();
    }
}

/// How long each step took.
#[must_use]
pub fn lengths(finished: &Finished) -> Vec<(&'static str, Duration)> {
    let ends = finished.trail.steps.iter().skip(1).map(|step| step.began).chain([finished.ended]);
    let steps = finished.trail.steps.iter().zip(ends);
    steps.map(|(step, end)| (step.name, end.saturating_duration_since(step.began))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_traces_is_the_one_asked_for() {
        let sampled = |per_million| {
            let ids = (0..10_000_u64).map(|_| u128::from(fastrand::u64(..)));
            ids.filter(|id| is_sampled(*id, per_million)).count()
        };
        assert_eq!((sampled(0), sampled(1_000_000)), (0, 10_000));
        assert!((900..1_100).contains(&sampled(100_000)));
        assert!(is_sampled(0, 1) && !is_sampled(u128::MAX, 999_999));
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_is_one_trace_across_its_tries_and_what_finds_no_room_is_counted() {
        let metrics = Metrics::default();
        let (traces, mut finished, _) = Traces::new(1_000_000, &metrics).unwrap();
        let mut trails = Trails::of(traces.clone());
        let start = Instant::now();
        let second = |second| start + Duration::from_secs(second);
        trails.begin(&"a", "attach volume", "queue", start);
        for (at, phase) in [(1, "api"), (2, "queue"), (3, "api"), (5, "attacher")] {
            trails.reach(&"a", phase, second(at));
        }
        let id = trails.id(&"a").unwrap();
        trails.end(&"a", End::Done, second(9), || vec![("node", "n".to_owned())]);
        let sent = finished.try_recv().unwrap();
        assert_eq!((sent.trail.id(), sent.end, sent.attributes.len()), (id, End::Done, 1));
        let whole: Vec<_> = lengths(&sent).into_iter().map(|(name, took)| (name, took.as_secs())).collect();
        assert_eq!(whole, [("queue", 1), ("api", 4), ("attacher", 4)]);
        trails.end(&"a", End::Done, second(9), Vec::new);
        assert!(finished.try_recv().is_err());
        for _ in 0..QUEUE + 3 {
            trails.begin(&"b", "detach volume", "unmount", start);
            trails.end(&"b", End::Superseded, start, Vec::new);
        }
        let text = metrics.text().unwrap();
        assert!(text.contains("mooring_traces_total{outcome=\"queue_full\"} 3\n"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn of_operations_that_never_end_so_many_are_kept() {
        let metrics = Metrics::default();
        let (traces, _finished, _) = Traces::new(1_000_000, &metrics).unwrap();
        let mut trails = Trails::of(traces);
        for number in 0..OPEN + 2 {
            trails.begin(&number, "attach volume", "queue", Instant::now());
        }
        assert_eq!(trails.open.len(), OPEN);
        assert!(metrics.text().unwrap().contains("mooring_traces_total{outcome=\"too_many_open\"} 2\n"));
        trails.forget_all();
        assert!(trails.open.is_empty());
        let mut off = Trails::<u8>::default();
        off.begin(&1, "attach volume", "queue", Instant::now());
        assert_eq!(off.id(&1), None);
    }
}
