//! Gauges of what waits: `mooring_waiting` and `mooring_waiting_oldest_seconds`, of each kind of keys (L18).
//!
//! In: the board, when it is scraped. Out: how many keys wait for each reason, and how long the first of them has.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use prometheus::{GaugeVec, Opts};
use tokio::time::Instant;

use super::{Reason, ReportKey, board::Board};
use crate::metrics::{Metrics, register_counted};

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
            GaugeVec::new(Opts::new(name, help).const_label("kind", *kind), &["reason"])
        };
        let gauges = [
            gauge(
                "mooring_waiting",
                "Objects that wait, by kind and by the code of the reason; only on the leader",
            )?,
            gauge(
                "mooring_waiting_oldest_seconds",
                "Seconds for which the oldest object of a kind has waited for a reason; 0 if none waits",
            )?,
        ];
        // Reasons that were ever seen: each stays, with 0, so that a wait that has ended does not look like a gap.
        let (board, seen) = (Arc::clone(board), Mutex::new(BTreeSet::new()));
        register_counted(metrics, gauges, move |gauges| count(kind, &board, &mut seen.lock(), gauges))?;
    }
    Ok(())
}

/// How many wait for each reason, and for how many seconds the first of them has.
fn count<K: ReportKey, R: Reason>(
    kind: &str,
    board: &Board<K, R>,
    seen: &mut BTreeSet<&'static str>,
    [count, oldest]: &[GaugeVec; 2],
) {
    for reason in &*seen {
        count.with_label_values(&[reason]).set(0.0);
        oldest.with_label_values(&[reason]).set(0.0);
    }
    if !board.leads() {
        return;
    }
    let now = Instant::now();
    board.for_each(|key, wait| {
        if key.kind() == kind {
            let reason = wait.reason.code();
            let age = now.saturating_duration_since(wait.since).as_secs_f64().floor();
            let oldest = oldest.with_label_values(&[reason]);
            count.with_label_values(&[reason]).inc();
            oldest.set(oldest.get().max(age));
            seen.insert(reason);
        }
    });
}
