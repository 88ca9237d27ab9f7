//! Reporter: what becomes of a report: counts, the log line of a change, history and the board.
//!
//! In: [`Report`]s, in the order of the looks. Out: effects, and no decision. What is at rest when this process first sees
//! it has not changed, so nothing is said of it.

use std::sync::Arc;

use educe::Educe;
use prometheus::IntCounterVec;
use tokio::time::Instant;

use super::{
    Reason, Report, ReportKey,
    board::{Board, Wait},
    gauges,
};
use crate::{
    metrics::Metrics,
    telemetry::{history::History, transition::Transition},
};

/// The state and the reason of a key whose object is gone.
const GONE: &str = "Gone";

/// Reports on the keys of one controller. The default counts nothing.
#[derive(Debug, Educe)]
#[educe(Default(bound(false)))]
pub struct Reporter<K, R> {
    board: Arc<Board<K, R>>,
    history: History,
    decisions: Option<IntCounterVec>,
}

/// A copy that goes its own way, but for the counters.
impl<K: ReportKey, R: Reason> Clone for Reporter<K, R> {
    fn clone(&self) -> Self {
        let board = Arc::new(Board::clone(&self.board));
        Self { board, history: self.history.clone(), decisions: self.decisions.clone() }
    }
}

impl<K: ReportKey, R: Reason> Reporter<K, R> {
    /// Registers `mooring_decisions_total` and the gauges of what waits.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let help =
            "Decisions, by kind and by the resulting reason; without a wait, by the attachment's state";
        let decisions = Some(metrics.counters("mooring_decisions_total", help, &["kind", "reason"])?);
        let reporter = Self { decisions, ..Self::default() };
        gauges::register(&reporter.board, metrics)?;
        Ok(reporter)
    }

    /// Remembers changes there from now on.
    pub fn remember(&mut self, history: History) {
        self.history = history;
    }

    /// Where the keys stand.
    pub fn board(&self) -> Arc<Board<K, R>> {
        Arc::clone(&self.board)
    }

    /// Takes a report, which is `seen` with the reason before it. What was waited for, or shown, ends with its object.
    pub fn take(&self, report: Report<K, R>, now: Instant, seen: impl FnOnce(Option<&R>, &Report<K, R>)) {
        let mut standing = self.board.standing();
        let before = standing.remove(&report.key);
        let before = before.as_ref();
        seen(before.map(|before| &before.reason), &report);
        let Report { key, reason, next, attempt, revision, from: written, other, is_decision } = report;
        if let (Some(decisions), Some(reason), true) = (&self.decisions, &reason, is_decision) {
            decisions.with_label_values(&[key.kind(), reason.decided()]).inc();
        }
        let known = before.map(|before| (before.reason.state(), before.reason.code()));
        let (to, code) = reason.as_ref().map_or((GONE, GONE), |reason| (reason.state(), reason.code()));
        let is_settled = reason.as_ref().is_none_or(R::is_settled);
        let is_logged = reason.as_ref().or(before.map(|before| &before.reason)).is_some_and(R::is_logged);
        if let Some(reason) = reason {
            let since =
                before.filter(|before| before.reason.code() == code).map_or(now, |before| before.since);
            standing.set(&key, Wait { reason, since, next });
        }
        drop(standing);
        let from = known.map(|(state, _)| state).or(written);
        let is_inherited = before.is_none() && is_settled && from.is_none_or(|from| from == to);
        if !is_logged || is_inherited || known == Some((to, code)) {
            return;
        }
        let from = from.or(R::INITIAL).unwrap_or(to);
        let (reason, revision) = (code, revision.map(|revision| revision.to_string()));
        let took = before.map(|before| now.saturating_duration_since(before.since));
        let (object, concerns) = (key.named(), key.concerns().into_iter().chain(other).collect());
        let change = Transition { object, reason, from, to, attempt, revision, took, concerns };
        self.history.tell(&change);
    }
}
