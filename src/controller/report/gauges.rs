//! Gauges of what waits: `mooring_waiting` and `mooring_waiting_oldest_seconds`, of one kind of keys (L18).
//!
//! In: the board, when it is scraped. Out: how many keys wait for each reason, and how long the first of them has.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use prometheus::{
    IntGaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use tokio::time::Instant;

use super::{Reason, ReportKey, board::Board};
use crate::metrics::Metrics;

/// The gauges of one kind.
#[derive(Debug)]
struct WaitGauges<K, R> {
    kind: &'static str,
    board: Arc<Board<K, R>>,
    /// Reasons that were ever seen: each stays, with 0, so that a wait that has ended does not look like a gap.
    seen: Arc<Mutex<BTreeSet<&'static str>>>,
    count: IntGaugeVec,
    oldest: IntGaugeVec,
}

impl<K, R> Clone for WaitGauges<K, R> {
    fn clone(&self) -> Self {
        let Self { kind, board, seen, count, oldest } = self;
        let (count, oldest) = (count.clone(), oldest.clone());
        Self { kind, board: Arc::clone(board), seen: Arc::clone(seen), count, oldest }
    }
}

/// Registers the gauges of all kinds of a board.
///
/// # Errors
/// See [`Metrics::register`].
pub fn register<K: ReportKey, R: Reason>(
    board: &Arc<Board<K, R>>,
    metrics: &Metrics,
) -> Result<(), prometheus::Error> {
    for kind in K::KINDS {
        let gauge = |name: &str, help: &str| {
            IntGaugeVec::new(Opts::new(name, help).const_label("kind", *kind), &["reason"])
        };
        metrics.register(&WaitGauges {
            kind,
            board: Arc::clone(board),
            seen: Arc::default(),
            count: gauge(
                "mooring_waiting",
                "Objects that wait, by kind and by the code of the reason; only on the leader",
            )?,
            oldest: gauge(
                "mooring_waiting_oldest_seconds",
                "Seconds for which the oldest object of a kind has waited for a reason; 0 if none waits",
            )?,
        })?;
    }
    Ok(())
}

impl<K: ReportKey, R: Reason> WaitGauges<K, R> {
    /// How many wait for each reason, and since when the first of them.
    fn counts(&self) -> BTreeMap<&'static str, (i64, Instant)> {
        let mut counts = BTreeMap::new();
        if self.board.leads() {
            self.board.for_each(|key, wait| {
                if key.kind() == self.kind {
                    let (count, oldest) = counts.entry(wait.reason.code()).or_insert((0, wait.since));
                    *count += 1;
                    *oldest = wait.since.min(*oldest);
                }
            });
        }
        counts
    }
}

impl<K: ReportKey, R: Reason> Collector for WaitGauges<K, R> {
    fn desc(&self) -> Vec<&Desc> {
        [self.count.desc(), self.oldest.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = Instant::now();
        let counts = self.counts();
        let mut seen = self.seen.lock();
        seen.extend(counts.keys());
        for reason in &*seen {
            let (count, age) = counts
                .get(reason)
                .map_or((0, 0), |(count, oldest)| (*count, now.saturating_duration_since(*oldest).as_secs()));
            self.count.with_label_values(&[reason]).set(count);
            self.oldest.with_label_values(&[reason]).set(i64::try_from(age).unwrap_or(i64::MAX));
        }
        [self.count.collect(), self.oldest.collect()].concat()
    }
}
