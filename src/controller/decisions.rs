//! Decisions, by what they were about and the reason's code.

use prometheus::{IntCounterVec, Opts};

use super::diagnostics::Kind;
use crate::metrics::Metrics;

/// `mooring_decisions_total` of one kind. Those of several kinds differ in the label `kind` alone.
#[derive(Clone, Debug)]
pub struct Decisions(IntCounterVec);

impl Decisions {
    /// Registers the counters of a kind.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics, kind: Kind) -> Result<Self, prometheus::Error> {
        let opts = Opts::new(
            "mooring_decisions_total",
            "Decisions by what they were about, and by the code of the reason they came to: of attachments that wait \
             for nothing their state",
        );
        let counter = IntCounterVec::new(opts.const_label("kind", kind.label()), &["reason"])?;
        metrics.register(&counter)?;
        Ok(Self(counter))
    }

    /// Counts decisions with one reason.
    pub fn count(&self, reason: &'static str, count: u64) {
        self.0.with_label_values(&[reason]).inc_by(count);
    }
}
