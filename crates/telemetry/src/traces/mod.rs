//! Traces: one for each operation that is sampled, from the event that made it due to its end, across all tries.
//!
//! In: when each phase of an operation began, as its timer notes it. Out: one
//! message on a bounded queue when the operation ends, which `export` turns into spans and sends over OTLP on a
//! thread of its own. A collector that is slow or away costs traces, which are counted, and never the daemon's time.
//! The design takes its spans' times from instants that are kept anyway, so nothing is open while a request is under
//! way.

#[cfg(feature = "otlp")]
pub mod export;

use std::{sync::Arc, time::Duration};

use prometheus::IntCounterVec;
use strum::{IntoStaticStr, VariantNames};
use tokio::{sync::mpsc, time::Instant};

pub use crate::metrics::exemplar::TraceId;

use crate::metrics::Metrics;

/// Operations that wait to be sent. A mass move ends some hundred a second, and a batch leaves each second.
pub const QUEUE: usize = 4_096;

/// What became of a trace, as a label value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub enum Outcome {
    /// The collector has it.
    Exported,
    /// It ended when the queue was full.
    QueueFull,
    /// The collector could not be reached, or refused it.
    Failed,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum End {
    /// It did what it should.
    Done,
    /// It was no longer wanted.
    Superseded,
}

/// An operation that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Its trace.
    pub id: TraceId,
    /// Its name.
    pub name: &'static str,
    /// Its phases.
    pub steps: Vec<Step>,
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
    ) -> Result<(Self, mpsc::Receiver<Finished>), prometheus::Error> {
        let help = "Traces of operations, by outcome";
        let counts = metrics.counters_of("mooring_traces_total", help, "outcome", Outcome::VARIANTS)?;
        let (queue, finished) = mpsc::channel(QUEUE);
        Ok((Self(Some(Arc::new(Shared { per_million, queue, counts }))), finished))
    }

    /// The id of a new trace, if the next operation is to be traced.
    pub fn sample(&self) -> Option<TraceId> {
        let shared = self.0.as_ref()?;
        let id = (u128::from(fastrand::u64(..)) << 64) | u128::from(fastrand::u64(..));
        is_sampled(id, shared.per_million).then(|| TraceId(id.to_be_bytes()))
    }

    /// Sends off an operation that has ended, if there is room.
    pub fn end(&self, finished: Finished) {
        let Some(shared) = &self.0 else { return };
        if shared.queue.try_send(finished).is_err() {
            self.count(Outcome::QueueFull, 1);
        }
    }

    /// Counts what became of traces.
    pub fn count(&self, outcome: Outcome, count: usize) {
        if let Some(shared) = &self.0 {
            shared.counts.with_label_values(&[<&str>::from(outcome)]).inc_by(count as u64);
        }
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

/// How long each step took.
pub fn lengths(finished: &Finished) -> Vec<(&'static str, Duration)> {
    let ends = finished.steps.iter().skip(1).map(|step| step.began).chain([finished.ended]);
    let steps = finished.steps.iter().zip(ends);
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
    async fn what_finds_no_room_is_counted() {
        let metrics = Metrics::default();
        let (traces, _finished) = Traces::new(1_000_000, &metrics).unwrap();
        let steps = vec![Step { name: "unmount", began: Instant::now() }];
        for _ in 0..QUEUE + 3 {
            traces.end(Finished {
                id: traces.sample().unwrap(),
                name: "detach volume",
                steps: steps.clone(),
                ended: Instant::now(),
                end: End::Superseded,
                attributes: Vec::new(),
            });
        }
        let text = metrics.text().unwrap();
        assert!(text.contains("mooring_traces_total{outcome=\"queue_full\"} 3\n"), "{text}");
        assert_eq!(Traces::default().sample(), None);
    }
}
