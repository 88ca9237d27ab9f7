//! Writes that were refused because the object had changed meanwhile, of every loop.

use std::collections::BTreeMap;

use prometheus::{IntCounter, Opts};

use super::Metrics;

/// `mooring_write_conflicts_total` of one subsystem, by operation. Those of several differ in the label `op` alone.
#[derive(Clone, Debug)]
pub struct WriteConflicts(BTreeMap<&'static str, IntCounter>);

impl WriteConflicts {
    /// Registers the counters of these operations.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics, writes: &[&'static str]) -> Result<Self, prometheus::Error> {
        let mut counters = BTreeMap::new();
        for op in writes {
            let opts = Opts::new(
                "mooring_write_conflicts_total",
                "Writes that the API server refused because the object had changed meanwhile, by purpose",
            );
            let counter = IntCounter::with_opts(opts.const_label("op", *op))?;
            metrics.register(&counter)?;
            counters.insert(*op, counter);
        }
        Ok(Self(counters))
    }

    /// Counts one.
    pub fn count(&self, op: &str) {
        if let Some(counter) = self.0.get(op) {
            counter.inc();
        }
    }
}
